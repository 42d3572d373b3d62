"""The authority of one call in sentences: who asked, what was decided by whom, and what came of it.

Pure, and from the events of its run alone: what the rows say now is not looked at. An event of a type or form
that this version does not know is told by its name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from fencepost.allowances import spelled
from fencepost.authority import UNKNOWN_POLICY
from fencepost.canonical import sanitize
from fencepost.clock import NEVER, parse_rfc3339, rfc3339
from fencepost.events import Event, EventType
from fencepost.wire import StoredRequest
from fencepost_ops.commands.asked import amount, exact, persons
from fencepost_ops.commands.durations import spoken
from fencepost_ops.commands.output import unbroken

E = EventType
_TEXT: Final = 300  # characters of one stored text in a sentence
_ARGUMENTS: Final = 4000

STEPS: Final = {
    1: "schema and size",
    2: "known tool and version",
    3: "canonical arguments",
    4: "tenant and resource binding",
    5: "the tool's own checks",
    6: "authorisation and approval",
    7: "the state of its key",
    8: "the budget of dispatches",
}


@dataclass(frozen=True, slots=True)
class Sentence:
    """What one event says of the call: its number, when it was recorded, and by whom or what."""

    seq: int
    at: datetime
    event: str
    by: str
    text: str


Data = Mapping[str, Any]
Telling = Callable[[Event, Data], str]


def explain(events: Sequence[Event], call: UUID) -> list[Sentence]:
    """The chain of sentences, in order; empty where the events know no such call."""
    if not any(event.call == call for event in events):
        return []
    told: list[Sentence] = []
    turn = _turn(events, call)
    processes = _processes(events)
    for event in events:
        data = event.data
        if event.call is not None and event.call != call:
            continue
        telling = _OF_CALL.get(event.type) if event.call == call else _OF_RUN.get(event.type)
        if event.call is None and (telling is None or not _concerns(event, data, turn)):
            continue
        told.append(_sentence(event, data, telling, processes))
    return told


def _processes(events: Sequence[Event]) -> dict[str, str]:
    """Which process each owner of a term was an execution of."""
    leases = (event.data for event in events if event.type == E.LEASE_ACQUIRED)
    return {str(one.get("owner")): str(one["worker"])[:8] for one in leases if one.get("worker")}


def _turn(events: Sequence[Event], call: UUID) -> int | None:
    proposed = next((e for e in events if e.call == call and e.type == E.TOOL_PROPOSAL_RECORDED), None)
    return proposed.data.get("turn") if proposed is not None else None


def _concerns(event: Event, data: Data, turn: int | None) -> bool:
    """Of the run: what created and ended it, and the turn in which the call was proposed."""
    return event.type not in {E.MODEL_REQUEST_STARTED, E.MODEL_RESPONSE_RECORDED} or data.get("turn") == turn


def _sentence(event: Event, data: Data, telling: Telling | None, processes: Mapping[str, str]) -> Sentence:
    try:
        text = telling(event, data) if telling is not None else f"{event.type}."
    except (KeyError, TypeError, ValueError, AttributeError):  # of a version that said other things
        text = f"{event.type}: {sanitize(event.body, _TEXT)}"
    if event.worker is None:
        by = sanitize(event.principal, 80)
    else:
        process = f"process {known}, " if (known := processes.get(event.worker)) else ""
        by = f"{process}term {event.worker[:6]}/{event.fence}"
    return Sentence(event.seq, event.recorded_at, event.type, by, text)


def lines(told: Sequence[Sentence]) -> Iterator[str]:
    """The sentences for people: number of the event, when, what, and by whom."""
    first = told[0].at
    for one in told:
        since = f"+{(one.at - first).total_seconds():.3f}"
        yield f"{one.seq:>4} {since:>10}  {unbroken(one.text)}  [{unbroken(one.by)}]"


# -- what each event says ----------------------------------------------------------------------------------


def _said(text: object, limit: int = _TEXT) -> str:
    return exact(sanitize(text, limit))


def _until(event: Event, text: str) -> str:
    moment = parse_rfc3339(text)
    if moment >= NEVER:
        return "when a person acts"
    ahead = moment - event.recorded_at
    return f"{rfc3339(moment)} ({spoken(ahead)} later)" if ahead.total_seconds() > 0 else "at once"


def _created(event: Event, data: Data) -> str:
    run = f"Run {_said(data['run_key'])} ({event.run}) was asked for in tenant {_said(event.tenant)}"
    planner = f"planner {_said(data['planner'])} v{data['planner_version']}"
    born = "; its input came from outside, so it is tainted from the start" if data.get("untrusted") else ""
    whose = f"under the authority of {_said(event.principal)}"
    return f"{run} {whose}: {planner}, until {_until(event, data['deadline'])}{born}."


def _turn_recorded(_: Event, data: Data) -> str:
    kept = f"; its raw answer is kept as {data['answer']}" if data.get("answer") else ""
    return (
        f"Turn {data['turn']} was recorded: {data['proposals']} proposed{kept}. It is never asked for again."
    )


def _proposed(_: Event, data: Data) -> str:
    label = f", labelled {_said(data['label'])}" if data.get("label") else ""
    offsets = ", to offset the effect of another call" if data.get("compensates") else ""
    what = f"{_said(data['tool'])} v{data['tool_version']} ({data['effect']})"
    place = f"as step {data['ordinal']} of turn {data['turn']}{label}{offsets}"
    key = f" Its operation key is {data['operation']}." if data.get("operation") else ""
    return f"It was proposed: {what}, {place}, with arguments {_said(data['arguments'], _ARGUMENTS)}.{key}"


def _valid(_: Event, data: Data) -> str:
    passed = ", ".join(f"({n}) {STEPS[n]}" for n in range(1, 6))
    return f"Steps {passed} found it valid; the hash of its canonical arguments is {data['arguments_hash']}."


def _rejected(_: Event, data: Data) -> str:
    step = data["step"]
    what = STEPS.get(step, "a step this version does not know")
    return f"Step {step} ({what}) refused it, {_said(data['message'])}. Nothing was sent."


def _who(data: Data) -> str:
    roles = f", with the roles {_said(', '.join(data['roles']))}" if data.get("roles") else ""
    links = f", by delegation {_said(', '.join(data['delegation']))}" if data.get("delegation") else ""
    return roles + links


def _evidence(event: Event, data: Data) -> str:
    if event.policy in (None, UNKNOWN_POLICY):
        return "no policy answered"
    deciding = f", decided by {_said(', '.join(data['deciding']))}" if data.get("deciding") else ""
    digests = "".join(f", {name} {str(value)[:16]}" for name, value in (data.get("digests") or {}).items())
    return f"policy {_said(event.policy)}{deciding}{digests}"


_PHASES: Final = {"recording": "as it was recorded", "claim": "in the claim that sends it"}


def _allowed(event: Event, data: Data) -> str:
    when = _PHASES.get(data["phase"], data["phase"])
    return f"Step 6, {when}: allowed for {_said(event.principal)}{_who(data)}; {_evidence(event, data)}."


def _denied(event: Event, data: Data) -> str:
    when = _PHASES.get(data["phase"], data["phase"])
    message = _said(data["message"])
    code = f" ({data['code']})" if data.get("code") and data["code"] not in message else ""
    return f"Step 6, {when}: denied{code}: {message}; {_evidence(event, data)}."


def _requested(event: Event, data: Data) -> str:
    asked = data["asked"]
    what = f"{persons(asked['count'])} to approve exactly these arguments"
    if asked.get("request_digest"):
        what += f" and this request ({asked['request_digest'][:16]})"
    moved = f", which moves {amount(asked['amount'])}" if asked.get("amount") else ""
    taint = f"; the run was tainted by event {asked['tainted']}" if asked.get("tainted") is not None else ""
    when = _PHASES.get(data["phase"], data["phase"])
    until = f"until {_until(event, asked['expires_at'])}"
    why = f"{_said(data['reason'])}{taint}; {_evidence(event, data)}"
    return f"Step 6, {when}: it takes {what}{moved}, {until}: {why}."


def _decided(_: Event, data: Data) -> str:
    if "decision" not in data:
        return f"Nobody approved it in time: {_said(data['message'])}. Nothing was sent."
    word = data["decision"]
    what = "approved" if word["approve"] else "denied"
    authority = f"policy {_said(word.get('policy', '?'))}"
    if word.get("deciding"):
        authority += f", decided by {_said(', '.join(word['deciding']))}"
    who = f"{_said(word['who'])} (login {_said(word['login'])})"
    who += _who({"roles": word.get("roles"), "delegation": word.get("links")})
    then = {"AWAITING_APPROVAL": " Another person has to as well.", "REJECTED": " Nothing was sent."}
    return f"{who} {what} it: {_said(word['reason'])}; may do so by {authority}.{then.get(data['to'], '')}"


def _intended(event: Event, data: Data) -> str:
    if data["waits"]:
        return "It is to be dispatched once the call that holds its key has settled."
    return f"It is to be dispatched, {_until(event, data['ready_at'])}."


def _deferred(event: Event, data: Data) -> str:
    if "held" in data:
        until = _until(event, data["ready_at"])
        return f"It is held until a person pins what its MCP server offers now; looked at again {until}."
    why = (
        "another call holds its key or resource"
        if data.get("waits")
        else _said(data.get("reason") or "not yet")
    )
    return f"It was put off until {_until(event, data['ready_at'])}: {why}."


def _leased(_: Event, data: Data) -> str:
    return f"A process took it under fence {data['fence']}."


def _started(event: Event, data: Data) -> str:
    repeat = ", a repeat under the same key," if data.get("repeat") else ""
    held = "".join(f" It holds {_share(share)}." for share in data.get("reserved") or ())
    request = f" It sends {_request(data['request'])}." if data.get("request") else ""
    digest = f" The request's fingerprint is {data['fingerprint'][:16]}." if data.get("fingerprint") else ""
    whose = f"{_said(event.principal)}, these arguments and this attempt alone, and ends with it"
    may = f" Its capability is for {whose}." if data.get("capability") else ""
    number = f"Attempt {event.attempt}{repeat} was committed before anything was sent"
    return f"{number}, to be answered by {_until(event, data['deadline'])}.{request}{digest}{held}{may}"


def _share(share: Data) -> str:
    money = f" and {spelled(share['minor'], share['currency'])}" if share.get("currency") else ""
    calls = "1 call" if share["count"] == 1 else f"{share['count']} calls"
    window = f" in the window until {share['until']}" if share.get("until") else ""
    return f"{calls}{money} of allowance {_said(share['allowance'])}{window}"


def _request(text: str) -> str:
    stored = StoredRequest.from_text(text)
    return f"{stored.method} {_said(stored.target)}, {len(stored.body)} bytes"


def _succeeded(event: Event, data: Data) -> str:
    receipt = f", receipt {_said(data['receipt'])}" if data["receipt"] else ""
    taint = " Nobody vouches for what it brought: the run is tainted." if data.get("untrusted") else ""
    return f"Attempt {event.attempt} was answered: it was applied{receipt}.{taint}"


def _failed(event: Event, data: Data) -> str:
    then = "that is final" if data["final"] else f"to be tried again at {_until(event, data['ready_at'])}"
    what = f"{data['code']}: {_said(data['message'])}"
    return f"Attempt {event.attempt} is known to have had no effect, {what}; {then}."


def _unknown(event: Event, data: Data) -> str:
    which = f"of attempt {event.attempt} " if event.attempt is not None else ""
    what = f"{data['code']}: {_said(data['message'])}"
    return f"The outcome {which}is unknown, {what}. Only proof that speaks for its key settles it."


def _looked_up(_: Event, data: Data) -> str:
    answer = json.loads(data["lookup"])
    said = ", ".join(_said(answer[name]) for name in ("receipt", "detail") if answer.get(name))
    return f"The downstream was asked about its key: {answer['answer']}{f' ({said})' if said else ''}."


def _reconciled(_: Event, data: Data) -> str:
    receipt = f", receipt {_said(data['receipt'])}" if data.get("receipt") else ""
    return f"It was reconciled as {data['to']}, proved by {_said(data['proof'])}{receipt}."


def _repair(_: Event, data: Data) -> str:
    return f"A person has to settle it: {_said(data['reason'])}."


def _person(event: Event, data: Data) -> str:
    login = f" (login {_said(data['login'])})" if data.get("login") else ""
    who = f"{_said(event.principal)}{login}"
    first = data.get("asked")
    both = f", as {_said(first['by'])} (login {_said(first['login'])}) had asked for" if first else ""
    receipt = f", receipt {_said(data['receipt'])}" if data.get("receipt") else ""
    if "offset" in data:
        word = "is to be offset once more" if data["offset"] == "again" else "stays as it is"
        return f"{who} decided that its effect {word}: {_said(data['reason'])}."
    if data.get("release"):
        return f"{who} decided that its key may be used again: {_said(data['reason'])}."
    return f"{who} decided that it is {data['to']}{receipt}{both}: {_said(data['reason'])}."


def _proposal(_: Event, data: Data) -> str:
    who = f"{_said(data['by'])} (login {_said(data['login'])})"
    what = f"the decision {data['decision']}, which another person confirms"
    return f"{who} asked for {what}: {_said(data['reason'])}."


def _filed(event: Event, data: Data) -> str:
    what = "it was applied" if data["applied"] else f"it was not applied ({data['code']})"
    receipt = f", receipt {_said(data['receipt'])}" if data.get("receipt") else ""
    return f"A worker whose term was over filed evidence of attempt {event.attempt}: {what}{receipt}."


def _reused(_: Event, data: Data) -> str:
    return f"The result of call {data['from']} was taken, which has its key: nothing was sent."


_OF_RUN: Final[Mapping[str, Telling]] = {
    E.RUN_CREATED: _created,
    E.MODEL_RESPONSE_RECORDED: _turn_recorded,
    E.CANCEL_REQUESTED: lambda event, data: (
        f"{_said(event.principal)} cancelled the run: {_said(data['reason'])}."
    ),
    E.RUN_REPINNED: lambda event, data: (
        f"{_said(event.principal)} (login {_said(data['login'])}) had version {data['to']} of its planner "
        f"take the place of version {data['from']}: {_said(data['reason'])}."
    ),
    E.RUN_STOPPING: lambda _, data: f"The run stops, {data['reason']}: {_said(data.get('detail') or '')}.",
}
_OF_CALL: Final[Mapping[str, Telling]] = {
    E.TOOL_PROPOSAL_RECORDED: _proposed,
    E.ARGUMENTS_CANONICALIZED: _valid,
    E.PROPOSAL_REJECTED: _rejected,
    E.AUTHORIZATION_ALLOWED: _allowed,
    E.AUTHORIZATION_DENIED: _denied,
    E.APPROVAL_REQUESTED: _requested,
    E.APPROVAL_DECIDED: _decided,
    E.DISPATCH_INTENT_RECORDED: _intended,
    E.DISPATCH_DEFERRED: _deferred,
    E.LEASE_ACQUIRED: _leased,
    E.RESULT_REUSED: _reused,
    E.TOOL_ATTEMPT_STARTED: _started,
    E.TOOL_RESULT_RECORDED: _succeeded,
    E.TOOL_ATTEMPT_FAILED: _failed,
    E.TOOL_OUTCOME_MARKED_UNKNOWN: _unknown,
    E.TOOL_LOOKUP_RECORDED: _looked_up,
    E.RECONCILIATION_DEFERRED: _deferred,
    E.TOOL_EFFECT_RECONCILED: _reconciled,
    E.REPAIR_REQUESTED: _repair,
    E.REPAIR_DECIDED: _person,
    E.REPAIR_PROPOSED: _proposal,
    E.EVIDENCE_FILED: _filed,
    E.HIDDEN_RETRY_SEEN: lambda _, data: (
        f"Something sent it again behind our back: {data['requests']} requests."
    ),
    E.CALL_CANCELLED: lambda _, data: f"It was cancelled before it was sent: {_said(data['reason'])}.",
    E.CHILD_RUN_STARTED: lambda _, data: (
        f"It started run {data['child']} of planner {data['planner']} v{data['version']}, which may take"
        f" until {data['deadline']}."
    ),
    E.CHILD_RUN_SETTLED: lambda _, data: (
        f"Its run {data['child']} is {data['status']}: that settled it as {data['to']}."
    ),
    E.CALL_DETACHED: lambda _, data: (
        f"The run goes on without it: {_said(data['reason'])}"
        + ("; its own run is told to stop." if data["stop"] else ".")
    ),
    E.CALL_AWAITED: lambda _, data: f"It is waited for after all: {_said(data['reason'])}.",
}
