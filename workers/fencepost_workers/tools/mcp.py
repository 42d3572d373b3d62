"""Calls tools of MCP servers: a client for each call, and one `tools/call` on the wire.

The SDK's own `Client.call_tool` lists tools after the effect, answers `input_required` and calls again up to
ten times, repeats after HEADER_MISMATCH, and follows redirects with the call. Here the session sends the
request itself, once: the wire lets no second one out. What the tool is said to be is read before it, in the
same session, and held against what was pinned. Needs the extra `mcp`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, Literal

import httpcore2
import httpx2
from pydantic import RootModel

from fencepost import __version__
from fencepost.canonical import sanitize
from fencepost.clock import boottime, rfc3339
from fencepost.dependencies import DependencySpec, resolve
from fencepost.errors import UsageError
from fencepost.mcp import CAPABILITY_META, DOMAIN, KEY_META, Stdio
from fencepost.mcpmessages import FIRST_ID
from fencepost.mcpoutcomes import answer_of, offered
from fencepost.outbound import Outbound, OutboundRefused
from fencepost.outcomes import Answered, Lost, NotSent, Sent
from fencepost.tools import Response, StoredRequest, Tool
from fencepost_workers import forks
from fencepost_workers.tools.connections import Resolve, TooMuch, Transport
from fencepost_workers.tools.connections import resolve as resolve_name
from fencepost_workers.tools.http import (
    ARRIVED_PASSES,
    FRAMING,
    KEEPALIVE_S,
    MAX_HEAD_BYTES,
    MAX_RESPONSE_BYTES,
    Kind,
)
from fencepost_workers.tools.mcp_http import McpHttp
from fencepost_workers.tools.mcp_process import CLOSE_S, ServerProcess
from fencepost_workers.tools.mcp_wire import Held, Wire

if TYPE_CHECKING:
    from mcp import ClientSession

log = logging.getLogger(__name__)

MOST_BYTES: Final = FRAMING * (MAX_RESPONSE_BYTES + MAX_HEAD_BYTES)
PAGES: Final = 100
"""Of a listing; a tool that is on none of them is not offered."""
_TOLD_CHARS: Final = 4000
_LOCAL: Final = {-32000: "connection_lost", -32001: "timeout"}
"""What the SDK makes up where an answer is lost; a server that says so is believed as little."""


def needed(dependencies: Iterable[DependencySpec]) -> None:
    """UsageError where one of them is an MCP server and the SDK is not installed."""
    asking = sorted(spec.name for spec in dependencies if spec.mcp is not None)
    if asking and find_spec("mcp") is None:
        raise UsageError(
            f"dependency {asking[0]} is an MCP server, which needs its SDK: pip install 'fencepost[mcp]'"
        )


def load() -> None:
    """Import the SDK, which takes a second: in a thread, at the first call."""
    for name in ("mcp", "mcp.client.streamable_http"):
        import_module(name)


def told(spec: DependencySpec) -> tuple[str, ...]:
    """What a server process is given that must not be kept where it comes back; UsageError if not set."""
    server = spec.mcp
    if not isinstance(server, Stdio):
        return ()
    return tuple(resolve(value) for value in server.env.values() if value.startswith("env:"))


class _Raw(RootModel[dict[str, Any]]):
    """A result as it came."""


class McpEngine:
    """Calls tools; of one event loop. `requests_sent` counts by kind what went on the wire, handshakes and
    listings as `handshake`.
    """

    def __init__(self, *, verify: ssl.SSLContext | None = None, resolver: Resolve = resolve_name) -> None:
        self.requests_sent: Counter[Kind | Literal["handshake"]] = Counter()
        self._pid = os.getpid()
        self._verify = verify
        self._resolver = resolver

    async def call(
        self,
        tool: Tool,
        stored: StoredRequest,
        *,
        allowed: Outbound,
        key: str | None,
        deadline: datetime,
        until: float,
        correlation: Mapping[str, str],
        headers: Sequence[tuple[str, str]] = (),
        capability: tuple[str, str] | None = None,
        repeat: bool = False,
        kind: Kind = "effect",
    ) -> Sent:
        """Make the stored call once and say what happened; raises nothing but cancellation.

        Added in `_meta`: the key, the deadline, each name of `correlation`, and the capability. NotSent only
        if the call itself cannot have left: whatever fails before it is that, a timeout too. All else without
        a whole answer is Lost. The server, its group, and the connection are gone when this returns.
        """
        if until <= boottime():
            return NotSent("deadline_passed", "the attempt had no time left")
        forks.ours(self._pid)
        wire = Wire(until, kind, self._pid)
        meta = {f"{DOMAIN}{name}": str(value) for name, value in correlation.items() if name != "traceparent"}
        meta |= {name: correlation[name] for name in ("traceparent",) if name in correlation}
        meta[f"{DOMAIN}deadline"] = rfc3339(deadline)
        meta |= {} if key is None else {KEY_META: key}
        meta |= {} if capability is None else {CAPABILITY_META: capability[1]}

        async def made(session: ClientSession) -> None:
            await _call(session, tool, stored, meta, wire, repeat=repeat)

        try:
            return await self._through(tool.dependency, allowed, headers, wire, made)
        finally:
            self.requests_sent[kind] += wire.touched
            self.requests_sent["handshake"] += wire.others

    async def listing(self, spec: DependencySpec, *, within_s: float) -> list[dict[str, Any]] | Sent:
        """What a server offers, as it says it; or why that could not be had."""
        wire = Wire(boottime() + within_s, "lookup", self._pid)
        found: list[dict[str, Any]] = []

        async def listed(session: ClientSession) -> None:
            found.extend([one async for one in _offers(session)])
            wire.arrived(Response(0))

        allowed, headers = spec.outbound(), spec.sent_headers()
        sent = await self._through(spec, allowed, headers, wire, listed)
        return found if isinstance(sent, Answered) else sent

    async def _through(
        self,
        spec: DependencySpec,
        allowed: Outbound,
        headers: Sequence[tuple[str, str]],
        wire: Wire,
        made: Callable[[ClientSession], Awaitable[None]],
    ) -> Sent:
        seconds, said = wire.until - boottime(), ""
        try:
            async with asyncio.timeout(seconds):
                await asyncio.to_thread(load)
            async with self._reached(spec, allowed, headers, wire) as (transport, process):
                job = asyncio.ensure_future(_session(spec, transport, made))
                try:
                    await _in_time(job, wire, seconds)
                finally:
                    said = "" if process is None else process.said
                    await _left(job, wire, process)
            failure = None if not job.done() or job.cancelled() else job.exception()
        except Exception as error:  # noqa: BLE001 - every way of failing is before the wire, or unknown
            failure = error
        return _judged(wire, failure, seconds, said)

    @asynccontextmanager
    async def _reached(
        self, spec: DependencySpec, allowed: Outbound, headers: Sequence[tuple[str, str]], wire: Wire
    ) -> AsyncIterator[tuple[AbstractAsyncContextManager[Any], ServerProcess | None]]:
        """A transport of this call's own, and the process behind it if it is one."""
        if isinstance(spec.mcp, Stdio):
            process = await ServerProcess.start(spec.mcp, MOST_BYTES)
            try:
                yield process.streams(wire), process
            finally:
                await process.end(within_s=0)
            return
        from mcp.client.streamable_http import streamable_http_client

        url = spec.url()
        target = allowed.admit(url)
        self._verify = self._verify or httpx2.create_ssl_context(trust_env=False)
        inner = Transport(
            allowed.reach(target),
            self._resolver,
            self._verify,
            kept=4,
            keepalive_s=KEEPALIVE_S,
            most_bytes=MOST_BYTES,
        )
        own = [("Accept-Encoding", "identity"), ("User-Agent", f"fencepost/{__version__}"), *headers]
        async with httpx2.AsyncClient(
            transport=McpHttp(inner, wire), timeout=None, trust_env=False, headers=own
        ) as client:
            yield streamable_http_client(url, http_client=client, max_sse_event_size=None), None


async def by(engine: McpEngine | None, tool: Tool, stored: StoredRequest, **how: Any) -> Sent:
    """`McpEngine.call`; NotSent where this process has none."""
    if engine is None:
        return NotSent("worker_error", "nothing was sent: nobody here may call tools of MCP servers")
    return await engine.call(tool, stored, **how)


async def _session(
    spec: DependencySpec,
    transport: AbstractAsyncContextManager[Any],
    made: Callable[[ClientSession], Awaitable[None]],
) -> None:
    from mcp import Client
    from mcp_types import Implementation

    assert spec.mcp is not None
    ours = Implementation(name="fencepost", version=__version__)
    async with Client(transport, mode=spec.mcp.protocol, cache=None, client_info=ours) as client:
        await made(client.session)


async def _offers(session: ClientSession) -> AsyncIterator[dict[str, Any]]:
    from mcp_types import PaginatedRequestParams

    cursor: str | None = None
    for _ in range(PAGES):
        params = None if cursor is None else PaginatedRequestParams(cursor=cursor)
        page = await session.list_tools(params=params)
        for one in page.tools:
            yield one.model_dump(mode="json", by_alias=True, exclude_none=True)
        cursor = page.next_cursor
        if cursor is None:
            return


async def _call(
    session: ClientSession,
    tool: Tool,
    stored: StoredRequest,
    meta: Mapping[str, Any],
    wire: Wire,
    *,
    repeat: bool,
) -> None:
    from mcp import MCPError
    from mcp_types import CallToolRequest, CallToolRequestParams

    said = json.loads(stored.body)
    offers = [one async for one in _offers(session)]
    listed = next((one for one in offers if one.get("name") == said["name"]), None)
    why = offered(tool, said["name"], offers, question=wire.kind == "lookup", repeat=repeat)
    if why is not None:
        raise Held(why)
    all_meta: Any = {**meta, **said.get("_meta", {})}
    params = CallToolRequestParams(name=said["name"], arguments=said["arguments"], _meta=all_meta)
    request = CallToolRequest(params=params)
    left = max(wire.until - boottime(), 0.001)
    dispatcher: Any = session._dispatcher  # noqa: SLF001 - `Wire.leave` holds back a call that is not numbered so
    dispatcher._next_id = FIRST_ID + secrets.randbelow(FIRST_ID)  # noqa: SLF001 - as above
    try:
        result = (await session.send_request(request, _Raw, request_read_timeout_seconds=left)).root
    except MCPError:
        _refused(wire)
        raise
    if wire.reply is None or wire.reply.error is not None:
        wire.doubts("the SDK gave an answer that has not come")
    wire.arrived(answer_of(result=result, strange=_strange(tool, said["name"], listed, result)))


def _refused(wire: Wire) -> None:
    """An error came, as it was heard: the SDK makes errors up, by the status or of what it cannot read."""
    said = wire.reply
    if said is not None and said.error is None:
        wire.doubts("an answer came that cannot be read")
    elif said is not None and said.error is not None and said.error["code"] not in _LOCAL:
        wire.arrived(answer_of(error={name: said.error[name] for name in ("code", "message")}))


def _strange(tool: Tool, name: str, listed: Mapping[str, Any] | None, result: Mapping[str, Any]) -> str:
    """Why a result is not what the server's own schema declares; nothing where it is.

    Only of a definition that is pinned: a schema nobody has looked at may take for ever to be held against.
    """
    schema = (listed or {}).get("outputSchema")
    server = tool.dependency.mcp
    pinned = tool.mcp is not None and tool.mcp.name == name and tool.mcp.definition is not None
    pinned = pinned or (server is not None and name in server.pins)
    whole = result.get("resultType", "complete") == "complete" and not result.get("isError")
    if schema is None or not pinned or not whole:
        return ""
    if "structuredContent" not in result:
        return "it has no structured content"
    try:
        from jsonschema.exceptions import best_match
        from jsonschema.validators import validator_for
        from referencing import Registry

        # An empty registry: a $ref leads nowhere but into the schema itself.
        validator: Any = validator_for(schema)(schema, registry=Registry())
        wrong: Any = best_match(validator.iter_errors(result["structuredContent"]))
    except Exception as error:  # noqa: BLE001 - of a schema that cannot be used nobody knows what it declares
        return sanitize(f"its schema cannot be used: {type(error).__name__}", 200)
    return "" if wrong is None else sanitize(wrong.message, 200)


async def _in_time(job: asyncio.Future[None], wire: Wire, seconds: float) -> None:
    """Return once the answer is here, the session has ended, or the time is over; see `http._in_time`."""
    answered = asyncio.ensure_future(wire.answered.wait())
    both: set[asyncio.Future[Any]] = {job, answered}
    try:
        await asyncio.wait(both, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        passes = 0
        while wire.touched and not job.done() and not wire.answered.is_set() and passes < ARRIVED_PASSES:
            await asyncio.sleep(0)
            passes += 1
    finally:
        answered.cancel()


async def _left(job: asyncio.Future[None], wire: Wire, process: ServerProcess | None) -> None:
    """End a session: one that has its answer may close in peace, for what is left of a moment; others now."""
    peace = min(CLOSE_S, max(0.0, wire.until - boottime())) if wire.response is not None else 0.0
    until = boottime() + peace
    if peace and not job.done():
        await asyncio.wait({job}, timeout=peace)
    wire.closed = True
    if process is not None:
        await process.end(within_s=until - boottime())
    if not job.done():
        job.cancel()
        await asyncio.wait({job}, timeout=CLOSE_S)
    if not job.done():
        log.error("a session with an MCP server did not end; it holds its task until it does")


def _judged(wire: Wire, failure: BaseException | None, seconds: float, said: str) -> Sent:
    if wire.doubt and wire.touched:
        return Lost("doubtful_answer", wire.doubt, wire.touched, late=wire.late)
    if wire.doubt:
        return NotSent("no_session", f"nothing was sent: {wire.doubt}")
    if wire.response is not None:
        return Answered(wire.response, wire.touched, late=wire.late)
    if wire.bare is not None:
        return Answered(wire.bare, wire.touched, late=wire.late)
    if wire.held_back is not None:
        return wire.held_back
    error = _first(failure)
    if isinstance(error, Held) and not wire.touched:
        return error.why
    code = getattr(getattr(error, "error", None), "code", None)
    late = boottime() >= wire.until
    message = "the session ended" if error is None else f"{type(error).__name__}: {error}"
    message = f"no answer within {seconds:.3f} s" if late else message
    message = sanitize(message if not said else f"{message}; it wrote: {said}", _TOLD_CHARS)
    if wire.touched:
        lost = "timeout" if late else "oversize" if _oversize(wire, error) else _LOCAL.get(code or 0)
        return Lost(lost or "connection_lost", message, wire.touched, late=wire.late)
    if isinstance(error, OutboundRefused):
        return NotSent(error.code, message, retryable=False)
    if isinstance(error, UsageError):
        return NotSent("worker_error", f"nothing was sent: {message}")
    if late:
        return NotSent("connect_timeout", f"nothing was sent: {message}")
    gone = code in _LOCAL or isinstance(error, OSError | httpcore2.NetworkError | httpcore2.TimeoutException)
    return NotSent("connect_failed" if gone else "no_session", f"nothing was sent: {message}")


def _oversize(wire: Wire, error: BaseException | None) -> bool:
    return wire.oversize or isinstance(error, TooMuch)


def _first(error: BaseException | None) -> BaseException | None:
    """What a group of errors began with; the sessions of the SDK end in groups of groups."""
    while isinstance(error, BaseExceptionGroup):
        telling = [e for e in error.exceptions if not isinstance(e, asyncio.CancelledError)]
        error = (telling or list(error.exceptions))[0]
    return error
