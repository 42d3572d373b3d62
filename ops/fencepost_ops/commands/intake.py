"""`fencepost intake`: messages of plain Celery clients that became no run, and why."""

from __future__ import annotations

import click

from fencepost.errors import NotFound
from fencepost.ledger import listings, refusals
from fencepost_ops.commands.output import cut_short, print_json, seen, when
from fencepost_ops.commands.sayings import of
from fencepost_ops.commands.session import (
    LIMIT,
    Session,
    dsn_option,
    json_option,
    pass_session,
    tenant_option,
)

_SHOWN = 300  # characters of a message; --json has all that was kept


@click.group(invoke_without_command=True)
@tenant_option
@click.option("--limit", type=LIMIT, default=100, show_default=True, help="How many at most.")
@dsn_option
@json_option
@pass_session
@click.pass_context
def intake(ctx: click.Context, session: Session, tenant: str | None, limit: int, as_json: bool) -> None:
    """List messages the intake could make no run of.

    Oldest first, each with the reason. Send what was meant anew, then forget the message with `fencepost
    intake drop ID`. Exit code 1 if there are any.
    """
    if ctx.invoked_subcommand is not None:
        return
    with session.connection() as connection:
        now = listings.now(connection)
        found = refusals.refusals(connection, tenant=tenant, limit=limit)
    cut_short(limit, found)
    if as_json:
        print_json(found)
    elif not found:
        click.echo(f"no message{of(tenant)} was refused")
    else:
        for one in found:
            click.echo(f"{one.id}  queue {seen(one.queue, 100)}, {when(one.received_at, now)}")
            click.echo(f"  for      {seen(one.tenant, 100)} as {seen(one.principal, 200)}")
            click.echo(f"  refused  {seen(one.error, 400)}")
            click.echo(f"  message  {seen(one.message, _SHOWN)}")
    ctx.exit(1 if found else 0)


@intake.command()
@click.argument("refused", metavar="ID")
@dsn_option
@json_option
@pass_session
def drop(session: Session, refused: str, as_json: bool) -> None:
    """Forget one that was dealt with.

    ID is as `fencepost intake` shows it, or the unique beginning of it; it takes an operator's login.
    """
    with session.connection() as connection:
        found = refusals.find(connection, refused)
        if not refusals.drop(connection, found):
            raise NotFound(f"there is no refused message {found} any more")
    if as_json:
        print_json({"dropped": found})
        return
    click.echo(f"dropped {found}")
