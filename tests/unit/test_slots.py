"""Slots and tool threads: what a process does at once, and what a drain does to those who wait."""

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from fencepost_workers import slots as module
from fencepost_workers.slots import Slots, ToolThreads
from tests.awaiting import until


def in_thread(action: Any) -> "Future[Any]":
    executor = ThreadPoolExecutor(1)
    future = executor.submit(action)
    executor.shutdown(wait=False)
    return future


def test_no_more_slots_are_given_out_than_there_are() -> None:
    slots = Slots(3)
    assert slots.take(2) == 2
    assert slots.take(5) == 1
    assert slots.used == 3


def test_whoever_finds_none_waits_for_the_next_one_freed() -> None:
    slots = Slots(1)
    slots.take(1)
    waiting = in_thread(lambda: slots.take(1))
    assert not waiting.done()
    slots.free(1)
    assert waiting.result(5) == 1
    assert slots.used == 1


def test_a_full_process_claims_what_was_freed_together_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LINGER_S", 5.0)
    slots = Slots(8)
    slots.take(8)
    waiting = in_thread(lambda: slots.take(8))
    slots.free(1)
    slots.free(1)  # a quarter of all is worth a claim
    assert waiting.result(2) == 2


def test_the_one_slot_there_is_is_given_out_although_more_would_be_better() -> None:
    slots = Slots(100)
    slots.take(100)
    waiting = in_thread(lambda: slots.take(50))
    slots.free(1)
    assert waiting.result(5) == 1


def test_lingering_does_not_hand_out_what_another_took_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LINGER_S", 0.02)
    slots = Slots(40)
    slots.take(40)
    waiting = [in_thread(lambda: slots.take(10)) for _ in range(4)]
    slots.free(1)
    done, _ = wait_for_one(waiting)
    assert done.result() == 1
    assert slots.used == 40
    slots.drain()
    assert sorted(f.result(5) for f in waiting) == [0, 0, 0, 1]


def wait_for_one(futures: list["Future[Any]"]) -> tuple["Future[Any]", list["Future[Any]"]]:
    from concurrent.futures import FIRST_COMPLETED, wait

    done, rest = wait(futures, timeout=5, return_when=FIRST_COMPLETED)
    return done.pop(), list(rest)


def test_a_drain_gives_out_nothing_and_wakes_who_waits() -> None:
    slots = Slots(1)
    slots.take(1)
    waiting = in_thread(lambda: slots.take(1))
    slots.drain()
    assert waiting.result(5) == 0
    slots.free(1)
    assert slots.take(1) == 0


def test_it_is_idle_once_everything_is_given_back() -> None:
    slots = Slots(2)
    slots.take(2)
    assert not slots.idle(0)
    slots.free(0)
    slots.free(1)
    assert not slots.idle(0)
    slots.free(1)
    assert slots.idle(0)


def test_a_function_that_does_not_return_is_counted_as_long_as_it_runs() -> None:
    threads = ToolThreads(2)
    begun, go = threading.Event(), threading.Event()

    def tool() -> str:
        begun.set()
        go.wait(10)
        return "late"

    running = threads.submit(tool)
    assert begun.wait(5)
    assert threads.busy == 1
    go.set()
    assert running.result(5) == "late"
    threads.shutdown()
    assert threads.busy == 0


def test_a_function_that_raises_gives_its_thread_back() -> None:
    threads = ToolThreads(1)
    with pytest.raises(ZeroDivisionError):
        threads.submit(lambda: 1 // 0).result(5)
    threads.shutdown()
    assert threads.busy == 0


def test_it_says_whether_there_is_room_and_what_has_ended() -> None:
    slots = Slots(2)
    assert (slots.size, slots.full, slots.freed, slots.draining) == (2, False, 0, False)
    slots.take(2)
    assert slots.full
    waiting = in_thread(lambda: slots.take(1))
    until("one waits", lambda: slots._waiting == 1)
    slots.free(2)
    assert waiting.result(5) == 1
    assert (slots.full, slots.freed, slots.used) == (False, 2, 1)
    slots.drain()
    assert slots.draining
