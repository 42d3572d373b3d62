"""One audit: read the ledger, then the book, look again at what was moving, and say what differs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from fencepost.books import BookReader
from fencepost_ops.audit.books import paged
from fencepost_ops.audit.compare import DIFFERENCES, Finding, Kind, judge, orphan
from fencepost_ops.audit.intents import Intents
from fencepost_ops.audit.spool import Spool, spooled

Progress = Callable[[str, int], None]
"""Told what is being read, and how much of it has been."""


@dataclass(slots=True)
class Audit:
    """One audit of a dependency. `findings` may be walked through once, and counts as it goes."""

    scope: str
    since: datetime
    until: datetime
    intents: int
    effects: int
    counts: Counter[Kind] = field(default_factory=Counter)

    def findings(self, spool: Spool) -> Iterator[Finding]:
        """Everything found, matches too: by intent, in the order they were sent; orphans last."""
        for intent, effects in spool.matched():
            for finding in judge(intent, effects):
                self.counts[finding.kind] += 1
                yield finding
        for effect in spool.orphans():
            self.counts[Kind.ORPHAN] += 1
            yield orphan(effect)

    @property
    def differences(self) -> int:
        """How much of what has been walked through differs."""
        return sum(count for kind, count in self.counts.items() if kind in DIFFERENCES)


@contextmanager
def audited(
    intents: Intents,
    read: BookReader,
    scope: str,
    since: datetime,
    until: datetime,
    *,
    slack: timedelta,
    progress: Progress = lambda _what, _count: None,
) -> Iterator[tuple[Audit, Spool]]:
    """Both sides of [since, until), read and matched. Raises whatever their readers raise.

    An intent belongs to the period it was first sent in, an effect to that of the book's own time; the book
    is read for `slack` more on either side, and for as long as a request of the period may have been on its
    way, so that neither side misses the other for a clock or a long repeat.

    The ledger is read before the book: what it says happened was in the book by then. Only where an effect
    is nobody's even so, what was sent later, sent again or settled about the period is read as well. What
    had not settled, or is not in the book, is read again afterwards, and counts as moving if it changed in
    between.
    """
    with spooled() as spool:
        count = _read_ledger(spool, intents, since, until, slack, progress)
        effects = _read_book(spool, read, since, until, slack, progress)
        for keys in spool.strange_keys():
            known, strange = intents.keyed(keys)
            spool.add_intents(known, inside=False)
            spool.disown(strange)
        spool.match()
        if spool.left_over():
            for page in intents.touched(since - slack, until + slack):
                spool.add_strangers(page)
            spool.match()
        for page in spool.unsure():
            spool.renew(intents.again(page))
        yield Audit(scope, since, until, count, effects), spool


def _read_ledger(
    spool: Spool, intents: Intents, since: datetime, until: datetime, slack: timedelta, progress: Progress
) -> int:
    count = 0
    for page in intents.sent(since - slack, since):
        spool.add_intents(page, inside=False)
    for page in intents.sent(since, until):
        spool.add_intents(page, inside=True)
        count += len(page)
        progress("calls", count)
    return count


def _read_book(
    spool: Spool, read: BookReader, since: datetime, until: datetime, slack: timedelta, progress: Progress
) -> int:
    last = max(until, spool.last_in_flight() or until)
    count = 0
    for page in paged(read(since - slack, last + slack)):
        spool.add_effects(page, since, until)
        count += len(page)
        progress("effects", count)
    return count
