"""What the services' own books say of requests and fences: I3, I9 and I10, as far as they reach the wire."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Final
from uuid import UUID

from fencepost.states import CallState
from fencepost_ops.checker.books import BookEffect, BookRequest, Books
from fencepost_ops.checker.ledgered import Ledgered, Started
from fencepost_ops.checker.report import Findings, Violation
from fencepost_ops.checker.terms import Terms

C = CallState

_NEVER_SENT: Final = frozenset({C.REJECTED, C.CANCELLED})
_ZERO: Final = timedelta(0)


def check_wire(
    findings: Findings, ledger: Ledgered, before: Books, terms: Terms, tolerance: timedelta, *, whole: bool
) -> None:
    """Hold requests, and effects that say whose they are, against the attempts that were started.

    `before` are the books as they were before the ledger was read: what they hold, the ledger must know.
    """
    if not before.services:
        findings.note("I9", "requests on the wire were not counted: no service's book was given")
        return
    asked = [r for r in before.requests if whole or r.origin.call in ledger.calls]
    asked = [r for r in asked if not ledger.lost(r, tolerance)]
    findings.looked("I9", len(asked))
    findings.broken("I9", _counted(ledger, asked))
    told = [e for e in before.effects if e.origin.call in ledger.calls and not ledger.lost(e, tolerance)]
    seen: tuple[BookRequest | BookEffect, ...] = (*asked, *told)
    for one in seen:
        findings.broken("I3", _stale(ledger, one))
    _landed(findings, ledger, asked, terms, tolerance)


def uncounted(findings: Findings, before: Books) -> None:
    """Say of which services the books keep no requests."""
    silent = {e.service for e in before.effects} - {r.service for r in before.requests}
    for service in sorted(silent):
        findings.note("I9", f"requests to {service} were not counted: its book keeps none")


# -- I9 ------------------------------------------------------------------------------------------------


def _counted(ledger: Ledgered, requests: Sequence[BookRequest]) -> Iterator[Violation]:
    """More than one request of an attempt is a hidden retry; one of no attempt left before its record."""
    sent: Counter[tuple[str, UUID, int]] = Counter()
    for request in requests:
        call, attempt = request.origin.call, request.origin.attempt
        if call is None or attempt is None:
            yield Violation(f"{request.named} does not say of which attempt it is", key=request.key)
        elif (call, attempt) in ledger.attempts:
            sent[request.service, call, attempt] += 1
        elif not _was_refused(ledger, call):
            text = f"{request.named} is of attempt {attempt} of call {call}, which was never recorded"
            yield ledger.culprit(text, call, attempt, request.key)
    for (service, call, attempt), number in sorted(sent.items(), key=str):
        if number > 1:
            made, named = ledger.attempts[call, attempt], ledger.calls[call].named
            text = f"run {made.run}: attempt {attempt} of {named} sent {number} requests to {service}"
            yield Violation(text, made.tenant, made.run, call, attempt, made.event)


def _was_refused(ledger: Ledgered, call: UUID) -> bool:
    """Whether the ledger never let any attempt of it go, and never will."""
    row = ledger.calls.get(call)
    return row is not None and row.state in _NEVER_SENT and not ledger.started_of(call)


# -- I3 ------------------------------------------------------------------------------------------------


def _stale(ledger: Ledgered, seen: BookRequest | BookEffect) -> Iterator[Violation]:
    """Sent under another term than the attempt's own, or by a call that was never to be sent."""
    origin = seen.origin
    if origin.call is None:
        return
    made = ledger.made(seen)
    if made is None and _was_refused(ledger, origin.call):
        call = ledger.calls[origin.call]
        text = f"run {call.run}: {seen.named} is of {call.named}, which is {call.state} and was never started"
        yield Violation(text, call.tenant, call.run, call.id, origin.attempt, key=seen.key)
    elif made is not None and origin.fence is not None and origin.fence != made.fence:
        of = f"attempt {made.attempt} of {ledger.calls[made.call].named}"
        text = f"{seen.named} was asked for under fence {origin.fence}; {of} was started under {made.fence}"
        yield _by(made, text, seen.key)


# -- I10 -----------------------------------------------------------------------------------------------


def _landed(
    findings: Findings,
    ledger: Ledgered,
    requests: Sequence[BookRequest],
    terms: Terms,
    tolerance: timedelta,
) -> None:
    """A first attempt that had its answer had sent its request in time.

    One without an answer may have been held up on its way, or in a process that stood still: whatever the
    class, that cannot be helped, and is noted where it was longer than the contract says.
    """
    late: dict[str, int] = defaultdict(int)
    for request in requests:
        made = ledger.made(request)
        if made is None or not made.first or made.deadline is None:
            continue
        call = ledger.calls[made.call]
        known = terms.get((call.tool, call.tool_version))
        settle = known.settle if known is not None and known.settle is not None else _ZERO
        over = request.at - made.deadline - settle
        if over <= tolerance:
            continue
        if made.answered and call.effect != "read":  # of a read, no answer is a failure like any other
            findings.broken("I10", [_too_late(request, made, call.named)])
        else:
            late[request.service] += 1
    for service, number in sorted(late.items()):
        why = "held up on their way, or in a process that stood still"
        findings.tally("I10", number, f"requests reached {service} after their attempt's time: {why}")


def _too_late(request: BookRequest, made: Started, named: str) -> Violation:
    until = made.deadline.isoformat() if made.deadline is not None else "never"
    text = f"attempt {made.attempt} of {named} had until {until} and an answer"
    return _by(made, f"{text}, yet {request.named} arrived at {request.at.isoformat()}", request.key)


def _by(made: Started, text: str, key: str | None) -> Violation:
    where = (made.tenant, made.run, made.call, made.attempt, made.event, key)
    return Violation(f"run {made.run}: {text}", *where)
