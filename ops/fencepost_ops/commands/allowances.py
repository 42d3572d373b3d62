"""`fencepost allowances`: what may still be let go, and for whom."""

from __future__ import annotations

from datetime import datetime

import click

from fencepost.allowances import spelled
from fencepost.ledger import listings
from fencepost.ledger.counters import Counter, counters
from fencepost_ops.commands.output import cut_short, print_json, print_table, shown, when
from fencepost_ops.commands.sayings import of
from fencepost_ops.commands.session import (
    LIMIT,
    Session,
    dsn_option,
    json_option,
    pass_session,
    tenant_option,
)


@click.command()
@tenant_option
@click.option("--all", "past", is_flag=True, help="Also windows that have ended, for a day.")
@click.option("--limit", type=LIMIT, default=1000, show_default=True, help="How many at most.")
@dsn_option
@json_option
@pass_session
def allowances(session: Session, tenant: str | None, past: bool, limit: int, as_json: bool) -> None:
    """List allowances that are used, per subject and window.

    USED is what counts against the limit: what happened, and what is HELD, because it is under way, will be
    tried again or is not known. FOR says whose the counter is; the counter itself knows a digest only, so
    nothing is said once the history of its first call is gone. An allowance nobody has used is not listed.
    """
    with session.connection() as connection:
        now = listings.now(connection)
        found = counters(connection, tenant=tenant, past=past, limit=limit)
    cut_short(limit, found)
    if as_json:
        print_json(found)
        return
    rows = [
        (
            one.tenant,
            one.allowance,
            _whose(one),
            _window(one, now),
            shown(_amount(one, one.calls, one.minor), "yellow" if _full(one) else ""),
            _amount(one, one.held_calls, one.held_minor) if one.held_calls else "",
            _limit(one),
            one.key[:12],
        )
        for one in found
    ]
    columns = ["TENANT", "ALLOWANCE", "FOR", "ENDS", "USED>", "HELD>", "LIMIT>", "COUNTER!?"]
    print_table(columns, rows, empty=f"no allowance{of(tenant)} has been used")


def _whose(one: Counter) -> str:
    if one.subject is None:
        return "not known any more"
    own = [f"{part} {name}" for part, name in sorted(one.subject.items()) if part != "tenant"]
    return ", ".join(own) or "the tenant"


def _window(one: Counter, now: datetime) -> str:
    return "never" if one.until is None else when(one.until, now)


def _amount(one: Counter, calls: int, minor: int) -> str:
    return f"{calls}, {spelled(minor, one.currency)}" if one.currency is not None else str(calls)


def _limit(one: Counter) -> str:
    money = [] if one.limit_minor is None else [spelled(one.limit_minor, one.currency or "")]
    return ", ".join([*([] if one.limit_calls is None else [str(one.limit_calls)]), *money])


def _full(one: Counter) -> bool:
    counted = one.limit_calls is not None and one.calls >= one.limit_calls
    return counted or (one.limit_minor is not None and one.minor >= one.limit_minor)
