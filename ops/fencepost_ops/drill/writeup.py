"""What one history is told as: a table on the screen, and a write-up in Markdown."""

from __future__ import annotations

import click

from fencepost_ops.check import print_report
from fencepost_ops.drill.outcome import Outcome


def print_outcome(outcome: Outcome) -> None:
    """The history on the screen."""
    for line in outcome.timeline:
        click.echo(line)
    print_report(outcome.report)
    for problem in outcome.problems:
        click.echo(f"not as it should be: {problem}")


def write_up(outcome: Outcome) -> str:
    """The history as Markdown."""
    lines = [
        f"# {outcome.protocol.name}",
        "",
        outcome.protocol.about,
        "",
        "```",
        *outcome.timeline,
        "```",
        "",
    ]
    return "\n".join(lines)
