"""What the services' own books say of each intent: I1 and I2."""

from __future__ import annotations

import base64
import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Final

from fencepost.states import CallState
from fencepost_ops.checker import classes
from fencepost_ops.checker.books import BookEffect, Books
from fencepost_ops.checker.facts import CallRow
from fencepost_ops.checker.ledgered import Ledgered, Started, as_stored, has_book
from fencepost_ops.checker.report import Findings, Violation
from fencepost_ops.checker.terms import Terms, ToolTerms

C = CallState

_MAY_HAVE: Final = frozenset({C.DISPATCHING, C.UNKNOWN, C.NEEDS_REPAIR, C.SUCCEEDED, C.ACCEPTED_UNKNOWN})
"""Where a call stands while its intent may have had its effect: nowhere else."""


def check_effects(
    findings: Findings,
    ledger: Ledgered,
    books: Books,
    before: Books,
    terms: Terms,
    tolerance: timedelta,
    *,
    whole: bool,
) -> None:
    """I1 and I2.

    `before` are the books as they were before the ledger was read: what they hold, the ledger must know.
    Effects have their call's own key, where that was found out (`Owners`).
    `whole`: all runs were read, so a key nobody knows is a violation.
    """
    if not books.services:
        for invariant in ("I1", "I2"):
            findings.unchecked(invariant, "no service's book was given")
        return
    found = [e for e in before.effects if whole or _mine(ledger, e)]
    kept = [e for e in found if not ledger.lost(e, tolerance)]
    lost = "effects are of a time that the ledger lost, and their attempts with it"
    findings.tally("I2", len(found) - len(kept), f"{lost}: fencepost audit says what has no intent now")
    known = [e for e in kept if whole or not _anothers(ledger, e)]
    theirs = "effects under these keys are of attempts of other runs"
    findings.tally("I2", len(kept) - len(known), f"{theirs}, which were not read: check those runs, or --all")
    now = [e for e in books.effects if whole or _mine(ledger, e)]
    _Intents(findings, ledger, books, terms).check(now, known, found)
    findings.looked("I2", len(known))
    for effect in known:
        findings.broken("I2", _unexplained(ledger, effect, tolerance))


def _mine(ledger: Ledgered, effect: BookEffect) -> bool:
    return effect.key in ledger.of_key or effect.origin.call in ledger.calls


def _anothers(ledger: Ledgered, effect: BookEffect) -> bool:
    """Whether it is of a run that was not read: one that sent its key, and whose key was waited for or whose
    result was taken. What nobody ever sent is nobody's.
    """
    if effect.origin.call is not None:
        return effect.origin.call not in ledger.calls
    calls = ledger.of_key.get(effect.key or "", ())
    kept = [ledger.tables.operations.get((call.tenant, effect.key or "")) for call in calls]
    sent = any(row is not None and row.first_sent_at is not None for row in kept)
    return sent and not any(call.attempts for call in calls)


# -- I1 ------------------------------------------------------------------------------------------------


class _Intents:
    """Each intent, and all effects under its key."""

    def __init__(self, findings: Findings, ledger: Ledgered, books: Books, terms: Terms) -> None:
        self._findings = findings
        self._ledger = ledger
        self._books = books
        self._terms = terms

    def check(
        self, now: Sequence[BookEffect], earlier: Sequence[BookEffect], counted: Sequence[BookEffect]
    ) -> None:
        """One where there must be one, as the books are `now`. At most one, and none where there must be
        none, as they were before the ledger was read: of what came since, it may not know the attempt.
        `counted`: also what is of a time that was lost.
        """
        by_key, before = _by_key(now), _by_key(counted)
        for key in sorted(self._ledger.of_key.keys() | by_key.keys()):
            calls, found = self._ledger.of_key.get(key, []), by_key.get(key, [])
            if calls and not found and not any(has_book(call, self._books.services) for call in calls):
                continue
            self._findings.looked("I1")
            self._findings.broken("I1", self._of_key(key, calls, found, before.get(key, [])))
        for key, found in _by_key(earlier).items():
            self._findings.broken("I1", self._undue(key, found))
        for effect in earlier:
            self._findings.broken("I1", self._of_a_read(effect))
        self._without_a_book()

    def _of_key(
        self, key: str, calls: Sequence[CallRow], found: Sequence[BookEffect], counted: Sequence[BookEffect]
    ) -> Iterator[Violation]:
        holder = _holder(calls)
        whose = sorted({(call.tenant, call.scope) for call in calls})
        if len(whose) > 1:
            named = ", ".join(f"tenant {tenant} at {scope}" for tenant, scope in whose)
            yield _names(holder, key, f"one key for the intents of {named}")
        if len(counted) > 1:
            text = f"{len(counted)} effects of one intent: {_receipts(counted)}; {self._says(holder)}"
            excuse = classes.several(self._ledger, key, counted, self._known(holder))
            yield from self._told(holder, key, text, excuse, counted)
        for call in calls:
            if call.state == C.SUCCEEDED and call.effect != "read":
                yield from self._succeeded(call, key, found)

    def _succeeded(self, call: CallRow, key: str, found: Sequence[BookEffect]) -> Iterator[Violation]:
        known = self._known(call)
        told = {kept for e in found for kept in (e.receipt, as_stored(e.receipt))}
        if not found:
            text = f"no effect in the book of {call.scope.partition('/')[0]}, yet {self._says(call)}"
            yield from self._told(call, key, text, classes.missing(self._ledger, call, known), found)
        elif call.receipt and "" not in told and call.receipt not in told and not (known and known.sets):
            # Each time something is set may have a receipt of its own.
            text = f"{call.named} carries receipt {call.receipt}, the book has {_receipts(found)}"
            yield _names(call, key, text)

    def _undue(self, key: str, found: Sequence[BookEffect]) -> Iterator[Violation]:
        """Effects of an intent of which the ledger says that it had none."""
        calls = self._ledger.of_key.get(key, [])
        if not calls or any(call.state in _MAY_HAVE for call in calls):
            return
        holder = _holder(calls)
        text = f"an effect that should not be: {_receipts(found)}, yet {self._says(holder)}"
        known = self._known(holder)
        excuse = classes.undue(self._ledger, holder, found, known) if holder is not None else None
        yield from self._told(holder, key, text, excuse, found)

    def _of_a_read(self, effect: BookEffect) -> Iterator[Violation]:
        call = self._ledger.calls.get(effect.origin.call) if effect.origin.call is not None else None
        if call is not None and call.effect == "read":
            text = f"run {call.run}: {_receipts([effect])} is an effect of {call.named}, which only reads"
            yield Violation(text, call.tenant, call.run, call.id, effect.origin.attempt)

    def _told(
        self, call: CallRow | None, key: str, text: str, excuse: str | None, found: Sequence[BookEffect]
    ) -> Iterator[Violation]:
        """Asserted or noted. Of several effects the last one is the one too many."""
        last = max(found, key=lambda e: e.at, default=None)
        made = self._ledger.made(last) if last is not None else None
        violation = _names(call, key, text, made)
        if excuse is None:
            yield violation
        else:
            self._findings.note("I1", f"{violation.message}: {excuse}")

    def _known(self, call: CallRow | None) -> ToolTerms | None:
        return self._terms.get((call.tool, call.tool_version)) if call is not None else None

    def _says(self, call: CallRow | None) -> str:
        if call is None:
            return "no call in the ledger has its key"
        who = self._ledger.people.get(call.id)
        return f"{call.named} is {call.state}" + (f", settled by {who}" if who else "")

    def _without_a_book(self) -> None:
        missing = Counter(
            call.scope.partition("/")[0]
            for call in self._ledger.calls.values()
            if call.operation and call.child is None and not has_book(call, self._books.services)
        )
        for service, number in sorted(missing.items()):
            what = f"calls of {service or 'no dependency'} were not checked: it has no book here"
            self._findings.tally("I1", number, what)


def _by_key(effects: Sequence[BookEffect]) -> dict[str, list[BookEffect]]:
    by_key: dict[str, list[BookEffect]] = defaultdict(list)
    for effect in effects:
        if effect.key is not None:
            by_key[effect.key].append(effect)
    return by_key


def _receipts(found: Sequence[BookEffect]) -> str:
    return ", ".join(_told_of(e) for e in found)


def _told_of(effect: BookEffect) -> str:
    attempt = effect.origin.attempt
    return f"{effect.service} {effect.called}" + (f" of attempt {attempt}" if attempt is not None else "")


def _holder(calls: Sequence[CallRow]) -> CallRow | None:
    """The call to name: one that may have had the effect, else the one that tried."""
    may = [c for c in calls if c.state in _MAY_HAVE and not c.reused]
    tried = [c for c in calls if c.attempts]
    return next(iter([*may, *tried, *calls]), None)


def _names(call: CallRow | None, key: str, text: str, made: Started | None = None) -> Violation:
    where = f"run {call.run}: " if call else ""
    tenant, run, call_id = (call.tenant, call.run, call.id) if call else (None, None, None)
    attempt, event = (made.attempt, made.event) if made and made.call == call_id else (None, None)
    return Violation(f"{where}key {key[:12]}…: {text}", tenant, run, call_id, attempt, event, key)


# -- I2 ------------------------------------------------------------------------------------------------


def _unexplained(ledger: Ledgered, effect: BookEffect, tolerance: timedelta) -> Iterator[Violation]:
    """Why nothing in the ledger explains the effect, or explains it too late or otherwise."""
    what, key, origin = effect.named, effect.key, effect.origin
    call, attempt = origin.call, origin.attempt
    if key is None:
        yield from _keyless(ledger, effect, what)
        return
    candidates = ledger.started_for(key)
    if call is not None and attempt is not None:
        candidates = [s for s in candidates if (s.call, s.attempt) == (call, attempt)]
    if not candidates:
        who = f"by attempt {attempt} of call {call}" if call else "by nobody who says so"
        text = f"{what} was asked for {who} under key {key[:12]}…: no such attempt was ever recorded"
        yield ledger.culprit(text, call, attempt, key)
        return
    made = min(candidates, key=lambda s: s.at)
    for text in _otherwise(ledger.calls[made.call], effect, made, tolerance):
        of = f"of {ledger.calls[made.call].named}, attempt {made.attempt}"
        yield Violation(
            f"run {made.run}: {what} {of}, {text}",
            made.tenant,
            made.run,
            made.call,
            made.attempt,
            made.event,
            key,
        )


def _keyless(ledger: Ledgered, effect: BookEffect, what: str) -> Iterator[Violation]:
    call = ledger.calls.get(effect.origin.call) if effect.origin.call is not None else None
    if call is not None and call.effect == "read":
        return  # a read has no key, and that it has an effect is I1's
    if effect.origin.call is None and effect.origin.attempt is None and (effect.receipt or effect.reference):
        yield Violation(f"{what} says no key, and no call here is known by its receipt or reference")
    else:
        text = f"{what} was asked for without a key"
        yield ledger.culprit(text, effect.origin.call, effect.origin.attempt, None)


def _otherwise(call: CallRow, effect: BookEffect, made: Started, tolerance: timedelta) -> Iterator[str]:
    if made.at > effect.at + tolerance:
        when, recorded = effect.at.isoformat(), made.at.isoformat()
        yield f"happened at {when}, before its attempt was recorded at {recorded}"
    stored = _stored_digest(call) if effect.digest else None
    if stored is not None and stored != effect.digest:
        yield "was asked for by another body than that of the stored request"


def _stored_digest(call: CallRow) -> str | None:
    """SHA-256 of the stored request's body; None where none is stored (a Python tool)."""
    if call.request is None:
        return None
    body = base64.b64decode(json.loads(call.request)["body"])
    return hashlib.sha256(body).hexdigest()
