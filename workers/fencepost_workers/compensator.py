"""Queue `compensator`: offsets the effects of a stopped run, latest first, with new effects of their own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from uuid import UUID

from fencepost import commands as c
from fencepost.clock import uuid7
from fencepost.ledger import reads
from fencepost.ledger.reads import Prepared
from fencepost.outcomes import told
from fencepost.proposals import Rejected, Validated, validate
from fencepost.states import Queue
from fencepost.testing import fault
from fencepost.tools import compensation_key
from fencepost_workers.step import Held, Message
from fencepost_workers.worker import Worker


class Compensator:
    """Asks the tool of an effect for the proposal that offsets it; validated and authorised like any other."""

    queue = Queue.COMPENSATOR

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._cap = timedelta(seconds=worker.settings.planner_cap_s)
        self._grace = timedelta(seconds=worker.settings.planner_grace_s)
        self._results: dict[UUID, bytes | None] = {}
        self._lock = threading.Lock()

    def lease_ttl(self, prepared: Prepared) -> timedelta:
        return self._cap + self._grace

    def claim(self, prepared: Prepared, message: Message, term: c.Term) -> c.ClaimStopped | None:
        tenant, subject, generation = message
        return c.ClaimStopped(
            id=uuid7(),
            tenant=tenant,
            run=subject,
            rand=self._worker.rand(),
            subject=subject,
            generation=generation,
            worker=self._worker.token,
            term=term,
            cap=self._cap,
            grace=self._grace,
        )

    def gather(self, orders: Sequence[c.Order]) -> None:
        offsets = [order for order in orders if isinstance(order, c.Offset)]
        wanted = {(o.forward.tenant, o.forward.result) for o in offsets if o.forward.result is not None}
        with self._worker.pool.connection() as connection:
            found = reads.payloads(connection, sorted(wanted))
        with self._lock:
            for order in offsets:
                self._results[order.forward.id] = found.get((order.forward.tenant, order.forward.result or ""))

    async def act(self, order: c.Order, held: Held) -> c.Command | None:
        assert isinstance(order, c.Offset)
        with self._lock:
            result = self._results.pop(order.forward.id, None)
        loop = asyncio.get_running_loop()
        proposal = await loop.run_in_executor(self._worker.executor, self._propose, order, result)
        fault("compensate.after_plan")
        return c.RecordCompensation(
            id=uuid7(),
            tenant=order.run.tenant,
            run=order.run.id,
            rand=self._worker.rand(),
            term=held.term,
            forward=order.forward.id,
            proposal=proposal,
            call_id=uuid7(),
        )

    def _propose(self, order: c.Offset, result: bytes | None) -> Validated | Rejected:
        forward = order.forward
        tool = self._worker.app.registry[forward.tool, forward.tool_version]
        label = f"offset {forward.label}"
        try:
            args = tool.read_arguments(forward.arguments)
            text = result.decode("utf-8", "surrogatepass") if result is not None else None
            proposal = replace(tool.compensation(args, text, forward.receipt), call_id=label)
        except Exception as error:  # noqa: BLE001 - the compensation function is the application's code
            return Rejected(5, "compensation_failed", told(error), forward.tool, label, forward.arguments)
        checked = validate(
            proposal,
            tools=self._worker.app.tools,
            tenant=order.run.tenant,
            run_id=str(order.run.id),
            turn=order.run.turn + 1,
            ordinal=order.run.calls,
        )
        if isinstance(checked, Rejected):
            return checked
        # Whatever the tool's own intent says: one key per effect that is offset (I11).
        return replace(checked, operation=compensation_key(forward.operation or ""), required=False)

    def evidence(self, command: c.Command) -> c.Command | None:
        return None

    def recorded(self) -> None:
        pass
