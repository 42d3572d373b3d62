"""What is known of a call in doubt, and what can be decided about it: `fencepost.recovery`'s values. PURE."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, TypeAlias

from fencepost.contracts import Contract, Effect

SENT_LATE: Final = "sent_late"
"""The code of an attempt of which bytes left after its time, and nothing else is known."""


class Answer(StrEnum):
    """What a lookup said about the key at the instant it was asked."""

    FOUND = "found"
    FOUND_OTHER = "found_other"
    """The key is known, for another request than ours."""
    ABSENT = "absent"
    UNCLEAR = "unclear"
    """No usable answer: unreachable, refused, still in progress, not understood."""
    NOT_ASKED = "not_asked"
    """The engine refuses to put the question its tool builds, and would refuse it again."""


@dataclass(frozen=True, slots=True)
class LookupAnswer:
    """One answer. `asked_at` is taken before the question is sent; `result` is a payload's digest."""

    answer: Answer
    asked_at: datetime
    receipt: str | None = None
    result: str | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What an attempt's worker reported outside its term. A no speaks for that attempt only.

    `retryable`: what kept the attempt from having an effect may pass: nothing was sent, or it says so.
    """

    attempt: int
    applied: bool
    receipt: str | None = None
    result: str | None = None
    code: str = ""
    retryable: bool = False

    @property
    def late(self) -> bool:
        """Bytes of the attempt left after its time: it may still be applied, whatever a lookup said."""
        return not self.applied and self.code == SENT_LATE


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All that `recover` looks at. Instants are the ledger's and aware; `rand` is in [0, 1)."""

    now: datetime
    effect: Effect
    contract: Contract
    attempts: int
    """Attempts started so far, each of which may have been sent."""
    max_attempts: int
    per_attempt: timedelta
    margin: timedelta
    """Kept clear of the end of a downstream's window or horizon, for clocks that differ."""
    in_flight_until: datetime
    """The latest deadline of all attempts."""
    first_sent_at: datetime | None
    reconcile_until: datetime
    run: str
    """The status of the call's run."""
    compensable: bool = False
    is_compensation: bool = False
    taken_over: bool = False
    """The last attempt's worker was lost: it never answered."""
    has_lookup: bool = False
    compares: bool = False
    """The tool can tell whether an answer is for what was sent."""
    asks: int = 0
    evidence: Sequence[Evidence] = ()
    lookup: LookupAnswer | None = None
    rand: float = 0.5
    backoff_base: timedelta = timedelta(milliseconds=200)
    backoff_cap: timedelta = timedelta(seconds=30)
    resource_locked: bool = False
    """Claims on its natural resource exclude each other, and no later one has set it."""
    restored: bool = False
    """It may have been sent beyond the attempts counted, in a time the ledger lost."""
    overtaken: bool = False
    """A later call was sent to set the same resource: a repeat would overwrite its value."""


@dataclass(frozen=True, slots=True)
class Succeed:
    """The effect happened once; `proof` says how that is known."""

    receipt: str | None
    result: str | None
    proof: str


@dataclass(frozen=True, slots=True)
class Fail:
    """The key had no effect and nothing sent can still have one; `proof` says how that is known."""

    proof: str


@dataclass(frozen=True, slots=True)
class Ask:
    """Put the question to the downstream now, then decide again with its answer."""


@dataclass(frozen=True, slots=True)
class Repeat:
    """Send the stored request again, under the same key, in a new attempt."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Decide again at `until`, which lies after now and not after the reconciliation deadline."""

    until: datetime
    reason: str


@dataclass(frozen=True, slots=True)
class Repair:
    """A person decides; `reason` tells them why no rule could."""

    reason: str


Decision: TypeAlias = Succeed | Fail | Ask | Repeat | Wait | Repair
