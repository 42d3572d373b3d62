"""The engine that puts stored requests on the wire: once each, within the attempt's time, counted.

No retries, no redirects, no cookies, no proxies from the environment, and only to where the dependency may go
(`fencepost.outbound`): a redirect is an answer like any other, and what came with the request goes nowhere
else. The engine says what happened to the request and judges nothing: `fencepost.outcomes` holds the answer
against the contract.
"""

import asyncio
import os
import ssl
import zlib
from collections import Counter
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from functools import cache
from http.cookiejar import CookieJar, DefaultCookiePolicy
from types import TracebackType
from typing import Any, Final, Literal, Self

import httpcore2
import httpx2

from fencepost.canonical import sanitize
from fencepost.clock import boottime, rfc3339
from fencepost.errors import FaultInjected
from fencepost.outbound import Outbound, OutboundRefused, Reach
from fencepost.outcomes import Answered, Lost, NotSent, Sent
from fencepost.telemetry.names import TRACEPARENT
from fencepost.testing import fault
from fencepost.tools import Response, StoredRequest
from fencepost_workers import forks
from fencepost_workers.tools.connections import Resolve, TooMuch, Transport, resolve

MAX_RESPONSE_BYTES: Final = 1024 * 1024
MAX_HEAD_BYTES: Final = 100 * 1024  # httpcore2's limit of what h11 holds of an unfinished part
POOL_SIZE: Final = 4  # requests at a time in one pool of connections
KEEPALIVE_S: Final = 2.0
"""Shorter than servers keep idle connections, so that we rarely write into one that was just closed."""

UNREPEATED_KEEPALIVE_S: Final = 0.2
"""The same for a request that nobody could ask about or repeat, so that a closing server loses none."""

ARRIVED_PASSES: Final = 50
"""Turns of the event loop in which an answer that lies in the socket is read, a mebibyte of it too."""
ARRIVED_S: Final = 1.0
"""What these turns may take, lest an answer that never ends makes an attempt last."""
FRAMING: Final = 2
"""An answer's bytes on the wire before those it holds, at most: heads, interim answers, chunks."""

_TOLD_CHARS: Final = 4000
"""Of a transport's error. Long enough for a credential it may quote to be whole, so that it can be hidden."""

Kind = Literal["effect", "lookup"]


class _Oversize(Exception):
    def __init__(self, most: int, begun: Response) -> None:
        super().__init__(f"the answer is longer than {most} bytes")
        self.begun = begun


class _TooLate(Exception):
    pass


class _Wire:
    """What the transport reported of one sending, and the last look at the clock before its bytes leave.

    Whatever it reports but connecting counts as bytes sent. The transport awaits every report before it goes
    on, so a report that raises holds back what it announces.
    """

    def __init__(self, until: float, kind: Kind, pid: int, *, has_body: bool) -> None:
        self._pid = pid
        self.connecting = False
        self.requests = 0
        self.held_back: NotSent | None = None
        self.late = False
        self._until = until
        self._kind = kind
        self._has_body = has_body
        self._other = False
        self._stream: Any = None

    async def __call__(self, event: str, info: Mapping[str, Any]) -> None:
        forks.ours(self._pid)  # its sockets are its parent's
        if self.held_back is not None:
            return
        if event.startswith("connection."):
            self.connecting = True
            if event == "connection.connect_tcp.complete":
                self._stream = info["return_value"]
            return
        if event.endswith(".send_request_headers.started"):
            self._hold_back()
            self.requests += 1
        elif event.endswith(".send_request_body.started") and self._has_body and self._late():
            raise _TooLate  # half a request has left; the other half would complete it
        elif event.endswith(f".send_request_{'body' if self._has_body else 'headers'}.complete"):
            # It may have stood still between its look at the clock and the bytes.
            self.late = self.late or self._late()
        self._other = True

    def _hold_back(self) -> None:
        """The process may have stood still since the attempt began: in a look-up of a name, a handshake."""
        try:
            if self._kind == "effect":
                fault("dispatch.before_wire")
        except FaultInjected as error:
            self.held_back = NotSent("worker_error", f"nothing was sent: {error}")
            raise
        if self._late():
            self.held_back = NotSent("deadline_passed", "the attempt's time was over before a byte was sent")
            raise _TooLate
        forks.ours(self._pid)  # nothing comes between this and the first byte

    def _late(self) -> bool:
        return boottime() >= self._until

    @property
    def touched(self) -> int:
        """Requests of which at least a byte may have left."""
        return max(self.requests, int(self._other))

    async def drop_unused(self) -> None:
        """Close a connection that was opened and never written to: one cancelled in a handshake leaks."""
        if self._stream is not None and not self.touched:
            await self._stream.aclose()


@cache
def _context(verify: bool) -> ssl.SSLContext:
    """The certificates that are trusted, read once: that takes tens of milliseconds."""
    return httpx2.create_ssl_context(verify=verify, trust_env=False)


class _Pools:
    """Connections in several small pools: a pool walks through all of its connections for each request.

    The first that is not full serves, so that few requests at a time find few connections, kept alive. Those
    of another reach are never used: what one dependency may connect to another may not.
    """

    def __init__(
        self, resolver: Resolve, verify: ssl.SSLContext, keepalive_s: float, most_bytes: int
    ) -> None:
        self._resolver = resolver
        self._verify = verify
        self._keepalive_s = keepalive_s
        self._most_bytes = most_bytes
        self._clients: list[httpx2.AsyncClient] = []
        self._kinds: list[tuple[Reach, float]] = []
        self._busy: list[int] = []

    @contextmanager
    def least(self, reach: Reach, *, unrepeated: bool) -> Iterator[httpx2.AsyncClient]:
        """A client for one request; one more where all of this reach are full.

        For one that is `unrepeated`, among those whose connections were used a moment ago or are new.
        """
        kept = min(self._keepalive_s, UNREPEATED_KEEPALIVE_S) if unrepeated else self._keepalive_s
        kind = (reach, kept)
        free = (n for n, busy in enumerate(self._busy) if busy < POOL_SIZE and self._kinds[n] == kind)
        number = next(free, len(self._busy))
        if number == len(self._busy):
            self._clients.append(self._client(*kind))
            self._kinds.append(kind)
            self._busy.append(0)
        self._busy[number] += 1
        try:
            yield self._clients[number]
        finally:
            self._busy[number] -= 1

    def _client(self, reach: Reach, keepalive_s: float) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(
            transport=Transport(
                reach,
                self._resolver,
                self._verify,
                kept=POOL_SIZE,
                keepalive_s=keepalive_s,
                most_bytes=self._most_bytes,
            ),
            timeout=None,  # the attempt's time is the only one; the library's own is five seconds
            trust_env=False,
            follow_redirects=False,
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
        )

    async def aclose(self) -> None:
        """Close all of them."""
        for client in self._clients:
            await client.aclose()


class HttpEngine:
    """Sends stored requests over kept-alive connections; of one event loop, closed by `aclose`.

    `requests_sent` counts what went on the wire, by kind. An answer longer than `max_response_bytes` is lost,
    and so is one whose head is longer than 100 KiB (h11's own limit), or that takes more on the wire than
    twice the one and the other. What came packed by gzip or deflate is unpacked, within the same length.
    """

    def __init__(
        self,
        *,
        max_response_bytes: int = MAX_RESPONSE_BYTES,
        keepalive_s: float = KEEPALIVE_S,
        verify: ssl.SSLContext | bool = True,
        resolver: Resolve = resolve,
    ) -> None:
        self.requests_sent: Counter[Kind] = Counter()
        self._pid = os.getpid()
        self._max_response_bytes = max_response_bytes
        trusted = verify if isinstance(verify, ssl.SSLContext) else _context(verify)
        most = FRAMING * (max_response_bytes + MAX_HEAD_BYTES)
        self._pools = _Pools(resolver, trusted, keepalive_s, most)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close all connections; sendings in progress are lost."""
        await self._pools.aclose()

    async def send(
        self,
        stored: StoredRequest,
        *,
        allowed: Outbound,
        key: str | None,
        deadline: datetime,
        until: float,
        correlation: Mapping[str, str],
        headers: Sequence[tuple[str, str]] = (),
        capability: tuple[str, str] | None = None,
        kind: Kind = "effect",
        unrepeated: bool = False,
    ) -> Sent:
        """Send the stored bytes once and say what happened; raises nothing but cancellation.

        Added headers: `Idempotency-Key` unless the stored request has one, `Fencepost-Deadline`,
        `Fencepost-<Name>` for each name in `correlation` (run, call, attempt, fence; `traceparent` has its
        own name), and the dependency's own `headers`, which are not stored and go to none but its own
        places; the header of the `capability` is for this request alone and goes with it.
        Where it may go is what `allowed` says, its addresses included; elsewhere nothing is sent.
        `until` is when the attempt's time ends, by `boottime()`, over all phases together; a request that
        would begin to leave after it is held back. NotSent only if no byte of the request can have left; a
        timeout, a reset, half an answer or too long a one is Lost. One that is `unrepeated` goes over no
        connection that was idle for longer than `UNREPEATED_KEEPALIVE_S`.
        """
        timeout = until - boottime()
        if timeout <= 0:
            return NotSent("deadline_passed", "the attempt had no time left")
        forks.ours(self._pid)
        wire = _Wire(until, kind, self._pid, has_body=bool(stored.body))
        ours = _added_headers(None if _carries_key(stored) else key, deadline, correlation)
        ours += [] if capability is None else [capability]
        try:
            target = allowed.admit(stored.target)
            theirs = headers if allowed.trusts(target) else ()
            request = _request(stored, [*stored.headers, *theirs, *ours], wire)
            exchange = self._exchange(request, allowed.reach(target), unrepeated)
            return Answered(await _in_time(exchange, timeout, wire), wire.touched, late=wire.late)
        except Exception as error:  # noqa: BLE001 - every way of failing is either before the wire or unknown
            return _failed(error, wire, timeout)
        finally:
            self.requests_sent[kind] += wire.touched
            await wire.drop_unused()

    async def _exchange(self, request: httpx2.Request, reach: Reach, unrepeated: bool) -> Response:
        with self._pools.least(reach, unrepeated=unrepeated) as client:
            response = await client.send(request, stream=True)
            try:
                body = bytearray()
                async for chunk in response.aiter_raw():
                    body += chunk
                    if len(body) > self._max_response_bytes:
                        raise _Oversize(self._max_response_bytes, _response(response, body))
            finally:
                await response.aclose()
        # In UTF-8 before anybody looks for credentials in it: they are not found in UTF-16.
        return _decoded(_response(response, body), self._max_response_bytes).in_utf8()


def _decoded(answer: Response, most: int) -> Response:
    """The answer without its gzip or deflate, which came though identity was asked for; another as it is.

    Raises `_Oversize` for what is longer than `most` then: no more of it is ever unpacked.
    """
    if answer.headers.get("content-encoding", "").strip().lower() not in {"gzip", "x-gzip", "deflate"}:
        return answer
    for window in (32 + zlib.MAX_WBITS, -zlib.MAX_WBITS):  # gzip or zlib by its head; deflate without one
        unpacking = zlib.decompressobj(window)
        with suppress(zlib.error):
            body = unpacking.decompress(answer.body, most + 1)
            if len(body) > most:
                raise _Oversize(most, replace(answer, body=body[:most]))
            if unpacking.eof:
                return replace(answer, body=body)
    return answer


async def _in_time(exchange: Coroutine[Any, Any, Response], seconds: float, wire: _Wire) -> Response:
    """The answer if it is here in time; raises TimeoutError, and what the exchange raises.

    A process that was frozen past its time wakes with the timer due and the answer in its socket. What has
    arrived is read before giving up: a fenced-out worker may still file it as evidence (R9). One that woke
    before anything was sent gets no further.
    """
    task = asyncio.ensure_future(exchange)
    try:
        await asyncio.wait({task}, timeout=seconds)
        passes, until = 0, boottime() + ARRIVED_S
        while wire.touched and not task.done() and passes < ARRIVED_PASSES and boottime() < until:
            await asyncio.sleep(0)
            passes += 1
        if not task.done():
            raise TimeoutError
        return task.result()
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task})


def _failed(error: Exception, wire: _Wire, seconds: float) -> Sent:
    if wire.held_back is not None:
        return wire.held_back
    message = sanitize(f"{type(error).__name__}: {error}".removesuffix(": "), _TOLD_CHARS)
    timed_out = isinstance(error, TimeoutError | _TooLate)
    if wire.touched:
        code = (
            "timeout"
            if timed_out
            else "oversize"
            if isinstance(error, _Oversize | TooMuch)
            else "connection_lost"
        )
        begun = error.begun if isinstance(error, _Oversize) else None
        message = f"no answer within {seconds:.3f} s" if timed_out else message
        return Lost(code, message, wire.touched, begun, wire.late)
    if isinstance(error, OutboundRefused):
        return NotSent(error.code, sanitize(error, _TOLD_CHARS), retryable=False)
    if isinstance(error, httpcore2.ConnectError | httpcore2.ConnectTimeout):
        return NotSent("connect_failed", message)
    if isinstance(error, httpcore2.UnsupportedProtocol | httpx2.InvalidURL):
        return NotSent("invalid_request", message)
    if timed_out and wire.connecting:
        return NotSent("connect_timeout", f"no connection within {seconds:.3f} s")
    return Lost("timeout" if timed_out else "transport_failed", message, 0)


def _carries_key(stored: StoredRequest) -> bool:
    # Asked of what is stored, not of the tool: a deploy may have changed how it carries its key since.
    return any(name.lower() == "idempotency-key" for name, _ in stored.headers)


def _added_headers(
    key: str | None, deadline: datetime, correlation: Mapping[str, str]
) -> list[tuple[str, str]]:
    added = [("Fencepost-Deadline", rfc3339(deadline))]
    if key is not None:
        added.append(("Idempotency-Key", key))
    return added + [(_header(name), str(value)) for name, value in correlation.items()]


def _header(name: str) -> str:
    return name if name == TRACEPARENT else f"Fencepost-{name.capitalize()}"


def _request(stored: StoredRequest, headers: list[tuple[str, str]], wire: _Wire) -> httpx2.Request:
    if not any(name.lower() == "user-agent" for name, _ in headers):
        headers.append(("User-Agent", "fencepost"))
    headers.append(("Accept-Encoding", "identity"))  # what is read is what was sent, and never a bomb
    content = stored.body or None
    return httpx2.Request(
        stored.method, stored.target, headers=headers, content=content, extensions={"trace": wire}
    )


def _response(response: httpx2.Response, body: bytearray) -> Response:
    return Response(response.status_code, _joined(response.headers.multi_items()), bytes(body))


def _joined(pairs: list[tuple[str, str]]) -> dict[str, str]:
    joined: dict[str, str] = {}
    for name, value in pairs:
        low = name.lower()
        joined[low] = f"{joined[low]}, {value}" if low in joined else value
    return joined
