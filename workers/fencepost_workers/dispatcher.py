"""Queue `dispatcher`: the first and every proved-safe attempt of a call."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from fencepost import commands as c
from fencepost.canonical import sanitize
from fencepost.clock import uuid7
from fencepost.ledger.reads import Prepared
from fencepost.states import Queue
from fencepost.testing import fault
from fencepost.tools import Tool
from fencepost_workers.attempts import attempt, evidence_of
from fencepost_workers.step import Held, Message
from fencepost_workers.worker import Worker


def tool_lease(tool: Tool | None) -> timedelta:
    """A lease as long as one attempt and its grace; a minute for what this process does not know."""
    if tool is None:
        return timedelta(minutes=1)
    return tool.dependency.per_attempt + tool.dependency.grace


class Dispatcher:
    """Builds the request before the claim, stores it in the claim, sends the stored bytes after the COMMIT (R2)."""

    queue = Queue.DISPATCHER

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def lease_ttl(self, prepared: Prepared) -> timedelta:
        return tool_lease(self._tool(prepared))

    def _tool(self, prepared: Prepared) -> Tool | None:
        return self._worker.app.registry.get((prepared.tool or "", prepared.tool_version or 0))

    def claim(self, prepared: Prepared, message: Message, term: c.Term) -> c.ClaimCall | None:
        fault("dispatch.after_lease")
        tool = self._tool(prepared)
        if tool is None:
            return None
        request, error = None, None
        if tool.kind == "http" and prepared.request is None:
            try:
                args = tool.read_arguments(prepared.arguments or "")
                request = tool.stored_request(args).to_text()
            except Exception as problem:  # noqa: BLE001 - the request function is the application's code
                error = sanitize(f"{type(problem).__name__}: {problem}", 500)
        tenant, subject, generation = message
        return c.ClaimCall(
            id=uuid7(),
            tenant=tenant,
            run=prepared.run,
            rand=self._worker.rand(),
            subject=subject,
            generation=generation,
            worker=self._worker.token,
            term=term,
            request=request,
            request_error=error,
        )

    def gather(self, orders: Sequence[c.Order]) -> None:
        fault("dispatch.after_claim")

    async def act(self, order: c.Order, held: Held) -> c.Command | None:
        assert isinstance(order, c.Send)
        return await attempt(self._worker, order, held)

    def evidence(self, command: c.Command) -> c.Command | None:
        return evidence_of(command)

    def recorded(self) -> None:
        fault("dispatch.after_record")
