"""The gate before a dependency: whether a call may be sent or asked about now, and what is learnt afterwards.

The rules are `fencepost.breaker`'s. A row is changed only together with the events of a change, and only a
failure, a breaker that is not closed or a limit changes one.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from fencepost import breaker, deadlines
from fencepost.breaker import Blocked, FailureClass, Health
from fencepost.clock import NEVER, rfc3339
from fencepost.commands import Full
from fencepost.decide.fold import Fold
from fencepost.dependencies import DependencySpec
from fencepost.events import EventType
from fencepost.subjects import Call
from fencepost.tools import Tool

E = EventType


def health(fold: Fold, call: Call) -> Health:
    """How the dependency of a call is, as the changes so far leave it."""
    return health_of(fold, call.scope)


def health_of(fold: Fold, scope: str) -> Health:
    """How a dependency is, as the changes so far leave it."""
    return fold.dependencies.get(scope) or Health(scope)


def _set(fold: Fold, old: Health, new: Health) -> None:
    if new is not old:
        numbered = replace(new, version=old.version + 1, updated_at=fold.now)
        fold.dependencies[old.scope] = numbered


def admit(fold: Fold, call: Call, tool: Tool, timeout: timedelta) -> Blocked | Full | None:
    """None lets the call pass, and takes its place among probes and under limits; else why it has to wait."""
    until = deadlines.takeover_at(fold.now + timeout, tool.dependency.grace)
    return admit_to(fold, call.scope, tool.dependency, call.id, until)


def admit_to(
    fold: Fold, scope: str, spec: DependencySpec, subject: UUID, until: datetime
) -> Blocked | Full | None:
    """`admit` for any subject, whose request counts no more after `until`."""
    held = health_of(fold, scope)
    found = breaker.admit(held, spec, call=subject, now=fold.now, until=until)
    if isinstance(found, breaker.Full):
        return Full(scope, found.limit, found.until - fold.now)
    if isinstance(found, Blocked):
        return found
    _set(fold, held, found)
    return None


def no_room(fold: Fold, call: Call, tool: Tool) -> Full | None:
    """Whether a limit of the dependency is used up, before anything is recorded of the call."""
    if not tool.dependency.limited:
        return None
    held = health(fold, call)
    found = breaker.admit(held, tool.dependency, call=call.id, now=fold.now, until=fold.now)
    return Full(call.scope, found.limit, found.until - fold.now) if isinstance(found, breaker.Full) else None


def put_off(
    fold: Fold, call: Call, blocked: Blocked, last: datetime
) -> tuple[datetime | None, dict[str, Any]]:
    """When a blocked call is looked at again (None: not before `last`), and what its history says of it."""
    return put_off_from(fold, call.scope, blocked, last)


def put_off_from(
    fold: Fold, scope: str, blocked: Blocked, last: datetime
) -> tuple[datetime | None, dict[str, Any]]:
    """`put_off` for any subject."""
    held = health_of(fold, scope)
    due = breaker.wake_at(blocked, held, now=fold.now, last=last, rand=fold.command.rand)
    why = f"dependency {scope} is {blocked.state}: {blocked.reason}"
    return due, {"reason": why, "breaker": blocked.state}


def wait_for_room(fold: Fold, full: Full) -> tuple[datetime, dict[str, Any]]:
    """The same for a subject that meets a limit, where it cannot simply be asked for again."""
    pause = full.wait + timedelta(seconds=0.1 + fold.command.rand)
    return deadlines.plus(fold.now, pause), {
        "reason": f"dependency {full.scope}: its {full.limit} is used up"
    }


def extended(call: Call, due: datetime, now: datetime) -> dict[str, str]:
    """The deadline of reconciliation or compensation, put off by what a dependency makes us wait: that time
    does not count against a call.
    """
    until = call.reconcile_until
    return {} if until is None else {"reconcile_until": rfc3339(deadlines.plus(until, due - now))}


def learn(fold: Fold, call: Call, tool: Tool, said: breaker.Learnt) -> None:
    """Keep what an attempt or a question has told of its dependency."""
    learn_of(fold, call.scope, tool.dependency, call.id, said)


def learn_of(fold: Fold, scope: str, spec: DependencySpec, subject: UUID, said: breaker.Learnt) -> Health:
    """`learn` from any subject; how the dependency is then."""
    held, rand = health_of(fold, scope), fold.command.rand
    _set(fold, held, breaker.learn(held, spec, said, call=subject, now=fold.now, rand=rand))
    return health_of(fold, scope)


def leave(fold: Fold, scope: str, subject: UUID) -> None:
    """Give back the places of a subject of which nothing is under way any more; nothing is learnt."""
    held = health_of(fold, scope)
    _set(fold, held, breaker.left(held, call=subject, now=fold.now))


def decision(fold: Fold, call: Call, code: str, again: datetime) -> dict[str, Any]:
    """What a retry was decided by: the failure's class, the backoff in ms, the breaker as it is now."""
    kind: FailureClass = breaker.failure_class(code)
    pause = None if again >= NEVER else deadlines.millis(max(again - fold.now, timedelta(0)))
    return {"class": str(kind), "delay_ms": pause, "breaker": health(fold, call).state}
