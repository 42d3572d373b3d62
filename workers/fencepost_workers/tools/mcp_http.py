"""The SDK's HTTP client on our own transport: judged addresses, one `tools/call`, no redirects."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import httpx2

from fencepost.mcp import METHOD
from fencepost.tools import Response
from fencepost_workers.tools.connections import TooMuch, Transport

if TYPE_CHECKING:
    from fencepost_workers.tools.mcp_wire import Wire

_BARE_BYTES: Final = 64 * 1024


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
        calls = request.method == "POST" and _method(await request.aread()) == METHOD
        if calls:
            request.extensions = {**request.extensions, "trace": _Trace(wire)}
        else:
            wire.others += 1
        answer = await self._inner.handle_async_request(request)
        coded = answer.headers.get("content-encoding", "identity").lower() != "identity"
        if not calls:
            if coded or 300 <= answer.status_code < 400:
                await answer.aclose()
                raise NoResponse(f"the server answered {answer.status_code}" + ", compressed" * coded)
            return answer
        if answer.status_code != 200 or coded:
            await self._unless_error(answer, coded=coded)
        return httpx2.Response(
            answer.status_code, headers=answer.headers, stream=_Watched(answer.stream, wire)
        )

    async def _unless_error(self, answer: httpx2.Response, *, coded: bool) -> None:
        """Return with the body read if it is a JSON-RPC error; else keep it as it is, and raise."""
        body = bytearray()
        async for part in answer.aiter_raw():
            body += part
            if len(body) > _BARE_BYTES:
                break
        if not coded and answer.status_code >= 400 and _is_error(bytes(body)):
            answer.stream = httpx2.ByteStream(bytes(body))
            return
        await answer.aclose()
        headers = {name.lower(): value for name, value in answer.headers.items()}
        self._wire.bare = Response(answer.status_code, headers, bytes(body[:_BARE_BYTES]))
        raise NoResponse(f"the server answered {answer.status_code}")

    async def aclose(self) -> None:
        """Close its connections."""
        await self._inner.aclose()


class _Trace:
    """Told by the transport before it writes; it waits for the answer, so what raises here holds it back."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def __call__(self, event: str, _info: Mapping[str, Any]) -> None:
        if event.endswith(".send_request_headers.started"):
            self._wire.leave()


class _Watched(httpx2.AsyncByteStream):
    """Notes an answer that is too long: the SDK takes it for a stream that has ended."""

    def __init__(self, stream: Any, wire: Wire) -> None:
        self._stream = stream
        self._wire = wire

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for part in self._stream:
                yield part
        except TooMuch:
            self._wire.oversize = True
            raise

    async def aclose(self) -> None:
        """See httpx2."""
        await self._stream.aclose()


def _method(body: bytes) -> object:
    try:
        said = json.loads(body)
    except ValueError:
        return None
    return said.get("method") if isinstance(said, dict) else None


def _is_error(body: bytes) -> bool:
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):
        return False
    return isinstance(said, dict) and isinstance(said.get("error"), dict) and "code" in said["error"]
