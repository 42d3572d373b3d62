"""Proof that the checks can fail: each defence is switched off once, and something must be seen to break.

Each sabotage's protocol runs twice: with the defence, which must be clean, and without it, which must break
the invariant that the defence is for. Where another defence still holds, nothing of that invariant may break,
and where that other is Postgres, it must have refused something.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from fencepost.ledger.outbox import Failed
from fencepost_ops.checker import PROMISES
from fencepost_ops.drill.drill import Drill
from fencepost_ops.drill.outcome import Outcome
from fencepost_ops.drill.protocol import Protocol
from fencepost_ops.drill.sabotage import Sabotage, sabotage
from fencepost_ops.drill.sabotages.switch import EXPECTATION, POSTGRES, instead
from fencepost_workers.step import Step

NO_END: Final = "it did not come to an end"
COLUMNS: Final = (*PROMISES, EXPECTATION)
"""What can break: every verdict of the checker, and what the protocol expects besides."""


_SLIPS: Final = "SELECT body::text FROM fencepost.events WHERE body::text ~ 'Error'"
_SLIP: Final = re.compile(
    r"\b(?:Type|Attribute|Name|Key|Index|Lookup|Value|Assertion|Runtime)Error\b[^\"\n]{0,120}"
)
_HEADINGS: Final = {"I6.replay": "I6r", EXPECTATION: "exp"}


@dataclass(frozen=True, slots=True)
class Ran:
    """One history: what it broke, what Postgres refused in it, and what the checker said first of each
    invariant. `heads` stand for all that was recorded.
    """

    broke: tuple[str, ...]
    problems: tuple[str, ...]
    refused: tuple[str, ...]
    said: Mapping[str, str] = field(default_factory=dict)
    heads: tuple[str, ...] = ()
    slips: tuple[str, ...] = ()
    """What raised an error of Python's own: then it broke for a mistake, and not for what is off."""


@dataclass(frozen=True, slots=True)
class Proof:
    """One sabotage: its history with the defence, and without it."""

    sabotage: Sabotage
    clean: Ran
    broken: Ran

    @property
    def wrong(self) -> list[str]:
        """Why it proves nothing, one sentence each; empty where it does."""
        one, found = self.sabotage, []
        if self.clean.problems:
            found.append(f"with the defence: {'; '.join(self.clean.problems)}")
        if one.layer == POSTGRES and not self.clean.refused:
            found.append("with the defence Postgres refused nothing, so there was nothing to defend against")
        found += [f"without the defence something raised: {slip}" for slip in self.broken.slips]
        if one.held_by is None and one.invariant not in self.broken.broke:
            broke = ", ".join(self.broken.broke) or "nothing"
            found.append(f"without the defence {one.invariant} still holds; what broke: {broke}")
        if one.held_by is not None and one.invariant in self.broken.broke:
            found.append(f"{one.invariant} broke, which {one.held_by} should have held")
        if one.held_by == POSTGRES and not self.broken.refused:
            found.append("Postgres is said to hold, and refused nothing")
        elif one.held_by == POSTGRES and not self._refused_as_told:
            said = "; ".join(sorted(set(self.broken.refused)))
            found.append(f"Postgres had to refuse with {one.refusal!r}, and said: {said}")
        elif one.held_by is not None and self.broken.heads == self.clean.heads and not self.broken.refused:
            found.append(f"nothing came of it, so nothing shows that {one.held_by} holds")
        return found

    @property
    def _refused_as_told(self) -> bool:
        words = self.sabotage.refusal
        return words is not None and any(words in said for said in self.broken.refused)

    @property
    def ok(self) -> bool:
        """Whether it shows what it should."""
        return not self.wrong

    @property
    def verdict(self) -> str:
        """`caught`, `held by …`, or `NOT CAUGHT`."""
        if not self.ok:
            return "NOT CAUGHT"
        return "caught" if self.sabotage.held_by is None else f"held by {self.sabotage.held_by}"

    @property
    def _said(self) -> str | None:
        """How that was told which had to break."""
        expected, broken = self.sabotage.invariant, self.broken
        if expected not in broken.broke:
            return None
        return broken.said.get(expected) or next(iter(broken.problems), None)

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        one = self.sabotage
        return {
            "sabotage": one.name,
            "defence": one.about,
            "off": one.layer,
            "held_by": one.held_by,
            "expected": one.invariant,
            "broke": list(self.broken.broke),
            "said": self._said,
            "verdict": self.verdict,
            "wrong": self.wrong,
            "problems": list(self.broken.problems),
            "protocol": json.loads(one.shows.to_text()),
        }


class Prover:
    """Proves on one drill. A history with the defence is run once for each protocol."""

    def __init__(self, drill: Drill) -> None:
        self._drill = drill
        self._clean: dict[str, Ran] = {}

    def proof(self, name: str) -> Proof:
        """The proof of one sabotage. Raises what a bug of the fleet raises."""
        one = sabotage(name)
        told = one.shows.model_dump_json(exclude={"name", "about"})
        if told not in self._clean:
            self._clean[told] = _ran(self._drill, one.shows)
        broken = one.shows.model_copy(update={"sabotage": [name]})
        return Proof(one, self._clean[told], _ran(self._drill, broken))


def _ran(drill: Drill, protocol: Protocol) -> Ran:
    told: list[str] = []

    def noting(fail: Callable[[Step, Sequence[Failed]], None]) -> Callable[[Step, Sequence[Failed]], None]:
        def noted(step: Step, failed: Sequence[Failed]) -> None:
            told.extend(f"{type(one.error).__name__}: {one.error}" for one in failed)
            fail(step, failed)

        return noted

    with instead(Step, "_fail", noting):
        outcome = drill.run(protocol)
    told += [body for (body,) in drill.ledger.owner.execute(_SLIPS)]
    said = {v.invariant: v.violations[0].message for v in outcome.report.verdicts if v.violations}
    return Ran(
        broke=broke(outcome),
        problems=tuple(outcome.problems),
        refused=tuple(drill.ledger.refused),
        said=said,
        heads=tuple(run.head for run in outcome.runs),
        slips=tuple(sorted({slip for text in told for slip in _SLIP.findall(text)})),
    )


def broke(outcome: Outcome) -> tuple[str, ...]:
    """What is not as it must be. A history without an end breaks I12, which is not asserted of it."""
    found = set(outcome.report.violated)
    if not outcome.settled:
        found.add("I12")
    if any(not (problem.startswith("violated: ") or problem == NO_END) for problem in outcome.problems):
        found.add(EXPECTATION)
    return tuple(name for name in COLUMNS if name in found)


def uncovered(proofs: Iterable[Proof]) -> list[str]:
    """The invariants of which no proof shows that they can be seen to break."""
    seen = {proof.sabotage.invariant for proof in proofs if proof.ok and proof.sabotage.held_by is None}
    return [name for name in PROMISES if name not in seen]


def matrix(proofs: Sequence[Proof]) -> tuple[list[str], list[list[str]]]:
    """Headings and lines: defence × invariant. `X` is what had to break, `x` what broke with it."""
    lines = [
        [proof.sabotage.name, proof.sabotage.layer, *(_cell(proof, name) for name in COLUMNS), proof.verdict]
        for proof in proofs
    ]
    return ["defence!", "off?", *(_HEADINGS.get(name, name) for name in COLUMNS), "verdict!"], lines


def _cell(proof: Proof, name: str) -> str:
    expected = proof.sabotage.invariant == name
    if name in proof.broken.broke:
        return "X" if expected and proof.sabotage.held_by is None else "x"
    return "=" if expected and proof.sabotage.held_by is not None else ""


def to_json(proofs: Sequence[Proof]) -> dict[str, Any]:
    """Everything as JSON values."""
    missing = uncovered(proofs)
    return {
        "ok": all(proof.ok for proof in proofs) and not missing,
        "uncovered": missing,
        "sabotages": [proof.to_json() for proof in proofs],
    }
