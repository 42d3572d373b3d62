"""I6 for `operations`: what the ledger keeps of each key is what the calls say that were sent under it; and
I1 for results that were taken instead of sending.

The row of a key is what keeps another run from sending it again. Of a key whose holder is of a run that was
not read only that it is there is asserted; of the resources that natural tools set, nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final
from uuid import UUID

from fencepost.states import CallState, OperationStatus
from fencepost_ops.checker.facts import CallRow, OperationRow
from fencepost_ops.checker.ledgered import Ledgered
from fencepost_ops.checker.report import Violation
from fencepost_ops.checker.story import ENDED

C, O = CallState, OperationStatus  # noqa: E741 - as everywhere: one letter per kind of state

_OFFSET: Final = frozenset({O.COMPENSATING, O.COMPENSATED})
_MAY_BE: Final = {
    C.SUCCEEDED: frozenset({O.COMPLETED}) | _OFFSET,
    # What was offset stays so, also when its effect is found not to have happened after all.
    # By a person's word the key of one that failed is free.
    C.FAILED: frozenset({O.FAILED, O.RELEASED, O.COMPENSATED}),
    C.ACCEPTED_UNKNOWN: frozenset({O.UNKNOWN, O.COMPENSATED}),
    C.REJECTED: frozenset({O.RELEASED, O.COMPENSATED}),
    C.CANCELLED: frozenset({O.RELEASED, O.COMPENSATED}),
}
_WHILE_OPEN: Final = frozenset({O.OPEN}) | _OFFSET


def keys(ledger: Ledgered) -> Iterator[Violation]:
    """Every difference between a key's row and the calls that name it."""
    for key, calls in ledger.of_key.items():
        for tenant in sorted({call.tenant for call in calls}):
            mine = [call for call in calls if call.tenant == tenant]
            kept = ledger.tables.operations.get((tenant, key))
            yield from _of_one(ledger, key, mine, kept)


def results_taken(ledger: Ledgered) -> Iterator[Violation]:
    """I1: who takes another call's result would have asked for the very same: else it had no effect."""
    for call_id, (source, meaning) in ledger.taken.items():
        call = ledger.calls.get(call_id)
        if call is None or source is None or UUID(source) not in ledger.calls:
            continue  # of a run that was not read
        sent = {one.meaning for one in ledger.started_of(UUID(source))}
        if meaning is None or sent != {meaning}:
            text = f"it took the result of call {source}, which asked for something else than it would have"
            yield _names(call, text)


def _of_one(
    ledger: Ledgered, key: str, calls: Sequence[CallRow], kept: OperationRow | None
) -> Iterator[Violation]:
    used = [call for call in calls if call.attempts or call.reused]
    if kept is None:
        if used:
            yield _names(used[0], "the ledger has lost its key: it could be sent once more")
        return
    # The first by number, not by time: later ones seem earlier where the ledger's clock was set back.
    begun = (ledger.started_of(call.id) for call in calls)
    since = [min(some, key=lambda one: one.attempt).at for some in begun if some]
    if since and (kept.first_sent_at is None or kept.first_sent_at > min(since)):
        told = kept.first_sent_at.isoformat() if kept.first_sent_at else "never"
        yield _names(used[0], f"its key is told to have been sent first {told}, not {min(since).isoformat()}")
    holder = ledger.calls.get(kept.call) if kept.call is not None else None
    if holder is not None and holder.operation == key:
        yield from _held(holder, kept)
    elif used and (holder is not None or kept.call is None or ledger.tables.whole):
        yield _names(used[0], f"its key is held by {kept.call or 'nobody'}, which is no call of it")


def _held(holder: CallRow, kept: OperationRow) -> Iterator[Violation]:
    """The key and the call that holds it."""
    state = C(holder.state)
    if kept.status not in _MAY_BE.get(state, _WHILE_OPEN):
        yield _names(holder, f"its key is {kept.status} although the call is {state}")
    if kept.doubt != holder.doubt:
        yield _names(holder, f"the doubt of its key is {kept.doubt}, its own is {holder.doubt}")
    if state in ENDED and kept.receipt != holder.receipt:
        yield _names(holder, f"its key has receipt {kept.receipt}, the call {holder.receipt}")


def _names(call: CallRow, text: str) -> Violation:
    return Violation(
        f"run {call.run}: {call.named}: {text}", call.tenant, call.run, call.id, key=call.operation
    )
