"""Everything a planner may try that must never be sent, tried on a drilled fleet: a table of what refused it.

First the proposals of `table.py`, each in a run that may do everything else; then the shipped protocols in
which nothing may be sent: whose principal, approval, policy, allowance, key, budget, term or deadline does
not allow it. Between them the same tools are used well, or a table of refusals would show nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from fencepost.canonical import sanitize
from fencepost_ops.drill.drill import Drill
from fencepost_ops.drill.hostile.app import AT_ONCE
from fencepost_ops.drill.hostile.table import BENIGN, HOSTILE
from fencepost_ops.drill.protocol import Asked, Expect, Protocol
from fencepost_ops.drill.shipped import shipped_protocol

_APP: Final = "fencepost_ops.drill.hostile.app:app"
_REFUSALS: Final = """
SELECT c.label, c.tool, c.state, c.attempts, coalesce(c.error, ''), e.type, e.body::text, r.stop_reason
FROM fencepost.calls c JOIN fencepost.runs r ON r.id = c.run LEFT JOIN LATERAL (
    SELECT type, body FROM fencepost.events e WHERE e.call = c.id AND e.run = c.run AND e.type IN
        ('ProposalRejected', 'AuthorizationDenied', 'ApprovalRequested', 'ApprovalDecided', 'CallCancelled')
    ORDER BY (e.type = 'CallCancelled'), e.seq DESC LIMIT 1) e ON true
WHERE c.effect <> 'read' OR c.state = 'REJECTED'
ORDER BY c.run, c.turn, c.ordinal
"""
_CLAIM: Final = 8
"""What only the claim finds out, and no event of a step says: the run's end, or its deadline."""
_ALONE: Final = (
    "approval_denied", "approval_expires", "approved_by_one_of_two", "approved_too_long_ago",
    "approver_lost_the_role", "deadline_ends_what_was_not_sent", "delegation_revoked_in_the_queue",
    "expired_is_never_sent", "grant_revoked_before_dispatch", "page_asks_to_send_data_out",
    "principal_disabled_in_the_queue", "role_revoked_in_the_queue", "stale_term_is_never_sent",
    "tool_withdrawn_in_the_queue", "unauthorised_is_never_sent",
)  # fmt: skip
"""Protocols in which nothing is sent."""
_BESIDE: Final = (
    "allowance_held_while_unknown", "allowance_used_up_by_siblings", "delegated_for_a_while",
    "same_key_other_arguments",
)  # fmt: skip
"""Protocols in which something else is: of what is refused, no attempt is made."""


@dataclass(frozen=True, slots=True)
class Tried:
    """One proposal and what became of it. `wrong` is why that is not as it must be."""

    name: str
    tool: str
    step: int
    code: str
    told: str
    attempts: int
    requests: int
    wrong: str | None = None


@dataclass(frozen=True, slots=True)
class Trial:
    """All that was tried."""

    tried: tuple[Tried, ...]
    used_well: int
    problems: tuple[str, ...] = ()

    @property
    def dispatched(self) -> int:
        """Requests of what must not be sent; there may be none."""
        return sum(one.requests for one in self.tried)

    @property
    def ok(self) -> bool:
        """Whether nothing was sent, for the right reason each, and every invariant holds."""
        right = all(one.wrong is None for one in self.tried) and not self.problems
        return right and self.dispatched == 0 and self.used_well == len(BENIGN[:3])

    def to_json(self) -> dict[str, Any]:
        """All of it as JSON values."""
        return {
            "ok": self.ok,
            "dispatched": self.dispatched,
            "used_well": self.used_well,
            "problems": list(self.problems),
            "tried": [asdict(one) for one in self.tried],
        }


def try_all(drill: Drill) -> Trial:
    """Try everything."""
    problems: list[str] = []
    tried = [*_proposals(drill, problems), *_protocols(drill, problems)]
    well = drill.run(Protocol(name="used_well", app=_APP, runs=[Asked(planner="benign")]))
    problems += well.problems
    return Trial(tuple(tried), sum(well.effects.values()), tuple(problems))


def _proposals(drill: Drill, problems: list[str]) -> Iterator[Tried]:
    for first in range(0, len(HOSTILE), AT_ONCE):
        asked = Asked(planner="hostile", input={"first": first})
        expect = Expect(effects={"dedupes": 0}, runs=["COMPLETED"], dispatches=0)
        outcome = drill.run(Protocol(name="hostile", app=_APP, runs=[asked], expect=expect))
        problems += outcome.problems
        for one in _refused(drill, outcome.dispatches):
            row = HOSTILE[int(one.name)]
            right = (one.step, one.code, one.attempts) == (row.step, row.code, 0)
            wrong = None if right else f"step {row.step} had to refuse it as {row.code}"
            yield replace(one, name=row.name, tool=sanitize(row.tool, 40), wrong=wrong)


def _protocols(drill: Drill, problems: list[str]) -> Iterator[Tried]:
    for name in (*_ALONE, *_BESIDE):
        outcome = drill.run(shipped_protocol(name))
        problems += [f"{name}: {problem}" for problem in outcome.problems]
        for one in _refused(drill, outcome.dispatches):
            requests = one.attempts if name in _BESIDE else one.requests
            yield replace(one, name=name.replace("_", " "), requests=requests)


def _refused(drill: Drill, requests: int) -> Iterator[Tried]:
    for label, tool, state, attempts, error, kind, body, reason in drill.ledger.owner.execute(_REFUSALS):
        if state == "SUCCEEDED":
            continue
        said = json.loads(body) if body else {}
        step = said.get("step") or (6 if kind and kind != "CallCancelled" else _CLAIM)
        code = said.get("code") or reason or state.lower()
        yield Tried(label, tool, step, code, error, attempts, requests)
