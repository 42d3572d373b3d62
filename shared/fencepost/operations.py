"""One operation key, across attempts, turns and runs: who holds it, and the four rules of a repeated key.
Pure.

A key is held by one call at a time. It passes on only when its holder ended without doubt; only proof clears
doubt (R3), so a key in doubt is never handed to anybody.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from uuid import UUID

from fencepost.clock import NEVER
from fencepost.contracts import Contract, Dedupes, FirstFailure
from fencepost.records import amended
from fencepost.states import CALL_ENDS, CALL_UNSENT, CallState, OperationStatus
from fencepost.subjects import Call

S = OperationStatus

_TICK = timedelta(microseconds=1)  # the ledger's resolution: the first instant strictly after another
_LONG_AGO = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Operation:
    """The ledger's record of one key. A fresh key is RELEASED with no call: free for the first who asks.

    `first_sent_at` is stamped before the first attempt over all calls leaves; `expires_at` is the end of the
    downstream's window counted from there, None where it promises none; `reused` counts calls of other runs
    that took the result.
    """

    tenant: str
    key: str
    scope: str
    arguments_hash: str
    status: str = S.RELEASED
    doubt: bool = False
    run: UUID | None = None
    call: UUID | None = None
    first_sent_at: datetime | None = None
    expires_at: datetime | None = None
    receipt: str | None = None
    result: str | None = None
    preview: str | None = None
    reused: int = 0
    proof: UUID | None = None
    resource: bool = False
    """Not an intent but what natural tools set: held by the call that was sent last, until that has ended.

    `expires_at` is then until when a request that nobody answered may still set it.
    """
    releases: bool = False
    """The downstream forgets a failure of this key, says the contract of the call that was sent last."""
    untrusted: bool = False
    """Nobody vouches for its result: whoever takes it is tainted by it."""
    meaning: str | None = None
    """The fingerprint of what its holder was last sent as (see `decide.prints`); None before that."""


def held(operation: Operation) -> bool:
    """Whether its waiters have to wait: some call may still move it."""
    return operation.doubt or operation.status == S.OPEN


class Rule(StrEnum):
    """What a call that names a key may do."""

    OWN = "own"
    WAIT = "wait"
    REUSE = "reuse"
    REJECT = "reject"


def admit(
    operation: Operation, call: Call, contract: Contract, meaning: str | None = None
) -> tuple[Rule, str]:
    """What `call` may do with the key, by the four rules of a repeated key; with the reason of a rejection.

    Completed and the same arguments, by what means the same: the retained result. Held or in doubt: wait.
    Failed without effect: again only if the contract says a first failure is released. Other arguments:
    reject. A released key is free. `meaning` is of what the call would be sent as, None where that is not
    built yet: the claim, which has it, is asked again.
    """
    if operation.call == call.id:
        return Rule.OWN, ""
    if operation.status == S.RELEASED and not operation.doubt:
        return Rule.OWN, ""
    if operation.arguments_hash != call.arguments_hash:
        return Rule.REJECT, "key_arguments_differ"
    if held(operation):
        return Rule.WAIT, ""
    if operation.status == S.COMPLETED:
        return _completed(operation, meaning)
    if operation.status == S.FAILED:
        repeat = contract.repeat
        forgotten = isinstance(repeat, Dedupes) and repeat.first_failure == FirstFailure.RELEASED
        return (Rule.OWN, "") if forgotten else (Rule.REJECT, f"key_failed_before: {operation.call}")
    return Rule.REJECT, f"key_{operation.status}"


def _completed(operation: Operation, meaning: str | None) -> tuple[Rule, str]:
    """The result of what means the same. How an effect was asked for is not guessed where it was lost."""
    if meaning is None or meaning == operation.meaning:
        return Rule.REUSE, ""
    code = "key_request_lost" if operation.meaning is None else "key_request_differs"
    return Rule.REJECT, f"{code}: {operation.call}"


def take(operation: Operation, call: Call) -> Operation:
    """The key held by `call`. The downstream's window still counts from the first send ever made under it."""
    mine = {"run": call.run, "call": call.id, "arguments_hash": call.arguments_hash, "meaning": None}
    return amended(operation, status=S.OPEN, untrusted=False, **mine)


def sent(operation: Operation, now: datetime, contract: Contract, meaning: str | None) -> Operation:
    """The key as an attempt is about to leave: the downstream's window counts from the first of them."""
    first = operation.first_sent_at or now
    window = contract.repeat.window if isinstance(contract.repeat, Dedupes) else None
    releases = isinstance(contract.repeat, Dedupes) and contract.repeat.first_failure == FirstFailure.RELEASED
    until = first + window if window else None
    return amended(operation, first_sent_at=first, expires_at=until, releases=releases, meaning=meaning)


_SETTLED = {
    CallState.SUCCEEDED: S.COMPLETED,
    CallState.FAILED: S.FAILED,
    CallState.REJECTED: S.RELEASED,
    CallState.CANCELLED: S.RELEASED,
    CallState.ACCEPTED_UNKNOWN: S.UNKNOWN,
}


def follow(operation: Operation, call: Call, *, untrusted: bool = False) -> Operation:
    """The key after its holder `call` moved; any other call leaves it as it is.

    `untrusted`: nobody vouches for what it has brought.
    """
    if operation.call != call.id:
        return operation
    settled = _SETTLED.get(CallState(call.state))
    # An effect that comes back into doubt stays offset; while it is being offset, unless it never happened.
    stays = operation.status == S.COMPENSATED or (
        operation.status == S.COMPENSATING and settled in {None, S.COMPLETED}
    )
    status = operation.status if stays else settled or S.OPEN
    if settled is None:
        return amended(operation, status=status, doubt=call.doubt)
    return amended(
        operation,
        status=status,
        doubt=call.doubt,
        proof=call.proof,
        receipt=call.receipt,
        result=call.result,
        preview=call.preview,
        untrusted=operation.untrusted or untrusted,
    )


def hold(resource: Operation, call: Call) -> Operation:
    """A natural resource as `call` is sent to set it: nobody else does until the call has ended."""
    return amended(resource, status=S.OPEN, doubt=call.doubt, run=call.run, call=call.id, expires_at=None)


def settable_from(resource: Operation, call: Call) -> datetime | None:
    """From when on `call` may be sent to set the resource; None while another call holds it.

    What was sent and never answered may set it as late as its settle time allows: a later value waits for
    that, or it would be overwritten.
    """
    if resource.call == call.id:
        return _LONG_AGO
    if held(resource):
        return None
    return _LONG_AGO if resource.expires_at is None else resource.expires_at + _TICK


def let_go(resource: Operation, call: Call, *, answered: bool) -> Operation:
    """The resource after `call` moved; only the call that was sent last moves it.

    `answered`: the downstream's own answer ended it, so that nothing is under way any more.
    """
    if resource.call != call.id:
        return resource
    if call.state not in CALL_ENDS:
        return amended(resource, status=S.OPEN, doubt=call.doubt)
    quiet = call.quiet_at if call.quiet_at and call.quiet_at < NEVER else call.in_flight_until
    return amended(resource, status=S.RELEASED, doubt=False, expires_at=None if answered else quiet)


def released(operation: Operation) -> Operation:
    """The key of a call that FAILED, free again by a person's word."""
    return amended(operation, status=S.RELEASED)


def offset(operation: Operation, compensation: Call) -> Operation:
    """The forward key after the call that compensates it moved: compensated, or as it was if that failed."""
    if compensation.state in _UNSENT or operation.status in _NOTHING_TO_OFFSET:
        return operation
    if compensation.state == CallState.SUCCEEDED:
        return amended(operation, status=S.COMPENSATED)
    if compensation.state in {CallState.FAILED, CallState.REJECTED, CallState.CANCELLED}:
        open_again = operation.doubt or operation.status == S.OPEN
        return amended(operation, status=S.OPEN if open_again else S.COMPLETED)
    return amended(operation, status=S.COMPENSATING)


_UNSENT = CALL_UNSENT | {CallState.AUTHORIZED}
_NOTHING_TO_OFFSET = frozenset({S.FAILED, S.UNKNOWN, S.RELEASED})
"""The effect came back into doubt while it was being offset, and was then found not to have happened."""
