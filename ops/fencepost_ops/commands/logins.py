"""`fencepost logins`: the users of Postgres as which the processes of a deployment log in."""

from __future__ import annotations

from pathlib import Path

import click

from fencepost_ops.commands.output import print_json
from fencepost_ops.commands.session import Session, dsn_option, json_option, pass_session


@click.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@dsn_option
@json_option
@pass_session
def logins(session: Session, folder: Path, as_json: bool) -> None:
    """Give every role the login its DSN names.

    FOLDER holds worker_dsn, relay_dsn, producer_dsn, operator_dsn, reader_dsn, or some of them; each is the
    DSN its processes use. Run it after `migrate`, as the database's owner; running it again changes what has
    changed.
    """
    from fencepost_ops.logins import give_logins, read_logins

    wanted = read_logins(folder)
    with session.connection() as connection:
        made = give_logins(connection, wanted)
    if as_json:
        print_json([{"role": w.role, "login": w.name, "created": w.name in made} for w in wanted])
        return
    for login in wanted:
        click.echo(f"{login.role}: {login.name}{' (new)' if login.name in made else ''}")
