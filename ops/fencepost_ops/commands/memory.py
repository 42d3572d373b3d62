"""`fencepost memory list`, `show` and `erase`, and `fencepost grounding`: what runs remember and rest on."""

from __future__ import annotations

from typing import Final

import click

from fencepost.canonical import sanitize
from fencepost.errors import FencepostError, NotFound
from fencepost.ledger import find, listings, memories
from fencepost.memory_port import Slot
from fencepost_ops.commands.output import cut_short, print_json, print_table, when
from fencepost_ops.commands.sayings import cut
from fencepost_ops.commands.session import (
    LIMIT,
    Session,
    by_option,
    dsn_option,
    json_option,
    pass_session,
    reason_option,
    tenant_option,
)

_VALUE: Final = 300  # characters of a value in a table; --json gives all of it

_SPACE = click.argument("space")
_KEY = click.argument("key")
_tenant = click.option("--tenant", metavar="NAME", required=True, help="Whose memory.")
_limit = click.option("--limit", type=LIMIT, default=50, show_default=True, help="At most so many.")


@click.group()
def memory() -> None:
    """List, show and erase what runs remember.

    What is kept in the database of --dsn: a memory that is declared with a DSN of its own is in that one.
    """


@memory.command("list")
@_SPACE
@_tenant
@click.option("--prefix", default="", help="Only keys that begin so.")
@click.option("--after", default="", help="Only keys after this one.")
@_limit
@dsn_option
@json_option
@pass_session
def list_(
    session: Session, space: str, tenant: str, prefix: str, after: str, limit: int, as_json: bool
) -> None:
    """List the keys of a SPACE that have a value, and their newest versions."""
    with session.connection() as connection:
        found = memories.keys(connection, tenant, space, prefix, after, limit)
    cut_short(limit, found)
    if as_json:
        print_json(found)
        return
    rows = [(one.key, one.version, "untrusted" if one.untrusted else "") for one in found]
    print_table(["KEY", "VERSION>", "TAINT"], rows, empty=f"{cut(tenant)} remembers nothing in {cut(space)}")


@memory.command()
@_SPACE
@_KEY
@_tenant
@_limit
@dsn_option
@json_option
@pass_session
def show(session: Session, space: str, key: str, tenant: str, limit: int, as_json: bool) -> None:
    """Show the versions of a KEY, the newest first, and which call wrote each.

    A value is data that somebody else may have written: hidden characters are spelled out.
    """
    with session.connection() as connection:
        now = listings.now(connection)
        found = memories.versions(connection, Slot(tenant, space, key), limit)
    cut_short(limit, found)
    if not found:
        raise NotFound(f"tenant {cut(tenant)} has no {cut(key)} in {cut(space)}")
    if as_json:
        print_json(found)
        return
    rows = [
        (one.version, _value(one), "untrusted" if one.untrusted else "", when(one.written_at, now), one.call)
        for one in found
    ]
    print_table(["VERSION>", "VALUE", "TAINT", "WRITTEN", "CALL!"], rows)


def _value(one: memories.Version) -> str:
    if one.erased_at is not None:
        return f"(erased by {one.erased_by}: {one.erased_reason})"
    return "(nothing)" if one.value is None else sanitize(one.value, _VALUE)


@memory.command()
@_SPACE
@_KEY
@_tenant
@click.option("--to", type=click.IntRange(min=1), required=True, help="The newest version to erase.")
@reason_option
@by_option
@dsn_option
@json_option
@pass_session
def erase(
    session: Session, space: str, key: str, tenant: str, to: int, reason: str, by: str, as_json: bool
) -> None:
    """Erase the values of a KEY's versions up to --to, and of those that restored one of them, for good.

    It takes an operator's login. The versions themselves stay, so that no write is ever made again; and what
    histories hold of a value, in the arguments and results of calls, stays in the ledger until its runs are
    removed.
    """
    with session.connection() as connection:
        erased = memories.erase(connection, Slot(tenant, space, key), to, by=by, reason=reason)
    if not erased:
        raise FencepostError(f"{cut(key)} has no value up to version {to} that is not erased already")
    if as_json:
        print_json({"tenant": tenant, "space": space, "key": key, "erased": erased})
    else:
        click.echo(f"erased {len(erased)} of {cut(key)}: version {', '.join(map(str, erased))}")


@click.command()
@click.argument("run")
@click.option("--own", is_flag=True, help="Only what the run's own calls brought, nothing of runs below it.")
@tenant_option
@dsn_option
@json_option
@pass_session
def grounding(session: Session, run: str, own: bool, tenant: str | None, as_json: bool) -> None:
    """List the documents and the memory that a RUN's results rest on.

    RUN is an id, the unique beginning of one, or a run key. Of the runs below it those count whose call has
    succeeded, and of a result that was taken over what it rested on when it was made: WHOSE says by which
    call, the shortest way where there are several. TURN is the one that asked: what it brought is known to
    the turns after it. Of one run the same as SQL: SELECT * FROM fencepost.grounding WHERE run = ...
    """
    with session.connection() as connection:
        owner, found = find.find_run(connection, run, tenant)
        grounds = memories.grounding(connection, owner, found, tree=not own)
        parent = listings.parent_of(connection, owner, found)
    missing = {(one.run, one.seq): one.left_out for one in grounds}
    if as_json:
        told = {"run": found, "tenant": owner, "parent": parent, "own": own, "grounds": grounds}
        print_json(told | {"left_out": sum(missing.values()), "unread": sum(bool(g.unread) for g in grounds)})
        return
    columns = ["TURN>", "TOOL", "SOURCE", "ID", "VERSION", "AS OF!", "", "WHOSE"]
    whole = f"run {found} itself" if own else f"run {found}"
    print_table(columns, map(_ground, grounds), empty=f"{whole} rests on no document and no memory")
    if any(missing.values()):
        click.echo(f"{sum(missing.values())} more were left out as they were recorded: a result lists 100")
    if parent is not None:
        click.echo(f"run {parent} has started it: what that one knew is told by its own grounding")


def _ground(one: memories.Ground) -> tuple[object, ...]:
    whose = f"run {one.run} by {' › '.join(map(cut, one.labels))}" if one.depth else ""
    if one.unread is not None:
        return one.turn, one.tool, "NOT KNOWN", one.unread, "", "", "", whose
    return (
        one.turn,
        one.tool,
        one.source,
        one.id,
        one.version,
        one.as_of,
        "STALE" if one.stale else "",
        whose,
    )
