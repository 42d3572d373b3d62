"""`fencepost drill --models`: every fault of a model provider on every wire, through the official SDKs.

The provider is a sandbox of its own process; what asks it is what planner workers ask with. Cells are asked
side by side, each under a name of its own, and the provider's book tells how often each was asked.
"""

from __future__ import annotations

import asyncio
import functools
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import click
from pydantic import BaseModel

from fencepost import App, Context, Contract, Effect, Request
from fencepost.errors import Unreachable, UsageError
from fencepost.models import Price, Wire
from fencepost.proposals import Validated, validate
from fencepost.tools import Proposal
from fencepost_ops.commands.output import print_json, print_table
from fencepost_ops.drill import model_table as table
from fencepost_ops.drill.model_table import Outcome, Row
from fencepost_ops.folders import TemporaryFolder
from fencepost_ops.installation import need_parts
from fencepost_ops.sandbox.process import SandboxError, SandboxProcess
from fencepost_ops.sandbox.provider_book import BOOK_FILE, ModelBook

WITHIN_S: Final = 20.0
_SDKS: Final = ("openai", "anthropic")
_WRITTEN: Final = ({"note": "first", "minor": 7}, {"note": "second", "minor": 120000})
_SCRIPT: Final = [{"calls": [{"name": "notes.keep", "arguments": one} for one in _WRITTEN]}]


_MEANT: Final = tuple(json.dumps(one, sort_keys=True, separators=(",", ":")) for one in _WRITTEN)
_RESULTS: Final = {
    _MEANT: table.CALLS,
    (_MEANT[0], "refused"): table.REFUSED,
    ("refused", _MEANT[1]): table.REFUSED,
    ("refused", "refused"): table.NONE_LEFT,
}


_FIRST: Final = Row("first", {})


class Note(BaseModel):
    """What the model of the drill keeps; one that was cut off could do without its number."""

    note: str
    minor: int = 0


@dataclass(frozen=True, slots=True)
class Found:
    """One cell as it came out. `asked` counts the provider's requests, `retries` those an SDK hid."""

    row: Row
    wire: Wire
    outcome: Outcome
    asked: int
    retries: int

    @property
    def wrong(self) -> str:
        """What is not as the table says; empty where all is."""
        expected = self.row.on[self.wire]
        if self.outcome != expected:
            return f"expected {told(expected)}"
        if (self.asked, self.retries) != (self.row.requests, 0):
            return f"{self.asked} requests, {self.retries} of them hidden"
        return ""

    def to_json(self) -> dict[str, Any]:
        """The cell."""
        return {
            "fault": self.row.name,
            "wire": str(self.wire),
            "result": self.outcome.result,
            "charged": self.outcome.charged,
            "stops": None if self.outcome.stops is None else str(self.outcome.stops),
            "requests": self.asked,
            "hidden_retries": self.retries,
            "wrong": self.wrong or None,
        }


def told(outcome: Outcome) -> str:
    """An outcome in words."""
    charged = "" if outcome.charged == table.USED else f", {outcome.charged} charged"
    stops = "" if outcome.stops is None else f", stops: {outcome.stops}"
    return f"{outcome.result}{charged}{stops}"


def try_models(rows: Sequence[Row] = (*table.TABLE, *table.MATRIX)) -> list[Found]:
    """Every cell of these rows. SandboxError if the provider does not start."""
    with TemporaryFolder("fencepost-models-") as folder, SandboxProcess(folder) as provider:
        provider.post("/models/script", {"models": {"drill": {"turns_from": "turns"}}})
        rules = [_rule(row, wire) for row in rows for wire in row.on if row.kind != table.NONE]
        provider.post("/models/faults", {"faults": rules})
        outcomes = asyncio.run(_asked(provider, rows))
        return _found(provider.data, outcomes)


def _rule(row: Row, wire: Wire) -> dict[str, Any]:
    return {"kind": row.kind, "count": 1, **row.rule, "contains": _marker(row, wire)}


def _marker(row: Row, wire: Wire) -> str:
    return f"[{row.name} on {wire}]"


def _found(folder: Path, outcomes: Sequence[tuple[Row, Wire, Outcome]]) -> list[Found]:
    asked: Counter[str] = Counter()
    retries: Counter[str] = Counter()
    for one in ModelBook(folder / BOOK_FILE).requests():
        marker = json.loads(one.first)["cell"]
        asked[marker] += 1
        retries[marker] += one.retries != "0"
    return [
        Found(row, wire, outcome, asked[_marker(row, wire)], retries[_marker(row, wire)])
        for row, wire, outcome in outcomes
    ]


def _app(url: str) -> App:
    app = App("drill")
    notes = app.dependency("notes", url)

    @notes.http("notes.keep", effect=Effect.READ, contract=Contract())
    def keep(args: Note) -> Request:
        """Keep a note."""
        return Request.get(f"/pages/{args.note}")

    del keep
    price = Price(since=datetime(2026, 1, 1, tzinfo=UTC).date(), input=1_000_000, output=1_000_000)
    for wire in Wire:
        via = app.dependency(f"at.{wire}", url if wire is Wire.MESSAGES else f"{url}/v1")
        model = app.model(str(wire), via=via, wire=wire, model="drill", prices=(price,))
        app.agent(str(wire), model=model, instructions="Keep both notes.")
    return app


async def _asked(provider: SandboxProcess, rows: Sequence[Row]) -> list[tuple[Row, Wire, Outcome]]:
    from fencepost_workers.models import AgentPlanner, Providers

    app, providers = _app(provider.url), Providers()
    planners = {}
    for wire in Wire:
        agent = app.agent_of(str(wire), 1)
        assert agent is not None
        planners[wire] = AgentPlanner(agent, app.tools, providers)
    cells = [(row, wire) for row in rows for wire in row.on]
    try:
        # Clients take a moment to be made, which is not to count as a provider's silence.
        for wire in Wire:
            await _one(planners[wire], _FIRST, wire)
        found: dict[tuple[str, Wire], Outcome] = {}
        for silent in (False, True):  # apart, so that the others' work is not taken for silence
            these = [(row, wire) for row, wire in cells if (row.patience_s is not None) is silent]
            came = await asyncio.gather(*(_one(planners[wire], row, wire) for row, wire in these))
            found |= {(row.name, wire): outcome for (row, wire), outcome in zip(these, came, strict=True)}
        return [(row, wire, found[row.name, wire]) for row, wire in cells]
    finally:
        await providers.aclose()


async def _one(planner: Any, row: Row, wire: Wire) -> Outcome:
    from fencepost_workers.models import Asking, NoTurn

    given = {"cell": _marker(row, wire), "turns": _SCRIPT if row.calls else []}
    context = Context("r", "t", "svc:drill", given, 1)
    asking = Asking(0, row.patience_s or WITHIN_S, datetime.now(UTC))
    try:
        turn = await planner.ask(context, asking)
    except NoTurn as lost:
        return Outcome(lost.code, _charged(lost.spent), lost.stop)
    if turn.proposals:
        judged = [_judged(planner, n, one) for n, one in enumerate(turn.proposals)]
        return Outcome(_RESULTS.get(tuple(judged), f"WRONG {judged}"), _charged(turn.spent))
    return Outcome(table.EMPTY if turn.finish is None else table.CLAIM, _charged(turn.spent))


def _judged(planner: Any, number: int, proposal: Proposal) -> str:
    """The arguments of the call that would be, as they are recorded; the refusal of one that would not."""
    judged = validate(proposal, tools=planner.tools, tenant="t", run_id="r", turn=1, ordinal=number)
    return judged.arguments if isinstance(judged, Validated) else "refused"


def _charged(spent: Any) -> str:
    if spent is None or not spent.known:
        return table.RESERVED
    return table.USED if spent.tokens else table.NOTHING


_OPTION: Final = click.option(
    "--models", is_flag=True,
    help="Try every fault of a model provider on every wire, through the official SDKs.",
)  # fmt: skip
_ALONE: Final = (
    "protocol", "listed", "schema", "report", "seed", "sweep", "quick", "explore", "explore_one", "races",
    "sabotage", "prove", "hostile",
)  # fmt: skip


def with_models(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command with `--models`, which then needs neither PROTOCOL, --list nor --schema."""

    @functools.wraps(command)
    def chosen(*, models: bool, **others: Any) -> Any:
        if not models:
            return command(**others)
        if any(others.get(name) for name in _ALONE):
            raise click.UsageError("--models has a table of its own; only --json goes with it")
        need_parts("drill", flower=False)
        if missing := [sdk for sdk in _SDKS if find_spec(sdk) is None]:
            raise UsageError(f"the SDKs are needed: pip install 'fencepost[{','.join(missing)}]'")
        try:
            found = try_models()
        except SandboxError as error:
            raise Unreachable(str(error)) from error
        if not show(found, as_json=bool(others.get("as_json"))):
            click.get_current_context().exit(1)
        return None

    return _OPTION(chosen)


def show(found: Sequence[Found], *, as_json: bool) -> bool:
    """Print the table, a line for a fault; whether all came out as it says."""
    wrong = [one for one in found if one.wrong]
    if as_json:
        print_json({"ok": not wrong, "cells": [one.to_json() for one in found]})
        return not wrong
    lines: dict[str, dict[Wire, str]] = {}
    fields: dict[str, Counter[str]] = {}
    for one in found:
        if (field := one.row.rule.get("field")) is not None:
            fields.setdefault(field, Counter())[told(one.outcome)] += 1
        else:
            lines.setdefault(one.row.name, {})[one.wire] = told(one.outcome)
    print_table(
        ["fault!", *map(str, Wire)],
        [(name, *(cells.get(wire, "-") for wire in Wire)) for name, cells in lines.items()],
    )
    if fields:
        came = {name: "; ".join(f"{n} x {told}" for told, n in each.items()) for name, each in fields.items()}
        click.echo("")
        print_table([f"field of {Wire.CHAT}!", "with each oddity"], list(came.items()))
    for one in wrong:
        click.echo(f"{one.row.name} on {one.wire}: {told(one.outcome)}; {one.wrong}")
    requests, retries = sum(one.asked for one in found), sum(one.retries for one in found)
    click.echo(f"\n{len(found)} answers, {requests} requests, {retries} hidden retries, {len(wrong)} wrong")
    return not wrong
