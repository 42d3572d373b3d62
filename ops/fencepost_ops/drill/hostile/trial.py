"""Everything a planner may try that must never be sent, tried on a drilled fleet: a table of what refused it.

First the proposals of `table.py`, each in a run that may do everything else; then the shipped protocols in
which nothing may be sent: whose principal, approval, policy, allowance, key, budget, term or deadline does
not allow it. Between them the same tools are used well, or a table of refusals would show nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
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
Refusals = Mapping[str, tuple[int, str]]
"""By the name of a protocol: the step that has to refuse what it tries, and as what."""
_ALONE: Refusals = {
    "approval_denied": (6, "approval_denied"),
    "approval_expires": (6, "approval_expired"),
    "approved_by_one_of_two": (6, "approval_expired"),
    "approved_too_long_ago": (6, "approval_required"),
    "approver_lost_the_role": (6, "approval_expired"),
    "deadline_ends_what_was_not_sent": (_CLAIM, "deadline_exceeded"),
    "delegation_revoked_in_the_queue": (6, "policy_denied"),
    "expired_is_never_sent": (_CLAIM, "deadline_exceeded"),
    "grant_revoked_before_dispatch": (6, "policy_denied"),
    "page_asks_to_send_data_out": (6, "approval_required"),
    "principal_disabled_in_the_queue": (6, "principal_disabled"),
    "role_revoked_in_the_queue": (6, "policy_denied"),
    "stale_term_is_never_sent": (_CLAIM, "cancelled"),
    "tool_withdrawn_in_the_queue": (6, "tool_withdrawn"),
    "unauthorised_is_never_sent": (6, "policy_denied"),
}
"""Protocols in which nothing is sent."""
_BESIDE: Refusals = {
    "allowance_held_while_unknown": (6, "allowance_exceeded"),
    "allowance_used_up_by_siblings": (6, "allowance_exceeded"),
    "delegated_for_a_while": (6, "policy_denied"),
    "same_key_other_arguments": (7, "key_arguments_differ"),
    "same_key_other_request": (7, "key_request_differs"),
}
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
    for name, (step, code) in {**_ALONE, **_BESIDE}.items():
        outcome = drill.run(shipped_protocol(name))
        problems += [f"{name}: {problem}" for problem in outcome.problems]
        refused = list(_refused(drill, outcome.dispatches))
        if not refused:
            problems.append(f"{name}: nothing was refused")
        for one in refused:
            requests = one.attempts if name in _BESIDE else one.requests
            wrong = (
                None if (one.step, one.code) == (step, code) else f"step {step} had to refuse it as {code}"
            )
            yield replace(one, name=name.replace("_", " "), requests=requests, wrong=wrong)


def _refused(drill: Drill, requests: int) -> Iterator[Tried]:
    for label, tool, state, attempts, error, kind, body, reason in drill.ledger.owner.execute(_REFUSALS):
        if state == "SUCCEEDED":
            continue
        said = json.loads(body) if body else {}
        step = said.get("step") or (6 if kind and kind != "CallCancelled" else _CLAIM)
        code = said.get("code") or reason or state.lower()
        yield Tried(label, tool, step, code, error, attempts, requests)
