"""`fencepost migrate`: bring the database to the schema this version needs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import click

from fencepost.errors import FencepostError
from fencepost_ops.commands.output import print_json
from fencepost_ops.commands.session import Session, dsn_option, json_option, pass_session

if TYPE_CHECKING:
    from fencepost.ledger.migrate import Migrated

_RULE: Final = "INSERT INTO fencepost.rules VALUES ('repair_by_two') ON CONFLICT DO NOTHING"
_NO_RULE: Final = "DELETE FROM fencepost.rules WHERE name = 'repair_by_two'"
TRIES: Final = 10
PAUSE_S: Final = 1.0  # in which those who queued behind us for the same tables get on with their work
LOCKED: Final = "55P03"


@click.command()
@click.option(
    "--repair-by-two/--repair-by-one",
    "by_two",
    default=None,
    help="Lay down that a decision on a call that needs repair takes two persons, whoever decides; or one. "
    "By default: as it is. --offset and --leave, on an effect that is known, always take one.",
)
@dsn_option
@json_option
@pass_session
def migrate(session: Session, by_two: bool | None, as_json: bool) -> None:
    """Create or upgrade the ledger.

    As the database's owner. Safe to run twice, or by several at once, while workers run: where somebody else
    holds a table it lets go soon, tries again, and has changed nothing until all is done.
    """
    with session.connection():
        pass  # a wrong DSN or login is said in the words every command has for it
    done = _patiently(session)
    if by_two is not None:
        with session.connection() as connection:
            connection.execute(_RULE if by_two else _NO_RULE)
    if as_json:
        print_json(done)
    elif done.before == done.after:
        click.echo(f"the ledger is at {done.after} already: nothing to do")
    else:
        click.echo(f"migrated the ledger from {done.before or 'an empty database'} to {done.after}")
    if by_two is not None and not as_json:
        click.echo(f"a repair takes {'two persons' if by_two else 'one person'} from now on")


def _patiently(session: Session) -> Migrated:
    for left in reversed(range(TRIES)):
        if (done := _tried(session)) is not None:
            return done
        if left:
            click.echo("another session holds a table of the ledger; trying again", err=True)
            time.sleep(PAUSE_S)
    raise FencepostError(
        "another session holds a table of the ledger (a backup, or a transaction left open; `fencepost"
        " doctor` shows the oldest): nothing was changed; run this again when it has ended"
    )


def _tried(session: Session) -> Migrated | None:
    """What one try did; None if it could not have a table for itself in time."""
    from sqlalchemy.exc import DBAPIError

    from fencepost.ledger.migrate import upgrade

    with session.errors():
        try:
            return upgrade(session.settings("dsn").dsn)
        except DBAPIError as error:
            if getattr(error.orig, "sqlstate", None) == LOCKED:
                return None
            raise (error.orig or error) from error
