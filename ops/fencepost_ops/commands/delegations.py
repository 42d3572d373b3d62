"""`fencepost delegations`, `delegate` and `revoke`: who acts with whose authority, for what, until when."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

import click

from fencepost.clock import parse_rfc3339, rfc3339
from fencepost.ledger import listings, principals
from fencepost_ops.commands.durations import DURATION, spoken
from fencepost_ops.commands.output import print_json, print_table, shown, when
from fencepost_ops.commands.sayings import cut
from fencepost_ops.commands.session import (
    Session,
    by_option,
    dsn_option,
    json_option,
    pass_session,
    reason_option,
    tenant_option,
)

_COLUMNS: Final = ["FROM", "TO", "TOOLS", "TENANT", "STATE", "UNTIL", "BY?", "REASON?", "ID!"]


class _Instant(click.ParamType[datetime]):
    name = "instant"

    def convert(
        self, value: str | datetime, param: click.Parameter | None, ctx: click.Context | None
    ) -> datetime:
        try:
            return value if isinstance(value, datetime) else parse_rfc3339(value)
        except ValueError:
            return self.fail(f"{cut(value)} is no moment such as 2026-01-31T12:00:00Z", param, ctx)


@click.command("delegations")
@click.option("--all", "ended", is_flag=True, help="Also those that were revoked or have expired.")
@tenant_option
@dsn_option
@json_option
@pass_session
def delegations_(session: Session, ended: bool, tenant: str | None, as_json: bool) -> None:
    """List who acts with whose authority."""
    with session.connection() as connection:
        now = listings.now(connection)
        found = principals.delegations(connection, tenant, ended=ended)
    if as_json:
        print_json([{**_fields(one), "state": one.state(now)} for one in found])
        return
    rows = [
        (
            one.principal,
            one.delegate,
            one.tools,
            one.tenant,
            shown(one.state(now), "" if one.state(now) == "valid" else "yellow"),
            f"in {spoken(one.until - now)}" if one.until > now else when(one.until, now),
            one.made_by,
            one.reason,
            one.id,
        )
        for one in found
    ]
    print_table(_COLUMNS, rows, empty="nobody acts with another's authority")


def _after(now: datetime, span: timedelta) -> datetime:
    try:
        return now + span
    except OverflowError:
        raise click.UsageError("--for ends after the year 9999; name a shorter span, such as 365d") from None


def _fields(one: principals.DelegationInfo) -> dict[str, object]:
    return {name: getattr(one, name) for name in one.__dataclass_fields__}


@click.command()
@click.option("--from", "principal", metavar="NAME", required=True, help="Whose authority is used.")
@click.option("--to", "delegate", metavar="NAME", required=True, help="Who may use it.")
@click.option("--tools", metavar="PATTERN", default="*", show_default=True, help="For which; * is any text.")
@click.option("--until", type=_Instant(), metavar="MOMENT", help="When it ends.")
@click.option("--for", "span", type=DURATION, metavar="SPAN", help="How long it holds, from now: 4h, 7d.")
@click.option("--tenant", metavar="NAME", required=True, help="Of which tenant.")
@reason_option
@by_option
@dsn_option
@json_option
@pass_session
def delegate(
    session: Session,
    principal: str,
    delegate: str,
    tools: str,
    until: datetime | None,
    span: timedelta | None,
    tenant: str,
    reason: str,
    by: str,
    as_json: bool,
) -> None:
    """Let one principal act with the authority of another, for a while.

    It takes an operator's login. It gives no more than whoever delegates has at each instant, and nothing
    while they are disabled.
    """
    if (until is None) == (span is None):
        raise click.UsageError("say when it ends: --until MOMENT or --for SPAN")
    with session.connection() as connection:
        end = until if until is not None else _after(listings.now(connection), span or timedelta(0))
        made = principals.delegate(
            connection, tenant, principal, delegate, tools=tools, until=end, by=by, reason=reason
        )
    if as_json:
        print_json(made)
        return
    what = "everything" if made.tools == "*" else cut(made.tools)
    click.echo(
        f"{cut(made.delegate)} acts with the authority of {cut(made.principal)} for {what} in "
        f"{cut(made.tenant)} until {rfc3339(made.until)}: delegation {made.id}"
    )


@click.command()
@click.argument("delegation")
@reason_option
@by_option
@dsn_option
@json_option
@pass_session
def revoke(session: Session, delegation: str, reason: str, by: str, as_json: bool) -> None:
    """End a delegation now.

    DELEGATION is its id, or the unique beginning of one; it takes an operator's login. From then on it counts
    in no claim: also not for calls that were authorised by it and have not been sent.
    """
    with session.connection() as connection:
        ended = principals.revoke(connection, delegation, by=by, reason=reason)
    if as_json:
        print_json(ended)
        return
    click.echo(f"{cut(ended.delegate)} acts no more with the authority of {cut(ended.principal)}")
