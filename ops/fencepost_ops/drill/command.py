"""`fencepost drill`: a fault protocol in virtual time, on a Postgres of its own, and what came of it."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Final

import click

from fencepost.errors import Unreachable
from fencepost_ops.commands.output import print_json, print_table
from fencepost_ops.commands.session import json_option
from fencepost_ops.drill.model_trial import with_models
from fencepost_ops.drill.options import with_many
from fencepost_ops.drill.protocol import Protocol, json_schema
from fencepost_ops.drill.proving import with_proof
from fencepost_ops.drill.shipped import find_protocol, shipped_names, shipped_protocol
from fencepost_ops.drill.trying import with_hostile
from fencepost_ops.installation import need_parts
from fencepost_ops.processes import LocalServerError

_SLOW_S: Final = 1.0  # what takes longer is announced


@contextmanager
def slow(what: str) -> Iterator[None]:
    """Say on stderr what is being waited for, once it has taken a second."""
    timer = threading.Timer(_SLOW_S, lambda: click.echo(what, err=True))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def changed(protocol: Protocol, seed: int | None, sabotage: Sequence[str]) -> Protocol:
    """The protocol with the seed of the command line, and with its sabotages besides its own."""
    given: dict[str, object] = {} if seed is None else {"seed": seed}
    if sabotage:
        given["sabotage"] = list(dict.fromkeys([*protocol.sabotage, *sabotage]))
    return protocol.model_copy(update=given)


def list_protocols(*, as_json: bool) -> None:
    """Every shipped protocol and what it shows."""
    found = [shipped_protocol(name) for name in shipped_names()]
    if as_json:
        print_json([{"name": one.name, "about": one.about} for one in found])
    else:
        print_table(["protocol!", "what it shows"], [(one.name, one.about) for one in found])


def _drill(protocol: Protocol, as_json: bool, report: IO[str] | None) -> bool:
    need_parts("drill", flower=False)
    from fencepost_ops.drill.drill import Drill
    from fencepost_ops.drill.sabotage import sabotage
    from fencepost_ops.drill.writeup import print_outcome, write_up
    from fencepost_ops.trial import interruptible

    for name in protocol.sabotage:
        sabotage(name)  # before a server is started for it
    try:
        with interruptible(), slow("starting a Postgres for the drill"), Drill.opened() as drill:
            outcome = drill.run(protocol)
    except LocalServerError as error:
        raise Unreachable(str(error)) from error
    if report is not None:
        report.write(write_up(outcome))
    if as_json:
        print_json(outcome.to_json())
    else:
        print_outcome(outcome)
    return outcome.ok


@click.command()
@click.argument("protocol", required=False, metavar="[PROTOCOL.json | NAME]")
@click.option("--list", "listed", is_flag=True, help="List the protocols that come with Fencepost.")
@click.option("--schema", is_flag=True, help="Print the JSON Schema of a protocol file.")
@click.option("--report", type=click.File("w", encoding="utf-8", lazy=True), metavar="FILE.md",
              help="Write what happened, and why it came out so, to this file.")  # fmt: skip
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), help="Another seed than the protocol's, or 0.")
@click.option("--sabotage", multiple=True, metavar="NAME", help="Switch this defence off; may be repeated.")
@json_option
@with_models
@with_hostile
@with_proof
@with_many
@click.pass_context
def drill(
    context: click.Context,
    protocol: str | None,
    listed: bool,
    schema: bool,
    report: IO[str] | None,
    seed: int | None,
    sabotage: tuple[str, ...],
    as_json: bool,
) -> None:
    """Run a fault protocol, or very many, in virtual time, on real Postgres.

    The protocol is a file, or the name of one that comes along (--list). The same protocol gives the same
    history, byte for byte. Exit code 0 if everything came out as the protocol predicts and every invariant
    holds, but for those it says are violated; 1 otherwise; 2 for a file that is no protocol.

    Many histories at once are run by --sweep and --explore: every invariant must hold in each, and what fails
    is written down as a protocol to attach to a report. --races has real sessions meet in real time.

    --prove switches each defence off once and shows what breaks without it: a check that cannot fail is none.
    --hostile tries all that must never be sent, and shows which step refused it. --models tries every fault
    of a model provider, and shows what is left of each answer.
    """
    if schema + listed + (protocol is not None) != 1:
        raise click.UsageError("name a PROTOCOL, or give --list or --schema")
    if schema:
        print_json(json_schema())
    elif listed:
        list_protocols(as_json=as_json)
    elif protocol is not None and not _drill(
        changed(find_protocol(protocol), seed, sabotage), as_json, report
    ):
        context.exit(1)
