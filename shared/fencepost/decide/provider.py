"""The gate before a run's model: whether its provider may be asked now, and what is learnt of it afterwards.

The same breaker and limits as of a tool's dependency (`gate.py`), the run in place of the call. A run whose
provider is left alone goes back: no model is asked, no turn spent, no failure counted, nothing held. Its own
deadline binds all the same: a provider that stays closed costs a run its time, never more than that.

Not every lost answer speaks against the run that lost it. What the provider has failed counts in its
`failures`, by which the next model of its agent is asked, but not against the attempts of its planner: an
outage ends a run at its deadline or by its budgets, and not after a handful of refusals. What the provider
has turned away unread costs no turn either. The same holds where the deployment is at fault: a key that was
revoked or is missing, an account that is not paid for, a model or an address there is not. Such a run is
asked for again within a minute, until somebody has mended that.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from fencepost import breaker, deadlines
from fencepost.breaker import DEPENDENCY_FAILED, Blocked, FailureClass, Health, Learnt, State
from fencepost.clock import rfc3339
from fencepost.commands import DRAINED, Answer, ClaimRun, Done, Fenced, Full, RecordPlanLost, RecordTurn
from fencepost.decide import gate
from fencepost.decide.fold import Fold
from fencepost.events import EventType
from fencepost.models import ModelSpec, Spent
from fencepost.states import RunStatus

E = EventType

_ALWAYS_THEIRS = frozenset({FailureClass.CONNECT, FailureClass.THROTTLED})
"""What no request can bring about by what it says."""
_UNREAD = frozenset({FailureClass.CONNECT, FailureClass.THROTTLED, FailureClass.SERVER})


def admit(
    fold: Fold, command: ClaimRun, timeout: Callable[[ModelSpec], timedelta], may: Callable[[ModelSpec], bool]
) -> Answer | None:
    """None lets the run ask its model; else it has to wait, and that is recorded (or `Full`: nothing is).

    A model whose provider is left alone is passed over for the next one of its agent that `may` be asked and
    whose provider is well. That is recorded, too: whom a run asks follows from its `failures`.
    """
    run = fold.run
    agent = fold.known.agent(run.planner, run.planner_version)
    if agent is None:
        return None
    asked = [(run.failures, agent.model(run.failures)), *agent.later(run.failures)]
    closed: list[tuple[ModelSpec, Blocked]] = []
    for failures, model in asked:
        if closed and not may(model):
            continue
        until = deadlines.takeover_at(fold.now + timeout(model), command.grace)
        found = gate.admit_to(fold, model.scope, model.dependency, run.id, until)
        if isinstance(found, Blocked):
            closed.append((model, found))
        elif isinstance(found, Full):
            return _full(fold, command, found)
        else:
            if closed:
                _pass_over(fold, failures, *closed[0])
            return None
    return _closed(fold, command, closed)


def _pass_over(fold: Fold, failures: int, model: ModelSpec, blocked: Blocked) -> None:
    why = f"model {model.name}: dependency {model.scope} is {blocked.state}: {blocked.reason}"
    fold.emit(E.MODEL_PASSED_OVER, {"failures": failures, "reason": why, "breaker": blocked.state})


def _full(fold: Fold, command: ClaimRun, full: Full) -> Answer:
    """A limit of the fleet: nothing is recorded, unless something was: then the row has moved on."""
    if all(event.type == E.RUN_CREATED for event in fold.events):
        return full
    due, why = gate.wait_for_room(fold, full)
    return _defer(fold, command, min(due, fold.run.deadline), why | {"provider": full.scope})


def _closed(fold: Fold, command: ClaimRun, closed: list[tuple[ModelSpec, Blocked]]) -> Answer:
    """Back until the first of the closed providers may be tried; not beyond the run's deadline, which ends
    it.
    """
    last = fold.run.deadline
    waits = [gate.put_off_from(fold, model.scope, blocked, last) for model, blocked in closed]
    due = min(due or last for due, _ in waits)
    return _defer(fold, command, due, waits[0][1] | {"provider": closed[0][0].scope})


def _defer(fold: Fold, command: ClaimRun, due: datetime, why: dict[str, Any]) -> Answer:
    fold.emit(E.PLAN_DEFERRED, {"ready_at": rfc3339(due), "fence": command.term.fence, **why})
    return Done(fold.run.status)


def _asked(fold: Fold) -> ModelSpec | None:
    """Whom the run's open request went to: since it was claimed nothing has changed its `failures`."""
    agent = fold.known.agent(fold.run.planner, fold.run.planner_version)
    return agent.model(fold.run.failures) if agent is not None else None


def answered(fold: Fold) -> None:
    """A model has answered, whatever it said: its provider is well. Before the event that records it."""
    if (model := _asked(fold)) is not None:
        gate.learn_of(fold, model.scope, model.dependency, fold.run.id, Learnt(answered=True))


def lost(fold: Fold, command: RecordPlanLost) -> dict[str, Any]:
    """Keep what a lost answer tells of its provider; what its event says of that. Before that event.

    What a worker gives up because it is to end was lost by nobody's failure: the run is asked again at once,
    by the same model, and no turn is spent. What it may have used is charged all the same.
    """
    if command.code == DRAINED:
        return {"drained": fold.drains + 1, "taken": False}
    model = _asked(fold)
    if model is None:
        return {}
    said = breaker.learnt_of_model(command.code, command.retry_after)
    held = gate.learn_of(fold, model.scope, model.dependency, fold.run.id, said)
    kind = breaker.failure_class(command.code)
    body: dict[str, Any] = {"class": str(kind), "breaker": held.state, "provider": model.scope}
    set_up_wrong = breaker.set_up_wrong(command.code)
    if set_up_wrong or theirs(kind, held):
        body["outage"] = True
        if (set_up_wrong or kind in _UNREAD) and command.spent == Spent():
            body["taken"] = False
    return body


def late(fold: Fold, command: RecordTurn | RecordPlanLost) -> Fenced:
    """An answer, or none, to a request whose term is over: it gives back the place it had at its provider.

    Not where the run is being asked once more: a run has one place, and that is then its holder's.
    """
    run = fold.run
    if command.scope and (run.status != RunStatus.PLANNING or run.owner is None):
        gate.leave(fold, command.scope, run.id)
    return Fenced()


def theirs(kind: FailureClass, held: Health) -> bool:
    """Whether a failure is the provider's own, and not what this one request has brought about.

    `held` is what is known of the provider, this failure included. What comes of a request's content fails
    alone: the answers that others get between its failures say so, and it counts as its run's own.
    """
    if kind not in DEPENDENCY_FAILED:
        return False
    return kind in _ALWAYS_THEIRS or held.state != State.CLOSED or held.failures > 1
