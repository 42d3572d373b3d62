"""The application of protocols about authority: `fencepost_ops.drill.guarded:app`.

`bank.pay` moves money that nobody can bring back; how it may be asked for depends on who asks: a `svc:`
principal needs the approval of one person with role `finance`, a `duo:` one of two, a `clerk:` one none as
long as it has the role `teller`. `web.read` reads what nobody vouches for, `web.post` sends data out. At most
two payments of a `clerk:` are let out in an hour, and no more than 100.00 EUR of them all.
Planner `script` proposes what the run's input says.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from pydantic import BaseModel

from fencepost import App, Contract, Effect, Request
from fencepost.money import Money
from fencepost_ops.drill import script
from fencepost_ops.drill.app import CONTRACTS, REFUSED, Done, Order
from fencepost_ops.drill.services import SUFFIX

HOUR: Final = timedelta(hours=1)

_MOST: Final = Money(currency="EUR", amount_minor=10_000, scale=2)

app = App("guarded")
_bank = app.dependency("dedupes", f"http://dedupes{SUFFIX}", **script.TIMES)
_web = app.dependency("read", f"http://read{SUFFIX}", **script.TIMES)
_out = app.dependency("lookup", f"http://lookup{SUFFIX}", **script.TIMES)


class Payment(BaseModel):
    """How much, for which order."""

    reference: str
    amount: Money


@_bank.http(
    "bank.pay",
    effect=Effect.IRREVERSIBLE,
    returns=Done,
    contract=CONTRACTS["dedupes"],
    intent=lambda a: ("pay", a.reference),
    amount=lambda a: a.amount,
    acts_on=lambda a: ("Order", a.reference),
)
def pay(args: Payment) -> Request:
    """Money leaves."""
    return Request.post("/effects", json={"reference": args.reference, "amount": args.amount.amount_minor})


@_web.http("web.read", effect=Effect.READ)
def read(args: Order) -> Request:
    """A page that anybody may have written."""
    return Request.get(f"/pages/{args.reference}")


@_out.http(
    "web.post",
    effect=Effect.IRREVERSIBLE,
    returns=Done,
    contract=Contract(not_applied=REFUSED),
    intent=lambda a: ("post", a.reference),
    egress=True,
)
def post(args: Order) -> Request:
    """Data leaves."""
    return Request.post("/effects", json={"reference": args.reference})


app.allow("svc:*", ["bank.pay"], approvals=1, approvers=["role:finance"], within=HOUR)
app.allow("duo:*", ["bank.pay"], approvals=2, approvers=["role:finance"], within=HOUR)
app.allow("role:teller", ["bank.pay"])
app.allow("*", ["web.read", "web.post"], approvers=["role:finance"], within=HOUR)
app.allowance(
    "clerks", principal="clerk:*", tool="bank.pay", per=("principal",), window=HOUR, count=2, spend=_MOST
)
app.planner("script", version=1, timeout=timedelta(seconds=10))(script.script)
