"""`fencepost watch`: one run as it happens, or the whole fleet."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Final, TypeVar
from uuid import UUID

import click
from rich.live import Live

from fencepost.errors import FencepostError, NotFound, Unreachable
from fencepost.ledger import find, listings, tail
from fencepost.ledger.connect import Connection, connect
from fencepost.states import RunStatus
from fencepost_ops.commands import live
from fencepost_ops.commands.durations import Duration
from fencepost_ops.commands.output import STYLES, console, print_json, print_json_line
from fencepost_ops.commands.session import Session, dsn_option, json_option, pass_session, tenant_option

T = TypeVar("T")

TICK_S: Final = 0.2
"""How long after an event it is shown at most, while Postgres answers at once."""
AGAIN_S: Final = 0.5  # between two tries to reach a Postgres that is away
INTERRUPTED: Final = 130


@click.command()
@click.argument("run", required=False)
@click.option("--timeout", type=Duration(), metavar="DURATION", help="Watch no longer than this.")
@click.option(
    "--interval",
    type=Duration(),
    default="1s",
    show_default=True,
    metavar="DURATION",
    help="Without RUN: how often to look.",
)
@click.option("--once", is_flag=True, help="Without RUN: look once.")
@tenant_option
@dsn_option
@json_option
@pass_session
@click.pass_context
def watch(
    ctx: click.Context,
    session: Session,
    run: str | None,
    timeout: timedelta | None,
    interval: timedelta,
    once: bool,
    tenant: str | None,
    as_json: bool,
) -> None:
    """Watch a run, or the fleet, live.

    RUN is a run's id, the unique beginning of one, or a run key: its history so far, then each event as it
    is recorded, until it ends. Exit code 0 if it completed, 1 if it stopped or has not ended in time. Without
    RUN: runs by status, queues, workers and what needs a person, again and again until Ctrl-C. A Postgres
    that goes away is waited for. With --json one object per line.
    """
    if run is None and tenant is not None:
        raise click.UsageError("--tenant goes with a RUN: the overview is of all")
    if run is not None and once:
        raise click.UsageError("--once is for the overview, which has no RUN; `fencepost show` looks once")
    reader = Reader(session, timeout, as_json=as_json)
    try:
        if run is None:
            Fleet(session, reader, as_json=as_json).watch(interval, once=once)
        else:
            ctx.exit(_watch_run(reader, run, tenant, as_json=as_json))
    except KeyboardInterrupt:
        ctx.exit(INTERRUPTED)  # the usual end of watching: nothing needs to be said
    finally:
        reader.close()


class Reader:
    """One session in Postgres that only reads, and comes back when Postgres does."""

    def __init__(self, session: Session, timeout: timedelta | None, *, as_json: bool) -> None:
        self._session = session
        self._until = None if timeout is None else time.monotonic() + timeout.total_seconds()
        self._as_json = as_json
        self._connection: Connection | None = None
        self._answered = False
        self._away = False

    def ask(self, question: Callable[[Connection], T]) -> T:
        """The answer. Raises Unreachable if there never was one, or none until the time is over."""
        while True:
            try:
                answer = self._asked(question)
            except Unreachable as error:
                self.close()
                if not self._answered or self.over:
                    raise
                self._note(f"{error}; waiting for it", away=True)
                self.rest(AGAIN_S)
                continue
            self._answered = True
            if self._away:
                self._note("Postgres answers again", away=False)
            return answer

    def _asked(self, question: Callable[[Connection], T]) -> T:
        with self._session.errors():
            if self._connection is None:
                self._connection = connect(
                    self._session.settings("dsn").dsn, "fencepost watch", autocommit=True
                )
                self._connection.execute("SET default_transaction_read_only = on")
            return question(self._connection)

    def _note(self, said: str, *, away: bool) -> None:
        if away and self._away:
            return
        self._away = away
        if self._as_json:
            print_json_line({"kind": "away" if away else "back", "message": said})
        else:
            click.echo(said, err=True)

    @property
    def over(self) -> bool:
        """Whether the time to watch is over."""
        return self._until is not None and time.monotonic() >= self._until

    def rest(self, seconds: float) -> None:
        """Wait so long, but not beyond the time to watch."""
        left = seconds if self._until is None else min(seconds, self._until - time.monotonic())
        time.sleep(max(0.0, left))

    def close(self) -> None:
        """Let go of the session."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _watch_run(reader: Reader, text: str, tenant: str | None, *, as_json: bool) -> int:
    owner, run_id = reader.ask(lambda connection: find.find_run(connection, text, tenant))
    run = reader.ask(lambda connection: listings.runs_by_id(connection, [run_id]))[0]
    story = live.Story(run)
    out = console()
    if as_json:
        print_json_line({"kind": "run", **{name: getattr(run, name) for name in run.__slots__}})
    else:
        click.echo(story.heading())
    after = 0
    while True:
        look = _look(reader, owner, run_id, after)
        after = max(after, look.seen)
        for line in () if as_json else story.lines(look):
            out.print(line, soft_wrap=True)
        for item in live.event_objects(look) if as_json else ():
            print_json_line(item)
        if look.ended:
            return _end(run, look, as_json=as_json)
        if reader.over:
            raise FencepostError(f"run {run_id} has not ended in time: it is {look.status}")
        if not look.more:
            reader.rest(TICK_S)


def _look(reader: Reader, tenant: str, run: UUID, after: int) -> tail.Look:
    look = reader.ask(lambda connection: tail.look(connection, tenant, run, after))
    if look is None:
        raise NotFound(f"there is no run {run} any more")
    return look


def _end(run: listings.RunInfo, look: tail.Look, *, as_json: bool) -> int:
    if as_json:
        print_json_line(
            {
                "kind": "end",
                "run_id": run.run_id,
                "status": look.status,
                "stop_reason": look.stop_reason,
                "stop_detail": look.stop_detail,
            }
        )
    else:
        console().print(live.ending(run, look), style=STYLES.get(look.status, ""), soft_wrap=True)
    return 0 if look.status == RunStatus.COMPLETED else 1


class Fleet:
    """The overview, look after look: a screen on a terminal, lines elsewhere."""

    def __init__(self, session: Session, reader: Reader, *, as_json: bool) -> None:
        self._limits = live.ages(session.settings())
        self._reader = reader
        self._as_json = as_json
        self._pace: live.Pace | None = None

    def watch(self, interval: timedelta, *, once: bool) -> None:
        """Look and show, until the time is over."""
        out = console()
        if once or self._as_json or not out.is_terminal:
            self._lines(interval, once=once)
            return
        with Live(console=out, auto_refresh=False) as screen:
            while True:
                screen.update(live.overview_screen(*self._seen()), refresh=True)
                if self._reader.over:
                    return
                self._reader.rest(interval.total_seconds())

    def _lines(self, interval: timedelta, *, once: bool) -> None:
        while True:
            seen = self._seen()
            if self._as_json:
                (print_json if once else print_json_line)(live.overview_object(*seen))
            elif once:
                console().print(live.overview_screen(*seen))
            else:
                click.echo(live.overview_line(*seen))
            if once or self._reader.over:
                return
            self._reader.rest(interval.total_seconds())

    def _seen(self) -> tuple[tail.Overview, live.Pace | None, live.Ages]:
        """One more look."""
        count = live.count_due(self._pace, self._reader.ask(listings.now))
        began = time.monotonic()
        found = self._reader.ask(lambda connection: tail.overview(connection, ended=count))
        self._pace = live.paced(self._pace, found, time.monotonic() - began)
        return found, self._pace, self._limits
