"""The SDK's HTTP client on our own transport: judged addresses, one `tools/call`, no redirects."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import httpx2

from fencepost.clock import boottime
from fencepost.mcp import METHOD
from fencepost.tools import Response
from fencepost_workers.tools.connections import TooMuch, Transport

if TYPE_CHECKING:
    from fencepost_workers.tools.mcp_wire import Wire

_BARE_BYTES: Final = 64 * 1024
_JSON: Final = "application/json"
_EVENTS: Final = "text/event-stream"
AFTER_S: Final = 0.25
"""How long a stream that goes on after the answer to a call is heard: most end with it."""


class NoResponse(Exception):
    """An HTTP answer that holds no JSON-RPC response; what it is the wire keeps."""


class McpHttp(httpx2.AsyncBaseTransport):
    """Sends what the SDK asks for, but a `tools/call` only past `Wire.leave`, and nothing once it is closed.

    A redirect is an answer like any other: followed it would be a second call. An answer that is no JSON-RPC
    response is kept as it is, since the SDK makes a JSON-RPC error of it (-32601 of a gateway's 404, say),
    which nobody could tell from one that the server means.
    """

    def __init__(self, inner: Transport, wire: Wire) -> None:
        self._inner = inner
        self._wire = wire

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """See httpx2. Raises NoResponse, and what `Wire.leave` and the transport raise."""
        wire = self._wire
        if wire.closed:
            raise NoResponse("the attempt is over")
        said = _said(await request.aread())
        calls = request.method == "POST" and said.get("method") == METHOD
        if calls:
            request.extensions = {**request.extensions, "trace": _Trace(wire, said.get("id"))}
        else:
            wire.other(said.get("id"))
        answer = await self._inner.handle_async_request(request)
        coded = answer.headers.get("content-encoding", "identity").lower() != "identity"
        if calls and (answer.status_code != 200 or coded):
            return await self._error(answer, coded=coded)
        if not calls and (coded or 300 <= answer.status_code < 400):
            await answer.aclose()
            raise NoResponse(f"the server answered {answer.status_code}" + ", compressed" * coded)
        headers = [(name, value) for name, value in answer.headers.multi_items() if name not in _FRAMED]
        headers += [("content-type", kind)] if (kind := _kind(answer)) else []
        answer.request = request
        return httpx2.Response(answer.status_code, headers=headers, stream=_Heard(answer, wire, calls=calls))

    async def _error(self, answer: httpx2.Response, *, coded: bool) -> httpx2.Response:
        """The answer if it is a JSON-RPC error; else it is kept as it is, and NoResponse raised."""
        body = bytearray()
        async for part in answer.aiter_raw():
            body += part
            if len(body) > _BARE_BYTES:
                break
        await answer.aclose()
        # Of any other kind, or of one without its form, the SDK makes an error of its own by the status.
        readable = not coded and answer.status_code >= 400 and _kind(answer) == _JSON
        if readable and self._wire.heard(bytes(body), alone=True) is not None:
            return httpx2.Response(answer.status_code, headers={"content-type": _JSON}, content=bytes(body))
        headers = {name.lower(): value for name, value in answer.headers.items()}
        self._wire.bare = Response(answer.status_code, headers, bytes(body[:_BARE_BYTES]))
        raise NoResponse(f"the server answered {answer.status_code}")

    async def aclose(self) -> None:
        """Close its connections."""
        await self._inner.aclose()


class _Trace:
    """Told by the transport before it writes; it waits for the answer, so what raises here holds it back."""

    def __init__(self, wire: Wire, ident: object) -> None:
        self._wire = wire
        self._ident = ident

    async def __call__(self, event: str, _info: Mapping[str, Any]) -> None:
        if event.endswith(".send_request_headers.started"):
            self._wire.leave(self._ident)
        elif event.endswith(".send_request_body.started"):
            self._wire.go_on()
        elif event.endswith(".send_request_body.complete"):
            self._wire.left()


class _Heard(httpx2.AsyncByteStream):
    """An answer each message of which is heard before the SDK sees it, in the very form it then sees.

    Notes one that is too long: the SDK takes it for a stream that has ended.
    """

    def __init__(self, answer: httpx2.Response, wire: Wire, *, calls: bool) -> None:
        self._calls = calls
        self._answer = answer
        self._wire = wire

    async def __aiter__(self) -> AsyncIterator[bytes]:
        kind = _kind(self._answer)
        parts = self._events() if kind == _EVENTS else self._whole() if kind == _JSON else self._stream()
        try:
            async for part in parts:
                yield part
        except TooMuch:
            self._wire.oversize = True
            raise

    def _stream(self) -> AsyncIterator[bytes]:
        return self._answer.aiter_raw()

    async def _whole(self) -> AsyncIterator[bytes]:
        body = b"".join([part async for part in self._stream()])
        if self._wire.heard(body) is None and self._calls:
            self._wire.doubts("what came is no answer to the call")
        yield body

    async def _events(self) -> AsyncIterator[bytes]:
        events = aiter(httpx2.EventSource(self._answer, max_event_size=None))
        async for event in events:
            if event.event == "message" and self._wire.heard(event.data) is not None:
                await self._hear_out(events)
            yield _written(event)

    async def _hear_out(self, events: AsyncIterator[httpx2.ServerSentEvent]) -> None:
        """Hear what comes after the answer, until the stream ends; whatever ends it, the answer is here."""
        left = min(AFTER_S, self._wire.until - boottime())
        with suppress(Exception):
            async with asyncio.timeout(left):
                async for event in events:
                    if event.event == "message":
                        self._wire.heard(event.data)

    async def aclose(self) -> None:
        """See httpx2."""
        await self._answer.aclose()


def _written(event: httpx2.ServerSentEvent) -> bytes:
    fields = [("event", event.event), *(("data", line) for line in event.data.split("\n"))]
    fields += [("id", event.id)] if event.id else []
    fields += [("retry", str(event.retry))] if event.retry is not None else []
    return "".join(f"{name}: {value}\n" for name, value in fields).encode() + b"\n"


_FRAMED: Final = frozenset({"content-type", "content-length", "content-encoding", "transfer-encoding"})


def _kind(answer: httpx2.Response) -> str:
    """What an answer is, without parameters: UTF-8 is what the protocol has, whatever a charset says."""
    return answer.headers.get("content-type", "").partition(";")[0].strip().lower()


def _said(body: bytes) -> dict[str, Any]:
    try:
        said = json.loads(body)
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}
