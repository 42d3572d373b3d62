"""The checker on who approved what was asked for by whom (I3)."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from fencepost_ops.checker.facts import ChangeRow, EventRow
from fencepost_ops.checker.standing import Standings
from fencepost_ops.checker.story import CallStory, RunStory

RUN, CALL = UUID(int=1), UUID(int=2)
ASKED = datetime(2026, 11, 30, 10, tzinfo=UTC)
SAID = ASKED + timedelta(hours=1)


def event(kind: str, when: datetime) -> EventRow:
    return EventRow(
        "shop", RUN, 9, UUID(int=3), kind, 1, CALL, None, "{}", "", "svc:pay", None, None, None, UUID(int=4),
        when, None, "", "",
    )  # fmt: skip


def change(about: str, when: datetime, how: str = "update", /, **said: Any) -> ChangeRow:
    whole = {"principal": "boss", "delegate": "svc:pay", "until": "2027-01-01T00:00:00+00:00", **said}
    return ChangeRow("shop", when, about, how, json.dumps({"disabled_at": None, **whole}))


def found(asked: Any, word: Any, *changes: ChangeRow) -> list[str]:
    """What is wrong with this word on what was asked like this."""
    story = RunStory(calls={CALL: CallStory(CALL, "wallet.debit", 1, "reversible", "op", None)})
    story.tell(event("ApprovalRequested", ASKED), {"asked": asked})
    standings = Standings.of(changes, timedelta(seconds=1))
    said = standings.approved(story, event("ApprovalDecided", SAID), {"decision": word})
    return [violation.message for violation in said]


ASKING = {"requester": "svc:pay", "on_behalf_of": ["boss"], "count": 1}


@pytest.mark.parametrize(
    ("word", "whose"),
    [
        ({"who": "ann", "on_behalf_of": ["bob"]}, None),
        ({"who": "svc:pay"}, "svc:pay"),
        ({"who": "ann", "on_behalf_of": ["svc:pay"]}, "svc:pay"),
        ({"who": "boss"}, "boss"),
        ({"who": "ann", "on_behalf_of": ["bob", "boss"]}, "boss"),
        ({"who": "svc:pay", "approve": False}, None),
        ({"who": "ann", "on_behalf_of": None}, None),
        ("forged", None),
        (None, None),
    ],
)
def test_nobody_approves_what_is_asked_for_by_or_for_itself(word: Any, whose: str | None) -> None:
    said = found(ASKING, {"approve": True} | word if isinstance(word, dict) else word)
    assert len(said) == (whose is not None)
    assert whose is None or f"which was asked for by or for {whose}" in said[0]


def test_that_there_are_more_than_an_event_tells_is_nobodys_name() -> None:
    many = [f"p{number}" for number in range(50)] + ["and 3 more"]
    others = [f"q{number}" for number in range(50)] + ["and 3 more"]
    word = {"approve": True, "who": "ann", "on_behalf_of": others}
    assert found(ASKING | {"on_behalf_of": many}, word) == []


@pytest.mark.parametrize(
    ("since", "held"),
    [
        (change("delegations", ASKED - timedelta(minutes=1)), True),
        (change("delegations", ASKED + timedelta(minutes=1)), False),
        (change("delegations", ASKED + timedelta(minutes=1), "insert"), True),
        (change("principals", ASKED + timedelta(minutes=1)), True),
        (change("principals", ASKED + timedelta(minutes=1), disabled_at="2026-11-30T10:01:00+00:00"), False),
        (change("delegations", SAID + timedelta(minutes=1)), True),
        (change("delegations", ASKED - timedelta(days=1), until="2026-11-30T10:30:00+00:00"), False),
    ],
)
def test_for_whom_it_was_asked_counts_as_long_as_delegations_lead_where_they_led(
    since: ChangeRow, held: bool
) -> None:
    assert len(found(ASKING, {"approve": True, "who": "boss"}, since)) == held
    assert len(found(ASKING, {"approve": True, "who": "svc:pay"}, since)) == 1


def test_what_was_asked_is_read_whatever_a_forger_wrote() -> None:
    word = {"approve": True, "who": "svc:pay"}
    assert len(found(ASKING | {"count": "many", "on_behalf_of": 7}, word)) == 1
    assert found("forged", word) == []
