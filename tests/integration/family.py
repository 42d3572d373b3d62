"""A bench whose application starts runs, and how its steps are taken."""

from dataclasses import replace
from typing import Any, Unpack
from uuid import UUID

import psycopg
from pydantic import BaseModel

from fencepost import App, Budget, Effect, Proposal
from fencepost import commands as c
from fencepost.children import ChildOptions, ChildTool
from fencepost.clock import uuid7
from fencepost.joins import ALL, Join
from fencepost_ops.checker.verdict import check
from tests.integration.ledger_app import SECOND
from tests.integration.ledger_bench import Bench

SMALL = Budget(turns=4, calls=4, attempts=8, depth=0, children=0)
NESTED = Budget(turns=8, calls=8, attempts=16, depth=1, children=1)


class Question(BaseModel):
    topic: str


def declare(app: App, name: str, **more: Unpack[ChildOptions]) -> ChildTool[Any, Any]:
    """A tool that starts a run, of which the parent's planner is told whatever becomes of it."""
    usual: ChildOptions = {"deadline": 20 * SECOND, "grace": SECOND, "reserve": SECOND, "required": False}
    usual |= {"reconcile_for": 30 * SECOND, "budget": SMALL, "intent": lambda a: ("topic", a.topic)}
    said: ChildOptions = {**usual, **more}
    return app.child(name, planner="p", arguments=Question, effect=Effect.REVERSIBLE, **said)


def grown(bench: Bench) -> Bench:
    """The bench's application with tools that start runs."""
    app = bench.app
    if ("wallet.ask", 1) not in app.registry:
        declare(app, "wallet.ask")
        declare(app, "wallet.must", required=True)
        declare(app, "wallet.deep", budget=NESTED)
        declare(app, "wallet.only", tools=("wallet.b*",))
        hire = declare(app, "wallet.hire")
        declare(app, "wallet.fire", deadline=90 * SECOND)
        hire.compensate(lambda args, _result: Proposal("wallet.fire", {"topic": args.topic}))
        look: ChildOptions = {"budget": SMALL, "required": False}
        app.child("wallet.look", planner="p", arguments=Question, effect=Effect.READ, **look)
    return bench


def begin(bench: Bench, run: UUID, call: UUID) -> UUID:
    """Claim the call, and say which run it started."""
    claim = replace(bench.claim_call(run, call), child=uuid7(), request=None)
    assert bench.one(claim) == c.Done("DISPATCHING")
    child = bench.call(call).child
    assert child is not None
    assert child == claim.child
    bench.started.append(child)
    return child


def heard(bench: Bench, run: UUID, call: UUID) -> Any:
    """The reconciler takes the call."""
    return bench.one(replace(bench.claim_doubt(run, call), starts=True))


def told(bench: Bench, run: UUID, call: UUID, child: UUID) -> None:
    """The reconciler takes the call, and has its run stop."""
    order = heard(bench, run, call)
    assert isinstance(order, c.Tell), order
    assert order.child == child
    bench.one(c.RequestCancel(**bench.base(child), by=f"run:{run}", reason=order.reason))


def due(bench: Bench, subject: UUID) -> bool:
    row = bench.row(subject)
    return row is not None and row.due_at <= bench.now()


def fan(
    bench: Bench, count: int, join: Join = ALL, tool: str = "wallet.ask"
) -> tuple[UUID, list[UUID], list[UUID]]:
    """A run whose turn starts so many; all of them are begun."""
    run = bench.start(budget=LARGE)
    claim = bench.claim_run(run)
    assert isinstance(bench.one(claim), c.Plan)
    turn = bench.turn(run, claim, *((tool, {"topic": bench.order()}) for _ in range(count)))
    assert bench.one(replace(turn, join=join)) == c.Done("ACTING")
    calls = list(turn.call_ids)
    return run, calls, [begin(bench, run, call) for call in calls]


LARGE = '{"turns": 40, "calls": 60, "children": 16}'


def asked(bench: Bench, tool: str = "wallet.ask", **how: Any) -> tuple[UUID, UUID, UUID]:
    """A run, its call, and the run that started."""
    run = bench.start(**how)
    (call,) = bench.plan(run, (tool, {"topic": bench.order()}))
    return run, call, begin(bench, run, call)


def stopped(bench: Bench, child: UUID) -> None:
    bench.cancel(child)
    assert bench.status(child) == "STOPPED"


def wrong(bench: Bench) -> list[str]:
    """What the checker has against the ledger as it stands."""
    with psycopg.connect(bench.database.dsns["reader"], autocommit=True) as reader:
        report = check(reader, None, settled=False)
    return [f"{v.invariant}: {one.message}" for v in report.verdicts for one in v.violations]
