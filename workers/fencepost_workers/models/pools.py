"""Connections for a thousand requests at a time: many small pools, since one large pool walks all of its
requests for each of them. What is read of one answer is bounded, and read as it comes: uncompressed.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Final

import httpx2

from fencepost_workers.models.answers import TooLong

POOL_SIZE: Final = 8
"""Requests at a time in one pool."""
MAX_BYTES: Final = 64 * 1024 * 1024
"""Of one answer as it comes: some hundred bytes for each token, of the longest answers there are."""
MAX_ERROR_BYTES: Final = 1024 * 1024
KEEPALIVE_S: Final = 2.0
"""Shorter than servers keep idle connections, so that we rarely write into one that was just closed."""


class _Pool:
    """A pool and how many requests it carries."""

    def __init__(self, context: ssl.SSLContext) -> None:
        limits = httpx2.Limits(
            max_connections=None, max_keepalive_connections=POOL_SIZE, keepalive_expiry=KEEPALIVE_S
        )
        self.transport = httpx2.AsyncHTTPTransport(
            verify=context, trust_env=False, http1=True, http2=False, limits=limits, retries=0
        )
        self.carries = 0


class _Stream(httpx2.AsyncByteStream):
    """An answer's body, whose end makes room in its pool. Of an error's no more than its limit is read."""

    def __init__(self, stream: httpx2.AsyncByteStream, pool: _Pool, *, error: bool) -> None:
        self._stream = stream
        self._pool: _Pool | None = pool
        self._error = error

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = MAX_ERROR_BYTES if self._error else MAX_BYTES
        async for part in self._stream:
            yield part[:left]
            if (left := left - len(part)) >= 0:
                continue
            if self._error:  # its beginning says enough
                return
            raise TooLong(f"the answer has more than {MAX_BYTES} bytes")

    async def aclose(self) -> None:
        """Close it, and count it out once."""
        if (pool := self._pool) is not None:
            self._pool = None
            pool.carries -= 1
        await self._stream.aclose()


class Pools(httpx2.AsyncBaseTransport):
    """A transport without a limit of its own. Used on one event loop."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._context = context
        self._pools: list[_Pool] = []

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """The answer, of whichever pool has room."""
        pool = self._free()
        pool.carries += 1
        try:
            response = await pool.transport.handle_async_request(request)
        except BaseException:
            pool.carries -= 1
            raise
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _Stream(response.stream, pool, error=response.status_code >= 300)
        # Nobody asked for a compressed one, of which a few bytes can be gigabytes: it stays unread as it is.
        response.headers.pop("content-encoding", None)
        return response

    def _free(self) -> _Pool:
        # The first that has room: the later ones fall idle, and their connections expire.
        for pool in self._pools:
            if pool.carries < POOL_SIZE:
                return pool
        self._pools.append(_Pool(self._context))
        return self._pools[-1]

    async def aclose(self) -> None:
        """Close all connections."""
        pools, self._pools = self._pools, []
        for pool in pools:
            with suppress(httpx2.HTTPError):
                await pool.transport.aclose()
