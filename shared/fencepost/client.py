"""The producer's and the operator's way in from Python: enqueue runs, look at them, wait, cancel, repair.

Sending is idempotent by run key: the same request again returns the run that is there, another request under
the same key is a `Conflict`. So whatever interrupts a producer, sending the same again is safe. What counts
as the same is judged by the ledger, for every producer alike, by values and not their spelling (1 is 1.0, the
order of keys is none). It takes any planner's name: a run waits for a worker that knows it, until its
deadline.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Self
from uuid import UUID

import psycopg

from fencepost.budgets import Budget
from fencepost.canonical import sanitize
from fencepost.clock import uuid7
from fencepost.errors import Conflict, NotFound, Unreachable, UsageError
from fencepost.ledger import listings
from fencepost.ledger.connect import Connection, Pool
from fencepost.ledger.explain import TRY_AGAIN_STATES, explained
from fencepost.ledger.listings import RunInfo
from fencepost.persons import Persons, as_id
from fencepost.runrequest import RunRequest
from fencepost.settings import load_settings, redact
from fencepost.testing import fault
from fencepost.tools import OnStop

if TYPE_CHECKING:
    from fencepost.app import App
    from fencepost.doorbell import Doorbell
    from fencepost.ledger.signals import Sent
    from fencepost.office import Office

BATCH: Final = 500
"""Runs per statement and transaction at most."""
_BATCH_CHARACTERS: Final = 8 * 1024 * 1024
_TRIES: Final = 5
_TRY_AGAIN_AFTER_S: Final = 0.1  # times a random number
_CONFLICT: Final = "FP409"
_FIRST_LOOK_S: Final = 0.02
_LOOK_EVERY_S: Final = 0.5

_ENQUEUE = """
SELECT e.run, e.created
FROM unnest(%s::text[], %s::text[], %s::text[], %s::integer[], %s::text[], %s::text[]::jsonb[],
            %s::interval[], %s::text[]::jsonb[], %s::text[], %s::uuid[], %s::text[]) WITH ORDINALITY
     AS r (tenant, run_key, planner, version, principal, input, deadline, budget, on_stop, id, trace, n)
CROSS JOIN LATERAL fencepost.enqueue_run(r.tenant, r.run_key, r.planner, r.version, r.principal, r.input,
                                         r.deadline, r.budget, r.on_stop, r.id, r.trace) AS e
ORDER BY r.n
"""


@dataclass(frozen=True, slots=True)
class Enqueued:
    """The run of a request; `created` is False where the same request had been sent before."""

    run_id: UUID
    created: bool


class Client(Persons):
    """A connection to the ledger, opened when it is needed. Close it, or use it as a context manager.

    `dsn` defaults to FENCEPOST_DSN; a producer's login is enough to enqueue and look, `cancel`, `repair`,
    `approve` and `deny` need an operator's. Who may approve is said by the policy that is published for the
    tenant, else by `app`. With `redis_url` (FENCEPOST_REDIS_URL) the relay is woken after each commit; else
    it looks within a quarter of a second. Of a batch that meets another one's rows up to `tries` are made.
    Safe for many threads. Raises `Unreachable`, and `UsageError` for a
    wrong login.
    """

    def __init__(
        self,
        dsn: str | None = None,
        redis_url: str | None = None,
        *,
        pool_size: int = 4,
        app: App | None = None,
        tries: int = _TRIES,
    ) -> None:
        given = {"dsn": dsn, "redis_url": redis_url}
        settings = load_settings(**{name: value for name, value in given.items() if value is not None})
        settings.need("dsn")
        self._dsn = settings.dsn
        self._bell = _doorbell(settings.redis_url)
        self._app = app
        self._tries = tries
        self._by_two = settings.repair_by_two
        self._confirm_within = timedelta(seconds=settings.repair_confirm_s)
        self._pool = Pool(self._dsn, "fencepost client", pool_size)

    def enqueue(
        self,
        planner: str,
        input: Any,  # noqa: A002 - what it is called everywhere
        *,
        run_key: str,
        tenant: str,
        principal: str,
        deadline: timedelta,
        version: int = 1,
        budget: Budget | None = None,
        on_stop: OnStop = OnStop.COMPENSATE,
        tainted: bool = False,
        traceparent: str | None = None,
    ) -> Enqueued:
        """Have a run carried out; returned means committed. `traceparent` says from which trace (W3C).

        UsageError for a request that cannot be, `Conflict` where the run key belongs to another request.
        `Unreachable` says that nothing is known: the run may be there, and the same call again is safe.
        """
        request = RunRequest(
            planner=planner,
            input=input,
            run_key=run_key,
            tenant=tenant,
            principal=principal,
            deadline=deadline,
            version=version,
            budget=budget,
            on_stop=on_stop,
            tainted=tainted,
            traceparent=traceparent,
        )
        (outcome,) = self.enqueue_many([request])
        if isinstance(outcome, Conflict):
            raise outcome
        return outcome

    def enqueue_many(self, requests: Iterable[RunRequest]) -> list[Enqueued | Conflict]:
        """Enqueue any number of requests; one outcome each, in order.

        Sent in batches of at most 500, each one transaction: an error leaves whole batches enqueued, and
        sending everything again is safe. A conflict is that request's outcome and costs the others nothing.
        """
        outcomes: list[Enqueued | Conflict] = []
        for batch in _batches(requests):
            outcomes += self._enqueue(batch)
        return outcomes

    def run(self, run_id: UUID | str) -> RunInfo:
        """Where the run stands. NotFound if there is none."""
        return self._runs([as_id(run_id)])[0]

    def wait(self, run_ids: Iterable[UUID | str], timeout: timedelta) -> list[RunInfo]:
        """Wait until all these runs have ended; where they ended, in order.

        TimeoutError if one has not in time; one that waits for a person does not. NotFound for an unknown id.
        """
        wanted = [as_id(run_id) for run_id in run_ids]
        ended: dict[UUID, RunInfo] = {}
        end, pause = time.monotonic() + timeout.total_seconds(), _FIRST_LOOK_S
        missing = list(dict.fromkeys(wanted))
        while missing:
            found = self._runs(missing)
            ended |= {info.run_id: info for info in found if info.ended}
            missing = [info.run_id for info in found if not info.ended]
            left = end - time.monotonic()
            if missing and left <= 0:
                raise TimeoutError(f"{_unended(found)} after {timeout}")
            if missing:
                time.sleep(min(pause, left))
                pause = min(2 * pause, _LOOK_EVERY_S)
        return [ended[run_id] for run_id in wanted]

    def signal(self, run_id: UUID | str, name: str, body: Any, *, key: str, sender: str) -> Sent:
        """Send a durable message to a run, which its planner sees at its next turn; returned means committed.

        The same again under its key changes nothing. `Conflict` where the key is another signal's,
        FencepostError once the run stops or has ended.
        """
        from fencepost.ledger.signals import send

        info = self.run(run_id)
        with self._connection() as connection:
            sent = send(connection, info.tenant, info.run_id, key=key, name=name, body=body, sender=sender)
        self._ring()
        return sent

    def close(self) -> None:
        """Let go of Postgres and Redis; the last ring of the doorbell is still sent."""
        self._pool.close()
        if self._bell is not None:
            self._bell.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _connection(self) -> Iterator[Connection]:
        try:
            with self._pool.connection() as connection:
                yield connection
        except psycopg.Error as error:
            raise explained(error, self._dsn) from error

    def _runs(self, wanted: Sequence[UUID]) -> list[RunInfo]:
        with self._connection() as connection:
            found = {info.run_id: info for info in listings.runs_by_id(connection, wanted)}
        if missing := next((run_id for run_id in wanted if run_id not in found), None):
            raise NotFound(f"there is no run {missing}")
        return [found[run_id] for run_id in wanted]

    @cached_property
    def _office(self) -> Office:
        from fencepost.office import Office  # a producer need not load what decides

        within, ring = self._confirm_within, self._ring
        return Office(self._pool, self._dsn, ring, by_two=self._by_two, confirm_within=within, app=self._app)

    def _ring(self) -> None:
        if self._bell is not None:
            self._bell.ring()

    def _enqueue(self, batch: Sequence[RunRequest]) -> list[Enqueued | Conflict]:
        # In the order of keys: two producers of the same runs wait for each other, but never in a ring.
        order = sorted(range(len(batch)), key=lambda n: (batch[n].tenant, batch[n].run_key))
        sent = self._sent([batch[n] for n in order])
        self._ring()
        outcomes = dict(zip(order, sent, strict=True))
        return [outcomes[n] for n in range(len(batch))]

    def _sent(self, batch: Sequence[RunRequest]) -> list[Enqueued | Conflict]:
        for left in reversed(range(self._tries)):
            try:
                with self._pool.connection() as connection, connection.transaction():
                    outcomes = _halving(connection, batch)
                    fault("enqueue.before_commit")
                fault("enqueue.after_commit")
                return outcomes
            except (psycopg.Error, Unreachable) as error:
                if isinstance(error, Unreachable) or error.sqlstate not in TRY_AGAIN_STATES or not left:
                    raise _safe_again(explained(error, self._dsn)) from error
                time.sleep(_TRY_AGAIN_AFTER_S * random.random())
        raise AssertionError


def _halving(connection: Connection, batch: Sequence[RunRequest]) -> list[Enqueued | Conflict]:
    """Enqueue inside the open transaction; halved at each conflict, until those that cause it stand alone.

    Savepoints only, as long as there is a transaction: else each half would be committed by itself.
    """
    try:
        with connection.transaction():
            rows = connection.execute(_ENQUEUE, _columns(batch)).fetchall()
    except psycopg.Error as error:
        if error.sqlstate != _CONFLICT:
            raise
        if len(batch) == 1:
            return [_conflict(batch[0], error)]
        half = len(batch) // 2
        return _halving(connection, batch[:half]) + _halving(connection, batch[half:])
    return [Enqueued(run, created) for run, created in rows]


def _columns(batch: Sequence[RunRequest]) -> tuple[list[Any], ...]:
    fields = ("tenant", "run_key", "planner", "version", "principal", "input_text", "deadline", "budget_text")
    columns = [[getattr(request, name) for request in batch] for name in fields]
    rest = [str(request.on_stop) for request in batch], [uuid7() for _ in batch]
    return (*columns, *rest, [request.traceparent for request in batch])


def _conflict(request: RunRequest, error: psycopg.Error) -> Conflict:
    holder = error.diag.constraint_name
    return Conflict(
        f"run key {sanitize(request.run_key, 200)} of tenant {sanitize(request.tenant, 100)} is taken by "
        f"another request, that of run {holder} (input, planner, version, principal, deadline, budget and "
        "on_stop count): use another run key, or send what was sent first",
        UUID(holder) if holder else None,
    )


def _safe_again(error: Exception) -> Exception:
    return (
        Unreachable(f"{error}; sending the same again is safe") if isinstance(error, Unreachable) else error
    )


def _batches(requests: Iterable[RunRequest]) -> Iterator[list[RunRequest]]:
    batch: list[RunRequest] = []
    size = 0
    for request in requests:
        if batch and (len(batch) == BATCH or size + len(request.input_text) > _BATCH_CHARACTERS):
            yield batch
            batch, size = [], 0
        batch.append(request)
        size += len(request.input_text)
    if batch:
        yield batch


def _unended(found: Sequence[RunInfo]) -> str:
    left = [info for info in found if not info.ended]
    more = f" and {len(left) - 1} more have" if len(left) > 1 else " has"
    return f"run {left[0].run_id} ({left[0].status}){more} not ended"


def _doorbell(url: str) -> Doorbell | None:
    if not url:
        return None
    from fencepost.doorbell import Doorbell

    try:
        return Doorbell(url)
    except ValueError as error:
        raise UsageError(f"FENCEPOST_REDIS_URL is no address of a Redis: {redact(str(error))}") from None
