"""What the services' own books say against the ledger: I1, I2, and the wire's half of I9."""

from __future__ import annotations

import base64
import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from fencepost.states import CallState
from fencepost_ops.checker.books import BookEffect, BookRequest, Books
from fencepost_ops.checker.facts import CallRow, Tables
from fencepost_ops.checker.report import Findings, Violation

C = CallState

LANDS_WITHIN: Final = timedelta(minutes=1)
"""How long after a restore a request of a worker that was at work before may still be under way."""
_MAY_HAVE = frozenset({C.DISPATCHING, C.UNKNOWN, C.NEEDS_REPAIR, C.SUCCEEDED, C.ACCEPTED_UNKNOWN})
"""Where a call stands while its intent may have had its effect: nowhere else."""


@dataclass(frozen=True, slots=True)
class ToolTerms:
    """What is known of a tool: the class its contract puts it in, and its limits.

    `kind` is `dedupes`, `lookup_only`, `neither` or `read`.
    `attempts` is the most attempts one call may make; `window` how long the downstream remembers a key;
    `settle` how long after its attempt's deadline a request may still land.
    """

    kind: str
    attempts: int | None = None
    window: timedelta | None = None
    settle: timedelta | None = None


Terms = Mapping[tuple[str, int], ToolTerms]


@dataclass(frozen=True, slots=True)
class Started:
    """A committed ToolAttemptStarted: when, under which fence, until when it might be in flight."""

    tenant: str
    run: UUID
    call: UUID
    attempt: int
    at: datetime
    fence: int | None
    deadline: datetime | None


class Ledgered:
    """The ledger's side of it: who holds which key, and which attempts were started."""

    def __init__(self, tables: Tables, started: Sequence[Started], people: Mapping[UUID, str]) -> None:
        self.tables = tables
        self.people = people  # who settled a call, where that was a person
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
        made = self.attempts.get((origin.call, origin.attempt))  # type: ignore[arg-type]
        if made is None or made.at > seen.at + tolerance:
            return True
        return origin.fence is not None and origin.fence != made.fence

    def started_for(self, key: str) -> list[Started]:
        """Every attempt ever started under a key."""
        return [one for call in self.of_key.get(key, ()) for one in self._of_call.get(call.id, ())]


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
    """I1, I2 and the wire's half of I9.

    `before` are the books as they were before the ledger was read: what they hold, the ledger must know.
    `whole`: all runs were read, so a key nobody knows is a violation.
    """
    if not books.services:
        for invariant in ("I1", "I2"):
            findings.unchecked(invariant, "no service's book was given")
        findings.note("I9", "requests on the wire were not counted: no service's book was given")
        return
    found = [e for e in before.effects if whole or _mine(ledger, e)]
    known = [e for e in found if not ledger.lost(e, tolerance)]
    if len(known) < len(found):
        lost = f"{len(found) - len(known)} effects are of a time that the ledger lost"
        findings.note(
            "I2", f"{lost}, and their attempts with it: fencepost audit says what has no intent now"
        )
    _at_most_one(findings, ledger, books, [e for e in books.effects if whole or _mine(ledger, e)], terms)
    findings.broken("I1", _undue(ledger, known))
    findings.looked("I2", len(known))
    for effect in known:
        findings.broken("I2", _unexplained(ledger, effect, tolerance))
    asked = [r for r in before.requests if whole or r.origin.call in ledger.calls]
    asked = [r for r in asked if not ledger.lost(r, tolerance)]
    findings.looked("I9", len(asked))
    findings.broken("I9", _wire(ledger, asked))


def _mine(ledger: Ledgered, effect: BookEffect) -> bool:
    return effect.key in ledger.of_key or effect.origin.call in ledger.calls


# -- I1 ------------------------------------------------------------------------------------------------


def _at_most_one(
    findings: Findings, ledger: Ledgered, books: Books, effects: Sequence[BookEffect], terms: Terms
) -> None:
    by_key = _by_key(effects)
    for key in sorted(ledger.of_key.keys() | by_key.keys()):
        calls, found = ledger.of_key.get(key, []), by_key.get(key, [])
        if calls and not found and all(_service(call) not in books.services for call in calls):
            continue
        findings.looked("I1")
        findings.broken("I1", _of_key(findings, ledger, key, calls, found, terms))
    missing = Counter(
        _service(c) for c in ledger.calls.values() if c.operation and _service(c) not in books.services
    )
    for service, number in sorted(missing.items()):
        findings.note(
            "I1", f"{number} calls of {service or 'no dependency'} were not checked: it has no book here"
        )


def _by_key(effects: Sequence[BookEffect]) -> dict[str, list[BookEffect]]:
    by_key: dict[str, list[BookEffect]] = defaultdict(list)
    for effect in effects:
        if effect.key is not None:
            by_key[effect.key].append(effect)
    return by_key


def _undue(ledger: Ledgered, effects: Sequence[BookEffect]) -> Iterator[Violation]:
    """Effects of intents of which the ledger says that they had none."""
    for key, found in _by_key(effects).items():
        calls = ledger.of_key.get(key, [])
        if calls and not any(call.state in _MAY_HAVE for call in calls):
            holder = _holder(calls)
            text = f"an effect that should not be: {_receipts(found)}, yet {_says(ledger, holder)}"
            yield _names(holder, key, text)


def _receipts(found: Sequence[BookEffect]) -> str:
    return ", ".join(f"{e.service} {e.receipt}" for e in found)


def _service(call: CallRow) -> str:
    return call.scope.partition("/")[0]


def _of_key(
    findings: Findings,
    ledger: Ledgered,
    key: str,
    calls: Sequence[CallRow],
    found: Sequence[BookEffect],
    terms: Terms,
) -> Iterator[Violation]:
    receipts, holder = _receipts(found), _holder(calls)
    if len(found) > 1:
        text = f"{len(found)} effects of one intent: {receipts}; {_says(ledger, holder)}"
        if (excuse := _excuse(ledger, holder, found, terms)) is None:
            yield _names(holder, key, text)
        else:
            findings.note("I1", f"{text}: {excuse}")
    for call in calls:
        if call.state == C.SUCCEEDED and call.effect != "read" and not found:
            yield _names(call, key, f"no effect in the book of {_service(call)}, yet {_says(ledger, call)}")
        elif call.state == C.SUCCEEDED and call.receipt and call.receipt not in {e.receipt for e in found}:
            text = f"{call.named} carries receipt {call.receipt}, the book has {receipts or 'none'}"
            yield _names(call, key, text)


def _holder(calls: Sequence[CallRow]) -> CallRow | None:
    """The call to name: one that may have had the effect, else the one that tried."""
    may = [c for c in calls if c.state in _MAY_HAVE and not c.reused]
    tried = [c for c in calls if c.attempts]
    return next(iter([*may, *tried, *calls]), None)


def _says(ledger: Ledgered, call: CallRow | None) -> str:
    if call is None:
        return "no call in the ledger has its key"
    who = ledger.people.get(call.id)
    return f"{call.named} is {call.state}" + (f", settled by {who}" if who else "")


def _names(call: CallRow | None, key: str, text: str) -> Violation:
    where = f"run {call.run}: " if call else ""
    tenant, run, call_id = (call.tenant, call.run, call.id) if call else (None, None, None)
    return Violation(f"{where}key {key[:12]}…: {text}", tenant, run, call_id, key=key)


def _excuse(ledger: Ledgered, call: CallRow | None, found: Sequence[BookEffect], terms: Terms) -> str | None:
    """Why the tool's class does not promise this; None where it does, or where its class is not known."""
    known = terms.get((call.tool, call.tool_version)) if call is not None else None
    if known is None:
        return None
    first, *more = sorted(found, key=lambda e: e.at)
    if known.kind == "dedupes":
        forgotten = known.window is not None and all(e.at - first.at > known.window for e in more)
        return f"the downstream remembers a key for {known.window}" if forgotten else None
    if all(_late(ledger, e, known) for e in more):
        return "a request landed later than the contract says one can"
    return None


def _late(ledger: Ledgered, effect: BookEffect, known: ToolTerms) -> bool:
    made = ledger.attempts.get((effect.origin.call, effect.origin.attempt))  # type: ignore[arg-type]
    if made is None or made.deadline is None:
        return False
    return effect.at > made.deadline + (known.settle or timedelta(0))


# -- I2 ------------------------------------------------------------------------------------------------


def _unexplained(ledger: Ledgered, effect: BookEffect, tolerance: timedelta) -> Iterator[Violation]:
    """Why nothing in the ledger explains the effect, or explains it too late or otherwise."""
    what, key, origin = f"{effect.service}'s effect {effect.receipt}", effect.key, effect.origin
    call, attempt = origin.call, origin.attempt
    if key is None:
        yield Violation(f"{what} was asked for without a key", call=call, attempt=attempt)
        return
    candidates = ledger.started_for(key)
    if call is not None and attempt is not None:
        candidates = [s for s in candidates if (s.call, s.attempt) == (call, attempt)]
    if not candidates:
        who = f"by attempt {attempt} of call {call}" if call else "by nobody who says so"
        text = f"{what} was asked for {who} under key {key[:12]}…: no such attempt was ever recorded"
        yield Violation(text, call=call, attempt=attempt, key=key)
        return
    made = min(candidates, key=lambda s: s.at)
    for text in _otherwise(ledger.calls[made.call], effect, made, tolerance):
        of = f"of {ledger.calls[made.call].named}, attempt {made.attempt}"
        yield Violation(
            f"run {made.run}: {what} {of}, {text}", made.tenant, made.run, made.call, made.attempt, key=key
        )


def _otherwise(call: CallRow, effect: BookEffect, made: Started, tolerance: timedelta) -> Iterator[str]:
    if made.at > effect.at + tolerance:
        when, recorded = effect.at.isoformat(), made.at.isoformat()
        yield f"happened at {when}, before its attempt was recorded at {recorded}"
    if effect.origin.fence is not None and effect.origin.fence != made.fence:
        yield f"was asked for under fence {effect.origin.fence}, its attempt recorded under {made.fence}"
    stored = _stored_digest(call)
    if stored is not None and stored != effect.digest:
        yield "was asked for by another body than that of the stored request"


def _stored_digest(call: CallRow) -> str | None:
    """SHA-256 of the stored request's body; None where none is stored (a Python tool)."""
    if call.request is None:
        return None
    body = base64.b64decode(json.loads(call.request)["body"])
    return hashlib.sha256(body).hexdigest()


# -- I9 ------------------------------------------------------------------------------------------------


def _wire(ledger: Ledgered, requests: Sequence[BookRequest]) -> Iterator[Violation]:
    """More than one request of an attempt is a hidden retry; one of no attempt left before its record."""
    sent: Counter[tuple[str, UUID, int]] = Counter()
    for request in requests:
        call, attempt = request.origin.call, request.origin.attempt
        what = f"{request.service}'s request {request.id}"
        if call is None or attempt is None:
            yield Violation(f"{what} does not say of which attempt it is", key=request.key)
        elif (call, attempt) not in ledger.attempts:
            text = f"{what} is of attempt {attempt} of call {call}, which was never recorded"
            yield Violation(text, call=call, attempt=attempt, key=request.key)
        else:
            sent[request.service, call, attempt] += 1
    for (service, call, attempt), number in sorted(sent.items(), key=str):
        if number > 1:
            made, named = ledger.attempts[call, attempt], ledger.calls[call].named
            text = f"run {made.run}: attempt {attempt} of {named} sent {number} requests to {service}"
            yield Violation(text, made.tenant, made.run, call, attempt)


def limits(ledger: Ledgered, terms: Terms) -> Iterator[Violation]:
    """I9: no call makes more attempts than its tool may."""
    for call in ledger.calls.values():
        known = terms.get((call.tool, call.tool_version))
        if known is not None and known.attempts is not None and call.attempts > known.attempts:
            made = f"{call.attempts} attempts where its tool may make {known.attempts}"
            text = f"run {call.run}: {call.named} made {made}"
            yield Violation(text, call.tenant, call.run, call.id, call.attempts)
