"""The latest calls of the ledger, judged again under two bundles: what a change of policy would change."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from fencepost.app import App
from fencepost.authority import AuthorizationDecision, AuthorizationRequest
from fencepost.authority.bundle import Bundle
from fencepost.authority.cedar import CedarEngine
from fencepost.authority.compiled import Compiled
from fencepost.authority.standing import Standing
from fencepost.canonical import parse
from fencepost.ledger.connect import Connection
from fencepost.ledger.policies import RecordedCall, recent


@dataclass(frozen=True)
class Changed:
    """A call that the two decide otherwise: `allow`, `deny` or `approval`; `none` where no bundle was."""

    call: str
    tenant: str
    tool: str
    principal: str
    before: str
    after: str
    why: str


def replayed(
    connection: Connection, app: App, before: Bundle | None, after: Bundle, tenant: str, limit: int
) -> list[Changed]:
    """The calls, of the latest `limit`, that are decided otherwise; the newest first.

    Judged at the moment they were proposed, as if nobody had approved them yet; roles, delegations and the
    application's tools are those of now. A call whose tool the application no longer has is left out.
    """
    calls, standing = recent(connection, tenant, limit)
    first = None if before is None else CedarEngine(Compiled(before))
    second = CedarEngine(Compiled(after))
    return list(_changed(calls, standing, app, first, second))


def _changed(
    calls: list[RecordedCall], standing: Standing, app: App, first: CedarEngine | None, second: CedarEngine
) -> Iterator[Changed]:
    for call in calls:
        request = _request(call, standing, app)
        if request is None:
            continue
        old = None if first is None else first.decide(request)
        new = second.decide(request)
        was, now = "none" if old is None else verdict(old), verdict(new)
        if was != now:
            why = new.reason if new.code else ", ".join(new.deciding)
            yield Changed(str(call.id), call.tenant, call.tool, call.principal, was, now, why)


def verdict(decision: AuthorizationDecision) -> str:
    """`allow`, `deny` or `approval`."""
    if decision.allowed:
        return "allow"
    return "deny" if decision.approval is None else "approval"


def _request(call: RecordedCall, standing: Standing, app: App) -> AuthorizationRequest | None:
    tool = app.registry.get((call.tool, call.tool_version))
    if tool is None:
        return None
    at = datetime.fromtimestamp((call.id.int >> 80) / 1000, UTC)  # the milliseconds a UUID 7 begins with
    who = standing.who(call.tenant, call.principal, call.tool, at)
    arguments: Any = parse(call.arguments)
    try:
        args = tool.read_arguments(call.arguments)
        resource = tool.acts_on(args) if tool.acts_on else None
        amount = tool.amount(args) if tool.amount else None
    except Exception:  # noqa: BLE001 - the application's own functions, and arguments of an earlier declaration
        return None
    return AuthorizationRequest(
        tenant=call.tenant,
        principal=call.principal,
        tool=call.tool,
        tool_version=call.tool_version,
        effect=tool.effect,
        arguments=arguments,
        arguments_hash=call.arguments_hash,
        operation=call.operation,
        run=str(call.run),
        call=str(call.id),
        attempt=call.attempts,
        phase="claim",
        at=at,
        definition=tool.definition_digest,
        resource=resource,
        amount=amount,
        roles=who.roles,
        on_behalf_of=who.on_behalf_of,
        delegation=who.links,
        tainted=call.tainted,
        egress=tool.egress,
    )
