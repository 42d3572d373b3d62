"""The planner's two halves: taking a run, and recording a turn."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from fencepost import breaker, operations, slices
from fencepost.budgets import Budget, Usage, budget_of, exhausted, overgrown, unaffordable
from fencepost.canonical import sanitize
from fencepost.clock import rfc3339
from fencepost.commands import (
    DRAINED,
    Answer,
    ClaimRun,
    Done,
    Fenced,
    Gone,
    Moved,
    Plan,
    RecordPlanLost,
    RecordTurn,
    Unfamiliar,
)
from fencepost.deadlines import answer_timeout, retry_at
from fencepost.decide import children, provider
from fencepost.decide.approvals import ask
from fencepost.decide.authorize import Judged, authorize, decision_body, denial
from fencepost.decide.fold import Fold, lease_body
from fencepost.decide.stopping import after_call, asking, cancel_call, settled, stop, waits
from fencepost.events import EventType
from fencepost.models import ModelSpec, Spent
from fencepost.proposals import Rejected, Validated
from fencepost.states import RUN_ENDS, RUN_FORWARD, CallState, RunStatus, StopReason
from fencepost.subjects import Call
from fencepost.tools import Tool

E, C, R = EventType, CallState, RunStatus

MAX_PROPOSALS = 256
"""Calls of one turn at most: a change reads all open calls of its run."""
_KEY = {
    "key_arguments_differ": "a call of the same key has other arguments",
    "key_request_differs": "the effect of this key was asked for by another request than would be sent now: "
    "what differs lies outside the arguments (an address, a flag, a version), so its result is not taken; "
    "make it part of the intent or of the dependency's account. The effect is that of call ",
    "key_request_lost": "by which request the effect of this key was asked for was lost in a restore, so its "
    "result is not taken. The effect is that of call ",
    "key_failed_before": "a call of the same key has failed, and its contract does not release the key: once "
    "the cause is mended an operator may, by fencepost repair --release-key of call ",
    "key_unknown": "whether a call of the same key had its effect is not known",
    "key_compensating": "the effect of this key is being offset",
    "key_compensated": "the effect of this key was offset",
    "key_stopped_before": "the run of a call of the same key stopped and left effects: settle those first",
    "key_in_circle": "whoever holds the key waits for this call: ",
    "key_held_above": "a run that this one descends from holds the key, and waits for this one",
}
MAX_DETAIL = 600
_NOW = timedelta(0)
_BACKOFF = timedelta(milliseconds=200)
_BACKOFF_CAP = timedelta(seconds=10)
_SET_UP_CAP = timedelta(minutes=1)
"""The longest that a run is left alone while somebody has to mend how its model is set up."""
_LOOKS = 64
"""A run that waits for a person is asked for again no sooner than after such a part of what its deadline
leaves, so that its history does not fill while it waits.
"""
_DRAINS_FREE = 3
"""So many workers in a row may end under a run before it is asked later than at once."""


def budget(fold: Fold) -> Budget:
    """The run's budget, as its producer gave it."""
    return budget_of(fold.run.request)


def usage(fold: Fold) -> Usage:
    """What the run and its children have used of it or hold, folded from its events; the wall clock runs
    from its creation.
    """
    run = fold.run
    below = slices.amounts(run.below)
    return Usage(
        turns=run.requests + below["turns"],
        calls=run.calls + below["calls"],
        attempts=run.attempts + below["attempts"],
        wall_clock=fold.now - run.created_at,
        tokens=run.tokens + run.held_tokens + below["tokens"],
        cost=run.cost + run.held_cost + below["cost"],
        events=run.seq,
        bytes=run.bytes,
    )


def claim_run(fold: Fold, command: ClaimRun) -> Answer:
    """Take a run whose planner is due, or stop it: deadline passed, budget spent, planner lost too often."""
    run = fold.run
    if run.status in RUN_ENDS:
        return Gone()
    if run.status not in RUN_FORWARD:
        return Moved()
    if command.term.fence <= run.fence:
        return Fenced()
    past = fold.now >= run.deadline
    if run.status == R.ACTING and run.open > run.detached and not past:
        children.go_on(fold, cancel_call)
        if fold.run.open > fold.run.detached:
            return Done(run.status) if fold.events else Moved()
        run = fold.run
    if not past and not fold.known.planner(run.planner, run.planner_version):
        return Unfamiliar(f"planner {run.planner} version {run.planner_version}")
    fold.present(run.id, "claim")
    lost = run.status == R.PLANNING and run.owner is not None
    fold.takeovers = fold.takeovers + 1 if lost else 0
    if asking(run):  # whatever it has used meanwhile, its reservation is charged
        why = {"code": "worker_lost", "message": "the planner's worker was lost"}
        fold.emit(E.MODEL_OUTCOME_UNKNOWN, why | {"ready_at": rfc3339(fold.now)} | settled(run, None))
    if (reason := _must_stop(fold, past, lost=lost)) is not None:
        if waits(fold.run, reason[0]):
            due = rfc3339(run.deadline if lost else _look_again(fold))
            body = {"ready_at": due, "fence": command.term.fence, "reason": reason[1], **_FOR_A_PERSON}
            fold.emit(E.PLAN_DEFERRED, body)
            return Done(fold.run.status)
        _take(fold, command)
        stop(fold, *reason, asked=False)
        return Done(fold.run.status)

    def within(model: ModelSpec | None) -> timedelta:
        of_model = model.timeout if model is not None else None
        return answer_timeout(command.cap, of_model, run.deadline - fold.now)

    held_up = provider.admit(fold, command, within, lambda model: _dear(fold, model) is None)
    if held_up is not None:
        return held_up
    asked = _asked(fold)  # who was passed over is not
    timeout = within(asked[0] if asked is not None else None)
    ready_at = rfc3339(fold.now + timeout + command.grace)
    _take(fold, command)
    heard = {"signals": fold.signals} if fold.signals else {}
    fold.emit(E.MODEL_REQUEST_STARTED, {"turn": run.turn + 1, "ready_at": ready_at} | _held(fold) | heard)
    return Plan(fold.run, timeout, fold.signals)


_FOR_A_PERSON = {"waits_for": "person"}


def _look_again(fold: Fold) -> datetime:
    """When a run that waits for a person to mend something is asked for once more by itself."""
    left = fold.run.deadline - fold.now
    return min(fold.run.deadline, fold.now + max(_SET_UP_CAP * (0.5 + fold.command.rand / 2), left / _LOOKS))


def _asked(fold: Fold) -> tuple[ModelSpec, Spent] | None:
    """The model that is asked next, and what it may use at most; None for a planner that is no model."""
    agent = fold.known.agent(fold.run.planner, fold.run.planner_version)
    if agent is None:
        return None
    model = agent.model(fold.run.failures)
    return model, model.worst(agent.window, fold.now.date())


def _held(fold: Fold) -> dict[str, Any]:
    """What the request says that is made now: whom it asks, and what is held for it until it has ended."""
    if (asked := _asked(fold)) is None:
        return {}
    model, worst = asked
    return {"model": model.name, "held": {"tokens": worst.tokens, "cost": worst.cost}}


def _take(fold: Fold, command: ClaimRun) -> None:
    fold.emit(E.LEASE_ACQUIRED, lease_body(command))


def _must_stop(fold: Fold, past: bool, *, lost: bool) -> tuple[StopReason, str] | None:
    run = fold.run
    if past:
        return StopReason.DEADLINE_EXCEEDED, f"the run's deadline was {rfc3339(run.deadline)}"
    if fold.takeovers >= fold.known.takeover_limit:
        return StopReason.PLANNER_FAILED, f"the planner's worker was lost {fold.takeovers} times in a row"
    if lost and (own := run.failures - run.outages) >= fold.known.planner_attempts:
        told = f"the planner failed {own} times in a row; the last time its worker was lost"
        return StopReason.PLANNER_FAILED, told
    limits, used = budget(fold), usage(fold)
    if (spent := exhausted(limits, used, next="turn")) is not None:
        return StopReason.BUDGET_EXHAUSTED, spent
    if (grown := overgrown(limits, used)) is not None:
        return StopReason.HISTORY_LIMIT, grown
    if run.fruitless >= limits.fruitless:
        return StopReason.NO_PROGRESS, f"no intent came from {run.fruitless} turns in a row"
    model, _ = _asked(fold) or (None, None)
    if (dear := _dear(fold, model)) is not None:
        # Without a price nothing is spent: the application does not say what it costs.
        priced = limits.cost is None or model is None or model.price(fold.now.date()) is not None
        return StopReason.BUDGET_EXHAUSTED if priced else StopReason.PLANNER_FAILED, dear
    return None


def _dear(fold: Fold, model: ModelSpec | None) -> str | None:
    """Why what is left does not allow for a request to this model (None: to a planner that is none)."""
    agent = fold.known.agent(fold.run.planner, fold.run.planner_version)
    worst = model.worst(agent.window, fold.now.date()) if agent is not None and model is not None else None
    return unaffordable(budget(fold), usage(fold), worst, model.name if model is not None else "")


def record_turn(fold: Fold, command: RecordTurn) -> Answer:
    """Record a turn: the run completes, or its proposals become calls, each validated and authorised now."""
    run = fold.run
    if (run.owner, run.fence) != (command.term.owner, command.term.fence) or run.status != R.PLANNING:
        return provider.late(fold, command)
    fold.present(run.id, "term")
    fold.takeovers = 0
    provider.answered(fold)
    if len(command.proposals) > MAX_PROPOSALS:
        many = f"{len(command.proposals)} proposals in one turn; at most {MAX_PROPOSALS} are taken"
        lost = settled(run, command.spent) | _said(command)
        return _lost(fold, "too_many_proposals", many, retry_at(fold.now, *_pause(fold)), lost)
    answer: dict[str, Any] = {
        "turn": run.turn + 1,
        "answer": command.answer.digest if command.answer else None,
        **settled(run, command.spent),
        **_said(command),
    }
    finish = command.finish if not command.proposals else None
    objection = command.objection or (_unfinished(fold, command) if finish is not None else None)
    if finish is not None and objection is None:
        fold.emit(E.RUN_COMPLETED, answer | {"result": finish.digest, "preview": finish.preview})
        return Done(fold.run.status)
    said: dict[str, Any] = {"proposals": len(command.proposals), "objection": objection}
    if command.markers:
        said["markers"] = list(command.markers)
    pairs = list(zip(command.call_ids, command.proposals, strict=True))
    joined = children.joined(fold, pairs, command.join)
    fold.emit(E.MODEL_RESPONSE_RECORDED, answer | said | ({"join": joined} if joined else {}))
    if finish is not None and run.open:
        _await(fold)
    wanted = len(command.proposals)
    used = exhausted(budget(fold), usage(fold), next="calls", n=wanted) if wanted else None
    if used is not None:
        stop(fold, StopReason.BUDGET_EXHAUSTED, used)
        return Done(fold.run.status)
    for ordinal, (call_id, proposal) in enumerate(pairs):
        one = children.optional(proposal) if joined and str(call_id) in joined["calls"] else proposal
        propose(fold, one, call_id, turn=run.turn + 1, ordinal=ordinal)
    for call_id, proposal in pairs:
        # What was refused before it was an intent (steps 1-5) is told to the planner and never stops the run.
        if isinstance(proposal, Validated) and fold.forward:
            after_call(fold, call_id)
    return Done(fold.run.status)


def _unfinished(fold: Fold, command: RecordTurn) -> str | None:
    """Why a run is not done although it says so: something is open, or has come that it was not told of."""
    run, unheard = fold.run, fold.signals - command.signals
    if run.open:
        return f"{run.open} calls are still open: it is done once they have ended"
    if unheard:  # whoever sent them was told that they would be seen
        return f"{unheard} signals came while it was asked: it is done once it knows them"
    if run.seq > command.seen:  # whoever agreed that it is done did not see how that ended
        return "a call has moved since it was asked: it is done once it knows"
    return None


def record_plan_lost(fold: Fold, command: RecordPlanLost) -> Answer:
    """The planner gave no usable answer: ask again later, or stop a run that failed too often."""
    run = fold.run
    if (run.owner, run.fence) != (command.term.owner, command.term.fence) or run.status != R.PLANNING:
        return provider.late(fold, command)
    fold.present(run.id, "term")
    again = retry_at(fold.now, *_pause(fold, command.code), command.retry_after)
    kept = settled(run, command.spent) | _said(command) | provider.lost(fold, command)
    message = command.message
    if command.code == DRAINED and fold.drains:
        message = f"{message}, {fold.drains + 1} times in a row"
    return _lost(fold, command.code, message, again, kept, command.stop)


def _pause(fold: Fold, code: str = "") -> tuple[int, timedelta, timedelta, float]:
    """How long a planner that failed is left alone, before what a provider asks for is added.

    What its worker gave up is asked for again at once, unless worker after worker ends under it: each such
    request is charged.
    """
    rand = fold.command.rand
    if code == DRAINED:
        beyond = fold.drains + 1 - _DRAINS_FREE
        return (beyond, _BACKOFF, _SET_UP_CAP, rand) if beyond > 0 else (1, _NOW, _NOW, rand)
    cap = _SET_UP_CAP if breaker.set_up_wrong(code) else _BACKOFF_CAP
    return fold.run.failures + 1, _BACKOFF, cap, rand


def _said(command: RecordTurn | RecordPlanLost) -> dict[str, Any]:
    return {"said": dict(command.said)} if command.said else {}


def _lost(
    fold: Fold,
    code: str,
    message: str,
    again: datetime,
    kept: dict[str, Any],
    reason: StopReason | None = None,
) -> Answer:
    """Record that an answer was lost, and stop for it where that is said, or for the last of too many; or
    have the run wait for a person, where that would undo what has nothing to do with it. Who costs nothing is
    asked once more now and then, whoever is charged only once a person says so.
    """
    own = fold.run.failures - fold.run.outages + ("outage" not in kept and "drained" not in kept)
    detail = message
    if reason is None and own >= fold.known.planner_attempts:
        reason = StopReason.PLANNER_FAILED
        detail = f"the planner failed {own} times in a row; the last time: {code}: {message}"
    if reason is not None and waits(fold.run, reason):
        charged = any(kept.get("spent", {}).get(what) for what in ("tokens", "cost"))
        again = fold.run.deadline if charged else max(again, _look_again(fold))
        kept |= _FOR_A_PERSON | ({} if charged else {"taken": False})
        reason = None
    why = {"code": code, "message": message, "ready_at": rfc3339(min(again, fold.run.deadline))}
    fold.emit(E.MODEL_OUTCOME_UNKNOWN, why | kept)
    if reason is not None:
        stop(fold, reason, sanitize(detail, MAX_DETAIL), asked=False)
    return Done(fold.run.status)


def _await(fold: Fold) -> None:
    """Whoever says that it is done waits for what it left beside it: done means that nothing is open (I7)."""
    for call in list(fold.view.open_calls()):
        if call.detached:
            fold.emit(E.CALL_AWAITED, {"reason": "its run is done once nothing is open"}, call=call.id)


def propose(
    fold: Fold,
    proposal: Validated | Rejected,
    call_id: UUID,
    *,
    turn: int,
    ordinal: int,
    compensates: str | None = None,
    not_before: datetime | None = None,
    reconcile_until: datetime | None = None,
) -> None:
    """Steps 1 to 6 of one proposal, each its own event; its key is taken, waited for, reused or refused."""
    body = _proposal_body(proposal, turn, ordinal, compensates)
    fold.emit(E.TOOL_PROPOSAL_RECORDED, body, call=call_id)
    if isinstance(proposal, Rejected):
        why = {"step": proposal.step, "code": proposal.code, "message": proposal.message}
        fold.emit(E.PROPOSAL_REJECTED, why, call=call_id)
        return
    fold.emit(E.ARGUMENTS_CANONICALIZED, {"arguments_hash": proposal.arguments_hash}, call=call_id)
    call = fold.call(call_id)
    tool = fold.known.tool(call.tool, call.tool_version)
    if tool is None:  # it was validated by another process than this one
        gone = f"tool {call.tool} version {call.tool_version} is not known here"
        fold.emit(E.PROPOSAL_REJECTED, rejection(2, "unknown_tool", gone), call=call_id)
        return
    judged = authorize(fold, call, tool, "recording", 0)
    decision = judged.decision
    evidence = decision_body(fold, call, decision, "recording")
    if not decision.allowed and decision.approval is None:
        evidence["message"] = denial(decision)
        fold.emit(E.AUTHORIZATION_DENIED, evidence, call=call_id, policy=decision.policy_version)
        return
    if not decision.allowed:
        _ask(fold, call, tool, judged, not_before)
        return
    fold.emit(E.AUTHORIZATION_ALLOWED, evidence, call=call_id, policy=decision.policy_version)
    waits = False
    if call.operation is not None:
        held = fold.operations[call.operation]
        rule, why_not = children.admit(fold, held, call, tool.contract)
        if rule == operations.Rule.REJECT:
            fold.emit(E.PROPOSAL_REJECTED, refused_key(why_not), call=call_id)
            return
        waits = children.waits(fold, call, held, rule)
        if rule == operations.Rule.OWN:
            fold.set_operation(operations.take(held, call))
    due = fold.run.deadline if waits else max(fold.now, not_before or fold.now)
    until = rfc3339(reconcile_until) if reconcile_until else None
    intent = {"ready_at": rfc3339(due), "waits": waits, "reconcile_until": until}
    fold.emit(E.DISPATCH_INTENT_RECORDED, intent, call=call_id)


def _ask(fold: Fold, call: Call, tool: Tool, judged: Judged, not_before: datetime | None) -> None:
    """Persons are asked at once, but not about what its key refuses whatever they say."""
    if call.operation is not None:
        rule, why = children.admit(fold, fold.operations[call.operation], call, tool.contract)
        if rule == operations.Rule.REJECT:
            fold.emit(E.PROPOSAL_REJECTED, refused_key(why), call=call.id)
            return
    ask(fold, call, tool, judged, "recording", not_before=not_before)


def rejection(step: int, code: str, message: str) -> dict[str, Any]:
    """What a refusal's event says. Planners are told the message alone: the code is in front of it."""
    return {"step": step, "code": code, "message": f"{code}: {message}"}


def refused_key(why: str) -> dict[str, Any]:
    """The refusal of step 7, for a reason that `children.admit` gives: its code, and what it adds to that."""
    code, _, more = why.partition(": ")
    return rejection(7, code, _KEY.get(code, "the key may not be used again") + sanitize(more, MAX_DETAIL))


def _proposal_body(
    proposal: Validated | Rejected, turn: int, ordinal: int, compensates: str | None
) -> dict[str, Any]:
    place = {"turn": turn, "ordinal": ordinal, "label": proposal.label, "compensates": compensates}
    if isinstance(proposal, Rejected):
        shown = {"tool": proposal.tool_name, "arguments": proposal.arguments, "required": False}
        unknown = {"tool_version": 0, "effect": "read", "operation": None, "scope": "", "arguments_hash": ""}
        return place | shown | unknown
    named = {"resource": proposal.resource} if proposal.resource is not None else {}
    return {
        **place,
        **named,
        "tool": proposal.tool_name,
        "tool_version": proposal.tool_version,
        "effect": str(proposal.effect),
        "operation": proposal.operation,
        "scope": proposal.scope,
        "arguments": proposal.arguments,
        "arguments_hash": proposal.arguments_hash,
        "required": proposal.required,
    }
