"""What a sweep of a user's tool gives, and what a test asserts of it."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from fencepost.contracts import Dedupes, promise, residual_risk
from fencepost.tools import Tool
from fencepost_ops.drill.outcome import Outcome
from fencepost_ops.drill.users.judge import Finding
from fencepost_ops.drill.users.played import Played
from fencepost_ops.drill.users.told import timeline, told

_EVENT: Final = re.compile(r" \[event \d+\]")


@dataclass(frozen=True, slots=True)
class Unresolved:
    """A call that ended with a person, in which history, and why nobody else could settle it."""

    history: str
    call: str
    state: str
    effects: int
    why: str


@dataclass
class Result:
    """Every history of one sweep. The same sweep of a pure tool gives the same result but for `took_s`."""

    name: str
    tool: Tool | None
    played: list[Played] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    left_out: int = 0
    """Histories that were not run any more, after enough had failed."""
    took_s: float = 0.0
    notes: list[str] = field(default_factory=list)
    """What could not be swept, and how it could."""

    @property
    def outcomes(self) -> list[Outcome]:
        """Each history's outcome: its protocol, timeline, calls and the checker's verdicts."""
        return [one.outcome for one in self.played]

    @property
    def unresolved(self) -> list[Unresolved]:
        """What ended with a person: no failure, but what the contract's class cannot promise."""
        return [
            Unresolved(one.protocol.name, owed.label, owed.state, len(one.entries), owed.why)
            for one in self.played
            for owed in one.outcome.owed
        ]

    @property
    def untried(self) -> str | None:
        """Why it was not tried that equal keys are executed once; None where it was, or is not promised."""
        repeat = self.tool and self.tool.contract.repeat
        if not isinstance(repeat, Dedupes) or not repeat.window or not self.played:
            return None
        for one in self.played:
            landed = [sent.call for sent in one.log if sent.kind != "lookup" and sent.landed_s is not None]
            if len(set(landed)) < len(landed):
                return None
        return (
            f"no history of {self.name} sent a key twice, so whether its service deduplicates was not tried: "
            f"with first_failure={repeat.first_failure} "
            + (
                "every unknown outcome goes to a person"
                if self.unresolved
                else "and these faults none had to"
            )
        )

    def assert_one_effect(self) -> Result:
        """AssertionError unless every intent had its one effect.

        Exactly one in every history whose call ended SUCCEEDED, none where it ended FAILED, CANCELLED or
        REJECTED, at most one in all others. Those that ended with a person are `unresolved`, not failures.
        Proved for the faults that were swept, and nothing else: not for races inside the service, nor for
        what a real network does to real connections. Warns of a promise that no history tried.
        """
        __tracebackhide__ = True
        self._assert(self.findings)
        if self.untried is not None:
            warnings.warn(self.untried, stacklevel=2)
        return self

    def assert_never_twice(self) -> Result:
        """AssertionError if any intent had two effects; whether it had one at all is not looked at."""
        __tracebackhide__ = True
        return self._assert([one for one in self.findings if one.kind == "twice"])

    def _assert(self, wrong: Sequence[Finding]) -> Result:
        __tracebackhide__ = True
        if wrong:
            raise AssertionError(self._told(wrong))
        return self

    def _told(self, wrong: Sequence[Finding]) -> str:
        # First what has a history to show. A second finding with the same advice says nothing new.
        wrong = sorted(wrong, key=lambda one: one.played is None)
        shown = list({(one.kind, one.mistake): one for one in reversed(wrong)}.values())[::-1]
        histories = {one.played.protocol.name for one in wrong if one.played is not None}
        among = f", in {len(histories)} of {len(self.played)} histories" if histories else ""
        parts = [told(shown[0], self.name, among)]
        parts += [f"also: {one.title}: {one.said}\n  likely    {one.mistake}" for one in shown[1:]]
        if self.left_out:
            parts.append(f"{self.left_out} more histories were not run: enough had failed (most=...)")
        return "\n".join(parts)

    def summary(self) -> str:
        """A few lines: what was swept, what holds, what ends with a person, what was not swept."""
        faults = sum(1 for one in self.played if one.outcome.struck)
        lines = [
            f"{self.name}: {len(self.played)} histories, {faults} with faults, in {self.took_s:.1f} s; "
            + (f"{len(self.findings)} findings" if self.findings else "one effect in each")
        ]
        if self.tool is not None:
            lines.append(promise(self.tool.effect, self.tool.contract))
            lines.append("left: " + residual_risk(self.tool.effect, self.tool.contract))
        if people := self.unresolved:
            whys = sorted({_EVENT.sub("", one.why) for one in people})
            lines.append(f"{len(people)} histories end with a person: {'; '.join(whys)}")
        if self.untried is not None:
            lines.append(self.untried)
        return "\n".join([*lines, *self.notes])

    def to_json(self) -> dict[str, Any]:
        """All of it as JSON values. Nothing in it depends on the machine; on the hour only what the test's
        own code makes of it, as the values that a finding about an impure tool shows.
        """
        return {
            "tool": self.name,
            "ok": not self.findings,
            "findings": [
                {
                    "kind": one.kind,
                    "said": one.said,
                    "mistake": one.mistake,
                    "history": one.played and one.played.protocol.name,
                    "protocol": one.played
                    and one.played.protocol.model_dump(mode="json", exclude_defaults=True),
                    "timeline": one.played and timeline(one.played),
                }
                for one in self.findings
            ],
            "unresolved": [
                {name: getattr(one, name) for name in Unresolved.__slots__} for one in self.unresolved
            ],
            "histories": [
                {
                    "name": one.protocol.name,
                    "calls": {call.label: call.state for call in one.calls},
                    "effects": [entry.text for entry in one.entries],
                    "wire": [exchange.to_json() for exchange in one.log],
                }
                for one in self.played
            ],
            "left_out": self.left_out,
            "notes": list(self.notes),
        }
