"""The watch: a process that can no longer do its work ends, one that was only frozen does not."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from fencepost_workers.watch import Watch


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


class Watched:
    """A watch driven look by look."""

    def __init__(self, held: int = 0, broken: str | None = None) -> None:
        self.loop = Loop()
        self.held = held
        self.broken = broken
        self.ended: list[str] = []
        self.asked: list[str] = []
        self.watch = Watch(
            self.loop,  # type: ignore[arg-type]
            lambda: self.broken,
            lambda: self.held,
            5,
            tick_s=3600,
            patience=3,
            end=self.ended.append,
            ask=self.asked.append,
        )

    def look(self, times: int) -> None:
        for _ in range(times):
            self.watch._look()


@pytest.fixture
def watched() -> Iterator[Watched]:
    one = Watched()
    yield one
    one.watch.stop()


def test_a_healthy_process_is_left_alone(watched: Watched) -> None:
    watched.look(20)
    assert (watched.ended, watched.asked) == ([], [])


def test_a_part_that_died_ends_the_process_at_once(watched: Watched) -> None:
    watched.broken = "the committer"
    watched.look(1)
    assert watched.ended == ["the committer has died"]


def test_a_loop_that_hangs_ends_the_process_after_its_patience(watched: Watched) -> None:
    watched.loop.runs = False
    watched.look(3)
    assert watched.ended == []
    watched.look(1)
    assert len(watched.ended) == 1
    assert "event loop hangs" in watched.ended[0]


def test_a_loop_that_comes_back_in_time_is_forgiven(watched: Watched) -> None:
    watched.loop.runs = False
    watched.look(3)
    watched.loop.runs = True
    for action in watched.loop.waiting:
        action()
    watched.look(3)
    assert watched.ended == []


def test_threads_held_by_tools_for_good_ask_the_process_to_drain_and_end(watched: Watched) -> None:
    watched.held = 5
    watched.look(2)
    watched.held = 4  # one came back
    watched.look(1)
    watched.held = 5
    watched.look(3)
    assert len(watched.asked) == 1
    assert "5 threads are held" in watched.asked[0]
    assert watched.ended == []


def test_a_real_loop_blocked_by_a_parse_is_noticed() -> None:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    go, ended = threading.Event(), threading.Event()
    watch = Watch(loop, lambda: None, lambda: 0, 1, tick_s=0.01, patience=3, end=lambda _: ended.set())
    loop.call_soon_threadsafe(go.wait, 10)
    assert ended.wait(5)
    go.set()
    watch.stop()
    loop.call_soon_threadsafe(loop.stop)
    thread.join(5)
    loop.close()
