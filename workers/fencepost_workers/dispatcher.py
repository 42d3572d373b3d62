"""Queue `dispatcher`: the first and every proved-safe attempt of a call."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from fencepost import commands as c
from fencepost.clock import uuid7
from fencepost.ledger.reads import Prepared
from fencepost.states import Queue
from fencepost.testing import fault
from fencepost_workers.attempts import attempt, built, evidence_of, expect
from fencepost_workers.role import Held, Message, Role, attempt_lease


class Dispatcher(Role):
    """Builds the request before the claim, stores it in the claim, sends it after the COMMIT (R2)."""

    queue = Queue.DISPATCHER

    def lease_ttl(self, prepared: Prepared) -> timedelta:
        """One attempt and its grace."""
        return attempt_lease(self.tool_of(prepared))

    def claim(self, prepared: Prepared, message: Message, term: c.Term, token: str) -> c.ClaimCall | None:
        """The claim of a call, with the request to store; None for a tool this process does not know."""
        fault("dispatch.after_lease")
        tool = self.tool_of(prepared)
        if tool is None:
            return None
        fields = self.named(prepared, message, term, token) | built(self, tool, prepared, message)
        return c.ClaimCall(**fields, child=uuid7() if tool.child is not None else None)

    def gather(self, taken: Sequence[tuple[c.Order, Held]]) -> None:  # noqa: ARG002 - the claim brought all
        """Nothing more is needed."""
        fault("dispatch.after_claim")

    async def act(self, order: c.Order, held: Held) -> c.Command | None:
        """Make the attempt."""
        return await attempt(self, expect(order, c.Send), held)

    def evidence(self, command: c.Command) -> c.Command | None:
        """A real answer is evidence, applied or not."""
        return evidence_of(command)

    def recorded(self) -> None:
        """After the outcome's COMMIT."""
        fault("dispatch.after_record")
