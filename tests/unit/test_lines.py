"""Who may be executed, who stands in line and whose turn it is, in one process."""

import queue
import threading
from collections.abc import Iterator, Sequence
from datetime import timedelta
from uuid import UUID

import pytest

from fencepost.commands import Full
from fencepost.ledger.outbox import Message
from fencepost_workers import lines as module
from fencepost_workers.lines import Lines

WITHIN_S = 10.0
FULL = Full("a", "concurrency", timedelta(hours=1))


def message(number: int, generation: int = 1) -> Message:
    return "t", UUID(int=number), generation


class Desk:
    """Lines, and what they call up; a called item enters at once."""

    def __init__(self) -> None:
        self.called: queue.Queue[list[Message]] = queue.Queue()
        self.handed: queue.Queue[Sequence[Message]] = queue.Queue()
        self.lines = Lines({"a": 2, "b": 1}, self._begin, self.handed.put)

    def _begin(self, messages: Sequence[Message]) -> None:
        self.called.put([one for one in messages if self.lines.enter("a", one)])

    def next(self) -> list[Message]:
        return self.called.get(timeout=WITHIN_S)


@pytest.fixture
def desk() -> Iterator[Desk]:
    one = Desk()
    yield one
    one.lines.close()


def test_no_more_enter_than_there_are_slots_and_the_first_in_line_is_the_first_called(desk: Desk) -> None:
    assert [desk.lines.enter("a", message(n)) for n in range(5)] == [True, True, False, False, False]
    assert desk.called.empty()
    desk.lines.leave("a")
    assert desk.next() == [message(2)]
    desk.lines.leave("a", 2)
    assert desk.next() == [message(3), message(4)]


def test_another_dependency_is_not_held_up(desk: Desk) -> None:
    assert [desk.lines.enter("a", message(n)) for n in range(3)] == [True, True, False]
    assert desk.lines.enter("b", message(9))


def test_who_comes_later_does_not_overtake_the_line() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def stands_still(_: Sequence[Message]) -> None:
        begun.set()
        go_on.wait(WITHIN_S)

    lines = Lines({"a": 1}, stands_still, lambda _: None)
    assert [lines.enter("a", message(n)) for n in range(2)] == [True, False]
    lines.leave("a")
    assert begun.wait(WITHIN_S)
    assert not lines.enter("a", message(7)), "the slot is kept for whoever was called"
    go_on.set()
    lines.close()


def test_a_message_that_comes_again_stands_there_once_in_its_newest_form(desk: Desk) -> None:
    assert [desk.lines.enter("a", message(n)) for n in range(3)] == [True, True, False]
    assert not desk.lines.enter("a", message(2, generation=5))
    desk.lines.leave("a", 2)
    assert desk.next() == [message(2, generation=5)]


def test_who_met_a_limit_of_the_fleet_is_called_when_an_item_ends(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ROOM_PAUSE_S", 3600.0)
    assert desk.lines.enter("a", message(0))
    assert desk.lines.enter("a", message(1))
    desk.lines.full("a", message(1), FULL)
    desk.lines.leave("a")  # what was refused holds no slot, and made no room
    assert desk.called.empty()
    desk.lines.leave("a", ended=True)
    assert desk.next() == [message(1)]


def test_who_met_a_limit_of_the_fleet_asks_again_by_itself(desk: Desk) -> None:
    assert desk.lines.enter("a", message(1))
    desk.lines.full("a", message(1), FULL)
    desk.lines.leave("a")
    assert desk.next() == [message(1)], "another process may have made room"


@pytest.mark.parametrize("limit", ["rate", "concurrency"])
def test_after_a_limit_few_are_called_at_once_until_they_find_room(
    monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(module, "ROOM_PAUSE_S", 0.0)
    called: queue.Queue[int] = queue.Queue()
    lines = Lines({"a": 500}, lambda messages: called.put(len(messages)), lambda _: None)
    try:
        assert all(lines.enter("a", message(n)) for n in range(500))
        assert not any(lines.enter("a", message(n)) for n in range(500, 599))
        lines.full("a", message(599), Full("a", limit, timedelta(0)))
        assert called.empty()
        lines.leave("a", 500)
        assert [called.get(timeout=WITHIN_S) for _ in range(2)] == [16, 84]
    finally:
        lines.close()


def test_a_line_has_an_end(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LONGEST", 3)
    assert [desk.lines.enter("a", message(n)) for n in range(9)] == [True] * 2 + [False] * 7
    desk.lines.close()
    assert len(desk.handed.get(timeout=WITHIN_S)) == 3


def test_who_is_left_is_handed_back(desk: Desk) -> None:
    assert [desk.lines.enter("a", message(n)) for n in range(4)] == [True, True, False, False]
    desk.lines.close()
    assert desk.handed.get(timeout=WITHIN_S) == [message(2), message(3)]
    desk.lines.leave("a", 2)
    assert desk.called.empty()


def test_what_ends_a_thread_ends_no_line(caplog: pytest.LogCaptureFixture) -> None:
    """An application's function that calls `sys.exit` while its item's turn is prepared."""
    ends = iter([SystemExit(3), KeyboardInterrupt()])
    called: queue.Queue[Sequence[Message]] = queue.Queue()

    def begin(messages: Sequence[Message]) -> None:
        if (end := next(ends, None)) is not None:
            raise end
        called.put(messages)

    lines = Lines({"a": 1}, begin, lambda _: None)
    try:
        assert [lines.enter("a", message(n)) for n in range(4)] == [True, False, False, False]
        lines.leave("a")
        assert called.get(timeout=WITHIN_S) == [message(3)], "the next ones' turn comes"
        assert caplog.text.count("1 items were not begun") == 2
    finally:
        lines.close()
