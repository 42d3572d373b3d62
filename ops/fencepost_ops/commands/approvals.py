"""`fencepost approvals`, `approve` and `deny`: what waits for a person's word, and saying it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import click

from fencepost.canonical import sanitize
from fencepost.errors import FencepostError
from fencepost.ledger import approvals as reading
from fencepost.ledger import find, listings
from fencepost.states import CallState
from fencepost_ops.commands import asked
from fencepost_ops.commands.output import cut_short, print_json, print_table
from fencepost_ops.commands.sayings import of as whose
from fencepost_ops.commands.session import (
    LIMIT,
    Session,
    app_option,
    by_option,
    dsn_option,
    json_option,
    pass_session,
    reason_option,
    redis_option,
    tenant_option,
)

C = CallState
_OPEN: Final = frozenset({C.INTENT_RECORDED, C.AWAITING_APPROVAL})


@click.group(invoke_without_command=True)
@tenant_option
@click.option("--run", metavar="RUN", help="Only of this run: its id, the beginning of one, or its key.")
@click.option("--limit", type=LIMIT, default=100, show_default=True, help="How many at most.")
@dsn_option
@json_option
@pass_session
@click.pass_context
def approvals(
    ctx: click.Context, session: Session, tenant: str | None, run: str | None, limit: int, as_json: bool
) -> None:
    """List the calls that wait for an approval, what expires first in front.

    `fencepost approvals show CALL` prints exactly what will be sent; `fencepost approve` and `deny` decide.
    """
    if ctx.invoked_subcommand is not None:
        return
    with session.connection() as connection:
        now = listings.now(connection)
        of = find.find_run(connection, run, tenant)[1] if run is not None else None
        found = reading.waiting(connection, tenant=tenant, run=of, limit=limit)
    if as_json:
        cut_short(limit, found)
        print_json([asked.values(one) for one in found])
        return
    empty = f"nothing{whose(tenant)} waits for an approval"
    print_table(asked.COLUMNS, [asked.row(one, now) for one in found], empty=empty)
    if len(found) == limit:
        click.echo(f"these are the first {limit} to expire; --limit shows more")


@approvals.command()
@click.argument("call")
@tenant_option
@dsn_option
@json_option
@pass_session
def show(session: Session, call: str, tenant: str | None, as_json: bool) -> None:
    """Show what is asked about a call, and exactly what will be sent.

    CALL is a call's id, the beginning of one, or RUN/LABEL. What nobody would see in it is spelled out as
    ‹U+200B›. Approve it with --version as it is printed here, and nothing else is approved.
    """
    with session.connection() as connection:
        now = listings.now(connection)
        found = find.find_call(connection, call, tenant)
        one = reading.asked(connection, found.tenant, found.call)
    if one is None:
        raise FencepostError(f"nobody was asked to approve call {found.call}; it is {found.state}")
    if as_json:
        print_json(asked.values(one))
        return
    for line in asked.lines(one, now):
        click.echo(line)


def _deciding(command: Callable[..., None]) -> Callable[..., None]:
    """What `approve` and `deny` have in common."""
    for option in (
        pass_session,
        json_option,
        app_option,
        redis_option,
        dsn_option,
        tenant_option,
        click.option(
            "--version", "seen", type=int, metavar="N", help="The version you looked at; refuses another."
        ),
        by_option,
        reason_option,
        click.argument("call"),
    ):
        command = option(command)
    return command


@click.command()
@_deciding
def approve(session: Session, /, **given: Any) -> None:
    """Approve exactly what is asked about a call.

    CALL is a call's id, the beginning of one, or RUN/LABEL; it takes an operator's login. --by is a principal
    of the call's tenant. It serves this call with its retries until it expires, and is judged again whenever
    the call is sent. Where it takes two persons, each approves under a login of its own.
    """
    _decide(session, approve=True, **given)


@click.command()
@_deciding
def deny(session: Session, /, **given: Any) -> None:
    """Deny what is asked about a call, for good.

    CALL is a call's id, the beginning of one, or RUN/LABEL; it takes an operator's login. The call is
    REJECTED, its planner is told why, and a run that requires it stops. One person is enough.
    """
    _decide(session, approve=False, **given)


def _decide(
    session: Session,
    *,
    approve: bool,
    call: str,
    reason: str,
    by: str,
    seen: int | None,
    tenant: str | None,
    as_json: bool,
) -> None:
    with session.connection() as connection:
        found = find.find_call(connection, call, tenant)
    with session.client(app=session.app()) as client:
        decide = client.approve if approve else client.deny
        state = decide(found.call, by, reason, seen=seen)
    with session.connection() as connection:
        now = reading.asked(connection, found.tenant, found.call)
        against = reading.against(connection, found.tenant, found.call) if state in _OPEN else []
    missing = now.approval.missing if now is not None and state == C.AWAITING_APPROVAL else 0
    if as_json:
        told = {"call": found.call, "run": found.run, "tenant": found.tenant, "state": state}
        print_json(told | {"missing": missing, "against": against})
    elif found.state != C.AWAITING_APPROVAL:  # the same word again; another one would have been refused
        click.echo(f"{sanitize(by, 80)} has said so already, and it changes nothing: the call is {state}")
    elif state == C.AWAITING_APPROVAL:
        click.echo(f"call {found.call} waits for {asked.persons(missing)} more, under another login")
    elif state == C.INTENT_RECORDED:
        click.echo(
            f"call {found.call} is approved: it is sent as soon as its claim finds that all still holds"
        )
    else:
        click.echo(f"call {found.call} is {state}")
    if against and not as_json:
        click.echo(f"as it stands now it will be refused all the same: {'; '.join(against)}")
