"""`fencepost unresolved`: what only a person can see to."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

import click

from fencepost.canonical import sanitize
from fencepost.errors import FencepostError
from fencepost.ledger import aside, find, listings
from fencepost.ledger import unresolved as doubtful
from fencepost.ledger.abandoned import Abandoned, abandoned
from fencepost.ledger.held import Held, held
from fencepost.states import CALL_ENDS, CallState
from fencepost_ops.commands.durations import spoken
from fencepost_ops.commands.holding import warn
from fencepost_ops.commands.outbox import told
from fencepost_ops.commands.output import cut_short, one_line, print_json
from fencepost_ops.commands.sayings import cut, of
from fencepost_ops.commands.session import (
    LIMIT,
    Session,
    dsn_option,
    json_option,
    pass_session,
    tenant_option,
)
from fencepost_ops.commands.unsettled import brief, full, values


@click.command()
@click.argument("call", required=False)
@tenant_option
@click.option("--limit", type=LIMIT, default=100, show_default=True, help="How many at most.")
@click.option("--verbose", is_flag=True, help="Each call in full: every attempt, question and answer.")
@dsn_option
@json_option
@pass_session
@click.pass_context
def unresolved(
    ctx: click.Context,
    session: Session,
    call: str | None,
    tenant: str | None,
    limit: int,
    verbose: bool,
    as_json: bool,
) -> None:
    """List calls whose outcome is not known, effects nobody offset, and what is set aside.

    With CALL (an id, the beginning of one, or RUN/LABEL) that call alone, in full. Of the first nobody knows
    whether their effect happened: those in NEEDS_REPAIR wait for `fencepost repair`, the others are being
    reconciled. The second are owed: they were to be offset, and were not. The third failed too often and
    wait for `fencepost outbox requeue`. Then come calls that are held because what their MCP server offers is
    not what was pinned. Those wait for a person and stand first; what is being reconciled needs nobody, and
    effects that stay by design come last. Oldest first in each. Exit code 1 if there are any.
    """
    if call is not None:
        ctx.exit(_one(session, call, tenant, as_json=as_json))
    with session.connection() as connection:
        now = listings.now(connection)
        found = doubtful.unresolved(connection, tenant=tenant, limit=limit)
        stories = doubtful.stories(connection, found)
        left = abandoned(connection, tenant=tenant, limit=limit)
        stopped = aside.dead(connection, tenant=tenant, limit=limit)
        waiting = held(connection, tenant=tenant, limit=limit)
        warn(connection)
    cut_short(limit, found, left, stopped, waiting)
    if as_json:
        print_json([*(values(one, stories[one.call], now) for one in found), *left, *stopped, *waiting])
    elif not (found or left or stopped or waiting):
        click.echo(f"no call{of(tenant)} is unknown, held or left to a person")
    else:
        form = full if verbose else brief
        persons = [one for one in found if one.state == CallState.NEEDS_REPAIR]
        healing = [one for one in found if one.state != CallState.NEEDS_REPAIR]
        lines = [line for one in persons for line in form(one, stories[one.call], now)]
        lines += [line for effect in left if effect.owed for line in _told_left(effect, now)]
        lines += [line for row in stopped for line in told(row, now)]
        lines += [line for one in waiting for line in _told_held(one, now)]
        if lines:
            lines.insert(0, "waits for a person:")
        if healing:
            lines.append("is being settled, and needs nobody:")
            lines += [line for one in healing for line in form(one, stories[one.call], now)]
        if by_design := [effect for effect in left if not effect.owed]:
            lines.append(
                "left by design, of stopped runs: nothing offsets these; --leave takes one off the list"
            )
            lines += [line for effect in by_design for line in _told_left(effect, now)]
        for line in lines:
            click.echo(line)
    ctx.exit(1 if found or left or stopped or waiting else 0)


def _one(session: Session, call: str, tenant: str | None, *, as_json: bool) -> int:
    with session.connection() as connection:
        now = listings.now(connection)
        ref = find.find_call(connection, call, tenant)
        found = doubtful.unresolved(connection, tenant=ref.tenant, call=ref.call)
        stories = doubtful.stories(connection, found)
        waiting = held(connection, tenant=ref.tenant, call=ref.call)
    if waiting:
        if as_json:
            print_json(waiting[0])
        for line in () if as_json else _told_held(waiting[0], now):
            click.echo(line)
        return 1
    if not found and ref.state not in CALL_ENDS:
        raise FencepostError(
            f"call {ref.call} is {ref.state}: see what it waits for: fencepost show {ref.run}"
        )
    if not found:
        raise FencepostError(f"call {ref.call} is {ref.state}: its outcome is known")
    if as_json:
        print_json(values(found[0], stories[ref.call], now))
    else:
        for line in full(found[0], stories[ref.call], now):
            click.echo(line)
    return 1


def _told_held(one: Held, now: datetime) -> Iterator[str]:
    left = spoken(max(one.deadline - now, timedelta(0)))
    yield f"{cut(one.tool)} {cut(one.label)} of run {cut(one.run_key)}: held, for {left} more at most"
    yield f"  call    {one.call}"
    yield f"  why     {one_line(sanitize(one.why, 400))}"
    yield "  next    a person: fencepost mcp check; pin what it offers now and deploy, or cancel the run"


def _told_left(effect: Abandoned, now: datetime) -> Iterator[str]:
    since = spoken(now - effect.since)
    yield f"{cut(effect.tool)} {cut(effect.label)} of run {cut(effect.run_key)}: not offset for {since}"
    yield f"  call    {effect.call} (receipt {cut(effect.receipt or 'none')})"
    yield f"  why     {cut(effect.why)}"
    how = "--offset or --leave" if effect.again else "--leave"
    yield f"  next    a person: fencepost repair {effect.call} {how} --reason …"
