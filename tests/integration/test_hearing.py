"""Hearing: who leaves a waiting queue untouched although it could take from it is deaf, nobody else is."""

import threading
from collections.abc import Callable

import pytest
import redis

from fencepost_ops.local import LocalValkey
from fencepost_workers import hearing as module
from fencepost_workers.hearing import Hearing, Look, untouched_since
from tests.awaiting import until

LATE_S = 10.0
LAST = Look(at=100.0, waiting=3, taken=7, able=True)


@pytest.mark.parametrize(
    ("since", "before", "look", "after"),
    [
        pytest.param(None, LAST, Look(103, 3, 7, able=True), 103, id="the first that was left"),
        pytest.param(80, LAST, Look(103, 3, 7, able=True), 80, id="still left"),
        pytest.param(80, LAST, Look(103, 1, 7, able=True), 80, id="others take from it"),
        pytest.param(80, LAST, Look(103, 0, 7, able=True), None, id="empty"),
        pytest.param(80, LAST, Look(103, None, 7, able=True), None, id="Redis did not say"),
        pytest.param(80, LAST, Look(103, 3, 8, able=True), None, id="one was taken"),
        pytest.param(80, LAST, Look(103, 3, 7, able=False), None, id="a full house, or a drain"),
        pytest.param(80, LAST, Look(110, 3, 7, able=True), 80, id="as late as a look may be"),
        pytest.param(80, LAST, Look(110.1, 3, 7, able=True), 110.1, id="the process stood still"),
        pytest.param(None, None, Look(103, 3, 7, able=True), None, id="nothing to compare with"),
    ],
)
def test_a_queue_is_left_untouched_since(
    since: float | None, before: Look | None, look: Look, after: float | None
) -> None:
    assert untouched_since(since, before, look, LATE_S) == after


class Clock:
    """Goes when it is told to: a machine that is busy makes nobody late."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "boottime", clock)
    return clock


class Consumer:
    """A process as hearing sees it."""

    def __init__(self, url: str, deaf_s: float, able: Callable[[], bool] = lambda: True) -> None:
        self.left: list[str] = []
        self.gone = threading.Event()
        self.hearing = Hearing(url, ["q"], deaf_s, able=able, leave=self.leave)
        self.hearing.ready()

    def leave(self, why: str) -> None:
        self.left.append(why)
        self.gone.set()


def test_a_deaf_process_is_asked_to_leave_once(valkey: LocalValkey) -> None:
    with redis.Redis.from_url(valkey.url()) as client:
        client.flushall()
        consumer = Consumer(valkey.url(), 0.3)
        assert not consumer.gone.wait(0.5)
        until("a look at the empty queue", consumer.hearing.progress)
        client.rpush("other", "x")
        consumer.hearing.also("other")
        assert consumer.gone.wait(10)
        assert consumer.hearing.deaf
        consumer.hearing.stop()
    assert consumer.left == ["messages have been waiting for 0.3 s and none was taken"]


def test_who_takes_now_and_then_is_not_deaf(valkey: LocalValkey, clock: Clock) -> None:
    with redis.Redis.from_url(valkey.url()) as client:
        client.rpush("q", "x")
        consumer = Consumer(valkey.url(), 1.0)
        for _ in range(15):
            consumer.hearing.took()
            clock.now += 0.2
            assert not consumer.gone.wait(0.1)
        assert consumer.hearing.progress()
        consumer.hearing.stop()


def test_a_redis_that_is_away_makes_nobody_deaf(valkey: LocalValkey, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ANSWER_S", 0.1)
    consumer = Consumer("redis://127.0.0.1:1/0", 0.2)
    assert not consumer.gone.wait(1)
    assert not consumer.hearing.progress()
    consumer.hearing.stop()


def test_a_process_that_has_not_begun_to_consume_is_given_time(
    valkey: LocalValkey, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = threading.Event()
    with redis.Redis.from_url(valkey.url()) as client:
        client.rpush("q", "x")
        monkeypatch.setattr(module, "START_S", 0.8)
        hearing = Hearing(valkey.url(), ["q"], 0.2, able=lambda: True, leave=lambda _: left.set())
        for _ in range(6):
            clock.now += 0.1
            assert not left.wait(0.1)

        def later() -> bool:
            clock.now += 0.1
            return left.is_set()

        until("it is asked to leave", later)
        hearing.stop()


def test_zero_seconds_mean_never(valkey: LocalValkey, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LONGEST_LOOK_S", 0.02)
    with redis.Redis.from_url(valkey.url()) as client:
        client.rpush("q", "x")
        consumer = Consumer(valkey.url(), 0)
        assert not consumer.gone.wait(0.5)
        consumer.hearing.stop()
