"""`fencepost workers`: who claims."""

from __future__ import annotations

from datetime import timedelta

import click

from fencepost.ledger import listings
from fencepost_ops.commands.durations import spoken
from fencepost_ops.commands.output import print_json, print_table, shown, when
from fencepost_ops.commands.session import Session, dsn_option, json_option, pass_session


@click.command()
@click.option("--all", "ended", is_flag=True, help="Also those that have ended.")
@dsn_option
@json_option
@pass_session
def workers(session: Session, ended: bool, as_json: bool) -> None:
    """List worker processes and what they hold."""
    ttl = timedelta(seconds=session.settings().worker_ttl_s)
    with session.connection() as connection:
        now = listings.now(connection)
        found = listings.workers(connection, ended=ended)
    if as_json:
        print_json(found)
        return
    rows = [
        (
            worker.role,
            worker.host,
            worker.pid,
            shown("ended", "yellow")
            if worker.ended_at is not None
            else shown("silent", "bold red")
            if now - worker.last_seen > ttl
            else shown("alive", "green"),
            when(worker.last_seen, now),
            worker.held,
            spoken((worker.ended_at or now) - worker.started_at),
            worker.token,
        )
        for worker in found
    ]
    columns = ["ROLE", "HOST", "PID>", "STATE", "SEEN", "HOLDS>", "AGE>?", "TOKEN!?"]
    print_table(columns, rows, empty="no workers")
