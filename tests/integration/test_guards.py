"""What Postgres refuses of a call, asked in plain SQL as a worker and as the owner of the tables."""

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from fencepost.clock import uuid7
from fencepost.states import CALL_BORN, CALL_HOPS, CallState
from tests.integration.guards_bench import (
    ASKED,
    OFFICES,
    OPERATOR,
    OWNER,
    WORKER,
    CallTarget,
    approval,
    attack,
    presented,
)
from tests.integration.ledger_bench import TENANT, Bench

Planned = tuple[UUID, UUID, UUID, int]


@pytest.fixture(scope="module")
def planned(module_bench: Bench) -> Planned:
    """A run with two unsent calls, never changed: every attack is undone."""
    run, order = module_bench.start(), module_bench.order()
    call, other = module_bench.plan(
        run, ("wallet.debit", {"order": order}), ("wallet.note", {"order": order})
    )
    return run, call, other, module_bench.call(call).version


@pytest.fixture
def target(module_bench: Bench, planned: Planned) -> Iterator[CallTarget]:
    with attack(module_bench) as opened:
        yield CallTarget(planned, opened)


@pytest.mark.parametrize("state", sorted(CallState))
def test_each_presentation_makes_exactly_the_moves_of_the_table(target: CallTarget, state: str) -> None:
    target.attack.force(
        "UPDATE fencepost.operations o SET status = 'completed', arguments_hash = c.arguments_hash,"
        " meaning = 'm'"
        " FROM fencepost.calls c WHERE c.id = %s AND o.key = c.operation",
        target.call,
    )
    target.put(state, effect="read")  # the one effect that a claim may send back, or fail, without asking
    for via, hops in CALL_HOPS.items():
        answers = {to: target.move(via, to) for to in CallState}
        assert {to for to, refused in answers.items() if refused is None} == {
            t for s, t in hops if s == state
        }
        assert set(answers.values()) <= {None, "FP001"}


def test_nothing_moves_without_a_term_or_an_office(target: CallTarget) -> None:
    target.put("DISPATCHING")
    for role in (WORKER, OPERATOR, OWNER):
        change = {"state": "SUCCEEDED", "version": target.seq}
        assert target.attack.update("calls", target.call, change, role) == "FP002"


@pytest.mark.parametrize(
    "term",
    [
        {"presented_owner": "somebody", "presented_fence": 5},
        {"presented_owner": "holder", "presented_fence": 4},
        {"presented_owner": "holder"},
        {"presented_fence": 5},
        {"presented_owner": "somebody", "presented_fence": 4, "fence": 4},
    ],
    ids=["another's", "an older one", "no fence", "no owner", "an older fence"],
)
def test_a_term_that_is_not_the_accepted_one_moves_nothing(target: CallTarget, term: dict[str, Any]) -> None:
    target.put("DISPATCHING")
    change = {"state": "UNKNOWN", "doubt": True, "version": target.seq, **term}
    for role in (WORKER, OWNER):
        assert target.attack.update("calls", target.call, change, role) == "FP002"


@pytest.mark.parametrize("via", sorted(CALL_HOPS))
def test_no_presentation_lowers_a_fence(target: CallTarget, via: str) -> None:
    target.put("UNKNOWN")
    assert target.update(via, {"state": "NEEDS_REPAIR", "fence": 4}) == "FP002"
    assert "a fence never falls" in target.attack.said


@pytest.mark.parametrize(
    ("via", "columns"),
    [
        ("term", {"fence": 6}),
        ("term", {"owner": "next"}),
        ("claim", {"fence": 7}),
        ("claim", {"owner": "somebody"}),
        ("claim", {"presented_fence": 5, "fence": 5}),
    ],
    ids=[
        "raised by its term",
        "owner changed by its term",
        "more than claimed",
        "for somebody else",
        "same fence",
    ],
)
def test_who_holds_a_call_changes_only_by_the_claim_that_takes_it(
    target: CallTarget, via: str, columns: dict[str, Any]
) -> None:
    target.put("UNKNOWN")
    assert target.update(via, columns) == "FP002"


@pytest.mark.parametrize(
    ("via", "state", "columns"),
    [
        (via, state, columns)
        for via, state in (("cancel", "INTENT_RECORDED"), ("repair", "NEEDS_REPAIR"), ("evidence", "FAILED"))
        for columns in ({"presented_version": 0}, {"fence": 5}, {"owner": "next"})
    ],
)
def test_an_office_saw_this_very_row_raises_its_fence_and_clears_its_owner(
    target: CallTarget, via: str, state: str, columns: dict[str, Any]
) -> None:
    to = {"cancel": "CANCELLED", "repair": "FAILED", "evidence": "NEEDS_REPAIR"}[via]
    target.put(state)
    assert target.move(via, to) is None
    assert target.move(via, to, **columns) == "FP002"


@pytest.mark.parametrize("office", ["term", "claim", "call", "death", ""])
def test_there_are_no_other_offices(target: CallTarget, office: str) -> None:
    assert office not in OFFICES
    target.put("UNKNOWN")
    made_up = {"presented_office": office, "presented_version": target.version, "fence": 6, "owner": None}
    change = {"state": "SUCCEEDED", "version": target.seq, **made_up}
    for role in (WORKER, OPERATOR, OWNER):
        assert target.attack.update("calls", target.call, change, role) == "FP002"


def test_only_an_operator_repairs(target: CallTarget) -> None:
    target.put("NEEDS_REPAIR")
    assert target.move("repair", "SUCCEEDED", WORKER) == "FP002"
    assert target.move("repair", "SUCCEEDED", OPERATOR) is None


def test_a_call_moves_only_with_an_event_of_its_own(target: CallTarget) -> None:
    target.put("DISPATCHING")
    moved = {"state": "UNKNOWN", "doubt": True}
    theirs, _, _ = target.attack.event(target.run, target.other)
    assert target.update("term", moved | {"version": target.version}) == "FP004"
    assert target.update("term", moved | {"version": target.version - 1}) == "FP004"
    assert target.update("term", moved | {"version": 999_999}) == "FP004"
    assert target.update("term", moved | {"version": theirs}) == "FP004"
    assert target.update("term", moved) is None
    assert target.attack.update("calls", target.call, {"version": 999_999}) == "FP004"


@pytest.mark.parametrize(
    "columns",
    [{"attempts": 1}, {"in_flight_until": "2026-01-01T00:00:00Z"}, {"in_flight_until": None}],
    ids=["fewer attempts", "an earlier deadline", "no deadline"],
)
def test_an_attempt_is_never_unmade(target: CallTarget, columns: dict[str, Any]) -> None:
    target.put("DISPATCHING", attempts=2, in_flight_until="2026-01-01T00:00:01Z")
    assert target.update("term", {"state": "UNKNOWN", "doubt": True}) is None
    assert target.update("term", {"state": "UNKNOWN", "doubt": True, **columns}) == "FP001"


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("tenant", "other"),
        ("id", uuid7()),
        ("run", uuid7()),
        ("turn", 9),
        ("ordinal", 9),
        ("label", "x"),
        ("tool", "x"),
        ("tool_version", 9),
        ("effect", "read"),
        ("operation", "x"),
        ("scope", "x"),
        ("compensates", "x"),
        ("arguments", "{}"),
        ("arguments_hash", "1:x"),
        ("required", False),
        ("request", "another"),
    ],
)
def test_what_was_proposed_and_sent_never_changes(target: CallTarget, column: str, value: object) -> None:
    target.put("DISPATCHING", request="first")
    for role in (WORKER, OWNER):
        assert target.update("term", {"state": "UNKNOWN", "doubt": True, column: value}, role) in {
            "FP001",
            "FP002",
        }
        assert target.attack.update("calls", target.call, {column: value}, role) in {"FP001", "FP002"}


def test_a_completed_runs_calls_move_only_towards_the_truth(target: CallTarget) -> None:
    target.attack.put("runs", target.run, status="COMPLETED")
    target.put("INTENT_RECORDED")
    assert target.move("claim", "DISPATCHING") == "FP001"
    target.put("UNKNOWN")
    assert target.move("claim", "FAILED") is None
    target.put("FAILED")
    assert target.move("evidence", "NEEDS_REPAIR") is None
    target.put("NEEDS_REPAIR")
    assert target.move("repair", "FAILED") is None


def test_what_was_presented_is_not_kept(target: CallTarget) -> None:
    target.put("DISPATCHING")
    change = {"state": "UNKNOWN", "doubt": True, "version": target.seq, **presented("term")}
    names = ", ".join(f"{name} = %s" for name in change)
    target.attack.connection.execute(
        f"UPDATE fencepost.calls SET {names} WHERE id = %s", (*change.values(), target.call)
    )
    kept = target.attack.force(
        "SELECT presented_owner, presented_fence, presented_version, presented_office FROM fencepost.calls"
        " WHERE id = %s",
        target.call,
    )
    assert kept == [(None, None, None, None)]


# -- birth and death ---------------------------------------------------------------------------------

INSERT = """
INSERT INTO fencepost.calls (tenant, id, run, turn, ordinal, label, tool, tool_version, effect, scope,
    arguments, arguments_hash, required, state, doubt, attempts, owner, ready_at, version,
    presented_owner, presented_fence, approval)
VALUES (%s, %s, %s, 9, 0, 'x', 'x', 1, 'reversible', 's', '{}', '1:x', true, %s, %s, %s, %s, now(), %s,
    %s, %s, %s)
"""


def born(target: CallTarget, state: str = "INTENT_RECORDED", **how: Any) -> str | None:
    call = uuid7()
    waits = state == "AWAITING_APPROVAL"
    kind = "ApprovalRequested" if waits else "ToolProposalRecorded"
    seq, _, _ = target.attack.event(target.run, call, kind, body={"asked": ASKED})
    values = {"doubt": False, "attempts": 0, "owner": None, "version": seq, "by": "planner", "fence": 5} | how
    values = {"approval": approval(ASKED) if waits else None} | values
    names = ("doubt", "attempts", "owner", "version", "by", "fence", "approval")
    columns = [values[name] for name in names]
    return target.attack.attempt(INSERT, TENANT, call, target.run, state, *columns)


@pytest.fixture
def planning(target: CallTarget) -> CallTarget:
    target.attack.put("runs", target.run, status="PLANNING", owner="planner", fence=5)
    return target


@pytest.mark.parametrize("state", sorted(CallState))
def test_a_call_is_born_unsent_or_refused(planning: CallTarget, state: str) -> None:
    assert born(planning, state) == (None if state in CALL_BORN else "FP001")


@pytest.mark.parametrize(
    "how", [{"by": "somebody"}, {"by": None}, {"fence": 4}, {"fence": 6}, {"fence": None}]
)
def test_a_call_is_proposed_under_the_term_of_its_run(planning: CallTarget, how: dict[str, Any]) -> None:
    assert born(planning) is None
    assert born(planning, **how) == "FP002"


FORGED = approval(ASKED, {"who": "ann", "login": "operator", "approve": True})


@pytest.mark.parametrize("kept", [None, FORGED, approval(ASKED | {"count": 0}), "{}"])
def test_a_call_is_not_born_approved_or_asked_for_in_other_words(
    planning: CallTarget, kept: str | None
) -> None:
    assert born(planning, "AWAITING_APPROVAL", approval=kept) == "FP001"
    if kept is not None:
        assert born(planning, approval=kept) == "FP001"


@pytest.mark.parametrize("how", [{"doubt": True}, {"attempts": 1}, {"owner": "w"}])
def test_a_call_is_not_born_with_a_past(planning: CallTarget, how: dict[str, Any]) -> None:
    assert born(planning, **how) == "FP001"


def test_a_call_is_not_born_without_an_event_of_its_own(planning: CallTarget) -> None:
    assert born(planning, version=1) == "FP004"
    assert born(planning, version=planning.seq) == "FP004"


@pytest.mark.parametrize("status", ["QUEUED", "ACTING", "STOPPING", "COMPLETED", "STOPPED"])
def test_a_run_that_is_neither_planning_nor_compensating_gets_no_call(
    planning: CallTarget, status: str
) -> None:
    planning.attack.put("runs", planning.run, status=status)
    assert born(planning) == "FP001"


def test_what_a_run_proposes_as_it_stops_offsets_and_nothing_else_does(
    planning: CallTarget,
) -> None:
    offsets = INSERT.replace("scope,", "scope, compensates,").replace("'s',", "'s', 'key',")
    for status, statement in (("PLANNING", offsets), ("COMPENSATING", INSERT)):
        planning.attack.put("runs", planning.run, status=status)
        call = uuid7()
        seq, _, _ = planning.attack.event(planning.run, call, "ToolProposalRecorded")
        values = (TENANT, call, planning.run, "INTENT_RECORDED", False, 0, None, seq, "planner", 5, None)
        assert planning.attack.attempt(statement, *values) == "FP001"


def test_calls_are_never_deleted_or_truncated(target: CallTarget) -> None:
    assert target.attack.attempt("DELETE FROM fencepost.calls WHERE id = %s", target.call) == "42501"
    assert (
        target.attack.attempt("DELETE FROM fencepost.calls WHERE id = %s", target.call, role=OWNER) == "FP004"
    )
    assert target.attack.attempt("TRUNCATE fencepost.calls") == "42501"
    assert target.attack.attempt("TRUNCATE fencepost.calls", role=OWNER) == "FP004"


def test_one_effect_has_one_living_compensation(planning: CallTarget) -> None:
    statement = INSERT.replace("scope,", "scope, compensates,").replace("'s',", "'s', 'key',")
    planning.attack.put("runs", planning.run, status="COMPENSATING")
    first, second = uuid7(), uuid7()
    values = ("INTENT_RECORDED", False, 0, None)
    seq, _, _ = planning.attack.event(planning.run, first, "ToolProposalRecorded")
    once = (TENANT, first, planning.run, *values, seq, "planner", 5, None)
    planning.attack.connection.execute(statement, once)
    seq, _, _ = planning.attack.event(planning.run, second, "ToolProposalRecorded")
    again = (TENANT, second, planning.run, *values, seq, "planner", 5, None)
    assert planning.attack.attempt(statement, *again) == "23505"
