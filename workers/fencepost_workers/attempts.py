"""Making one attempt: the stored bytes over HTTP, or a Python tool. The answer is judged, never guessed."""

from __future__ import annotations

import hashlib
import logging
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

from pydantic import BaseModel

from fencepost import commands as c
from fencepost.canonical import sanitize
from fencepost.clock import uuid7
from fencepost.contracts import Effect, Never
from fencepost.doubts import SENT_LATE
from fencepost.errors import FaultInjected, UsageError
from fencepost.ledger.reads import Prepared
from fencepost.mcpoutcomes import classify_call
from fencepost.outbound import Outbound, OutboundRefused
from fencepost.outcomes import Applied, Lost, NotSent, Outcome, Refused, Unsure, classify, sent_late, told
from fencepost.redaction import own_values
from fencepost.subjects import Call
from fencepost.telemetry import correlation as trees
from fencepost.telemetry.names import TRACEPARENT
from fencepost.testing import fault
from fencepost.tools import Attempt, StoredRequest, Tool
from fencepost_workers import forks, redaction, signing
from fencepost_workers.role import Held, Message, Role
from fencepost_workers.tools import mcp, memory, redirects
from fencepost_workers.tools.credentials import Credentials
from fencepost_workers.tools.python import run_python
from fencepost_workers.tools.retrieval import grounded
from fencepost_workers.tools.secrets import NONE, Resolved, SecretUnavailable, files_and_variables, resolve

log = logging.getLogger(__name__)

PREVIEW_CHARS = 500

OrderT = TypeVar("OrderT", c.Plan, c.Send, c.Ask, c.Offset)


def expect(order: c.Order, kind: type[OrderT]) -> OrderT:
    """The order as the kind its claim answers with. TypeError for another: a bug of ours."""
    if not isinstance(order, kind):
        raise TypeError(f"expected {kind.__name__}, not {type(order).__name__}")
    return order


def payload(text: str) -> c.Payload:
    """A result as bytes and bounded preview. Any text is kept, lone surrogates and NUL included."""
    data = text.encode("utf-8", "surrogatepass")
    return c.Payload(hashlib.sha256(data).hexdigest(), data, sanitize(text, PREVIEW_CHARS))


def built(role: Role, tool: Tool, prepared: Prepared, message: Message) -> dict[str, str | None]:
    """The request to store in a claim, or why there is none; nothing where one is stored, or none is sent."""
    if not tool.sends_request or prepared.request is not None:
        return {}
    try:
        with role.worker.pulse.suspects.named(*message):
            args = tool.read_arguments(prepared.arguments or "")
            request = tool.stored_request(args, prepared.operation).to_text()
            forks.ours(role.worker.pid)
    except OutboundRefused as refusal:
        return {"request_error": str(refusal), "request_code": refusal.code}
    except (Exception, SystemExit) as problem:  # noqa: BLE001 - the request function is the application's
        return {"request_error": told(problem)}
    return {"request": request}


async def attempt(role: Role, order: c.Send, held: Held) -> c.RecordOutcome:
    """Execute the attempt `order` asks for, once, and say what to record."""
    outcome, requests = await _made(role, order, held)
    return _record(role, order, held, outcome, requests)


def _record(role: Role, order: c.Send, held: Held, outcome: Outcome, requests: int) -> c.RecordOutcome:
    call = order.call
    outcome, grounds = grounded(role.worker.app.registry[call.tool, call.tool_version], outcome)
    result = payload(outcome.result_json_text) if isinstance(outcome, Applied) else None
    return c.RecordOutcome(
        **role.stamped(call.tenant, call.run),
        term=held.term,
        call=call.id,
        attempt=order.attempt,
        outcome=outcome,
        requests=requests,
        result=result,
        scope=call.scope,
        grounds=grounds.listed,
        ungrounded=grounds.missing,
        payloads=(result,) if result else (),
    )


async def _made(role: Role, order: c.Send, held: Held) -> tuple[Outcome, int]:
    """The outcome, and how many effect requests our transport made for it: none for a Python tool."""
    tool = role.worker.app.registry[order.call.tool, order.call.tool_version]
    requests = 0
    try:
        if tool.kind == "python":  # an HTTP tool passes it at the wire itself
            fault("dispatch.before_wire")
        headers = tool.dependency.sent_headers()
        allowed = tool.dependency.outbound() if tool.sends_request else Outbound()
        args = tool.read_arguments(order.call.arguments)
        secrets = await secrets_of(role, tool, args, order.call, held.remaining(order.timeout))
        stored = _wired(order.call, secrets) if tool.sends_request else None
        capability = _capability(role, tool, order, stored)
        told_too = (*secrets.values, *own_values(), *signing.told(capability), *mcp.told(tool.dependency))
        credentials = Credentials.of(tool.dependency, told_too)
        redaction.learn(credentials)
    except SecretUnavailable as error:
        return Refused("secret_unavailable", f"nothing was sent: {error}", retryable=True), requests
    except Exception as error:  # noqa: BLE001 - whatever it is, nothing has been sent yet
        return Refused("worker_error", f"nothing was sent: {told(error)}", retryable=True), requests
    # A suspended or starved worker sends nothing late. HTTP and Python look again where they really begin.
    if held.remaining(order.timeout) <= 0:
        return Refused("late", "the attempt had no time left; nothing was sent", retryable=True), requests
    try:
        if stored is None:
            late, hide = partial(_file_late, role, order, held, credentials), credentials.hide
            handed = _handed(order, held, secrets)
            tool = memory.served(role.worker, tool, order)
            outcome = await run_python(tool, args, handed, role.worker.executor, late, hide)
        else:
            sending = _send(role, tool, args, order, held, stored, allowed, headers, credentials, capability)
            outcome, requests = await sending
        fault("dispatch.after_effect")
    except FaultInjected as error:
        outcome = Unsure("worker_error", f"failed after the request was sent: {error}")
    return credentials.hide_outcome(outcome), requests


def _file_late(role: Role, order: c.Send, held: Held, credentials: Credentials, outcome: Outcome) -> None:
    """A Python tool ended after its attempt's time, and somebody else may have moved on: R9."""
    filed = evidence_of(_record(role, order, held, credentials.hide_outcome(outcome), 0))
    if filed is None:
        return
    log.warning("%s: an answer came after its attempt's time; it is filed as evidence", role.queue)
    filing = _filed(role, filed)
    try:
        role.worker.start([filing])
    except RuntimeError:  # the process has ended meanwhile, and its loop with it
        filing.close()


async def _filed(role: Role, evidence: c.FileEvidence) -> None:
    try:
        await role.worker.committer.submit(evidence)
    except Exception:
        log.exception("%s: a late answer could not be filed as evidence", role.queue)


async def secrets_of(role: Role, tool: Tool, args: BaseModel, call: Call, seconds: float) -> Resolved:
    """The secrets a call's arguments name, within so many seconds; SecretUnavailable."""
    if not tool.secrets and '"secret"' not in call.arguments:
        return NONE
    worker = role.worker
    resolver = worker.app.resolver or files_and_variables(worker.settings.secrets_dir)
    return await resolve(tool, args, call.tenant, resolver, worker.executor, seconds)


def _wired(call: Call, secrets: Resolved) -> StoredRequest:
    return secrets.put(StoredRequest.from_text(call.request or ""))


def _capability(
    role: Role, tool: Tool, order: c.Send, stored: StoredRequest | None
) -> tuple[str, str] | None:
    """The header with the capability of what will be sent, for who asks for one; UsageError."""
    if stored is None and order.capability is None:
        raise UsageError("its claim gave no capability, and nothing is handed to a tool without one")
    if stored is None or tool.dependency.capability_header is None:
        return None
    if role.worker.signer is None:
        raise UsageError(f"dependency {tool.dependency.name} asks for capabilities, and nobody here signs")
    return role.worker.signer.header(tool.dependency, order.capability, stored)


def _handed(order: c.Send, held: Held, secrets: Resolved) -> Attempt:
    return Attempt(
        run=str(order.call.run),
        call=str(order.call.id),
        number=order.attempt,
        operation_key=order.key or "",
        deadline=order.deadline,
        remaining=lambda: held.remaining(order.timeout),
        capability=order.capability.to_json() if order.capability else {},
        secrets=secrets.handed,
        tenant=order.call.tenant,
    )


async def _send(
    role: Role,
    tool: Tool,
    args: BaseModel,
    order: c.Send,
    held: Held,
    stored: StoredRequest,
    allowed: Outbound,
    headers: tuple[tuple[str, str], ...],
    credentials: Credentials,
    capability: tuple[str, str] | None,
) -> tuple[Outcome, int]:
    call = order.call
    how: dict[str, Any] = {
        "allowed": allowed,
        "key": order.key,
        "deadline": order.deadline,
        "until": held.until(order.timeout),
        "correlation": correlation(call, order.attempt, held),
        "headers": headers,
        "capability": capability,
        "kind": "effect",
    }
    if tool.kind == "mcp":
        sent = await mcp.by(role.worker.mcp, tool, stored, repeat=order.repeat, **how)
    else:
        never = tool.effect is not Effect.READ and isinstance(tool.contract.repeat, Never)
        unrepeated = never and not tool.has_lookup
        sent = await redirects.send(role.worker.engine, tool, stored, unrepeated=unrepeated, **how)
    if sent.requests > 1:
        log.error(
            "call %s, attempt %d: %d effect requests went on the wire; something retries behind our back",
            call.id,
            order.attempt,
            sent.requests,
        )
    try:
        fault("dispatch.response_lost")
    except FaultInjected as error:
        sent = Lost("response_lost", str(error), sent.requests)
    # The ledger's time, counted on by a clock nobody sets: a worker's own date decides no due time (R6).
    now = order.deadline - timedelta(seconds=held.remaining(order.timeout))
    judge = classify_call if tool.kind == "mcp" else classify
    outcome = judge(tool, credentials.hide_sent(sent), now=now, args=args)
    late = not isinstance(sent, NotSent) and sent.late
    return sent_late(outcome) if late else outcome, sent.requests


def correlation(call: Call, number: int, held: Held) -> dict[str, str]:
    """The headers by which a downstream's log is matched with the ledger, and its trace with ours."""
    fence = str(held.term.fence)
    told = {"run": str(call.run), "call": str(call.id), "attempt": str(number), "fence": fence}
    tree = trees.current()
    return told if tree is None else told | {TRACEPARENT: tree}


def evidence_of(command: c.Command) -> c.FileEvidence | None:
    """What a fenced-out attempt may still say: a real answer, applied or not, or that its bytes left late.

    Silence is no evidence.
    """
    if not isinstance(command, c.RecordOutcome):
        return None
    if isinstance(command.outcome, Unsure) and command.outcome.code != SENT_LATE:
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
