"""Queue `reconciler`: what happened to an attempt nobody answered for. Asks, or repeats where the contract allows."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from fencepost import commands as c
from fencepost.clock import uuid7
from fencepost.errors import FaultInjected
from fencepost.ledger.reads import Prepared
from fencepost.outcomes import classify_lookup, result_text, told
from fencepost.recovery import Answer, LookupAnswer
from fencepost.states import Queue
from fencepost.testing import fault
from fencepost.tools import Absent, Found, LookupResult, Unclear
from fencepost_workers.attempts import attempt, correlation, evidence_of, payload
from fencepost_workers.dispatcher import tool_lease
from fencepost_workers.step import Held, Message
from fencepost_workers.worker import Worker


class Reconciler:
    """Takes over, asks the downstream, and repeats the stored request under the same key where that is safe."""

    queue = Queue.RECONCILER

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def lease_ttl(self, prepared: Prepared) -> timedelta:
        return tool_lease(self._worker.app.registry.get((prepared.tool or "", prepared.tool_version or 0)))

    def claim(self, prepared: Prepared, message: Message, term: c.Term) -> c.ClaimDoubt | None:
        tenant, subject, generation = message
        return c.ClaimDoubt(
            id=uuid7(),
            tenant=tenant,
            run=prepared.run,
            rand=self._worker.rand(),
            subject=subject,
            generation=generation,
            worker=self._worker.token,
            term=term,
        )

    def gather(self, orders: Sequence[c.Order]) -> None:
        pass

    async def act(self, order: c.Order, held: Held) -> c.Command | None:
        if isinstance(order, c.Send):
            return await attempt(self._worker, order, held)
        assert isinstance(order, c.Ask)
        found = await self._ask(order, held)
        result = payload(result_text(found.result)) if isinstance(found, Found) and found.result is not None else None
        try:
            fault("reconcile.after_lookup")
        except FaultInjected as error:
            found, result = Unclear(told(error)), None
        return c.RecordLookup(
            id=uuid7(),
            tenant=order.call.tenant,
            run=order.call.run,
            rand=self._worker.rand(),
            term=held.term,
            call=order.call.id,
            answer=_answer(order, found, result),
            result=result,
            payloads=(result,) if result else (),
        )

    async def _ask(self, order: c.Ask, held: Held) -> LookupResult:
        call = order.call
        tool = self._worker.app.registry[call.tool, call.tool_version]
        try:
            args = tool.read_arguments(call.arguments)
            question = tool.lookup_request(args, call.operation or "")
        except Exception as error:  # noqa: BLE001 - the lookup function is the application's code
            return Unclear(told(error))
        sent = await self._worker.engine.send(
            question,
            key=None,
            deadline=order.asked_at + order.timeout,
            timeout=held.remaining(order.timeout),
            correlation=correlation(call, call.attempts, held),
            headers=tool.dependency.sent_headers(),
            kind="lookup",
        )
        return classify_lookup(tool, args, sent)

    def evidence(self, command: c.Command) -> c.Command | None:
        return evidence_of(command)

    def recorded(self) -> None:
        fault("reconcile.after_record")


def _answer(order: c.Ask, found: LookupResult, result: c.Payload | None) -> LookupAnswer:
    if isinstance(found, Found):
        kind = Answer.FOUND if found.same_arguments else Answer.FOUND_OTHER
        return LookupAnswer(kind, order.asked_at, found.receipt, result.digest if result else None, "")
    if isinstance(found, Absent):
        return LookupAnswer(Answer.ABSENT, order.asked_at, None, None, "")
    return LookupAnswer(Answer.UNCLEAR, order.asked_at, None, None, found.detail)
