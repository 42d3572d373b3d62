"""Faults on request: what may go wrong, for which requests, and how often.

Pure: `take` maps rules and a request to the fault it meets and the rules that are left. The server runs it on
one thread, so a counted fault is consumed by exactly one request. Chance depends on seed, kind, key and the
number of the request of that key, never on the order of arrival: one seed, one history.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from fencepost_ops.sandbox.standing import Standing, draw, take

DEFAULT_DELAY_S = 1.0
DEFAULT_OVERSIZE_BYTES = 4 * 1024 * 1024


class Kind(enum.StrEnum):
    """Everything that can be asked to go wrong."""

    DELAY_ARRIVAL = "delay_arrival"  # the request lands late: nothing is looked at, no key is held meanwhile
    DELAY_BEFORE = "delay_before"  # slow to execute: the key is held in progress, nothing is committed yet
    DELAY_AFTER_COMMIT = "delay_after_commit"
    DROP_BEFORE = "drop_before"
    DROP_AFTER_COMMIT = "drop_after_commit"
    HALF_RESPONSE = "half_response"
    ERROR_500_BEFORE = "error_500_before"
    ERROR_500_AFTER_COMMIT = "error_500_after_commit"
    ERROR_503 = "error_503"
    THROTTLE_429 = "throttle_429"
    REFUSE = "refuse"
    FORGET_KEYS = "forget_keys"
    IGNORE_KEYS = "ignore_keys"
    IN_PROGRESS_409 = "in_progress_409"
    GARBAGE_200 = "garbage_200"
    OVERSIZE_200 = "oversize_200"


DELAYS = frozenset({Kind.DELAY_ARRIVAL, Kind.DELAY_BEFORE, Kind.DELAY_AFTER_COMMIT})
# Answered before keys are looked at and before anything executes.
GATE = frozenset({Kind.DROP_BEFORE, Kind.ERROR_503, Kind.THROTTLE_429, Kind.IN_PROGRESS_409})
# Answered instead of executing: a first execution that fails this way is remembered as the policy says.
FAILURES = frozenset({Kind.ERROR_500_BEFORE, Kind.REFUSE})
# Answered instead of the true answer, once what it speaks of is committed.
SPOILS = frozenset(
    {
        Kind.DROP_AFTER_COMMIT,
        Kind.HALF_RESPONSE,
        Kind.ERROR_500_AFTER_COMMIT,
        Kind.GARBAGE_200,
        Kind.OVERSIZE_200,
    }
)


@dataclass(frozen=True, slots=True)
class Facts:
    """What a rule can see of a request; `nth` counts those of the same key (else reference, else path)."""

    service: str
    path: str
    on: str  # "effect" or "lookup"
    key: str | None
    reference: str | None
    nth: int


@dataclass(frozen=True, slots=True)
class Rule:
    """One fault and the requests it is meant for. An absent condition matches all, no `count` never ends."""

    kind: Kind
    id: str = ""
    service: str | None = None
    path: str | None = None  # exact, or a prefix when it ends with an asterisk
    key: str | None = None
    reference: str | None = None
    reference_prefix: str | None = None
    on: str = "effect"
    nth: int | None = None
    count: int | None = None
    probability: float | None = None
    seed: int = 0
    delay_s: float | None = None
    retry_after_s: int = 1
    status: int | None = None  # of `refuse`; by default 402 for the wallet and 412 elsewhere
    code: str = "refused"
    bytes: int = DEFAULT_OVERSIZE_BYTES
    reset: bool = False  # close with RST instead of FIN
    remember_answer: bool = False  # error_500_after_commit: the key remembers the 500 instead of the success

    @property
    def pause_s(self) -> float:
        """Seconds this fault holds a request; kinds other than delays hold it only if told to."""
        if self.delay_s is not None:
            return self.delay_s
        return DEFAULT_DELAY_S if self.kind in DELAYS else 0.0

    @property
    def conditional(self) -> bool:
        """Whether it waits for matching requests, rather than acting at once and for all."""
        return (self.count, self.probability, self.nth) != (None, None, None)

    def wire(self) -> dict[str, Any]:
        """The rule as JSON values, without what was left at its default."""
        named = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "kind"}
        defaults = {field.name: field.default for field in fields(self)}
        return {"kind": self.kind.value} | {n: v for n, v in named.items() if v != defaults[n]}


def parse_rule(wire: Mapping[str, Any], seed: int = 0) -> Rule:
    """A rule from JSON. Raises ValueError with one sentence for anything unknown or of the wrong type."""
    values = {"seed": seed} | {name: value for name, value in wire.items() if value is not None}
    if "kind" not in values:
        raise ValueError("a fault needs a kind")
    return Rule(**{name: _rule_value(name, value) for name, value in values.items() if name != "id"})


_TEXT = frozenset({"service", "path", "key", "reference", "reference_prefix", "code"})
_WHOLE = {
    "nth": 1,
    "count": 1,
    "seed": 0,
    "retry_after_s": 0,
    "status": 400,
    "bytes": 1,
}  # least values
_NUMBER = {"probability": 1.0, "delay_s": 3600.0}  # greatest values


def _rule_value(name: str, value: Any) -> Any:
    if name == "kind" and isinstance(value, str) and value in {kind.value for kind in Kind}:
        return Kind(value)
    if name == "on" and value in ("effect", "lookup"):
        return value
    if name in _TEXT and isinstance(value, str):
        return value
    if name in ("reset", "remember_answer") and isinstance(value, bool):
        return value
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if number and name in _WHOLE and isinstance(value, int) and value >= _WHOLE[name]:
        return value
    if number and name in _NUMBER and 0 <= value <= _NUMBER[name]:
        return float(value)
    raise ValueError(f"a fault cannot have {name}={value!r}")


def parse_header(value: str) -> Rule:
    """A rule from a Sandbox-Fault header: `kind;name=value;name=value`. Raises ValueError."""
    kind, *parameters = (part.strip() for part in value.split(";"))
    wire: dict[str, Any] = {"kind": kind}
    for parameter in filter(None, parameters):
        name, _, text = parameter.partition("=")
        wire[name] = _typed(name, text)
    return parse_rule(wire)


def _typed(name: str, text: str) -> Any:
    if name in _WHOLE:
        return int(text)
    if name in _NUMBER:
        return float(text)
    return text == "true" if name in ("reset", "remember_answer") else text


def parse_file(document: Any) -> tuple[Rule, ...]:
    """The rules of a faults file: a list, or `{"seed": n, "faults": [...]}`. Raises ValueError."""
    if isinstance(document, Mapping):
        seed, items = document.get("seed", 0), document.get("faults")
    else:
        seed, items = 0, document
    if not isinstance(items, list) or not all(isinstance(item, Mapping) for item in items):
        raise ValueError("a faults file is a list of objects, or an object with such a list under 'faults'")
    return tuple(parse_rule(item, seed) for item in items)


def matches(rule: Rule, facts: Facts) -> bool:
    """Whether the rule is meant for the request, chance aside."""
    return (
        rule.on == facts.on
        and rule.service in (None, facts.service)
        and rule.key in (None, facts.key)
        and rule.reference in (None, facts.reference)
        and rule.nth in (None, facts.nth)
        and (rule.reference_prefix is None or (facts.reference or "").startswith(rule.reference_prefix))
        and (rule.path is None or _path_matches(rule.path, facts.path))
    )


def _path_matches(pattern: str, path: str) -> bool:
    return path.startswith(pattern[:-1]) if pattern.endswith("*") else path == pattern


def lucky(rule: Rule, facts: Facts) -> bool:
    """Whether chance picks the request; always, where the rule names no probability."""
    if rule.probability is None:
        return True
    identity = facts.key or facts.reference or facts.path
    text = f"{rule.seed}:{rule.kind.value}:{facts.service}:{identity}:{facts.nth}"
    return draw(text) < rule.probability


class Rules(Standing[Rule]):
    """The faults in force. They last until consumed or deleted, and no longer than the process."""

    named = "fault"

    def __init__(self, rules: Sequence[Rule] = ()) -> None:
        super().__init__()
        self._visits: Counter[tuple[str, str, str]] = Counter()
        for rule in rules:
            self.add(rule)

    def meet(
        self, service: str, path: str, on: str, key: str | None, reference: str | None, asked: str | None
    ) -> Rule | None:
        """The fault a request meets; the one it asks for goes first. Raises ValueError if that is bad."""
        own = () if asked is None else (replace(parse_header(asked), on=on),)
        identity = (service, on, key or reference or path)
        self._visits[identity] += 1
        facts = Facts(service, path, on, key, reference, self._visits[identity])

        def applies(rule: Rule) -> bool:
            return matches(rule, facts) and lucky(rule, facts)

        rule, _ = take(own, applies)
        if rule is None:
            rule = self.consume(applies)
        if rule is not None:
            self.fired[rule.kind.value] += 1
        return rule
