"""Queue `compensator`: offsets the effects of a stopped run, latest first, with new effects of their own."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from fencepost import commands as c
from fencepost.clock import uuid7
from fencepost.ledger import reads
from fencepost.ledger.reads import Prepared
from fencepost.outcomes import told
from fencepost.proposals import Rejected, Validated, validate
from fencepost.states import Queue
from fencepost.testing import fault
from fencepost.tools import compensation_key
from fencepost_workers.attempts import expect
from fencepost_workers.parts import Parts
from fencepost_workers.role import Held, Message, Role

log = logging.getLogger(__name__)


class Compensator(Role):
    """Asks the tool of an effect for what offsets it; that is validated and authorised like any proposal."""

    queue = Queue.COMPENSATOR

    def __init__(self, worker: Parts) -> None:
        super().__init__(worker)
        self._cap = timedelta(seconds=worker.settings.compensation_s)
        self._grace = timedelta(seconds=worker.settings.planner_grace_s)
        self._results: dict[str, bytes | None] = {}  # by the owner of the term
        self._lock = threading.Lock()

    def lease_ttl(self, prepared: Prepared) -> timedelta:  # noqa: ARG002 - all runs alike
        """The planning of one compensation and its grace."""
        return self._cap + self._grace

    def claim(self, prepared: Prepared, message: Message, term: c.Term, token: str) -> c.ClaimStopped | None:
        """The claim of a run that stops or compensates."""
        return c.ClaimStopped(**self.named(prepared, message, term, token), cap=self._cap, grace=self._grace)

    def gather(self, taken: Sequence[tuple[c.Order, Held]]) -> None:
        """The stored results of the effects to offset, in one statement."""
        offsets = {held.term.owner: order.forward for order, held in taken if isinstance(order, c.Offset)}
        keys = {owner: (forward.tenant, forward.result or "") for owner, forward in offsets.items()}
        with self.worker.pool.reading() as connection:
            found = reads.payloads(connection, sorted(set(keys.values())))
        with self._lock:
            self._results.update({owner: found.get(key) for owner, key in keys.items()})

    async def act(self, order: c.Order, held: Held) -> c.Command | None:
        """Propose the compensation of one effect, and say what to record."""
        offset = expect(order, c.Offset)
        with self._lock:
            # Without its result an effect might be judged impossible to offset, which nothing takes back.
            if held.term.owner not in self._results:
                raise LookupError(f"the result of call {offset.forward.id} was not gathered")
            result = self._results.pop(held.term.owner)
        digest = offset.forward.result
        damaged = result is not None and digest is not None and not reads.intact(digest, result)
        loop = asyncio.get_running_loop()
        proposal = await loop.run_in_executor(
            self.worker.executor, self._damaged if damaged else self._propose, offset, result
        )
        fault("compensate.after_plan")
        return c.RecordCompensation(
            **self.stamped(offset.run.tenant, offset.run.id),
            term=held.term,
            forward=offset.forward.id,
            proposal=proposal,
            call_id=uuid7(),
        )

    def _damaged(self, order: c.Offset, _: bytes | None) -> Rejected:
        """Nothing is offset by what nobody recorded: a person asks for it again once it is restored."""
        forward = order.forward
        why = f"the stored result {forward.result} of call {forward.id} was changed: its hash is another"
        log.error("call %s is not offset: %s", forward.id, why)
        return Rejected(5, "damaged_result", why, forward.tool, f"offset {forward.label}", forward.arguments)

    def _propose(self, order: c.Offset, result: bytes | None) -> Validated | Rejected:
        forward = order.forward
        tool = self.worker.app.registry[forward.tool, forward.tool_version]
        label = f"offset {forward.label}"
        try:
            args = tool.read_arguments(forward.arguments)
            text = result.decode("utf-8", "surrogatepass") if result is not None else None
            proposal = replace(tool.compensation(args, text, forward.receipt), call_id=label)
        except Exception as error:  # noqa: BLE001 - the compensation function is the application's code
            return Rejected(5, "compensation_failed", told(error), forward.tool, label, forward.arguments)
        checked = validate(
            proposal,
            tools=self.worker.app.tools,
            tenant=order.run.tenant,
            run_id=str(order.run.id),
            turn=order.run.turn + 1,
            ordinal=order.run.calls,
        )
        if isinstance(checked, Rejected):
            return checked
        # Whatever the tool's own intent says: one key per effect that is offset (I11).
        return replace(checked, operation=compensation_key(forward.operation or ""), required=False)
