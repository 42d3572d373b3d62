"""What may go wrong with a model's answer: which faults there are, on which wires, for which requests.

    POST /models/faults {"kind": "cut_clean", "model": "support", "turn": 2, "count": 1}

Pure, and like the faults of the other services: the first rule that applies is used, a counted one by exactly
one request, and chance depends on seed, kind and what is asked, never on the order of arrival.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any, Final

from fencepost_ops.sandbox import provider_replies as replies
from fencepost_ops.sandbox.provider_oddities import Oddity
from fencepost_ops.sandbox.provider_replies import Form, Reply
from fencepost_ops.sandbox.provider_transcript import CHAT, MESSAGES, RESPONSES, WIRES
from fencepost_ops.sandbox.standing import Standing, draw


class Fault(StrEnum):
    """Everything that can be asked to go wrong."""

    STATUS = "status"  # an error answer: `status`, `retry_after_s`, `retry_after_ms`, `should_retry`, `code`
    SLOW = "slow"  # `headers_s`, `first_s`, `between_s` instead of the script's
    HOLD = "hold"  # nothing more, from `at` on, until POST /models/release
    RESET_BEFORE_HEADERS = "reset_before_headers"
    CLOSE_BEFORE_HEADERS = "close_before_headers"
    SILENT_BEFORE_HEADERS = "silent_before_headers"
    GARBAGE = "garbage"  # 200 and a page of HTML
    CUT_FIN = "cut_fin"  # the connection ends, the body does not
    CUT_RESET = "cut_reset"
    CUT_CLEAN = "cut_clean"  # a well-formed end without the event that ends the answer
    CUT_HALF_EVENT = "cut_half_event"  # a well-formed end, in the middle of an event
    SILENCE = "silence"  # nothing more
    ERROR_EVENT = "error_event"
    RESPONSE_FAILED = "response_failed"
    BAD_EVENT = "bad_event"  # an event that is no JSON, and on
    NO_DONE = "no_done"  # the stop reason, but not what ends the stream
    TRUNCATED = "truncated"  # out of tokens inside the arguments
    TRUNCATED_VALID = "truncated_valid"  # the same, where what is there is JSON: its last key is missing
    TRUNCATED_AS_WHOLE = "truncated_as_whole"  # cut arguments, and a stop reason as if they were not
    DUPLICATE_KEYS = "duplicate_keys"
    NAN = "nan"
    TRAILING = "trailing"  # something after the arguments' end
    SAME_IDS = "same_ids"
    EMPTY_IDS = "empty_ids"
    INDEX_ZERO = "index_zero"
    INDEX_MISSING = "index_missing"
    INTERLEAVED = "interleaved"  # fragments of all calls by turns
    MINGLED = "mingled"  # the same under one index for all: nobody can tell whose fragment is whose
    LATE_ID = "late_id"
    USAGE_MISSING = "usage_missing"
    UNKNOWN_STOP = "unknown_stop"
    PAUSE_TURN = "pause_turn"
    REFUSAL = "refusal"
    CONTENT_FILTER = "content_filter"
    CONTEXT_EXCEEDED = "context_exceeded"
    HOSTED_ITEM = "hosted_item"  # the provider acted by itself
    UNKNOWN_CALLER = "unknown_caller"  # a call made by a program of the provider's
    EMPTY = "empty"  # nothing at all, and a normal stop
    CALLS_AT_END = "calls_at_end"  # calls, and a stop reason that speaks of none
    NO_CALLS = "no_calls"  # no call, and a stop reason that speaks of some
    ODD = "odd"  # `field` of the stream's events as `oddity` says: see `provider_oddities`


ONLY_ON: Final[Mapping[Fault, frozenset[str]]] = {
    Fault.RESPONSE_FAILED: frozenset({RESPONSES}),
    Fault.PAUSE_TURN: frozenset({MESSAGES}),
    Fault.LATE_ID: frozenset({CHAT}),
    Fault.MINGLED: frozenset({CHAT}),
    Fault.NO_DONE: frozenset({CHAT, MESSAGES}),
    Fault.HOSTED_ITEM: frozenset({RESPONSES, MESSAGES}),
    Fault.UNKNOWN_CALLER: frozenset({RESPONSES, MESSAGES}),
    Fault.CALLS_AT_END: frozenset({CHAT, MESSAGES}),  # Responses has one status for both
    Fault.NO_CALLS: frozenset({CHAT, MESSAGES}),
    Fault.ODD: frozenset({CHAT}),
}
"""Faults that other wires have no form for; on those their rules do not apply."""
IN_STREAMS: Final = frozenset(
    {
        Fault.CUT_FIN,
        Fault.CUT_RESET,
        Fault.CUT_CLEAN,
        Fault.CUT_HALF_EVENT,
        Fault.SILENCE,
        Fault.ERROR_EVENT,
        Fault.RESPONSE_FAILED,
        Fault.BAD_EVENT,
        Fault.HOLD,
    }
)
"""What happens at one place of a stream: `at`."""
_INDEXES: Final = {
    Fault.INDEX_ZERO: "zero",
    Fault.INDEX_MISSING: "missing",
    Fault.INTERLEAVED: "interleaved",
    Fault.LATE_ID: "late",
    Fault.MINGLED: "mingled",
}
_STOPS: Final = {
    Fault.UNKNOWN_STOP: replies.UNKNOWN,
    Fault.CALLS_AT_END: replies.END,
    Fault.TRUNCATED: replies.LENGTH,
    Fault.TRUNCATED_VALID: replies.LENGTH,
}
_ENDINGS: Final = {
    Fault.EMPTY: replies.END,
    Fault.NO_CALLS: replies.TOOL,
    Fault.CONTENT_FILTER: replies.FILTER,
    Fault.CONTEXT_EXCEEDED: replies.CONTEXT,
}
PLACES: Final = ("headers", "start", "arguments", "stop", "end")
"""Where a stream can be cut: before its headers, after its first event, inside the last call's arguments
(inside the text, where there is no call), before the stop reason, after it."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What a rule can see of a request. `nth` counts the requests of one transcript at one model."""

    wire: str
    model: str
    turn: int
    digest: str
    number: int
    nth: int
    first: str = ""


@dataclass(frozen=True, slots=True)
class Rule:
    """One fault and the requests it is meant for. An absent condition matches all, no `count` never ends."""

    kind: Fault
    id: str = ""
    wire: str | None = None
    model: str | None = None
    turn: int | None = None
    number: int | None = None  # of the request, from 1, since the provider's book began
    nth: int | None = None
    contains: str | None = None  # in what the user said first
    count: int | None = None
    probability: float | None = None
    seed: int = 0
    status: int = 500
    retry_after_s: int | None = None
    retry_after_ms: int | None = None
    should_retry: bool | None = None
    code: str | None = None
    headers_s: float = 0.0
    first_s: float = 0.0
    between_s: float = 0.0
    at: str = "arguments"
    field: str = ""
    oddity: str = ""
    after: str | None = None  # cut right after this text in the last call's arguments; by default half-way

    def wire_form(self) -> dict[str, Any]:
        """The rule as JSON values, without what was left at its default."""
        named = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "kind"}
        defaults = {f.name: f.default for f in fields(self)}
        return {"kind": self.kind.value} | {n: v for n, v in named.items() if v != defaults[n]}


_TEXTS = frozenset({"model", "contains", "code", "after", "field"})
_WHOLE = {"turn": 1, "number": 1, "nth": 1, "count": 1, "seed": 0, "status": 400}
_WHOLE |= {"retry_after_s": 0, "retry_after_ms": 0}
_NUMBER = {"probability": 1.0, "headers_s": 3600.0, "first_s": 3600.0, "between_s": 3600.0}


def parse(wire: Mapping[str, Any], seed: int = 0) -> Rule:
    """A rule from JSON. Raises ValueError with one sentence for anything unknown or of the wrong type."""
    if not isinstance(wire, Mapping):
        raise ValueError("a fault is an object")  # noqa: TRY004 - answered like any bad body
    values = {"seed": seed} | {name: value for name, value in wire.items() if value is not None}
    if "kind" not in values:
        raise ValueError("a fault needs a kind")
    return Rule(**{name: _value(name, value) for name, value in values.items() if name != "id"})


def _value(name: str, value: Any) -> Any:
    if name == "kind" and value in set(Fault):
        return Fault(value)
    known = {"wire": WIRES, "at": PLACES, "oddity": tuple(Oddity)}
    if value in known.get(name, ()):
        return value
    if (name in _TEXTS and isinstance(value, str)) or (name == "should_retry" and isinstance(value, bool)):
        return value
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if number and name in _WHOLE and isinstance(value, int) and value >= _WHOLE[name]:
        return value
    if number and name in _NUMBER and 0 <= value <= _NUMBER[name]:
        return float(value)
    raise ValueError(f"a model's fault cannot have {name}={value!r}")


def matches(rule: Rule, facts: Facts) -> bool:
    """Whether the rule is meant for the request, chance aside."""
    return (
        facts.wire in ONLY_ON.get(rule.kind, WIRES)
        and rule.wire in (None, facts.wire)
        and rule.model in (None, facts.model)
        and rule.turn in (None, facts.turn)
        and rule.number in (None, facts.number)
        and rule.nth in (None, facts.nth)
        and (rule.contains is None or rule.contains in facts.first)
    )


def _lucky(rule: Rule, facts: Facts) -> bool:
    if rule.probability is None:
        return True
    return draw(f"{rule.seed}:{rule.kind.value}:{facts.model}:{facts.digest}:{facts.nth}") < rule.probability


class Rules(Standing[Rule]):
    """The faults in force. They last until consumed or deleted, and no longer than the process."""

    named = "model_fault"

    def __init__(self) -> None:
        super().__init__()
        self._visits: Counter[tuple[str, str]] = Counter()

    def visit(self, model: str, digest: str) -> int:
        """Count a request of a transcript at a model; which of them it is, from 1."""
        self._visits[model, digest] += 1
        return self._visits[model, digest]

    def meet(self, facts: Facts) -> Rule | None:
        """The fault a request meets."""
        rule = self.consume(lambda one: matches(one, facts) and _lucky(one, facts))
        if rule is not None:
            self.fired[rule.kind.value] += 1
        return rule


def spoiled(reply: Reply, rule: Rule | None) -> Reply:
    """What is said where this fault is met; faults of the connection only change where it is cut."""
    if rule is None:
        return reply
    kind = rule.kind
    if kind in IN_STREAMS:
        return replace(reply, form=replace(reply.form, cut=_cut_at(reply, rule)))
    if kind in _INDEXES:
        return replace(reply, form=Form(indexes=_INDEXES[kind]))
    if kind in _ENDINGS:
        return replace(reply, calls=(), text="", stop=_ENDINGS[kind])
    reply = replace(_with_arguments(reply, rule), stop=_STOPS.get(kind, reply.stop))
    match kind:
        case Fault.SAME_IDS:
            return replace(reply, calls=tuple(replace(call, id="call_same") for call in reply.calls))
        case Fault.EMPTY_IDS:
            return replace(reply, calls=tuple(replace(call, id="") for call in reply.calls))
        case Fault.USAGE_MISSING:
            return replace(reply, usage=None)
        case Fault.PAUSE_TURN:
            return replace(reply, calls=(), text=reply.text or "Still at it.", stop=replies.PAUSE)
        case Fault.REFUSAL:
            said = "I will not do that."
            return replace(reply, calls=(), text="", refusal=said, stop=replies.REFUSAL)
        case Fault.HOSTED_ITEM:
            return replace(reply, hosted=True)
        case Fault.UNKNOWN_CALLER:
            calls = tuple(replace(call, caller="program") for call in reply.calls)
            return replace(reply, calls=calls)
    return reply


def _cut_at(reply: Reply, rule: Rule) -> int:
    text = reply.calls[-1].arguments if reply.calls else ""
    found = text.find(rule.after) if rule.after else -1
    return found + len(rule.after or "") if found >= 0 else len(text) // 2


def _with_arguments(reply: Reply, rule: Rule) -> Reply:
    """The reply with the arguments of its last call as the fault has them."""
    if not reply.calls:
        return reply
    text = reply.calls[-1].arguments
    match rule.kind:
        case Fault.TRUNCATED | Fault.TRUNCATED_AS_WHOLE:
            return reply.with_last_arguments(text[: _cut_at(reply, rule)])
        case Fault.TRUNCATED_VALID:
            pairs = list(json.loads(text).items())
            return reply.with_last_arguments(json.dumps(dict(pairs[:-1])))
        case Fault.DUPLICATE_KEYS:
            name, value = next(iter(json.loads(text).items()), ("a", 1))
            again = f"{json.dumps(name)}: {json.dumps(value)}"
            return reply.with_last_arguments(f"{{{again}, {text.strip()[1:]}")
        case Fault.NAN:
            return reply.with_last_arguments(f'{{"nothing": NaN, {text.strip()[1:]}')
        case Fault.TRAILING:
            return reply.with_last_arguments(f"{text} {{}}")
    return reply
