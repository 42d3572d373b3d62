"""Tools that are wrong, each in a way that is met in real code, and one right tool of each kind.

`tests/integration/test_wrong_tools.py` has the drill find every one of them; what it says is told there. The
services are fakes of the simplest kind: a till that is asked over HTTP, a bank that is called.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pydantic import BaseModel

from fencepost import (
    Absent,
    App,
    Attempt,
    Contract,
    Dedupes,
    Effect,
    FirstFailure,
    Found,
    Lookup,
    NotApplied,
    Request,
    Response,
)
from fencepost_ops.drill.users.exchanges import Received

HOUR: Final = timedelta(hours=1)
DAY: Final = timedelta(days=1)
SETTLE: Final = timedelta(seconds=10)

app = App("wrong")
till = app.dependency("till", "https://till.invalid/v1", headers={"Authorization": "env:TILL_TOKEN"})
bank_account = app.dependency("bank")


class Order(BaseModel):
    """What is to be paid."""

    order: str
    customer: str = "ann"
    amount: int = 1200


class Receipt(BaseModel):
    """The service's own reference."""

    id: str


# -- The services -----------------------------------------------------------------------------------------


class Till:
    """A payment service. `remembers`: a key for so long (None: it never looks at keys); `lag`: of its lookup.

    `stumbles`: its first answer is a 500, given after the work was done.
    """

    def __init__(
        self,
        now: Callable[[], datetime],
        *,
        remembers: timedelta | None = None,
        lag: timedelta = timedelta(0),
        stumbles: bool = False,
    ) -> None:
        self._now = now
        self._remembers = remembers
        self._lag = lag
        self._stumbles = stumbles
        self.effects: list[dict[str, Any]] = []

    def reset(self) -> None:
        """As new."""
        self.effects.clear()

    def book(self) -> list[dict[str, Any]]:
        """What really happened."""
        return self.effects

    def __call__(self, request: Received) -> tuple[int, Any]:
        """Charge, or say what is known of a reference."""
        if request.method == "GET":
            return self._known(request.path.rpartition("/")[2])
        key, body = request.key, request.json()
        if self._remembers is not None:
            for one in self.effects:
                if one["key"] == key and one["at"] + self._remembers > self._now():
                    return 200, {"id": one["id"]}
        made = {"id": f"t-{len(self.effects) + 1}", "key": key, "at": self._now(), **body}
        self.effects.append(made)
        if self._stumbles and len(self.effects) == 1:
            return 500, {"error": "internal"}
        return 201, {"id": made["id"]}

    def _known(self, reference: str) -> tuple[int, Any]:
        for one in self.effects:
            if reference in (one["key"], one.get("reference")) and one["at"] + self._lag <= self._now():
                return 200, {"id": one["id"]}
        return 404, {"error": "not known"}


class Bank:
    """A service behind a client library: it deduplicates the key it is handed."""

    def __init__(self) -> None:
        self.payments: list[dict[str, Any]] = []

    def pay(self, order: str, amount: int, key: str) -> str:
        """Pay, once per key; the payment's reference."""
        for one in self.payments:
            if one["key"] == key:
                return str(one["id"])
        self.payments.append(
            {"id": f"b-{len(self.payments) + 1}", "key": key, "order": order, "amount": amount}
        )
        return str(self.payments[-1]["id"])

    def reset(self) -> None:
        """As new."""
        self.payments.clear()

    def book(self) -> list[dict[str, Any]]:
        """What really happened."""
        return self.payments


bank = Bank()

DEDUPES: Final = Contract(
    repeat=Dedupes(window=DAY, first_failure=FirstFailure.RELEASED),
    settle=SETTLE,
    not_applied=frozenset({400}),
)
STRONG: Final = Contract(lookup=Lookup(strong=True), settle=SETTLE, not_applied=frozenset({400}))


def _order(args: Order) -> tuple[str, str]:
    return "order", args.order


# -- Right ------------------------------------------------------------------------------------------------


@till.http("right.dedupes", effect=Effect.IRREVERSIBLE, returns=Receipt, intent=_order, contract=DEDUPES)
def charge(args: Order) -> Request:
    """Right, where the till remembers a key for a day."""
    return Request.post("/charges", json={"reference": args.order, "amount": args.amount})


@till.http("right.lookup", effect=Effect.IRREVERSIBLE, returns=Receipt, intent=_order, contract=STRONG)
def charge_looked_up(args: Order) -> Request:
    """Right, where the till's lookup sees every charge at once."""
    return Request.post("/charges", json={"reference": args.order, "amount": args.amount})


@charge_looked_up.lookup
def _find(_args: Order, key: str) -> Request:
    return Request.get(f"/by-key/{key}")


@bank_account.python(
    "right.python", effect=Effect.IRREVERSIBLE, returns=Receipt, intent=_order, contract=DEDUPES
)
def pay(args: Order, attempt: Attempt) -> Receipt:
    """Right: it hands down the operation key, and lets every exception through."""
    return Receipt(id=bank.pay(args.order, args.amount, key=attempt.operation_key))


# -- Wrong ------------------------------------------------------------------------------------------------


@till.http("wrong.clock", effect=Effect.IRREVERSIBLE, returns=Receipt, intent=_order, contract=STRONG)
def charge_by_clock(args: Order) -> Request:
    """Its reference is made of the time: another one each time the request is built, or looked up."""
    return Request.post(
        "/charges", json={"reference": f"{args.order}-{time.time_ns()}", "amount": args.amount}
    )


@charge_by_clock.lookup
def _find_by_clock(args: Order, _key: str) -> Request:
    return Request.get(f"/by-reference/{args.order}-{time.time_ns()}")


@till.http("wrong.window", effect=Effect.IRREVERSIBLE, returns=Receipt, intent=_order, contract=DEDUPES)
def charge_within_a_day(args: Order) -> Request:
    """Its contract says a day; the till remembers an hour."""
    return Request.post("/charges", json={"reference": args.order, "amount": args.amount})


@till.http("wrong.lookup", effect=Effect.IRREVERSIBLE, returns=Receipt, intent=_order, contract=STRONG)
def charge_and_look_at_once(args: Order) -> Request:
    """Its contract says that the lookup is strong; it sees a charge only seconds later."""
    return Request.post("/charges", json={"reference": args.order, "amount": args.amount})


@charge_and_look_at_once.lookup
def _find_at_once(_args: Order, key: str) -> Request:
    return Request.get(f"/by-key/{key}")


@till.http("wrong.absent", effect=Effect.IRREVERSIBLE, returns=Receipt, intent=_order, contract=STRONG)
def charge_unless_found(args: Order) -> Request:
    """Its lookup takes all answers but a 200 for proof that there is no charge, a gateway's as well."""
    return Request.post("/charges", json={"reference": args.order, "amount": args.amount})


@charge_unless_found.lookup
def _find_it(_args: Order, key: str) -> Request:
    return Request.get(f"/by-key/{key}")


@charge_unless_found.lookup_parse
def _found_or_not(response: Response, _args: Order) -> Found | Absent:
    if response.status != 200:
        return Absent()
    return Found(receipt=response.json()["id"], result=Receipt(**response.json()))


@till.http(
    "wrong.refused",
    effect=Effect.IRREVERSIBLE,
    returns=Receipt,
    intent=_order,
    contract=Contract(not_applied=frozenset({400, 500})),
)
def charge_or_500(args: Order) -> Request:
    """Its contract takes a 500 for proof that nothing happened."""
    return Request.post("/charges", json={"reference": args.order, "amount": args.amount})


@till.http(
    "wrong.narrow",
    effect=Effect.IRREVERSIBLE,
    returns=Receipt,
    intent=lambda a: ("customer", a.customer),
    contract=DEDUPES,
)
def charge_customer(args: Order) -> Request:
    """Its intent leaves out the order: all orders of a customer are one."""
    return Request.post("/charges", json={"reference": args.order, "amount": args.amount})


@till.http(
    "wrong.wide",
    effect=Effect.IRREVERSIBLE,
    returns=Receipt,
    intent=lambda a: ("order", a.order, datetime.now(UTC).isoformat()),
    contract=DEDUPES,
)
def charge_each_time(args: Order) -> Request:
    """Its intent has the time in it: the same order, asked for again, is another one."""
    return Request.post("/charges", json={"reference": args.order, "amount": args.amount})


@till.http("wrong.page", effect=Effect.IRREVERSIBLE, returns=Receipt, intent=_order, contract=DEDUPES)
def charge_and_hope(args: Order) -> Request:
    """Its parse takes every answer for a success."""
    return Request.post("/charges", json={"reference": args.order, "amount": args.amount})


@charge_and_hope.parse
def _hoped(response: Response) -> Receipt:
    return Receipt(id=response.text[:20])


@bank_account.python(
    "wrong.swallowed", effect=Effect.IRREVERSIBLE, returns=Receipt, intent=_order, contract=DEDUPES
)
def pay_and_forget(args: Order, attempt: Attempt) -> Receipt:
    """It takes a timeout for a success."""
    try:
        return Receipt(id=bank.pay(args.order, args.amount, key=attempt.operation_key))
    except TimeoutError:
        return Receipt(id="pending")


@bank_account.python("wrong.refusing", effect=Effect.IRREVERSIBLE, returns=Receipt, intent=_order)
def pay_or_not(args: Order, attempt: Attempt) -> Receipt:
    """It takes a timeout for a refusal."""
    try:
        return Receipt(id=bank.pay(args.order, args.amount, key=attempt.operation_key))
    except TimeoutError as error:
        raise NotApplied("timeout", str(error)) from error


@bank_account.python(
    "wrong.attempt", effect=Effect.IRREVERSIBLE, returns=Receipt, intent=_order, contract=DEDUPES
)
async def pay_by_attempt(args: Order, attempt: Attempt) -> Receipt:
    """Its key has the attempt's number in it."""
    return Receipt(id=bank.pay(args.order, args.amount, key=f"{args.order}-{attempt.number}"))


app.allow("svc:*", tools=sorted({name for name, _ in app.registry}))
