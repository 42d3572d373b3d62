"""A broker that redelivers after two seconds and drops every connection: a hint is only a hint."""

import itertools
import os
import signal
from collections.abc import Iterator
from uuid import UUID

import pytest

from tests.acceptance.conftest import checked
from tests.acceptance.stage import Stage, staged, step
from tests.acceptance.weather import long_only
from tests.acceptance.weather.resets import broker, connections_reset
from tests.awaiting import until

pytestmark = long_only
_numbers = itertools.count(1)

QUEUES = ("planner", "dispatcher", "reconciler", "compensator")
SCALE = {"dispatcher": 2}
HOSTILE = {"FENCEPOST_HOSTILE": "true"}
ONE_SLOT = {"dispatcher-1": {"FENCEPOST_SLOTS": "1"}, "dispatcher-2": {"FENCEPOST_SLOTS": "1"}}


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Late acks, a visibility timeout of 2 s; a dispatcher executes one call at a time, others wait in it."""
    folder = tmp_path_factory.mktemp("hostile")
    with staged(folder, env=HOSTILE, scale=SCALE, env_of=ONE_SLOT) as stage:
        yield stage
        assert stage.verdict(whole=True) == []


@pytest.fixture
def stage(hostile: Stage) -> Iterator[Stage]:
    yield from checked(hostile)


def test_calls_slower_than_the_visibility_timeout_are_dispatched_once_celery_5935(stage: Stage) -> None:
    """celery/celery#5935: what takes longer than the visibility timeout runs again while it still runs."""
    name = f"hostile-{next(_numbers)}"
    turn = [step("local.await", f"{n}", reference=f"{name}-{n}", hundredths=240) for n in range(4)]
    run = stage.send(turn)
    assert stage.ended(run) == ["COMPLETED"]
    calls = stage.calls(run).values()
    assert [(call.attempts, stage.deeds_of(call)) for call in calls] == [(1, 1)] * 4
    with broker(stage) as client:
        # Redelivered duplicates end without work; they do not pile up.
        until("empty queues", lambda: not any(client.llen(queue) for queue in QUEUES))


def test_orders_settle_while_every_connection_to_the_broker_is_cut_celery_4671(stage: Stage) -> None:
    """celery/celery#4671, celery/celery#6951: a connection that is lost has all in hand executed twice."""
    name = f"hostile-{next(_numbers)}"
    with connections_reset(stage, every_s=0.1):
        sent = [stage.order(f"{name}-{n}") for n in range(10)]
        assert stage.ended(*sent, within_s=60) == ["COMPLETED"] * 10
    attempts = [event for run in sent for event in stage.events(run, "ToolAttemptStarted")]
    requests = [request for request in stage.book.requests() if (request.reference or "").startswith(name)]
    assert len(requests) <= len(attempts)


def in_hand(stage: Stage, count: int = 3, delay_s: float = 1.5) -> tuple[str, UUID, int]:
    """Calls of which one dispatcher executes the first while the others wait in it, in a message that is not
    acknowledged; their name, their run, and that dispatcher.
    """
    until("two dispatchers", lambda: len(stage.pids("dispatcher")) == 2)
    name = f"hostile-{next(_numbers)}"
    stage.sandbox.fault("delay_after_commit", reference_prefix=name, delay_s=delay_s)
    run = stage.send([step("patient.debit", f"{n}", reference=f"{name}-{n}") for n in range(count)])
    statement = "SELECT label FROM fencepost.calls WHERE run = %s AND state = 'DISPATCHING'"
    label = until("a call in flight", lambda: stage.value(statement, run))
    return name, run, stage.holder(run, label)


def one_each(stage: Stage, name: str, run: UUID, count: int = 3) -> None:
    assert stage.ended(run, within_s=60) == ["COMPLETED"]
    assert [stage.effects(f"{name}-{n}") for n in range(count)] == [["debit"]] * count


def test_a_stale_acknowledgement_loses_no_work(stage: Stage) -> None:
    """A worker frozen beyond the visibility timeout acknowledges, when it wakes, what another now works on:
    the broker forgets the message, and should that other die, it is gone for good.
    """
    name, run, first = in_hand(stage)
    with broker(stage) as client:
        os.kill(first, signal.SIGSTOP)
        seconds, micros = client.time()
        again = until(
            "a redelivery",
            lambda: client.zrangebyscore("unacked_index", seconds + micros / 1e6 + 0.01, "+inf"),
        )
        os.kill(first, signal.SIGCONT)
        until("an acknowledgement", lambda: not set(again) <= set(client.hkeys("unacked")))
    (second,) = set(stage.pids("dispatcher")) - {first}
    os.kill(second, signal.SIGKILL)
    one_each(stage, name, run)


def test_a_lock_of_the_restore_that_is_left_behind_holds_up_nobody_kombu_1816(stage: Stage) -> None:
    """celery/kombu#1816, celery/kombu#1190: while it stands nothing is redelivered, for five minutes."""
    with broker(stage) as client:
        client.set("unacked_mutex", "left behind", ex=300)
        name, run, first = in_hand(stage, delay_s=0.5)
        os.kill(first, signal.SIGKILL)
        one_each(stage, name, run)
        client.delete("unacked_mutex")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGQUIT], ids=["term", "quit"])
def test_a_worker_told_to_end_repeats_nothing_kombu_305(stage: Stage, number: int) -> None:
    """celery/kombu#305, celery/kombu#1405, celery/celery#10490: messages that are not acknowledged go back,
    or vanish; calls in flight are finished or taken over.
    """
    name, run, first = in_hand(stage, delay_s=0.5)
    os.kill(first, number)
    one_each(stage, name, run)
    assert [stage.requests(f"{name}-{n}") for n in range(3)] == [1, 1, 1]


def test_a_call_that_kills_its_worker_is_redelivered_within_bounds_celery_5598(stage: Stage) -> None:
    """celery/celery#5598, celery/celery#6103: what loses its worker is queued again, without a limit."""
    reference = f"hostile-{next(_numbers)}"
    run = stage.send([step("deadly.do", "deadly", reference=reference)])
    call = stage.until_state(run, "deadly", "NEEDS_REPAIR")
    assert [event.attempt for event in stage.events(run, "ToolAttemptStarted")] == [1, 2]
    assert stage.deeds_of(call) == 1
    stage.cancel(run)
    with stage.client("operator") as client:
        client.repair(call.id, "SUCCEEDED", by="person:tester", reason="it did", receipt="deed")
    assert stage.ended(run) == ["STOPPED"]
