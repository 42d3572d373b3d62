"""When a key was first sent is held against its call's first attempt, whatever clock later ones went by."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from fencepost_ops.checker.facts import CallRow, OperationRow, Tables
from fencepost_ops.checker.keys import keys
from fencepost_ops.checker.ledgered import Ledgered, Started

RUN, CALL = UUID(int=1), UUID(int=2)
AT = datetime(2026, 5, 4, 12, tzinfo=UTC)


def ledger(first_sent: timedelta, *attempts: timedelta) -> Ledgered:
    """A call that succeeded after these attempts, in their order; times are from one moment on."""
    call = CallRow(
        "t", CALL, RUN, "pay", "wallet.debit", 1, "own", "k", "tool", None, "SUCCEEDED", False, 2, 3,
        "r-1", False, None, "{}", "",
    )  # fmt: skip
    row = OperationRow("t", "k", "completed", False, CALL, "r-1", AT + first_sent, False)
    started = [
        Started("t", RUN, CALL, number, AT + at, 3, None) for number, at in enumerate(attempts, start=1)
    ]
    return Ledgered(Tables({}, {("t", CALL): call}, [], 0, operations={("t", "k"): row}), started, {})


@pytest.mark.parametrize(
    ("first_sent_s", "attempts_s", "says"),
    [
        (0, (0, 5), None),
        (0, (0, -17), None),  # the clock was set back between the two
        (5, (0, 5), "told to have been sent first"),
        (1, (0, -17), "told to have been sent first"),
    ],
)
def test_a_key_was_first_sent_when_its_first_attempt_began(
    first_sent_s: int, attempts_s: tuple[int, ...], says: str | None
) -> None:
    found = [
        one.message
        for one in keys(ledger(timedelta(seconds=first_sent_s), *(timedelta(seconds=s) for s in attempts_s)))
    ]
    assert len(found) == (says is not None)
    assert all(says is not None and says in message for message in found)
