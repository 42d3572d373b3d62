"""Workers that died with their pulse: ended by the sweep, and nobody else is."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from fencepost.errors import Unreachable
from fencepost.ledger.connect import Pool
from fencepost_ops.database import LedgerDatabase
from fencepost_workers import lost as losing
from fencepost_workers import sweep as sweeping
from fencepost_workers.lost import Lost, Silence, lost_after, watch
from fencepost_workers.sweep import Sweeper
from tests.awaiting import until
from tests.integration.ledger_bench import open_bench
from tests.integration.rows import Sql, put_row, value
from tests.integration.step_shop import replaced

TTL = timedelta(seconds=5)
ENDED = "SELECT array_agg(token ORDER BY token) FROM fencepost.workers WHERE ended_at IS NOT NULL"
STAMP = "UPDATE fencepost.workers SET last_seen = fencepost.now() WHERE token = ANY(%s)"
T0, T1 = (datetime(2026, 1, 1, minute=m, tzinfo=UTC) for m in (0, 1))
AFTER = timedelta(seconds=120)


@pytest.fixture
def sql(database: LedgerDatabase) -> Iterator[Sql]:
    with psycopg.connect(database.owner, autocommit=True) as session:
        for token in ("lives", "lost", "owes"):
            session.execute(
                "INSERT INTO fencepost.workers (token, role, host, pid, started_at, last_seen)"
                " VALUES (%s, 'planner', 'h', 7, fencepost.now(), fencepost.now() - interval '1 hour')",
                [token],
            )
        put_row(session, worker="lost")
        put_row(session, worker="owes", due_in="1 hour")
        yield session


@pytest.fixture
def pool(database: LedgerDatabase) -> Iterator[Pool]:
    one = Pool(database.dsns["worker"], "lost", 1)
    yield one
    one.close()


@pytest.mark.parametrize(
    ("before", "stamp", "gap_s", "watched_s"),
    [
        (None, T0, 60.0, 0.0),
        (Silence(T0, 0.0), T0, 30.0, 30.0),
        (Silence(T0, 110.0), T0, 30.0, 140.0),
        (Silence(T0, 110.0), T1, 30.0, 0.0),
        (Silence(T0, 0.0), T0, 9000.0, 40.0),  # a suspended machine, or a rare sweep: a third at most
    ],
)
def test_only_what_was_watched_counts(
    before: Silence | None, stamp: datetime, gap_s: float, watched_s: float
) -> None:
    seen = {} if before is None else {"w": before}
    assert watch(seen, [("w", stamp)], gap_s, AFTER) == {"w": Silence(stamp, watched_s)}


@pytest.mark.parametrize(("ttl_s", "after_s"), [(0.6, 120), (6, 120), (10, 200)])
def test_lost_is_much_longer_than_silent(ttl_s: float, after_s: float) -> None:
    assert lost_after(timedelta(seconds=ttl_s)) == timedelta(seconds=after_s)


def test_whoever_stamps_no_more_and_owes_nothing_is_ended(
    sql: Sql, pool: Pool, caplog: pytest.LogCaptureFixture
) -> None:
    lost = Lost(pool, TTL)
    for at in (0, 39, 78, 117):
        sql.execute(STAMP, [["lives"]])
        assert lost.look(at) == ()
    assert lost.look(156) == ("lost",), "the living one was seen with its last stamp 39 s ago"
    assert value(sql, ENDED) == ["lost"]
    assert "planner lost (pid 7 on h) is lost: no stamp since" in caplog.text

    sql.execute("UPDATE fencepost.outbox SET due_at = fencepost.now() WHERE worker = 'owes'")
    sql.execute(STAMP, [["lives"]])
    assert lost.look(160) == ("owes",)


def test_a_fresh_process_and_one_that_stood_still_end_nobody(sql: Sql, pool: Pool) -> None:
    for _ in range(3):
        assert Lost(pool, TTL).look(1e6) == ()
    lost = Lost(pool, TTL)
    assert [lost.look(at) for at in (0, 1e6, 2e6)] == [()] * 3
    assert value(sql, ENDED) is None


def test_an_outage_of_postgres_ends_nobody(sql: Sql, pool: Pool, database: LedgerDatabase) -> None:
    lost = Lost(pool, TTL)
    assert [lost.look(at) for at in (0, 39, 78)] == [()] * 3
    away = Pool(make_conninfo(database.dsns["worker"], port=1), "away", 1)
    with replaced(lost, "_pool", away), pytest.raises(Unreachable):
        lost.look(117)
    away.close()
    assert [lost.look(at) for at in (150, 156, 195, 234)] == [()] * 4
    assert value(sql, ENDED) is None


def test_one_that_stamps_at_the_last_moment_is_not_ended(sql: Sql, pool: Pool) -> None:
    lost = Lost(pool, TTL)
    assert [lost.look(at) for at in (0, 39, 78, 117)] == [()] * 4

    def as_it_stamps(*args: Any) -> dict[str, Silence]:
        sql.execute(STAMP, [["lost"]])
        return watch(*args)

    with replaced(losing, "watch", as_it_stamps):
        assert lost.look(156) == ("lives",)


def test_the_sweeper_looks_for_them(
    sql: Sql, database: LedgerDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter(range(0, 10**9, 30))
    monkeypatch.setattr(sweeping, "boottime", lambda: float(next(now)))
    with open_bench(database) as bench:
        sweeper = Sweeper(bench.pools[0], bench.ledger, every_s=0.01, worker_ttl=TTL)
        try:
            until("the sweeper ends the lost worker", lambda: "lost" in (value(sql, ENDED) or []))
        finally:
            sweeper.stop()
