"""`fencepost outbox`: what waits to be claimed, what nobody claims, and what is set aside for a person."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

import click

from fencepost.doorbell import Doorbell
from fencepost.errors import FencepostError
from fencepost.ledger import aside, find, listings
from fencepost.ledger.aside import Stopped
from fencepost.ledger.connect import Connection
from fencepost.states import Queue
from fencepost_ops.commands.durations import spoken
from fencepost_ops.commands.output import cut_short, print_json, print_table, shown, when
from fencepost_ops.commands.sayings import cut
from fencepost_ops.commands.session import (
    LIMIT,
    Session,
    dsn_option,
    json_option,
    pass_session,
    redis_option,
    tenant_option,
)

_ALL = 10_000

_COLUMNS = (
    "QUEUE",
    "ROWS>",
    "DUE>",
    "OLDEST>",
    "HELD>",
    "WAITING>",
    "SET ASIDE>",
    "NEXT",
    "REPUBLISHED>?",
)


@click.group(invoke_without_command=True)
@click.option("--dead", is_flag=True, help="List what is set aside; exit code 1 if there is any.")
@click.option("--unclaimed", is_flag=True, help="List what is published again and again and nobody claims.")
@click.option("--limit", type=LIMIT, default=100, show_default=True, help="How many to list at most.")
@dsn_option
@json_option
@pass_session
@click.pass_context
def outbox(
    ctx: click.Context, session: Session, dead: bool, unclaimed: bool, limit: int, as_json: bool
) -> None:
    """Count what waits in the outbox, per queue.

    A row that fails is tried five times and then set aside: it holds up no other and waits for a person, who
    mends the cause and says `fencepost outbox requeue`. A row nobody claims is published for ever.
    """
    if ctx.invoked_subcommand is not None:
        return
    if dead and unclaimed:
        raise click.UsageError("give --dead or --unclaimed, not both")
    if dead:
        ctx.exit(_list_dead(session, limit, as_json=as_json))
    if unclaimed:
        _list_unclaimed(session, limit, as_json=as_json)
        return
    with session.connection() as connection:
        now = listings.now(connection)
        found = listings.queues(connection)
    order = [str(queue) for queue in Queue]
    found.sort(key=lambda info: order.index(info.queue) if info.queue in order else len(order))
    if as_json:
        print_json(found)
        return
    rows = [
        (
            info.queue,
            info.rows,
            info.due,
            spoken(now - info.oldest_due_at) if info.oldest_due_at is not None else "",
            info.held,
            info.waiting,
            shown(info.dead, "bold red") if info.dead else 0,
            when(info.next_due_at, now),
            info.republished,
        )
        for info in found
    ]
    print_table(_COLUMNS, rows, empty="the outbox is empty: no run is open")


def _list_dead(session: Session, limit: int, *, as_json: bool) -> int:
    with session.connection() as connection:
        now = listings.now(connection)
        found = aside.dead(connection, limit=limit)
    cut_short(limit, found)
    if as_json:
        print_json(found)
    elif not found:
        click.echo("nothing is set aside")
    for row in [] if as_json else found:
        for line in told(row, now):
            click.echo(line)
    return 1 if found else 0


def told(row: Stopped, now: datetime) -> Iterator[str]:
    """What is set aside, since when and why, and how it is sent again."""
    what = f"{cut(row.label)} of " if row.label is not None else ""
    since = f" for {spoken(now - row.dead_at)}" if row.dead_at is not None else ""
    yield f"{row.needs} {what}run {cut(row.run_key)}: set aside{since}"
    yield f"  {row.kind:7} {row.subject} (generation {row.generation}, for the {cut(row.queue)})"
    yield f"  why     failed {row.failures} times; {cut(row.error)}"
    yield f"  next    a person: mend the cause, then fencepost outbox requeue {row.subject}"


def _list_unclaimed(session: Session, limit: int, *, as_json: bool) -> None:
    with session.connection() as connection:
        now = listings.now(connection)
        found = aside.unclaimed(connection, limit=limit)
    cut_short(limit, found)
    if as_json:
        print_json(found)
        return
    rows = [
        (
            row.queue,
            row.run_key,
            row.needs,
            spoken(now - row.due_at),
            row.published,
            row.failures,
            row.error,
            row.subject,
        )
        for row in found
    ]
    columns = ["QUEUE", "KEY", "NEEDS", "DUE FOR>", "PUBLISHED>", "FAILED>", "ERROR", "SUBJECT!?"]
    print_table(columns, rows, empty="whatever was published was claimed, or is new")


def _meant(connection: Connection, subject: str, tenant: str | None) -> list[Stopped]:
    try:
        return aside.find_dead(connection, subject, tenant)
    except FencepostError:
        if "/" not in subject:
            raise
    return aside.find_dead(connection, str(find.find_call(connection, subject, tenant).call), tenant)


@outbox.command()
@click.argument("subject", required=False)
@click.option("--all", "everything", is_flag=True, help="Whatever is set aside.")
@tenant_option
@dsn_option
@redis_option
@json_option
@pass_session
def requeue(
    session: Session, subject: str | None, everything: bool, tenant: str | None, as_json: bool
) -> None:
    """Send again what is set aside.

    SUBJECT is the id of a run or call, the unique beginning of one, a run key, or RUN/LABEL; it takes an
    operator's login. The row keeps its generation and may fail five times again.
    """
    if (subject is None) != everything:
        raise click.UsageError("name what to send again, or give --all")
    with session.connection() as connection:
        if subject is not None:
            found = _meant(connection, subject, tenant)
        else:
            found = aside.dead(connection, tenant=tenant, limit=_ALL)
        sent = set(aside.requeue(connection, [row.subject for row in found]))
    again = [row for row in found if row.subject in sent]
    if as_json:
        print_json(again)
    for row in [] if as_json else again:
        click.echo(f"{row.kind} {row.subject} of run {cut(row.run_key)} is sent again to the {row.queue}")
    if not sent:
        raise FencepostError("nothing is set aside")
    if len(found) == _ALL:
        click.echo(f"these are the first {_ALL}; say it again for the rest", err=True)
    if url := session.settings().redis_url:
        with Doorbell(url) as bell:
            bell.ring()
