"""What a person is asked to approve, as lines and values. Pure: `ledger.approvals.Waiting` in, text out.

The request is shown whole and unmasked: what is approved is what will be sent, byte for byte. Characters that
nobody would see are spelled out, and letters from outside ASCII are named, since many look like others.
"""

from __future__ import annotations

import base64
import unicodedata
from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final

from fencepost.approvals import Said
from fencepost.canonical import revealed
from fencepost.clock import rfc3339
from fencepost.ledger.approvals import Waiting
from fencepost.money import Money
from fencepost.states import CallState
from fencepost.wire import StoredRequest
from fencepost_ops.commands.durations import spoken
from fencepost_ops.commands.output import when
from fencepost_ops.commands.sayings import cut

COLUMNS: Final = [
    "CALL!",
    "TOOL",
    "AMOUNT>",
    "EFFECT",
    "STILL NEEDED",
    "AGE>",
    "EXPIRES>",
    "TAINT",
    "RUN?",
    "TENANT?",
]
_NAMED: Final = 12  # letters that are named, of those outside ASCII
_MARKS: Final = ("\u2039", "\u203a")  # around a code that stands for a character
BYTES_SHOWN: Final = 64 * 1024
"""Of a body; --json gives all of it."""


def exact(text: str) -> str:
    """`text` on one line; what nobody would see in it, or what moves the cursor, as `‹U+200B›`."""
    plain = "".join(_spelled(c) if _odd(c) else c for c in text)
    return revealed(plain, _spelled)


def _odd(letter: str) -> bool:
    if letter in _MARKS or letter in "\t\r\n":
        return True
    return not letter.isascii() and unicodedata.category(letter) in {
        "Zs",
        "Zl",
        "Zp",
        "Cf",
        "Cc",
        "Cn",
        "Co",
        "Cs",
    }


def _spelled(letter: str) -> str:
    return f"{_MARKS[0]}U+{ord(letter):04X}{_MARKS[1]}"


def foreign(*texts: str) -> list[str]:
    """The characters outside ASCII, each with its name: many look like letters of it."""
    found = dict.fromkeys(c for text in texts for c in text if not c.isascii())
    return [f"U+{ord(c):04X} {unicodedata.name(c, 'without a name')}" for c in found]


def row(one: Waiting, now: datetime) -> tuple[object, ...]:
    """One line of the table."""
    asked = one.approval
    by = f", after {cut(', '.join(said.who for said in asked.approved))}" if asked.approved else ""
    return (
        one.call,
        f"{one.tool} v{one.tool_version}",
        amount(asked.asked.get("amount")) or "",
        str(asked.asked.get("effect", "")).upper(),
        f"{persons(asked.missing)}{by}",
        spoken(now - asked.requested_at),
        when(one.until, now),
        "tainted" if asked.asked.get("tainted") is not None else "",
        one.run_key,
        one.tenant,
    )


def persons(count: int) -> str:
    """So many of them."""
    return "1 person" if count == 1 else f"{count} persons"


def amount(value: Any) -> str | None:
    """An amount as people write it, with all decimals of its currency."""
    if not isinstance(value, dict):
        return None
    try:
        money = Money(**value)
    except ValueError:
        return cut(value)
    return f"{money.amount} {money.currency}"


def lines(one: Waiting, now: datetime) -> Iterator[str]:
    """All of it: what will be sent, why persons are asked, who has said what."""
    approval, asked = one.approval, one.approval.asked
    yield f"call {one.call}  {one.tool} v{one.tool_version}  {one.state}  version {one.version}"
    yield f"why        {cut(asked['reason'])}"
    age = spoken(now - approval.requested_at)
    yield f"asked      {rfc3339(approval.requested_at)} ({age} ago), policy {cut(asked['policy'])}"
    whose = "" if one.until == approval.expires_at else ", with its run's deadline"
    yield f"expires    {rfc3339(one.until)} ({when(one.until, now)}){whose}"
    each = ", each under a login of its own" if approval.count > 1 else ""
    yield f"takes      {persons(approval.count)}{each}"
    for said in approval.said:
        yield f"  {_said(said)}"
    yield f"effect     {str(asked['effect']).upper()}{', sends data out' if asked.get('egress') else ''}"
    if one.compensates:
        yield "purpose    it offsets an earlier effect of its run"
    if (told := amount(asked.get("amount"))) is not None:
        yield f"amount     {told}"
    if asked.get("resource"):
        yield f"acts on    {' '.join(exact(part) for part in asked['resource'])}"
    yield from _origin(one)
    yield f"arguments  {exact(one.arguments)}"
    yield f"           hash {one.arguments_hash}"
    yield from _request(one)


def _said(said: Said) -> str:
    what = "approved" if said.approve else "denied"
    roles = f", as {cut(', '.join(said.roles))}" if said.roles else ""
    links = f", by delegation {cut(', '.join(said.links))}" if said.links else ""
    who = f"{cut(said.who)} (login {cut(said.login)})"
    return f"{what} by {who}{roles}{links} at {rfc3339(said.at)}: {cut(said.reason)}"


def _origin(one: Waiting) -> Iterator[str]:
    asked = one.approval.asked
    behalf = f", on behalf of {cut(', '.join(asked['on_behalf_of']))}" if asked.get("on_behalf_of") else ""
    yield f"requester  {cut(asked['requester'])}{behalf}, tenant {cut(one.tenant)}"
    planner = f"planner {cut(asked['planner'])} v{asked['planner_version']}"
    yield f"from       turn {asked['turn']} of {planner}, run {cut(one.run_key)} ({one.run})"
    if asked.get("tainted") is None:
        yield "taint      none: the run had read nothing that nobody vouches for"
    else:
        by = f": {cut(one.tainted)}" if one.tainted else ""
        yield f"taint      TAINTED by event {asked['tainted']} of its run{by}"
        yield "           what it asks for may be somebody else's words"


def _request(one: Waiting) -> Iterator[str]:
    asked = one.approval.asked
    stored = request(one)
    if stored is None:
        why = asked.get("request_error")
        none = (
            f"no request: {cut(why)}"
            if why
            else "its function is called with these arguments; what that sends is not known"
        )
        yield f"will do    {none}"
        return
    yield f"will send  {exact(stored.method)} {exact(stored.target)}"
    for name, value in stored.headers:
        yield f"           {exact(name)}: {exact(value)}"
    body, kind = _body(stored.body)
    shown = f"{body[:BYTES_SHOWN]}… (--json shows all)" if len(body) > BYTES_SHOWN else body
    yield f"           body ({len(stored.body)} bytes{kind}): {shown}"
    yield "           key, deadline and credentials are added as it is sent; a repeat sends the same bytes"
    names = foreign(stored.target, body)
    if names:
        rest = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        yield f"           look twice: {', '.join(names[:_NAMED])}{rest}"


def request(one: Waiting) -> StoredRequest | None:
    """The request that was shown; None where none is sent, or none could be built."""
    text = one.approval.asked.get("request")
    return StoredRequest.from_text(text) if isinstance(text, str) else None


def _body(data: bytes) -> tuple[str, str]:
    try:
        return exact(data.decode()), ""
    except UnicodeDecodeError:
        return base64.b64encode(data).decode(), ", in base64"


def values(one: Waiting) -> dict[str, Any]:
    """All of it, for `--json`."""
    stored = request(one)
    asked = {name: value for name, value in one.approval.asked.items() if name != "request"}
    sent = None
    if stored is not None:
        try:
            body = {"text": stored.body.decode()}
        except UnicodeDecodeError:
            body = {"base64": base64.b64encode(stored.body).decode()}
        headers = [list(pair) for pair in stored.headers]
        sent = {"method": stored.method, "target": stored.target, "headers": headers, "body": body}
    return {
        "tenant": one.tenant,
        "run": one.run,
        "run_key": one.run_key,
        "call": one.call,
        "label": one.label,
        "tool": one.tool,
        "tool_version": one.tool_version,
        "state": one.state,
        "version": one.version,
        "compensates": one.compensates,
        "attempts": one.attempts,
        "arguments": one.arguments,
        "request": sent,
        "tainted_by": one.tainted,
        "missing": one.approval.missing if one.state == CallState.AWAITING_APPROVAL else 0,
        "until": one.until,
        "asked": asked,
        "said": one.approval.said,
    }
