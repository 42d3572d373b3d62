"""Every hostile proposal against the real ledger: refused in an event of its own, told, never dispatched."""

from collections.abc import Iterator
from uuid import UUID

import pytest

from fencepost import commands as c
from fencepost.authority import AllowList, Grant
from fencepost.clock import uuid7
from fencepost.ledger import reads
from fencepost.ledger.connect import connect
from fencepost.proposals import validate
from fencepost.tools import CallView, Proposal
from fencepost_ops.drill.hostile.table import BENIGN, HOSTILE, Hostile
from fencepost_ops.drill.hostile.tools import HOSTS, add
from fencepost_workers.contexts import views
from tests.integration.ledger_bench import TENANT, Bench

BUDGET = '{"calls": 500}'
DISPATCHED = {"AuthorizationAllowed", "DispatchIntentRecorded", "ToolAttemptStarted"}


@pytest.fixture
def hostile(bench: Bench) -> Iterator[Bench]:
    """A bench that knows the tools, and lets anybody use them: what is refused, the steps before refuse."""
    if ("hostile.order", 1) not in bench.app.registry:
        add(bench.app.dependency("hostile", "http://127.0.0.1:9", hosts=HOSTS))
    allowed = ("hostile.order", "hostile.pay", "hostile.fetch")
    before, bench.gate.behind = bench.gate.behind, AllowList((Grant("*", allowed),))
    yield bench
    bench.gate.behind = before


def turn(bench: Bench, run: UUID, proposals: list[Proposal]) -> list[UUID]:
    """Record a turn with these proposals, as a planner's worker does; the calls' ids."""
    claim = bench.claim_run(run)
    assert isinstance(bench.one(claim), c.Plan)
    checked = tuple(
        validate(p, tools=bench.app.tools, tenant=TENANT, run_id=str(run), turn=1, ordinal=n)
        for n, p in enumerate(proposals)
    )
    ids = tuple(uuid7() for _ in proposals)
    record = c.RecordTurn(**bench.base(run), term=claim.term, turn=1, seen=0, proposals=checked, call_ids=ids)
    assert isinstance(bench.one(record), c.Done)
    return list(ids)


def told(bench: Bench, run: UUID) -> dict[str, CallView]:
    """What the planner is told of its calls, by label."""
    with connect(bench.database.dsns["reader"], "told") as connection:
        read = reads.context_calls(connection, [(TENANT, run, 0)])
    known = bench.known.tool
    return {view.call_id: view for view in views(read[TENANT, run], known)}


@pytest.mark.parametrize("step", [1, 2, 3, 4, 5])
def test_what_a_step_refuses_is_never_dispatched(hostile: Bench, step: int) -> None:
    rows = [row for row in HOSTILE if row.step == step]
    run = hostile.start(budget=BUDGET)
    ids = turn(hostile, run, [proposal(row, n) for n, row in enumerate(rows)])
    events = hostile.events(run)
    assert not DISPATCHED & {event.type for event in events}
    seen = told(hostile, run)
    for n, (row, call) in enumerate(zip(rows, ids, strict=True)):
        own = [event for event in events if event.call == call]
        assert [event.type for event in own] == ["ToolProposalRecorded", "ProposalRejected"], row.name
        assert (own[1].data["step"], own[1].data["code"]) == (row.step, row.code), row.name
        assert hostile.state(call) == "REJECTED"
        view = seen[f"label-{n}"]
        assert view.state == "REJECTED"
        assert (view.error or "").startswith(f"{row.code}: "), row.name
    assert all(hostile.row(call) is None for call in ids)  # nothing is due for any of them
    claims = [hostile.claim_call(run, call) for call in ids]
    assert set(hostile.ledger.apply(claims)) == {c.Gone()}
    assert hostile.status(run) == "ACTING"  # what never was an intent stops nothing


def proposal(row: Hostile, number: int) -> Proposal:
    return Proposal(row.tool, row.text(TENANT), f"label-{number}", row.version)


def test_the_same_tools_used_well_are_dispatched(hostile: Bench) -> None:
    run = hostile.start(budget=BUDGET)
    proposals = [Proposal(tool, text.replace("TENANT", TENANT)) for tool, text in BENIGN]
    ids = turn(hostile, run, proposals[:3])  # the fourth is of the third's order
    for call in ids:
        assert isinstance(hostile.one(hostile.claim_call(run, call)), c.Send)
    assert hostile.kinds(run).count("ToolAttemptStarted") == 3


def test_a_refusal_leaves_the_turns_other_proposals_alone(hostile: Bench) -> None:
    run = hostile.start(budget=BUDGET)
    rows = [proposal(row, n) for n, row in enumerate(HOSTILE[::10])]
    ids = turn(hostile, run, [*rows, Proposal("hostile.order", '{"reference": "well made"}')])
    assert {hostile.state(call) for call in ids[:-1]} == {"REJECTED"}
    assert isinstance(hostile.one(hostile.claim_call(run, ids[-1])), c.Send)
    assert hostile.kinds(run).count("ToolAttemptStarted") == 1
