"""`fencepost tools withdraw`, `restore` and `withdrawn`: versions of which nothing is sent any more."""

from __future__ import annotations

import click

from fencepost.errors import FencepostError
from fencepost.ledger import listings, principals
from fencepost_ops.commands.output import print_json, print_table, when
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

_NAME = click.argument("name")
_VERSION = click.argument("version", type=click.IntRange(min=1))


@click.command()
@_NAME
@_VERSION
@reason_option
@by_option
@dsn_option
@app_option
@json_option
@pass_session
def withdraw(session: Session, name: str, version: int, reason: str, by: str, as_json: bool) -> None:
    """Have nothing of a tool's version sent any more, in no tenant.

    It takes an operator's login, and counts in every claim from then on. What is in doubt is still looked up,
    and not repeated. A name that the application does not have is withdrawn as well: it may have had it.
    """
    with session.connection() as connection:
        done = principals.withdraw(connection, name, version, by=by, reason=reason)
    if not done:
        raise FencepostError(f"{cut(name)} version {version} is withdrawn already")
    _tell(name, version, f"{cut(name)} version {version} is withdrawn", as_json=as_json)
    if (note := _strange(session, name, version)) is not None:
        click.echo(note, err=True)


def _strange(session: Session, name: str, version: int) -> str | None:
    """What is said where a name may be mistyped; nothing where the application cannot be asked."""
    try:
        app = session.app()
    except FencepostError:
        return None
    if app is None or (name, version) in app.registry:
        return None
    return f"note: app {app.name} has no {cut(name)} version {version}; fencepost tools lists what it has"


def _tell(name: str, version: int, sentence: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"tool": name, "version": version})
    else:
        click.echo(sentence)


@click.command()
@_NAME
@_VERSION
@reason_option
@by_option
@dsn_option
@json_option
@pass_session
def restore(session: Session, name: str, version: int, reason: str, by: str, as_json: bool) -> None:
    """Let a tool's version that was withdrawn be sent again."""
    with session.connection() as connection:
        done = principals.restore(connection, name, version, by=by, reason=reason)
    if not done:
        raise FencepostError(f"{cut(name)} version {version} is not withdrawn")
    _tell(name, version, f"{cut(name)} version {version} is sent again where it is allowed", as_json=as_json)


@click.command()
@dsn_option
@json_option
@pass_session
def withdrawn(session: Session, as_json: bool) -> None:
    """List the versions that are withdrawn."""
    with session.connection() as connection:
        now = listings.now(connection)
        found = principals.withdrawn(connection)
    if as_json:
        print_json(found)
        return
    rows = [
        (one.tool, one.version, when(one.withdrawn_at, now), one.withdrawn_by, one.reason) for one in found
    ]
    print_table(["TOOL", "VERSION>", "WITHDRAWN", "BY", "REASON"], rows, empty="no version is withdrawn")
