"""Why a history came out as it did, in sentences: from its events and the services' own books alone. Pure.

Nothing is said that no event and no book says; a type of event this module does not know is told by its name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from fencepost.canonical import sanitize
from fencepost.events import EventType

_REFUSED: Final = 400  # statuses from here on
_TEXT: Final = 200  # characters of one stored text in a sentence
E = EventType


@dataclass(frozen=True, slots=True)
class Noted:
    """One event of the ledger, at seconds of the history; `by` names the process that held the term."""

    run: str
    seq: int
    at_s: float
    type: str
    call: str | None = None
    attempt: int | None = None
    fence: int | None = None
    by: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)

    @property
    def named(self) -> str:
        """`event 11 (ToolAttemptStarted)`."""
        return f"event {self.seq} ({self.type})"


@dataclass(frozen=True, slots=True)
class Booked:
    """One entry of a service's own book: an effect, which has a receipt, or a request that arrived."""

    service: str
    at_s: float
    key: str | None
    receipt: str | None = None
    status: int | None = None
    call: str | None = None
    attempt: int | None = None
    event: int | None = None
    """The number of the event by which its attempt was committed."""

    @property
    def named(self) -> str:
        """`receipt wallet-1 (attempt 1, event 11)`."""
        known = [f"{what} {n}" for what, n in (("attempt", self.attempt), ("event", self.event)) if n]
        return f"receipt {self.receipt}" + (f" ({', '.join(known)})" if known else "")


# -- one event ------------------------------------------------------------------------------------------


def told(event: Noted) -> str:
    """One event as a sentence without its full stop."""
    saying = _SAYINGS.get(event.type)
    try:
        text = saying(event, event.data) if saying is not None else event.type
    except (KeyError, TypeError, ValueError):  # of a version that says other things
        text = event.type
    return f"{sanitize(text, _TEXT)} [event {event.seq}]"


def _unknown(event: Noted, data: Mapping[str, Any]) -> str:
    if data.get("lost"):
        return f"attempt {event.attempt} became UNKNOWN: its worker was lost, which proves nothing"
    return f"attempt {event.attempt} became UNKNOWN, not failed: {data['message']}"


def _looked_up(_: Noted, data: Mapping[str, Any]) -> str:
    lookup = json.loads(data["lookup"]) if isinstance(data["lookup"], str) else data["lookup"]
    if lookup["answer"] == "found":
        return f"the lookup by key found receipt {lookup['receipt']}"
    if lookup["answer"] == "absent":
        return "the lookup by key found nothing"
    return f"the lookup by key gave no clear answer: {lookup.get('detail') or lookup['answer']}"


def _attempted(event: Noted, data: Mapping[str, Any]) -> str:
    if data.get("repeat"):
        return f"the stored request was repeated under the same key, as attempt {event.attempt}"
    return f"attempt {event.attempt} was committed before anything was sent"


def _filed(event: Noted, data: Mapping[str, Any]) -> str:
    said = f"receipt {data['receipt']}" if data.get("receipt") else str(data.get("code") or "no effect")
    return f"the late answer of attempt {event.attempt}, {said}, was filed as evidence: its term was over"


def _failed(event: Noted, data: Mapping[str, Any]) -> str:
    then = "for good" if data.get("final") else "to be tried again"
    return f"attempt {event.attempt} was answered {data['code']}, which proves that it had no effect: {then}"


def _stopped(_: Noted, data: Mapping[str, Any]) -> str:
    left = len(data.get("not_offset") or ())
    return f"the run stopped, {len(data.get('offset') or ())} effects offset, {left} not"


_SAYINGS: Final[Mapping[str, Callable[[Noted, Mapping[str, Any]], str]]] = {
    E.RUN_CREATED: lambda _e, _d: "the run was committed together with its outbox row",
    E.LEASE_ACQUIRED: lambda e, _d: f"{e.by or 'a worker'} took it over under fence {e.fence}",
    E.MODEL_REQUEST_STARTED: lambda _e, d: f"the planner was asked for turn {d['turn']}",
    E.MODEL_RESPONSE_RECORDED: lambda _e, d: f"turn {d['turn']} was recorded with {d['proposals']} proposals",
    E.MODEL_OUTCOME_UNKNOWN: lambda _e, _d: (
        "what the planner had answered was lost, so that it is asked again"
    ),
    E.RUN_COMPLETED: lambda _e, _d: "the run completed",
    E.RUN_STOPPING: lambda _e, d: f"the run was stopped: {d['reason']}",
    E.RUN_STOPPED: _stopped,
    E.COMPENSATION_REQUESTED: lambda _e, d: f"{d['effects']} effects are to be offset",
    E.COMPENSATION_DEFERRED: lambda _e, d: f"offsetting waited: {d['reason']}",
    E.PLAN_DEFERRED: lambda _e, d: f"its model was not asked yet: {d['reason']}",
    E.MODEL_PASSED_OVER: lambda _e, d: f"the next model was asked instead: {d['reason']}",
    E.CANCEL_REQUESTED: lambda _e, _d: "somebody asked for the run to be cancelled",
    E.PROPOSAL_REJECTED: lambda _e, d: (
        f"the proposal was refused before it was an intent: {d.get('message') or d.get('code')}"
    ),
    E.AUTHORIZATION_DENIED: lambda _e, d: f"its principal was not allowed to: {d.get('reason')}",
    E.DISPATCH_DEFERRED: lambda _e, d: f"it was not sent yet: {d.get('reason')}",
    E.DISPATCH_INTENT_RECORDED: lambda _e, _d: "the intent was recorded with its key",
    E.RESULT_REUSED: lambda _e, d: (
        f"another call of this key had succeeded, and its receipt {d.get('receipt')} was used"
    ),
    E.TOOL_ATTEMPT_STARTED: _attempted,
    E.TOOL_RESULT_RECORDED: lambda e, d: f"attempt {e.attempt} was answered with receipt {d['receipt']}",
    E.TOOL_ATTEMPT_FAILED: _failed,
    E.TOOL_OUTCOME_MARKED_UNKNOWN: _unknown,
    E.TOOL_LOOKUP_RECORDED: _looked_up,
    E.RECONCILIATION_DEFERRED: lambda _e, d: f"the reconciler waited: {d['reason']}",
    E.TOOL_EFFECT_RECONCILED: lambda _e, d: f"it was settled as {d['to']}: {d['proof']}",
    E.REPAIR_REQUESTED: lambda _e, d: f"it was handed to a person: {d['reason']}",
    E.REPAIR_DECIDED: lambda _e, d: f"a person decided: {d.get('decision') or d.get('to')}",
    E.EVIDENCE_FILED: _filed,
    E.HIDDEN_RETRY_SEEN: lambda e, _d: f"attempt {e.attempt} was put on the wire more than once",
    E.CALL_CANCELLED: lambda _e, _d: "it was cancelled before it was ever sent",
    E.CHILD_RUN_STARTED: lambda _e, d: f"it started a run of {d['planner']}, in the same change",
    E.CHILD_RUN_SETTLED: lambda _e, d: f"its run is {d['status']}, which settled it as {d['to']}",
    E.CALL_DETACHED: lambda _e, d: f"its run went on without it: {d['reason']}",
    E.CALL_AWAITED: lambda _e, _d: "its run waits for it after all",
}

_PLAIN: Final = frozenset({E.TOOL_PROPOSAL_RECORDED, E.ARGUMENTS_CANONICALIZED, E.AUTHORIZATION_ALLOWED})
"""Steps every call passes; they explain nothing."""


def followed(events: Sequence[Noted], run: str, call: str | None, after: int) -> Iterator[str]:
    """What the ledger recorded of a struck call, or of a run, once the fault had struck it."""
    fence: int | None = None
    for event in events:
        mine = event.run == run and event.call == call and event.seq > after
        if not mine or event.type in _PLAIN:
            continue
        if event.type == E.LEASE_ACQUIRED:
            if event.fence == fence:
                continue
            fence = event.fence
        yield told(event)


_HOLDS: Final[Mapping[str, str]] = {
    E.RUN_CREATED: "everything that was asked for",
    E.MODEL_REQUEST_STARTED: "that the planner was asked, and until when",
    E.MODEL_OUTCOME_UNKNOWN: "that an answer was lost",
    E.MODEL_RESPONSE_RECORDED: "the planner's answer",
    E.DISPATCH_INTENT_RECORDED: "the intent and its key, and nothing had been sent",
    E.DISPATCH_DEFERRED: "the intent and its key, and nothing had been sent",
    E.PLAN_DEFERRED: "when its model may be asked again, and nothing had been sent",
    E.LEASE_ACQUIRED: "who held it, under which fence",
    E.TOOL_ATTEMPT_STARTED: "the exact request, its key and its deadline",
    E.TOOL_RESULT_RECORDED: "the receipt",
    E.TOOL_ATTEMPT_FAILED: "the proof that there was no effect",
    E.TOOL_OUTCOME_MARKED_UNKNOWN: "that nobody knows, and until when it is to be found out",
    E.TOOL_LOOKUP_RECORDED: "what the service said when it was asked",
    E.RECONCILIATION_DEFERRED: "when it is looked at again",
    E.TOOL_EFFECT_RECONCILED: "what was established, and by which proof",
    E.RUN_STOPPING: "that the run stops, and why",
    E.COMPENSATION_REQUESTED: "which effects are to be offset",
    E.COMPENSATION_DEFERRED: "which effects are to be offset",
    E.EVIDENCE_FILED: "an answer that came after its term",
    E.CHILD_RUN_STARTED: "the run it started, and what that may use",
    E.CHILD_RUN_SETTLED: "what became of the run it had started",
    E.CALL_DETACHED: "that its run went on without it",
    E.CALL_AWAITED: "that its run waits for it",
}


def held_by(record: str | None) -> str | None:
    """What the last committed event before a fault holds, `record` as `Type (event n)`."""
    return _HOLDS.get(record.partition(" ")[0]) if record else None


# -- one key --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Key:
    """One call: its events, and what the service's own book says of its key."""

    label: str
    state: str
    kind: str
    attempts: int
    effects: tuple[Booked, ...]
    requests: tuple[Booked, ...]
    events: tuple[Noted, ...] = ()


def why_one(key: Key) -> str:
    """Why its key had the effects it had, as a sentence without its full stop."""
    return "; ".join(filter(None, [_had(key), settled_by(key)]))


def _had(key: Key) -> str:
    if len(key.effects) > 1:
        each = ", ".join(one.named for one in key.effects)
        return f"{len(key.effects)} effects under one key: {each}"
    if not key.attempts:
        return f"it is {key.state}: no attempt was begun, so that nothing was ever sent"
    if not key.requests:
        return f"{_count(key.attempts, 'attempt')} begun, and no request reached the service"
    arrived = f"{_count(len(key.requests), 'request')} arrived"
    if not key.effects:
        answers = ", ".join(sorted({str(one.status) for one in key.requests}))
        return f"{arrived} and had no effect (answered {answers})"
    effect = key.effects[0]
    if len(key.requests) == 1:
        return f"{arrived}, and had one effect: {effect.named}"
    others = [one for one in key.requests if (one.call, one.attempt) != (effect.call, effect.attempt)]
    if key.kind == "dedupes":
        how = "which the service knew again"
    elif all(one.status is not None and one.status >= _REFUSED for one in others):
        how = "all but one refused"
    else:
        how = "and the same again changed nothing"
    return f"{arrived} under one key, {how}: one effect, {effect.named}"


def settled_by(key: Key) -> str | None:
    """By which fact it was settled, or given to a person; None where its first answer settled it."""
    for event in reversed(key.events):
        deciding = _DECIDING.get(event.type)
        if deciding is not None:
            try:
                return deciding(event, key)
            except (KeyError, TypeError, ValueError):  # of a version that says other things
                return None
    return None


def _reconciled(event: Noted, _: Key) -> str:
    proof, receipt = str(event.data["proof"]), event.data.get("receipt")
    if event.data["to"] != "SUCCEEDED":
        return f"that nothing happened is proved: {proof}"
    if "lookup" in proof:
        return f"it was not sent again, for the lookup by key found receipt {receipt}"
    return f"it was not sent again, for {proof} brought receipt {receipt}"


def _answered(event: Noted, key: Key) -> str | None:
    started = [e for e in key.events if e.type == E.TOOL_ATTEMPT_STARTED and e.attempt == event.attempt]
    if not any(one.data.get("repeat") for one in started):
        return None
    before = [e for e in key.events if e.seq < started[0].seq]
    if any(e.type == E.TOOL_LOOKUP_RECORDED and '"absent"' in str(e.data.get("lookup")) for e in before):
        return "it was sent again only when the lookup by key had proved the first absent"
    first = next((one for one in key.effects if one.receipt == event.data["receipt"]), None)
    if first is not None and first.attempt not in (None, event.attempt):
        return f"the stored request was repeated, and the answer was the receipt of attempt {first.attempt}"
    return "the stored request was repeated under the same key"


_DECIDING: Final[Mapping[str, Callable[[Noted, Key], str | None]]] = {
    E.TOOL_EFFECT_RECONCILED: _reconciled,
    E.TOOL_RESULT_RECORDED: _answered,
    E.TOOL_ATTEMPT_FAILED: lambda _e, _k: "its answer proved that nothing happened",
    E.REPAIR_REQUESTED: lambda e, _k: f"it was not sent again, and a person is asked: {e.data['reason']}",
    E.REPAIR_DECIDED: lambda _e, _k: "a person decided",
    E.RESULT_REUSED: lambda _e, _k: "the receipt of another call of this key was used",
    E.AUTHORIZATION_DENIED: lambda e, _k: f"not allowed: {e.data['reason']}",
    E.PROPOSAL_REJECTED: lambda e, _k: f"refused: {e.data.get('message') or e.data['code']}",
}


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")


# -- what is left ---------------------------------------------------------------------------------------


def command(call: str, state: str, receipt: str | None) -> str:
    """The exact command that settles it, by what the service's own book says."""
    look = f"fencepost unresolved {call}"
    if state != "NEEDS_REPAIR":
        return look
    decision = f"--happened --receipt {receipt}" if receipt else "--did-not-happen"
    return f"fencepost repair {call} {decision} --reason TEXT"
