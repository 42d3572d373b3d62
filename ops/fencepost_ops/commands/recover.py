"""`fencepost recover`: after the ledger was restored to an earlier moment, or lost commits in a failover."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any, Final

import click

from fencepost import commands
from fencepost.app import App
from fencepost.authority import AllowList
from fencepost.authority.inforce import Engines
from fencepost.clock import rfc3339
from fencepost.contracts import ToolClass, tool_class
from fencepost.decide.fold import Known
from fencepost.errors import FencepostError, UsageError
from fencepost.ledger import epochs
from fencepost.ledger.apply import Ledger
from fencepost.ledger.connect import Connection, Pool
from fencepost.ledger.epochs import Affected, Epoch, Left
from fencepost.names import named
from fencepost.office import words
from fencepost_ops.commands.durations import MOMENT, at
from fencepost_ops.commands.output import print_json, print_table
from fencepost_ops.commands.sayings import cut
from fencepost_ops.commands.session import (
    Session,
    app_option,
    by_option,
    dsn_option,
    json_option,
    pass_session,
    reason_option,
)

_EVERY_S: Final = 2.0  # seconds between two words about how far it is
_SHOWN: Final = 50
_STAMPS_APART: Final = timedelta(seconds=30)
"""How much later than a worker's last stamp the moment of a restore may be said to be, without a word."""

Apply = Callable[[Sequence[commands.Command]], list[commands.Answer]]


@click.command()
@click.option("--since", type=MOMENT, metavar="MOMENT", help="The moment the ledger was restored to.")
@click.option("--release", is_flag=True, help="End the hold: what was marked is settled, and audited.")
@click.option("--anyway", is_flag=True, help="With --release: although calls are not settled.")
@click.option(
    "--without-audit", is_flag=True, help="With --release: although it was not audited, for your --reason."
)
@click.option("--dry-run", is_flag=True, help="With --since: say what would be done, and do nothing.")
@reason_option
@by_option
@dsn_option
@app_option
@json_option
@pass_session
def recover(
    session: Session,
    since: datetime | timedelta | None,
    release: bool,
    anyway: bool,
    without_audit: bool,
    dry_run: bool,
    reason: str,
    by: str,
    as_json: bool,
) -> None:
    """Recover a ledger that was restored to an earlier moment.

    Before the fleet reaches it: whoever was at work then is refused, each call that may have been sent since
    --since is UNKNOWN and settled by its contract, and nothing new is planned or sent until --release. It
    takes an operator's login and the application. Give the moment as early as it may have been: keys count
    from it.

    Calls that are planned after the release may have happened in the time that was lost: fencepost audit
    DEPENDENCY --since MOMENT lists such effects, and --release asks that each dependency was audited.
    Recovering again is safe, and opens another epoch.
    """
    if release == (since is not None):
        raise click.UsageError("give --since MOMENT to recover, or --release to end the hold")
    if ((anyway or without_audit) and not release) or (dry_run and release):
        raise click.UsageError("--anyway and --without-audit are for --release, and --dry-run for --since")
    by, reason = named("by", by), words("reason", reason)
    if since is None:
        _release(session, by, reason, anyway=anyway, audited=not without_audit, as_json=as_json)
    else:
        _recover(session, since, by, reason, dry_run=dry_run, as_json=as_json)


def _recover(
    session: Session, moment: datetime | timedelta, by: str, reason: str, *, dry_run: bool, as_json: bool
) -> None:
    app = session.need_app()
    with session.connection() as connection:
        found = epochs.affected(connection)
        since = at(moment, found.now)
        if since > found.now:
            raise UsageError(f"{rfc3339(since)} lies ahead; --since is the moment the ledger was restored to")
        if (late := _too_late(since, found)) is not None:
            click.echo(f"recover: {late}", err=True)
        if dry_run:
            _print_plan(since, found, as_json=as_json)
            return
        epoch = epochs.open_epoch(connection, since, by, reason)
        click.echo(f"recover: epoch {epoch.epoch} is open, the ledger is held", err=True)
        with _ledger(session, app) as apply:
            marked, unfamiliar = _marked(connection, apply, epoch)
    _print_done(epoch, marked, unfamiliar, app, as_json=as_json)


def _too_late(since: datetime, found: Affected) -> str | None:
    """What an operator should know who names a later moment than this ledger seems to stand at."""
    if found.last_stamp is None or since <= found.last_stamp + _STAMPS_APART:
        return None
    stamp = rfc3339(found.last_stamp)
    return f"the last stamp of a worker here is of {stamp}: if one was at work then, give that as --since"


@contextmanager
def _ledger(session: Session, app: App) -> Any:
    pool = Pool(session.settings("dsn").dsn, "fencepost recover", 1)
    known = Known(
        tool=lambda name, version: app.registry.get((name, version)),
        planner=lambda _name, _version: False,
        authority=AllowList(()),
        engines=Engines() if app.governed else None,
        allowances=app.allowances,
    )
    try:
        with session.errors():
            yield Ledger(pool, known).apply
    finally:
        pool.close()


def _marked(connection: Connection, apply: Apply, epoch: Epoch) -> tuple[int, int]:
    calls = unfamiliar = runs = 0
    said = time.monotonic()
    for page in epochs.restore(connection, apply, epoch):
        runs += len(page)
        calls += sum(one.calls for one in page)
        unfamiliar += sum(one.unfamiliar for one in page)
        if time.monotonic() - said >= _EVERY_S:
            said = time.monotonic()
            click.echo(f"recover: {calls} calls of {runs} runs marked so far", err=True)
    return calls, unfamiliar


def _print_plan(since: datetime, found: Affected, *, as_json: bool) -> None:
    if as_json:
        print_json({"recovered": False, "since": since, **asdict(found)})
        return
    print_table(["CALLS", "COUNT>"], sorted(found.calls.items()), empty="no call is open")
    click.echo(
        f"of these each that may have been sent since {rfc3339(since)} would become UNKNOWN; {found.runs} "
        "runs would be taken from whoever plans them, and nothing new planned or sent until --release; "
        "nothing was done"
    )


def _print_done(epoch: Epoch, marked: int, unfamiliar: int, app: App, *, as_json: bool) -> None:
    scopes = sorted(_scopes(app))
    next_steps = [f"fencepost audit {scope} --since {rfc3339(epoch.since)}" for scope in scopes]
    if as_json:
        done = {"recovered": True, "marked": marked, "unfamiliar": unfamiliar, "audits": next_steps}
        print_json(done | {"happens_again": _repeating(app)} | asdict(epoch))
        return
    click.echo(f"epoch {epoch.epoch}: {marked} calls may have been sent since {rfc3339(epoch.since)}")
    if unfamiliar:
        click.echo(f"{unfamiliar} of them are of tools that {app.name} does not know: a person will be asked")
    again = ", ".join(_repeating(app)) or "none"
    for line in (
        "the ledger is held: what is in doubt is settled, and nothing new is planned or sent. Now:",
        "  let the fleet in, and wait until fencepost unresolved is empty or you have repaired the rest",
        *(f"  {step}" for step in next_steps),
        "  what happened without an intent was asked for in the time that was lost. Planned again it happens",
        "  again where the service does not deduplicate our keys: offset it there, or cancel its run and see",
        f"  that its order is not sent again. Of your tools that concerns: {again}",
        "  fencepost recover --release --reason TEXT",
    ):
        click.echo(line)


def _repeating(app: App) -> list[str]:
    """The tools whose effect would happen a second time if the same intent were planned again."""
    classes = {tool.name: tool_class(tool.effect, tool.contract) for tool in app.registry.values()}
    return sorted(
        name for name, kind in classes.items() if kind in {ToolClass.LOOKUP_ONLY, ToolClass.NEITHER}
    )


def _release(session: Session, by: str, reason: str, *, anyway: bool, audited: bool, as_json: bool) -> None:
    with session.connection() as connection:
        held = epochs.held(connection)
        if not held:
            raise FencepostError("the ledger is not held: there is nothing to release")
        left = epochs.left(connection, _SHOWN + 1)
        if left and not anyway:
            _refuse(left, as_json=as_json)
        if audited:
            _need_audits(held, epochs.audited(connection), session.app())
        released = epochs.release(connection, by, reason)
    since = rfc3339(min(epoch.since for epoch in held))
    if as_json:
        print_json({"released": released, "unsettled": [asdict(one) for one in left]})
        return
    numbers = ", ".join(map(str, released))
    click.echo(f"epoch {numbers} is released: runs are planned and calls are sent again")
    if left:
        click.echo(f"{_many(left)} of that time not settled yet: fencepost unresolved")
    if not audited:
        click.echo(
            f"it was not audited: fencepost audit DEPENDENCY --since {since} says what happened unseen"
        )


def _need_audits(held: Sequence[Epoch], done: set[str], app: App | None) -> None:
    """FencepostError unless the ledger was recovered and each dependency audited since."""
    recovered = [epoch for epoch in held if epoch.marked]
    if not recovered:
        raise FencepostError(
            "the ledger is held and was not recovered: fencepost recover --since MOMENT first; if no commit "
            "was lost, say so: --release --without-audit --reason TEXT"
        )
    since = rfc3339(min(epoch.since for epoch in recovered))
    missing = sorted(_scopes(app) - done) if app is not None else [] if done else ["DEPENDENCY"]
    if missing:
        raise FencepostError(
            "nothing was released: what happened in the time that was lost would happen again unseen. First: "
            + "; ".join(f"fencepost audit {scope} --since {since}" for scope in missing)
            + ". Where there is no book to audit, look there yourself and say --without-audit"
        )


def _scopes(app: App) -> set[str]:
    """The dependencies at which something can have happened."""
    acting = (tool for tool in app.registry.values() if tool.effect != "read")
    return {tool.scope for tool in acting if tool.kind != "run" and tool.memory is None}


def _refuse(left: Sequence[Left], *, as_json: bool) -> None:
    if as_json:
        print_json({"released": [], "unsettled": [asdict(one) for one in left]})
    else:
        rows = [(one.tool, one.state, cut(one.error), one.call) for one in left[:_SHOWN]]
        print_table(["TOOL", "STATE!", "WHY", "CALL!"], rows)
    raise FencepostError(
        f"{_many(left)} not settled yet, so nothing was released: wait, settle them with fencepost repair, "
        "or say --anyway"
    )


def _many(left: Sequence[Left]) -> str:
    count = f"more than {_SHOWN}" if len(left) > _SHOWN else str(len(left))
    return f"{count} call{' is' if len(left) == 1 else 's are'}"
