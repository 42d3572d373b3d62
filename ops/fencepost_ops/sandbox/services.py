"""The business rules of the sandbox: a wallet, an inventory, a carrier, a mailer and pages.

Pure: each rule reads a `World` and returns what would be done (`Done`) or why not (`Refused`); the store
writes it. Undoing an effect is a new effect that names the first, and happens at most once whatever keys it
is asked under. No refusal is a 409: that status only ever says that an equal request is in progress.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import unquote

Body = Mapping[str, Any]
MAX_TEXT_LENGTH = 200
MAX_MINOR = 2**53 - 1  # what every JSON reader can hold exactly


class Invalid(ValueError):
    """The request's body is not one the service understands; nothing was done and nothing is remembered."""


@dataclass(frozen=True, slots=True)
class Money:
    """An amount in integer minor units; `scale` is the number of decimals they stand for."""

    currency: str
    amount_minor: int
    scale: int

    def wire(self) -> dict[str, Any]:
        """The amount as JSON values."""
        return {"currency": self.currency, "amount_minor": self.amount_minor, "scale": self.scale}


@dataclass(frozen=True, slots=True)
class Account:
    """A wallet account and what it holds."""

    id: str
    balance: Money


@dataclass(frozen=True, slots=True)
class Item:
    """A stock item and the quantity that is free."""

    sku: str
    stock: int


@dataclass(frozen=True, slots=True)
class Page:
    """A page under set semantics: `version` counts its changes, `receipt` names the last one."""

    id: str
    version: int
    body: Body
    receipt: str = ""


@dataclass(frozen=True, slots=True)
class Past:
    """A committed effect, as its undoing needs it."""

    id: str
    kind: str
    body: Body
    amount: Money | None


class World(Protocol):
    """What the rules may read. Defaults stand in for what was never seeded."""

    def account(self, account_id: str) -> Account | None:
        """The account, if it was seeded or used before."""

    def item(self, sku: str) -> Item:
        """The item; one that was never seeded has the default stock."""

    def page(self, page_id: str) -> Page | None:
        """The page, if it was written before."""

    def past(self, receipt: str) -> Past | None:
        """The effect with that receipt."""

    def undone_by(self, receipt: str) -> str | None:
        """The receipt of the effect that undid this one."""

    @property
    def default_balance_minor(self) -> int:
        """What an account never seen before holds, in minor units of its first debit."""


@dataclass(frozen=True, slots=True)
class Done:
    """An effect to commit: what the answer says, and the state after it."""

    answer: Body
    amount: Money | None = None
    account: Account | None = None
    item: Item | None = None
    page: Page | None = None
    undoes: str | None = None


@dataclass(frozen=True, slots=True)
class Unchanged:
    """The asked state is already there: an answer without an effect."""

    answer: Body


@dataclass(frozen=True, slots=True)
class Refused:
    """A business refusal: nothing was done."""

    status: int
    code: str
    detail: str


Outcome = Done | Unchanged | Refused


@dataclass(frozen=True, slots=True)
class Operation:
    """One kind of effect. `subject` is the part of the path the rule needs, if any."""

    service: str
    kind: str
    rule: Callable[[Body, World, str], Outcome]
    subject: str = ""
    referenced: bool = True  # whether the body must carry the caller's reference

    def outcome(self, body: Body, world: World) -> Outcome:
        """What the request would do. Raises Invalid for a body the service does not understand."""
        if self.referenced or "reference" in body:
            text(body, "reference")
        return self.rule(body, world, self.subject)


def operation_at(path: str) -> Operation | None:
    """The operation a POST to this path asks for."""
    if path in _OPERATIONS:
        return _OPERATIONS[path]
    page = re.fullmatch(r"/pages/([^/]+)", path)
    return Operation("pages", "page", set_page, unquote(page[1]), referenced=False) if page else None


def money(value: object, least: int = 1) -> Money:
    """Read an amount of at least `least` minor units with a scale of 0 to 18. Raises Invalid."""
    if not isinstance(value, Mapping) or set(value) != {"currency", "amount_minor", "scale"}:
        raise Invalid("an amount has exactly currency, amount_minor and scale")
    currency, scale = text(value, "currency"), whole(value, "scale", least=0)
    if scale > 18:
        raise Invalid("scale is at most 18")
    return Money(currency, whole(value, "amount_minor", least), scale)


def text(body: Body, name: str) -> str:
    """A non-empty string of the body. Raises Invalid."""
    value = body.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= MAX_TEXT_LENGTH:
        raise Invalid(f"{name} must be a text of 1 to {MAX_TEXT_LENGTH} characters")
    return value


def whole(body: Body, name: str, least: int = 1) -> int:
    """An integer of the body, at least `least`. Raises Invalid."""
    value = body.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= MAX_MINOR:
        raise Invalid(f"{name} must be a whole number of at least {least}")
    return value


def debit(body: Body, world: World, _: str) -> Outcome:
    """Take an amount from an account; refused when it holds less, or another currency."""
    name, amount = text(body, "account"), money(body.get("amount"))
    opening = Account(name, Money(amount.currency, world.default_balance_minor, amount.scale))
    account = world.account(name) or opening
    if (account.balance.currency, account.balance.scale) != (amount.currency, amount.scale):
        return Refused(412, "currency_mismatch", f"account {name} holds {account.balance.currency}")
    if account.balance.amount_minor < amount.amount_minor:
        return Refused(402, "insufficient_funds", f"account {name} holds {account.balance.amount_minor}")
    answer = {"account": name, "amount": amount.wire()}
    return Done(answer, amount, account=_moved(account, -amount.amount_minor))


def _moved(account: Account, minor: int) -> Account:
    held = account.balance
    return Account(account.id, Money(held.currency, held.amount_minor + minor, held.scale))


def refund(body: Body, world: World, _: str) -> Outcome:
    """Give a debit back, whole and once."""
    past = _undoable(body, world, "debit", "already_refunded")
    if isinstance(past, Refused):
        return past
    account = world.account(past.body["account"])
    if account is None or past.amount is None:
        raise LookupError(f"the book has lost the account or the amount of {past.id}")
    answer = {"debit": past.id, "account": account.id, "amount": past.amount.wire()}
    return Done(answer, past.amount, account=_moved(account, past.amount.amount_minor), undoes=past.id)


def reserve(body: Body, world: World, _: str) -> Outcome:
    """Set a quantity of an item aside; refused when less is free."""
    sku, quantity = text(body, "sku"), whole(body, "quantity")
    item = world.item(sku)
    if item.stock < quantity:
        return Refused(412, "out_of_stock", f"{item.stock} of {sku} are free")
    return Done({"sku": sku, "quantity": quantity}, item=Item(sku, item.stock - quantity))


def release(body: Body, world: World, _: str) -> Outcome:
    """Return a reservation's quantity to the stock, once."""
    past = _undoable(body, world, "reservation", "already_released")
    if isinstance(past, Refused):
        return past
    sku, quantity = past.body["sku"], past.body["quantity"]
    answer = {"reservation": past.id, "sku": sku, "quantity": quantity}
    return Done(answer, item=Item(sku, world.item(sku).stock + quantity), undoes=past.id)


def ship(body: Body, _world: World, _: str) -> Outcome:
    """Hand a parcel to the carrier. The reservation is a label here: the carrier keeps a book of its own."""
    return Done({"address_id": text(body, "address_id"), "reservation": text(body, "reservation")})


def cancel(body: Body, world: World, _: str) -> Outcome:
    """Call a shipment back, once."""
    past = _undoable(body, world, "shipment", "already_cancelled")
    return past if isinstance(past, Refused) else Done({"shipment": past.id}, undoes=past.id)


def _undoable(body: Body, world: World, kind: str, code: str) -> Past | Refused:
    receipt = text(body, kind)
    past = world.past(receipt)
    if past is None or past.kind != kind:
        return Refused(412, f"unknown_{kind}", f"there is no {kind} {receipt}")
    earlier = world.undone_by(receipt)
    return past if earlier is None else Refused(412, code, f"{receipt} was undone by {earlier}")


def send_message(body: Body, _world: World, _: str) -> Outcome:
    """Send a message: every request is another one."""
    return Done({"to": text(body, "to")})


def set_page(body: Body, world: World, subject: str) -> Outcome:
    """Make the page's body this one; asking for what is already there changes nothing."""
    page = world.page(subject)
    if page is not None and page.body == body:
        return Unchanged({"id": page.receipt, "page": subject, "version": page.version})
    version = 1 if page is None else page.version + 1
    return Done({"page": subject, "version": version}, page=Page(subject, version, body))


_OPERATIONS: Mapping[str, Operation] = {
    "/wallet/debits": Operation("wallet", "debit", debit),
    "/wallet/refunds": Operation("wallet", "refund", refund),
    "/inventory/reservations": Operation("inventory", "reservation", reserve),
    "/inventory/releases": Operation("inventory", "release", release),
    "/shipping/shipments": Operation("shipping", "shipment", ship),
    "/shipping/cancellations": Operation("shipping", "cancellation", cancel),
    "/mail/messages": Operation("mail", "message", send_message, referenced=False),
}
SERVICES = ("wallet", "inventory", "shipping", "mail", "pages")
