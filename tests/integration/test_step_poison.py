"""One subject of a list that cannot be begun: its neighbours go on at once, and it is tried five times."""

import json
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest
import redis

from fencepost import commands as c
from fencepost.errors import Unreachable
from fencepost.leases import lease_key
from fencepost.ledger import reads
from fencepost.ledger.outbox import Failed, fail
from fencepost.ledger.reads import Prepared
from fencepost.publication import MOST_FAILURES, next_try
from fencepost.states import Queue
from fencepost.telemetry import logs
from fencepost_ops.database import LedgerDatabase
from fencepost_ops.local import LocalValkey
from fencepost_workers.dispatcher import Dispatcher
from fencepost_workers.planner import Planner
from fencepost_workers.role import Held, Message
from fencepost_workers.step import Step
from fencepost_workers.worker import Worker
from tests.integration.step_shop import Shop, opened, replaced

REPUBLISH = timedelta(seconds=15)
KEYS = [f"k{n}" for n in range(32)]
ASIDE = "SELECT failures, dead_at IS NOT NULL, error FROM fencepost.outbox WHERE subject = %s"


@pytest.fixture
def shop(database: LedgerDatabase, valkey: LocalValkey) -> Iterator[Shop]:
    # A small table is read whole, the damaged row with it; in one that has grown each is found by its key.
    with psycopg.connect(database.owner, autocommit=True) as owner:
        for way in ("seqscan", "bitmapscan", "hashjoin", "mergejoin", "material"):
            owner.execute(f"ALTER DATABASE {database.name} SET enable_{way} = off")
    with opened(database, valkey, slots=len(KEYS)) as one:
        yield one


def publish(shop: Shop) -> None:
    """What the relay does when it takes what is due: now, whatever pause there was."""
    shop.sql("UPDATE fencepost.outbox SET publish_count = publish_count + 1, publish_at = fencepost.now()")


class Choosy(Dispatcher):
    """A dispatcher that cannot make a claim of one call: a bug, or data it was not made for."""

    def __init__(self, worker: Worker, bad: UUID, error: Exception) -> None:
        super().__init__(worker)
        self.bad = bad
        self.error = error

    def claim(self, prepared: Prepared, message: Message, term: c.Term, token: str) -> c.ClaimCall | None:
        if message[1] == self.bad:
            raise self.error
        return super().claim(prepared, message, term, token)


def refuse(shop: Shop, bad: UUID) -> None:
    """Postgres refuses any change of this call."""
    shop.sql(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS"
        " $$BEGIN RAISE EXCEPTION 'not this one' USING ERRCODE = 'FP001'; END$$"
    )
    shop.sql(
        "CREATE TRIGGER aaa_refuse BEFORE UPDATE ON fencepost.calls FOR EACH ROW"
        f" WHEN (NEW.id = '{bad}') EXECUTE FUNCTION refuse()"
    )


def corrupt(shop: Shop, bad: UUID) -> None:
    """Postgres cannot read this call back, as after a lost page: whoever asks for it gets an error."""
    shop.sql(
        "CREATE FUNCTION readable(id uuid) RETURNS boolean LANGUAGE plpgsql AS $$BEGIN"
        f" IF id = '{bad}' THEN RAISE EXCEPTION 'missing chunk' USING ERRCODE = 'XX001'; END IF;"
        " RETURN true; END$$"
    )
    shop.sql("ALTER TABLE fencepost.calls ENABLE ROW LEVEL SECURITY")
    shop.sql(
        "CREATE POLICY readable ON fencepost.calls AS RESTRICTIVE USING (readable(id)) WITH CHECK (true)"
    )


def unmade(shop: Shop, bad: UUID) -> Dispatcher:
    return Choosy(shop.worker, bad, ValueError("two\nlines"))


def unread(shop: Shop, bad: UUID) -> Dispatcher:
    corrupt(shop, bad)
    return Dispatcher(shop.worker)


def unwritten(shop: Shop, bad: UUID) -> Dispatcher:
    refuse(shop, bad)
    return Dispatcher(shop.worker)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (unmade, "ValueError: two lines"),
        (unread, "DataCorrupted: missing chunk"),
        (unwritten, "its claim was refused: not this one"),
    ],
)
def test_a_bad_subject_costs_its_neighbours_no_turn_and_is_set_aside_after_five_tries(
    shop: Shop, spoil: Callable[[Shop, UUID], Dispatcher], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.handler.setFormatter(logs.json_lines())
    calls = shop.planned(*KEYS)
    bad = calls[17][1]
    ((run,),) = shop.sql("SELECT run FROM fencepost.outbox WHERE subject = %s", bad)
    step = Step(shop.worker, spoil(shop, bad))
    publish(shop)

    assert step.handle(calls) == len(KEYS) - 1
    assert shop.idle()
    shop.leases_are_free()
    ended = shop.sql("SELECT count(*) FROM fencepost.outbox WHERE queue = 'dispatcher'")
    assert ended == [(1,)], "all others are through"

    for failures in range(1, MOST_FAILURES):
        ((counted, dead, error),) = shop.sql(ASIDE, bad)
        assert (counted, dead) == (failures, False)
        assert error.startswith(said)
        ((pause, count),) = shop.sql(
            "SELECT publish_at - fencepost.now(), publish_count FROM fencepost.outbox WHERE subject = %s", bad
        )
        wanted = next_try(failures, REPUBLISH)
        assert wanted is not None
        assert wanted - timedelta(seconds=10) < pause <= wanted
        assert count == 0, "no queue holds it, so that it is published however long its queue is"
        publish(shop)
        assert step.handle([calls[17]]) == 0
    assert shop.sql(ASIDE, bad)[0][:2] == (MOST_FAILURES, True)
    assert shop.sql(
        "SELECT publish_at = '9999-01-01 00:00+00' FROM fencepost.outbox WHERE subject = %s", bad
    ) == [(True,)]
    lines = [json.loads(line) for line in caplog.text.splitlines() if str(bad) in line]
    assert len(lines) == MOST_FAILURES + 1
    assert {(line["trace_id"], line["run"]) for line in lines} == {(run.hex, str(run))}


def test_one_bad_subject_of_a_list_costs_a_few_questions_more(shop: Shop) -> None:
    calls = shop.planned(*KEYS)
    corrupt(shop, calls[9][1])
    publish(shop)
    asked: list[int] = []
    real = reads.prepare

    def counting(connection: Any, subjects: Sequence[Any]) -> Any:
        asked.append(len(subjects))
        return real(connection, subjects)

    with replaced(reads, "prepare", counting):
        assert Step(shop.worker, Dispatcher(shop.worker)).handle(calls) == len(KEYS) - 1
    assert len(asked) == 11  # 32, 16 16, 8 8, 4 4, 2 2, 1 1
    assert shop.idle()


def test_a_failure_counts_once_for_each_publication(shop: Shop) -> None:
    (call,) = shop.planned("a")
    step = Step(shop.worker, Choosy(shop.worker, call[1], ValueError("no")))
    step.handle([call])  # a forged message: it was never published
    assert shop.sql(ASIDE, call[1])[0][0] == 0
    publish(shop)
    for _ in range(10):
        step.handle([call])  # one message, delivered ten times
    assert shop.sql(ASIDE, call[1])[0][0] == 1


def test_a_row_that_has_moved_on_or_is_being_moved_is_not_blamed(shop: Shop) -> None:
    old, busy = shop.planned("a", "b")
    publish(shop)
    shop.sql("UPDATE fencepost.outbox SET generation = generation + 1 WHERE subject = %s", old[1])
    with psycopg.connect(shop.database.owner) as mover:
        mover.execute("SELECT 1 FROM fencepost.outbox WHERE subject = %s FOR UPDATE", [busy[1]])
        with shop.worker.pool.connection() as connection:
            connection.execute("SET LOCAL lock_timeout = '1ms'")
            assert fail(connection, [Failed(old, "no"), Failed(busy, "no")], REPUBLISH) == []


OUTAGES = (
    Unreachable("Redis is away"),
    psycopg.errors.AdminShutdown("going down"),
    psycopg.errors.LockNotAvailable("busy"),
    ConnectionResetError("reset"),
)


def test_an_outage_is_nobodys_failure(shop: Shop) -> None:
    calls = shop.planned("a", "b")
    step = Step(shop.worker, Dispatcher(shop.worker))
    step._patience.hurry(0)
    for target, name in ((shop.worker.leases, "grant"), (shop.worker.ledger, "apply")):
        for error in OUTAGES:
            publish(shop)
            asked: list[int] = []

            def away(things: Sequence[Any], asked: list[int] = asked, error: Exception = error) -> Any:
                asked.append(len(things))
                raise error

            with replaced(target, name, away):
                assert step.handle(calls) == 0
            assert asked == [2], "and nobody is asked one by one"
    assert shop.sql("SELECT sum(failures) FROM fencepost.outbox") == [(0,)]
    assert shop.idle()
    shop.leases_are_free()
    assert Step(shop.worker, Dispatcher(shop.worker)).handle(calls) == 2
    assert shop.idle()


def test_what_is_no_lease_under_a_leases_key_holds_up_nobody(shop: Shop) -> None:
    calls = shop.planned("a", "b", "c")
    raw: redis.Redis = shop.worker.leases._redis
    key = lease_key(*calls[1][:2])
    raw.hset(f"fencepost:lease:{{{key}}}", "a", "stranger's")
    raw.rpush(f"fencepost:fence:{{{key}}}", "x")
    assert Step(shop.worker, Dispatcher(shop.worker)).handle(calls) == 3
    assert shop.idle()
    shop.leases_are_free()


class Forgetful(Planner):
    """A planner that cannot read one run's context."""

    bad: UUID | None = None

    def gather(self, taken: Sequence[tuple[c.Order, Held]]) -> None:
        if any(isinstance(order, c.Plan) and order.run.id == self.bad for order, _ in taken):
            raise ValueError("cannot be read")
        super().gather(taken)


def test_what_fails_after_its_claim_costs_no_neighbour_its_term_and_is_bounded_by_takeovers(
    shop: Shop,
) -> None:
    planner = Forgetful(shop.worker)
    planner.bad = shop.enqueue("bad")[0]
    shop.enqueue(*KEYS[:7])
    step = Step(shop.worker, planner)
    assert step.handle(shop.due(Queue.PLANNER)) == 7
    assert shop.idle()
    shop.leases_are_free()
    assert len(shop.due(Queue.DISPATCHER)) == 7
    takeovers = 0
    shop.ahead(7)  # a function's time, and its grace
    while due := [m for m in shop.due(Queue.PLANNER) if m[1] == planner.bad]:
        assert takeovers < 10
        assert step.handle(due) == 0
        shop.ahead(7)
        takeovers += 1
    assert takeovers == shop.worker.settings.takeover_limit
    (run,) = shop.sql("SELECT status, stop_reason FROM fencepost.runs WHERE id = %s", planner.bad)
    assert run == ("STOPPED", "planner_failed")
