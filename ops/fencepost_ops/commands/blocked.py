"""`fencepost blocked`: runs that wait for a process which knows their planner's or a tool's version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Any
from uuid import UUID

import click

from fencepost.ledger import find, listings
from fencepost.ledger.blocked import Blocked, may_look
from fencepost.ledger.blocked import blocked as steps
from fencepost.ledger.connect import Connection
from fencepost.settings import Settings
from fencepost_ops.commands.durations import spoken
from fencepost_ops.commands.output import cut_short, print_json, print_table
from fencepost_ops.commands.sayings import of
from fencepost_ops.commands.session import (
    LIMIT,
    Session,
    dsn_option,
    json_option,
    pass_session,
    tenant_option,
)

WAY_OUT = (
    "start workers whose application has that version, or move a run to another version of its planner: "
    "fencepost repin RUN --to VERSION --reason …"
)


def by_run(connection: Connection, settings: Settings, runs: Sequence[UUID]) -> Mapping[UUID, Blocked]:
    """The longest blocked step of each of these runs that has one; none for a login that may not look."""
    if not may_look(connection):
        return {}
    found = steps(connection, timedelta(seconds=settings.worker_ttl_s), runs=runs)
    return {step.run: step for step in reversed(found)}


def as_object(step: Blocked) -> dict[str, Any]:
    """A step for machines: what is missing, since when, and what to do."""
    return asdict(step) | {"reason": step.reason, "way_out": WAY_OUT}


@click.command()
@click.argument("run", required=False)
@tenant_option
@click.option("--limit", type=LIMIT, default=100, show_default=True, help="How many at most.")
@dsn_option
@json_option
@pass_session
@click.pass_context
def blocked(
    ctx: click.Context, session: Session, run: str | None, tenant: str | None, limit: int, as_json: bool
) -> None:
    """List steps that are due and that no living worker can take.

    None of them knows the version of the planner or the tool. Nothing of such a run is counted or lost: it
    goes on once a worker knows the version, or stops at its deadline. With RUN those of that run. Exit code 1
    if there are any.
    """
    settings = session.settings("dsn")
    with session.connection() as connection:
        _, only = find.find_run(connection, run, tenant) if run is not None else ("", None)
        now = listings.now(connection)
        ttl = timedelta(seconds=settings.worker_ttl_s)
        found = steps(connection, ttl, runs=None if only is None else [only], tenant=tenant, limit=limit)
    cut_short(limit, found)
    if as_json:
        print_json([as_object(step) for step in found])
    else:
        rows = [
            (step.run, step.run_key, step.reason, spoken(now - step.since), spoken(step.deadline - now))
            for step in found
        ]
        print_table(
            ["RUN!", "KEY", "WHY", "SINCE>", "DEADLINE IN>?"], rows, empty=f"nothing{of(tenant)} is blocked"
        )
        if found:
            click.echo(WAY_OUT, err=True)
    ctx.exit(1 if found else 0)
