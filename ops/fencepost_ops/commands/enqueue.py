"""`fencepost enqueue`: runs from a file or a pipe."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Final

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from fencepost import Client
from fencepost.app import App
from fencepost.canonical import sanitize
from fencepost.client import Enqueued
from fencepost.errors import Conflict, Unreachable, UsageError
from fencepost.runrequest import RunRequest
from fencepost.tools import OnStop
from fencepost_ops.commands.durations import DURATION
from fencepost_ops.commands.output import console, print_json, print_table
from fencepost_ops.commands.requests import Defaults, read_requests
from fencepost_ops.commands.session import (
    Session,
    app_option,
    dsn_option,
    json_option,
    pass_session,
    redis_option,
)

MAX_FILE_BYTES: Final = 256 * 1024 * 1024
_SLICE: Final = 200  # runs between two moves of the progress bar
_BAR_FROM: Final = 51  # runs; fewer are there at once
_LISTED: Final = 20  # runs in the table
_KINDS: Final = {"created": "created", "existing": "existing", "conflict": "conflicts"}


@click.command()
@click.argument("planner", required=False)
@click.argument("file", required=False, metavar="[FILE|-]")
@click.option("--planner", "named", metavar="NAME", help="The planner of runs that name none.")
@click.option(
    "--version", type=click.IntRange(min=1), help="Its version; by default the application's newest."
)
@click.option("--tenant", metavar="NAME", help="The tenant of runs that name none.")
@click.option("--principal", metavar="NAME", help="The principal of runs that name none.")
@click.option(
    "--deadline", type=DURATION, default="5m", show_default=True, help="How long a run may plan and act."
)
@click.option(
    "--on-stop",
    type=click.Choice([str(choice) for choice in OnStop]),
    default=str(OnStop.COMPENSATE),
    show_default=True,
    help="What becomes of a stopped run's effects.",
)
@click.option("--tainted", is_flag=True, help="The inputs came from outside: policy treats them as such.")
@click.option(
    "--key-field", metavar="FIELD", help="Each object is an input; this field of it is the run key."
)
@dsn_option
@redis_option
@app_option
@json_option
@pass_session
def enqueue(
    session: Session,
    planner: str | None,
    file: str | None,
    named: str | None,
    version: int | None,
    tenant: str | None,
    principal: str | None,
    deadline: timedelta,
    on_stop: str,
    tainted: bool,
    key_field: str | None,
    as_json: bool,
) -> None:
    """Enqueue runs from a file or a pipe.

    FILE (or standard input) holds a JSON object, an array of them, or JSON Lines. Each is {"run_key": …,
    "input": …} and may have planner, version, tenant, principal, deadline ("5m"), budget, on_stop and
    tainted. The whole file is checked before anything is sent. The same runs again are the same runs; another
    request under a run key that is taken is a conflict, which costs the others nothing (exit code 1).

    The ledger takes any planner's name, and a run waits for a worker that knows it. Where the application is
    named (--app), one that it does not have is refused here.
    """
    planner, source = _arguments(planner, file, named)
    app = session.app()
    if planner is not None:
        _version_of(app)(planner, version)
    defaults = Defaults(
        planner=planner,
        version=version,
        tenant=tenant,
        principal=principal,
        deadline=deadline,
        on_stop=OnStop(on_stop),
        tainted=tainted,
        key_field=key_field,
        version_of=_version_of(app),
    )
    name = "standard input" if source == "-" else source
    requests = read_requests(_read(source), name, defaults)
    with session.client() as client:
        outcomes = _send(client, requests)
    _report(requests, outcomes, as_json)


def _arguments(planner: str | None, file: str | None, named: str | None) -> tuple[str | None, str]:
    """A single argument is a file if it is one or the planner is named otherwise, else the planner."""
    if (
        planner is not None
        and file is None
        and (named is not None or planner == "-" or Path(planner).is_file())
    ):
        planner, file = None, planner
    if planner is not None and named is not None and planner != named:
        raise click.UsageError(f"the planner is named twice: {planner} and {named}")
    planner = planner or named
    if file is None and sys.stdin.isatty():
        raise click.UsageError("name a FILE of runs, or pipe them in")
    return planner, file or "-"


def _version_of(app: App | None) -> Callable[[str, int | None], int]:
    def find(planner: str, version: int | None) -> int:
        if app is not None:
            return app.find_planner(planner, version).version
        return 1 if version is None else version

    return find


def _read(source: str) -> bytes:
    try:
        if source == "-":
            data = sys.stdin.buffer.read(MAX_FILE_BYTES + 1)
        else:
            with Path(source).open("rb") as stream:
                data = stream.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise UsageError(f"cannot read {sanitize(source, 200)}: {error.strerror}") from None
    if len(data) > MAX_FILE_BYTES:
        raise UsageError(f"{sanitize(source, 200)} is larger than {MAX_FILE_BYTES >> 20} MiB; split it")
    return data


def _send(client: Client, requests: Sequence[RunRequest]) -> list[Enqueued | Conflict]:
    outcomes: list[Enqueued | Conflict] = []
    try:
        with _progress(len(requests)) as advance:
            for start in range(0, len(requests), _SLICE):
                part = requests[start : start + _SLICE]
                outcomes += client.enqueue_many(part)
                advance(len(part))
    except Unreachable as error:
        raise Unreachable(f"{error} ({len(outcomes)} of {len(requests)} runs were sent before)") from error
    return outcomes


@contextmanager
def _progress(total: int) -> Iterator[Callable[[int], None]]:
    out = console(err=True)
    if total < _BAR_FROM or not out.is_terminal:
        yield lambda _: None
        return
    columns = TextColumn("enqueueing"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=out) as progress:
        task = progress.add_task("", total=total)
        yield lambda sent: progress.advance(task, sent)


def _report(requests: Sequence[RunRequest], outcomes: Sequence[Enqueued | Conflict], as_json: bool) -> None:
    kinds = [_kind(outcome) for outcome in outcomes]
    counts = {name: kinds.count(kind) for kind, name in _KINDS.items()}
    told = list(zip(requests, outcomes, kinds, strict=True))
    if as_json:
        runs = [
            {
                "run_key": request.run_key,
                "tenant": request.tenant,
                "outcome": kind,
                "run_id": outcome.run_id if isinstance(outcome, Enqueued) else None,
                "held_by": outcome.held_by if isinstance(outcome, Conflict) else None,
            }
            for request, outcome, kind in told
        ]
        print_json({**counts, "runs": runs})
    else:
        _tell(told, counts)
    if counts["conflicts"]:
        conflicts = [str(outcome) for outcome in outcomes if isinstance(outcome, Conflict)]
        more = f" (and {len(conflicts) - 1} more conflicts)" if len(conflicts) > 1 else ""
        raise Conflict(conflicts[0] + more)


def _tell(told: Sequence[tuple[RunRequest, Enqueued | Conflict, str]], counts: dict[str, int]) -> None:
    rows = [
        (outcome.run_id if isinstance(outcome, Enqueued) else "", request.run_key, request.tenant, kind)
        for request, outcome, kind in told[:_LISTED]
    ]
    print_table(["RUN!", "KEY", "TENANT", "OUTCOME"], rows)
    if len(told) > _LISTED:
        click.echo(f"… and {len(told) - _LISTED} more")
    click.echo(", ".join(f"{number} {name}" for name, number in counts.items()))


def _kind(outcome: Enqueued | Conflict) -> str:
    if isinstance(outcome, Conflict):
        return "conflict"
    return "created" if outcome.created else "existing"
