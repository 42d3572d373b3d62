"""`fencepost workers`: who claims, whether it gets on, and what it holds."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Final

import click

from fencepost.ledger import listings
from fencepost_ops.commands.durations import spoken
from fencepost_ops.commands.holding import warn
from fencepost_ops.commands.output import print_json, print_table, shown, when
from fencepost_ops.commands.session import Session, dsn_option, json_option, pass_session

STYLES: Final = {
    "alive": "green",
    "busy": "green",
    "draining": "yellow",
    "ended": "yellow",
    "stalled": "bold red",
    "silent": "bold red",
}
UNWELL: Final = ("stalled", "silent")


@click.command()
@click.option("--all", "ended", is_flag=True, help="Also those that have ended.")
@click.option("--check", is_flag=True, help="Exit with 1 if any is stalled or silent, or Postgres read-only.")
@dsn_option
@json_option
@pass_session
def workers(session: Session, ended: bool, check: bool, as_json: bool) -> int:
    """List worker processes, whether they get on, and what they hold.

    alive · busy: it executes something · draining: it takes no more · stalled: it has room and its queue has
    work, but it has made no progress for FENCEPOST_DEAF_S · silent: no stamp for FENCEPOST_WORKER_TTL_S ·
    ended.
    """
    settings = session.settings()
    ttl = timedelta(seconds=settings.worker_ttl_s)
    limit = timedelta(seconds=settings.deaf_s) if settings.deaf_s else None
    with session.connection() as connection:
        now = listings.now(connection)
        found = listings.workers(connection, ended=ended)
        warn(connection)
        (read_only,) = connection.execute("SHOW transaction_read_only").fetchone() or ("off",)
    if read_only == "on":
        click.echo("Postgres is read-only: nothing can be recorded, and every run stands still", err=True)
    states = [worker.state(now, ttl, limit) for worker in found]
    if as_json:
        print_json([_plain(worker, state) for worker, state in zip(found, states, strict=True)])
    else:
        rows = [
            (
                worker.role,
                worker.host,
                worker.pid,
                shown(state, STYLES[state]),
                when(worker.progress_at, now),
                _load(worker),
                when(min(worker.last_seen, now), now),
                worker.held,
                spoken((worker.ended_at or now) - worker.started_at),
                worker.token,
            )
            for worker, state in zip(found, states, strict=True)
        ]
        columns = ["ROLE", "HOST", "PID>", "STATE", "PROGRESS", "BUSY>", "SEEN", "HOLDS>", "AGE>?", "TOKEN!?"]
        print_table(columns, rows, empty="no workers")
    return int(check and (read_only == "on" or any(state in UNWELL for state in states)))


def _plain(worker: listings.WorkerInfo, state: str) -> dict[str, object]:
    values = {field.name: getattr(worker, field.name) for field in dataclasses.fields(worker)}
    return {**values, "state": state}


def _load(worker: listings.WorkerInfo) -> str:
    return "" if worker.busy is None else f"{worker.busy}/{worker.slots}"
