"""`fencepost result`: what a call's tool gave, all of it that is kept, whatever of it planners are shown."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from fencepost.errors import FencepostError
from fencepost.ledger import find, reads
from fencepost_ops.commands.output import print_json, seen
from fencepost_ops.commands.session import Session, dsn_option, json_option, pass_session, tenant_option

_SHOWN = 100_000  # characters; --raw gives all of it
_STORED = "SELECT result, receipt FROM fencepost.calls WHERE id = %s AND tenant = %s"


@click.command()
@click.argument("call")
@click.option("--raw", is_flag=True, help="The stored bytes themselves, for a file or a program.")
@tenant_option
@dsn_option
@json_option
@pass_session
def result(session: Session, call: str, raw: bool, tenant: str | None, as_json: bool) -> None:
    """Show the stored result of a call.

    CALL is a call's id, the beginning of one, or RUN/LABEL. It is data that somebody else wrote: hidden
    characters are spelled out but with --raw. Exit code 1 where nothing is stored, or what is stored is not
    what was recorded (its hash differs): then nothing of it is shown.
    """
    if raw and as_json:
        raise click.UsageError("give --raw or --json, not both")
    with session.connection() as connection:
        found = find.find_call(connection, call, tenant)
        digest, receipt = connection.execute(_STORED, [found.call, found.tenant]).fetchall()[0]
        data = reads.payload(connection, found.tenant, digest) if digest is not None else None
    if digest is None:
        raise FencepostError(f"call {found.call} has no stored result; it is {found.state}")
    if data is None or not reads.intact(digest, data):
        what = "is missing" if data is None else "was changed: its hash is another"
        raise FencepostError(f"the result {digest} of call {found.call} {what}; restore it from a backup")
    if raw:
        sys.stdout.buffer.write(data)
        return
    text = data.decode("utf-8", "surrogatepass")
    if as_json:
        print_json(
            {"call": found.call, "digest": digest, "bytes": len(data), "receipt": receipt, **_read(text)}
        )
        return
    click.echo(seen(text, _SHOWN))


def _read(text: str) -> dict[str, Any]:
    """The result as JSON where JSON has a form for it, else as the text it is."""
    try:
        value = json.loads(text)
        json.dumps(value, allow_nan=False).encode()
    except (ValueError, RecursionError):
        return {"text": text.encode("utf-8", "backslashreplace").decode()}
    return {"result": value}
