"""Connections that go only where they may: a name is resolved once, and what was judged is connected to.

Between the judging of a name and the connection nobody asks for the name again, so one that leads outside
first and inside a moment later (DNS rebinding) leads nowhere. The server is still asked for by its name: Host
and TLS are those of the URL.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from ipaddress import IPv6Address, ip_address
from typing import Any, Final, cast

import httpcore2
import httpx2

from fencepost.outbound import Address, Reach

HEAD_START_S: Final = 0.25
"""What one address of several has before the next is tried beside it: RFC 8305, section 5."""

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""The addresses of a name, best first. Raises OSError where there are none."""


async def resolve(host: str, port: int) -> list[str]:
    """The addresses the system's resolver gives, in its order. Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(place[4][0]) for place in found))


class Transport(httpx2.AsyncBaseTransport):
    """Kept-alive HTTP/1.1 connections to what `reach` admits; no proxy, no retry, no other protocol.

    Raises what httpcore2 raises, and OutboundRefused before anything is connected.
    """

    def __init__(
        self,
        reach: Reach,
        resolver: Resolve,
        verify: ssl.SSLContext,
        *,
        kept: int,
        keepalive_s: float,
        most_bytes: int,
    ) -> None:
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=verify,
            # Slots bound concurrency where work is claimed; a queue here would only eat an attempt's time.
            max_connections=None,
            max_keepalive_connections=kept,
            keepalive_expiry=keepalive_s,
            http1=True,
            http2=False,
            retries=0,
            network_backend=Judged(reach, resolver, most_bytes),
        )

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """See httpx2."""
        answer = await self._pool.handle_async_request(
            httpcore2.Request(
                method=request.method,
                url=httpcore2.URL(
                    scheme=request.url.raw_scheme,
                    host=request.url.raw_host,
                    port=request.url.port,
                    target=request.url.raw_path,
                ),
                headers=request.headers.raw,
                content=cast("AsyncIterable[bytes]", request.stream),
                extensions=request.extensions,
            )
        )
        return httpx2.Response(
            status_code=answer.status,
            headers=answer.headers,
            stream=_Stream(cast("AsyncIterable[bytes]", answer.stream)),
            extensions=answer.extensions,
        )

    async def aclose(self) -> None:
        """Close all connections."""
        await self._pool.aclose()


class _Stream(httpx2.AsyncByteStream):
    def __init__(self, stream: AsyncIterable[bytes]) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._stream:
            yield part

    async def aclose(self) -> None:
        close = getattr(self._stream, "aclose", None)
        if close is not None:
            await close()


class TooMuch(Exception):
    """The answer is longer than anybody wants to know, interim answers and framing included."""


class _Metered(httpcore2.AsyncNetworkStream):
    """A stream of which no answer reads without end: TooMuch beyond `most` bytes since the last write."""

    def __init__(self, stream: httpcore2.AsyncNetworkStream, most: int) -> None:
        self._stream = stream
        self._most = most
        self._read = 0

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109 - as below
        data = await self._stream.read(max_bytes, timeout)
        self._read += len(data)
        if self._read > self._most:
            raise TooMuch(f"more than {self._most} bytes came for one request")
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109 - as below
        self._read = 0
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore2's signature
    ) -> httpcore2.AsyncNetworkStream:
        return _Metered(await self._stream.start_tls(ssl_context, server_hostname, timeout), self._most)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


class Judged(httpcore2.AsyncNetworkBackend):
    """Opens connections to judged addresses only; of each at most `most_bytes` are read after a write."""

    def __init__(self, reach: Reach, resolver: Resolve, most_bytes: int) -> None:
        self._reach = reach
        self._resolve = resolver
        self._most_bytes = most_bytes
        self._backend = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore2's signature
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """A connection to the first address that answers. OutboundRefused if any of them is not admitted."""
        try:
            found = [host] if _numeric(host) else await self._resolve(host, port)
        except OSError as error:
            raise httpcore2.ConnectError(str(error)) from error
        except UnicodeError as error:  # the system's resolver knows no name like this
            raise httpcore2.ConnectError(f"{host} is no name: {error}") from error
        judged = self._reach.judge(host, found)

        async def connect(address: Address) -> httpcore2.AsyncNetworkStream:
            return await self._backend.connect_tcp(
                str(address),
                port,
                timeout=timeout,
                local_address=local_address,
                socket_options=socket_options,
            )

        many = len(judged) > 1
        stream = await (_first(connect, _interleaved(judged)) if many else connect(judged[0]))
        return _Metered(stream, self._most_bytes)

    async def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,  # noqa: ARG002, ASYNC109 - httpcore2's signature
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,  # noqa: ARG002 - as above
    ) -> httpcore2.AsyncNetworkStream:
        """Refused: a request goes to a host."""
        raise httpcore2.ConnectError(f"{path} is no host")

    async def sleep(self, seconds: float) -> None:
        """See httpcore2."""
        await self._backend.sleep(seconds)


def _numeric(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _interleaved(addresses: Sequence[Address]) -> list[Address]:
    """The first of the other family second: a family that leads nowhere costs one head start (RFC 8305)."""
    first = isinstance(addresses[0], IPv6Address)
    other = next((a for a in addresses if isinstance(a, IPv6Address) is not first), None)
    rest = [a for a in addresses[1:] if a is not other]
    return [addresses[0], *([] if other is None else [other]), *rest]


async def _first(
    connect: Callable[[Address], Awaitable[httpcore2.AsyncNetworkStream]], addresses: Sequence[Address]
) -> httpcore2.AsyncNetworkStream:
    """The first connection that is made, each tried a head start after the one before, or at its failure."""
    tried: list[asyncio.Task[httpcore2.AsyncNetworkStream]] = []
    won: asyncio.Task[httpcore2.AsyncNetworkStream] | None = None
    try:
        for address in addresses:
            tried.append(asyncio.ensure_future(connect(address)))
            won = await _won(tried, HEAD_START_S)
            if won is not None:
                return won.result()
        won = await _won(tried, None)
        if won is not None:
            return won.result()
        return tried[-1].result()  # raises: all have failed
    finally:
        await _dropped([one for one in tried if one is not won])


async def _won(
    tried: Sequence[asyncio.Task[httpcore2.AsyncNetworkStream]], seconds: float | None
) -> asyncio.Task[httpcore2.AsyncNetworkStream] | None:
    """The one that is connected, waited for so long, or until the last one tried, or all, have failed."""
    loop = asyncio.get_running_loop()
    until = None if seconds is None else loop.time() + seconds
    while True:
        for one in tried:
            if one.done() and one.exception() is None:
                return one
        pending = [one for one in tried if not one.done()]
        if not pending or (until is not None and (tried[-1].done() or loop.time() >= until)):
            return None
        left = None if until is None else until - loop.time()
        await asyncio.wait(pending, timeout=left, return_when=asyncio.FIRST_COMPLETED)


async def _dropped(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """End what lost; a connection made meanwhile is closed."""
    for task in tasks:
        task.cancel()
    for answer in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(answer, httpcore2.AsyncNetworkStream):
            await answer.aclose()
