"""How one history is told: on the screen, and as a write-up in Markdown, both from its outcome alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import click

from fencepost.canonical import sanitize
from fencepost_ops.check import print_report
from fencepost_ops.checker import Verdict, Violation
from fencepost_ops.commands.output import print_table, shown
from fencepost_ops.drill.outcome import CallEnd, Outcome, Owed, Struck

_CELL: Final = 1000  # characters of one stored text at most
_NAMES: Final = ("run", "call", "attempt", "event")

_NOTHING: Final = "Nothing: all is known, and all is offset that was to be."

Row = tuple[str, ...]


# -- what both say --------------------------------------------------------------------------------------


def predictions(one: Struck) -> list[Row]:
    """What was predicted of a fault against what it left behind: name, predicted, result, verdict."""
    said, left = one.fault.predict, one.left
    pairs: list[tuple[str, object, object]] = [
        ("call", said and said.call, left.state),
        ("run", said and said.run, left.status),
        ("doubt", said and said.doubt, left.doubt),
        ("owner of recovery", said and said.owner, left.owner),
        ("the call ends", said and said.ends, one.ended),
    ]
    return [
        (name, _word(a), _word(b), "" if a is None else "as predicted" if a == b else "DIFFERS")
        for name, a, b in pairs
        if a is not None or b is not None
    ]


def durable(one: Struck) -> str:
    """By which durable record the others could go on, or that there was none."""
    left = one.left
    if left.record is None:
        return "it struck no run or call: what was in hand is in the outbox, and is published again"
    row = "no outbox row" if left.owner is None else f"the outbox row of the {left.owner}"
    number = f", generation {left.generation}" if left.generation is not None else ""
    due = f", due at {left.due_s:.3f} s" if left.due_s is not None else ""
    holds = f", which holds {one.holds}" if one.holds else ""
    return f"{left.record}{holds}; and {row}{number}{due}"


def replay_line(one: Struck) -> str | None:
    """Whether replay gives the projection there was before the restart; None where nothing was struck."""
    before = one.left.projection
    if before is None or one.replayed is None:
        return None
    sign = "=" if before == one.replayed else "DIFFERS FROM"
    return f"projection before the restart {before} {sign} after replay {one.replayed}"


def calls(outcome: Outcome) -> list[Row]:
    """Every call: how it ended, how often it was begun, what reached its service, and what happened there."""
    return [
        (
            call.label,
            call.tool,
            call.kind,
            call.state,
            *map(str, (call.attempts, call.requests, call.effects)),
        )
        for call in outcome.calls
    ]


def reasons(outcome: Outcome) -> Iterator[str]:
    """Why each key had the effects it had."""
    for call in outcome.calls:
        yield f"{call.label} ({_class(call)}): {call.why}"


def owed(one: Owed) -> str:
    """Who settles what is left, and how."""
    why = f" ({one.why})" if one.why else ""
    return f"{one.label} is {one.state}, and it is for {_who(one.who)}{why}: {one.command}"


def culprit(verdict: Verdict, violation: Violation) -> str:
    """A violation with everything that has a name."""
    found = violation.to_json()
    names = ", ".join(f"{name} {found[name]}" for name in _NAMES if name in found)
    return f"{verdict.invariant} did not hold: {violation.message}" + (f" ({names})" if names else "")


def _class(call: CallEnd) -> str:
    return f"{call.tool}, {call.kind}" if call.kind else call.tool


def _who(owner: str) -> str:
    return "a person" if owner == "person" else f"the {owner}" if owner != "nobody" else owner


def _word(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else str(value)


def _head(one: Struck) -> str:
    return f"{one.fault.named}: {one.process}, at {one.at_s:.3f} s"


def _counts(outcome: Outcome) -> str:
    effects = ", ".join(f"{count} of {service}" for service, count in outcome.effects.items()) or "none"
    attempts = sum(call.attempts for call in outcome.calls)
    return f"attempts: {attempts}; dispatches: {outcome.dispatches}; effects: {effects}"


def _replays(outcome: Outcome) -> list[Row]:
    return [
        (run.key, run.status, run.reason or "", run.projection or "", "no" if run.unlike else "yes")
        for run in outcome.runs
    ]


# -- the screen -----------------------------------------------------------------------------------------


def print_outcome(outcome: Outcome) -> None:
    """The history on the screen."""
    protocol = outcome.protocol
    click.echo(f"{protocol.name}: {protocol.about}" if protocol.about else protocol.name)
    click.echo(f"seed {protocol.seed}, {outcome.steps} steps, {outcome.seconds:.3f} s of virtual time\n")
    for line in outcome.timeline:
        click.echo(shown(line).plain)
    for one in outcome.struck:
        click.echo(f"\n{_head(one)}")
        print_table(["right after it!", "predicted!", "it was!", "!"], predictions(one))
        _print_wrapped("durable", [durable(one)])
        _print_wrapped("then", one.followed)
        _print_wrapped("replay", filter(None, [replay_line(one)]))
    for fault in outcome.never:
        click.echo(f"\n{fault.named}: never reached")
    click.echo("")
    print_table(["call!", "tool", "class!", "state!", "attempts>", "requests>", "effects>"], calls(outcome))
    for why in reasons(outcome):
        click.echo(f"why: {shown(why).plain}")
    click.echo(_counts(outcome) + "\n")
    print_table(["run!", "status!", "reason", "projection", "replay agrees!"], _replays(outcome))
    for one_owed in outcome.owed:
        click.echo(f"owed: {shown(owed(one_owed)).plain}")
    click.echo("")
    print_report(outcome.report)
    click.echo("")
    _print_end(outcome)


def _print_wrapped(title: str, lines: Iterable[str]) -> None:
    for number, line in enumerate(lines):
        click.echo(f"  {'' if number else title:<9}{shown(line).plain}")


def _print_end(outcome: Outcome) -> None:
    for problem in outcome.problems:
        click.echo(f"not as it should be: {shown(problem).plain}")
    if outcome.ok:
        wanted = outcome.protocol.expect.violated
        told = f"; violated as expected: {', '.join(wanted)}" if wanted else "; every invariant holds"
        click.echo(f"as predicted{told}")


# -- Markdown -------------------------------------------------------------------------------------------


def write_up(outcome: Outcome) -> str:
    """The history as Markdown: what was predicted, what happened, why, and what is left to whom."""
    return "\n".join(_written(outcome)) + "\n"


def _written(outcome: Outcome) -> Iterator[str]:
    protocol = outcome.protocol
    yield f"# Drill `{protocol.name}`: {'as predicted' if outcome.ok else 'NOT as predicted'}"
    if protocol.about:
        yield from ("", protocol.about)
    yield ""
    yield f"Seed {protocol.seed}, {outcome.steps} steps, {outcome.seconds:.3f} s of virtual time."
    yield from _bullets(outcome.problems)
    if outcome.struck or outcome.never:
        yield from ("", "## Faults")
    for one in outcome.struck:
        yield from _fault(one)
    yield from _bullets([f"{fault.named}: never reached" for fault in outcome.never])
    yield from ("", "## Why it came out so", "")
    yield from _table(("call", "tool", "class", "state", "attempts", "requests", "effects"), calls(outcome))
    yield from _bullets(reasons(outcome))
    yield from ("", f"{_counts(outcome)}.", "")
    yield from _table(("run", "status", "reason", "projection", "replay agrees"), _replays(outcome))
    yield from ("", "## What is left", "")
    yield from [f"- {_text(owed(one))}" for one in outcome.owed] or [_NOTHING]
    yield from _invariants(outcome)
    yield from ("", "## The history", "", "```", *map(_text, outcome.timeline), "```")
    yield from ("", "## Again", "", "```json", protocol.to_text().rstrip(), "```")


def _fault(one: Struck) -> Iterator[str]:
    yield from ("", f"### {_text(_head(one))}", "")
    if rows := predictions(one):
        yield from _table(("right after it", "predicted", "it was", ""), rows)
        yield ""
    yield f"- Durable record: {_text(durable(one))}."
    if one.left.owner is not None:
        yield f"- Recovery was for the {one.left.owner}."
    yield from [f"- Then: {_text(line)}." for line in one.followed]
    if line := replay_line(one):
        yield f"- Replay: {line}."


def _invariants(outcome: Outcome) -> Iterator[str]:
    yield from ("", "## Invariants", "")
    yield from _table(
        ("invariant", "verdict", "looked at", "it says that"),
        [(v.invariant, v.verdict, str(v.count), v.promise) for v in outcome.report.verdicts],
    )
    broken = [culprit(v, one) for v in outcome.report.verdicts for one in v.violations]
    yield from _bullets(broken, bold=True)
    yield from _bullets(
        f"{v.invariant}, not asserted: {note}"
        for v in outcome.report.verdicts
        for note in dict.fromkeys(v.notes)
    )


def _table(head: Row, rows: Sequence[Row]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(_text(cell).replace('|', chr(92) + '|') for cell in row)} |"


def _bullets(lines: Iterable[str], *, bold: bool = False) -> Iterator[str]:
    found = list(lines)
    if found:
        yield ""
    for line in found:
        yield f"- **{_text(line)}**" if bold else f"- {_text(line)}"


def _text(value: str) -> str:
    return sanitize(value, _CELL).replace("\n", " ")
