"""The watch: a process that can no longer do its work ends, one that was only frozen does not."""

import asyncio
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from fencepost_workers import watch as module
from fencepost_workers.watch import Watch, Watched


class Loop:
    """An event loop of which the test says whether it runs."""

    def __init__(self) -> None:
        self.runs = True
        self.waiting: list[Any] = []

    def call_soon_threadsafe(self, action: Any) -> None:
        if self.runs:
            action()
        else:
            self.waiting.append(action)


class Bench:
    """A watch driven look by look."""

    def __init__(self, held: int = 0, broken: str | None = None, batch_ticks: int = 0) -> None:
        self.loop = Loop()
        self.held = held
        self.broken = broken
        self.batch = 0
        self.draining = False
        self.busy = 0
        self.well = 0
        self.ticks = 0
        self.ended: list[str] = []
        self.asked: list[str] = []
        self.watch = Watch(
            self.loop,  # type: ignore[arg-type]
            Watched(
                broken=lambda: self.broken,
                held=lambda: self.held,
                batch=lambda: self.batch,
                draining=lambda: self.draining,
                busy=lambda: self.busy,
                well=self.say_well,
                tick=self.say_tick,
            ),
            held_limit=5,
            drain_ticks=10,
            batch_ticks=batch_ticks,
            tick_s=3600,
            patience=3,
            end=self.ended.append,
            ask=self.asked.append,
        )

    def say_well(self) -> None:
        self.well += 1

    def say_tick(self) -> None:
        self.ticks += 1

    def look(self, times: int) -> None:
        for _ in range(times):
            self.watch._look()


@pytest.fixture
def watched() -> Iterator[Bench]:
    one = Bench()
    yield one
    one.watch.stop()


def test_a_healthy_process_is_left_alone(watched: Bench) -> None:
    watched.look(20)
    assert (watched.ended, watched.asked) == ([], [])
    assert (watched.well, watched.ticks) == (20, 20)


def test_a_part_that_died_ends_the_process_at_once(watched: Bench) -> None:
    watched.broken = "the committer"
    watched.look(1)
    assert watched.ended == ["the committer has died"]
    assert watched.well == 0


def test_a_loop_that_hangs_ends_the_process_after_its_patience(watched: Bench) -> None:
    watched.loop.runs = False
    watched.look(3)
    assert watched.ended == []
    watched.look(1)
    assert len(watched.ended) == 1
    assert "event loop hangs" in watched.ended[0]


def test_a_loop_that_comes_back_in_time_is_forgiven(watched: Bench) -> None:
    watched.loop.runs = False
    watched.look(3)
    watched.loop.runs = True
    for action in watched.loop.waiting:
        action()
    watched.look(3)
    assert watched.ended == []


def test_threads_held_by_tools_for_good_ask_the_process_to_drain_and_end(watched: Bench) -> None:
    watched.held = 5
    watched.look(2)
    watched.held = 4  # one came back
    watched.look(1)
    watched.held = 5
    watched.look(3)
    assert len(watched.asked) == 1
    assert "5 threads are held" in watched.asked[0]
    assert watched.ended == []


def test_a_batch_that_is_never_written_ends_the_process(watched: Bench) -> None:
    for number in (1, 0, 2):  # others were written in the meantime
        watched.batch = number
        watched.look(module.COMMIT_PATIENCE)
        assert watched.ended == []
    watched.look(1)
    assert watched.ended == ["the committer hangs in a batch"]


def test_a_batch_may_take_as_long_as_its_transaction_may() -> None:
    bench = Bench(batch_ticks=module.COMMIT_PATIENCE + 50)
    bench.batch = 1
    bench.look(module.COMMIT_PATIENCE + 50)
    assert bench.ended == []
    bench.look(1)
    assert bench.ended == ["the committer hangs in a batch"]
    bench.watch.stop()


def test_a_drain_has_its_time_and_then_an_end(watched: Bench) -> None:
    watched.draining, watched.busy = True, 3
    watched.look(10 + module.LEAVE_PATIENCE - 1)
    assert watched.ended == []
    watched.look(1)
    assert watched.ended == ["it did not leave in time"]


def test_a_process_that_asked_itself_to_end_goes_once_it_is_idle(watched: Bench) -> None:
    """Its main thread, which would hear the signal, may be what hangs."""
    watched.busy = 1
    watched.watch.ask("deaf")
    watched.watch.ask("and again")
    assert watched.asked == ["deaf"]
    watched.look(module.IDLE_PATIENCE + 3)
    assert (watched.ended, watched.well) == ([], 0)
    watched.busy = 0
    watched.look(module.IDLE_PATIENCE)
    assert watched.ended == ["it is idle but does not leave"]


def test_a_drain_asked_for_by_others_is_theirs_to_end(watched: Bench) -> None:
    watched.draining = True
    watched.look(module.IDLE_PATIENCE + 1)
    assert watched.ended == []


def test_parts_may_end_while_the_process_closes(watched: Bench) -> None:
    watched.watch.closing()
    watched.broken = "the committer"
    watched.look(3)
    assert (watched.ended, watched.ticks) == ([], 3)
    watched.look(10 + module.LEAVE_PATIENCE)
    assert "it did not leave in time" in watched.ended


def test_a_process_that_ended_itself_says_so_by_its_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    monkeypatch.setattr(module, "_exit_code", 0)
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append(number))
    assert module.exit_code(0) == 0
    module.ask_to_end("deaf")
    assert (sent, module.exit_code(0), module.exit_code(3)) == ([signal.SIGTERM], 1, 3)


def test_a_real_loop_blocked_by_a_parse_is_noticed() -> None:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    go, ended = threading.Event(), threading.Event()
    of = Watched(broken=lambda: None)
    watch = Watch(loop, of, held_limit=1, drain_ticks=1, tick_s=0.01, patience=3, end=lambda _: ended.set())
    loop.call_soon_threadsafe(go.wait, 10)
    assert ended.wait(5)
    go.set()
    watch.stop()
    loop.call_soon_threadsafe(loop.stop)
    thread.join(5)
    loop.close()
