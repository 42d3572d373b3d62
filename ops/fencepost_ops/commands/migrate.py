"""`fencepost migrate`: bring the database to the schema this version needs."""

from __future__ import annotations

import click

from fencepost_ops.commands.output import print_json
from fencepost_ops.commands.session import Session, dsn_option, json_option, pass_session


@click.command()
@dsn_option
@json_option
@pass_session
def migrate(session: Session, as_json: bool) -> None:
    """Create or upgrade the ledger.

    As the database's owner. Safe to run twice, or by several at once.
    """
    from sqlalchemy.exc import DBAPIError

    from fencepost.ledger.migrate import upgrade

    with session.connection():
        pass  # a wrong DSN or login is said in the words every command has for it
    with session.errors():
        try:
            done = upgrade(session.settings("dsn").dsn)
        except DBAPIError as error:
            raise (error.orig or error) from error
    if as_json:
        print_json(done)
    elif done.before == done.after:
        click.echo(f"the ledger is at {done.after} already")
    else:
        click.echo(f"migrated the ledger from {done.before or 'an empty database'} to {done.after}")
