"""Queue `reconciler`: what became of an attempt nobody answered for? Asks, or repeats where it may."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

from pydantic import BaseModel

from fencepost import commands as c
from fencepost.errors import FaultInjected
from fencepost.ledger.reads import Prepared
from fencepost.mcp import RPC
from fencepost.mcpoutcomes import classify_question
from fencepost.outcomes import Answered, Sent, classify_lookup, result_text, retry_after, told
from fencepost.recovery import Answer, LookupAnswer
from fencepost.redaction import own_values
from fencepost.states import Queue
from fencepost.testing import fault
from fencepost.tools import Absent, Attempt, Found, LookupResult, StoredRequest, Tool, Unclear, load_result
from fencepost_workers import redaction
from fencepost_workers.attempts import (
    attempt,
    built,
    correlation,
    evidence_of,
    expect,
    payload,
    secrets_of,
)
from fencepost_workers.role import Held, Message, Role, attempt_lease
from fencepost_workers.tools import mcp, memory
from fencepost_workers.tools.credentials import Credentials
from fencepost_workers.tools.python import ask_python
from fencepost_workers.tools.secrets import Resolved


class Reconciler(Role):
    """Takes over, asks the downstream, and repeats the stored request under its key where that is safe."""

    queue = Queue.RECONCILER

    def lease_ttl(self, prepared: Prepared) -> timedelta:
        """One attempt, or one question, and its grace."""
        return attempt_lease(self.tool_of(prepared))

    def claim(self, prepared: Prepared, message: Message, term: c.Term, token: str) -> c.ClaimDoubt | None:
        """The claim of a call in doubt; with its request where none is stored, after a restore."""
        fault("reconcile.after_lease")
        tool = self.tool_of(prepared)
        fields = self.named(prepared, message, term, token)
        if tool is None:
            return c.ClaimDoubt(**fields)
        fields |= built(self, tool, prepared, message)
        return c.ClaimDoubt(**fields, starts=tool.child is not None)

    async def act(self, order: c.Order, held: Held) -> c.Command | None:
        """Repeat, or ask."""
        if isinstance(order, c.Send):
            return await attempt(self, order, held)
        if isinstance(order, c.Tell):
            by = f"run:{order.call.run}"
            stamped = self.stamped(order.call.tenant, order.child)
            return c.RequestCancel(**stamped, by=by, reason=order.reason)
        asked = expect(order, c.Ask)
        found, heard = await self._ask(asked, held)
        try:
            fault("reconcile.after_lookup")
        except FaultInjected as error:
            found = Unclear(told(error))
        known = isinstance(found, Found) and found.result is not None
        result = payload(result_text(found.result)) if isinstance(found, Found) and known else None
        return c.RecordLookup(
            **self.stamped(asked.call.tenant, asked.call.run),
            term=held.term,
            call=asked.call.id,
            answer=_answer(asked, found, result),
            scope=asked.call.scope,
            **heard,
            result=result,
            payloads=(result,) if result else (),
        )

    async def _ask(self, order: c.Ask, held: Held) -> tuple[LookupResult, dict[str, Any]]:
        """What was found, and how the question fared."""
        call = order.call
        tool = self.worker.app.registry[call.tool, call.tool_version]
        if tool.memory is not None:
            return await memory.looked_up(self.worker, tool, call, held.remaining(order.timeout)), {}
        try:
            args = tool.read_arguments(call.arguments)
            secrets = await secrets_of(self, tool, args, call, held.remaining(order.timeout))
            credentials = Credentials.of(
                tool.dependency, (*secrets.values, *own_values(), *mcp.told(tool.dependency))
            )
            redaction.learn(credentials)
            if not tool.sends_request:
                return await self._asks(order, held, tool, args, secrets, credentials), {}
            question = _question(tool, args, call.operation or "")
            headers = tool.dependency.sent_headers()
            asked = secrets.put(question)
            allowed = tool.dependency.outbound()
        except _Refused as refusal:
            return Unclear(str(refusal), asked=False), {}
        except Exception as error:  # noqa: BLE001 - the lookup function is the application's code
            return Unclear(told(error)), {}
        if (why := _elsewhere(call.request, question)) is not None:
            return Unclear(why), {}
        try:
            fault("reconcile.before_lookup")
        except FaultInjected as error:
            return Unclear(told(error)), {}
        how: dict[str, Any] = {
            "allowed": allowed,
            "key": None,
            "deadline": order.asked_at + order.timeout,
            "until": held.until(order.timeout),
            "correlation": correlation(call, call.attempts, held),
            "headers": headers,
            "kind": "lookup",
        }
        if tool.kind == "mcp":
            sent = await mcp.by(self.worker.mcp, tool, asked, **how)
        else:
            sent = await self.worker.engine.send(asked, **how)
        now = order.asked_at + order.timeout - timedelta(seconds=held.remaining(order.timeout))
        judge = classify_question if tool.kind == "mcp" else classify_lookup
        return judge(tool, args, credentials.hide_sent(sent)), _heard(sent, now)

    async def _asks(
        self,
        order: c.Ask,
        held: Held,
        tool: Tool,
        args: BaseModel,
        secrets: Resolved,
        credentials: Credentials,
    ) -> LookupResult:
        """A Python tool's lookup, which asks by itself; raises what credentials cannot be hidden in."""
        try:
            fault("reconcile.before_lookup")
        except FaultInjected as error:
            return Unclear(told(error))
        call = order.call
        handed = Attempt(
            run=str(call.run),
            call=str(call.id),
            number=call.attempts,
            operation_key=call.operation or "",
            deadline=order.asked_at + order.timeout,
            remaining=lambda: held.remaining(order.timeout),
            secrets=secrets.handed,
            tenant=call.tenant,
        )
        found = await ask_python(tool, args, handed, self.worker.executor, hide=credentials.hide)
        if isinstance(found, Unclear):
            return Unclear(credentials.hide(found.detail))
        if isinstance(found, Absent):
            return found
        receipt = None if found.receipt is None else credentials.hide(found.receipt)
        result = None if found.result is None else load_result(credentials.hide(result_text(found.result)))
        return replace(found, receipt=receipt, result=result)

    def evidence(self, command: c.Command) -> c.Command | None:
        """A real answer to a repeat is evidence; an answer to a question is not: it may be old."""
        return evidence_of(command)

    def recorded(self) -> None:
        """After the lookup's COMMIT."""
        fault("reconcile.after_record")


class _Refused(Exception):
    """The engine refuses the question that a lookup builds."""


def _question(tool: Tool, args: BaseModel, key: str) -> StoredRequest:
    try:
        return tool.lookup_request(args, key)
    except ValueError as error:  # a pure function builds the same again; a UsageError is a setting here
        raise _Refused(f"{told(error)}; mend the lookup of {tool.name}, then --ask-again") from None


def _heard(sent: Sent, now: datetime) -> dict[str, Any]:
    """How a question fared, for whoever judges its dependency."""
    if not isinstance(sent, Answered):
        return {"code": sent.code}
    if sent.response.status == RPC:
        return {"code": "answered"}
    return {"code": f"http_{sent.response.status}", "retry_after": retry_after(sent.response, now)}


def _elsewhere(request: str | None, question: StoredRequest) -> str | None:
    """Why a question would say nothing: whoever stands at the new address never got the old request."""
    if request is None:  # a Python tool's; nobody knows where its requests went
        return None
    went, asks = _origin(StoredRequest.from_text(request).target), _origin(question.target)
    if went == asks:
        return None
    return f"the dependency's address has changed: the request went to {went}, the lookup would ask {asks}"


def _origin(target: str) -> str:
    parts = urlsplit(target)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return f"{parts.scheme}://{parts.hostname}:{port}"


def _answer(order: c.Ask, found: LookupResult, result: c.Payload | None) -> LookupAnswer:
    if isinstance(found, Found):
        kind = Answer.FOUND if found.same_arguments else Answer.FOUND_OTHER
        return LookupAnswer(kind, order.asked_at, found.receipt, result.digest if result else None, "")
    if isinstance(found, Absent):
        return LookupAnswer(Answer.ABSENT, order.asked_at, None, None, "")
    kind = Answer.UNCLEAR if found.asked else Answer.NOT_ASKED
    return LookupAnswer(kind, order.asked_at, None, None, found.detail)
