"""What distinguishes a queue's worker from the others; the pipeline they share is `step.py`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar
from uuid import UUID

from fencepost import commands as c
from fencepost.clock import boottime, uuid7
from fencepost.ledger.reads import Prepared
from fencepost.states import Queue
from fencepost.tools import Tool
from fencepost_workers.parts import Parts

Message = tuple[str, UUID, int]
"""Tenant, subject, generation: all a broker message says (R1)."""


@dataclass(frozen=True, slots=True)
class Held:
    """What one execution holds: its term, its lease, and the local clock before the claim was sent.

    That clock is CLOCK_BOOTTIME; the timeout counts from it (R6).
    """

    term: c.Term
    lease: str
    anchor: float
    scope: str = ""
    """Of the dependency whose slot it holds; none for a run."""
    root: UUID | None = None
    """Of the tree its run belongs to."""
    waited: timedelta = timedelta(0)
    """For how long it was due before."""

    def until(self, timeout: timedelta) -> float:
        """When `timeout` is over, by `boottime()`, which counts on while the machine is suspended."""
        return self.anchor + timeout.total_seconds()

    def remaining(self, timeout: timedelta) -> float:
        """Seconds left of `timeout`."""
        return self.until(timeout) - boottime()


class Role(ABC):
    """One queue's worker: which claim it makes, how it acts, what a fenced-out execution may say."""

    queue: ClassVar[Queue]

    def __init__(self, worker: Parts) -> None:
        self.worker = worker

    @abstractmethod
    def lease_ttl(self, prepared: Prepared) -> timedelta:
        """At least as long as the claim may last: attempt and grace."""

    @abstractmethod
    def claim(self, prepared: Prepared, message: Message, term: c.Term, token: str) -> c.Claim | None:
        """The claim for one message, made by the process stamped as `token`; None leaves it to another."""

    def gather(self, taken: Sequence[tuple[c.Order, Held]]) -> None:  # noqa: B027 - most roles need nothing more
        """Read, in a constant number of statements, what acting on these orders needs.

        Kept by the owner of the term: one process may hold two terms of a subject, an old and a new one.
        """

    @abstractmethod
    async def act(self, order: c.Order, held: Held) -> c.Command | None:
        """Do it, and say what to record. Never raises for what the outside does."""

    def evidence(self, command: c.Command) -> c.Command | None:  # noqa: ARG002 - most roles have none
        """What a fenced-out execution files instead (R9), if it holds a real answer."""
        return None

    def recorded(self) -> None:  # noqa: B027 - a fault point of some roles
        """Called after a record was committed."""

    def named(self, prepared: Prepared, message: Message, term: c.Term, token: str) -> dict[str, Any]:
        """The fields every claim has."""
        tenant, subject, generation = message
        return {
            "scope": self.scope_of(prepared),
            **self.stamped(tenant, prepared.run),
            "subject": subject,
            "generation": generation,
            "worker": token,
            "term": term,
        }

    def stamped(self, tenant: str, run: UUID) -> dict[str, Any]:
        """The fields every command has: identity and randomness are made here, once."""
        return {"id": uuid7(), "tenant": tenant, "run": run, "rand": self.worker.rand()}

    def scope_of(self, prepared: Prepared) -> str:
        """The dependency an item goes to; none for a run, and for a tool this process does not know."""
        tool = self.tool_of(prepared) if prepared.kind == "call" else None
        return tool.scope if tool is not None else ""

    def tool_of(self, prepared: Prepared) -> Tool | None:
        """The tool of a prepared call, if this process knows its version."""
        return self.worker.app.registry.get((prepared.tool or "", prepared.tool_version or 0))


_CLAIM = timedelta(seconds=3)


def attempt_lease(tool: Tool | None) -> timedelta:
    """A lease as long as one attempt and its grace; a minute for what this process does not know."""
    if tool is None:
        return timedelta(minutes=1)
    if tool.child is not None:  # its run is executed by others; who starts it, or hears of it, only claims
        return _CLAIM
    return tool.dependency.per_attempt + tool.dependency.grace
