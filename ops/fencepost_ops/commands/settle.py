"""`fencepost unresolved`, `repair` and `cancel`: what only a person can see to, and how it is settled."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import click

from fencepost.canonical import sanitize
from fencepost.commands import OFFSET
from fencepost.errors import FencepostError
from fencepost.ledger import aside, find, listings
from fencepost.ledger.abandoned import Abandoned, abandoned
from fencepost.ledger.listings import Unresolved
from fencepost.states import CallState
from fencepost_ops.commands.durations import spoken
from fencepost_ops.commands.outbox import told
from fencepost_ops.commands.output import print_json, when
from fencepost_ops.commands.sayings import cut
from fencepost_ops.commands.session import (
    Session,
    by_option,
    dsn_option,
    json_option,
    pass_session,
    reason_option,
    redis_option,
    tenant_option,
)
from fencepost_ops.commands.timeline import how_to_repair


@click.command()
@tenant_option
@click.option("--limit", type=click.IntRange(min=1), default=100, show_default=True, help="How many at most.")
@dsn_option
@json_option
@pass_session
@click.pass_context
def unresolved(ctx: click.Context, session: Session, tenant: str | None, limit: int, as_json: bool) -> None:
    """List calls whose outcome is not known, effects nobody offset, and what is set aside.

    Of the first nobody knows whether their effect happened: those in NEEDS_REPAIR wait for `fencepost
    repair`, the others are being reconciled. The second were to be offset, and planning that was given up.
    The third failed too often and wait for `fencepost outbox requeue`. Oldest first. Exit code 1 if there are
    any.
    """
    with session.connection() as connection:
        now = listings.now(connection)
        found = listings.unresolved(connection, tenant=tenant, limit=limit)
        left = abandoned(connection, tenant=tenant, limit=limit)
        stopped = aside.dead(connection, tenant=tenant, limit=limit)
    if as_json:
        print_json([*found, *left, *stopped])
    elif not (found or left or stopped):
        click.echo("every call is settled")
    else:
        lines = [line for call in found for line in _told(call, now)]
        lines += [line for effect in left for line in _told_left(effect, now)]
        lines += [line for row in stopped for line in told(row, now)]
        for line in lines:
            click.echo(line)
    ctx.exit(1 if found or left or stopped else 0)


def _told_left(effect: Abandoned, now: datetime) -> Iterator[str]:
    since = spoken(now - effect.since)
    yield f"{cut(effect.tool)} {cut(effect.label)} of run {cut(effect.run_key)}: not offset for {since}"
    yield f"  call    {effect.call} (receipt {cut(effect.receipt or 'none')})"
    yield f"  why     {cut(effect.why)}"
    yield f"  next    a person: fencepost repair {effect.call} --offset --reason …"


def _told(call: Unresolved, now: datetime) -> Iterator[str]:
    since = f" for {spoken(now - call.since)}" if call.since is not None else ""
    yield f"{cut(call.tool)} {cut(call.label)} of run {cut(call.run_key)}: {call.state}{since}"
    yield f"  call    {call.call} (version {call.version})"
    yield f"  sent    {_sent(call)}"
    yield f"  lookup  {_lookup(call)}"
    yield f"  why     {cut(call.error or 'not known')}"
    for filed in call.evidence:
        yield f"  known   {cut(filed)}"
    yield f"  next    {_next(call, now)}"


def _next(call: Unresolved, now: datetime) -> str:
    if call.state == CallState.NEEDS_REPAIR:
        return f"a person: {how_to_repair(call.call)}"
    return (
        f"the {call.queue}, due {when(call.due_at, now)}"
        if call.queue is not None
        else "nothing: its row is missing"
    )


def _sent(call: Unresolved) -> str:
    """What left for the downstream: the stored request's line, for Python tools the arguments."""
    times = f"{call.attempts} × "
    if call.request is None:
        return times + sanitize(call.arguments, 120)
    request = _object(call.request)
    return times + sanitize(
        f"{request.get('method', '')} {request.get('target', '')}".strip() or call.request, 120
    )


def _lookup(call: Unresolved) -> str:
    if call.lookup is None:
        return f"asked {call.asks} times" if call.asks else "never asked"
    answer = _object(call.lookup)
    said = [str(answer[name]) for name in ("answer", "detail") if answer.get(name)]
    return f"{': '.join(said)} ({call.asks} asked)"


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


@click.command()
@click.argument("call")
@click.option(
    "--happened", "decision", flag_value=CallState.SUCCEEDED.value, help="It happened; give --receipt."
)
@click.option(
    "--did-not-happen", "decision", flag_value=CallState.FAILED.value, help="It did not, and will not."
)
@click.option("--ask-again", "decision", flag_value=CallState.UNKNOWN.value, help="Reconcile it once more.")
@click.option(
    "--accept-unknown",
    "decision",
    flag_value=CallState.ACCEPTED_UNKNOWN.value,
    help="It will never be known; its key is not used again.",
)
@click.option(
    "--offset",
    "decision",
    flag_value=OFFSET,
    help="Its effect was to be offset and that was given up: try once more.",
)
@click.option("--receipt", metavar="TEXT", help="With --happened: the downstream's own reference.")
@click.option("--seen", type=int, metavar="N", help="The version you looked at; refuses if it has changed.")
@reason_option
@by_option
@tenant_option
@dsn_option
@redis_option
@pass_session
def repair(
    session: Session,
    call: str,
    decision: str | None,
    receipt: str | None,
    seen: int | None,
    reason: str,
    by: str,
    tenant: str | None,
) -> None:
    """Settle a call that needs repair, or take up again what a stopped run could not offset.

    CALL is a call's id, or the unique beginning of one; it takes an operator's login. What you decide is
    recorded with your reason and name, and what follows from it happens at once.
    """
    if decision is None:
        raise click.UsageError(
            "decide: --happened, --did-not-happen, --ask-again, --accept-unknown or --offset"
        )
    if (decision == CallState.SUCCEEDED) != (receipt is not None):
        raise click.UsageError("--happened and --receipt go together: the receipt says how it is known")
    with session.connection() as connection:
        found = find.find_call(connection, call, tenant)
    with session.client() as client:
        state = client.repair(found.call, decision, by, reason, receipt, seen=seen)
    if decision == OFFSET:
        click.echo(f"the effect of call {found.call} is to be offset once more")
        return
    click.echo(f"call {found.call} is {state}")
    if state != decision:
        raise FencepostError(f"call {found.call} is {state}, not {decision}")


@click.command()
@click.argument("run")
@reason_option
@by_option
@tenant_option
@dsn_option
@redis_option
@pass_session
def cancel(session: Session, run: str, reason: str, by: str, tenant: str | None) -> None:
    """Stop a run.

    RUN is a run's id, the unique beginning of one, or a run key; it takes an operator's login. Nothing
    unsent is sent. What is in flight settles first; then its effects are offset, if the run asks for it.
    """
    with session.connection() as connection:
        _, run_id = find.find_run(connection, run, tenant)
    with session.client() as client:
        info = client.cancel(run_id, by, reason)
    click.echo(f"run {info.run_id} is {info.status}" + (f" ({info.stop_reason})" if info.stop_reason else ""))
