"""What Postgres asks of a call before it is sent, and of histories that say more than the rows do."""

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from fencepost.events import EventType
from fencepost.states import CALL_HOPS, RunStatus
from tests.integration.guards_bench import HELD, OWNER, WORKER, CallTarget, attack, presented
from tests.integration.ledger_bench import Bench

E = EventType


@pytest.fixture
def sending(module_bench: Bench, planned: tuple[UUID, UUID, UUID, int]) -> Iterator[CallTarget]:
    """The call is to be sent; its key is free."""
    with attack(module_bench) as opened:
        target = CallTarget(planned, opened)
        target.put("INTENT_RECORDED", owner=None)
        yield target


@pytest.mark.parametrize("status", sorted(RunStatus))
def test_a_call_is_sent_first_by_a_run_that_acts_and_offset_by_one_that_stops(
    sending: CallTarget, status: str
) -> None:
    put = sending.attack.put
    put("runs", sending.run, status=status)
    for compensates, sends in ((None, "ACTING"), ("key", "COMPENSATING")):
        put("calls", sending.call, compensates=compensates, state="INTENT_RECORDED")
        for role in (WORKER, OWNER):
            said = sending.move("claim", "DISPATCHING", role)
            assert said == (None if status == sends else "FP001"), (compensates, sending.attack.said)
    if status not in {"COMPLETED", "STOPPED"}:
        put("calls", sending.call, state="UNKNOWN", doubt=True, attempts=1)
        assert sending.move("claim", "DISPATCHING") is None, "a repeat is settled whatever its run does"


def test_no_first_attempt_outlives_its_run(sending: CallTarget) -> None:
    ((deadline,),) = sending.attack.force("SELECT deadline FROM fencepost.runs WHERE id = %s", sending.run)
    assert sending.move("claim", "DISPATCHING", in_flight_until=deadline) is None
    late = deadline.replace(year=deadline.year + 1)
    assert sending.move("claim", "DISPATCHING", in_flight_until=late) == "FP001"
    sending.attack.put("runs", sending.run, status="COMPENSATING")
    sending.attack.put("calls", sending.call, compensates="key")
    assert sending.move("claim", "DISPATCHING", in_flight_until=late) is None


def _sent(sending: CallTarget) -> str | None:
    seq, _ = sending.event("claim", E.TOOL_ATTEMPT_STARTED, attempt=1)
    change = {"state": "DISPATCHING", "attempts": 1, "version": seq} | presented("claim")
    return sending.attack.update("calls", sending.call, change, deferred=True)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ("status = 'open', call = '{call}', first_sent_at = now()", None),
        ("status = 'open', call = '{call}'", "FP003"),
        ("status = 'completed', call = '{call}', first_sent_at = now()", "FP003"),
        ("status = 'open', call = '{other}', first_sent_at = now()", "FP003"),
        ("status = 'open', call = '{call}', first_sent_at = now(), tenant = 'another'", "FP003"),
    ],
)
def test_a_call_that_is_sent_holds_its_key(sending: CallTarget, change: str, code: str | None) -> None:
    said = change.format(call=sending.call, other=sending.other)
    key = sending.column("operation")
    sending.attack.force(f"UPDATE fencepost.operations SET {said} WHERE key = %s", key)
    assert _sent(sending) == code, sending.attack.said
    if code is not None:
        assert "sent without holding its key" in sending.attack.said
        sending.attack.put("calls", sending.call, operation=None)
        assert _sent(sending) is None, "what only reads has none"


def test_a_person_is_asked_by_the_event_of_that(target: CallTarget) -> None:
    sources = {via: sorted(s for s, t in hops if t == "NEEDS_REPAIR" != s) for via, hops in CALL_HOPS.items()}
    for via, states in sources.items():
        for state in states:
            seq, _ = target.event(via, E.EVIDENCE_FILED)
            target.put(state, version=seq - 1)
            change: dict[str, Any] = {"state": "NEEDS_REPAIR", "doubt": True, "version": seq}
            assert target.update(via, change | presented(via, seq - 1)) == "FP004", (via, state)
            target.put(state, version=target.version)
            assert target.move(via, "NEEDS_REPAIR") is None, (via, state, target.attack.said)


def test_what_a_history_says_of_a_run_is_presented_also_before_an_event_of_its_call(
    target: CallTarget,
) -> None:
    for hidden, code in ((target.call, None), (None, "FP002")):
        seq = next(target.attack.numbers)
        target.attack.put("runs", target.run, **(HELD | {"status": "ACTING", "seq": seq}))
        target.attack.event(target.run, hidden, E.LEASE_ACQUIRED, projection=None)
        seq, _, head = target.attack.event(target.run, target.call, E.EVIDENCE_FILED)
        for role in (WORKER, OWNER):
            assert target.attack.update("runs", target.run, {"seq": seq, "head_hash": head}, role) == code
