"""What each event changes in its call: one small function per type of event. Pure.

`machine.evolve` applies them, and keeps the run's counters true.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from fencepost import allowances, approvals
from fencepost.clock import NEVER, parse_rfc3339
from fencepost.events import Event, EventType
from fencepost.mcp import CHANGED, not_held
from fencepost.states import CallState
from fencepost.subjects import Call

E, C = EventType, CallState

Changes = dict[str, Any]
"""Names of fields, and what they are after the event."""


@dataclass(frozen=True, slots=True)
class Fact:
    """An event and its parsed body, read once."""

    event: Event
    data: dict[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.data[name]

    @property
    def at(self) -> datetime:
        """When it was recorded."""
        return self.event.recorded_at

    def time(self, name: str) -> datetime:
        """An instant that its body tells."""
        return parse_rfc3339(self.data[name])

    def kept(self, *names: str) -> Changes:
        """These of its body, as they are. KeyError for one that is not there."""
        return {name: self.data[name] for name in names}


def _canonical(_call: Call, _fact: Fact) -> Changes:
    return {"state": C.VALIDATED}


def _leased(_call: Call, fact: Fact) -> Changes:
    ready: Changes = {"ready_at": fact.time("ready_at")} if "ready_at" in fact.data else {}
    return fact.kept("owner", "fence") | ready | _holds(fact)


def _holds(fact: Fact) -> Changes:
    """What a call holds of allowances, where an event that lets nothing go tells it."""
    return {"reserved": allowances.kept(fact["reserved"])} if "reserved" in fact.data else {}


def _call_noted(_call: Call, _fact: Fact) -> Changes:
    return {}


def _put_off(fact: Fact) -> Changes:
    """What a deferral changes; time a dependency was closed also moves the call's own deadline."""
    later = {"reconcile_until": fact.time("reconcile_until")} if "reconcile_until" in fact.data else {}
    return {"owner": None, "ready_at": fact.time("ready_at"), **later, **fact.kept("fence")}


def _deferred(_call: Call, fact: Fact) -> Changes:
    return _put_off(fact) | fact.kept("waits")


def _reconciled_later(_call: Call, fact: Fact) -> Changes:
    return _put_off(fact) | fact.kept("asks")


def _refused(call: Call, fact: Fact) -> Changes:
    if call.state == C.UNKNOWN:  # a denial leaves a doubtful call where it is (R3)
        return {"error": fact["message"]}
    fence = fact.data.get("fence", call.fence)
    return {"state": C.REJECTED, "owner": None, "fence": fence, "error": fact["message"]}


def _allowed(call: Call, _fact: Fact) -> Changes:
    return {"state": C.AUTHORIZED if call.state == C.VALIDATED else call.state}


def _approval_asked(call: Call, fact: Fact) -> Changes:
    """A call's own deadline, if it has one, begins once it is approved."""
    rest = {"owner": None, "waits": False, "reconcile_until": None, "ready_at": fact.time("ready_at")}
    asked = {"fence": fact.data.get("fence", call.fence), "approval": approvals.opened(fact["asked"])}
    return {"state": C.AWAITING_APPROVAL, **rest, **asked}


def _approval_decided(call: Call, fact: Fact) -> Changes:
    """A person's word, or that nobody gave it in time."""
    changes: Changes = {"state": CallState(fact["to"]), "owner": None, "fence": fact["fence"]}
    if "decision" in fact.data:
        changes["approval"] = approvals.answered(call.approval, fact["decision"])
    if changes["state"] == C.REJECTED:
        changes["error"] = fact["message"]
    return changes


def _intended(_call: Call, fact: Fact) -> Changes:
    until = fact.time("reconcile_until") if fact["reconcile_until"] else None
    when = {"ready_at": fact.time("ready_at"), "reconcile_until": until}
    return {"state": C.INTENT_RECORDED, "waits": fact["waits"], **when}


def _reused(_call: Call, fact: Fact) -> Changes:
    kept = fact.kept("receipt", "result", "preview", "fence")
    return {"state": C.SUCCEEDED, "reused": True, "waits": False, "owner": None, **kept}


def _attempted(call: Call, fact: Fact) -> Changes:
    return {
        "state": C.DISPATCHING,
        "attempts": fact["attempt"],
        "ready_at": fact.time("ready_at"),
        "in_flight_until": fact.time("in_flight_until"),
        "quiet_at": fact.time("quiet_at"),
        "request": call.request or fact["request"],
        "fingerprint": call.fingerprint or fact.data.get("fingerprint"),
        "waits": False,
        "lost": False,
        "lookup": None,
        "reserved": allowances.kept(fact["reserved"]) if "reserved" in fact.data else call.reserved,
    }


def _succeeded(_call: Call, fact: Fact) -> Changes:
    proved = {"doubt": False, "proof": fact.event.id}
    return {
        "state": C.SUCCEEDED,
        "owner": None,
        "error": None,
        **proved,
        **fact.kept("receipt", "result", "preview"),
    }


def _throttled(call: Call, fact: Fact) -> Changes:
    return {"throttled": call.throttled + 1} if fact.data.get("throttled") else {}


def _attempt_failed(call: Call, fact: Fact) -> Changes:
    # Only our own code holds a call; what a stranger answers may read the same.
    why = fact["message"] if fact["code"] == CHANGED else not_held(fact["message"])
    if fact["final"]:
        ended = {"state": C.FAILED, "doubt": False, "proof": fact.event.id}
        return {"owner": None, "error": why, **ended, **_throttled(call, fact)}
    again = {"state": C.INTENT_RECORDED, "ready_at": fact.time("ready_at"), **_throttled(call, fact)}
    return {"owner": None, "error": why, **again}


def _unknown(call: Call, fact: Fact) -> Changes:
    restored: Changes = {}
    if "epoch" in fact.data:  # sent, perhaps, in a time the ledger lost: what was asked before says nothing
        until = {"in_flight_until": fact.time("in_flight_until"), "quiet_at": fact.time("quiet_at")}
        restored = {**until, **fact.kept("fence"), "waits": False, "asks": 0, "lookup": None}
        restored |= {"restored": fact["epoch"], **_holds(fact)}
    return {
        **restored,
        **_throttled(call, fact),
        "state": C.UNKNOWN,
        "doubt": True,
        "owner": None,
        "ready_at": fact.time("ready_at"),
        "reconcile_until": fact.time("reconcile_until"),
        "lost": fact["lost"],
        "error": not_held(fact["message"]),
    }


def _looked_up(call: Call, fact: Fact) -> Changes:
    return {"owner": None, "ready_at": fact.time("ready_at"), "lookup": fact["lookup"], "asks": call.asks + 1}


def _settled(_call: Call, fact: Fact) -> Changes:
    """ToolEffectReconciled and a person's RepairDecided: the proof that clears doubt, or asking again."""
    to = CallState(fact["to"])
    changes: Changes = {"state": to, "owner": None, "fence": fact["fence"], "proposed": None}
    if to == C.UNKNOWN:
        again = {
            "ready_at": fact.at,
            "reconcile_until": fact.time("reconcile_until"),
            "asks": 0,
            "lookup": None,
        }
        return changes | again
    if fact.event.type == E.REPAIR_DECIDED:  # why the machine could not tell is the history's now
        changes |= {"error": _SAID[to]}
    if to == C.SUCCEEDED:
        changes |= fact.kept("receipt", "result", "preview") | {"error": None}
        if fact.data.get("compensate"):
            changes |= {"offset_asked": fact.event.seq}
    return changes | {"doubt": False, "proof": fact.event.id}


_SAID: Mapping[CallState, str | None] = {
    C.SUCCEEDED: None,
    C.FAILED: "a person decided that it did not happen",
    C.ACCEPTED_UNKNOWN: "a person decided that it will never be known whether it happened",
}


def _decided(call: Call, fact: Fact) -> Changes:
    """A person's word: on a call that needs repair, on an effect that a stopped run did not offset, or on the
    key of a call that failed.
    """
    if fact.data.get("release"):
        return {"fence": fact["fence"], "owner": None}
    if (word := fact.data.get("offset")) is None:
        return _settled(call, fact)
    column = "offset_asked" if word == "again" else "offset_left"
    return {column: fact.event.seq, "fence": fact["fence"], "owner": None}


def _proposed_repair(_call: Call, fact: Fact) -> Changes:
    return {"proposed": fact.event.body, "fence": fact["fence"], "owner": None}


def _repair(_call: Call, fact: Fact) -> Changes:
    why = {"error": fact["reason"], "fence": fact["fence"]}
    return {"state": C.NEEDS_REPAIR, "doubt": True, "owner": None, "waits": False, "ready_at": NEVER, **why}


def _evidence(call: Call, fact: Fact) -> Changes:
    # Evidence wakes the reconciler of an UNKNOWN call nobody holds; a holder reads it under the lock anyway.
    return {"ready_at": fact.at} if call.state == C.UNKNOWN and call.owner is None else {}


def _child_started(_call: Call, fact: Fact) -> Changes:
    """Nobody holds the call: its child does, until it ends or its time is over."""
    return {"child": UUID(fact["child"]), "owner": None, "ready_at": fact.time("ready_at")}


def _detached(_call: Call, _fact: Fact) -> Changes:
    return {"detached": True}


def _awaited(_call: Call, _fact: Fact) -> Changes:
    return {"detached": False}


def _child_settled(_call: Call, fact: Fact) -> Changes:
    """A child that has ended: its word is the proof of its call."""
    to = CallState(fact["to"])
    proved = {"state": to, "owner": None, "doubt": False, "proof": fact.event.id}
    said = fact.kept("receipt", "result", "preview") if to == C.SUCCEEDED else {"error": fact["message"]}
    return proved | said


def _cancelled(_call: Call, fact: Fact) -> Changes:
    why = {"error": fact["reason"], "fence": fact["fence"]}
    return {"state": C.CANCELLED, "owner": None, "waits": False, **why}


CALL_RULES: Mapping[EventType, Callable[[Call, Fact], Changes]] = {
    E.LEASE_ACQUIRED: _leased,
    E.ARGUMENTS_CANONICALIZED: _canonical,
    E.PROPOSAL_REJECTED: _refused,
    E.AUTHORIZATION_ALLOWED: _allowed,
    E.AUTHORIZATION_DENIED: _refused,
    E.APPROVAL_REQUESTED: _approval_asked,
    E.APPROVAL_DECIDED: _approval_decided,
    E.DISPATCH_INTENT_RECORDED: _intended,
    E.DISPATCH_DEFERRED: _deferred,
    E.RESULT_REUSED: _reused,
    E.TOOL_ATTEMPT_STARTED: _attempted,
    E.TOOL_RESULT_RECORDED: _succeeded,
    E.TOOL_ATTEMPT_FAILED: _attempt_failed,
    E.TOOL_OUTCOME_MARKED_UNKNOWN: _unknown,
    E.TOOL_LOOKUP_RECORDED: _looked_up,
    E.RECONCILIATION_DEFERRED: _reconciled_later,
    E.TOOL_EFFECT_RECONCILED: _settled,
    E.REPAIR_REQUESTED: _repair,
    E.REPAIR_DECIDED: _decided,
    E.REPAIR_PROPOSED: _proposed_repair,
    E.EVIDENCE_FILED: _evidence,
    E.HIDDEN_RETRY_SEEN: _call_noted,
    E.CALL_CANCELLED: _cancelled,
    E.CHILD_RUN_STARTED: _child_started,
    E.CHILD_RUN_SETTLED: _child_settled,
    E.CALL_DETACHED: _detached,
    E.CALL_AWAITED: _awaited,
}
"""What an event of each type changes in its call."""
