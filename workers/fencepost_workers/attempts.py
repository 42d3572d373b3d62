"""Making one attempt: the stored bytes over HTTP, or a Python tool. What comes back is judged, never guessed."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime

from fencepost import commands as c
from fencepost.canonical import sanitize
from fencepost.clock import uuid7
from fencepost.errors import FaultInjected
from fencepost.outcomes import Applied, Lost, Outcome, Refused, Unsure, classify
from fencepost.testing import fault
from fencepost.tools import Attempt, StoredRequest, Tool
from fencepost_workers.step import Held
from fencepost_workers.tools.python import run_python
from fencepost_workers.worker import Worker

PREVIEW_CHARS = 500


def payload(text: str) -> c.Payload:
    """A result as bytes and bounded preview. Any text is kept, lone surrogates and NUL included."""
    data = text.encode("utf-8", "surrogatepass")
    return c.Payload(hashlib.sha256(data).hexdigest(), data, sanitize(text, PREVIEW_CHARS))


async def attempt(worker: Worker, order: c.Send, held: Held) -> c.RecordOutcome:
    """Execute the attempt `order` asks for, once, and say what to record."""
    call = order.call
    tool = worker.app.registry[call.tool, call.tool_version]
    outcome = await _outcome(worker, tool, order, held)
    result = payload(outcome.result_json_text) if isinstance(outcome, Applied) else None
    return c.RecordOutcome(
        id=uuid7(),
        tenant=call.tenant,
        run=call.run,
        rand=worker.rand(),
        term=held.term,
        call=call.id,
        attempt=order.attempt,
        outcome=outcome,
        result=result,
        payloads=(result,) if result else (),
    )


async def _outcome(worker: Worker, tool: Tool, order: c.Send, held: Held) -> Outcome:
    try:
        fault("dispatch.before_wire")
    except FaultInjected as error:
        return Refused("worker_error", f"failed before anything was sent: {error}", retryable=True)
    # The last look at the clock before the wire: a suspended or starved worker sends nothing late.
    if held.remaining(order.timeout) <= 0:
        return Refused("late", "the attempt had no time left before anything was sent", retryable=True)
    try:
        outcome = await _send(worker, tool, order, held)
        fault("dispatch.after_effect")
    except FaultInjected as error:
        return Unsure("worker_error", f"failed after the request was sent: {error}")
    return outcome


async def _send(worker: Worker, tool: Tool, order: c.Send, held: Held) -> Outcome:
    call = order.call
    if tool.kind == "python":
        handed = Attempt(
            run=str(call.run),
            call=str(call.id),
            number=order.attempt,
            operation_key=order.key or "",
            deadline=order.deadline,
            remaining=lambda: held.remaining(order.timeout),
        )
        return await run_python(tool, tool.read_arguments(call.arguments), handed, worker.executor)
    assert call.request is not None
    sent = await worker.engine.send(
        StoredRequest.from_text(call.request),
        key=order.key,
        deadline=order.deadline,
        timeout=held.remaining(order.timeout),
        correlation=correlation(call, order.attempt, held),
        headers=tool.dependency.sent_headers(),
        kind="effect",
    )
    try:
        fault("dispatch.response_lost")
    except FaultInjected as error:
        sent = Lost("response_lost", str(error))
    return classify(tool, sent, now=datetime.now(UTC))


def correlation(call: c.Call, number: int, held: Held) -> dict[str, str]:
    """The headers by which a downstream's log is matched with the ledger."""
    return {"run": str(call.run), "call": str(call.id), "attempt": str(number), "fence": str(held.term.fence)}


def evidence_of(command: c.Command) -> c.FileEvidence | None:
    """What a fenced-out attempt may still say: a real answer, applied or not. Silence is no evidence."""
    if not isinstance(command, c.RecordOutcome) or isinstance(command.outcome, Unsure):
        return None
    return c.FileEvidence(
        id=uuid7(),
        tenant=command.tenant,
        run=command.run,
        call=command.call,
        attempt=command.attempt,
        term=command.term,
        outcome=command.outcome,
        result=command.result,
        payloads=command.payloads,
    )
