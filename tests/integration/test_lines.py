"""One slow dependency in a worker process: its items stand in line, and the others' pass them by."""

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from uuid import UUID

import psycopg
import pytest
from pydantic import BaseModel

from fencepost import App, Attempt, Context, Contract, Effect, Natural, Turn
from fencepost.services import DependencyOptions
from fencepost.states import Queue
from fencepost_ops.database import LedgerDatabase
from fencepost_ops.local import LocalValkey
from fencepost_workers.dispatcher import Dispatcher
from fencepost_workers.planner import Planner
from fencepost_workers.role import Message
from fencepost_workers.step import Step
from fencepost_workers.worker import shares
from tests.awaiting import until
from tests.integration.step_shop import WITHIN_S, Shop, opened

SECOND = timedelta(seconds=1)
SLOTS = 4
ENQUEUE = "SELECT run FROM fencepost.enqueue_run('t', %s, %s, 1, 'svc:x', '{}', interval '60 s')"


class Note(BaseModel):
    key: str


@dataclass
class Doings:
    """What the tools do: wait for a gate, unless their dependency is the quick one, and count."""

    gate: threading.Event = field(default_factory=threading.Event)
    begun: Counter[str] = field(default_factory=Counter)
    running: Counter[str] = field(default_factory=Counter)
    most: Counter[str] = field(default_factory=Counter)

    async def do(self, name: str) -> dict[str, str]:
        self.begun[name] += 1
        self.running[name] += 1
        self.most[name] = max(self.most[name], self.running[name])
        if name not in ("quick", "paced"):
            await asyncio.get_running_loop().run_in_executor(None, self.gate.wait, WITHIN_S)
        self.running[name] -= 1
        return {}


def add(app: App, doings: Doings, name: str, **options: object) -> None:
    """A dependency, its tool, and a planner of the same name that proposes it once."""
    times: DependencyOptions = {"per_attempt": 20 * SECOND, "grace": SECOND, "reserve": SECOND}
    dependency = app.dependency(name, **(times | options))  # type: ignore[arg-type]

    @dependency.python(
        f"{name}.do", effect=Effect.READ, intent=lambda a: (a.key,), contract=Contract(repeat=Natural())
    )
    async def do(args: Note, attempt: Attempt) -> dict[str, str]:
        return await doings.do(name)

    @app.planner(name, version=1)
    def plan(context: Context) -> Turn:
        if context.call("do") is None:
            return Turn([do.propose(Note(key=context.run_id), call_id="do")])
        return Turn(finish={"done": True})

    app.allow("svc:*", tools=[f"{name}.do"])


@pytest.fixture
def doings() -> Doings:
    return Doings()


@pytest.fixture
def shop(database: LedgerDatabase, valkey: LocalValkey, doings: Doings) -> Iterator[Shop]:
    app = App("three")
    add(app, doings, "slow")
    add(app, doings, "quick")
    add(app, doings, "narrow", concurrency=1, slots=SLOTS)
    add(app, doings, "paced", rate=20)
    with opened(database, valkey, SLOTS, app) as one:
        try:
            yield one
        finally:
            doings.gate.set()


def planned(shop: Shop, name: str, count: int) -> list[Message]:
    """So many runs of this planner, taken as far as their call; the messages for the dispatcher."""
    runs: list[UUID] = []
    with psycopg.connect(shop.database.dsns["producer"]) as connection:
        for number in range(count):
            row = connection.execute(ENQUEUE, [f"{name}-{number}", name]).fetchone()
            assert row is not None
            runs.append(row[0])
    before = set(shop.due(Queue.DISPATCHER))
    assert Step(shop.worker, Planner(shop.worker)).handle(shop.due(Queue.PLANNER)) == count
    assert shop.idle()
    return [message for message in shop.due(Queue.DISPATCHER) if message not in before]


def done(shop: Shop, name: str) -> int:
    found = shop.sql(
        "SELECT count(*) FROM fencepost.calls WHERE tool = %s AND state = 'SUCCEEDED'", f"{name}.do"
    )
    return int(found[0][0])


def test_a_slow_dependency_leaves_slots_to_the_others(shop: Shop, doings: Doings) -> None:
    slow, quick = planned(shop, "slow", 10), planned(shop, "quick", 10)
    step = Step(shop.worker, Dispatcher(shop.worker))
    assert step.handle(slow) == 2, "half of the slots; what stands in line holds none"
    until("two have begun", lambda: doings.begun["slow"] == 2, WITHIN_S)
    assert shop.worker.slots.used == 2
    assert step.handle(quick) == 10
    until("the quick ones are done", lambda: done(shop, "quick") == 10, WITHIN_S)
    assert doings.begun["slow"] == 2
    doings.gate.set()
    until("the slow ones are done", lambda: done(shop, "slow") == 10, WITHIN_S)
    assert doings.most["slow"] == 2
    assert shop.idle()
    shop.leases_are_free()


def test_a_message_that_comes_twice_stands_in_line_once(shop: Shop, doings: Doings) -> None:
    slow = planned(shop, "slow", 5)
    step = Step(shop.worker, Dispatcher(shop.worker))
    for _ in range(3):
        step.handle(slow)
    doings.gate.set()
    until("all are done", lambda: done(shop, "slow") == 5, WITHIN_S)
    assert doings.begun["slow"] == 5


def test_a_drain_hands_back_who_stands_in_line(shop: Shop, doings: Doings) -> None:
    slow = planned(shop, "slow", 6)
    step = Step(shop.worker, Dispatcher(shop.worker))
    shop.sql("UPDATE fencepost.outbox SET publish_at = fencepost.now() + interval '1 h', publish_count = 1")
    step.handle(slow)
    until("two have begun", lambda: doings.begun["slow"] == 2, WITHIN_S)
    shop.worker.drain()
    fresh = "SELECT count(*) FROM fencepost.outbox WHERE queue = 'dispatcher' AND publish_count = 0"
    until("four are handed back", lambda: shop.sql(fresh) == [(4,)], WITHIN_S)
    doings.gate.set()
    assert shop.idle()
    assert doings.begun["slow"] == 2


def test_a_limit_of_the_fleet_is_waited_for_without_a_slot_and_without_an_event(
    shop: Shop, doings: Doings
) -> None:
    narrow, quick = planned(shop, "narrow", 5), planned(shop, "quick", 5)
    step = Step(shop.worker, Dispatcher(shop.worker))
    step.handle(narrow)
    until("one has begun", lambda: doings.begun["narrow"] == 1, WITHIN_S)
    until("the others hold no slot", lambda: shop.worker.slots.used == 1, WITHIN_S)
    step.handle(quick)
    until("the quick ones are done", lambda: done(shop, "quick") == 5, WITHIN_S)
    doings.gate.set()
    until("the narrow ones are done", lambda: done(shop, "narrow") == 5, WITHIN_S)
    assert doings.most["narrow"] == 1
    assert shop.sql("SELECT count(*) FROM fencepost.events WHERE type = 'DispatchDeferred'") == [(0,)]


def test_a_rate_is_kept_by_those_who_stand_in_line(shop: Shop, doings: Doings) -> None:
    paced = planned(shop, "paced", 12)
    Step(shop.worker, Dispatcher(shop.worker)).handle(paced)
    until("all are done", lambda: done(shop, "paced") == 12, WITHIN_S)
    started = shop.sql(
        "SELECT recorded_at FROM fencepost.events WHERE type = 'ToolAttemptStarted' ORDER BY 1"
    )
    times = [at for (at,) in started]
    assert times[-1] - times[0] >= 10 / 20 * SECOND, "two at once, then one every twentieth of a second"
    assert shop.sql("SELECT count(*) FROM fencepost.events WHERE type = 'DispatchDeferred'") == [(0,)]


def test_slots_are_shared_out_among_several_dependencies_only() -> None:
    def of(**slots: int | None) -> dict[str, int]:
        app, doings = App("x"), Doings()
        for name, own in slots.items():
            add(app, doings, name, slots=own)
        return shares((tool.dependency for tool in app.registry.values()), 10)

    assert of(one=None) == {"one/default": 10}
    assert of(one=None, two=None) == {"one/default": 5, "two/default": 5}
    assert of(one=8, two=None) == {"one/default": 8, "two/default": 5}
    assert of(one=3) == {"one/default": 3}
    assert of(one=99) == {"one/default": 10}
