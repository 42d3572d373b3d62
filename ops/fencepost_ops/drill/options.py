"""What `fencepost drill` takes for many histories at once; the rest of the command is `command.py`."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

from fencepost.errors import Unreachable
from fencepost_ops.installation import need_parts
from fencepost_ops.processes import LocalServerError

_OPTIONS: Final = (
    click.option("--sweep", is_flag=True,
                 help="Every fault at every point, for every class of contract; then pairs of faults."),
    click.option("--quick", is_flag=True,
                 help="With --sweep: each action at each point once, and some pairs."),
    click.option("--explore", type=click.IntRange(1), metavar="N",
                 help="N random histories of the seed; what fails is shrunk to the shortest protocol found."),
    click.option("--explore-one", type=click.IntRange(1), metavar="K",
                 help="Print the protocol of the Kth random history of the seed."),
    click.option("--races", type=click.IntRange(1), metavar="N",
                 help="N rounds of real sessions at once, in real concurrency."),
    click.option("--jobs", type=click.IntRange(1, 64), default=min(2, os.cpu_count() or 1), show_default=True,
                 help="With --sweep and --explore: how many processes."),
    click.option("--failures", type=click.Path(file_okay=False, path_type=Path), default="drill-failures",
                 show_default=True, metavar="DIR",
                 help="With --sweep and --explore: where the protocols of failures are written."),
)  # fmt: skip


_ONE: Final = (
    "give one of PROTOCOL, --list, --schema, --sweep, --explore, --explore-one and --races; "
    "--report and --sabotage go with a PROTOCOL"
)


def with_many(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command with these options, which then need neither PROTOCOL, --list nor --schema."""

    @functools.wraps(command)
    def chosen(
        *,
        sweep: bool,
        quick: bool,
        explore: int | None,
        explore_one: int | None,
        races: int | None,
        jobs: int,
        failures: Path,
        **others: Any,
    ) -> Any:
        asked = sum((sweep, explore is not None, explore_one is not None, races is not None))
        if quick and not sweep:
            raise click.UsageError("--quick goes with --sweep")
        if not asked:
            return command(**others)
        unfit = [name for name in ("protocol", "listed", "schema", "report", "sabotage") if others.get(name)]
        if asked > 1 or unfit:
            raise click.UsageError(_ONE)
        need_parts("drill", flower=False)
        from fencepost_ops.drill import many

        seed, as_json = others.get("seed") or 0, bool(others.get("as_json"))
        how: dict[str, Any] = {"jobs": jobs, "failures": failures, "seed": seed, "as_json": as_json}
        try:
            if explore_one is not None:
                click.echo(many.explored_text(seed, explore_one), nl=False)
                fine = True
            elif explore is not None:
                fine = many.explore_all(explore, **how)
            elif races is not None:
                fine = many.race_all(races, seed=seed, as_json=as_json)
            else:
                fine = many.sweep_all(quick=quick, **how)
        except LocalServerError as error:
            raise Unreachable(str(error)) from error
        if not fine:
            click.get_current_context().exit(1)
        return None

    return functools.reduce(lambda found, option: option(found), reversed(_OPTIONS), chosen)
