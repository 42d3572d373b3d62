"""`fencepost tokens`: who may ask over HTTP, for which tenant and as whom."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import click

from fencepost.ledger import listings, tokens
from fencepost_ops.commands.durations import Duration
from fencepost_ops.commands.output import print_json, print_table, seen, when
from fencepost_ops.commands.session import (
    Session,
    by_option,
    dsn_option,
    json_option,
    pass_session,
    tenant_option,
)


@click.group(invoke_without_command=True, name="tokens")
@tenant_option
@click.option("--all", "ended", is_flag=True, help="Also those that were revoked or have expired.")
@dsn_option
@json_option
@pass_session
@click.pass_context
def tokens_(ctx: click.Context, session: Session, tenant: str | None, ended: bool, as_json: bool) -> None:
    """List the tokens of producers over HTTP; their secrets are kept nowhere.

    `fencepost tokens new` makes one, `fencepost tokens revoke ID` ends one.
    """
    if ctx.invoked_subcommand is not None:
        return
    with session.connection() as connection:
        now = listings.now(connection)
        found = tokens.listed(connection, tenant, ended=ended)
    if as_json:
        print_json(found)
        return
    rows = [
        (
            one.id,
            one.tenant,
            ", ".join(one.principals),
            ", ".join(one.scopes),
            one.state(now),
            when(one.expires_at, now),
            when(one.last_used_at, now),
            one.note,
        )
        for one in found
    ]
    columns = ["ID!", "TENANT", "PRINCIPALS", "SCOPES?", "STATE", "EXPIRES?", "USED?", "NOTE?"]
    print_table(columns, rows, empty="no token counts: `fencepost tokens new` makes one")


@tokens_.command()
@click.option("--tenant", metavar="NAME", required=True, help="Whose runs it may start and see.")
@click.option(
    "--principal",
    "principals",
    multiple=True,
    required=True,
    metavar="NAME",
    help="Who its runs act for. Given again: who may be named instead.",
)
@click.option(
    "--scopes",
    default=",".join(tokens.SCOPES),
    show_default=True,
    metavar="LIST",
    help="What it may do, by commas.",
)
@click.option("--expires", type=Duration(), metavar="DURATION", help="It counts no longer than this, as 90d.")
@click.option("--note", default="", metavar="TEXT", help="What it is for.")
@by_option
@dsn_option
@json_option
@pass_session
def new(
    session: Session,
    tenant: str,
    principals: Sequence[str],
    scopes: str,
    expires: timedelta | None,
    note: str,
    by: str,
    as_json: bool,
) -> None:
    """Make a token, and print it: this once, for it is kept as a digest only.

    It takes an operator's login, and counts from now on.
    """
    wanted = [scope.strip() for scope in scopes.split(",") if scope.strip()]
    with session.connection() as connection:
        made, text = tokens.make(
            connection, tenant, principals, by=by, scopes=wanted, lifetime=expires, note=note
        )
    if as_json:
        print_json({"id": made.id, "token": text, "expires_at": made.expires_at})
        return
    click.echo(text)
    who = ", ".join(seen(name, 200) for name in made.principals)
    click.echo(
        f"token {made.id} of tenant {seen(made.tenant, 100)} for {who}: it is not shown again", err=True
    )


@tokens_.command()
@click.argument("token", metavar="ID")
@by_option
@dsn_option
@json_option
@pass_session
def revoke(session: Session, token: str, by: str, as_json: bool) -> None:
    """Have a token taken for nobody's, from the next request on and for good.

    ID is as `fencepost tokens` shows it. It takes an operator's login.
    """
    with session.connection() as connection:
        done = tokens.revoke(connection, token, by=by)
    if as_json:
        print_json(done)
    else:
        click.echo(f"token {done.id} is revoked")
