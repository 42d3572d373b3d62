"""`fencepost verify`: whether the tables are what the events say, and nobody changed the events."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from fencepost.ledger import find
from fencepost.ledger.connect import Connection
from fencepost.ledger.verify import VerifyResult, verify_all, verify_run
from fencepost_ops.commands.output import console, print_json
from fencepost_ops.commands.sayings import cut
from fencepost_ops.commands.session import Session, dsn_option, json_option, pass_session, tenant_option


@click.command()
@click.argument("run", required=False)
@click.option("--all", "everything", is_flag=True, help="Every run there is.")
@tenant_option
@dsn_option
@json_option
@pass_session
@click.pass_context
def verify(
    ctx: click.Context, session: Session, run: str | None, everything: bool, tenant: str | None, as_json: bool
) -> None:
    """Replay histories against the tables.

    Of one RUN (an id, the unique beginning of one, or a run key) or of all, each link of its chain, each body
    and payload, its row and its calls' rows are checked. Exit code 1 on any fault.
    """
    if (run is not None) == everything:
        raise click.UsageError("name a RUN, or give --all")
    if tenant is not None and everything:
        raise click.UsageError("--tenant says whose RUN is meant; --all is every tenant's")
    faults, runs, events = [], 0, 0
    with session.connection() as connection, _watched() as told:
        for result in _results(connection, run, tenant):
            runs, events = runs + 1, events + result.events
            told(runs)
            if not result.ok:
                faults.append(result)
    if as_json:
        print_json({"runs": runs, "events": events, "faults": faults})
    else:
        for result in faults:
            click.echo(f"run {result.run} of tenant {cut(result.tenant)}: {cut(result.fault)}")
        found = "1 fault" if len(faults) == 1 else f"{len(faults) or 'no'} faults"
        click.echo(f"{runs} runs, {events} events: {found}")
    ctx.exit(1 if faults else 0)


def _results(connection: Connection, run: str | None, tenant: str | None) -> Iterator[VerifyResult]:
    if run is None:
        yield from verify_all(connection)
    else:
        yield verify_run(connection, *find.find_run(connection, run, tenant))


@contextmanager
def _watched() -> Iterator[Callable[[int], None]]:
    """Says on a terminal how far it is."""
    out = console(err=True)
    if not out.is_terminal:
        yield lambda _: None
        return
    with out.status("verifying") as status:
        yield lambda runs: status.update(f"verified {runs} runs")
