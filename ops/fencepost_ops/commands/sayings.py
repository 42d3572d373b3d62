"""What each event says beyond its name, in a few words. Pure; survives events of any version."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from fencepost.canonical import sanitize
from fencepost.clock import NEVER, parse_rfc3339
from fencepost.events import Event, EventType
from fencepost_ops.commands.durations import spoken
from fencepost_ops.commands.output import one_line

_TEXT: Final = 160  # characters of one stored text in a line
E = EventType
Saying = Callable[[Event, Mapping[str, Any]], str]


def detail(event: Event) -> str:
    """What an event says beyond its name, in a few words."""
    data = event.data
    saying = _DETAILS.get(event.type, _words)
    try:
        return cut(saying(event, data))
    except (KeyError, TypeError):  # written by a version that said other things
        return cut(event.body)


def cut(text: object) -> str:
    """A stored text as part of one line."""
    return one_line(sanitize(text, _TEXT)).strip()


def of(tenant: str | None) -> str:
    """Whose what is listed is, where one tenant was asked for: a name with a slip in it has nothing."""
    return "" if tenant is None else f" of tenant {cut(tenant)}"


def _words(_: Event, data: Mapping[str, Any]) -> str:
    """The fields that explain most events, in the order a sentence would name them."""
    said = []
    for name in ("to", "code", "message", "reason", "detail", "proof", "receipt"):
        if data.get(name) not in (None, ""):
            label = "" if name in ("to", "code", "message", "reason", "detail") else f"{name} "
            said.append(f"{label}{data[name]}")
    return ": ".join(said[:2]) + "".join(f", {word}" for word in said[2:])


def _after(event: Event, data: Mapping[str, Any], name: str) -> str:
    moment = parse_rfc3339(data[name])
    if moment >= NEVER:
        return "never by itself"
    return f"in {spoken(moment - event.recorded_at)}" if moment > event.recorded_at else "at once"


def _proposed(_: Event, data: Mapping[str, Any]) -> str:
    offsets = "offsets an effect: " if data.get("compensates") else ""
    return f"{offsets}{data['arguments']}"


def _attempted(event: Event, data: Mapping[str, Any]) -> str:
    repeat = ", a repeat under the same key" if data.get("repeat") else ""
    return f"{_after(event, data, 'deadline').removeprefix('in ')} to answer{repeat}"


def _failed(event: Event, data: Mapping[str, Any]) -> str:
    end = "final" if data["final"] else f"again {_after(event, data, 'ready_at')}"
    return f"{_words(event, {k: data[k] for k in ('code', 'message') if k in data})} ({end})"


def _later(event: Event, data: Mapping[str, Any]) -> str:
    waits = "waits for another call of its key" if data.get("waits") else ""
    return "; ".join(filter(None, [waits, _words(event, data), f"due {_after(event, data, 'ready_at')}"]))


def _looked_up(event: Event, data: Mapping[str, Any]) -> str:
    try:
        answer = json.loads(data["lookup"])
    except (ValueError, TypeError):
        return str(data.get("lookup"))
    if not isinstance(answer, dict):
        return str(answer)
    said = [str(answer[name]) for name in ("answer", "receipt", "detail") if answer.get(name)]
    return f"{', '.join(said)}; due {_after(event, data, 'ready_at')}"


def _filed(_: Event, data: Mapping[str, Any]) -> str:
    receipt = f", receipt {data['receipt']}" if data["receipt"] else ""
    return f"applied{receipt}" if data["applied"] else f"not applied: {data['code']}"


def _stopped(_: Event, data: Mapping[str, Any]) -> str:
    offset, left = data.get("offset") or [], data.get("not_offset") or []
    return f"{len(offset)} offset, {len(left)} not offset" if offset or left else ""


def _asked(event: Event, data: Mapping[str, Any]) -> str:
    asked = data["asked"]
    within = _after(event, asked, "expires_at").removeprefix("in ")
    return f"{asked['count']} to approve it within {within}: {asked['reason']}"


def _answered(_: Event, data: Mapping[str, Any]) -> str:
    if "decision" not in data:
        return str(data["message"])
    word = data["decision"]
    said = f"{word['who']} {'approved' if word['approve'] else 'denied'} it: {word['reason']}"
    return said + ("; another person has to" if data["to"] == "AWAITING_APPROVAL" else "")


_DETAILS: Final[Mapping[str, Saying]] = {
    E.RUN_CREATED: lambda _, data: f"{data['planner']} v{data['planner_version']}",
    E.LEASE_ACQUIRED: lambda _, data: f"fence {data['fence']}",
    E.MODEL_REQUEST_STARTED: lambda _, data: f"turn {data['turn']}",
    E.MODEL_RESPONSE_RECORDED: lambda _, data: (
        f"turn {data['turn']}, {data['proposals']} proposed"
        + (f"; {data['objection']}" if data["objection"] else "")
    ),
    E.RUN_COMPLETED: lambda _, data: data["preview"] or "",
    E.RUN_REPINNED: lambda _, data: f"version {data['from']} to {data['to']}: {data['reason']}",
    E.COMPENSATION_REQUESTED: lambda _, data: f"{data['effects']} effects to offset",
    E.RUN_STOPPED: _stopped,
    E.TOOL_PROPOSAL_RECORDED: _proposed,
    E.ARGUMENTS_CANONICALIZED: lambda _event, _data: "",
    E.AUTHORIZATION_ALLOWED: lambda _, data: f"{data['phase']}: {data['reason']}",
    E.AUTHORIZATION_DENIED: lambda _, data: f"{data['phase']}: {data['message']}",
    E.APPROVAL_REQUESTED: _asked,
    E.APPROVAL_DECIDED: _answered,
    E.DISPATCH_INTENT_RECORDED: _later,
    E.DISPATCH_DEFERRED: _later,
    E.RECONCILIATION_DEFERRED: _later,
    E.PLAN_DEFERRED: _later,
    E.MODEL_PASSED_OVER: lambda _, data: data["reason"],
    E.RESULT_REUSED: lambda _, data: f"receipt {data['receipt']} of call {data['from']}",
    E.TOOL_ATTEMPT_STARTED: _attempted,
    E.TOOL_RESULT_RECORDED: lambda _, data: f"receipt {data['receipt']}" if data["receipt"] else "",
    E.TOOL_ATTEMPT_FAILED: _failed,
    E.TOOL_LOOKUP_RECORDED: _looked_up,
    E.EVIDENCE_FILED: _filed,
    E.REPAIR_PROPOSED: lambda _, data: f"{data['decision']} asked for by {data['by']}: {data['reason']}",
    E.CHILD_RUN_STARTED: lambda _, data: f"run {data['child']} of {data['planner']} v{data['version']}",
    E.CHILD_RUN_SETTLED: lambda _, data: f"run {data['child']} {data['status']}: {data['to']}",
    E.CALL_DETACHED: lambda _, data: data["reason"],
    E.CALL_AWAITED: lambda _, data: data["reason"],
    E.LEDGER_RESTORED: lambda _, data: f"to {data['since']}, epoch {data['epoch']}: its holder is refused",
    E.HIDDEN_RETRY_SEEN: lambda _, data: f"{data['requests']} requests in one attempt: something sends again",
}
