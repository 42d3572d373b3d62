"""While an old transaction is open no dead row is removed: what a pass looks at must not grow with them."""

import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
import redis

from fencepost.ledger.connect import _BY_KEY
from fencepost.ledger.load import LOCK_CLAIMED
from fencepost_ops.local import LocalPostgres
from fencepost_relay import relay as relays
from fencepost_relay.publisher import QUEUES
from fencepost_relay.relay import Relay
from fencepost_relay.silence import LOWER
from fencepost_relay.taking import LAG, TAKE_AGAIN, TAKE_FRESH, THOROUGH_WITHIN_S
from tests.integration.relay.bench import Clock, published
from tests.integration.relay.test_backlog import put_backlog
from tests.integration.rows import Sql, put_row, value

ROWS = 5000
FEW, MANY = 120, 360  # pages


@pytest.fixture
def old(postgres: LocalPostgres) -> Iterator[None]:
    """A report, a dump, a forgotten console: anything that still wants to see the past."""
    with psycopg.connect(postgres.superuser_dsn) as reader:
        reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        reader.execute("SELECT 1")
        yield


def work_through(sql: Sql) -> None:
    """What becomes of a row: published, claimed until its takeover, recorded, published, ended."""
    put_backlog(sql, ROWS)
    published = "publish_count = 1, publish_at = fencepost.now() + interval '15 s'"
    claimed = "generation = generation + 1, publish_count = 0, publish_at = fencepost.now() + interval '30 s'"
    recorded = "generation = generation + 1, publish_count = 0, publish_at = fencepost.now()"
    for change in (published, claimed, recorded, published):
        sql.execute(f"UPDATE fencepost.outbox SET {change}")
    sql.execute("DELETE FROM fencepost.outbox")
    sql.execute("ANALYZE fencepost.outbox")


def pages(dsn: str, statement: str, **values: Any) -> int:
    """How many pages a statement looks at, in a session as the relay has it."""
    session = relays._connect(dsn)
    common = {"limit": 1000, "delays": [timedelta(0)], "last": 0, "queues": list(QUEUES)}
    try:
        row = psycopg.ClientCursor(session).execute(
            f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}", {**common, **values}
        )
        found = row.fetchall()[0][0]
    finally:
        session.close()
    plan = (json.loads(found) if isinstance(found, str) else found)[0]["Plan"]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


@pytest.mark.usefixtures("old")
def test_a_pass_looks_at_few_pages_however_many_dead_rows_there_are(
    sql: Sql, raw: redis.Redis, dsn: str, make_relay: Callable[..., Relay]
) -> None:
    clock = Clock()
    relay = make_relay(clock=clock)
    relay.run_once()
    work_through(sql)
    # Half a second later: a transaction that began before may still have committed what lies there.
    sql.execute("SELECT pg_sleep(%s)", [LAG.total_seconds()])
    relay._floor = relay._floor.looked(
        None, value(sql, "SELECT fencepost.now()"), None, at=clock.now, took_s=0
    )
    new = put_row(sql)
    ahead = timedelta(milliseconds=250)
    floor = relay._floor.after

    assert pages(dsn, TAKE_FRESH, after=floor, ahead=ahead) <= FEW
    sql.execute("UPDATE fencepost.outbox SET publish_count = 0, publish_at = fencepost.now()")
    assert pages(dsn, TAKE_FRESH, after="-infinity", ahead=ahead) > MANY, "which is why"
    sql.execute("UPDATE fencepost.outbox SET publish_count = 0, publish_at = fencepost.now()")
    assert relay.run_once().published == 1
    assert published(raw) == [str(new)]
    # Nothing is old enough to be published again, and most of what died was to be later.
    assert pages(dsn, TAKE_AGAIN, queue="planner", until="infinity") <= FEW


@pytest.mark.usefixtures("old")
def test_a_claim_looks_at_its_own_rows_however_many_others_have_died(sql: Sql, raw: redis.Redis) -> None:
    del raw
    for name, wanted in _BY_KEY.items():
        sql.execute(f"SET {name} = {wanted}")  # as a worker's session has it
    work_through(sql)
    claimed = [put_row(sql) for _ in range(100)]
    explain = psycopg.ClientCursor(sql).execute(
        f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {LOCK_CLAIMED}",
        {"claim_tenants": ["shop"], "claims": claimed},
    )
    found = explain.fetchall()[0][0]
    plan = (json.loads(found) if isinstance(found, str) else found)[0]["Plan"]
    assert plan["Actual Rows"] == 100
    # 282: a descent of the index and the row, twice. Of others twenty-five thousand versions lie about.
    looked = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
    assert looked <= 400


def ends_too_late(relay: Relay, monkeypatch: pytest.MonkeyPatch, slow: Callable[[str, Any], bool]) -> None:
    """Have Postgres end what is slow, as it would among millions of dead rows, only sooner."""
    execute = relay._execute

    def bounded(statement: str, values: Any) -> Any:
        if not slow(statement, values):
            return execute(statement, values)
        execute("SET statement_timeout = '20ms'", {})
        try:
            return execute("SELECT pg_sleep(9)", {})
        finally:
            execute("RESET statement_timeout", {})

    monkeypatch.setattr(relay, "_execute", bounded)


@pytest.mark.parametrize(
    "slow",
    [
        lambda statement, _: statement == LOWER,
        lambda statement, values: statement == TAKE_FRESH and values["after"] == "-infinity",
        lambda statement, values: statement == TAKE_AGAIN and values["queue"] == "planner",
    ],
    ids=["silence", "fresh", "again"],
)
def test_a_look_that_takes_too_long_holds_up_no_other(
    sql: Sql,
    raw: redis.Redis,
    make_relay: Callable[..., Relay],
    monkeypatch: pytest.MonkeyPatch,
    slow: Callable[[str, Any], bool],
) -> None:
    clock = Clock()
    relay = make_relay(clock=clock)
    relay.run_once()
    ends_too_late(relay, monkeypatch, slow)
    new, lost = put_row(sql), put_row(sql, queue="dispatcher", due_in="-1 h")
    sql.execute("UPDATE fencepost.outbox SET publish_count = 1 WHERE subject = %s", [lost])

    for _ in range(2):
        clock.now += THOROUGH_WITHIN_S + 1
        relay.run_once()

    assert (published(raw), published(raw, "dispatcher")) == ([str(new)], [str(lost)])
