"""The commands of `fencepost policy` that concern what is published: publish, diff, history, show."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import click

from fencepost.authority.bundle import MAX_BYTES, Bundle, PolicyVersion
from fencepost.canonical import reveal, sanitize
from fencepost.clock import rfc3339
from fencepost.errors import FencepostError, UsageError
from fencepost.ledger import policies
from fencepost.ledger.connect import Connection
from fencepost.names import named
from fencepost_ops.commands.output import print_json, print_table
from fencepost_ops.commands.policy_diff import Difference, anew, differences
from fencepost_ops.commands.policy_folder import FOLDER, checked
from fencepost_ops.commands.policy_replay import Changed, replayed
from fencepost_ops.commands.sayings import cut
from fencepost_ops.commands.session import (
    Session,
    app_option,
    by_option,
    dsn_option,
    json_option,
    pass_session,
    tenant_option,
)

_LINE: Final = 400  # characters of one line of a difference
_for_option = click.option(
    "--tenant", metavar="NAME", default=policies.ALL, help="For this tenant; by default for all."
)


@click.command()
@click.argument("folder", type=FOLDER)
@_for_option
@click.option("--note", metavar="TEXT", required=True, help="What changes and why; it is kept.")
@click.option("--after", type=int, metavar="VERSION", help="Only if this is the last one (0: there is none).")
@click.option("--dry-run", is_flag=True, help="Check, test and compare, and publish nothing.")
@by_option
@dsn_option
@app_option
@json_option
@pass_session
def publish(
    session: Session,
    folder: Path,
    tenant: str,
    note: str,
    after: int | None,
    dry_run: bool,
    by: str,
    as_json: bool,
) -> None:
    """Put a bundle in force, from the next claim on, also for what already waits to be sent.

    Refused if it does not fit the application's tools, if one of its own tests fails, or if --after names
    another version than the last. The application has to have every tool and version that is still in use:
    what the bundle was not checked against is denied.
    """
    named("by", by)
    found = checked(folder, session.need_app())
    engine = found.usable()
    if failed := [outcome for outcome in found.tests() if not outcome.passed]:
        first = f"{failed[0].name} ({'; '.join(failed[0].differences)})"
        raise FencepostError(f"not published: {len(failed)} of its tests fail, first {first}")
    bundle = engine.compiled.bundle
    with session.connection() as connection:
        last = policies.history(connection, tenant, 1)
        if last and (last[0].digest, last[0].tenant) == (bundle.digest, tenant):
            _tell_same(last[0], as_json)
        elif dry_run:
            before = policies.in_force(connection, tenant)
            _tell_dry(differences(None if before is None else Bundle.unpack(before.bundle), bundle), as_json)
        else:
            made = policies.publish(connection, bundle, tenant=tenant, by=by, note=note, after=after)
            _tell_published(made, as_json)


def _tell_same(last: PolicyVersion, as_json: bool) -> None:
    if as_json:
        print_json({"published": None, "same_as": last.version})
    else:
        click.echo(f"version {last.version} is this bundle already; nothing is published")


def _tell_dry(found: list[Difference], as_json: bool) -> None:
    if as_json:
        print_json({"published": None, "diff": found})
        return
    _tell(found)
    click.echo("nothing is published: this was a dry run")


def _tell_published(made: PolicyVersion, as_json: bool) -> None:
    if as_json:
        print_json({"published": made.version, **_row(made)})
        return
    whom = f"for {made.tenant}" if made.tenant else "for all tenants"
    click.echo(f"version {made.version} of {made.name} is in force {whom}, digest {made.digest[:16]}")


@click.command()
@click.argument("before", required=False, metavar="[A]")
@click.argument("after", required=False, metavar="[B|DIR]")
@_for_option
@click.option(
    "--calls", type=click.IntRange(0, 10_000), default=0, help="Also judge so many recent calls under both."
)
@dsn_option
@app_option
@json_option
@pass_session
def diff(
    session: Session, before: str | None, after: str | None, tenant: str, calls: int, as_json: bool
) -> None:
    """What differs between two versions, or a version and a folder.

    A and B are versions or folders. With one of them: from the version in force to it. With none: from the
    version before the one in force.

    --calls asks both about the latest calls of the ledger, as principals, delegations and tools stand now,
    and lists those that are decided otherwise.
    """
    with session.connection() as connection:
        first, second = _compared(session, connection, before, after, tenant)
        found = differences(first, second)
        app = session.need_app() if calls else None
        changed = replayed(connection, app, first, second, tenant, calls) if app is not None else []
    if as_json:
        print_json({"diff": found, "calls": changed, "counting_anew": anew(first, second)})
        return
    _tell(found)
    for sentence in anew(first, second):
        click.echo(sentence)
    if calls:
        _tell_changed(changed)


def _compared(
    session: Session, connection: Connection, before: str | None, after: str | None, tenant: str
) -> tuple[Bundle | None, Bundle]:
    if before is not None and after is not None:
        return _bundle(session, connection, before), _bundle(session, connection, after)
    now = policies.in_force(connection, tenant)
    if before is not None:
        return None if now is None else Bundle.unpack(now.bundle), _bundle(session, connection, before)
    earlier = [
        row
        for row in policies.history(connection, tenant)
        if now is not None and row.tenant in {policies.ALL, tenant} and row.version < now.version
    ]
    if now is None or not earlier:
        raise UsageError("there are no two versions to compare; name a version or a folder")
    return Bundle.unpack(earlier[0].bundle), Bundle.unpack(now.bundle)


def _bundle(session: Session, connection: Connection, named: str) -> Bundle:
    if named.isdigit():
        return Bundle.unpack(policies.version(connection, int(named)).bundle)
    folder = Path(named)
    if not folder.is_dir():
        raise UsageError(f"{named} is neither a version nor a folder")
    found = checked(folder, session.need_app())
    return found.usable().compiled.bundle


def _tell(found: list[Difference]) -> None:
    for one in found:
        for line in one.lines:
            click.echo(reveal(sanitize(line, _LINE)))
    if not found:
        click.echo("nothing differs")


def _tell_changed(changed: list[Changed]) -> None:
    rows = [(one.call, one.tool, one.principal, one.before, one.after, one.why) for one in changed]
    print_table(
        ["CALL!", "TOOL", "PRINCIPAL", "BEFORE!", "AFTER!", "BECAUSE?"],
        rows,
        empty="no call is decided otherwise",
    )


@click.command()
@tenant_option
@click.option(
    "--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="At most so many."
)
@dsn_option
@json_option
@pass_session
def history(session: Session, tenant: str | None, limit: int, as_json: bool) -> None:
    """What was published, the newest first, and what of it is in force.

    A tenant's own version is in force until a newer one is published for it or for all.
    """
    with session.connection() as connection:
        rows = policies.history(connection, tenant or policies.ALL, limit)
        live = {row.version for row in policies.live(connection)}
    if as_json:
        print_json([{**_row(row), "in_force": row.version in live} for row in rows])
        return
    cells = [
        (
            row.version,
            row.tenant or "all",
            row.name,
            "yes" if row.version in live else "",
            rfc3339(row.published_at),
            row.published_by,
            row.digest[:16],
            row.note,
        )
        for row in rows
    ]
    print_table(
        ["VERSION>", "TENANT", "NAME", "IN FORCE!", "PUBLISHED!", "BY", "DIGEST?", "NOTE"],
        cells,
        empty="no policy was ever published; grants and the application's own authority decide",
    )


def _row(row: PolicyVersion) -> dict[str, Any]:
    return {name: value for name, value in asdict(row).items() if name != "bundle"}


@click.command()
@click.argument("version", type=int)
@click.option(
    "--to", "folder", type=click.Path(path_type=Path), help="Write its folder, to publish it again."
)
@dsn_option
@json_option
@pass_session
def show(session: Session, version: int, folder: Path | None, as_json: bool) -> None:
    """A published version in full: its files, and the tools it was checked against."""
    with session.connection() as connection:
        row = policies.version(connection, version)
    bundle = Bundle.unpack(row.bundle)
    if folder is not None:
        _write(bundle, folder)
        click.echo(f"version {version} is written to {folder}")
    elif as_json:
        print_json({**_row(row), "bundle": bundle.value})
    else:
        click.echo(f"version {row.version} of {row.name}, for {row.tenant or 'all tenants'}")
        click.echo(
            f"published {rfc3339(row.published_at)} by {row.published_by} ({row.login}): {cut(row.note)}"
        )
        click.echo(f"digest {row.digest}")
        for name, text in bundle.files().items():
            click.echo(f"\n--- {cut(name)}\n{reveal(sanitize(text.rstrip(), MAX_BYTES))}")
        tools = json.dumps(bundle.vocabulary.to_json(), indent=1)
        click.echo(f"\n--- tools it was checked against\n{tools}")


def _write(bundle: Bundle, folder: Path) -> None:
    try:
        if folder.exists() and any(folder.iterdir()):
            raise UsageError(f"{folder} is not empty; name a folder that is new")
        for name, text in bundle.files().items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{folder} cannot be written: {error.strerror}") from None
