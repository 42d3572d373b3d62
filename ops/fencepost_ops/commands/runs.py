"""`fencepost runs` and `fencepost show`: the list of runs, and one run's whole history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from uuid import UUID

import click

from fencepost.errors import NotFound
from fencepost.ledger import find, listings, trees
from fencepost.ledger.blocked import Blocked
from fencepost.ledger.providers import Waiting
from fencepost.states import RunStatus
from fencepost_ops.commands import families, spent, timeline
from fencepost_ops.commands import waiting as providers
from fencepost_ops.commands.blocked import WAY_OUT, as_object, by_run
from fencepost_ops.commands.durations import spoken
from fencepost_ops.commands.holding import warn
from fencepost_ops.commands.output import cut_short, plain, print_json, print_table, seen, shown
from fencepost_ops.commands.sayings import of
from fencepost_ops.commands.session import (
    LIMIT,
    Session,
    dsn_option,
    json_option,
    pass_session,
    tenant_option,
)

_COLUMNS = (
    "RUN!",
    "KEY",
    "STATUS!",
    "WHY",
    "AGE>",
    "TENANT?",
    "PLANNER?",
    "TURN>?",
    "CALLS>?",
    "ATTEMPTS>?",
)


@click.command()
@click.option(
    "--status",
    type=click.Choice([str(status) for status in RunStatus], case_sensitive=False),
    multiple=True,
    help="Only of this status; may be given several times.",
)
@tenant_option
@click.option("--limit", type=LIMIT, default=50, show_default=True, help="How many at most.")
@click.option("--stuck", is_flag=True, help="Only those that wait for a person, or for a step nobody takes.")
@click.option("--waiting", is_flag=True, help="Only those that wait for the provider of their model.")
@click.option("--owed", is_flag=True, help="Only those that stopped and owe an offset: see unresolved.")
@click.option("--tree", is_flag=True, help="Each below the run that started it.")
@dsn_option
@json_option
@pass_session
def runs(
    session: Session,
    status: tuple[str, ...],
    tenant: str | None,
    limit: int,
    stuck: bool,
    waiting: bool,
    owed: bool,
    tree: bool,
    as_json: bool,
) -> None:
    """List runs, the newest first.

    WHY says what a run waits for, if it is a person, a worker that knows its version or the provider of its
    model: for how long, and until when; else why it has stopped.
    """
    with session.connection() as connection:
        now = listings.now(connection)
        found = listings.list_runs(
            connection, status=status, tenant=tenant, stuck=stuck, waiting=waiting, owed=owed, limit=limit
        )
        warn(connection)
        ids = [info.run_id for info in found]
        missing = by_run(connection, session.settings("dsn"), ids)
        waits = providers.by_run(connection, ids)
    if tree:
        found = _below_each_other(found)
    if as_json:
        cut_short(limit, found)
        print_json([_object(info, missing, waits) for info in found])
        return
    rows = [_row(info, _why(info, missing, waits, now), missing, now, tree=tree) for info in found]
    print_table(_COLUMNS, rows, empty=f"no runs{of(tenant)}")
    if len(found) == limit:
        click.echo(f"these are the newest {limit}; --limit shows more")


def _object(
    info: listings.RunInfo, missing: Mapping[UUID, Blocked], waits: Mapping[UUID, Waiting]
) -> dict[str, object]:
    step = missing.get(info.run_id)
    waiting = providers.as_json(waits.get(info.run_id))
    return asdict(info) | {"blocked_on": None if step is None else step.reason, "waits_for": waiting}


def _row(
    info: listings.RunInfo, why: str | None, missing: Mapping[UUID, Blocked], now: datetime, *, tree: bool
) -> tuple[object, ...]:
    return (
        "  " * info.depth + str(info.run_id) if tree else info.run_id,
        info.run_key,
        _standing(info, missing),
        why,
        spoken(now - info.created_at),
        info.tenant,
        f"{info.planner} v{info.planner_version}",
        info.turn,
        info.calls,
        info.attempts,
    )


def _below_each_other(found: Sequence[listings.RunInfo]) -> list[listings.RunInfo]:
    """Each run after the one that started it, as far as that is listed; else where it stood."""
    listed = {info.run_id for info in found}
    placed: list[listings.RunInfo] = []

    def place(info: listings.RunInfo) -> None:
        placed.append(info)
        for below in reversed(found):  # the oldest first, as they were started
            if below.parent == info.run_id:
                place(below)

    for info in found:
        if info.parent not in listed:
            place(info)
    return placed


def owes(number: int) -> str:
    """That so many effects were to be offset and were not."""
    return f"{number} effect{' is' if number == 1 else 's are'} owed an offset: fencepost unresolved"


def _standing(info: listings.RunInfo, missing: Mapping[UUID, Blocked]) -> object:
    blocked = info.blocked or info.run_id in missing
    return shown(f"BLOCKED ({info.status})", "bold red") if blocked else info.status


def _why(
    info: listings.RunInfo, missing: Mapping[UUID, Blocked], waits: Mapping[UUID, Waiting], now: datetime
) -> str | None:
    if info.blocked:
        return timeline.waits_for(info.awaiting, info.repairs)
    if info.owed:
        return f"{info.stop_reason}; {owes(info.owed)}"
    if info.run_id in missing:
        return missing[info.run_id].reason
    return providers.told(waits[info.run_id], now) if info.run_id in waits else info.stop_reason


@click.command()
@click.argument("run")
@tenant_option
@click.option("--events", is_flag=True, help="With the body of every event.")
@click.option("--tree", is_flag=True, help="Only the runs above and below it, and how long each took.")
@dsn_option
@json_option
@pass_session
def show(session: Session, run: str, tenant: str | None, events: bool, tree: bool, as_json: bool) -> None:
    """Show one run and what happens next.

    What it used and where its time went, its timeline with attempts, terms, workers and receipts, then its
    calls. RUN is a run's id, the unique
    beginning of one, or a run key.
    """
    with session.connection() as connection:
        owner, run_id = find.find_run(connection, run, tenant)
        history = listings.history(connection, owner, run_id)
        root = history.run.root or run_id if tree and history is not None else run_id
        below = trees.tree(connection, owner, root) if history is not None else []
        step = by_run(connection, session.settings("dsn"), [run_id]).get(run_id)
        waits = providers.by_run(connection, [run_id]).get(run_id)
        epoch = warn(connection)
    if history is None:
        raise NotFound(f"there is no run {run}")
    if tree:
        _tree(below, as_json=as_json)
        return
    if as_json:
        print_json(plain(history) | _facts(history, step, waits, below))
        return
    for line in (*timeline.header(history), *spent.told(history)):
        click.echo(line)
    if step is not None:
        click.echo(f"blocked for {spoken(history.now - step.since)}: {seen(step.reason, 400)}; {WAY_OUT}")
    if waits is not None:
        click.echo(providers.told(waits, history.now))
    if (slow := families.latency(below)) is not None:
        click.echo(slow.told)
    click.echo()
    print_table(
        timeline.EVENT_COLUMNS, timeline.event_rows(history, bodies=events), empty="nothing has happened yet"
    )
    click.echo()
    print_table(timeline.CALL_COLUMNS, timeline.call_rows(history), empty="no calls")
    click.echo()
    if len(below) > 1:
        _family(below)
        click.echo()
    for line in timeline.following(history, held=epoch is not None):
        click.echo(line)


def _facts(
    history: listings.History, step: Blocked | None, waits: Waiting | None, below: Sequence[trees.Member]
) -> dict[str, object]:
    """What is said of a run beside its history; `children` are all below it."""
    return {
        "used": spent.used(history),
        "hops": spent.hops(history),
        "blocked": None if step is None else as_object(step),
        "waits_for": providers.as_json(waits),
        "children": families.as_json(below[1:]),
        "children_cut": len(below) == trees.MOST,
        "latency": families.latency(below),
    }


def _tree(members: Sequence[trees.Member], *, as_json: bool) -> None:
    if as_json:
        print_json(families.as_json(members))
        return
    _family(members)
    if (slow := families.latency(members)) is not None:
        click.echo(slow.told)


def _family(members: Sequence[trees.Member]) -> None:
    print_table(families.COLUMNS, families.rows(members), empty="no runs")
    if len(members) == trees.MOST:
        click.echo(f"these are the first {trees.MOST} runs of its tree; show one of them for those below it")
