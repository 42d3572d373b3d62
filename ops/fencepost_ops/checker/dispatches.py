"""I3 and I10: what each attempt was let go by, and for how long.

Asked of each ToolAttemptStarted, with the story as it was just before it. Whether the attempt is a repeat is
judged by the call's doubt, not by what the event says of itself: a repeat is bound by other deadlines.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

from fencepost.states import CallState, RunStatus
from fencepost_ops.checker.bodies import moment
from fencepost_ops.checker.facts import CallRow, EventRow, Key
from fencepost_ops.checker.report import Findings, Violation, at
from fencepost_ops.checker.story import CallStory, RunStory

C, R = CallState, RunStatus

_SENDABLE: Final = frozenset({C.INTENT_RECORDED, C.UNKNOWN})
_ZERO: Final = timedelta(0)


# -- I3 ------------------------------------------------------------------------------------------------


def dispatched(story: RunStory, event: EventRow, body: dict[str, Any]) -> Iterator[Violation]:
    """I3: nothing is sent that is invalid, unauthorised, expired, or of a stale term.

    That a compensation is authorised for itself is I11's.
    """
    call = story.calls.get(event.call) if event.call is not None else None
    if call is None:
        return
    what = f"attempt {event.attempt} of {call.named}"
    for wrong in (
        _state(story, call, body),
        _term(call, event),
        _authority(call, event),
        _approved(call),
        _expired(story, call, event),
        _arguments(call, body),
    ):
        if wrong is not None:
            yield at(event, f"{what} {wrong}", key=call.operation)


def _state(story: RunStory, call: CallStory, body: dict[str, Any]) -> str | None:
    if call.state not in _SENDABLE:
        return f"was started although the call was {call.state}"
    if bool(body.get("repeat")) != call.doubt:
        return f"is told as {'a repeat' if body.get('repeat') else 'a first one'}, which it is not"
    if not _run_allows(story, call):
        return f"was started although the run was {story.status}"
    return None


def _run_allows(story: RunStory, call: CallStory) -> bool:
    """Whether the run was where this call may be sent.

    While a run stops, only a repeat that settles what its downstream deduplicates, and that can be offset.
    """
    if call.compensates:
        return story.status == R.COMPENSATING
    if story.status == R.ACTING:
        return True
    known = call.terms
    settles = known is None or (known.kind == "dedupes" and known.compensable is not False)
    return story.status == R.STOPPING and call.doubt and call.effect == "reversible" and settles


def _term(call: CallStory, event: EventRow) -> str | None:
    if not call.leased:
        return "was started without a term of its own: no lease was acquired since the attempt before it"
    if (event.worker, event.fence) != call.lease:
        owner, fence = call.lease or (None, None)
        return f"was started under fence {event.fence} of {event.worker}; fence {fence} of {owner} held it"
    return None


def _authority(call: CallStory, event: EventRow) -> str | None:
    if call.compensates or call.allowed == event.causation:
        return None
    return "was started without being authorised in its own claim"


def _approved(call: CallStory) -> str | None:
    """Asked is asked: what persons were asked about leaves with so many of them, each under a login of its
    own. Whether an approval had expired by then is the policy's in force: it may have asked for none.
    """
    given = min(len(call.approved), len(set(call.approved.values())))
    if given >= call.asked:
        return None
    return f"was started although {given} of the {call.asked} persons that it takes had approved it"


def _expired(story: RunStory, call: CallStory, event: EventRow) -> str | None:
    own = bool(call.doubt or call.compensates)
    until, whose = (call.reconcile_until, "its own") if own else (story.deadline, "its run's")
    if until is None:
        return f"was started without any deadline: {whose} was never told" if own else None
    if event.recorded_at < until:
        return None
    return f"was started at {event.recorded_at.isoformat()}, {whose} deadline was {until.isoformat()}"


def _arguments(call: CallStory, body: dict[str, Any]) -> str | None:
    if call.canonical is None:
        return "was started although its arguments were never found valid"
    told_otherwise = call.canonical.startswith("1:") and call.canonical != arguments_hash(call.arguments)
    if call.canonical != call.arguments_hash or told_otherwise:
        return "sends other arguments than those that were found valid and authorised"
    told = body.get("fingerprint")
    if told is not None and call.fingerprint is not None and told != call.fingerprint:
        return "sends another request than the first attempt did"
    return None


def arguments_hash(text: str) -> str:
    """What the hash of these canonical arguments must be, by the first version of its rules: SHA-256 of their
    exact text, domain-separated.
    """
    return "1:" + hashlib.sha256(b"fencepost.arguments.v1\0" + str(text).encode()).hexdigest()


def rows(key: Key, calls: Mapping[UUID, CallRow], story: RunStory) -> Iterator[Violation]:
    """I3: the rows hold the very arguments that were authorised; a later attempt would send from them."""
    tenant, run = key
    for call_id in calls.keys() & story.calls.keys():
        row, told = calls[call_id], story.calls[call_id]
        if told.attempts and (row.arguments, row.arguments_hash) != (told.arguments, told.arguments_hash):
            text = f"run {run}: {row.named} no longer has the arguments that were authorised"
            yield Violation(text, tenant, run, call_id, key=row.operation)


# -- I10 -----------------------------------------------------------------------------------------------


def outlives(story: RunStory, event: EventRow, body: dict[str, Any]) -> Iterator[Violation]:
    """I10: a first-time forward attempt is over before the run's deadline, less what is kept for recovery."""
    call = story.calls.get(event.call) if event.call is not None else None
    if call is None or call.doubt or call.compensates or story.deadline is None:
        return
    what, until = f"attempt {event.attempt} of {call.named}", moment(body.get("deadline"))
    if until is None:
        yield at(event, f"{what} has no deadline", key=call.operation)
        return
    reserve = _reserve(call, body.get("reserve_ms"))
    if until > story.deadline - (reserve or _ZERO):
        less = f" less a reserve of {reserve}" if reserve else ""
        text = (
            f"{what} may take until {until.isoformat()}; its run's deadline was {story.deadline.isoformat()}"
        )
        yield at(event, text + less, key=call.operation)


def _reserve(call: CallStory, recorded_ms: object) -> timedelta | None:
    if isinstance(recorded_ms, int):
        return timedelta(milliseconds=recorded_ms)
    return call.terms.reserve if call.terms is not None else None


# -- I9 ------------------------------------------------------------------------------------------------


def limits(key: Key, story: RunStory) -> Iterator[Violation]:
    """I9: no attempt beyond the limit its tool had when it was let go.

    A retry may have been decided under the limit of the attempt before it, and be claimed under a lower one.
    """
    tenant, run = key
    for call in story.calls.values():
        before = 0
        for number, attempt in sorted(call.attempts.items()):
            limit = attempt.limit
            if limit is not None and number > max(limit, before):
                text = f"attempt {number} of {call.named}, whose tool may make {limit}"
                seq = attempt.started.seq
                yield Violation(f"run {run}: {text}", tenant, run, call.id, number, seq, call.operation)
            before = limit or 0


# -- what is not asserted --------------------------------------------------------------------------------


def unasserted(findings: Findings, story: RunStory) -> None:
    """Note which attempts told no limit or no reserve to be judged by, and which a stopping run allowed."""
    for call in story.calls.values():
        tool, known = f"{call.tool} version {call.tool_version}", call.terms
        for attempt in call.attempts.values():
            first = not (attempt.repeat or call.compensates)
            if attempt.limit is None:
                now = (
                    f"; the application loaded now says {known.attempts}" if known and known.attempts else ""
                )
                findings.note("I9", f"attempts of {tool} whose limit was not recorded{now}")
            if attempt.run == R.STOPPING and known is None:
                findings.note("I3", f"whether {tool} may be repeated while its run stops is not known here")
            if first and attempt.reserve is None and (known is None or known.reserve is None):
                findings.note("I10", f"the reserve of {tool} is not known: held against the run's deadline")
