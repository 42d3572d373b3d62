"""What Postgres refuses of a call, asked in plain SQL as a worker and as the owner of the tables."""

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from fencepost.clock import uuid7
from fencepost.events import PROOFS, EventType
from fencepost.states import CALL_BORN, CALL_ENDS, CALL_HOPS, CallState
from tests.integration.guards_bench import (
    HELD,
    OFFICES,
    OPERATOR,
    OWNER,
    WORKER,
    Attack,
    attack,
    presented,
    role_of,
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


class Target:
    """One call in a run that acts, held by `HELD`, and one event it may point at."""

    def __init__(self, planned: Planned, attack: Attack) -> None:
        self.run, self.call, self.other, self.version = planned
        self.attack = attack
        self.seq, self.proof, _ = attack.event(self.run, self.call, "ToolResultRecorded")

    def put(self, state: str, **columns: Any) -> None:
        self.attack.put("calls", self.call, state=state, **(HELD | columns))

    def update(self, via: str, columns: dict[str, Any], role: str | None = None) -> str | None:
        change = {"version": self.seq, **presented(via, self.version), **columns}
        return self.attack.update("calls", self.call, change, role or role_of(via))


@pytest.fixture
def target(module_bench: Bench, planned: Planned) -> Iterator[Target]:
    with attack(module_bench) as opened:
        yield Target(planned, opened)


@pytest.mark.parametrize("state", sorted(CallState))
def test_each_presentation_makes_exactly_the_moves_of_the_table(target: Target, state: str) -> None:
    target.put(state)
    for via, hops in CALL_HOPS.items():
        answers = {to: target.update(via, {"state": to}) for to in CallState}
        assert {to for to, refused in answers.items() if refused is None} == {
            t for s, t in hops if s == state
        }
        assert set(answers.values()) <= {None, "FP001"}


def test_nothing_moves_without_a_term_or_an_office(target: Target) -> None:
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
def test_a_term_that_is_not_the_accepted_one_moves_nothing(target: Target, term: dict[str, Any]) -> None:
    target.put("DISPATCHING")
    change = {"state": "UNKNOWN", "doubt": True, "version": target.seq, **term}
    for role in (WORKER, OWNER):
        assert target.attack.update("calls", target.call, change, role) == "FP002"


@pytest.mark.parametrize("via", sorted(CALL_HOPS))
def test_no_presentation_lowers_a_fence(target: Target, via: str) -> None:
    target.put("UNKNOWN")
    assert target.update(via, {"state": "NEEDS_REPAIR", "fence": 4}) == "FP002"


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
    target: Target, via: str, columns: dict[str, Any]
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
    target: Target, via: str, state: str, columns: dict[str, Any]
) -> None:
    to = {"cancel": "CANCELLED", "repair": "FAILED", "evidence": "NEEDS_REPAIR"}[via]
    target.put(state)
    assert target.update(via, {"state": to}) is None
    assert target.update(via, {"state": to, **columns}) == "FP002"


@pytest.mark.parametrize("office", ["term", "claim", "call", "death", ""])
def test_there_are_no_other_offices(target: Target, office: str) -> None:
    assert office not in OFFICES
    target.put("UNKNOWN")
    made_up = {"presented_office": office, "presented_version": target.version, "fence": 6, "owner": None}
    change = {"state": "SUCCEEDED", "version": target.seq, **made_up}
    for role in (WORKER, OPERATOR, OWNER):
        assert target.attack.update("calls", target.call, change, role) == "FP002"


def test_only_an_operator_repairs(target: Target) -> None:
    target.put("NEEDS_REPAIR")
    assert target.update("repair", {"state": "SUCCEEDED"}, WORKER) == "FP002"
    assert target.update("repair", {"state": "SUCCEEDED"}, OPERATOR) is None


@pytest.mark.parametrize("state", sorted(CALL_ENDS))
def test_no_call_ends_in_doubt(target: Target, state: str) -> None:
    target.put("NEEDS_REPAIR" if state == "ACCEPTED_UNKNOWN" else "UNKNOWN", doubt=True)
    via = {"ACCEPTED_UNKNOWN": "repair"}.get(state, "claim")
    if ("UNKNOWN", state) in CALL_HOPS["claim"] or via == "repair":
        assert target.update(via, {"state": state}) == "FP003"


def test_an_unsent_call_in_doubt_cannot_be_cancelled_or_rejected(target: Target) -> None:
    target.put("INTENT_RECORDED", doubt=True)
    assert target.update("cancel", {"state": "CANCELLED"}) == "FP003"
    assert target.update("claim", {"state": "REJECTED"}) == "FP003"


@pytest.mark.parametrize("kind", sorted(EventType))
def test_doubt_is_cleared_by_a_proof_and_by_no_other_event(target: Target, kind: EventType) -> None:
    target.put("UNKNOWN", doubt=True)
    seq, event, _ = target.attack.event(target.run, target.call, kind)
    cleared = {"state": "FAILED", "doubt": False, "proof": event, "version": seq}
    assert target.update("term", cleared) == (None if kind in PROOFS else "FP003")


def test_doubt_is_not_cleared_without_naming_a_proof_or_by_naming_an_old_one(target: Target) -> None:
    target.put("UNKNOWN", doubt=True)
    assert target.update("term", {"state": "FAILED", "doubt": False}) == "FP003"
    assert target.update("term", {"state": "FAILED", "doubt": False, "proof": uuid7()}) == "FP003"
    target.put("UNKNOWN", doubt=True, proof=target.proof)
    assert target.update("term", {"state": "FAILED", "doubt": False}) == "FP003"


def test_another_calls_proof_clears_nothing(module_bench: Bench, target: Target) -> None:
    target.put("UNKNOWN", doubt=True)
    _, theirs, _ = target.attack.event(target.run, target.other, "ToolEffectReconciled")
    assert target.update("term", {"state": "FAILED", "doubt": False, "proof": theirs}) == "FP003"
    _, elsewhere, _ = target.attack.event(module_bench.start(), target.call, "ToolEffectReconciled")
    assert target.update("term", {"state": "FAILED", "doubt": False, "proof": elsewhere}) == "FP003"


def test_a_call_moves_only_with_an_event_of_its_own(target: Target) -> None:
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
def test_an_attempt_is_never_unmade(target: Target, columns: dict[str, Any]) -> None:
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
def test_what_was_proposed_and_sent_never_changes(target: Target, column: str, value: object) -> None:
    target.put("DISPATCHING", request="first")
    for role in (WORKER, OWNER):
        assert target.update("term", {"state": "UNKNOWN", "doubt": True, column: value}, role) in {
            "FP001",
            "FP002",
        }
        assert target.attack.update("calls", target.call, {column: value}, role) in {"FP001", "FP002"}


def test_a_completed_runs_calls_move_only_towards_the_truth(target: Target) -> None:
    target.attack.put("runs", target.run, status="COMPLETED")
    target.put("INTENT_RECORDED")
    assert target.update("claim", {"state": "DISPATCHING"}) == "FP001"
    target.put("UNKNOWN")
    assert target.update("claim", {"state": "FAILED"}) is None
    target.put("FAILED")
    assert target.update("evidence", {"state": "NEEDS_REPAIR", "doubt": True}) is None
    target.put("NEEDS_REPAIR")
    assert target.update("repair", {"state": "FAILED"}) is None


def test_what_was_presented_is_not_kept(target: Target) -> None:
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
    presented_owner, presented_fence)
VALUES (%s, gen_random_uuid(), %s, 9, 0, 'x', 'x', 1, 'reversible', 's', '{}', '1:x', true, %s, %s, %s, %s,
    now(), 1, %s, %s)
"""


def born(target: Target, state: str = "INTENT_RECORDED", **how: Any) -> str | None:
    values = {"doubt": False, "attempts": 0, "owner": None, "by": "planner", "fence": 5} | how
    columns = (values["doubt"], values["attempts"], values["owner"], values["by"], values["fence"])
    return target.attack.attempt(INSERT, TENANT, target.run, state, *columns)


@pytest.fixture
def planning(target: Target) -> Target:
    target.attack.put("runs", target.run, status="PLANNING", owner="planner", fence=5)
    return target


@pytest.mark.parametrize("state", sorted(CallState))
def test_a_call_is_born_unsent_or_refused(planning: Target, state: str) -> None:
    assert born(planning, state) == (None if state in CALL_BORN else "FP001")


@pytest.mark.parametrize(
    "how", [{"by": "somebody"}, {"by": None}, {"fence": 4}, {"fence": 6}, {"fence": None}]
)
def test_a_call_is_proposed_under_the_term_of_its_run(planning: Target, how: dict[str, Any]) -> None:
    assert born(planning) is None
    assert born(planning, **how) == "FP002"


@pytest.mark.parametrize("how", [{"doubt": True}, {"attempts": 1}, {"owner": "w"}])
def test_a_call_is_not_born_with_a_past(planning: Target, how: dict[str, Any]) -> None:
    assert born(planning, **how) == "FP001"


@pytest.mark.parametrize("status", ["QUEUED", "ACTING", "STOPPING", "COMPLETED", "STOPPED"])
def test_a_run_that_is_neither_planning_nor_compensating_gets_no_call(planning: Target, status: str) -> None:
    planning.attack.put("runs", planning.run, status=status)
    assert born(planning) == "FP001"


def test_calls_are_never_deleted_or_truncated(target: Target) -> None:
    assert target.attack.attempt("DELETE FROM fencepost.calls WHERE id = %s", target.call) == "42501"
    assert (
        target.attack.attempt("DELETE FROM fencepost.calls WHERE id = %s", target.call, role=OWNER) == "FP004"
    )
    assert target.attack.attempt("TRUNCATE fencepost.calls") == "42501"
    assert target.attack.attempt("TRUNCATE fencepost.calls", role=OWNER) == "FP004"


def test_one_effect_has_one_living_compensation(planning: Target) -> None:
    statement = INSERT.replace("scope,", "scope, compensates,").replace("'s',", "'s', 'key',")
    values = (TENANT, planning.run, "INTENT_RECORDED", False, 0, None, "planner", 5)
    planning.attack.connection.execute(statement, values)
    assert planning.attack.attempt(statement, *values) == "23505"
