"""The business rules of the sandbox, over a small world in memory."""

import dataclasses
from typing import Any

import pytest

from fencepost_ops.sandbox import services
from fencepost_ops.sandbox.services import (
    Account,
    Done,
    Invalid,
    Item,
    Money,
    Operation,
    Outcome,
    Page,
    Past,
    Refused,
    Unchanged,
)

EUR_5 = {"currency": "EUR", "amount_minor": 500, "scale": 2}


@dataclasses.dataclass
class Town:
    """A world that holds one of each."""

    money: Account | None = None
    stock: int = 10
    site: Page | None = None
    effect: Past | None = None
    undone: str | None = None
    default_balance_minor: int = 1000

    def account(self, account_id: str) -> Account | None:
        return self.money

    def item(self, sku: str) -> Item:
        return Item(sku, self.stock)

    def page(self, page_id: str) -> Page | None:
        return self.site

    def past(self, receipt: str) -> Past | None:
        return self.effect

    def undone_by(self, receipt: str) -> str | None:
        return self.undone


def at(path: str) -> Operation:
    operation = services.operation_at(path)
    assert operation is not None
    return operation


def ask(path: str, body: dict[str, Any], town: Town | None = None) -> Outcome:
    return at(path).outcome({"reference": "r-1", **body}, town or Town())


def holding(minor: int, currency: str = "EUR") -> Account:
    return Account("a", Money(currency, minor, 2))


def test_a_debit_takes_its_amount_from_the_account() -> None:
    outcome = ask("/wallet/debits", {"account": "a", "amount": EUR_5}, Town(holding(700)))
    assert isinstance(outcome, Done)
    assert outcome.account == holding(200)
    assert outcome.amount == Money("EUR", 500, 2)


def test_an_account_never_seen_starts_with_the_default_balance() -> None:
    outcome = ask("/wallet/debits", {"account": "a", "amount": EUR_5})
    assert isinstance(outcome, Done)
    assert outcome.account == holding(500)


def test_a_debit_of_more_than_the_account_holds_is_refused() -> None:
    outcome = ask("/wallet/debits", {"account": "a", "amount": EUR_5}, Town(holding(499)))
    assert isinstance(outcome, Refused)
    assert (outcome.status, outcome.code) == (402, "insufficient_funds")


def test_a_debit_in_another_currency_is_refused() -> None:
    outcome = ask("/wallet/debits", {"account": "a", "amount": EUR_5}, Town(holding(9999, "USD")))
    assert isinstance(outcome, Refused)
    assert outcome.code == "currency_mismatch"


def test_a_refund_gives_the_whole_debit_back_to_its_account() -> None:
    debit = Past("debit_000001", "debit", {"account": "a"}, Money("EUR", 500, 2))
    outcome = ask("/wallet/refunds", {"debit": debit.id}, Town(holding(0), effect=debit))
    assert isinstance(outcome, Done)
    assert outcome.account == holding(500)
    assert outcome.undoes == debit.id


@pytest.mark.parametrize(
    ("path", "kind", "code"),
    [
        ("/wallet/refunds", "debit", "already_refunded"),
        ("/inventory/releases", "reservation", "already_released"),
        ("/shipping/cancellations", "shipment", "already_cancelled"),
    ],
)
def test_an_effect_is_undone_once_and_only_by_its_own_kind(path: str, kind: str, code: str) -> None:
    past = Past("x", kind, {"account": "a", "sku": "s", "quantity": 1}, Money("EUR", 1, 2))
    undone = ask(path, {kind: "x"}, Town(holding(0), effect=past, undone="y"))
    other = ask(path, {kind: "x"}, Town(effect=dataclasses.replace(past, kind="message")))
    missing = ask(path, {kind: "x"})
    assert [outcome.code for outcome in (undone, other, missing) if isinstance(outcome, Refused)] == [
        code,
        f"unknown_{kind}",
        f"unknown_{kind}",
    ]


def test_a_reservation_takes_from_the_stock_and_its_release_gives_back() -> None:
    reserved = ask("/inventory/reservations", {"sku": "s", "quantity": 4})
    past = Past("x", "reservation", {"sku": "s", "quantity": 4}, None)
    released = ask("/inventory/releases", {"reservation": "x"}, Town(stock=6, effect=past))
    assert isinstance(reserved, Done)
    assert isinstance(released, Done)
    assert (reserved.item, released.item) == (Item("s", 6), Item("s", 10))


def test_a_reservation_of_more_than_is_free_is_refused() -> None:
    outcome = ask("/inventory/reservations", {"sku": "s", "quantity": 11})
    assert isinstance(outcome, Refused)
    assert (outcome.status, outcome.code) == (412, "out_of_stock")


def test_no_refusal_says_409_because_that_means_in_progress() -> None:
    past = Past("x", "debit", {"account": "a"}, Money("EUR", 1, 2))
    refusals = [
        ask("/wallet/debits", {"account": "a", "amount": EUR_5}, Town(holding(1))),
        ask("/wallet/debits", {"account": "a", "amount": EUR_5}, Town(holding(1, "USD"))),
        ask("/wallet/refunds", {"debit": "x"}, Town(effect=past, undone="y")),
        ask("/wallet/refunds", {"debit": "x"}),
        ask("/inventory/reservations", {"sku": "s", "quantity": 11}),
    ]
    assert all(isinstance(refusal, Refused) and refusal.status != 409 for refusal in refusals)


def test_setting_a_page_to_what_it_is_changes_nothing() -> None:
    body = {"title": "t", "reference": "r-1"}
    changed = at("/pages/home").outcome(body, Town())
    same = at("/pages/home").outcome(body, Town(site=Page("home", 3, body, "page_000009")))
    assert isinstance(changed, Done)
    assert changed.page == Page("home", 1, body)
    assert same == Unchanged({"id": "page_000009", "page": "home", "version": 3})


def test_messages_and_pages_need_no_reference_and_everything_else_does() -> None:
    assert isinstance(at("/mail/messages").outcome({"to": "a"}, Town()), Done)
    assert isinstance(at("/pages/p").outcome({}, Town()), Done)
    with pytest.raises(Invalid, match="reference"):
        at("/shipping/shipments").outcome({"address_id": "a", "reservation": "x"}, Town())


@pytest.mark.parametrize(
    "amount",
    [
        None,
        5,
        {"currency": "EUR", "amount_minor": 500},
        {**EUR_5, "note": "x"},
        {**EUR_5, "amount_minor": 0},
        {**EUR_5, "amount_minor": 1.5},
        {**EUR_5, "amount_minor": True},
        {**EUR_5, "amount_minor": 2**53},
        {**EUR_5, "scale": 19},
        {**EUR_5, "currency": ""},
    ],
)
def test_an_amount_is_currency_whole_minor_units_and_scale_or_invalid(amount: object) -> None:
    with pytest.raises(Invalid):
        ask("/wallet/debits", {"account": "a", "amount": amount})


def test_a_path_nobody_serves_has_no_operation() -> None:
    assert services.operation_at("/wallet/gifts") is None
    assert services.operation_at("/pages/a/b") is None
