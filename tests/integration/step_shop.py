"""One worker process's parts with a tool of the tests' own, without Celery and without a relay."""

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import redis
from pydantic import BaseModel

from fencepost import App, Attempt, Context, Contract, Effect, Natural, Turn
from fencepost import commands as c
from fencepost.settings import Settings
from fencepost.states import Queue
from fencepost_ops.database import LedgerDatabase
from fencepost_ops.local import LocalValkey
from fencepost_workers.dispatcher import Dispatcher
from fencepost_workers.planner import Planner
from fencepost_workers.role import Held, Message
from fencepost_workers.step import Step
from fencepost_workers.worker import Worker
from tests.awaiting import until

SECOND = timedelta(seconds=1)
WITHIN_S = 10
ENQUEUE = "SELECT run FROM fencepost.enqueue_run('t', %s, 'note', 1, 'svc:x', '{}', interval '60 s')"


class Note(BaseModel):
    key: str


class Deed:
    """What the tool does: waits for the gate, and counts."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.begun = 0
        self.most = 0
        self.running = 0
        self.error: BaseException | None = None


def noting_app(deed: Deed) -> App:
    app = App("noting")
    place = app.dependency("place", per_attempt=5 * SECOND, grace=SECOND, reserve=SECOND)

    @place.python(
        "note.do", effect=Effect.READ, intent=lambda a: (a.key,), contract=Contract(repeat=Natural())
    )
    async def do(args: Note, attempt: Attempt) -> dict[str, str]:
        deed.begun += 1
        deed.running += 1
        deed.most = max(deed.most, deed.running)
        try:
            await asyncio.get_running_loop().run_in_executor(None, deed.gate.wait, WITHIN_S)
            if deed.error is not None:
                raise deed.error
            return {"noted": args.key}
        finally:
            deed.running -= 1

    @app.planner("note", version=1, timeout=5 * SECOND)
    def note(context: Context) -> Turn:
        if context.call("do") is None:
            return Turn([do.propose(Note(key=context.run_id), call_id="do")])
        return Turn(finish={"done": True})

    app.allow("svc:*", tools=["note.do"])
    return app


@dataclass
class Shop:
    """One worker process's parts, without Celery and without a relay: the test reads the outbox itself."""

    database: LedgerDatabase
    worker: Worker
    deed: Deed
    owner: psycopg.Connection[Any]

    def enqueue(self, *keys: str) -> list[UUID]:
        made = []
        with psycopg.connect(self.database.dsns["producer"]) as connection:
            for key in keys:
                row = connection.execute(ENQUEUE, [key]).fetchone()
                assert row is not None
                made.append(UUID(str(row[0])))
        return made

    def sql(self, statement: str, *args: Any) -> list[Any]:
        cursor = self.owner.execute(statement, args)
        return cursor.fetchall() if cursor.description else []

    def due(self, queue: Queue) -> list[Message]:
        rows = self.sql(
            "SELECT tenant, subject, generation FROM fencepost.outbox"
            " WHERE queue = %s AND due_at <= fencepost.now() ORDER BY due_at, subject",
            str(queue),
        )
        return [(t, s, g) for t, s, g in rows]

    def idle(self) -> bool:
        return self.worker.slots.idle(WITHIN_S)

    def leases(self) -> list[Any]:
        return list(self.worker.leases._redis.scan_iter("fencepost:lease:*"))

    def leases_are_free(self) -> None:
        until("no lease is held", lambda: not self.leases(), WITHIN_S)

    def planned(self, *keys: str) -> list[Message]:
        """Runs of these keys, taken as far as their call; the messages for the dispatcher."""
        self.enqueue(*keys)
        step = Step(self.worker, Planner(self.worker))
        assert step.handle(self.due(Queue.PLANNER)) == len(keys)
        assert self.idle()
        found = self.due(Queue.DISPATCHER)
        assert len(found) == len(keys)
        return found

    def states(self) -> list[str]:
        return [row[0] for row in self.sql("SELECT state FROM fencepost.calls ORDER BY id")]

    def ahead(self, seconds: float) -> None:
        self.sql("UPDATE fencepost.clock SET ahead = ahead + make_interval(secs => %s)", seconds)
        self.sql("UPDATE fencepost.workers SET last_seen = fencepost.now() WHERE ended_at IS NULL")


@contextmanager
def opened(
    database: LedgerDatabase, valkey: LocalValkey, slots: int, app: App | None = None
) -> Iterator[Shop]:
    with redis.Redis.from_url(valkey.url()) as client:
        client.flushall()
    settings = Settings(
        dsn=database.dsns["worker"],
        redis_url=valkey.url(),
        app="tests.x:y",
        slots=slots,
        compensation_s=5,
        planner_grace_s=1,
        worker_ttl_s=10,
    )
    deed = Deed()
    worker = Worker(settings, Queue.DISPATCHER, app or noting_app(deed))
    try:
        with psycopg.connect(database.owner, autocommit=True) as owner:
            yield Shop(database, worker, deed, owner)
    finally:
        deed.gate.set()
        worker.stop(WITHIN_S)


@contextmanager
def replaced(target: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(target, name)
    setattr(target, name, value)
    try:
        yield
    finally:
        setattr(target, name, before)


class Failing(Dispatcher):
    """A dispatcher that fails where the test says."""

    def __init__(self, worker: Worker, at: str, error: BaseException) -> None:
        super().__init__(worker)
        self.at = at
        self.error: BaseException | None = error
        self.claims: list[c.Claim] = []

    def _fail(self, at: str) -> None:
        if at == self.at and self.error is not None:
            raise self.error

    def claim(self, prepared: Any, message: Message, term: c.Term, token: str) -> c.ClaimCall | None:
        self._fail("claim")
        claim = super().claim(prepared, message, term, token)
        assert claim is not None
        self.claims.append(claim)
        return claim

    def gather(self, taken: Sequence[tuple[c.Order, Held]]) -> None:
        self._fail("gather")

    async def act(self, order: c.Order, held: Held) -> c.Command | None:
        self._fail("act")
        return await super().act(order, held)
