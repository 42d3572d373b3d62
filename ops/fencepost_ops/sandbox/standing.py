"""Faults in force: rules that last until they are consumed or deleted, and no longer than the process."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Generic, Protocol, TypeVar


class Counted(Protocol):
    """A rule, which is a dataclass: `count` is how often it applies, None for ever."""

    @property
    def id(self) -> str | None:
        """Under which it can be deleted."""
        ...

    @property
    def count(self) -> int | None:
        """How often it applies; None: for ever."""
        ...


RuleT = TypeVar("RuleT", bound=Counted)


def take(rules: Sequence[RuleT], applies: Callable[[RuleT], bool]) -> tuple[RuleT | None, tuple[RuleT, ...]]:
    """The first rule that applies, and all rules after it was used once."""
    for index, rule in enumerate(rules):
        if applies(rule):
            return rule, (*rules[:index], *_used(rule), *rules[index + 1 :])
    return None, tuple(rules)


def _used(rule: RuleT) -> tuple[RuleT, ...]:
    if rule.count is None:
        return (rule,)
    return (_with(rule, count=rule.count - 1),) if rule.count > 1 else ()


def _with(rule: Any, **changes: Any) -> Any:
    return replace(rule, **changes)


def draw(text: str) -> float:
    """A number in [0, 1) that depends on nothing but a text."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") / 2**64


class Standing(Generic[RuleT]):
    """The rules of one kind of service; `fired` counts by kind how often one applied."""

    named: str
    """What their ids begin with."""

    def __init__(self) -> None:
        self.standing: tuple[RuleT, ...] = ()
        self.fired: Counter[str] = Counter()
        self._added = 0

    def add(self, rule: RuleT) -> RuleT:
        """Put a rule behind the others, which go first. Returns it with its id."""
        self._added += 1
        named: RuleT = _with(rule, id=f"{self.named}_{self._added}")
        self.standing = (*self.standing, named)
        return named

    def delete(self, rule_id: str | None = None) -> int:
        """Delete one rule, or all. Returns how many."""
        kept = () if rule_id is None else tuple(rule for rule in self.standing if rule.id != rule_id)
        deleted = len(self.standing) - len(kept)
        self.standing = kept
        return deleted

    def consume(self, applies: Callable[[RuleT], bool]) -> RuleT | None:
        """Use the first rule that applies."""
        rule, self.standing = take(self.standing, applies)
        return rule
