"""The state tables: every net move is a path in them, and what may never happen is not."""

import pytest

from fencepost.events import PROOFS, EventType
from fencepost.states import (
    CALL_AT_REST,
    CALL_BORN,
    CALL_ENDS,
    CALL_HOPS,
    CALL_OPEN,
    CALL_TABLE,
    CALL_UNSETTLED,
    RUN_ENDS,
    RUN_FORWARD,
    RUN_HOPS,
    RUN_TABLE,
    CallState,
    Move,
    RunStatus,
    is_path,
)

CALL_MOVES = sorted((via, s, t) for via, hops in CALL_HOPS.items() for s, t in hops)
RUN_MOVES = sorted((via, s, t) for via, hops in RUN_HOPS.items() for s, t in hops)


@pytest.mark.parametrize(("via", "source", "target"), CALL_MOVES)
def test_every_net_move_of_a_call_is_a_path_in_its_table(via: str, source: str, target: str) -> None:
    assert is_path(CALL_TABLE, source, target)


@pytest.mark.parametrize(("via", "source", "target"), RUN_MOVES)
def test_every_net_move_of_a_run_is_a_path_in_its_table(via: str, source: str, target: str) -> None:
    assert is_path(RUN_TABLE, source, target)


def test_every_move_of_a_table_is_named_by_a_known_event() -> None:
    named = {move.event for move in CALL_TABLE | RUN_TABLE}
    assert named <= {event.value for event in EventType}


def test_every_state_is_reached_from_the_beginning() -> None:
    assert all(is_path(CALL_TABLE, CallState.PROPOSED, state) for state in CallState)
    assert all(is_path(RUN_TABLE, RunStatus.QUEUED, status) for status in RunStatus)


def test_a_call_can_be_born_only_as_what_one_change_can_make_of_a_proposal() -> None:
    assert all(is_path(CALL_TABLE, CallState.PROPOSED, state) for state in CALL_BORN)
    assert not CALL_BORN & (CALL_UNSETTLED | {CallState.SUCCEEDED, CallState.NEEDS_REPAIR})


def test_open_and_ended_states_divide_those_at_rest() -> None:
    assert CALL_OPEN | CALL_ENDS == CALL_AT_REST
    assert not CALL_OPEN & CALL_ENDS
    assert not RUN_FORWARD & RUN_ENDS


def test_a_call_that_has_ended_moves_only_to_repair_and_only_on_evidence() -> None:
    leaving = {(via, t) for via, s, t in CALL_MOVES if s in CALL_ENDS and t != s}
    assert leaving == {("evidence", "NEEDS_REPAIR"), ("repair", "SUCCEEDED")}
    assert {(s, t) for via, s, t in CALL_MOVES if via == "repair" and s in CALL_ENDS and t != s} == {
        ("ACCEPTED_UNKNOWN", "SUCCEEDED")
    }, "what came to light"
    assert {m for m in CALL_MOVES if m[1] in CALL_ENDS and m[1] == m[2]} == {
        ("repair", "SUCCEEDED", "SUCCEEDED"),
        ("repair", "FAILED", "FAILED"),
    }


def test_only_a_claim_starts_an_attempt() -> None:
    assert {via for via, s, t in CALL_MOVES if t == "DISPATCHING"} == {"claim"}


def test_an_attempt_begins_only_where_nothing_is_known_or_nothing_was_sent() -> None:
    starts = {move.source for move in CALL_TABLE if move.event == "ToolAttemptStarted"}
    assert starts == {"INTENT_RECORDED", "UNKNOWN"}


def test_what_is_in_doubt_ends_well_or_badly_only_by_a_proof() -> None:
    ends = {
        move for move in CALL_TABLE if move.source in {"UNKNOWN", "NEEDS_REPAIR"} and move.target in CALL_ENDS
    }
    assert {move.event for move in ends} <= {event.value for event in PROOFS}


def test_an_unknown_call_is_never_cancelled_rejected_or_intended_again() -> None:
    targets = {move.target for move in CALL_TABLE if move.source == "UNKNOWN"}
    assert not targets & {"CANCELLED", "REJECTED", "INTENT_RECORDED"}


def test_nothing_ever_plans_again_after_a_run_began_to_stop() -> None:
    for status in set(RunStatus) - RUN_FORWARD:
        assert not any(is_path(RUN_TABLE, status, forward) for forward in RUN_FORWARD)


def test_a_completed_run_is_left_by_nothing_and_a_stopped_one_only_by_a_person() -> None:
    assert {(via, s, t) for via, s, t in RUN_MOVES if s in RUN_ENDS} == {
        ("repair", "STOPPED", "COMPENSATING")
    }
    assert not any(move.source == "COMPLETED" for move in RUN_TABLE)


def test_only_the_planner_that_holds_a_run_completes_it() -> None:
    assert {(via, s) for via, s, t in RUN_MOVES if t == "COMPLETED"} == {("term", "PLANNING")}


def test_a_path_is_found_through_several_moves_and_not_invented() -> None:
    table = frozenset({Move("a", "b", "x"), Move("b", "c", "x"), Move("c", "a", "x")})
    assert is_path(table, "a", "c")
    assert is_path(table, "d", "d")
    assert not is_path(table, "a", "d")
