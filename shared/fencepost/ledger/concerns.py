"""What a batch concerns, by its commands alone: runs, calls and keys that `load` locks and reads. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from fencepost import commands as c
from fencepost.ledger import rows
from fencepost.proposals import Validated

Key = tuple[str, UUID]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a batch concerns; each pair is a tenant and a run, call or subject of it."""

    runs: set[Key]
    calls: set[Key]
    whole: set[Key]
    """Runs of which all effects are needed."""
    asked: set[Key]
    """Runs of which a planner is asked, or has answered."""
    claims: set[Key]
    new: set[tuple[str, str, str, bool]]
    """Keys that may be asked for the first time: tenant, key, scope, and whether a natural resource's."""
    workers: set[str]
    ids: list[UUID]
    plans: set[Key]
    """Ids of the claims of runs."""


def wanted(batch: Sequence[c.Command]) -> Wanted:
    """What these commands concern."""
    # Only a claim may be told Busy: where a run has other commands as well, all its rows are waited for.
    waiting = {(x.tenant, x.run) for x in batch if not isinstance(x, c.Claim)}
    claiming = [x for x in batch if isinstance(x, c.Claim)]
    return Wanted(
        runs={(x.tenant, x.run) for x in batch},
        calls={(x.tenant, call) for x in batch for call in touched_calls(x)},
        whole={(x.tenant, x.run) for x in batch if _offsets(x)},
        asked={(x.tenant, x.run) for x in batch if isinstance(x, c.ClaimRun | c.RecordTurn)},
        claims={(x.tenant, x.subject) for x in claiming if (x.tenant, x.run) not in waiting},
        new={(x.tenant, *key) for x in batch for key in _new_keys(x)},
        workers={x.worker for x in claiming},
        ids=[x.id for x in batch],
        plans={(x.tenant, x.id) for x in claiming if isinstance(x, c.ClaimRun)},
    )


def parameters(of: Wanted, worker_ttl: timedelta) -> dict[str, Any]:
    """The parameters all statements share. Arrays are spelled once, not by each statement anew."""
    return {
        "run_tenants": rows.text_array(t for t, _ in of.runs),
        "runs": rows.plain_array(r for _, r in of.runs),
        "call_tenants": rows.text_array(t for t, _ in of.calls),
        "calls": rows.plain_array(k for _, k in of.calls),
        "whole_tenants": rows.text_array(t for t, _ in of.whole),
        "whole": rows.plain_array(r for _, r in of.whole),
        "asked_tenants": rows.text_array(t for t, _ in of.asked),
        "asked": rows.plain_array(r for _, r in of.asked),
        "claim_tenants": rows.text_array(t for t, _ in of.claims),
        "claims": rows.plain_array(s for _, s in of.claims),
        "new_tenants": rows.text_array(t for t, _, _, _ in of.new),
        "new_keys": rows.text_array(k for _, k, _, _ in of.new),
        "new_scopes": rows.text_array(s for _, _, s, _ in of.new),
        "new_resources": rows.plain_array(r for _, _, _, r in of.new),
        "workers": rows.text_array(of.workers),
        "worker_ttl": worker_ttl,
        "ids": rows.plain_array(of.ids),
    }


def _offsets(command: c.Command) -> bool:
    """Whether all effects of its run, and what offsets them, are needed to decide it."""
    decided = isinstance(command, c.DecideRepair) and command.decision in {c.OFFSET, c.LEAVE}
    return decided or isinstance(command, c.ClaimStopped | c.RecordCompensation | c.FileEvidence)


def touched_calls(command: c.Command) -> tuple[UUID, ...]:
    """The calls a command names."""
    if isinstance(command, c.ClaimCall | c.ClaimDoubt | c.Sweep):
        return (command.subject,)
    if isinstance(command, c.RecordCompensation):
        return (command.forward,)
    named = c.RecordOutcome | c.RecordLookup | c.DecideApproval | c.DecideRepair | c.FileEvidence
    if isinstance(command, named):
        return (command.call,)
    return ()


def _new_keys(command: c.Command) -> list[tuple[str, str, bool]]:
    if isinstance(command, c.RecordTurn):
        proposals = command.proposals
    elif isinstance(command, c.RecordCompensation):
        proposals = (command.proposal,)
    else:
        return []
    valid = [p for p in proposals if isinstance(p, Validated)]
    keys = [(p.operation, p.scope, False) for p in valid if p.operation is not None]
    return keys + [(p.resource, p.scope, True) for p in valid if p.resource is not None]
