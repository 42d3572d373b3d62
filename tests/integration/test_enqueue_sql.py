"""`fencepost.enqueue_run` in a producer's own transaction, beside its own tables: together or not at all."""

import json
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import psycopg
import pytest

from fencepost_ops.database import LedgerDatabase
from fencepost_ops.local import LocalPostgres
from tests.awaiting import until

SHOP = """
CREATE ROLE shop_login LOGIN PASSWORD 'shop-secret' IN ROLE fencepost_producer;
"""
ENQUEUE = "SELECT * FROM fencepost.enqueue_run('shop', %s, 'p', 1, 'svc:shop', %s::jsonb, '5 minutes')"
TRIGGER = """
CREATE FUNCTION shop.ordered() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM fencepost.enqueue_run('shop', NEW.id, 'p', 1, 'svc:shop', to_jsonb(NEW), '5 minutes');
    RETURN NEW;
END $$;
CREATE TRIGGER ordered AFTER INSERT ON shop.orders FOR EACH ROW EXECUTE FUNCTION shop.ordered();
"""

Session = psycopg.Connection[Any]


class Shop:
    """A business of its own in the ledger's database: its login owns one schema and may enqueue, no more."""

    def __init__(self, database: LedgerDatabase, dsn: str) -> None:
        self.database, self.dsn = database, dsn

    @contextmanager
    def session(self, **options: Any) -> Iterator[Session]:
        with psycopg.connect(self.dsn, **options) as opened:
            yield opened

    def order(self, session: Session, key: str, given: Any = 1) -> tuple[UUID, bool]:
        """An order with its run, in the open transaction."""
        session.execute("INSERT INTO shop.orders VALUES (%s)", [key])
        return self.enqueue(session, key, given)

    def enqueue(self, session: Session, key: str, given: Any = 1) -> tuple[UUID, bool]:
        row = session.execute(ENQUEUE, [key, json.dumps(given)]).fetchone()
        assert row is not None
        return row[0], row[1]

    def found(self) -> tuple[list[str], list[str], int]:
        """Orders, run keys and outbox rows there are."""
        with psycopg.connect(self.database.owner, autocommit=True) as owner:
            orders = [row[0] for row in owner.execute("SELECT id FROM shop.orders ORDER BY 1")]
            runs = [row[0] for row in owner.execute("SELECT run_key FROM fencepost.runs ORDER BY 1")]
            row = owner.execute("SELECT count(*) FROM fencepost.outbox").fetchone()
            assert row is not None
            return orders, runs, row[0]

    def waiting(self) -> bool:
        """Whether a session waits for another's lock."""
        statement = (
            "SELECT count(*) FROM pg_stat_activity WHERE usename = 'shop_login' AND wait_event_type = 'Lock'"
            " AND datname = current_database()"
        )
        with psycopg.connect(self.database.owner, autocommit=True) as owner:
            row = owner.execute(statement).fetchone()
            return row is not None and row[0] > 0


@pytest.fixture(scope="session")
def login(postgres: LocalPostgres, template: dict[str, str]) -> str:
    with psycopg.connect(postgres.superuser_dsn, autocommit=True) as owner:
        owner.execute(SHOP)
    return postgres.dsn("shop_login", "shop-secret", "postgres")


@pytest.fixture
def shop(database: LedgerDatabase, login: str) -> Shop:
    with psycopg.connect(database.owner, autocommit=True) as owner:
        owner.execute("CREATE SCHEMA shop AUTHORIZATION shop_login")
    made = Shop(database, login.rsplit("/", 1)[0] + f"/{database.name}")
    with made.session() as session:
        session.execute("CREATE TABLE shop.orders (id text PRIMARY KEY)")
    return made


def test_an_order_and_its_run_are_committed_or_rolled_back_together(shop: Shop) -> None:
    with shop.session() as session:
        shop.order(session, "o-1")
        assert shop.found() == ([], [], 0)  # nobody sees either before the commit
        session.commit()
        assert shop.found() == (["o-1"], ["o-1"], 1)
        shop.order(session, "o-2")
        session.rollback()
        with pytest.raises(psycopg.errors.UniqueViolation):
            shop.order(session, "o-1")
        session.rollback()
        shop.enqueue(session, "o-3")
        with pytest.raises(psycopg.errors.UniqueViolation):
            session.execute("INSERT INTO shop.orders VALUES ('o-1')")
    assert shop.found() == (["o-1"], ["o-1"], 1)


def test_a_savepoint_takes_back_the_run_and_leaves_what_stood_before_it(shop: Shop) -> None:
    with shop.session() as session:
        shop.order(session, "o-1")
        with session.transaction(force_rollback=True):
            shop.order(session, "o-2")
        with pytest.raises(psycopg.Error) as caught, session.transaction():
            shop.enqueue(session, "o-1", given=2)
        assert caught.value.sqlstate == "FP409"
        again, created = shop.enqueue(session, "o-2", given="another, as the first never was")
        assert created
    assert shop.found() == (["o-1"], ["o-1", "o-2"], 2)
    with shop.session() as session:
        assert shop.enqueue(session, "o-2", given="another, as the first never was") == (again, False)


def test_plain_sql_and_a_trigger_do_the_same(shop: Shop) -> None:
    call = "SELECT fencepost.enqueue_run('shop', 'o-{0}', 'p', 1, 'svc:shop', '{{\"o\": {0}}}', '5 minutes')"
    with shop.session(autocommit=True) as session:
        session.execute(f"BEGIN; INSERT INTO shop.orders VALUES ('o-1'); {call.format(1)}; COMMIT")
        session.execute(f"BEGIN; INSERT INTO shop.orders VALUES ('o-2'); {call.format(2)}; ROLLBACK")
        session.execute(TRIGGER)
        session.execute("BEGIN; INSERT INTO shop.orders VALUES ('o-3'), ('o-4'); COMMIT")
        session.execute("BEGIN; INSERT INTO shop.orders VALUES ('o-5'); ROLLBACK")
    assert shop.found() == (["o-1", "o-3", "o-4"], ["o-1", "o-3", "o-4"], 3)


def test_the_login_may_enqueue_and_look_and_touch_nothing_else(shop: Shop) -> None:
    with shop.session(autocommit=True) as session:
        shop.enqueue(session, "o-1")
        assert session.execute("SELECT run_key FROM fencepost.runs").fetchall() == [("o-1",)]
        for statement in (
            "UPDATE fencepost.runs SET principal = 'root'",
            "DELETE FROM fencepost.runs",
            "INSERT INTO fencepost.outbox DEFAULT VALUES",
            "SELECT * FROM fencepost.outbox",
            "SELECT * FROM fencepost.intake_refusals",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                session.execute(statement)


def test_the_deadline_counts_in_seconds_whatever_the_time_zone_makes_of_a_day(shop: Shop) -> None:
    days = (100, 200, 300)  # whenever this is run, one of them crosses one change of the clocks
    with shop.session(options="-c timezone=Europe/Berlin") as session:
        for day in days:
            session.execute(ENQUEUE.replace("'5 minutes'", f"'{day} days'"), [f"o-{day}", "1"])
        lasts = "SELECT extract(epoch FROM deadline - created_at) FROM fencepost.runs ORDER BY run_key"
        assert session.execute(lasts).fetchall() == [(day * 24 * 3600,) for day in days]


# -- several at once ---------------------------------------------------------------------------------


def test_eight_sessions_with_one_run_key_make_one_run(shop: Shop) -> None:
    start = threading.Barrier(8)

    def send(n: int) -> tuple[UUID, bool]:
        with shop.session() as session:
            start.wait()
            return shop.order(session, "o-1") if n == 0 else shop.enqueue(session, "o-1")

    with ThreadPoolExecutor(8) as threads:
        told = list(threads.map(send, range(8)))
    assert len({run for run, _ in told}) == 1
    assert sorted(created for _, created in told) == [False] * 7 + [True]
    assert shop.found() == (["o-1"], ["o-1"], 1)


@contextmanager
def second(shop: Shop, key: str, given: Any, **options: Any) -> Iterator["Future[tuple[UUID, bool]]"]:
    """Another session's enqueue of the key, once it waits for the first one's transaction."""

    def send() -> tuple[UUID, bool]:
        with shop.session(**options) as session:
            session.execute("SELECT 1")  # which takes the snapshot, where there is one for a transaction
            return shop.enqueue(session, key, given)

    with ThreadPoolExecutor(1) as thread:
        sent = thread.submit(send)
        until("the second to wait", shop.waiting)
        yield sent


@pytest.mark.parametrize("given", [1, 2])
@pytest.mark.parametrize("commits", [True, False])
def test_the_second_waits_for_the_first_and_then_goes_by_what_is_committed(
    shop: Shop, given: int, commits: bool
) -> None:
    with shop.session() as first:
        run, _ = shop.order(first, "o-1", 1)
        with second(shop, "o-1", given) as sent:
            assert not sent.done()
            if commits:
                first.commit()
            else:
                first.rollback()
        if commits and given == 2:
            error = sent.exception()
            assert isinstance(error, psycopg.Error)
            assert error.sqlstate == "FP409"
            said = f"run key o-1 of tenant shop is taken by another request: that of run {run}"
            assert error.diag.message_primary == said
        else:
            assert sent.result()[1] is not commits
    assert shop.found()[1:] == (["o-1"], 1)


def test_a_snapshot_from_before_the_first_committed_is_told_to_begin_again(shop: Shop) -> None:
    with shop.session() as first:
        shop.enqueue(first, "o-1")
        with second(shop, "o-1", 1, options="-c default_transaction_isolation=repeatable\\ read") as sent:
            first.commit()
        assert isinstance(sent.exception(), psycopg.errors.SerializationFailure)


def test_several_runs_in_one_transaction_in_one_order_wait_for_each_other(shop: Shop) -> None:
    with shop.session() as first:
        for key in ("o-1", "o-2"):
            shop.enqueue(first, key)
        with second(shop, "o-1", 1) as sent:
            first.commit()
        assert sent.result()[1] is False
    assert shop.found()[1:] == (["o-1", "o-2"], 2)


def test_in_opposite_orders_postgres_ends_one_of_two_and_its_repetition_finds_the_runs(shop: Shop) -> None:
    both = threading.Barrier(2)

    def send(keys: tuple[str, str]) -> list[bool]:
        with shop.session() as session:
            made = [shop.enqueue(session, keys[0])[1]]
            both.wait()
            return [*made, shop.enqueue(session, keys[1])[1]]

    with ThreadPoolExecutor(2) as threads:
        sent = [threads.submit(send, keys) for keys in (("o-1", "o-2"), ("o-2", "o-1"))]
        errors = [one.exception() for one in sent]
    (ended,) = [error for error in errors if error is not None]
    assert isinstance(ended, psycopg.errors.DeadlockDetected)
    assert [one.result() for one, error in zip(sent, errors, strict=True) if error is None] == [[True, True]]
    with shop.session() as session:
        assert [shop.enqueue(session, key)[1] for key in ("o-2", "o-1")] == [False, False]
    assert shop.found()[1:] == (["o-1", "o-2"], 2)
