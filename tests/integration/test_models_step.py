"""Models in a planner worker's process: hundreds of open questions hold no session, and one slow provider
leaves room for others. The real SDK, the sandbox's provider, no Celery.
"""

from collections.abc import Iterator

import psycopg
import pytest
import redis

from fencepost import App, Context, Turn
from fencepost.models import Wire
from fencepost.settings import Settings
from fencepost.states import Queue
from fencepost_ops.database import LedgerDatabase
from fencepost_ops.local import LocalValkey
from fencepost_ops.sandbox.process import SandboxProcess
from fencepost_workers.planner import Planner
from fencepost_workers.step import Step
from fencepost_workers.worker import Worker
from tests.awaiting import until
from tests.integration.step_shop import Deed, Shop

MANY = 500
LIST = 100
WITHIN_S = 60.0
ENQUEUE = """
SELECT count(*) FROM generate_series(1, %s::int) AS n,
    LATERAL fencepost.enqueue_run('t', n || '-' || gen_random_uuid(), %s, 1, 'svc:x', '{}', interval '10 min')
"""
SESSIONS = """
SELECT count(*), count(*) FILTER (WHERE xact_start IS NOT NULL) FROM pg_stat_activity
WHERE application_name = 'fencepost-planner' AND datname = current_database()
"""


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SandboxProcess]:
    with SandboxProcess(tmp_path_factory.mktemp("provider")) as sandbox:
        models = {name: {"turns": [{"text": "Done."}]} for name in ("one", "other", "narrow")}
        sandbox.post("/models/script", {"models": models})
        yield sandbox


def app_at(provider: SandboxProcess) -> App:
    app = App("asking")
    for name, limit in (("one", None), ("other", None), ("narrow", 1)):
        via = app.dependency(name, provider.url, concurrency=limit)
        model = app.model(name, via=via, wire=Wire.MESSAGES, model=name, key="env:ASKING_KEY")
        app.agent(name, model=model, instructions="Answer at once.")

    @app.planner("plain")
    def plain(context: Context) -> Turn:
        return Turn(finish={"done": context.turn})

    return app


class Asking:
    """A planner worker's parts, and its provider, which holds its answers back."""

    def __init__(self, shop: Shop, provider: SandboxProcess) -> None:
        self.shop = shop
        self.provider = provider
        self.step = Step(shop.worker, Planner(shop.worker))

    def start(self, planner: str, count: int) -> int:
        """So many runs, as lists of a broker's messages; how many were begun."""
        before = set(self.shop.due(Queue.PLANNER))
        with psycopg.connect(self.shop.database.dsns["producer"]) as connection:
            connection.execute(ENQUEUE, [count, planner])
        due = [message for message in self.shop.due(Queue.PLANNER) if message not in before]
        return sum([self.step.handle(due[n : n + LIST]) for n in range(0, len(due), LIST)])

    def hold(self, *models: str) -> None:
        for name in models:
            self.provider.post("/models/faults", {"kind": "hold", "at": "headers", "model": name})

    def release(self) -> None:
        self.provider.clear_faults()
        self.provider.post("/models/release", {})

    def open(self) -> int:
        return int(self.provider.get("/models/requests?since=1000000000")["open"])

    def asked(self, model: str) -> int:
        return len(self.provider.get(f"/models/requests?model={model}")["requests"])

    def completed(self, planner: str) -> int:
        found = self.shop.sql(
            "SELECT count(*) FROM fencepost.runs WHERE planner = %s AND status = 'COMPLETED'", planner
        )
        return int(found[0][0])

    def ended(self, planner: str, count: int) -> None:
        until(f"{count} of {planner} are done", lambda: self.completed(planner) == count, WITHIN_S)


@pytest.fixture
def slots() -> int:
    return 4


@pytest.fixture
def asking(
    database: LedgerDatabase,
    valkey: LocalValkey,
    provider: SandboxProcess,
    slots: int,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Asking]:
    monkeypatch.setenv("ASKING_KEY", "any")
    with redis.Redis.from_url(valkey.url()) as client:
        client.flushall()
    settings = Settings(
        dsn=database.dsns["worker"], redis_url=valkey.url(), app="tests.x:y", planner_slots=slots
    )
    worker = Worker(settings, Queue.PLANNER, app_at(provider))
    with psycopg.connect(database.owner, autocommit=True) as owner:
        one = Asking(Shop(database, worker, Deed(), owner), provider)
        try:
            yield one
        finally:
            one.release()
            worker.stop(WITHIN_S)


@pytest.mark.parametrize("slots", [2 * MANY])
def test_five_hundred_open_questions_hold_no_session_and_no_transaction(asking: Asking) -> None:
    asking.hold("one")
    assert asking.start("one", MANY) == MANY
    until("all have asked", lambda: asking.open() == MANY, WITHIN_S)
    until("nothing is in a transaction", lambda: asking.shop.sql(SESSIONS)[0][1] == 0, WITHIN_S)
    sessions, _ = asking.shop.sql(SESSIONS)[0]
    assert 0 < sessions <= asking.shop.worker.settings.pool_size
    assert asking.shop.worker.slots.used == MANY
    asking.start("plain", 1)
    asking.ended("plain", 1)
    asking.release()
    asking.ended("one", MANY)
    assert asking.shop.sql("SELECT sum(requests), max(failures) FROM fencepost.runs") == [(MANY + 1, 0)]


def test_one_slow_provider_leaves_room_to_the_others(asking: Asking) -> None:
    asking.hold("one")
    assert asking.start("one", 6) == 2, "half of the slots; what stands in line holds none"
    until("two have asked", lambda: asking.open() == 2, WITHIN_S)
    asking.start("other", 6)
    asking.start("plain", 6)
    asking.ended("other", 6)
    asking.ended("plain", 6)
    until("only they hold slots", lambda: asking.open() == asking.shop.worker.slots.used == 2, WITHIN_S)
    asking.release()
    asking.ended("one", 6)


def test_a_providers_limit_is_waited_for_without_a_slot_and_without_an_event(asking: Asking) -> None:
    asking.hold("narrow")
    asking.start("narrow", 4)
    until("one has asked", lambda: asking.open() == 1, WITHIN_S)
    until("the others hold no slot", lambda: asking.shop.worker.slots.used == 1, WITHIN_S)
    asking.start("other", 6)
    asking.ended("other", 6)
    asking.release()
    asking.ended("narrow", 4)
    assert asking.shop.sql("SELECT count(*) FROM fencepost.events WHERE type = 'PlanDeferred'") == [(0,)]
    asking.shop.leases_are_free()


def test_a_provider_that_throttles_one_run_is_asked_by_none_until_it_may_be(asking: Asking) -> None:
    shop, asked = asking.shop, asking.asked("other")
    asking.provider.post(
        "/models/faults", {"kind": "status", "status": 429, "retry_after_s": 60, "model": "other"}
    )
    assert asking.start("other", 1) == 1
    assert shop.idle()
    assert asking.start("other", 8) == 0, "they go back"
    deferred = "SELECT body ->> 'reason' FROM fencepost.events WHERE type = 'PlanDeferred'"
    until("all are put off", lambda: len(shop.sql(deferred)) == 8, WITHIN_S)
    assert set(shop.sql(deferred)) == {
        ("dependency other/default is open: http_429, Retry-After 60 s",),
    }
    until("none holds a slot", lambda: shop.worker.slots.used == 0, WITHIN_S)
    assert asking.asked("other") == asked + 1
    shop.ahead(62)  # past what it asked for
    asking.release()

    def gone_on() -> bool:
        shop.ahead(1)  # whoever waits comes at a time of its own
        asking.step.handle(shop.due(Queue.PLANNER))
        return asking.completed("other") == 9

    until("all are done", gone_on, WITHIN_S)
    assert asking.asked("other") == asked + 1 + 9
    assert shop.sql("SELECT sum(requests), max(failures - outages) FROM fencepost.runs") == [(9, 0)]
