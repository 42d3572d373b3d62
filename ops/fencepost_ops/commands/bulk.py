"""`fencepost repair --where …`: one decision on many calls, each compared and set, each with its outcome."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any, Final

import click

from fencepost.commands import CONFIRM
from fencepost.errors import FencepostError, Unreachable, UsageError
from fencepost.ledger import listings
from fencepost.ledger.repairs import Waiting, Where, sharing, waiting
from fencepost.office import Repair, Repaired
from fencepost.states import CallState
from fencepost_ops.commands.durations import spoken
from fencepost_ops.commands.output import print_json, print_table
from fencepost_ops.commands.sayings import cut
from fencepost_ops.commands.session import Session

_NAMES: Final = {"tool": "tools", "dependency": "dependencies", "tenant": "tenants", "run": "runs"}
_IN_BULK: Final = (CallState.FAILED, CallState.UNKNOWN, CallState.ACCEPTED_UNKNOWN, CONFIRM)


def parse_where(given: Sequence[str], tenant: str | None, older_than: timedelta | None) -> Where:
    """What `--where NAME=VALUE` says; several of one name are alternatives. UsageError for anything else."""
    values: dict[str, list[str]] = {field: [] for field in _NAMES.values()}
    for text in given:
        name, separator, value = text.partition("=")
        if not separator or name.strip() not in _NAMES or not value.strip():
            raise UsageError(f"--where {cut(text)}: give NAME=VALUE with one of {', '.join(_NAMES)}")
        values[_NAMES[name.strip()]].append(value.strip())
    if tenant is not None:
        values["tenants"].append(tenant)
    return Where(**values, older_than=older_than)


def repair_where(
    session: Session,
    where: Where,
    decision: str,
    by: str,
    reason: str,
    *,
    dry_run: bool,
    yes: bool,
    expect: int | None,
    as_json: bool,
) -> int:
    """Decide the same of every call that fits, and report each; the exit code: 1 if any was refused.

    Nothing is decided unless it is agreed to: by `yes`, by `expect` naming how many there are, or by whoever
    sits at the terminal. What is decided is what was listed, on the versions that were listed.
    """
    if decision not in _IN_BULK:
        raise UsageError(
            "of many calls at once can be decided --did-not-happen, --ask-again, --accept-unknown and "
            "--confirm: "
            "what happened has a receipt of its own each time"
        )
    with session.connection() as connection:
        now = listings.now(connection)
        if not where.tenants and (tenants := sharing(connection, where.runs)):
            told = ", ".join(cut(tenant) for tenant in tenants)
            raise UsageError(f"runs of several tenants have that key: name one with --tenant, of {told}")
        found = waiting(connection, where)
    if expect is not None and expect != len(found):
        raise FencepostError(f"{len(found)} calls fit, not {expect}: nothing was decided")
    if dry_run or not found:
        _print_plan(found, decision, now, as_json=as_json)
        return 0
    if not (yes or expect is not None):
        _agree(found, decision, now)
    outcomes, problem = _decide(session, found, decision, by, reason)
    _print_outcomes(found, outcomes, decision, as_json=as_json)
    if problem is not None:
        left = len(found) - len(outcomes)
        raise Unreachable(f"{problem}; {left} calls were not reached: the same command again is safe")
    return 1 if any(outcome.state is None for outcome in outcomes) else 0


def _decide(
    session: Session, found: Sequence[Waiting], decision: str, by: str, reason: str
) -> tuple[list[Repaired], Unreachable | None]:
    outcomes: list[Repaired] = []
    repairs = [Repair(one.call, decision, by, reason, seen=one.version) for one in found]
    with session.client(session.app() if decision == "UNKNOWN" else None) as client:
        try:
            outcomes.extend(client.repair_many(repairs))
        except Unreachable as error:
            return outcomes, error
    return outcomes, None


def _agree(found: Sequence[Waiting], decision: str, now: datetime) -> None:
    """Have whoever sits at the terminal type how many calls they mean; UsageError without a terminal."""
    if not sys.stdin.isatty():
        raise UsageError(
            f"{len(found)} calls fit: agree with --yes, or with --expect {len(found)}; --dry-run lists them"
        )
    _print_plan(found, decision, now, as_json=False)
    if click.prompt(f"Type {len(found)} to decide {decision} of all of them", type=int) != len(found):
        raise FencepostError("nothing was decided")


def _print_plan(found: Sequence[Waiting], decision: str, now: datetime, *, as_json: bool) -> None:
    if as_json:
        print_json({"decision": decision, "decided": False, "calls": [asdict(one) for one in found]})
        return
    rows = [
        (
            one.tool,
            one.dependency,
            one.tenant,
            one.run_key,
            spoken(now - one.since) if one.since is not None else "",
            one.error,
            one.call,
        )
        for one in found
    ]
    columns = ["TOOL", "DEPENDENCY?", "TENANT", "RUN", "AGE>", "WHY", "CALL!"]
    print_table(columns, rows, empty="no call that needs repair fits")
    if found:
        click.echo(f"{len(found)} calls would be decided {decision}; nothing was decided")


def _print_outcomes(
    found: Sequence[Waiting], outcomes: Sequence[Repaired], decision: str, *, as_json: bool
) -> None:
    counts = Counter("refused" if outcome.state is None else outcome.state for outcome in outcomes)
    asked = counts[CallState.NEEDS_REPAIR]
    if as_json:
        value: dict[str, Any] = {"decided": not asked, "counts": dict(counts)}
        calls = [_told(one, out, decision) for one, out in zip(found, outcomes, strict=False)]
        print_json(value | {"asked_for": decision if asked else None, "calls": calls})
        return
    for one, outcome in zip(found, outcomes, strict=False):
        call = f"call {one.call} ({cut(one.tool)} of run {cut(one.run_key)})"
        click.echo(f"{call} {_became(outcome, decision)}")
    names: dict[str, str] = {CallState.NEEDS_REPAIR: f"asked for as {decision}"}
    click.echo(", ".join(f"{count} {names.get(name, name)}" for name, count in sorted(counts.items())))
    if asked:
        click.echo(
            "nothing of what is asked for is decided: another operator does that, by the same --where "
            "and --confirm"
        )


def _became(outcome: Repaired, decision: str) -> str:
    if outcome.state is None:
        return f"was refused: {cut(outcome.why)}"
    if outcome.state == CallState.NEEDS_REPAIR:  # it takes two persons
        return f"is asked for as {decision}; another operator confirms it"
    return f"is {outcome.state}"


def _told(one: Waiting, outcome: Repaired, decision: str) -> dict[str, Any]:
    asked = decision if outcome.state == CallState.NEEDS_REPAIR else None  # another operator is to confirm it
    return asdict(one) | {"state": outcome.state, "asked_for": asked, "why": outcome.why}
