"""`fencepost drill --hostile`: what a planner may try that must never be sent, and what refused each."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import click

from fencepost.canonical import sanitize
from fencepost.errors import Unreachable
from fencepost_ops.commands.output import print_json, print_table
from fencepost_ops.installation import need_parts
from fencepost_ops.processes import LocalServerError

_HOSTILE: Final = click.option(
    "--hostile", is_flag=True,
    help="Try all that must never be sent: hostile proposals, and what nobody allows.",
)  # fmt: skip

_UNFIT: Final = (
    "protocol", "listed", "schema", "report", "seed", "sweep", "quick", "explore", "explore_one", "races",
    "sabotage", "prove",
)  # fmt: skip


def with_hostile(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command with `--hostile`, which then needs neither PROTOCOL, --list nor --schema."""

    @functools.wraps(command)
    def chosen(*, hostile: bool, **others: Any) -> Any:
        if not hostile:
            return command(**others)
        if any(others.get(name) for name in _UNFIT):
            raise click.UsageError("--hostile has proposals of its own; only --json goes with it")
        need_parts("drill", flower=False)
        try:
            fine = try_hostile(as_json=bool(others.get("as_json")))
        except LocalServerError as error:
            raise Unreachable(str(error)) from error
        if not fine:
            click.get_current_context().exit(1)
        return None

    return _HOSTILE(chosen)


def try_hostile(*, as_json: bool = False) -> bool:
    """Print the table; whether nothing was sent, and each was refused by what had to refuse it."""
    from fencepost_ops.drill.drill import Drill
    from fencepost_ops.drill.hostile.trial import try_all

    with Drill.opened() as drill:
        trial = try_all(drill)
    if as_json:
        print_json(trial.to_json())
        return trial.ok
    rows = [
        (one.name, one.tool, str(one.step), one.code, str(one.attempts), str(one.requests), one.wrong or "")
        for one in trial.tried
    ]
    print_table(["tried!", "tool", "step", "refused as", "attempts", "requests", ""], rows)
    for problem in trial.problems:
        click.echo(sanitize(problem, 500))
    click.echo(
        f"\n{len(trial.tried)} tried, {trial.dispatched} dispatched; the same tools used well:"
        f" {trial.used_well} effects"
    )
    return trial.ok
