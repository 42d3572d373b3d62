"""What came of a user's tool, in words: for the failure of a test, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fencepost_ops.drill.users.entries import Entry
from fencepost_ops.drill.users.exchanges import Exchange
from fencepost_ops.drill.users.judge import Finding
from fencepost_ops.drill.users.played import Played
from fencepost_ops.drill.users.probe import differ


def told(finding: Finding, name: str, among: str) -> str:
    """One finding in full."""
    lines = [f"{name}: {finding.title}{among}", f"  what      {finding.said}"]
    played = finding.played
    if played is not None:
        lines.append(f"  fault     {played.why}")
        lines += _effects(played, finding.effects)
    lines.append(f"  likely    {finding.mistake}")
    if played is not None:
        lines.append("  history   seconds, then what happened; > is what went over the wire")
        lines += [f"    {line}" for line in timeline(played)]
        lines.append("  again     fencepost_drill(..., protocol=r'''")
        lines += [f"    {line}" for line in played.protocol.to_text().splitlines()]
        lines.append("    ''')")
    return "\n".join(lines)


def _effects(played: Played, effects: Sequence[Entry]) -> Iterator[str]:
    makers = [played.maker(entry) for entry in effects]
    for number, (entry, maker) in enumerate(zip(effects, makers, strict=True), 1):
        word = "effects   " if number == 1 else " " * 10
        key = entry.key or (maker.key if maker else None)
        yield f"  {word}{number}. {entry.named}{_by(maker)}; key {key or 'unknown'}"
        if maker is not None and maker.body:
            yield f"  {' ' * 13}{maker.body}"
    if len(effects) > 1 and makers[0] is not None and makers[1] is not None:
        yield f"  differ    {_differ(effects, makers[0], makers[1])}"


def _by(maker: Exchange | None) -> str:
    if maker is None:
        return ""
    attempt = f", attempt {maker.attempt}" if maker.attempt else ""
    landed = maker.at_s if maker.landed_s is None else maker.landed_s
    return f", by {maker.what}{attempt}, at {landed:.3f} s"


def _differ(effects: Sequence[Entry], one: Exchange, other: Exchange) -> str:
    keys = (effects[0].key or one.key, effects[1].key or other.key)
    said = "the keys are equal" if keys[0] == keys[1] else f"the keys: {keys[0]} ≠ {keys[1]}"
    if keys == (None, None):
        said = "no key is known"
    bodies = differ(one.body, other.body)
    return f"{said}; {'the bodies: ' + '; '.join(bodies) if bodies else 'the bodies are equal'}"


def timeline(played: Played) -> list[str]:
    """The events of a history, with what went over the wire between them."""
    lines = list(played.outcome.timeline)
    for one in played.log:
        lines.insert(_place(lines, one), _told(one))
    return lines


def _told(one: Exchange) -> str:
    arrived = "" if one.landed_s is not None else " (never arrived)"
    if one.landed_s is not None and one.landed_s > one.at_s:
        arrived = f" (arrived at {one.landed_s:.3f})"
    made = f"; EFFECT {', '.join(entry.named for entry in one.made)}" if one.made else ""
    return f"{one.at_s:9.3f}  > {one.what} {one.body}{arrived} → {one.heard}{made}".replace("  (", " (")


def _place(lines: Sequence[str], one: Exchange) -> int:
    """After whatever began it: events of one step all have the time of its transaction."""
    began = "LeaseAcquired" if one.kind == "lookup" else "ToolAttemptStarted"
    at = [n for n, line in enumerate(lines) if float(line[:9]) <= one.at_s + 0.0005]
    same = [n for n in at if began in lines[n] and float(lines[n][:9]) >= one.at_s - 0.0015]
    return (same[-1] if same else at[-1] if at else -1) + 1
