"""What a row says of itself changes only with an event, and all that decides anything is presented."""

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import pytest

from fencepost.clock import token, uuid7
from fencepost.events import EventType
from fencepost.subjects import Call, Run
from tests.integration.guards_bench import HELD, OWNER, WORKER, Attack, CallTarget, attack, presented
from tests.integration.ledger_bench import TENANT, Bench
from tests.integration.rows import value

E = EventType
OTHER: dict[str, Any] = {
    "str": "x",
    "int": 99,
    "bool": True,
    "datetime": "2036-01-01T00:00:00Z",
    "UUID": uuid7(),
}


def values_of(kind: type, *but: str) -> dict[str, Any]:
    """Another value for every field of a row, but for those that have tests of their own."""
    types = {f.name: str(f.type).removesuffix(" | None") for f in fields(kind)}
    return {name: OTHER[of] for name, of in types.items() if name not in but}


REQUEST = ("tenant", "id", "run_key", "planner", "planner_version", "principal", "request", "on_stop")
PLACED = ("root", "parent", "parent_call", "depth", "traceparent")
RUN_COLUMNS = values_of(Run, *REQUEST, *PLACED, "created_at", "deadline", "seq", "head_hash")
RUN_COLUMNS |= {"bytes": 10**9, "owed": '["x"]'}
PLACE = ("tenant", "id", "run", "turn", "ordinal", "label", "tool", "tool_version", "effect", "operation")
PROPOSED = (*PLACE, "scope", "compensates", "arguments", "arguments_hash", "required", "resource")
CALL_COLUMNS = values_of(Call, *PROPOSED, "version") | {"doubt": False}


# -- calls -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("column", "other"), sorted(CALL_COLUMNS.items()))
def test_nothing_of_a_call_changes_without_an_event(target: CallTarget, column: str, other: Any) -> None:
    target.put("UNKNOWN")
    for role in (WORKER, OWNER):
        assert target.attack.update("calls", target.call, {column: other}, role) == "FP004"
    for via in ("term", "claim", "repair"):
        change = presented(via, target.version) | {column: other}
        assert target.attack.update("calls", target.call, change) == "FP004"


@pytest.mark.parametrize(("column", "other"), sorted(CALL_COLUMNS.items()))
def test_evidence_changes_nothing_of_a_call_but_when_it_is_looked_at(
    target: CallTarget, column: str, other: Any
) -> None:
    seq, _ = target.event("", E.EVIDENCE_FILED)
    target.put("UNKNOWN", owner=None)
    refused = target.attack.update("calls", target.call, {"version": seq, column: other})
    assert refused == (None if column == "ready_at" else "FP002")
    seq, _ = target.event("", E.RECONCILIATION_DEFERRED)
    assert target.attack.update("calls", target.call, {"version": seq, column: other}) == "FP002"


def test_evidence_wakes_only_a_doubt_that_nobody_holds(target: CallTarget) -> None:
    seq, _ = target.event("", E.EVIDENCE_FILED)
    woken = {"version": seq, "ready_at": "2026-01-01T00:00:00Z"}
    target.put("UNKNOWN")
    assert target.attack.update("calls", target.call, woken) == "FP002"
    assert target.attack.update("calls", target.call, {"version": seq}) is None
    target.put("INTENT_RECORDED", owner=None)
    assert target.attack.update("calls", target.call, woken) == "FP002"


def test_a_calls_version_does_not_rise_by_any_event_alone(target: CallTarget) -> None:
    target.put("DISPATCHING")
    for kind in set(EventType) - {E.EVIDENCE_FILED, E.CALL_DETACHED, E.CALL_AWAITED}:
        seq, _ = target.event("", kind)
        assert target.attack.update("calls", target.call, {"version": seq}) == "FP002"


PAST: dict[str, Any] = {
    "doubt": True,
    "attempts": 1,
    "owner": "w",
    "reused": True,
    "lost": True,
    "asks": 1,
    "request": "{}",
    "in_flight_until": "2026-01-01T00:00:00Z",
    "quiet_at": "2026-01-01T00:00:00Z",
    "lookup": "{}",
    "receipt": "r",
    "result": "d",
    "fingerprint": "f",
    "restored": 1,
    "proof": uuid7(),
}


def test_a_call_is_born_with_none_of_what_only_an_attempt_leaves(target: CallTarget) -> None:
    target.attack.put("runs", target.run, status="PLANNING", owner="planner", fence=5)
    call = uuid7()
    seq, _, _ = target.attack.event(target.run, call, E.TOOL_PROPOSAL_RECORDED)
    born: dict[str, Any] = {"tenant": TENANT, "id": call, "run": target.run, "turn": 9, "ordinal": 0}
    born |= dict.fromkeys(("label", "tool", "effect", "scope", "arguments", "arguments_hash"), "x")
    born |= {"tool_version": 1, "required": True, "state": "INTENT_RECORDED", "version": seq}
    born |= {"ready_at": "2026-01-01T00:00:00Z", "presented_owner": "planner", "presented_fence": 5}

    def insert(**past: Any) -> str | None:
        values = born | past
        names, places = ", ".join(values), ", ".join(["%s"] * len(values))
        statement = f"INSERT INTO fencepost.calls ({names}) VALUES ({places})"
        return target.attack.attempt(statement, *values.values())

    assert insert() is None
    assert {name for name, past in PAST.items() if insert(**{name: past}) != "FP001"} == set()


# -- runs ------------------------------------------------------------------------------------------------


class RunTarget:
    """The run, planning under `HELD`, and an event of its call."""

    def __init__(self, target: CallTarget) -> None:
        self.run, self.call, self.attack = target.run, target.call, target.attack
        self.attack.put("runs", self.run, **(HELD | {"status": "PLANNING"}))
        self.used = {"turn": 2, "requests": 2, "calls": 2, "attempts": 2}
        self.attack.put("runs", self.run, **self.used)

    def end_calls(self) -> None:
        """Have nothing stand in the way of its completion."""
        ended = "UPDATE fencepost.calls SET state = 'CANCELLED', doubt = false WHERE run = %s"
        self.attack.force(ended, self.run)

    def update(self, change: dict[str, Any], *, call: bool, role: str | None = WORKER) -> str | None:
        seq, _, head = self.attack.event(self.run, self.call if call else None)
        return self.attack.update("runs", self.run, {"seq": seq, "head_hash": head, **change}, role)


@pytest.fixture
def planning(target: CallTarget) -> RunTarget:
    return RunTarget(target)


@pytest.mark.parametrize(("column", "other"), sorted(RUN_COLUMNS.items()))
def test_nothing_of_a_run_changes_without_an_event(planning: RunTarget, column: str, other: Any) -> None:
    for role in (WORKER, OWNER):
        assert planning.attack.update("runs", planning.run, {column: other}, role) == "FP004"
    for via in ("term", "claim", "cancel"):
        change = presented(via, 1) | {column: other}
        assert planning.attack.update("runs", planning.run, change) == "FP004"


COUNTED = {"open", "unsettled", "repairs", "awaiting", "detached", "ready_at", "calls_sum"}
"""What the outcome of a call changes in its run."""
TOLD = {"tainted", "tokens", "cost", "held_tokens", "held_cost", "below", "attempts", "calls", "requests"}
TOLD |= {"bytes", "written", "effects", "unknowns", "owed"}
"""What needs no word but the event that says so."""


@pytest.mark.parametrize(("column", "other"), sorted(RUN_COLUMNS.items()))
def test_a_calls_event_only_counts_in_its_run(planning: RunTarget, column: str, other: Any) -> None:
    refused = planning.update({column: other}, call=True)
    otherwise = "FP004" if column in TOLD else "FP002"
    assert refused == (None if column in COUNTED else otherwise)
    assert planning.update({column: other}, call=False) == otherwise, "an event of the run itself"


def test_a_turn_does_not_come_back(planning: RunTarget) -> None:
    for role in (WORKER, OWNER):
        assert planning.update(presented("term") | {"turn": 1}, call=True, role=role) == "FP001"
        assert planning.update(presented("term") | {"turn": 3}, call=True, role=role) is None


SPENT = {"spent": {"tokens": 5, "cost": 7, "known": False}}
HELD_BY_MODEL = {"held": {"tokens": 4, "cost": 6}}
MOVES: list[tuple[EventType, dict[str, Any], tuple[int, int, int, int]]] = [
    (E.MODEL_RESPONSE_RECORDED, SPENT, (15, 27, 0, 0)),
    (E.MODEL_OUTCOME_UNKNOWN, SPENT, (15, 27, 0, 0)),
    (E.RUN_COMPLETED, SPENT, (15, 27, 0, 0)),
    (E.MODEL_RESPONSE_RECORDED, {}, (10, 20, 0, 0)),
    (E.MODEL_REQUEST_STARTED, HELD_BY_MODEL, (10, 20, 4, 6)),
    (E.MODEL_REQUEST_STARTED, SPENT, (15, 27, 0, 0)),
    (E.LEASE_ACQUIRED, SPENT | HELD_BY_MODEL, (10, 20, 9, 9)),
]
TAKES_TO: dict[EventType, dict[str, Any]] = {
    E.MODEL_RESPONSE_RECORDED: {"status": "ACTING"},
    E.RUN_COMPLETED: {"status": "COMPLETED"},
}
MONEY = ("tokens", "cost", "held_tokens", "held_cost")


@pytest.mark.parametrize(("kind", "body", "after"), MOVES)
def test_what_models_use_and_hold_moves_by_what_events_say(
    planning: RunTarget, kind: EventType, body: dict[str, Any], after: tuple[int, int, int, int]
) -> None:
    planning.end_calls()
    planning.attack.put("runs", planning.run, **dict(zip(MONEY, (10, 20, 9, 9), strict=True)))
    seq, _, head = planning.attack.event(planning.run, None, kind, body=body)

    def refused(values: tuple[int, int, int, int], role: str | None = WORKER) -> str | None:
        change = presented("term") | {"seq": seq, "head_hash": head, **dict(zip(MONEY, values, strict=True))}
        change |= {"requests": 2 + (kind == E.MODEL_REQUEST_STARTED)}
        change |= TAKES_TO.get(kind, {})
        return planning.attack.update("runs", planning.run, change, role)

    assert refused(after) is None
    for place in range(4):
        wrong = tuple(n + (at == place) for at, n in enumerate(after))
        for role in (WORKER, OWNER):
            assert refused(wrong, role) == "FP004", MONEY[place]  # type: ignore[arg-type]
    silent = {"seq": seq, "head_hash": head, **dict(zip(MONEY, after, strict=True))}
    silent |= {"requests": 2 + (kind == E.MODEL_REQUEST_STARTED)}
    silent |= TAKES_TO.get(kind, {})
    unsaid = planning.attack.update("runs", planning.run, silent)
    assert unsaid == "FP002", "an event of the run is presented, whatever it changes"


@pytest.mark.parametrize("kind", [E.MODEL_RESPONSE_RECORDED, E.RUN_COMPLETED])
def test_what_a_model_spends_first_is_not_passed_over(planning: RunTarget, kind: EventType) -> None:
    seq, _, head = planning.attack.event(planning.run, None, kind, body=SPENT)
    change = presented("term") | {"seq": seq, "head_hash": head} | TAKES_TO[kind]
    planning.end_calls()
    for role in (WORKER, OWNER):
        assert planning.attack.update("runs", planning.run, change, role) == "FP004"
    assert planning.attack.update("runs", planning.run, change | {"tokens": 5, "cost": 7}) is None


def test_a_count_of_fruitless_turns_rises_with_a_turn_alone(planning: RunTarget) -> None:
    planning.attack.put("runs", planning.run, fruitless=3)
    assert planning.update({"fruitless": 0}, call=True) is None, "an intent has come of it"
    for wrong in (1, 2, 4):
        assert planning.update({"fruitless": wrong}, call=True) == "FP002"


@pytest.mark.parametrize("state", ["DISPATCHING", "UNKNOWN", "NEEDS_REPAIR", "INTENT_RECORDED"])
@pytest.mark.parametrize("status", ["STOPPING", "STOPPED"])
def test_a_run_offsets_nothing_while_a_call_is_unsettled(
    planning: RunTarget, status: str, state: str
) -> None:
    planning.attack.put("runs", planning.run, status=status)
    planning.attack.put("calls", planning.call, state=state)
    via = "claim" if status == "STOPPING" else "repair"
    seen = value(planning.attack.connection, "SELECT seq FROM fencepost.runs WHERE id = %s", planning.run)
    seq, _, head = planning.attack.event(planning.run, planning.call)
    change = {"seq": seq, "head_hash": head, "status": "COMPENSATING", **presented(via, seen)}
    role = "fencepost_operator" if via == "repair" else WORKER
    refused = planning.attack.update("runs", planning.run, change, role, deferred=True)
    unsettled = status == "STOPPING" and state in {"DISPATCHING", "UNKNOWN"}
    assert refused == ("FP001" if unsettled else None)  # a run that a person reopens settles as it goes


# -- workers ---------------------------------------------------------------------------------------------

STAMPED = "INSERT INTO fencepost.workers VALUES (%s, 'dispatcher', 'h', 1, fencepost.now(), {seen}, {ended})"


@pytest.fixture
def opened(module_bench: Bench) -> Iterator[Attack]:
    with attack(module_bench) as opened:
        yield opened


def stamp(opened: Attack, worker: str, change: str) -> str | None:
    return opened.attempt(f"UPDATE fencepost.workers SET {change} WHERE token = %s", worker)


def test_a_stamp_never_lies_in_the_future(opened: Attack) -> None:
    worker = token()
    made = STAMPED.format(seen="fencepost.now()", ended="NULL")
    ahead = STAMPED.format(seen="fencepost.now() + interval '2 s'", ended="NULL")
    assert opened.attempt(ahead, worker) == "FP001"
    assert opened.attempt(STAMPED.format(seen="'infinity'", ended="NULL"), worker) == "FP001"
    opened.connection.execute(made, [worker])
    assert stamp(opened, worker, "last_seen = fencepost.now()") is None
    assert stamp(opened, worker, "last_seen = fencepost.now() + interval '2 s'") == "FP001"
    assert stamp(opened, worker, "ended_at = fencepost.now() + interval '2 s'") == "FP001"


@pytest.mark.parametrize("change", ["ended_at = NULL", "ended_at = fencepost.now()"])
def test_a_worker_that_has_ended_never_comes_back(opened: Attack, change: str) -> None:
    worker = token()
    before = "fencepost.now() - interval '1 s'"
    opened.connection.execute(STAMPED.format(seen=before, ended=before), [worker])
    assert stamp(opened, worker, change) == "FP001"
    assert opened.attempt("DELETE FROM fencepost.workers WHERE token = %s", worker) == "42501"


@pytest.mark.parametrize(
    "change", ["token = 'x'", "role = 'x'", "host = 'x'", "pid = 2", "started_at = now() - interval '1 h'"]
)
def test_a_token_is_one_process(opened: Attack, change: str) -> None:
    worker = token()
    opened.connection.execute(STAMPED.format(seen="fencepost.now()", ended="NULL"), [worker])
    assert stamp(opened, worker, change) == "FP001"
