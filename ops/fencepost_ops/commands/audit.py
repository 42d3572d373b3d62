"""`fencepost audit`: the ledger against a downstream's own list of effects, once or again and again."""

from __future__ import annotations

import csv
import io
import json
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any, Final

import click

from fencepost.books import BookedEffect
from fencepost.canonical import sanitize
from fencepost.clock import rfc3339
from fencepost.errors import Unreachable, UsageError
from fencepost.ledger import epochs, listings
from fencepost.settings import variable
from fencepost.states import CallState
from fencepost_ops.audit.auditing import Audit, audited
from fencepost_ops.audit.books import reader_of, scope_of
from fencepost_ops.audit.compare import DIFFERENCES, SAYINGS, Finding, Intent, Kind
from fencepost_ops.audit.intents import Intents
from fencepost_ops.audit.spool import Spool
from fencepost_ops.commands.durations import DURATION, MOMENT, at, spoken
from fencepost_ops.commands.masking import MASK, masked, secret
from fencepost_ops.commands.output import plain, print_table, shown
from fencepost_ops.commands.sayings import cut
from fencepost_ops.commands.session import Session, app_option, dsn_option, json_option, pass_session

_SHOWN: Final = 50  # findings on the screen; JSON and CSV have them all
_EVERY_S: Final = 2.0  # seconds between two words about how far it is
_OPEN: Final = frozenset({Kind.IN_DOUBT, Kind.MOVING})
_CSV: Final = (
    "kind",
    "tenant",
    "run_key",
    "run",
    "call",
    "tool",
    "state",
    "key",
    "ledger_receipt",
    "first_sent_at",
    "downstream_receipts",
    "downstream_at",
    "differences",
    "next",
)


@click.command()
@click.argument("dependency")
@click.option(
    "--since",
    type=MOMENT,
    default="24h",
    show_default=True,
    metavar="MOMENT",
    help="From when on: 24h (ago), a day, RFC 3339.",
)
@click.option("--until", type=MOMENT, metavar="MOMENT", help="To before when; by default now.")
@click.option(
    "--slack",
    type=DURATION,
    default="1h",
    show_default=True,
    help="How far the downstream's clock may be wrong, and how much later it may book an effect.",
)
@click.option(
    "--book",
    metavar="URL|PATH",
    help="A sandbox's address or data folder, instead of the application's own reader.",
)
@click.option("--service", metavar="NAME", help="With --book: the sandbox's service, if it has another name.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV, a line per finding.")
@click.option("--every", type=DURATION, metavar="SPAN", help="Audit again and again, until a signal ends it.")
@dsn_option
@app_option
@json_option
@pass_session
def audit(
    session: Session,
    dependency: str,
    since: datetime | timedelta,
    until: datetime | timedelta | None,
    slack: timedelta,
    book: str | None,
    service: str | None,
    as_csv: bool,
    every: timedelta | None,
    as_json: bool,
) -> None:
    """Hold the ledger against the downstream's own list of effects, both ways.

    DEPENDENCY is its name, or name/account. The application says how its list is read (@dependency.book), or
    --book names a sandbox; by default that of FENCEPOST_SANDBOX_URL. What differs is listed: missing,
    duplicate, without intent, found although in doubt or denied, and differing in receipt, amount or
    arguments; then what is in doubt on both sides. A running fleet may be audited at any time. Exit code 1 if
    anything differs; with --every, if anything ever did, else 3 if one of the audits could not be done.
    """
    if as_csv and as_json:
        raise click.UsageError("give --json or --csv, not both")
    if every is not None and until is not None:
        raise click.UsageError("--every audits up to now each time: leave out --until")
    app = session.app()
    scope = scope_of(dependency, app)
    read = reader_of(scope, app, book, service, variable("FENCEPOST_SANDBOX_URL"))
    form = _JSON(line=every is not None) if as_json else _CSVForm() if as_csv else _Table()

    def once() -> int:
        with session.connection() as connection:
            now = listings.now(connection)
            begin, end = at(since, now), now if until is None else at(until, now)
            if begin >= end:
                raise UsageError(f"the period is empty: {rfc3339(begin)} is not before {rfc3339(end)}")
            intents = Intents(connection, scope, app)
            with audited(intents, read, scope, begin, end, slack=slack, progress=_Progress()) as (
                done,
                spool,
            ):
                form.tell(done, spool)
            epochs.note_audit(connection, scope, begin, done.differences)
            return done.differences

    code = min(once(), 1) if every is None else _again(once, every)
    click.get_current_context().exit(code)


def _again(once: Callable[[], int], every: timedelta) -> int:
    """Audit every so often, until SIGINT or SIGTERM; the exit code.

    What cannot be reached is told, and ends nothing: the next audit tries again.
    """
    differing, away = 0, False
    with _ended_by_signal() as ended:
        while not ended.is_set():
            begun = time.monotonic()
            try:
                differing += once()
            except Unreachable as error:
                away = True
                click.echo(f"audit: {error}; the next audit tries again", err=True)
            sys.stdout.flush()
            ended.wait(max(every.total_seconds() - (time.monotonic() - begun), 0))
    return 1 if differing else Unreachable.exit_code if away else 0


@contextmanager
def _ended_by_signal() -> Iterator[threading.Event]:
    ended = threading.Event()
    before = {
        number: signal.signal(number, lambda *_: ended.set()) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield ended
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Progress:
    """Says on stderr how far it is, every two seconds; nothing where it takes less."""

    def __init__(self) -> None:
        self._said = time.monotonic()

    def __call__(self, what: str, count: int) -> None:
        if time.monotonic() - self._said >= _EVERY_S:
            self._said = time.monotonic()
            click.echo(f"audit: {count} {what} read so far", err=True)


class _Table:
    """For people: what differs, what is open, and how much of each there is."""

    def tell(self, done: Audit, spool: Spool) -> None:
        kept: list[Finding] = []
        for finding in done.findings(spool):
            if (finding.kind in DIFFERENCES or finding.kind in _OPEN) and len(kept) < _SHOWN:
                kept.append(finding)
        span = f"{rfc3339(done.since)} to {rfc3339(done.until)} ({spoken(done.until - done.since)})"
        click.echo(f"{done.scope}, {span}: {done.intents} intents, {done.effects} effects")
        counts = [(kind, done.counts[kind], SAYINGS[kind]) for kind in Kind if done.counts[kind]]
        cells = [
            (shown(kind, "bold red" if kind in DIFFERENCES else ""), count, says)
            for kind, count, says in counts
        ]
        print_table(["FOUND!", "COUNT>", "WHICH MEANS"], cells, empty="nothing was sent and nothing happened")
        for finding in kept:
            for line in _lines(finding):
                click.echo(line)
        more = done.differences + sum(done.counts[kind] for kind in _OPEN) - len(kept)
        if more > 0:
            click.echo(f"and {more} more; --json or --csv has them all")
        several = "" if done.differences == 1 else "s"
        click.echo(f"{done.differences} difference{several}" if done.differences else "nothing differs")


class _JSON:
    """One document, written as it is found; on one line where many follow each other."""

    def __init__(self, *, line: bool) -> None:
        self._end = "" if line else "\n"

    def tell(self, done: Audit, spool: Spool) -> None:
        head = {"dependency": done.scope, "since": rfc3339(done.since), "until": rfc3339(done.until)}
        click.echo(json.dumps(head)[:-1] + ', "findings": [' + self._end, nl=False)
        first = True
        for finding in done.findings(spool):
            if finding.kind in DIFFERENCES or finding.kind in _OPEN:
                click.echo(
                    ("" if first else "," + (self._end or " ")) + json.dumps(_value(finding)), nl=False
                )
                first = False
        counts = {str(kind): done.counts[kind] for kind in Kind}
        tail = {
            "counts": counts,
            "intents": done.intents,
            "effects": done.effects,
            "differences": done.differences,
        }
        click.echo(self._end + "], " + json.dumps(tail)[1:])


class _CSVForm:
    """A line per finding; a heading once."""

    def __init__(self) -> None:
        self._headed = False

    def tell(self, done: Audit, spool: Spool) -> None:
        if not self._headed:
            _write(_CSV)
            self._headed = True
        for finding in done.findings(spool):
            if finding.kind in DIFFERENCES or finding.kind in _OPEN:
                _write(_cells(finding))


def _write(cells: tuple[object, ...]) -> None:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(cells)
    click.echo(line.getvalue(), nl=False)


def _cells(finding: Finding) -> tuple[object, ...]:
    value = _value(finding)
    call = value["intent"] or {}
    texts = (
        finding.kind,
        *(
            call.get(name)
            for name in ("tenant", "run_key", "run", "call", "tool", "state", "key", "receipt", "first_at")
        ),
        " ".join(str(effect["receipt"]) for effect in value["effects"]),
        " ".join(effect["at"] for effect in value["effects"]),
        "; ".join(
            f"{d['field']}: {json.dumps(d['ledger'])} / {json.dumps(d['downstream'])}"
            for d in value["differences"]
        ),
        value["next"],
    )
    return tuple(_cell(text) for text in texts)


def _cell(text: object) -> str:
    """A cell that no spreadsheet takes for a formula."""
    safe = "" if text is None else sanitize(text, 2000)
    return f"'{safe}" if safe[:1] in {"=", "+", "-", "@", "\t"} else safe


def _value(finding: Finding) -> dict[str, Any]:
    intent = finding.intent
    return {
        "kind": str(finding.kind),
        "means": SAYINGS[finding.kind],
        "intent": plain(_kept(intent)) if intent is not None else None,
        "effects": [_effect(effect) for effect in finding.effects],
        "differences": [
            {
                "field": d.field,
                **{side: _shown(d.field, getattr(d, side)) for side in ("ledger", "downstream")},
            }
            for d in finding.differences
        ],
        "next": _next(finding),
    }


def _kept(intent: Intent) -> dict[str, Any]:
    value = {name: kept for name, kept in asdict(intent).items() if name not in {"digest", "moving"}}
    return value | {"arguments": masked(value["arguments"]), "sent": masked(value["sent"])}


def _effect(effect: BookedEffect) -> dict[str, Any]:
    value: dict[str, Any] = plain(asdict(effect))
    return value | {"arguments": masked(value["arguments"])}


def _shown(field: str, value: Any) -> Any:
    return MASK if secret(field) else masked(value)


def _lines(finding: Finding) -> Iterator[str]:
    intent, effects = finding.intent, finding.effects
    if intent is not None:
        what = f"{cut(intent.tool)} {cut(intent.label)} of run {cut(intent.run_key)}"
        yield f"{finding.kind}: {what} ({intent.state})"
        sent = f"first sent {rfc3339(intent.first_at)}"
        yield f"  call    {intent.call} (receipt {cut(intent.receipt or 'none')}), {sent}"
    else:
        yield f"{finding.kind}: no call of this ledger has its key, receipt or reference"
    for effect in effects[:_SHOWN]:
        named = effect.receipt or effect.key or effect.reference
        yield f"  effect  {cut(named)} at {rfc3339(effect.at)}"
    if len(effects) > _SHOWN:
        yield f"  and {len(effects) - _SHOWN} more effects; --json or --csv has them all"
    for differ in finding.differences:
        ledger, downstream = (
            json.dumps(_shown(differ.field, side)) for side in (differ.ledger, differ.downstream)
        )
        yield f"  {cut(differ.field)}: the ledger has {cut(ledger)}, the downstream {cut(downstream)}"
    if (following := _next(finding)) is not None:
        yield f"  next    {following}"


def _next(finding: Finding) -> str | None:
    """What a person can do about it, where the ledger can do anything."""
    intent = finding.intent
    if intent is None:
        return "ask who did it, and offset it at the downstream if it should not be there"
    repair = f"fencepost repair {intent.call} --seen {intent.version} --reason TEXT"
    receipt = finding.effects[0].receipt if finding.effects else None
    match finding.kind:
        case Kind.IN_DOUBT_FOUND if intent.state in {CallState.NEEDS_REPAIR, CallState.ACCEPTED_UNKNOWN}:
            return f"{repair} --happened --receipt {receipt or 'RECEIPT'}"
        case Kind.IN_DOUBT_FOUND:
            return "the reconciler is at it; otherwise fencepost unresolved says who is next"
        case Kind.IN_DOUBT if intent.state == CallState.NEEDS_REPAIR:
            return f"{repair} --did-not-happen"
        case Kind.DUPLICATE:
            return f"fencepost show {intent.run}; offset all but one at the downstream"
        case Kind.MISSING | Kind.DIFFERENT | Kind.DENIED_FOUND | Kind.IN_DOUBT_FOUND:
            return f"fencepost show {intent.run}; then settle it with the downstream"
    return None
