"""`fencepost check`: the checker's verdicts on a ledger, and on the services' own books where given."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import click

from fencepost.app import App
from fencepost.contracts import Dedupes, Natural, tool_class
from fencepost.errors import Unreachable, UsageError
from fencepost.ledger.connect import Connection
from fencepost.ledger.find import find_run
from fencepost.settings import redact
from fencepost.tools import Tool
from fencepost_ops.audit.books import reader_of
from fencepost_ops.checker import (
    SANDBOX_SERVICES,
    TOLERANCE,
    AllBooks,
    BookedBooks,
    BookEffect,
    BookReader,
    BookRequest,
    Report,
    SandboxBooks,
    Terms,
    ToolTerms,
)
from fencepost_ops.checker import check as hold
from fencepost_ops.checker.books import read_effect, read_request
from fencepost_ops.commands.output import print_json, print_table, shown
from fencepost_ops.commands.session import (
    Session,
    app_option,
    dsn_option,
    json_option,
    pass_session,
    tenant_option,
)
from fencepost_ops.sandbox.book import Book

_PATIENCE_S: Final = 10.0
_SLACK: Final = timedelta(hours=1)
"""How far a downstream's clock may be wrong, and how much later it may book an effect."""
_PERIOD: Final = """
SELECT coalesce(least(
    (SELECT min(created_at) FROM fencepost.runs WHERE %(all)s OR id = ANY(%(runs)s)),
    (SELECT min(o.first_sent_at) FROM fencepost.calls c JOIN fencepost.operations o
        ON o.key = c.operation AND o.tenant = c.tenant WHERE c.run = ANY(%(runs)s))
), fencepost.now()), fencepost.now(), clock_timestamp()
"""
_EVERY_S: Final = 2.0  # seconds between two words about how far it is
_SHOWN: Final = 20  # violations of one invariant on the screen; JSON has them all
_STYLES: Final = {"holds": "green", "violated": "bold red", "unchecked": "yellow"}


class RemoteBooks:
    """The sandbox's book over HTTP. Raises Unreachable when it does not answer, or answers something else."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")

    def services(self) -> Sequence[str]:
        """The sandbox's services."""
        return SANDBOX_SERVICES

    def effects(self, service: str) -> Sequence[BookEffect]:
        """See BookReader."""
        return [read_effect(wire) for wire in self._get("effects", service)]

    def requests(self, service: str) -> Sequence[BookRequest]:
        """See BookReader."""
        return [read_request(wire) for wire in self._get("requests", service)]

    def _get(self, what: str, service: str) -> list[Mapping[str, Any]]:
        address = f"{self._url}/{what}?service={service}"
        try:
            with urllib.request.urlopen(address, timeout=_PATIENCE_S) as answer:  # noqa: S310 - checked by `books`
                found: list[Mapping[str, Any]] = json.load(answer)[what]
        except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
            raise Unreachable(f"no book at {redact(self._url)}: {error}") from error
        return found


def books(place: str | None) -> BookReader | None:
    """The book at a URL, in a data folder of the sandbox, or in a file; None for no place.

    Raises UsageError where no sandbox has kept a book.
    """
    if not place:
        return None
    if place.startswith(("http://", "https://")):
        return RemoteBooks(place)
    book = Book(Path(place))
    try:
        book.effects(since=2**62)
    except FileNotFoundError as error:
        raise UsageError(f"--book: {error}") from error
    return SandboxBooks(book)


def booked(app: App | None, connection: Connection, runs: Collection[UUID] | None) -> BookReader | None:
    """The books that the application reads (`@dependency.book`), for as long as these runs can have had
    effects: from the first of them, or from the first time one of their intents was sent. None without any.
    Reading one raises Unreachable where its reader fails.
    """
    if app is None or not app.books:
        return None
    row = connection.execute(_PERIOD, {"all": runs is None, "runs": list(runs or ())}).fetchone()
    assert row is not None
    first, now, real = row
    ahead = max(now - real, timedelta(0))  # a ledger whose clock was moved; a book keeps its own time
    readers = {scope: reader_of(scope, app, None, None) for scope in app.books}
    return BookedBooks(readers, first - ahead - _SLACK, max(now, real) + _SLACK)


def terms(app: App | None) -> Terms:
    """What the application's contracts promise and allow, tool by tool; nothing is known without one."""
    return {place: _terms(tool) for place, tool in app.registry.items()} if app is not None else {}


def _terms(tool: Tool) -> ToolTerms:
    repeat = tool.contract.repeat
    return ToolTerms(
        kind=tool_class(tool.effect, tool.contract).value,
        attempts=tool.dependency.attempts,
        window=repeat.window if isinstance(repeat, Dedupes) else None,
        settle=tool.contract.settle,
        reserve=tool.dependency.reserve,
        sets=isinstance(repeat, Natural),
        compensable=tool.compensable,
    )


def print_report(report: Report) -> None:
    """The verdicts as a table, then every culprit, what waits for a person, and what was not asserted."""
    rows = [
        (v.invariant, shown(v.verdict, _STYLES[v.verdict]), v.count, len(v.violations) or "", v.promise)
        for v in report.verdicts
    ]
    print_table(["invariant!", "verdict!", "looked at>", "violations>", "it says that"], rows)
    for verdict in report.verdicts:
        for violation in verdict.violations[:_SHOWN]:
            click.echo(f"{verdict.invariant} is violated: {shown(violation.message).plain}")
        if (more := len(verdict.violations) - _SHOWN) > 0:
            click.echo(f"{verdict.invariant} is violated {more} times more; --json has them all")
    click.echo(f"books read: {shown(', '.join(report.books) or 'none').plain}")
    for line in report.waiting:
        click.echo(f"waiting: {shown(line).plain}")
    for verdict in report.verdicts:
        for note in dict.fromkeys(verdict.notes):
            click.echo(f"{verdict.invariant}, not asserted: {shown(note).plain}")


class _Progress:
    """Says on stderr how far it is, every few seconds; nothing where it takes less."""

    def __init__(self) -> None:
        self._said = time.monotonic()

    def __call__(self, runs: int, events: int) -> None:
        if time.monotonic() - self._said >= _EVERY_S:
            self._said = time.monotonic()
            click.echo(f"check: {runs} runs, {events} events so far", err=True)


@click.command()
@click.argument("run", required=False)
@click.option("--all", "everything", is_flag=True, help="Every run there is.")
@click.option(
    "--book",
    metavar="URL|PATH",
    envvar="FENCEPOST_SANDBOX_URL",
    help="The services' own book: a sandbox's address or data folder. By default FENCEPOST_SANDBOX_URL.",
)
@click.option(
    "--tolerance",
    metavar="SECONDS",
    type=click.FloatRange(min=0, max=_SLACK.total_seconds()),
    default=TOLERANCE.total_seconds(),
    show_default=True,
    help="How far a downstream's clock may be from the ledger's.",
)
@click.option("--settled", is_flag=True, help="Also assert that every run has ended or waits for a person.")
@tenant_option
@dsn_option
@app_option
@json_option
@pass_session
def check(
    session: Session,
    run: str | None,
    everything: bool,
    book: str | None,
    tolerance: float,
    settled: bool,
    tenant: str | None,
    as_json: bool,
) -> None:
    """Hold a ledger and the services' own books against the invariants.

    Of one RUN (an id, the unique beginning of one, or a run key) or of all. Besides --book, the books are
    read that the application reads itself (@dependency.book), of dependencies that --book keeps none of;
    the application's contracts say what each tool promises, and what that leaves open is told and not
    asserted. A running fleet may be checked at any time. Exit code 1 if anything is violated, 3 if a book
    cannot be read. Amounts are fencepost audit's to compare. A ledger of any size is read in one snapshot,
    a group of runs at a time; the books are read as a whole.
    """
    if (run is not None) == everything:
        raise click.UsageError("name a RUN, or give --all")
    if tenant is not None and everything:
        raise click.UsageError("--tenant says whose RUN is meant; --all is every tenant's")
    app, sandbox = session.app(), books(book)
    known = terms(app)
    with session.connection() as connection:
        only = None if run is None else [find_run(connection, run, tenant)[1]]
        given = [one for one in (sandbox, booked(app, connection, only)) if one is not None]
        reader = AllBooks(*given) if given else None
        apart = timedelta(seconds=tolerance)
        how: dict[str, Any] = {"settled": settled, "terms": known, "runs": only, "tolerance": apart}
        report = hold(connection, reader, progress=_Progress(), **how)
    if as_json:
        print_json(report.to_json())
    else:
        print_report(report)
    if not report.ok:
        click.get_current_context().exit(1)
