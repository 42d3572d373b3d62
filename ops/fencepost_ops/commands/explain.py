"""`fencepost explain`: by which authority one call was sent, or why it was not."""

from __future__ import annotations

from dataclasses import asdict

import click

from fencepost.errors import FencepostError
from fencepost.ledger import find, listings
from fencepost_ops.commands.explained import explain as explained
from fencepost_ops.commands.explained import lines
from fencepost_ops.commands.output import print_json
from fencepost_ops.commands.session import Session, dsn_option, json_option, pass_session, tenant_option


@click.command()
@click.argument("call")
@tenant_option
@dsn_option
@json_option
@pass_session
def explain(session: Session, call: str, tenant: str | None, as_json: bool) -> None:
    """Explain one call in sentences, from its events alone.

    Who asked, what was proposed, each step, each decision with its policy, who approved it by which
    authority, each attempt and what came of it, and how it was settled. CALL is a call's id, the
    beginning of one, or RUN/LABEL. `fencepost verify` says whether those events are as they were recorded.
    """
    with session.connection() as connection:
        found = find.find_call(connection, call, tenant)
        history = listings.history(connection, found.tenant, found.run)
    told = explained(history.events, found.call) if history is not None else []
    if not told:
        raise FencepostError(f"the history of run {found.run} says nothing of call {found.call}")
    if as_json:
        about = {"call": found.call, "run": found.run, "tenant": found.tenant, "state": found.state}
        print_json({**about, "chain": [asdict(one) for one in told]})
        return
    for line in lines(told):
        click.echo(line)
    click.echo(f"call {found.call} is {found.state}")
