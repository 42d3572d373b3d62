"""What the checker has against a call that was settled by the end of its run: a table."""

from typing import Any
from uuid import UUID

import pytest

from fencepost_ops.checker.facts import RunRow
from fencepost_ops.checker.families import _otherwise

NOUGHTS = [
    "seq",
    "fence",
    "turn",
    "requests",
    "calls",
    "attempts",
    "open",
    "unsettled",
    "repairs",
    "awaiting",
    "effects",
    "failures",
]
GAVE_UP = {"status": "STOPPED"}


def ended(status: str, **how: Any) -> RunRow:
    named = {"tenant": "shop", "id": UUID(int=1), "run_key": "k", "on_stop": "leave", "head_hash": ""}
    may = {"may_turn": 1, "may_call": 1, "may_attempt": 1, "wall_clock_ms": None}
    return RunRow(**{**named, **dict.fromkeys(NOUGHTS, 0), **may, "status": status, **how})


@pytest.mark.parametrize(
    ("run", "to", "how", "why"),
    [
        (ended("STOPPED"), "FAILED", {}, None),
        (ended("STOPPED", effects=1), "FAILED", {}, "1 of its effects are not offset"),
        (ended("STOPPED", unknowns=1), "FAILED", {}, "1 are not known"),
        # It came to light later, and the call was reopened, or is about to be.
        (ended("STOPPED", effects=1), "FAILED", {"stands": False}, None),
        (ended("STOPPED", effects=1), "SUCCEEDED", {}, None),
        (
            ended("STOPPED", effects=1),
            "SUCCEEDED",
            {"offsets": True},
            "as an effect that was offset",
        ),
        (ended("COMPENSATING", effects=1), "SUCCEEDED", {"offsets": True}, "gave up"),
        (ended("STOPPED"), "FAILED", {"offsets": True}, None),
        (ended("ACTING"), "FAILED", {}, "which is ACTING"),
    ],
)
def test_a_call_is_settled_as_its_run_ended(
    run: RunRow, to: str, how: dict[str, bool], why: str | None
) -> None:
    said = _otherwise(run, GAVE_UP | {"to": to}, **{"stands": True, "offsets": False, **how})
    assert (said is None) if why is None else (said is not None and why in said)


def test_what_completed_offsets() -> None:
    body = {"status": "COMPLETED", "to": "SUCCEEDED", "result": None}
    assert _otherwise(ended("COMPLETED"), body, stands=True, offsets=True) is None
