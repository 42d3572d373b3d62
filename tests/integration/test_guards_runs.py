"""What Postgres refuses of a run, asked in plain SQL; and that no race completes a run with an open call."""

import threading
import time
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import psycopg
import pytest

from fencepost.clock import uuid7
from fencepost.ledger.connect import connect
from fencepost.states import CALL_OPEN, RUN_HOPS, CallState, RunStatus
from tests.integration.guards_bench import (
    HELD,
    OPERATOR,
    OWNER,
    WORKER,
    Attack,
    attack,
    presented,
    role_of,
)
from tests.integration.ledger_bench import TENANT, Bench

Planned = tuple[UUID, UUID, int]


@pytest.fixture(scope="module")
def planned(module_bench: Bench) -> Planned:
    """A run with one call, never changed: every attack is undone."""
    run = module_bench.start()
    call = module_bench.debit(run, module_bench.order())
    return run, call, module_bench.run(run).seq


class Target:
    """One run, held by `HELD`, its only call ended, and one event it may point at."""

    def __init__(self, planned: Planned, attack: Attack) -> None:
        self.run, self.call, self.version = planned
        self.attack = attack
        self.seq, _, self.head = attack.event(self.run, self.call, "HiddenRetrySeen")
        attack.put("calls", self.call, state="FAILED", owner="dispatcher", fence=3)

    def put(self, status: str, **columns: Any) -> None:
        self.attack.put("runs", self.run, status=status, **(HELD | columns))

    def update(self, via: str, columns: dict[str, Any], role: str | None = None, **how: Any) -> str | None:
        change = {"seq": self.seq, "head_hash": self.head, **self.presented(via), **columns}
        return self.attack.update("runs", self.run, change, role or role_of(via), **how)

    def presented(self, via: str) -> dict[str, Any]:
        how = presented(via, self.version)
        if via == "call":
            how |= {"presented_call": self.call, "presented_owner": "dispatcher", "presented_fence": 3}
        return how


@pytest.fixture
def target(module_bench: Bench, planned: Planned) -> Iterator[Target]:
    with attack(module_bench) as opened:
        yield Target(planned, opened)


@pytest.mark.parametrize("status", sorted(RunStatus))
def test_each_presentation_makes_exactly_the_moves_of_the_table(target: Target, status: str) -> None:
    target.put(status)
    for via, hops in RUN_HOPS.items():
        answers = {to: target.update(via, {"status": to}) for to in RunStatus}
        assert {to for to, refused in answers.items() if refused is None} == {
            t for s, t in hops if s == status
        }
        assert set(answers.values()) <= {None, "FP001"}


def test_nothing_moves_without_a_term_or_an_office(target: Target) -> None:
    target.put("PLANNING")
    change = {"status": "COMPLETED", "seq": target.seq, "head_hash": target.head}
    for role in (WORKER, OPERATOR, OWNER):
        assert target.attack.update("runs", target.run, change, role) == "FP002"


@pytest.mark.parametrize(
    "term",
    [
        {"presented_owner": "somebody"},
        {"presented_fence": 4},
        {"presented_owner": None},
        {"presented_fence": None},
        {"fence": 4},
        {"fence": 6},
        {"owner": "next"},
    ],
)
def test_a_term_that_is_not_the_accepted_one_moves_nothing(target: Target, term: dict[str, Any]) -> None:
    target.put("PLANNING")
    for role in (WORKER, OWNER):
        assert target.update("term", {"status": "COMPLETED", **term}, role) == "FP002"


@pytest.mark.parametrize("via", sorted(RUN_HOPS))
def test_no_presentation_lowers_a_fence(target: Target, via: str) -> None:
    target.put("ACTING")
    assert target.update(via, {"status": "STOPPING", "fence": 4}) == "FP002"
    assert "a fence never falls" in target.attack.said


@pytest.mark.parametrize("columns", [{"fence": 7}, {"owner": "somebody"}, {"presented_fence": 5, "fence": 5}])
def test_a_claim_takes_exactly_the_higher_term_it_presents(target: Target, columns: dict[str, Any]) -> None:
    target.put("ACTING")
    assert target.update("claim", {"status": "PLANNING"}) is None
    assert target.update("claim", {"status": "PLANNING", **columns}) == "FP002"


@pytest.mark.parametrize("via", ["cancel", "repair", "call"])
@pytest.mark.parametrize("columns", [{"presented_version": 0}, {"fence": 5}, {"owner": "next"}])
def test_an_office_saw_this_very_row_raises_its_fence_and_clears_its_owner(
    target: Target, via: str, columns: dict[str, Any]
) -> None:
    target.put("ACTING")
    assert target.update(via, {"status": "STOPPING"}) is None
    if via == "call" and "presented_version" in columns:
        return  # a call's term says more than a version
    assert target.update(via, {"status": "STOPPING", **columns}) == "FP002"


@pytest.mark.parametrize("office", ["term", "claim", "evidence", "death", ""])
def test_there_are_no_other_offices(target: Target, office: str) -> None:
    target.put("PLANNING")
    for role in (WORKER, OPERATOR, OWNER):
        assert target.update("cancel", {"status": "COMPLETED", "presented_office": office}, role) == "FP002"


def test_only_an_operator_reopens_a_stopped_run(target: Target) -> None:
    target.put("STOPPED")
    assert target.update("repair", {"status": "COMPENSATING"}, WORKER) == "FP002"
    assert target.update("repair", {"status": "COMPENSATING"}, OPERATOR) is None


@pytest.mark.parametrize(
    "columns",
    [
        {"presented_owner": "somebody"},
        {"presented_fence": 2},
        {"presented_call": None},
        {"presented_call": uuid7()},
    ],
)
def test_a_calls_outcome_moves_its_run_only_under_that_calls_term(
    target: Target, columns: dict[str, Any]
) -> None:
    target.put("ACTING")
    assert target.update("call", {"status": "STOPPING"}) is None
    assert target.update("call", {"status": "STOPPING", **columns}) == "FP002"


def test_another_runs_call_moves_nothing(module_bench: Bench, target: Target) -> None:
    stranger = module_bench.start()
    call = module_bench.debit(stranger, module_bench.order())
    target.attack.put("calls", call, state="DISPATCHING", owner="dispatcher", fence=3)
    target.put("ACTING")
    assert target.update("call", {"status": "STOPPING", "presented_call": call}) == "FP002"


@pytest.mark.parametrize("status", ["STOPPING", "COMPENSATING", "STOPPED"])
def test_a_run_is_where_its_events_take_it(target: Target, status: str) -> None:
    """Whatever the table of moves allows."""
    takes = {"STOPPING": "RunStopping", "COMPENSATING": "CompensationRequested", "STOPPED": "RunStopped"}
    for kind in (*takes.values(), "CancelRequested"):
        seq, _, head = target.attack.event(target.run, None, kind)
        target.put("ACTING", seq=seq - 1)
        change = target.presented("cancel") | {"seq": seq, "head_hash": head, "presented_version": None}
        names = ", ".join(f"{name} = %s" for name in change if name != "presented_version")
        statement = f"UPDATE fencepost.runs SET {names}, presented_version = seq, status = %s WHERE id = %s"
        values = [value for name, value in change.items() if name != "presented_version"]
        for role in (WORKER, OWNER):
            said = target.attack.attempt(statement, *values, status, target.run, role=role)
            assert said == (None if takes[status] == kind else "FP004"), (kind, target.attack.said)
            stayed = target.attack.attempt(statement, *values, "ACTING", target.run, role=role)
            assert stayed is not None, "it goes where they take it"


@pytest.mark.parametrize("state", sorted(CallState))
def test_no_run_completes_with_an_open_call(target: Target, state: str) -> None:
    target.put("PLANNING")
    target.attack.put("calls", target.call, state=state)
    for role in (WORKER, OWNER):
        refused = target.update("term", {"status": "COMPLETED"}, role)
        assert refused == ("FP001" if state in CALL_OPEN else None)


@pytest.mark.parametrize("state", ["FAILED", "SUCCEEDED", "CANCELLED"])
def test_no_run_completes_with_a_call_in_doubt(target: Target, state: str) -> None:
    target.put("PLANNING")
    target.attack.put("calls", target.call, state=state, doubt=True)
    assert target.update("term", {"status": "COMPLETED"}) == "FP001"


@pytest.mark.parametrize("state", sorted(CALL_OPEN))
def test_no_run_stops_with_a_call_unsent_or_unsettled(target: Target, state: str) -> None:
    target.put("STOPPING")
    target.attack.put("calls", target.call, state=state)
    refused = target.update("claim", {"status": "STOPPED"}, deferred=True)
    assert refused == (None if state == "NEEDS_REPAIR" else "FP001")  # a person may take longer than a run


def test_seq_and_head_move_only_with_an_event(target: Target) -> None:
    target.put("ACTING")
    attempts: list[dict[str, Any]] = [
        {"seq": target.seq},
        {"head_hash": "x"},
        {"seq": target.seq, "head_hash": "x"},
        {"seq": target.seq + 1, "head_hash": target.head},
        {"seq": target.version - 1},
        {"seq": 0, "head_hash": "0" * 64},
    ]
    for role in (WORKER, OWNER):
        assert {target.attack.update("runs", target.run, a, role) for a in attempts} == {"FP004"}
        moved = {"seq": target.seq, "head_hash": target.head}
        assert target.attack.update("runs", target.run, moved, role) is None


def test_another_runs_event_moves_nothing(module_bench: Bench, target: Target) -> None:
    seq, _, head = target.attack.event(module_bench.start(), target.call)
    assert target.attack.update("runs", target.run, {"seq": seq, "head_hash": head}) == "FP004"


def test_a_run_moves_only_with_an_event(target: Target) -> None:
    target.put("PLANNING")
    still = {"seq": target.version}
    heads = target.attack.force("SELECT head_hash FROM fencepost.runs WHERE id = %s", target.run)
    assert target.update("term", {"status": "ACTING", "head_hash": heads[0][0], **still}) == "FP004"


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("tenant", "other"),
        ("id", uuid7()),
        ("run_key", "x"),
        ("planner", "x"),
        ("principal", "x"),
        ("request", '{"x": 1}'),
        ("on_stop", "leave"),
        ("created_at", "2026-01-01T00:00:00Z"),
        ("deadline", "2036-01-01T00:00:00Z"),
    ],
)
def test_what_was_asked_for_never_changes(target: Target, column: str, value: object) -> None:
    target.put("PLANNING")
    for role in (WORKER, OWNER):
        assert target.attack.update("runs", target.run, {column: value}, role) == "FP001"
        assert target.update("term", {"status": "ACTING", column: value}, role) == "FP001"


def test_runs_begin_queued_and_are_never_deleted(target: Target) -> None:
    made = (
        "INSERT INTO fencepost.runs (tenant, id, run_key, planner, planner_version, principal, request,"
        " on_stop, created_at, deadline, ready_at, status, seq, fence, owner)"
        " VALUES (%s, gen_random_uuid(), gen_random_uuid(), 'p', 1, 'svc', '{}', 'leave', now(), now(),"
        " now(), %s, %s, %s, %s)"
    )
    born = [("QUEUED", 0, 0, None), ("PLANNING", 0, 0, None), ("QUEUED", 1, 0, None), ("QUEUED", 0, 1, None)]
    born.append(("QUEUED", 0, 0, "w"))  # type: ignore[arg-type]
    answers = [target.attack.attempt(made, TENANT, *how, role=OWNER) for how in born]
    assert answers == [None, "FP001", "FP001", "FP001", "FP001"]
    assert target.attack.attempt(made, TENANT, *born[0]) == "42501"
    for statement in ("DELETE FROM fencepost.runs", "TRUNCATE fencepost.runs CASCADE"):
        assert target.attack.attempt(statement) == "42501"
        assert target.attack.attempt(statement, role=OWNER) == "FP004"


# -- races ------------------------------------------------------------------------------------------

RACES = 200
SETTING = """
WITH r AS (INSERT INTO fencepost.runs (tenant, id, run_key, planner, planner_version, principal, request,
        on_stop, created_at, deadline, ready_at, status, owner, fence)
    SELECT 'shop', gen_random_uuid(), 'race-' || n, 'p', 1, 'svc', '{}', 'leave', now(), now(), now(),
        'PLANNING', 'planner', 5
    FROM generate_series(1, %s) AS n RETURNING id, run_key),
c AS (INSERT INTO fencepost.calls (tenant, id, run, turn, ordinal, label, tool, tool_version, effect, scope,
        arguments, arguments_hash, required, state, ready_at, version)
    SELECT 'shop', gen_random_uuid(), id, 1, 0, 'x', 'x', 1, 'reversible', 's', '{}', '1:x', true,
        CASE WHEN right(run_key, 1)::int %% 2 = 0 THEN 'CANCELLED' ELSE 'INTENT_RECORDED' END, now(), 1
    FROM r RETURNING id, run),
e AS (INSERT INTO fencepost.events (tenant, run, seq, id, type, version, call, body, digest, principal,
        causation, recorded_at, projection, prev_hash, hash)
    SELECT 'shop', run, seq, gen_random_uuid(), CASE seq WHEN 4 THEN 'RunCompleted' ELSE 'x' END, 1,
        CASE seq WHEN 2 THEN id WHEN 3 THEN gen_random_uuid() END, '{}', '', 'p', id, now(), 'p', '', 'head'
    FROM c, generate_series(2, 4) AS seq RETURNING run, seq, call)
SELECT c.run, c.id, e.call FROM c JOIN r ON r.id = c.run JOIN e ON e.run = c.run AND e.seq = 3
ORDER BY length(r.run_key), r.run_key
"""
COMPLETE = """
UPDATE fencepost.runs SET status = 'COMPLETED', owner = NULL, seq = 4, head_hash = 'head',
    presented_owner = 'planner', presented_fence = 5 WHERE id = %(run)s
"""
PROPOSE = """
INSERT INTO fencepost.calls (tenant, id, run, turn, ordinal, label, tool, tool_version, effect, scope,
    arguments, arguments_hash, required, state, ready_at, version, presented_owner, presented_fence)
VALUES ('shop', %(new)s, %(run)s, 9, 0, 'x', 'x', 1, 'reversible', 's', '{}', '1:x', true,
    'INTENT_RECORDED', now(), 3, 'planner', 5)
"""
CANCEL = """
UPDATE fencepost.calls SET state = 'CANCELLED', fence = fence + 1, version = 2,
    presented_office = 'cancel', presented_version = 1 WHERE id = %(call)s
"""


def attempt(connection: psycopg.Connection[Any], statement: str, arguments: Any) -> str | None:
    try:
        connection.execute(statement, arguments)
    except psycopg.Error as error:
        return error.sqlstate
    return None


def test_200_races_never_complete_a_run_with_an_open_call(module_bench: Bench) -> None:
    with attack(module_bench) as opened:
        races = [dict(zip(("run", "call", "new"), ids, strict=True)) for ids in opened.force(SETTING, RACES)]
        opened.connection.commit()
    together = threading.Barrier(2)
    refused: dict[str, list[str | None]] = {"planner": [], "other": []}

    def race(name: str) -> None:
        with connect(module_bench.database.dsns["worker"], name, autocommit=True) as connection:
            for number, ids in enumerate(races):
                # Odd runs begin with an unsent call that is cancelled meanwhile, even ones get a new call.
                move = PROPOSE if number % 2 else CANCEL
                together.wait()
                time.sleep(0.0004 * (number % 7) if name == "planner" else 0.001)
                refused[name].append(attempt(connection, COMPLETE if name == "planner" else move, ids))

    threads = [threading.Thread(target=race, args=[name]) for name in refused]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wrong = module_bench.sql(
        "SELECT count(*) FROM fencepost.runs r JOIN fencepost.calls c ON c.run = r.id"
        " WHERE r.status = 'COMPLETED' AND c.state = ANY(%s)",
        sorted(CALL_OPEN),
    )
    assert wrong == [(0,)]
    proposed = list(zip(refused["planner"], refused["other"], strict=True))[1::2]
    cancelled = list(zip(refused["planner"], refused["other"], strict=True))[0::2]
    assert set(proposed) <= {(None, "FP002"), ("FP001", None)}
    assert set(cancelled) <= {(None, None), ("FP001", None)}
    assert len({*proposed}) == 2, "one side always won: there was no race"
    assert len({*cancelled}) == 2, "one side always won: there was no race"
