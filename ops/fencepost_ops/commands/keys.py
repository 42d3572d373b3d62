"""`fencepost keys new`, `list` and `export`: the keys that sign capabilities."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from fencepost.clock import rfc3339
from fencepost.errors import UsageError
from fencepost_ops.commands.durations import Duration, spoken
from fencepost_ops.commands.output import print_json, print_table, when
from fencepost_ops.commands.session import Session, json_option, pass_session

if TYPE_CHECKING:
    from fencepost.capabilities import SigningKey

NOTICE: Final = timedelta(hours=24)
"""Between making a further key and signing with it, so that downstreams can be told of it first."""

_folder = click.option("--folder", metavar="PATH", help="Where they are; by default FENCEPOST_SIGNING_KEYS.")


@click.group()
def keys() -> None:
    """Make, list and export the keys that sign capabilities.

    A folder of them is what FENCEPOST_SIGNING_KEYS names. The newest whose time has come signs; all of them
    are exported. To rotate: make a new one, give every downstream what `export` prints before its time comes,
    and remove the old file once what it signed has expired.
    """


@keys.command()
@_folder
@click.option(
    "--in", "notice", type=Duration(), help="When it is to sign; by default at once, or in 24h beside others."
)
@click.option("--at-once", is_flag=True, help="Sign with it from now on, also beside others.")
@json_option
@pass_session
def new(session: Session, folder: str | None, notice: timedelta | None, at_once: bool, as_json: bool) -> None:
    """Make a key, in a file that only its owner may read."""
    if at_once and notice is not None:
        raise UsageError("--at-once and --in say different things; keep one of them")
    place, now = _place(session, folder), datetime.now(UTC)
    known = _read(place, missing_is_empty=True)
    wait = timedelta(0) if at_once or not known else NOTICE
    key = _capabilities().write_key(
        place, (now + (wait if notice is None else notice)).replace(microsecond=0)
    )
    if as_json:
        print_json(_described(key, (*known, key), now) | {"file": key.file})
        return
    left = key.since - now
    then = f"in {spoken(left)}" if left > timedelta(0) else "from now on"
    click.echo(f"{key.kid}: {key.file} signs {then}; export it to whoever verifies")


@keys.command("list")
@_folder
@json_option
@pass_session
def list_(session: Session, folder: str | None, as_json: bool) -> None:
    """List them, and which of them signs. Exit code 1 if none does."""
    found, now = _read(_place(session, folder)), datetime.now(UTC)
    rows = [_described(key, found, now) for key in found]
    if as_json:
        print_json(rows)
    else:
        cells = [
            (row["kid"], when(key.since, now), row["state"]) for row, key in zip(rows, found, strict=True)
        ]
        print_table(["KEY!", "FROM", "STATE"], cells, empty="no keys; fencepost keys new makes one")
    if not any(row["state"] == "signs" for row in rows):
        click.get_current_context().exit(1)


@keys.command()
@_folder
@pass_session
def export(session: Session, folder: str | None) -> None:
    """Print the public keys as a JWKS, for downstreams that verify."""
    print_json(_capabilities().jwks_of(_read(_place(session, folder))))


def _place(session: Session, folder: str | None) -> str:
    place = folder or session.settings().signing_keys
    if not place:
        raise UsageError("name the folder of the keys: --folder PATH, or set FENCEPOST_SIGNING_KEYS")
    return place


def _capabilities() -> Any:
    try:
        from fencepost import capabilities
    except ImportError as error:
        raise UsageError("signing needs PyJWT: pip install 'fencepost[capabilities]'") from error
    return capabilities


def _read(place: str, *, missing_is_empty: bool = False) -> tuple[SigningKey, ...]:
    if missing_is_empty and not Path(place).exists():
        return ()
    found: tuple[SigningKey, ...] = _capabilities().read_keys(place)
    return found


def _described(key: SigningKey, among: Sequence[SigningKey], now: datetime) -> dict[str, Any]:
    current = _capabilities().signing(among, now)
    waiting = "will sign" if key.since > now else "verifies"
    state = "signs" if current is not None and current.kid == key.kid else waiting
    return {"kid": key.kid, "since": rfc3339(key.since), "state": state}
