"""Streams of events (server-sent events): any number of them cost one look at the ledger, again and again.

A stream holds no session: one statement asks for the last event of all runs that are streamed, and only a run
that has moved has its news read, a page at a time. A stream that nobody reads is given up; what it did not
bring is asked for by `Last-Event-ID`, which is an event's number, at any process of the interface.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from fencepost.ledger import tokens
from fencepost_ops.api import answers, reads
from fencepost_ops.api.problems import Problem, again
from fencepost_ops.api.reads import Key, Page
from fencepost_ops.api.store import PRESENTED, Store

log = logging.getLogger(__name__)

TICK_S: Final = 0.2
"""How long after an event it is sent at most, while Postgres answers at once and the reader reads."""
AWAY_S: Final = 1.0  # between two looks at a Postgres that is away
PAGE: Final = 200
WRITE_S: Final = 30.0
"""Seconds one piece may wait for its reader before the stream is given up."""
AGAIN_MS: Final = 1000  # after which a reader whose stream broke comes back


class Heads:
    """What is known of the runs that are streamed, and who waits for news of them."""

    def __init__(self, store: Store, most: int) -> None:
        self._store = store
        self._most = most
        self._tenants: Counter[str] = Counter()
        self._watched: Counter[Key] = Counter()
        self._tokens: Counter[str] = Counter()
        self._over: frozenset[str] = frozenset()
        self._known: dict[Key, tuple[int, bool]] = {}
        self._news = asyncio.Condition()
        self.draining = False

    @contextmanager
    def admitted(self, tenant: str) -> Iterator[None]:
        """A place for one stream. `Problem` if there is none, or this tenant has half of all."""
        if self._tenants.total() >= self._most or self._tenants[tenant] >= self._most // 2:
            raise again("overloaded", "there are as many streams as there may be; ask again, or by page", 5)
        self._tenants[tenant] += 1
        try:
            yield
        finally:
            self._tenants[tenant] -= 1
            if not self._tenants[tenant]:
                del self._tenants[tenant]

    @contextmanager
    def watched(self, key: Key, token: str) -> Iterator[None]:
        """Look at this run as well, as whoever presents this token may."""
        self._watched[key] += 1
        self._tokens[token] += 1
        try:
            yield
        finally:
            self._tokens[token] -= 1
            if not self._tokens[token]:
                del self._tokens[token]
            self._watched[key] -= 1
            if not self._watched[key]:
                del self._watched[key]
                self._known.pop(key, None)

    async def beyond(self, key: Key, seq: int, token: str, within_s: float) -> None:
        """Wait for an event after this number, the end of run or token, or the drain; no longer than this."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s), self._news:
                await self._news.wait_for(lambda: self.draining or self.over(token) or self._moved(key, seq))

    def over(self, token: str) -> bool:
        """Whether this token has been revoked or has expired, as of the last look."""
        return token in self._over

    def _moved(self, key: Key, seq: int) -> bool:
        last, ended = self._known.get(key, (0, False))
        return last > seq or ended

    async def run(self) -> None:
        """Look, for as long as this process lives."""
        while True:
            pause = TICK_S
            if wanted := list(self._watched):
                presented = frozenset(self._tokens)
                PRESENTED.set(",".join(sorted(presented)))
                try:
                    found, living = await self._store.read(
                        lambda session, of=wanted: (reads.heads(session, of), tokens.living(session))  # type: ignore[misc]
                    )
                except Problem:
                    pause = AWAY_S
                except Exception:  # whoever looks for all of them goes on
                    log.exception("%d streams are not looked for", len(wanted))
                    pause = AWAY_S
                else:
                    now = {key: head for key, head in found.items() if key in self._watched}
                    await self._tell(now, presented - living)
            await asyncio.sleep(pause)

    async def _tell(self, found: dict[Key, tuple[int, bool]], over: frozenset[str]) -> None:
        if over == self._over and all(self._known.get(key) == head for key, head in found.items()):
            return
        async with self._news:
            self._known.update(found)
            self._over = over
            self._news.notify_all()

    async def drain(self) -> None:
        """Tell every stream that this process ends."""
        async with self._news:
            self.draining = True
            self._news.notify_all()


class Stream(Response):
    """One stream, for as long as its token counts: one that ended is seen with the next look."""

    def __init__(
        self,
        heads: Heads,
        store: Store,
        key: Key,
        after: int,
        token: str,
        *,
        heartbeat_s: float,
    ) -> None:
        self.background = None
        self._heads, self._store, self._key = heads, store, key
        self._after = after
        self._heartbeat_s = heartbeat_s
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI's
        """Send until the run has ended, the reader has gone, or this process drains."""
        with self._heads.admitted(self._key[0]), self._heads.watched(self._key, self._token):
            sending = asyncio.ensure_future(self._send(send))
            gone = asyncio.ensure_future(_gone(receive))
            try:
                await asyncio.wait({sending, gone}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                gone.cancel()
                if not sending.done():
                    sending.cancel()
                await asyncio.gather(sending, gone, return_exceptions=True)
            if not sending.cancelled() and (error := sending.exception()) is not None:
                raise error

    async def _send(self, send: Send) -> None:
        headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"x-accel-buffering", b"no"),  # a proxy must not gather them
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        try:
            async for piece in self._pieces():
                async with asyncio.timeout(WRITE_S):
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
        except TimeoutError:
            log.info("a stream is given up: nobody reads it")
            return
        await send({"type": "http.response.body", "body": b""})

    async def _pieces(self) -> AsyncIterator[bytes]:
        yield f"retry: {AGAIN_MS}\n\n".encode()
        checked = time.monotonic()
        while True:
            if self._heads.over(self._token):
                yield b"event: revoked\ndata: {}\n\n"
                return
            page = await self._page()
            if page is not None:
                for event in page.events:
                    yield answers.frame(event)
                    self._after = event.seq
                if page.over(self._after):
                    yield answers.last_frame(page)
                    return
                more = bool(page.events) and self._after < page.seq
                if more and time.monotonic() - checked < self._heartbeat_s:
                    continue
            if time.monotonic() - checked >= self._heartbeat_s:
                checked = time.monotonic()
                yield b": still here\n\n"
            await self._heads.beyond(self._key, self._after, self._token, self._heartbeat_s)
            if self._heads.draining:
                yield b"event: drain\ndata: {}\n\n"
                return
            if page is None:  # Postgres is away: the heads may be known, their events are not to be had
                await asyncio.sleep(AWAY_S)

    async def _page(self) -> Page | None:
        tenant, run = self._key
        with suppress(Problem):
            return await self._store.read(
                lambda session: reads.events(session, tenant, run, self._after, PAGE)
            )
        return None


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
