"""Work on the ledger for an event loop: in a bounded number of threads and sessions, none of them kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import ContextVar, copy_context
from typing import Final, TypeVar

import psycopg

from fencepost.client import Client
from fencepost.errors import Conflict, FencepostError, NotFound, Unreachable, UsageError
from fencepost.ledger.connect import Connection, Pool
from fencepost.ledger.explain import TRY_AGAIN_STATES, explained
from fencepost.ledger.signals import Deaf
from fencepost.settings import Settings
from fencepost_ops.api.problems import Problem, again

T = TypeVar("T")

NAME: Final = "fencepost api"
WAITING: Final = 20
"""Pieces of work that may wait, for each that can be in hand; more is refused, not queued."""
AWAY_S: Final = 1.0


PRESENTED: Final[ContextVar[str]] = ContextVar("presented", default="")
"""The tokens that whoever asks has presented: Postgres lets its rows be seen by no others."""


class _Presenting(Client):
    """A client whose sessions present them."""

    def __init__(self, dsn: str, redis_url: str, *, pool_size: int, tries: int) -> None:
        super().__init__(dsn, redis_url, pool_size=pool_size, tries=tries)
        self._pool.close()
        self._pool = Pool(dsn, "fencepost client", pool_size, presents=PRESENTED.get)


class Store:
    """The ledger, as requests use it. Every piece of work is short: no session outlives it (R8)."""

    def __init__(self, settings: Settings) -> None:
        at_once = max(2, settings.pool_size)
        self._dsn = settings.dsn
        self._most = at_once * (1 + WAITING)
        self._threads = ThreadPoolExecutor(at_once, thread_name_prefix="ledger")
        self._reading = Pool(settings.dsn, NAME, at_once - at_once // 2, presents=PRESENTED.get)
        # Once: whoever asked is told at once that another is at it, and asks again himself.
        self.client = _Presenting(settings.dsn, settings.redis_url, pool_size=at_once // 2, tries=1)
        self._asked = 0
        self._away_until: float | None = None

    async def read(self, question: Callable[[Connection], T]) -> T:
        """The answer to a question, each statement of which is a transaction of its own."""
        return await self.do(lambda: self._read(question))

    def _read(self, question: Callable[[Connection], T]) -> T:
        with self._reading.reading() as connection:
            return question(connection)

    async def do(self, work: Callable[[], T]) -> T:
        """What the work gives. Raises `Problem` for whatever the ledger has against it."""
        if self._asked >= self._most:
            raise again("overloaded", "more requests wait than can be answered soon; ask again")
        loop = asyncio.get_running_loop()
        self._look_first(loop.time())
        self._asked += 1  # until the work has ended, also where nobody waits for it any more
        future = self._threads.submit(copy_context().run, work)
        future.add_done_callback(lambda _: soon(loop, self._done))
        try:
            answer = await asyncio.wrap_future(future)
        except (FencepostError, psycopg.Error) as error:
            problem = self._problem(error)
            self._away_until = loop.time() + AWAY_S if problem.code == "unavailable" else None
            raise problem from error
        self._away_until = None
        return answer

    def _look_first(self, now: float) -> None:
        """While Postgres is away one request a second looks whether it is back; the others are told at once,
        instead of waiting for it one behind the other.
        """
        if self._away_until is None:
            return
        if now < self._away_until:
            raise unavailable()
        self._away_until = now + AWAY_S

    def _done(self) -> None:
        self._asked -= 1

    def _problem(self, error: Exception) -> Problem:
        if not isinstance(error, psycopg.Error):
            return problem(error)
        told = explained(error, self._dsn)
        told.__cause__ = error
        return problem(told)

    def close(self) -> None:
        """Let what is in hand end, and close all sessions."""
        self._threads.shutdown(wait=True, cancel_futures=True)
        self._reading.close()
        self.client.close()


def soon(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    """Have the loop make this call; nothing if it has ended."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(call)


def unavailable() -> Problem:
    """What a request is told while Postgres is away."""
    return again("unavailable", "the ledger cannot be reached; sending the same again is safe", 2)


def problem(error: Exception) -> Problem:
    """One of our errors as the problem a producer is told. Whatever names a server or a login is not told."""
    if isinstance(error, Conflict):
        return Problem("idempotency_conflict", str(error))
    if isinstance(error, Deaf):
        return Problem("run_ended", str(error))
    cause = error.__cause__
    state = cause.sqlstate if isinstance(cause, psycopg.Error) else None
    if state in TRY_AGAIN_STATES:
        return again("idempotency_in_flight", "the same request, or one on the same run, is under way")
    if state == "FP422":
        return Problem("invalid_request", str(error))
    if isinstance(error, Unreachable):
        return unavailable()
    if isinstance(error, NotFound) and state == "FP404":
        return Problem("not_found", str(error))
    if type(error) is UsageError and error.__cause__ is None:  # it was refused before anything was asked
        return Problem("invalid_request", str(error))
    raise error
