"""What a turn waits for, of the child runs it starts: all of them, so many, or until an instant. PURE."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from fencepost.clock import parse_rfc3339, rfc3339
from fencepost.deadlines import plus
from fencepost.misspelt import check_fields


@dataclass(frozen=True, slots=True)
class Join:
    """When a run goes on after a turn that starts children; calls of other tools are always waited for.

    `need`: as soon as so many of their runs have COMPLETED, a result that is used once more included; one
    that stopped is no answer, whatever it has left. None: when all have ended. `by`: at the latest after so
    long, with what there is then. Those left over are detached: the planner sees them as what they are, their
    effects stay the run's, and it does not complete before they have ended. Their runs are told to stop, or
    with `rest="leave"` work on. Unless it waits for all of them to the end, none of them is required: what
    becomes of each is told to the planner, and stops nothing.

    ValueError for a number or a time below what can be waited for.
    """

    need: int | None = None
    by: timedelta | None = None
    rest: Literal["cancel", "leave"] = "cancel"

    def __post_init__(self) -> None:
        check_fields(self)
        if self.need is not None and self.need < 1:
            raise ValueError(f"a join needs one answer at least, not {self.need}")
        if self.by is not None and self.by <= timedelta(0):
            raise ValueError(f"a join waits for some time, not for {self.by}")

    @classmethod
    def quorum(
        cls, need: int, *, by: timedelta | None = None, rest: Literal["cancel", "leave"] = "cancel"
    ) -> Join:
        """As soon as so many have COMPLETED."""
        return cls(need, by, rest)

    @classmethod
    def first(cls, *, by: timedelta | None = None, rest: Literal["cancel", "leave"] = "cancel") -> Join:
        """As soon as one has COMPLETED."""
        return cls(1, by, rest)

    @classmethod
    def within(cls, by: timedelta, *, rest: Literal["cancel", "leave"] = "cancel") -> Join:
        """All of them, but for no longer than this; then with what there is."""
        return cls(None, by, rest)

    @property
    def plain(self) -> bool:
        """Whether it waits for all of them, to the end."""
        return self.need is None and self.by is None

    def told(self, now: datetime) -> dict[str, Any] | None:
        """As the turn's event tells it; None for the usual one, of which nothing is said."""
        if self.plain:
            return None
        until = {"by": rfc3339(plus(now, self.by))} if self.by is not None else {}
        need = {"need": self.need} if self.need is not None else {}
        return {"rest": self.rest, **need, **until}


ALL = Join()
"""When all of them have ended: the usual one."""


def until(join: Mapping[str, Any] | None) -> datetime | None:
    """The instant from which a run goes on with what there is; None: it has none."""
    return parse_rfc3339(join["by"]) if join and "by" in join else None


def met(join: Mapping[str, Any], *, answered: int, now: datetime) -> bool:
    """Whether a join whose calls have not all ended lets its run go on."""
    enough = "need" in join and answered >= join["need"]
    last = until(join)
    return enough or (last is not None and now >= last)
