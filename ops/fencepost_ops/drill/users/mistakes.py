"""The likely mistake behind a finding, in words: a guess from what went over the wire, no verdict. PURE."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fencepost.contracts import Dedupes
from fencepost.tools import Tool
from fencepost_ops.drill.users.entries import Entry
from fencepost_ops.drill.users.exchanges import Exchange
from fencepost_ops.drill.users.played import Played
from fencepost_ops.drill.users.probe import differ

_LONG_S: Final = 60.0
"""A lookup that is blind, or a key that is kept, for longer than this is no matter of a lag."""
_SEE: Final = "see the history"
_NOT_APPLIED: Final = (
    "it raised NotApplied after it had sent: only an answer that proves that nothing happened may become "
    "NotApplied. Let a timeout through, and the outcome is unknown, and found out"
)


def why_twice(tool: Tool | None, played: Played, effects: Sequence[Entry], impure: Sequence[str]) -> str:
    """Why there are two effects. `impure`: where its request differs when it is built twice."""
    first, second = (played.maker(entry) for entry in effects[:2])
    if tool is None or first is None or second is None:
        return _SEE
    if (refused := _refused(tool, first)) is not None:
        return refused
    if tool.kind == "python":
        return _python_twice(tool, first, second, effects)
    if impure:
        return (
            f"the request, built twice, differs ({impure[0]}): what is looked up is not what was sent. It "
            "must be a function of the arguments; what it is known by comes from them or the operation key"
        )
    if (asked := _misread(played) or _believed(played, first, second)) is not None:
        return asked
    if isinstance(tool.contract.repeat, Dedupes) and first.key == second.key:
        return _forgotten(tool.contract.repeat, (second.landed_s or 0.0) - (first.landed_s or 0.0))
    return _SEE


def _forgotten(repeat: Dedupes, gap: float) -> str:
    if gap > _LONG_S:
        return (
            f"the service executed the same key again {_span(gap)} after the first time: it does not "
            f"remember a key for the {_span(repeat.window.total_seconds())} of the contract. "
            "Dedupes(window=...) is too long"
        )
    return (
        "the service executed the same key twice: either it does not deduplicate, or the key does not travel "
        "where it looks for it (key= of the tool says where)"
    )


def _refused(tool: Tool, maker: Exchange) -> str | None:
    if tool.kind == "http" and maker.status in tool.contract.not_applied:
        return (
            f"the service answered {maker.status} after it had done it, and not_applied of the contract says "
            f"that {maker.status} proves that nothing happened: take it out of not_applied"
        )
    return None


def _python_twice(tool: Tool, first: Exchange, second: Exchange, effects: Sequence[Entry]) -> str:
    one, other = effects[:2]
    if one.key is not None and other.key is not None and one.key != other.key:
        return (
            f"each attempt hands down a key of its own ({one.key} ≠ {other.key}): hand down "
            "attempt.operation_key, which is the same in every attempt"
        )
    if first.body != second.body:
        return (
            f"each attempt hands down something else ({'; '.join(differ(first.body, second.body))}): "
            "take the key from attempt.operation_key, not from a clock, chance, or attempt.number"
        )
    if not isinstance(tool.contract.repeat, Dedupes):
        return _NOT_APPLIED
    return "the service executed the same twice: is it handed attempt.operation_key, and deduplicates it?"


def _misread(played: Played) -> str | None:
    """Of an answer to a question that was a gateway's, and was believed."""
    pages = [one.fault.answers for one in played.outcome.struck if one.fault.at == "reconcile.before_lookup"]
    if not any(pages):
        return None
    return (
        f"a gateway's {pages[0]} in answer to the lookup was taken for the service's own: lookup_parse= must "
        "return Found() or Absent() only for what the service itself says, and Unclear() for all else"
    )


def _believed(played: Played, first: Exchange, second: Exchange) -> str | None:
    """Of a question that was believed although the effect had happened, or was about to."""
    if first.landed_s is None:
        return None
    asked = [one.landed_s for one in played.log if one.kind == "lookup" and one.landed_s is not None]
    asked = [at for at in asked if first.at_s <= at <= second.at_s]
    return _blind(asked[-1] - first.landed_s, first.key) if asked else None


def _blind(gap: float, key: str | None) -> str:
    if gap < 0:
        return "the request landed after the lookup had been believed: the contract's settle is too short"
    if gap > _LONG_S:
        return (
            f"the lookup did not find it {_span(gap)} after it had happened: does it ask for what was sent "
            f"(key {key})?"
        )
    return (
        f"the lookup said absent {_span(gap)} after it had happened: it sees an effect only later, and the "
        "contract must say how much later: Lookup(lag=..., horizon=...), not strong=True, nor a shorter lag"
    )


def why_unproved(tool: Tool | None, played: Played, effects: Sequence[Entry]) -> str:
    """Why a call ended as if nothing had happened, though it had."""
    maker = played.maker(effects[0])
    if tool is None or maker is None:
        return _SEE
    if tool.kind == "python":
        return _NOT_APPLIED
    if (refused := _refused(tool, maker)) is not None:
        return refused
    if (asked_by := _misread(played)) is not None:
        return asked_by
    gateway = next((one.fault.answers for one in played.outcome.struck if one.fault.answers), None)
    if gateway in tool.contract.not_applied:
        return (
            f"a gateway's {gateway} says nothing of the service behind it: take it out of the contract's "
            "not_applied"
        )
    asked = [one.landed_s for one in played.log if one.kind == "lookup" and one.landed_s is not None]
    if asked and maker.landed_s is not None:
        return _blind(asked[-1] - maker.landed_s, maker.key)
    return "parse= took an answer for a refusal: NotApplied is proof that nothing happened"


def why_missing(tool: Tool | None, played: Played) -> str:
    """Why a call ended well without its effect."""
    struck = played.outcome.struck
    if not struck and played.case is None:
        return "book= does not show what the service did: is it the book of the service that answered?"
    if tool is None:
        return _SEE
    if tool.kind == "python":
        return (
            "it returned although its request never arrived: a timeout or a broken connection was swallowed. "
            "Let it through: any exception but NotApplied leaves the outcome unknown, and it is found out"
        )
    if (misread := _misread(played)) is not None:
        return misread
    if (page := next((one.fault.answers for one in struck if one.fault.answers), None)) is not None:
        return (
            f"a gateway's page ({page}, text/html) was taken for success: give returns= a model, or a parse= "
            "that reads what a real success says, and raises on everything else"
        )
    if any(one.kind == "lookup" for one in played.log):
        return "the lookup's answer was taken for a found effect: see lookup_parse"
    return "an answer was taken for success that is none: see parse="


def _span(seconds: float) -> str:
    """A duration for reading."""
    for least, unit, name in ((172_800.0, 86_400.0, "d"), (3600.0, 3600.0, "h"), (60.0, 60.0, "min")):
        if seconds >= least:
            return f"{seconds / unit:.3g} {name}"
    return f"{seconds:.3g} s"
