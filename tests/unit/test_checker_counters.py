"""The checker on shares of allowances that no honest claim takes (I13)."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from fencepost_ops.checker.allowances import Counters
from fencepost_ops.checker.facts import AllowanceRow, EventRow, Tables
from fencepost_ops.checker.story import CallStory, RunStory

AT = datetime(2026, 11, 30, 10, 0, 30, tzinfo=UTC)
RUN, CALL = UUID(int=1), UUID(int=2)
SHARE: dict[str, Any] = {
    "allowance": "few",
    "key": "k",
    "count": 1,
    "minor": 250,
    "since": "2026-11-30T10:00:00.000000Z",
    "until": "2026-11-30T10:01:00.000000Z",
    "limit_count": 2,
    "limit_minor": 500,
    "currency": "EUR",
    "subject": {"tenant": "shop", "principal": "svc:pay", "tool": "wallet.debit"},
}


def event(kind: str, at: datetime = AT, call: UUID = CALL) -> EventRow:
    return EventRow(
        "shop", RUN, 9, UUID(int=3), kind, 1, call, 1, "{}", "", "svc:pay", None, None, None, UUID(int=4), at,
        None, "", "",
    )  # fmt: skip


def called(state: str = "DISPATCHING", call: UUID = CALL, compensates: str | None = None) -> CallStory:
    return CallStory(call, "wallet.debit", 1, "reversible", "op", compensates, state=state)


def begun(counters: Counters, share: dict[str, Any], at: datetime = AT, call: UUID = CALL, **how: Any) -> Any:
    """What is wrong with an attempt that takes this share."""
    story = RunStory(calls={call: called(call=call, **how)})
    found = counters.tell(story, event("ToolAttemptStarted", at, call), {"reserved": [share]})
    return [violation.message for violation in found]


def tables(count: int, minor: int) -> Tables:
    row = AllowanceRow("shop", "k", "few", count, minor)
    return Tables({}, {}, [], 0, allowances={("shop", "k"): row}, read_at=AT)


def told(counters: Counters, count: int, minor: int) -> list[str]:
    return [violation.message for violation in counters.broken(tables(count, minor))]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({}, None),
        ({"until": "2026-11-30T10:00:30.000000Z"}, "in a window from"),
        ({"since": "2026-11-30T10:00:31.000000Z"}, "in a window from"),
        ({"since": None, "until": None}, None),
        ({"subject": {"tenant": "other"}}, "as of tenant other"),
        ({"subject": {"tenant": "shop", "principal": "ann"}}, "as of principal ann"),
        ({"subject": {"tenant": "shop", "tool": "wallet.refund"}}, "as of tool wallet.refund"),
        ({"subject": {"tenant": "shop", "resource": "account:a"}}, None),
    ],
)
def test_a_share_is_of_the_calls_own_window_and_subject(change: dict[str, Any], says: str | None) -> None:
    found = begun(Counters(), SHARE | change)
    assert len(found) == (says is not None)
    assert says is None or says in found[0]


@pytest.mark.parametrize("part", SHARE)
def test_a_share_without_one_of_its_parts_is_no_share_and_takes_nothing(part: str) -> None:
    counters = Counters()
    (found,) = begun(counters, {name: value for name, value in SHARE.items() if name != part})
    assert found.endswith(f"it tells of a share of an allowance without {part}")
    assert told(counters, 0, 0) == []


@pytest.mark.parametrize("share", [None, "few", SHARE | {"count": "1"}, SHARE | {"subject": None}])
def test_what_is_no_share_at_all_is_told(share: Any) -> None:
    (found,) = begun(Counters(), share)
    assert "a share of an allowance without" in found


def test_a_compensation_takes_no_share() -> None:
    (found,) = begun(Counters(), SHARE, compensates="op-1")
    assert "offsets an effect, and took from allowance few" in found


@pytest.mark.parametrize(
    ("limits", "says"),
    [
        ({}, []),
        ({"limit_count": 1}, ["with it 2 calls of allowance few, whose limit is 1,"]),
        ({"limit_minor": 499}, ["with it 500 minor units of EUR of allowance few, whose limit is 499,"]),
        ({"limit_count": None, "limit_minor": None}, []),
    ],
)
def test_shares_that_are_held_at_once_fit_their_limits(limits: dict[str, Any], says: list[str]) -> None:
    counters, second = Counters(), UUID(int=5)
    begun(counters, SHARE | limits)
    begun(counters, SHARE | limits, AT + timedelta(seconds=1), second)
    found = told(counters, 2, 500)
    assert len(found) == len(says)
    assert all(sentence in message for sentence, message in zip(says, found, strict=True))


def test_what_was_given_back_before_leaves_room_and_what_came_back_later_is_not_held_against_it() -> None:
    counters, one, limits = Counters(), UUID(int=5), {"limit_count": 1}
    story = RunStory(calls={CALL: called()})
    list(counters.tell(story, event("ToolAttemptStarted"), {"reserved": [SHARE | limits]}))
    story.calls[CALL].state = "FAILED"
    list(counters.tell(story, event("ToolAttemptFailed", AT + timedelta(seconds=1)), {}))
    begun(counters, SHARE | limits, AT + timedelta(seconds=2), one)
    story.calls[CALL].state = "NEEDS_REPAIR"
    list(counters.tell(story, event("RepairRequested", AT + timedelta(seconds=3)), {}))
    assert told(counters, 2, 500) == []
    assert told(counters, 1, 250) == [
        "the counter k of allowance few counts 1 calls and 250; histories tell of 2 calls and 500"
    ]


MARKED: dict[str, Any] = {"epoch": 1, "reserved": [SHARE | {"limit_count": 1}]}


def marked(counters: Counters, call: UUID, body: dict[str, Any] = MARKED) -> tuple[RunStory, list[str]]:
    """A restore marks a call; what is wrong with that."""
    story = RunStory(calls={call: called("UNKNOWN", call)}, principal="svc:pay")
    row = replace(event("ToolOutcomeMarkedUnknown", call=call), principal="operator:ann")
    return story, [violation.message for violation in counters.tell(story, row, body)]


def test_what_a_restore_marks_counts_and_is_held_against_the_limit_once_it_is_sent_from_here() -> None:
    counters, other = Counters(), UUID(int=5)
    first, found = marked(counters, CALL)
    second, also = marked(counters, other)
    assert found == also == []
    assert told(counters, 2, 500) == []
    assert "histories tell of 2 calls" in told(counters, 1, 250)[0]
    for story, call in ((first, CALL), (second, other)):
        story.calls[call].state = "DISPATCHING"
        row = event("ToolAttemptStarted", AT + timedelta(seconds=1), call)
        assert list(counters.tell(story, row, MARKED)) == []
    (beyond,) = told(counters, 2, 500)
    assert "with it 2 calls of allowance few, whose limit is 1," in beyond


def test_a_mark_takes_as_of_the_runs_principal_and_not_of_who_recovers() -> None:
    strange = SHARE | {"subject": {"tenant": "shop", "principal": "operator:ann"}}
    _, found = marked(Counters(), CALL, {"epoch": 1, "reserved": [strange]})
    assert "as of principal operator:ann" in found[0]


@pytest.mark.parametrize(
    ("body", "later", "says"),
    [
        ({"epoch": 1}, None, "counts in any allowance is not told"),
        ({"epoch": 1, "reserved": [], "uncounted": ["cash"]}, None, "counts in allowance cash is not told"),
        ({"epoch": 1, "reserved": []}, None, None),
        ({"epoch": 1}, {"reserved": [SHARE]}, None),
        ({}, None, None),
    ],
)
def test_what_nobody_could_count_after_a_restore_is_noted_once_it_has_happened(
    body: dict[str, Any], later: dict[str, Any] | None, says: str | None
) -> None:
    counters = Counters()
    story, _ = marked(counters, CALL, body)
    if later is not None:
        assert list(counters.tell(story, event("LeaseAcquired"), later)) == []
    assert list(counters.unseen(tables(0, 0))) == []
    story.calls[CALL].state = "SUCCEEDED"
    found = list(counters.unseen(tables(0, 0)))
    assert len(found) == (says is not None)
    assert says is None or says in found[0]
    assert list(Counters().unseen(tables(0, 0))) == []
