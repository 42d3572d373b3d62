"""`fencepost drill --prove`: the whole matrix of defences and what breaks without them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Final

import click

from fencepost.errors import Unreachable
from fencepost_ops.commands.output import print_json, print_table
from fencepost_ops.installation import need_parts
from fencepost_ops.processes import LocalServerError

_PROVE: Final = click.option(
    "--prove", is_flag=True,
    help="Switch each defence off once, or those of --sabotage, and see what breaks.",
)  # fmt: skip

_UNFIT: Final = (
    "protocol", "listed", "schema", "report", "seed", "sweep", "quick", "explore", "explore_one", "races",
)  # fmt: skip


def with_proof(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command with `--prove`, which then needs neither PROTOCOL, --list nor --schema."""

    @functools.wraps(command)
    def chosen(*, prove: bool, **others: Any) -> Any:
        if not prove:
            if others.get("sabotage") and not any(others.get(name) for name in _UNFIT):
                raise click.UsageError("--sabotage needs a PROTOCOL; with --prove it has one of its own")
            return command(**others)
        if any(others.get(name) for name in _UNFIT):
            raise click.UsageError("--prove has protocols of its own; only --sabotage and --json go with it")
        need_parts("drill", flower=False)
        try:
            fine = prove_all(others.get("sabotage") or (), as_json=bool(others.get("as_json")))
        except LocalServerError as error:
            raise Unreachable(str(error)) from error
        if not fine:
            click.get_current_context().exit(1)
        return None

    return _PROVE(chosen)


def prove_all(names: Sequence[str] = (), *, as_json: bool = False) -> bool:
    """Print the matrix of these sabotages, or of all; whether each was seen, and every invariant of all.

    UsageError for a name that is none.
    """
    from fencepost_ops.drill.drill import Drill
    from fencepost_ops.drill.prove import Prover, matrix, to_json, uncovered
    from fencepost_ops.drill.sabotage import SABOTAGES, sabotage

    chosen = [sabotage(name).name for name in names] or list(SABOTAGES)
    click.echo(f"to be switched off, one at a time: {len(chosen)}", err=True)
    with Drill.opened() as drill:
        prover = Prover(drill)
        proofs = [prover.proof(name) for name in chosen]
    missing = [] if names else uncovered(proofs)
    fine = all(proof.ok for proof in proofs) and not missing
    if as_json:
        print_json({**to_json(proofs), "ok": fine, "uncovered": missing})
        return fine
    print_table(*matrix(proofs))
    held = sum(proof.ok and proof.sabotage.held_by is not None for proof in proofs)
    caught = sum(proof.ok for proof in proofs) - held
    click.echo(f"\n{len(proofs)} switched off: {caught} caught, {held} held by another defence")
    click.echo("X broke, as it had to · x broke with it · = held by another defence")
    for proof in proofs:
        for why in proof.wrong:
            click.echo(f"{proof.sabotage.name}: {why}")
    if missing:
        click.echo(f"never seen to break: {', '.join(missing)}")
    return fine
