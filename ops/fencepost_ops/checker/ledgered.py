"""The ledger's side of what the books say: who holds which key, which attempts were started, and whose an
effect is that does not say so itself.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from fencepost.states import CallState
from fencepost_ops.checker.books import BookEffect, BookRequest, Books
from fencepost_ops.checker.facts import CallRow, Key, Tables
from fencepost_ops.checker.report import Violation
from fencepost_ops.checker.story import CallStory

LANDS_WITHIN: Final = timedelta(minutes=1)
"""How long after a restore a request of a worker that was at work before may still be under way."""
_HIDDEN: Final = r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
_SHOWN: Final = re.compile(rf"(\\+)(?=u|{_HIDDEN})|{_HIDDEN}")
_WHOLE: Final = re.compile(r"[0-9a-f]{64}")
_CUT: Final = re.compile(r"[0-9a-f]{32,63}")
_UUID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class Started:
    """A committed ToolAttemptStarted: when, under which fence, until when it might be in flight.

    `first`: forward, and nothing of its call was in doubt. `answered`: its own worker recorded an answer.
    Since the attempt before it, `proved_absent`: a lookup had found nothing; `decided`: a person had a word.
    `event` is its number in its run's history; `meaning` of what its call's last attempt asked for.
    """

    tenant: str
    run: UUID
    call: UUID
    attempt: int
    at: datetime
    fence: int | None
    deadline: datetime | None
    first: bool = True
    answered: bool = False
    proved_absent: bool = False
    decided: bool = False
    event: int | None = None
    meaning: str | None = None


def started(key: Key, call: CallStory) -> Iterator[Started]:
    """The attempts of a call, as its history tells them."""
    for number, attempt in call.attempts.items():
        made = attempt.started
        yield Started(
            *key,
            call.id,
            number,
            made.recorded_at,
            made.fence,
            attempt.deadline,
            first=not (attempt.repeat or call.compensates),
            answered=attempt.answered,
            proved_absent=attempt.proved_absent,
            decided=attempt.decided,
            event=made.seq,
            meaning=call.meaning,
        )


class Ledgered:
    """What the ledger knows. `people`: who settled a call, where that was a person. `absent`: the calls that
    ended FAILED because a lookup had found nothing. `taken`: whose result a call took, and as what.
    """

    def __init__(
        self,
        tables: Tables,
        started: Sequence[Started],
        people: Mapping[UUID, str],
        absent: Collection[UUID] = (),
        taken: Mapping[UUID, tuple[str | None, str | None]] | None = None,
    ) -> None:
        self.tables = tables
        self.people = people
        self.absent = absent
        self.taken = taken or {}
        self.calls = {call.id: call for call in tables.calls.values()}
        self.attempts = {(s.call, s.attempt): s for s in started}
        self._of_call: dict[UUID, list[Started]] = defaultdict(list)
        for one in started:
            self._of_call[one.call].append(one)
        self.of_key: dict[str, list[CallRow]] = defaultdict(list)
        for call in tables.calls.values():
            if call.operation is not None:
                self.of_key[call.operation].append(call)

    def lost(self, seen: BookEffect | BookRequest, tolerance: timedelta) -> bool:
        """Whether it is of an attempt that this ledger knew until it was restored to an earlier moment.

        That a committed attempt stays committed is what I2 rests on; in such a time that does not hold.
        """
        if not any(e.since - tolerance <= seen.at <= e.opened_at + LANDS_WITHIN for e in self.tables.epochs):
            return False
        origin = seen.origin
        if origin.call is None or origin.attempt is None:
            return not any(s.at <= seen.at + tolerance for s in self.started_for(seen.key or ""))
        made = self.attempts.get((origin.call, origin.attempt))
        if made is None or made.at > seen.at + tolerance:
            return True
        return origin.fence is not None and origin.fence != made.fence

    def culprit(self, text: str, call: UUID | None, attempt: int | None, key: str | None) -> Violation:
        """A violation by a call that may be one of this ledger's."""
        row = self.calls.get(call) if call is not None else None
        if row is None:
            return Violation(text, call=call, attempt=attempt, key=key)
        return Violation(f"run {row.run}: {text}", row.tenant, row.run, call, attempt, key=key)

    def started_for(self, key: str) -> list[Started]:
        """Every attempt ever started under a key."""
        return [one for call in self.of_key.get(key, ()) for one in self.started_of(call.id)]

    def started_of(self, call: UUID) -> list[Started]:
        """Every attempt of a call."""
        return self._of_call.get(call, [])

    def alone(self, key: str) -> bool:
        """Whether every attempt ever made under the key is among those that were read."""
        if self.tables.whole:
            return True
        for call in self.of_key.get(key, ()):
            kept = self.tables.operations.get((call.tenant, key))
            first = min((s.at for s in self.started_for(key)), default=None)
            if kept is None or kept.call not in self.calls or kept.first_sent_at is None:
                return False
            return first is not None and first <= kept.first_sent_at
        return False

    def after_success(self, key: str, one: Started) -> bool:
        """Whether it was sent although another call had had the effect before: its result is to be reused.

        What a person settled does not count: it may have been settled after that.
        """
        before = (c for c in self.of_key.get(key, ()) if c.id != one.call and c.id not in self.people)
        done = (c.id for c in before if c.state == CallState.SUCCEEDED and not c.reused)
        return any(s.at < one.at for call in done for s in self.started_of(call))

    def after_absence(self, key: str, one: Started) -> bool:
        """Whether it is the first of its call, and what was sent before was found not to have happened."""
        before = {s.call for s in self.started_for(key) if s.at < one.at and s.call != one.call}
        return one.attempt == 1 and bool(before) and all(c in self.absent or c in self.people for c in before)

    def made(self, seen: BookEffect | BookRequest) -> Started | None:
        """The attempt it says it is of, if there was one."""
        call, attempt = seen.origin.call, seen.origin.attempt
        return self.attempts.get((call, attempt)) if call is not None and attempt is not None else None


# -- whose an effect is --------------------------------------------------------------------------------


class Owners:
    """Finds the key of an effect: by the form its service knows it in; else by receipt; else by reference.

    `calls` are all with a key, in any order; of them only what effects name is kept.
    """

    def __init__(self, calls: Iterable[CallRow], effects: Sequence[BookEffect]) -> None:
        named = {e.key for e in effects if e.key is not None}
        bare = [e for e in effects if _nameless(e)]
        services, receipts = {e.service for e in bare}, {as_stored(e.receipt) for e in bare if e.receipt}
        referred = {e.reference for e in bare if e.reference}
        self._spelled: dict[str, str] = {}
        self._by_receipt: dict[str, list[CallRow]] = defaultdict(list)
        self._by_reference: dict[str, list[CallRow]] = defaultdict(list)
        for call in calls if bare or _other_forms(named) else ():
            self._spelled |= _spelled([call.operation or ""], named)
            if not bare or not has_book(call, services):
                continue
            if call.receipt in receipts:
                self._by_receipt[call.receipt or ""].append(call)
            for value in _values(call.arguments) & referred if referred else ():
                self._by_reference[value].append(call)

    def own(self, books: Books) -> Books:
        """The same books, each effect under its call's own key where that can be found out."""
        return replace(books, effects=tuple(map(self._owned, books.effects)))

    def _owned(self, effect: BookEffect) -> BookEffect:
        if effect.key is not None:
            return _under(effect, self._spelled.get(effect.key, effect.key))
        if not _nameless(effect):
            return effect
        receipt = as_stored(effect.receipt)
        for index, name in ((self._by_receipt, receipt), (self._by_reference, effect.reference)):
            keys = {c.operation for c in index.get(name or "", ()) if _fits(c, effect)}
            if len(keys) == 1:
                return _under(effect, keys.pop())
        return effect


def as_stored(receipt: str) -> str:
    """A receipt as the ledger keeps it: what cannot be seen is spelled out, so that any text is kept."""
    return _SHOWN.sub(lambda m: m[0] * 2 if m[1] else f"\\u{ord(m[0]):04x}", receipt)


def has_book(call: CallRow, services: Collection[str]) -> bool:
    """Whether the call's service is among these: by name, or by name and account."""
    return call.scope in services or call.scope.partition("/")[0] in services


def _under(effect: BookEffect, key: str | None) -> BookEffect:
    return effect if key == effect.key else replace(effect, key=key)


def _nameless(effect: BookEffect) -> bool:
    """Whether it does not say whose it is. One that names its call and no key is known to be without one."""
    return effect.key is None and effect.origin.call is None


def _fits(call: CallRow, effect: BookEffect) -> bool:
    named = effect.tool is None or effect.tool == call.tool
    return named and effect.service in (call.scope, call.scope.partition("/")[0])


def _other_forms(named: Iterable[str]) -> bool:
    """Whether some are known by another form than the ledger's own."""
    return any(_CUT.fullmatch(name) or _UUID.fullmatch(name) for name in named)


def _spelled(keys: Iterable[str], named: AbstractSet[str]) -> dict[str, str]:
    """The whole keys behind those that a service knows in a shorter form: a beginning, or a UUID of it."""
    found: dict[str, str] = {}
    for key in keys:
        if _WHOLE.fullmatch(key):
            forms = {key[:length] for length in range(32, 64)} | {str(UUID(hex=key[:32], version=4))}
            found |= dict.fromkeys(forms & named, key)
    return found


def _values(text: str) -> set[str]:
    """The texts and whole numbers anywhere among a call's arguments."""
    try:
        return set(_scalars(json.loads(text)))
    except ValueError:
        return set()


def _scalars(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _scalars(item)
    elif isinstance(value, str | int) and not isinstance(value, bool):
        yield str(value)
