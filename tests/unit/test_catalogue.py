"""The catalogue says of each published interface what it promises, where it says so, and when we looked."""

import json
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import pytest
from click.testing import CliRunner
from pydantic import BaseModel

from fencepost import App, Effect, Request
from fencepost.contracts import (
    Contract,
    Dedupes,
    FirstFailure,
    Lookup,
    Mismatch,
    Never,
    ToolClass,
    tool_class,
)
from fencepost.contracts.carriers import KeyCarrier, Place
from fencepost.contracts.catalogue import ENTRIES, HTTP, OBJECT_STORE, PAYPAL_ORDERS, SQUARE, STRIPE_V1
from fencepost.contracts.entries import Entry, problems
from fencepost.declarations import ToolOptions
from fencepost.tools import operation_key
from fencepost_ops.cli import main

KEY = operation_key("t", "pay/default", "pay.now", ("order", "o-1"))
entry_of = pytest.mark.parametrize("entry", ENTRIES.values(), ids=list(ENTRIES))


@entry_of
def test_an_entry_is_sound_and_says_whence_and_when(entry: Entry) -> None:
    assert problems(entry) == []
    assert date(2026, 1, 1) < entry.checked_on <= datetime.now(UTC).date()
    assert entry.operation
    json.dumps(entry.to_json())


@entry_of
def test_nothing_undocumented_lends_a_promise(entry: Entry) -> None:
    contract = entry.contract
    assert not contract.absence_provable, "nobody states how late a request may land"
    if isinstance(contract.repeat, Dedupes) and contract.repeats_by_key:
        assert entry.name in {"stripe.v1", "stripe.v2", "s3.put-if-absent", "kubernetes.create"}
    if entry.key is None:
        assert tool_class(Effect.IRREVERSIBLE, contract) is ToolClass.NEITHER


@pytest.mark.parametrize(
    ("entry", "complaint"),
    [
        (replace(STRIPE_V1, source="our wiki"), "no public address"),
        (replace(STRIPE_V1, scope=""), "where a key is unique"),
        (replace(STRIPE_V1, key=None), "nothing carries"),
        (
            replace(
                SQUARE,
                contract=Contract(
                    repeat=Dedupes(window=timedelta(days=1), first_failure=FirstFailure.UNKNOWN)
                ),
            ),
            "a window is stated",
        ),
        (replace(STRIPE_V1, undocumented=()), "settle is stated"),
        (replace(STRIPE_V1, contract=replace(STRIPE_V1.contract, settle=timedelta(1))), "settle is stated"),
        (
            replace(SQUARE, contract=Contract(repeat=Dedupes(first_failure=FirstFailure.RELEASED))),
            "a first failure is stated",
        ),
        (
            replace(
                PAYPAL_ORDERS,
                contract=Contract(
                    repeat=Dedupes(window=timedelta(hours=6), first_failure=FirstFailure.UNKNOWN)
                ),
            ),
            "counts as ignored",
        ),
        (
            replace(STRIPE_V1, contract=replace(STRIPE_V1.contract, lookup=Lookup(strong=True))),
            "a lookup's lag is stated",
        ),
    ],
)
def test_an_entry_that_promises_what_it_lists_as_unsaid_is_found(entry: Entry, complaint: str) -> None:
    assert any(complaint in problem for problem in problems(entry)), problems(entry)


class Order(BaseModel):
    id: str


class Paid(BaseModel):
    id: str


@entry_of
def test_an_entry_serves_in_a_declaration(entry: Entry) -> None:
    app = App("shop")
    app.allow("svc:*", tools=["pay.now"])
    options: ToolOptions = {
        "intent": lambda a: ("order", a.id),
        "contract": entry.unasked,
        "key": entry.key,
    }

    def now(args: Order) -> Request:
        by_name = entry.key is not None and entry.key.place is Place.PATH
        return Request.put("/bucket/{key}") if by_name else Request.post("/payments", json={"id": args.id})

    pay = app.dependency("pay", "https://pay.test")
    tool = pay.http("pay.now", effect=Effect.IRREVERSIBLE, returns=Paid, **options)(now)
    assert app.check() == []
    stored = tool.tool.stored_request(Order(id="o-1"), KEY)
    if entry.key is None:
        assert stored == tool.tool.stored_request(Order(id="o-1"))
    else:
        spelled = entry.key.spell(KEY)
        assert len(spelled) <= (entry.key.max_length or 64)
        assert spelled in f"{stored.target} {stored.headers} {stored.body!r}"


def test_the_forms_of_the_issue_are_all_there() -> None:
    assert STRIPE_V1.key == KeyCarrier(max_length=255)
    assert OBJECT_STORE.contract.repeats_by_key
    assert isinstance(HTTP.contract.repeat, Never)
    repeat = PAYPAL_ORDERS.contract.repeat
    assert isinstance(repeat, Dedupes)
    assert (repeat.window, repeat.mismatch) == (timedelta(hours=6), Mismatch.IGNORED)


def test_the_command_prints_the_catalogue_without_an_application() -> None:
    runner = CliRunner()
    told = runner.invoke(main, ["tools", "--catalogue"], env={"FENCEPOST_APP": ""})
    assert told.exit_code == 0, told.output
    for entry in ENTRIES.values():
        assert f"{entry.name}: " in told.output
        assert f"source  {entry.source}, checked on {entry.checked_on}" in told.output
    listed = json.loads(runner.invoke(main, ["tools", "--catalogue", "--json"]).output)
    assert [entry["name"] for entry in listed] == list(ENTRIES)
    assert {entry["class"] for entry in listed} == {"dedupes", "neither"}
