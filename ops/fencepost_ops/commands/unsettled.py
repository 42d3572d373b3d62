"""What is told of a call that nobody knows the outcome of: lines for people, values for programs. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime
from typing import Any, Final

from fencepost.clock import NEVER, parse_rfc3339, rfc3339
from fencepost.ledger.unresolved import Sent, Story, Unresolved
from fencepost.states import RUN_ENDS, RUN_FORWARD, CallState
from fencepost.tools import OnStop
from fencepost.wire import StoredRequest
from fencepost_ops.commands.durations import spoken
from fencepost_ops.commands.masking import masked_target, masked_text
from fencepost_ops.commands.output import seen, when
from fencepost_ops.commands.sayings import cut
from fencepost_ops.commands.timeline import how_to_repair

BODY: Final = 2000  # characters of a body that are shown at most
_LINE: Final = 120
_EACH: Final = 20  # attempts and answers of one call on the screen, the newest; JSON has them all


def brief(call: Unresolved, story: Story, now: datetime) -> Iterator[str]:
    """One call in a few lines."""
    since = f" for {spoken(now - call.since)}" if call.since is not None else ""
    yield f"{cut(call.tool)} {cut(call.label)} of run {cut(call.run_key)}: {call.state}{since}"
    yield f"  call    {call.call} (version {call.version})"
    yield f"  sent    {call.attempts} × {_line(call)}{_last_sent(story, now)}"
    if story.sent and (back := _came_back(story.sent[-1])):
        yield f"  back    {back}"
    yield f"  lookup  {_last_asked(call, story)}"
    yield f"  why     {cut(call.error or 'not known')}"
    for filed in call.evidence:
        yield f"  known   {cut(filed)}"
    if (asked := pending(call, now)) is not None:
        yield f"  asked   {asked}; another person: fencepost repair {call.call} --confirm --reason TEXT"
    yield f"  next    {following(call, now)}"
    yield from _of_its_run(call, now)


def _of_its_run(call: Unresolved, now: datetime) -> Iterator[str]:
    """Its run's deadline, and what becomes of the effects it has had while this call is not settled."""
    if call.deadline is None or call.status in RUN_ENDS:
        return
    one = call.effects == 1
    many, are, stay = (
        ("1 effect of it", "is", "stays") if one else (f"{call.effects} effects of it", "are", "stay")
    )
    follows = {
        OnStop.COMPENSATE: f"{many} {are} offset once this call is settled, and not before",
        OnStop.COMPENSATE_AT_ONCE: f"{many} {are} offset at once (on_stop compensate_at_once)",
        OnStop.LEAVE: f"{many} {stay} (on_stop leave)",
    }
    then = follows[OnStop(call.on_stop)] if call.effects else "it has had no other effect"
    if call.status in RUN_FORWARD:
        at = f"goes on until its deadline, {rfc3339(call.deadline)} ({when(call.deadline, now)}); then"
    else:
        at = "stops:"
    yield f"  run     {at} {then}"


def full(call: Unresolved, story: Story, now: datetime) -> Iterator[str]:
    """One call with everything that is known of it, and each command that settles it."""
    since = f" since {rfc3339(call.since)}" if call.since is not None else ""
    yield f"{cut(call.tool)} v{call.tool_version} {cut(call.label)} of run {cut(call.run_key)}: {call.state}"
    yield f"  call    {call.call} (version {call.version})"
    yield f"  run     {call.run} of tenant {cut(call.tenant)}, dependency {cut(call.scope)}"
    if call.operation is not None:
        yield f"  key     {call.operation}"
    if call.compensates is not None:
        yield f"  offsets {call.compensates}"
    yield f"  age     {spoken(now - call.since) if call.since is not None else 'not known'}{since}"
    yield f"  asks    {seen(masked_text(call.arguments), BODY)}"
    yield from _request(call)
    for sent in _newest(story.sent):
        yield f"  sent    {_sent(sent)}"
        yield f"  back    {_came_back(sent) or 'nothing was recorded'}"
    for asked in _newest(story.asked):
        said = ", ".join(text for text in (asked.detail, asked.receipt) if text)
        yield f"  asked   {rfc3339(asked.at)}: {cut(asked.answer)}{f' ({cut(said)})' if said else ''}"
    if not story.asked:
        yield "  asked   never"
    for heard in _newest(story.evidence):
        applied = "applied" if heard.applied else f"not applied: {heard.code}"
        receipt = f", receipt {heard.receipt}" if heard.receipt else ""
        yield f"  known   {rfc3339(heard.at)}: attempt {heard.attempt} {cut(applied + receipt)}"
    for at, reason in _newest(story.why):
        yield f"  why     {rfc3339(at)}: {cut(reason)}"
    if not story.why:
        yield f"  why     {cut(call.error or 'not known')}"
    for decided in _newest(story.decided):
        reason = cut(decided.reason or "")
        yield f"  decided {rfc3339(decided.at)} by {cut(decided.by)}: {decided.what}, {reason}"
    for line in ways(call, now):
        yield f"  next    {line}"
    yield from _of_its_run(call, now)


def values(call: Unresolved, story: Story, now: datetime) -> dict[str, Any]:
    """Everything, for `--json`; the stored request is told as its method, target and body."""
    kept = {name: value for name, value in asdict(call).items() if name not in {"request", "arguments"}}
    return kept | {
        "age_s": (now - call.since).total_seconds() if call.since is not None else None,
        "arguments": masked_text(call.arguments),
        "request": request_of(call),
        "sent": [asdict(sent) for sent in story.sent],
        "asked": [asdict(asked) for asked in story.asked],
        "reported": [asdict(heard) for heard in story.evidence],
        "why": [{"at": at, "reason": reason} for at, reason in story.why],
        "decided": [asdict(decided) for decided in story.decided],
        "next": list(ways(call, now)),
    }


def request_of(call: Unresolved) -> dict[str, Any] | None:
    """What left for the downstream: None for a Python tool, of which only the arguments are known."""
    stored = _stored(call)
    if stored is None:
        return None
    return {
        "method": stored.method,
        "target": masked_target(stored.target),
        "body": _body(stored),
        "bytes": len(stored.body),
        "digest": stored.digest,
    }


def following(call: Unresolved, now: datetime) -> str:
    """Whose turn it is."""
    if call.state == CallState.NEEDS_REPAIR:
        return f"a person: {how_to_repair(call.call, call.effect, call.compensates)}"
    return (
        f"the {call.queue}, due {when(call.due_at, now)}"
        if call.queue is not None
        else "nothing: its row is missing"
    )


def ways(call: Unresolved, now: datetime) -> Iterator[str]:
    """Each command that a person may give now, ready to be typed but for what only they know."""
    if call.state != CallState.NEEDS_REPAIR:
        yield following(call, now)
        return
    base = f"fencepost repair {call.call} --seen {call.version} --reason TEXT"
    if (asked := pending(call, now)) is not None:
        yield f"{base} --confirm   ({asked})"
    yield f"{base} --happened --receipt RECEIPT"
    if call.effect == "reversible" and call.compensates is None:
        yield f"{base} --compensate --receipt RECEIPT"
    quiet = call.quiet_at if call.quiet_at is not None and call.quiet_at < NEVER else call.in_flight_until
    early = f"   (not before {rfc3339(quiet)})" if quiet is not None and now <= quiet else ""
    yield f"{base} --did-not-happen{early}"
    yield f"{base} --ask-again"
    yield f"{base} --accept-unknown"


def pending(call: Unresolved, now: datetime) -> str | None:
    """What somebody has asked another person to confirm, if that can still be done."""
    asked = json.loads(call.proposed) if call.proposed is not None else None
    if asked is None or asked["version"] != call.version or parse_rfc3339(asked["expires_at"]) <= now:
        return None
    return f"{asked['decision']}, asked for by {cut(asked['by'])} until {asked['expires_at']}"


def _line(call: Unresolved) -> str:
    stored = _stored(call)
    if stored is None:
        return seen(masked_text(call.arguments), _LINE)
    return seen(f"{stored.method} {masked_target(stored.target)}", _LINE)


def _request(call: Unresolved) -> Iterator[str]:
    stored = _stored(call)
    if stored is not None:
        yield f"  request {seen(f'{stored.method} {masked_target(stored.target)}', BODY)}"
        yield f"  body    {_body(stored)}"


def _stored(call: Unresolved) -> StoredRequest | None:
    if call.request is None:
        return None
    try:
        return StoredRequest.from_text(call.request)
    except ValueError:
        return None


def _body(stored: StoredRequest) -> str:
    """A bounded, masked preview; the stored bytes themselves are only ever sent."""
    try:
        text = stored.body.decode("utf-8")
    except UnicodeDecodeError:
        return f"{len(stored.body)} bytes that are no text"
    return seen(masked_text(text), BODY) if text else "empty"


def _last_sent(story: Story, now: datetime) -> str:
    return f", last {when(story.sent[-1].at, now)}" if story.sent else ""


def _sent(sent: Sent) -> str:
    repeat = ", a repeat under the same key" if sent.repeat else ""
    term = f"term {sent.owner[:6]}/{sent.fence}" if sent.owner else "no term"
    return f"{rfc3339(sent.at)} attempt {sent.attempt} ({term}){repeat}"


def _came_back(sent: Sent) -> str:
    if sent.outcome is None:
        return ""
    lost = ", its worker never answered" if sent.lost else ""
    message = f": {sent.message}" if sent.message and sent.message != sent.outcome else ""
    return cut(f"{sent.outcome}{message}{lost}")


def _last_asked(call: Unresolved, story: Story) -> str:
    if not story.asked:
        return f"asked {call.asks} times" if call.asks else "never asked"
    last = story.asked[-1]
    said = [text for text in (last.answer, last.detail) if text]
    return cut(f"{': '.join(said)} ({len(story.asked)} asked)")


def _newest(items: tuple[Any, ...]) -> tuple[Any, ...]:
    return items[-_EACH:]
