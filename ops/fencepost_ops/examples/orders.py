"""An order: reserve inventory, debit a wallet, schedule a shipment, at services with books of their own.

The three services deduplicate by key and can be asked by key. If a step fails for good, the effects of the
steps before it are offset, latest first. `FENCEPOST_APP=fencepost_ops.examples.orders:app` names this app.
"""

from collections.abc import Callable
from datetime import timedelta

from pydantic import BaseModel

from fencepost import (
    App,
    Context,
    Contract,
    Dedupes,
    Effect,
    FirstFailure,
    Lookup,
    Proposal,
    Request,
    Turn,
)
from fencepost.services import DependencyOptions

SECOND = timedelta(seconds=1)

PROMISED = Contract(
    repeat=Dedupes(
        window=timedelta(hours=24),
        first_failure=FirstFailure.RELEASED,
        in_progress=frozenset({409}),
        replay_marker=("idempotent-replayed", "true"),
    ),
    lookup=Lookup(by="key", strong=True),
    settle=2 * SECOND,
    not_applied=frozenset({400, 402, 412, 429, 503}),
    retryable=frozenset({429, 503}),
)
"""What the three services promise: equal keys once, refusals store nothing, they can be asked by key."""

app = App("orders")


class Money(BaseModel):
    """An amount in minor units of a currency; `scale` is how many digits they are below its unit."""

    currency: str
    amount_minor: int
    scale: int = 2


class Reserve(BaseModel):
    """Which goods, for which order."""

    order_id: str
    sku: str
    quantity: int


class Release(BaseModel):
    """A reservation to give back."""

    order_id: str
    reservation: str


class Debit(BaseModel):
    """How much from which account, for which order."""

    order_id: str
    account: str
    amount: Money


class Refund(BaseModel):
    """A debit to pay back."""

    order_id: str
    debit: str


class Ship(BaseModel):
    """Which reservation goes where."""

    order_id: str
    address_id: str
    reservation: str


class Unship(BaseModel):
    """A shipment to call off."""

    order_id: str
    shipment: str


class Receipt(BaseModel):
    """The service's own reference to the effect."""

    id: str


_TIMES: DependencyOptions = {
    "attempts": 6,
    "per_attempt": SECOND,
    "grace": SECOND,
    "reserve": 2 * SECOND,
    "backoff": timedelta(milliseconds=100),
    "backoff_cap": 2 * SECOND,
    "reconcile_for": timedelta(minutes=2),
}
_URL = "env:FENCEPOST_SANDBOX_URL"
inventory = app.dependency("inventory", _URL, **_TIMES)
wallet = app.dependency("wallet", _URL, **_TIMES)
shipping = app.dependency("shipping", _URL, **_TIMES)


@inventory.http(
    "inventory.release",
    effect=Effect.IRREVERSIBLE,
    returns=Receipt,
    contract=PROMISED,
    intent=lambda a: ("release", a.order_id),
)
def release(args: Release) -> Request:
    """Give a reservation back."""
    return Request.post(
        "/inventory/releases", json={"reservation": args.reservation, "reference": args.order_id}
    )


@inventory.http(
    "inventory.reserve",
    effect=Effect.REVERSIBLE,
    returns=Receipt,
    contract=PROMISED,
    intent=lambda a: ("reserve", a.order_id),
    required=True,
)
def reserve(args: Reserve) -> Request:
    """Reserve the goods of an order."""
    body = {"sku": args.sku, "quantity": args.quantity, "reference": args.order_id}
    return Request.post("/inventory/reservations", json=body)


@reserve.compensate
def give_back(args: Reserve, receipt: Receipt) -> Proposal:
    """Offset a reservation by releasing it."""
    return Proposal("inventory.release", Release(order_id=args.order_id, reservation=receipt.id))


@wallet.http(
    "wallet.refund",
    effect=Effect.IRREVERSIBLE,
    returns=Receipt,
    contract=PROMISED,
    intent=lambda a: ("refund", a.order_id),
)
def refund(args: Refund) -> Request:
    """Pay a debit back."""
    return Request.post("/wallet/refunds", json={"debit": args.debit, "reference": args.order_id})


@wallet.http(
    "wallet.debit",
    effect=Effect.REVERSIBLE,
    returns=Receipt,
    contract=PROMISED,
    intent=lambda a: ("debit", a.order_id),
    required=True,
)
def debit(args: Debit) -> Request:
    """Take the price of an order from an account."""
    body = {"account": args.account, "amount": args.amount.model_dump(), "reference": args.order_id}
    return Request.post("/wallet/debits", json=body)


@debit.compensate
def pay_back(args: Debit, receipt: Receipt) -> Proposal:
    """Offset a debit by refunding it."""
    return Proposal("wallet.refund", Refund(order_id=args.order_id, debit=receipt.id))


@shipping.http(
    "shipping.cancel",
    effect=Effect.IRREVERSIBLE,
    returns=Receipt,
    contract=PROMISED,
    intent=lambda a: ("cancel", a.order_id),
)
def cancel(args: Unship) -> Request:
    """Call a shipment off."""
    return Request.post(
        "/shipping/cancellations", json={"shipment": args.shipment, "reference": args.order_id}
    )


@shipping.http(
    "shipping.schedule",
    effect=Effect.REVERSIBLE,
    returns=Receipt,
    contract=PROMISED,
    intent=lambda a: ("ship", a.order_id),
    required=True,
)
def schedule(args: Ship) -> Request:
    """Schedule the shipment of an order's reservation."""
    body = {"address_id": args.address_id, "reservation": args.reservation, "reference": args.order_id}
    return Request.post("/shipping/shipments", json=body)


@schedule.compensate
def call_off(args: Ship, receipt: Receipt) -> Proposal:
    """Offset a shipment by cancelling it."""
    return Proposal("shipping.cancel", Unship(order_id=args.order_id, shipment=receipt.id))


def _asks(service: str) -> Callable[[BaseModel, str], Request]:
    """How a service is asked whether it knows a key: all three answer alike."""
    return lambda _args, key: Request.get(f"/{service}/by-key/{key}")


reserve.lookup(_asks("inventory"))
release.lookup(_asks("inventory"))
debit.lookup(_asks("wallet"))
refund.lookup(_asks("wallet"))
schedule.lookup(_asks("shipping"))
cancel.lookup(_asks("shipping"))


@app.planner("fulfil", version=1, timeout=2 * SECOND)
def fulfil(context: Context) -> Turn:
    """Reserve and debit at once, then ship what was reserved, then say so."""
    order = context.input
    reserved, debited, shipped = (context.call(label) for label in ("reserve", "debit", "ship"))
    if reserved is None or debited is None:
        goods = Reserve(order_id=order["order_id"], sku=order["sku"], quantity=order["quantity"])
        price = Money(**order["amount"])
        money = Debit(order_id=order["order_id"], account=order["account"], amount=price)
        return Turn([reserve.propose(goods, call_id="reserve"), debit.propose(money, call_id="debit")])
    # By receipt, not from results: a call that a person repaired has none.
    if shipped is None:
        goods_id = reserved.receipt or ""
        parcel = Ship(order_id=order["order_id"], address_id=order["address_id"], reservation=goods_id)
        return Turn([schedule.propose(parcel, call_id="ship")])
    return Turn(finish={"order_id": order["order_id"], "shipment": shipped.receipt})


@app.verify("fulfil")
def fulfilled(context: Context) -> bool | str:
    """An order is done when all three steps have succeeded, whatever the planner claims."""
    missing = [label for label in ("reserve", "debit", "ship") if not _succeeded(context, label)]
    return not missing or f"not done: {', '.join(missing)}"


def _succeeded(context: Context, label: str) -> bool:
    call = context.call(label)
    return call is not None and call.succeeded


# What nothing can offset has to be named: a pattern does not open it.
app.allow("svc:*", tools=["inventory.reserve", "inventory.release", "wallet.debit", "wallet.refund"])
app.allow("svc:*", tools=["shipping.schedule", "shipping.cancel"])
