"""`fencepost stats`: how the fleet does, counted from the ledger's own history."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import click

from fencepost.clock import rfc3339
from fencepost.ledger import stats as ledger_stats
from fencepost.ledger.stats import MOST, Aged, Spending, Spread, Stats, ToolStats
from fencepost_ops.commands.durations import MOMENT, spoken
from fencepost_ops.commands.output import plain, print_json, print_table, shown
from fencepost_ops.commands.session import Session, dsn_option, json_option, pass_session
from fencepost_ops.commands.spent import money

_TOOLS = [
    "DEPENDENCY",
    "TOOL!",
    "CALLS>",
    "ATTEMPTS>",
    "AMPLIFIED>",
    "REQUESTS>",
    "PER ATTEMPT>",
    "UNKNOWN>",
    "FAILED>",
]
_SPREADS = ["", "COUNT>", "P50>", "P99>", "LONGEST>"]
_SPENDING = [
    "PLANNER!",
    "COMPLETED>",
    "ENDED>",
    "TOKENS>",
    "COST>",
    "BELOW>",
    "TOKENS PER COMPLETED>",
    "COST PER COMPLETED>",
]
_AGES = ["AGE", "STATE!", "COUNT>", "OLDEST>"]


@click.command()
@click.option(
    "--since",
    type=MOMENT,
    default="24h",
    show_default=True,
    metavar="MOMENT",
    help="From when on: 24h (ago), a day, or RFC 3339.",
)
@click.option(
    "--most",
    type=click.IntRange(1, 1_000_000_000),
    default=MOST,
    show_default=True,
    help="Events to read at most, the newest.",
)
@dsn_option
@json_option
@pass_session
def stats(session: Session, since: datetime | timedelta, most: int, as_json: bool) -> None:
    """Count what the fleet did: attempts per call, requests per attempt, repeats per key, times and ages.

    By tool and dependency: AMPLIFIED is attempts per call; PER ATTEMPT is requests for effects per recorded
    attempt, in red where some attempt sent more than one, which is a retry that somebody hides. Then how long
    runs and calls waited and worked, by planner what runs that ended used and what that makes for each that
    completed (BELOW is the cost of the runs they started), what is unresolved and open by age (HELD: nothing
    was sent, because an MCP server offers something else than was pinned). It reads, and slows down nobody
    for long: of a long period only the newest events are read.
    """
    with session.connection() as connection:
        found = ledger_stats.read_stats(connection, since, most=most)
    if as_json:
        print_json(_values(found))
        return
    cut = (
        f"; there are more, and only the newest were read: from {rfc3339(found.read_since)} on"
        if found.cut
        else ""
    )
    click.echo(f"{found.events} events since {rfc3339(found.since)} ({spoken(found.now - found.since)}){cut}")
    click.echo()
    print_table(_TOOLS, [_tool(tool) for tool in found.tools], empty="no attempt was answered")
    keys = found.keys
    click.echo()
    click.echo(
        f"keys {keys.keys} · proposed by several calls {keys.shared} (at most {keys.most_calls}) · attempted "
        f"more than once {keys.repeated}, {keys.repeats} attempts beyond their first (at most "
        f"{keys.most_attempts})"
    )
    click.echo()
    print_table(
        _SPREADS, [_spread(one) for one in (*found.hops, *found.finished)], empty="nothing took any time"
    )
    click.echo()
    print_table(_SPENDING, [_spending(one) for one in found.spending], empty="no run has ended")
    _print_ages("unresolved", found.unresolved)
    _print_ages("open runs", found.open_runs)


def _tool(tool: ToolStats) -> tuple[object, ...]:
    requests = f"{tool.requests_per_attempt:.3f}"
    return (
        tool.dependency,
        tool.tool,
        tool.calls,
        tool.attempts,
        f"{tool.amplification:.3f}",
        tool.requests,
        shown(requests, "bold red") if tool.hidden else requests,
        tool.unknown,
        tool.failed,
    )


def _spending(one: Spending) -> tuple[object, ...]:
    return (
        one.planner,
        one.completed,
        one.ended,
        one.tokens,
        money(one.cost),
        money(one.below_cost),
        f"{one.tokens_per_completed:.0f}",
        money(round(one.cost_per_completed)),
    )


def _spread(one: Spread) -> tuple[object, ...]:
    return one.name, one.count, spoken(one.p50), spoken(one.p99), spoken(one.longest)


def _print_ages(title: str, ages: Sequence[Aged]) -> None:
    click.echo()
    total = sum(one.count for one in ages)
    click.echo(f"{title}: {total}" if total else f"{title}: none")
    if ages:
        print_table(_AGES, [(_band(one), one.state, one.count, spoken(one.oldest)) for one in ages])


def _band(one: Aged) -> str:
    if one.below is None:
        return f"{spoken(one.above)} and more"
    return f"{spoken(one.above)} to {spoken(one.below)}" if one.above else f"under {spoken(one.below)}"


def _values(found: Stats) -> dict[str, Any]:
    return {
        "now": found.now,
        "since": found.since,
        "read_since": found.read_since,
        "cut": found.cut,
        "events": found.events,
        "tools": [
            {
                "dependency": tool.dependency,
                "tool": tool.tool,
                "calls": tool.calls,
                "attempts": tool.attempts,
                "amplification": round(tool.amplification, 4),
                "answered": tool.answered,
                "requests": tool.requests,
                "requests_per_attempt": round(tool.requests_per_attempt, 4),
                "hidden": tool.hidden,
                "unknown": tool.unknown,
                "failed": tool.failed,
            }
            for tool in found.tools
        ],
        "keys": found.keys,
        "hops": {hop.name: hop for hop in found.hops},
        "finished": {one.name: one for one in found.finished},
        "spending": [
            {
                **plain(one),
                "tokens_per_completed": round(one.tokens_per_completed, 1),
                "cost_per_completed": round(one.cost_per_completed),
            }
            for one in found.spending
        ],
        "unresolved": found.unresolved,
        "open_runs": found.open_runs,
    }
