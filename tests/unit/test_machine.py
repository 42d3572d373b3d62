"""What happens next, and how events move the projection."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any
from uuid import UUID

import pytest

from fencepost.clock import NEVER, rfc3339
from fencepost.events import GENESIS, Event, EventType, body_digest, body_text
from fencepost.machine import evolve, next_row
from fencepost.states import CALL_ENDS, CALL_OPEN, RUN_ENDS, CallState, Queue, RunStatus
from fencepost.subjects import Call, Run, View

AT = datetime(2026, 1, 2, tzinfo=UTC)
RUN, CALL = UUID(int=1), UUID(int=2)


def run(**changes: Any) -> Run:
    made = Run(
        "shop", RUN, "k", "p", 1, "svc", "{}", "compensate", AT, AT + timedelta(minutes=1), ready_at=AT
    )
    return replace(made, **changes)


def call(**changes: Any) -> Call:
    made = Call(
        tenant="shop",
        id=CALL,
        run=RUN,
        turn=1,
        ordinal=0,
        label="1.0",
        tool="t",
        tool_version=1,
        effect="reversible",
        operation="k",
        scope="s",
        compensates=None,
        arguments="{}",
        arguments_hash="1:a",
        required=True,
        ready_at=AT,
    )
    return replace(made, **changes)


def event(kind: EventType, body: dict[str, Any], *, of: UUID | None = None, seq: int = 2) -> Event:
    text = body_text(body)
    return Event(
        "shop", RUN, seq, UUID(int=seq), kind, 1, of, None, text, body_digest(text), "svc", None, None, None,
        UUID(int=seq), AT + timedelta(seconds=1), None, GENESIS, "",
    )  # fmt: skip


@pytest.mark.parametrize("state", sorted(CallState))
def test_a_call_has_a_next_step_exactly_while_it_is_open(state: CallState) -> None:
    following = next_row(call(state=state))
    assert (following is not None) == (state in CALL_OPEN)


@pytest.mark.parametrize(
    ("status", "open_", "unsettled", "repairs", "owner"),
    list(product(RunStatus, (0, 1, 2), (0, 1), (0, 1), (None, "w"))),
)
def test_a_run_has_a_next_step_exactly_while_it_has_not_ended(
    status: RunStatus, open_: int, unsettled: int, repairs: int, owner: str | None
) -> None:
    subject = run(status=status, open=open_, unsettled=unsettled, repairs=repairs, owner=owner)
    following = next_row(subject)
    assert (following is not None) == (status not in RUN_ENDS)
    if following is not None:
        forward = status in {"QUEUED", "PLANNING", "ACTING"}
        assert following[0] == (Queue.PLANNER if forward else Queue.COMPENSATOR)


@pytest.mark.parametrize(
    ("subject", "queue", "due"),
    [
        (run(status="ACTING", open=1), Queue.PLANNER, AT + timedelta(minutes=1)),
        (run(status="ACTING", open=0), Queue.PLANNER, AT),
        (run(status="STOPPING", unsettled=1), Queue.COMPENSATOR, NEVER),
        (run(status="COMPENSATING", open=1), Queue.COMPENSATOR, NEVER),
        (run(status="COMPENSATING", open=1, owner="w"), Queue.COMPENSATOR, AT),
        (run(status="COMPENSATING", open=1, repairs=1), Queue.COMPENSATOR, AT),
        (call(state="INTENT_RECORDED"), Queue.DISPATCHER, AT),
        (call(state="AWAITING_APPROVAL"), Queue.DISPATCHER, AT),
        (call(state="DISPATCHING"), Queue.RECONCILER, AT),
        (call(state="UNKNOWN"), Queue.RECONCILER, AT),
        (call(state="NEEDS_REPAIR"), Queue.RECONCILER, NEVER),
    ],
)
def test_whose_turn_it_is_and_from_when(subject: Run | Call, queue: Queue, due: datetime) -> None:
    assert next_row(subject) == (queue, due)


def test_a_history_begins_with_its_creation() -> None:
    with pytest.raises(ValueError, match="RunCreated"):
        evolve(None, event(EventType.RUN_COMPLETED, {}))


def test_an_event_of_a_later_version_is_refused_and_not_skipped() -> None:
    with pytest.raises(ValueError, match="NotYetInvented"):
        evolve(View(run()), replace(event(EventType.RUN_COMPLETED, {}), type="NotYetInvented"))


def test_an_event_of_an_unknown_call_is_refused() -> None:
    with pytest.raises(KeyError):
        evolve(View(run()), event(EventType.CALL_CANCELLED, {"reason": "x", "fence": 1}, of=CALL))


def test_every_event_moves_the_number_of_the_run_and_of_its_call() -> None:
    view = View(run(open=1), {CALL: call(state="INTENT_RECORDED")})
    moved = evolve(view, event(EventType.CALL_CANCELLED, {"reason": "x", "fence": 1}, of=CALL, seq=9))
    assert (moved.run.seq, moved.calls[CALL].version, moved.calls[CALL].settled_seq) == (9, 9, 9)
    assert moved.run.open == 0


def test_evolve_leaves_the_view_it_was_given_alone() -> None:
    view = View(run(open=1), {CALL: call(state="INTENT_RECORDED")})
    evolve(view, event(EventType.CALL_CANCELLED, {"reason": "x", "fence": 1}, of=CALL))
    assert view.run.open == 1
    assert view.calls[CALL].state == "INTENT_RECORDED"


def test_a_denial_leaves_a_doubtful_call_where_it_is() -> None:
    view = View(run(open=1, unsettled=1), {CALL: call(state="UNKNOWN", doubt=True)})
    body = {"phase": "claim", "reason": "no", "deciding": [], "message": "no"}
    moved = evolve(view, event(EventType.AUTHORIZATION_DENIED, body, of=CALL))
    assert (moved.calls[CALL].state, moved.calls[CALL].doubt) == ("UNKNOWN", True)


def test_an_attempt_that_failed_finally_while_another_is_in_doubt_needs_its_own_proof() -> None:
    view = View(run(open=1, unsettled=1), {CALL: call(state="DISPATCHING", doubt=True)})
    body = {"final": True, "code": "x", "message": "x", "ready_at": rfc3339(AT)}
    moved = evolve(view, event(EventType.TOOL_ATTEMPT_FAILED, body, of=CALL))
    assert moved.calls[CALL].proof == UUID(int=2)


@pytest.mark.parametrize(
    ("changes", "effects"),
    [
        ({}, 1),
        ({"effect": "read"}, 0),
        ({"compensates": "k0"}, -1),
    ],
)
def test_a_success_counts_as_an_effect_of_the_run_unless_it_is_none(
    changes: dict[str, Any], effects: int
) -> None:
    view = View(run(open=1, unsettled=1), {CALL: call(state="DISPATCHING", **changes)})
    body = {"receipt": "r", "result": None, "preview": None}
    assert evolve(view, event(EventType.TOOL_RESULT_RECORDED, body, of=CALL)).run.effects == effects


def test_a_reused_result_is_no_effect_of_this_run() -> None:
    view = View(run(open=1), {CALL: call(state="INTENT_RECORDED")})
    body = {"receipt": "r", "result": None, "preview": None, "fence": 1, "from": str(RUN)}
    assert evolve(view, event(EventType.RESULT_REUSED, body, of=CALL)).run.effects == 0


def test_open_calls_come_in_the_order_they_were_proposed() -> None:
    calls = [
        call(id=UUID(int=n), state="INTENT_RECORDED", turn=t, ordinal=o) for n, t, o in [(3, 2, 0), (4, 1, 1)]
    ]
    ended = call(id=UUID(int=5), state="FAILED")
    view = View(run(), {c.id: c for c in [*calls, ended]})
    assert [c.id for c in view.open_calls()] == [UUID(int=4), UUID(int=3)]
    assert ended.state in CALL_ENDS
