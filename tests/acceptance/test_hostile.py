"""A broker that redelivers after two seconds and drops every connection: a hint is only a hint."""

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import redis

from tests.acceptance.conftest import checked
from tests.acceptance.stage import Stage, staged, step, until

_numbers = itertools.count(1)

KILL_EVERY_S = 0.1
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


@contextmanager
def connections_reset(stage: Stage) -> Iterator[None]:
    """Every connection to the broker is cut, again and again, until the block ends."""
    over = threading.Event()

    def cut() -> None:
        with redis.Redis.from_url(stage.fleet.valkey.url()) as client:
            while not over.wait(KILL_EVERY_S):
                client.client_kill_filter(_type="normal", skipme=True)

    thread = threading.Thread(target=cut)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_calls_slower_than_the_visibility_timeout_are_dispatched_once(stage: Stage) -> None:
    name = f"hostile-{next(_numbers)}"
    turn = [step("local.await", f"{n}", reference=f"{name}-{n}", hundredths=240) for n in range(4)]
    run = stage.send(turn)
    assert stage.ended(run) == ["COMPLETED"]
    calls = stage.calls(run).values()
    assert [(call.attempts, stage.deeds_of(call)) for call in calls] == [(1, 1)] * 4
    with redis.Redis.from_url(stage.fleet.valkey.url()) as client:
        # Redelivered duplicates end without work; they do not pile up.
        until("empty queues", lambda: not any(client.llen(queue) for queue in QUEUES))


def test_orders_settle_while_every_connection_to_the_broker_is_cut(stage: Stage) -> None:
    name = f"hostile-{next(_numbers)}"
    with connections_reset(stage):
        sent = [stage.order(f"{name}-{n}") for n in range(10)]
        assert stage.ended(*sent, within_s=60) == ["COMPLETED"] * 10
    attempts = [event for run in sent for event in stage.events(run, "ToolAttemptStarted")]
    requests = [request for request in stage.book.requests() if (request.reference or "").startswith(name)]
    assert len(requests) <= len(attempts)
