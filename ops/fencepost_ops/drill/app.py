"""What drills are run on where nobody names another application: a tool for each class of contract.

Planner `one` makes one call, `two` two in a row, `both` two at once, `stop` two of which the second is
refused for good, so that the first is to be offset. The input's `contract` says which class.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from pydantic import BaseModel

from fencepost import (
    App,
    Context,
    Contract,
    Dedupes,
    Effect,
    FirstFailure,
    Lookup,
    Natural,
    Proposal,
    Request,
    Turn,
)
from fencepost.declarations import HttpTool
from fencepost.errors import FencepostError
from fencepost_ops.drill.services import SUFFIX, Manners

SECOND: Final = timedelta(seconds=1)
DAY: Final = timedelta(days=1)
SETTLE: Final = 2 * SECOND
LAG: Final = 3 * SECOND
REFUSED: Final = frozenset({400})

app = App("drill")


class Order(BaseModel):
    """Which effect, told apart by its reference."""

    reference: str


class Undo(BaseModel):
    """An effect to offset."""

    reference: str
    receipt: str


class Done(BaseModel):
    """The service's own reference."""

    id: str


_DEDUPES = Dedupes(window=DAY, first_failure=FirstFailure.RELEASED)
CONTRACTS: Final[dict[str, Contract]] = {
    "dedupes": Contract(repeat=_DEDUPES, settle=SETTLE, not_applied=REFUSED),
    "dedupes_lookup": Contract(
        repeat=_DEDUPES, lookup=Lookup(strong=True), settle=SETTLE, not_applied=REFUSED
    ),
    "lookup": Contract(lookup=Lookup(strong=True), settle=SETTLE, not_applied=REFUSED),
    "eventual": Contract(lookup=Lookup(lag=LAG, horizon=DAY), settle=SETTLE, not_applied=REFUSED),
    "natural": Contract(repeat=Natural(resource=lambda a: a.reference), settle=SETTLE, not_applied=REFUSED),
    "neither": Contract(not_applied=REFUSED),
}
"""The classes of contract, by the name of their dependency."""

MANNERS: Final[dict[str, Manners]] = {
    "dedupes": Manners(dedupes_for=DAY),
    "dedupes_lookup": Manners(dedupes_for=DAY),
    "lookup": Manners(),
    "eventual": Manners(lag=LAG),
    "natural": Manners(dedupes_for=DAY),  # of what offsets a setting, which is no setting
    "neither": Manners(),
    "read": Manners(),
    "brief": Manners(dedupes_for=60 * SECOND),
}
"""How the services behave: as their contracts say, and no better."""


def _declare(name: str, contract: Contract) -> None:
    service = app.dependency(
        name,
        f"http://{name}{SUFFIX}",
        attempts=4,
        per_attempt=5 * SECOND,
        grace=SECOND,
        reserve=2 * SECOND,
        backoff=SECOND,
        backoff_cap=4 * SECOND,
        reconcile_for=60 * SECOND,
        margin=timedelta(0),
    )

    def send(args: Order) -> Request:
        if isinstance(contract.repeat, Natural):
            return Request.put(f"/settings/{args.reference}", json={"reference": args.reference})
        return Request.post("/effects", json={"reference": args.reference})

    tool: HttpTool[Order, Done] = service.http(
        f"{name}.do",
        effect=Effect.REVERSIBLE,
        returns=Done,
        contract=contract,
        intent=lambda a: ("do", a.reference),
    )(send)
    if contract.lookup is not None:
        tool.lookup(_by_key)

    def undo(args: Undo) -> Request:
        return Request.post("/undone", json={"reference": args.reference, "receipt": args.receipt})

    undoing: HttpTool[Undo, Done] = service.http(
        f"{name}.undo",
        effect=Effect.IRREVERSIBLE,
        returns=Done,
        contract=CONTRACTS["dedupes"] if isinstance(contract.repeat, Natural) else contract,
        intent=lambda a: ("undo", a.reference),
    )(undo)
    if contract.lookup is not None:
        undoing.lookup(_by_key)

    @tool.compensate
    def offset(args: Order, receipt: Done) -> Proposal:
        return Proposal(f"{name}.undo", Undo(reference=args.reference, receipt=receipt.id))


def _by_key(_args: BaseModel, key: str) -> Request:
    return Request.get(f"/by-key/{key}")


for _name, _contract in CONTRACTS.items():
    _declare(_name, _contract)

_read = app.dependency("read", f"http://read{SUFFIX}", attempts=4, per_attempt=5 * SECOND, grace=SECOND,
                       reserve=2 * SECOND)  # fmt: skip


@_read.http("read.refuse", effect=Effect.READ, returns=Done, contract=Contract(not_applied=REFUSED))
def refuse(args: Order) -> Request:
    """Is refused, always."""
    return Request.post("/refuse", json={"reference": args.reference})


def _do(context: Context, label: str) -> Proposal:
    given: dict[str, Any] = dict(context.input)
    reference = f"{given.get('reference', context.run_id)}-{label}"
    return Proposal(f"{given.get('contract', 'dedupes')}.do", Order(reference=reference), call_id=label)


@app.planner("one", version=1, timeout=10 * SECOND)
def one(context: Context) -> Turn:
    """One call, then the end."""
    if context.call("first") is None:
        return Turn([_do(context, "first")])
    return Turn(finish={"done": True})


@app.planner("two", version=1, timeout=10 * SECOND)
def two(context: Context) -> Turn:
    """Two calls, one after the other."""
    for label in ("first", "second"):
        if context.call(label) is None:
            return Turn([_do(context, label)])
    return Turn(finish={"done": True})


@app.planner("both", version=1, timeout=10 * SECOND)
def both(context: Context) -> Turn:
    """Two calls at once."""
    if context.call("first") is None:
        return Turn([_do(context, "first"), _do(context, "second")])
    return Turn(finish={"done": True})


@app.planner("breaks", version=1, timeout=10 * SECOND)
def breaks(context: Context) -> Turn:
    """A call, then an error of its own code, for ever."""
    if context.call("first") is None:
        return Turn([_do(context, "first")])
    raise FencepostError("this planner is broken")


@app.planner("stop", version=1, timeout=10 * SECOND)
def stop(context: Context) -> Turn:
    """A call, then one that is refused for good: the run stops, and offsets what it did."""
    if context.call("first") is None:
        return Turn([_do(context, "first")])
    return Turn([Proposal("read.refuse", Order(reference="x"), call_id="refused")])


app.allow("svc:*", tools=["*", *(f"{name}.undo" for name in CONTRACTS)])
