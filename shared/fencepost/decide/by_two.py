"""A decision that takes two persons: one asks for it, another confirms it, under another login."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from fencepost import deadlines
from fencepost.clock import parse_rfc3339, rfc3339
from fencepost.commands import Answer, DecideRepair, Denied, Done
from fencepost.decide.fold import Fold, Presented
from fencepost.events import EventType
from fencepost.subjects import Call

Decide = Callable[[Fold, Call, DecideRepair, dict[str, Any]], Answer]


def propose(fold: Fold, call: Call, command: DecideRepair, within: timedelta) -> Answer:
    """Ask for a decision that could be made now; it takes the place of one that was asked for before."""
    if command.login is None:
        return Denied("a decision that takes two persons needs the login of the one who asks for it")
    fold.by = command.by
    fold.presented[call.id] = Presented("repair")
    body = {
        "decision": command.decision,
        "receipt": command.receipt,
        "reason": command.reason,
        "by": command.by,
        "login": command.login,
        "expires_at": rfc3339(deadlines.plus(fold.now, within)),
        "version": fold.run.seq + 1,
        "fence": call.fence + 1,
    }
    fold.emit(EventType.REPAIR_PROPOSED, body, call=call.id)
    return Done(fold.call(call.id).state)


def confirm(
    fold: Fold,
    call: Call,
    command: DecideRepair,
    objection: Callable[[Fold, Call, DecideRepair], str | None],
    decide: Decide,
) -> Answer:
    """Decide what another person asked for, if it can still be decided and nothing has changed since."""
    if call.proposed is None:
        return Denied("nobody has asked for a decision that could be confirmed")
    asked: dict[str, Any] = json.loads(call.proposed)
    if (why := refusal(asked, call, command, fold.now)) is not None:
        return Denied(why)
    made = replace(command, **{name: asked[name] for name in ("decision", "receipt", "reason")})
    if (why := objection(fold, call, made)) is not None:
        return Denied(why)
    first = {name: asked[name] for name in ("by", "login", "version")}
    return decide(fold, call, made, {"asked": first, "confirmed": command.reason})


def refusal(asked: dict[str, Any], call: Call, command: DecideRepair, now: datetime) -> str | None:
    """Why this person cannot confirm this now; None when they can."""
    if asked["version"] != call.version:
        return "the call has changed since the decision was asked for; look again, then ask for it anew"
    if now >= parse_rfc3339(asked["expires_at"]):
        return f"the decision was asked for until {asked['expires_at']}; ask for it anew"
    if command.login is None or command.login == asked["login"]:
        return f"login {asked['login']} asked for it; another operator's login has to confirm it"
    if command.by == asked["by"]:
        return f"{asked['by']} asked for it; another person has to confirm it"
    return None
