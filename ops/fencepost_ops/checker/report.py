"""What the checker says: a verdict per invariant, how much was looked at, and everything that broke it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from fencepost_ops.checker.facts import EventRow

PROMISES = {
    "I1": "at most one effect per intent; exactly one where its call succeeded, none where it did not happen",
    "I2": "every effect has an earlier, committed attempt",
    "I3": "nothing is sent that is invalid, not authorised, expired, or of a stale term",
    "I4": "every attempt has one outcome, or is its call's last and in flight; no doubt ends without proof",
    "I5": "accepted fences never fall, and only the holder of the term records",
    "I6": "the history is unbroken, and runs, calls and keys are what it says",
    "I6.replay": "the kernel's own replay gives the projection recorded at every change",
    "I7": "no run completed with an open or doubtful call",
    "I8": "after an end nothing happens but evidence, reconciliation and repair",
    "I9": "attempts stay within their limits, and each puts at most one request on the wire",
    "I10": "no first attempt may outlast its run's deadline, less what is kept back for recovery",
    "I11": "each compensation has its own key, authority and outcome; at most one per effect",
    "I12": "every run ends or waits for a person; what is open has its outbox row, and nothing else has one",
    "I13": "what is used and held is what events say, within every budget and allowance",
}
"""Every verdict the checker gives, in the order it gives them, in an operator's words."""


@dataclass(frozen=True, slots=True)
class Violation:
    """One thing that must not be: a sentence, and the culprit as far as it has a name."""

    message: str
    tenant: str | None = None
    run: UUID | None = None
    call: UUID | None = None
    attempt: int | None = None
    event: int | None = None
    key: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The sentence and the names that are known."""
        names = ("message", "tenant", "run", "call", "attempt", "event", "key")
        found = {name: getattr(self, name) for name in names}
        return {n: str(v) if isinstance(v, UUID) else v for n, v in found.items() if v is not None}


def at(event: EventRow, message: str, *, key: str | None = None) -> Violation:
    """A violation that names the event and what it concerns."""
    text = f"run {event.run}, event {event.seq} ({event.type}): {message}"
    return Violation(text, event.tenant, event.run, event.call, event.attempt, event.seq, key)


@dataclass(frozen=True, slots=True)
class Verdict:
    """One invariant's verdict.

    `count` is how many things were held against it, `notes` what was not asserted. `unchecked` where nothing
    could be looked at, for want of a book: never taken for "holds".
    """

    invariant: str
    count: int
    violations: tuple[Violation, ...] = ()
    notes: tuple[str, ...] = ()
    unchecked: bool = False

    @property
    def verdict(self) -> str:
        """`holds`, `violated` or `unchecked`."""
        return "violated" if self.violations else "unchecked" if self.unchecked else "holds"

    @property
    def promise(self) -> str:
        """What the invariant says."""
        return PROMISES[self.invariant]

    def to_json(self) -> dict[str, Any]:
        """The verdict with every violation, none left out."""
        return {
            "verdict": self.verdict,
            "count": self.count,
            "violations": [v.to_json() for v in self.violations],
            "notes": list(self.notes),
            "promise": self.promise,
        }


@dataclass(frozen=True, slots=True)
class Totals:
    """How much there is: in the ledger, and in the services' own books."""

    runs: int
    completed: int
    stopped: int
    calls: int
    attempts: int
    events: int
    evidence: int
    effects: int


@dataclass(frozen=True, slots=True)
class Report:
    """Everything one check found. `ok`: nothing is violated; `waiting`: what waits for a person; `books`: of
    which services the own books were read.
    """

    verdicts: tuple[Verdict, ...]
    totals: Totals
    waiting: tuple[str, ...] = ()
    books: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether no invariant is violated."""
        return not any(v.violations for v in self.verdicts)

    def verdict(self, invariant: str) -> Verdict:
        """One invariant's verdict. Raises KeyError for one that was not given."""
        return {v.invariant: v for v in self.verdicts}[invariant]

    @property
    def violated(self) -> list[str]:
        """The violated invariants, by name."""
        return [v.invariant for v in self.verdicts if v.violations]

    def to_json(self) -> dict[str, Any]:
        """The whole report as JSON values."""
        return {
            "ok": self.ok,
            "invariants": {v.invariant: v.to_json() for v in self.verdicts},
            "waiting": list(self.waiting),
            "books": list(self.books),
            **{name: getattr(self.totals, name) for name in Totals.__slots__},
        }


class Findings:
    """Verdicts in the making."""

    def __init__(self) -> None:
        self._counts = dict.fromkeys(PROMISES, 0)
        self._violations: dict[str, list[Violation]] = {name: [] for name in PROMISES}
        self._notes: dict[str, dict[str, None]] = {name: {} for name in PROMISES}
        self._unchecked: set[str] = set()
        self._tallies: dict[tuple[str, str], int] = {}

    def looked(self, invariant: str, count: int = 1) -> None:
        """So many more things were held against the invariant."""
        self._counts[invariant] += count

    def broken(self, invariant: str, violations: Iterable[Violation]) -> None:
        """These break it."""
        self._violations[invariant] += violations

    def note(self, invariant: str, text: str) -> None:
        """This was seen and is not asserted; said once, however often it was seen."""
        self._notes[invariant][text] = None

    def tally(self, invariant: str, number: int, what: str) -> None:
        """So many more of these were seen and are not asserted; said once, with their sum."""
        if number:
            self._tallies[invariant, what] = self._tallies.get((invariant, what), 0) + number

    def unchecked(self, invariant: str, why: str) -> None:
        """Nothing could be held against it."""
        self._unchecked.add(invariant)
        self.note(invariant, why)

    def verdicts(self) -> tuple[Verdict, ...]:
        """All verdicts, in order."""
        summed = {
            name: tuple(f"{number} {what}" for (of, what), number in self._tallies.items() if of == name)
            for name in PROMISES
        }
        return tuple(
            Verdict(
                name,
                self._counts[name],
                tuple(self._violations[name]),
                (*self._notes[name], *summed[name]),
                name in self._unchecked,
            )
            for name in PROMISES
        )
