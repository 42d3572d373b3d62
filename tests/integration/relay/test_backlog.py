"""Many rows and nobody who takes them; rows that become visible late; relays that stop half way."""

from collections.abc import Callable
from datetime import timedelta

import psycopg
import pytest
import redis

from fencepost_ops.local import LocalPostgres
from fencepost_relay import taking
from fencepost_relay.publisher import QUEUES
from fencepost_relay.relay import Relay
from fencepost_relay.taking import TAKE_FRESH
from tests.awaiting import until
from tests.integration.relay.bench import Clock, items, messages, pass_seconds, published
from tests.integration.rows import Sql, put_row, value

ONCE = "SELECT count(*), sum(publish_count) FROM fencepost.outbox"


def put_backlog(sql: Sql, count: int) -> None:
    """As many due rows, each of its own instant."""
    sql.execute(
        "INSERT INTO fencepost.outbox (tenant, subject, kind, run, generation, queue, due_at, publish_at)"
        " SELECT 'shop', id, 'run', id, 1, 'planner', at, at FROM ("
        "  SELECT gen_random_uuid() AS id, fencepost.now() - interval '1 ms' * n AS at"
        "  FROM generate_series(1, %s) AS n) AS made",
        [count],
    )


def test_a_backlog_is_published_once_however_long_it_waits(
    sql: Sql, raw: redis.Redis, make_relay: Callable[..., Relay], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(taking, "_APART", timedelta(0))
    rows = 3000
    put_backlog(sql, rows)
    clocks = [Clock(), Clock()]
    # Of a millisecond: whatever is not held back on purpose is published again in every pass.
    relays = [make_relay(clock=clock, republish=timedelta(milliseconds=1)) for clock in clocks]
    for _ in range(5):
        for relay in relays:
            relay.run_once()

    for relay, clock in zip(relays, clocks, strict=True):
        pass_seconds(relay, clock, 20)

    assert sql.execute(ONCE).fetchall() == [(rows, rows)], "what waits costs no update"
    assert len(published(raw)) == len(set(published(raw))) == rows

    for _ in range(raw.llen("planner") // 2):  # somebody takes half of the messages, and claims nothing
        raw.rpop("planner")
    waiting = published(raw)
    for relay, clock in zip(relays, clocks, strict=True):
        pass_seconds(relay, clock, 3)
    again = published(raw)[len(waiting) :]
    assert not set(again) & set(waiting), "what still waits is not sent again"
    assert len(again) == len(set(again)), "and nothing twice"

    seen: set[str] = set()
    for _ in range(30):  # all that is sent is lost: every row comes again, the longest unsent first
        raw.delete("planner")
        for relay, clock in zip(relays, clocks, strict=True):
            pass_seconds(relay, clock, 1)
        seen.update(published(raw))
    assert len(seen) == rows


def test_a_row_that_is_committed_late_is_found_below_all_that_was_published_meanwhile(
    sql: Sql, postgres: LocalPostgres, raw: redis.Redis, make_relay: Callable[..., Relay]
) -> None:
    clock = Clock()
    relay = make_relay(clock=clock)
    with psycopg.connect(postgres.superuser_dsn) as slow, psycopg.connect(postgres.superuser_dsn) as given_up:
        late = put_row(slow, due_in="-10 s")
        put_row(given_up, due_in="-9 s")
        early = put_row(sql)
        relay.run_once()
        sql.execute("DELETE FROM fencepost.outbox WHERE subject = %s", [early])  # its run is through
        relay.run_once()
        given_up.rollback()
        slow.commit()
    assert relay.run_once().taken == 0, "it lies below what a pass looks at"
    clock.now += taking.THOROUGH_EVERY_S
    assert relay.run_once().taken == 1
    assert published(raw) == [str(early), str(late)]


def test_while_a_writer_moves_a_row_nothing_of_it_is_published_and_then_its_new_generation(
    sql: Sql, postgres: LocalPostgres, raw: redis.Redis, make_relay: Callable[..., Relay]
) -> None:
    subject = put_row(sql)
    clock = Clock()
    relay = make_relay(clock=clock)
    with psycopg.connect(postgres.superuser_dsn) as writer:
        writer.execute("UPDATE fencepost.outbox SET generation = 2, queue = 'compensator'")
        assert relay.run_once().taken == 0
        writer.commit()
    pass_seconds(relay, clock, 1)
    assert messages(raw, "planner") == []
    (message,) = messages(raw, "compensator")
    assert items(message) == [["shop", str(subject), 2]]


def test_a_relay_frozen_in_the_middle_of_taking_holds_up_only_what_it_has_locked(
    sql: Sql, dsn: str, raw: redis.Redis, make_relay: Callable[..., Relay]
) -> None:
    held = {str(put_row(sql, due_in="-10 s")) for _ in range(5)}
    clocks = [Clock(), Clock()]
    others = [make_relay(clock=clock, take=3) for clock in clocks]
    values = {"limit": 5, "delays": [timedelta(minutes=1)], "last": 0, "queues": list(QUEUES)}
    with psycopg.connect(dsn) as frozen:
        frozen.execute(TAKE_FRESH, {**values, "after": "-infinity", "ahead": timedelta(0)})
        free = {str(put_row(sql)) for _ in range(20)}
        for _ in range(5):
            for relay in others:
                relay.run_once()
        assert set(published(raw)) == free
        assert len(published(raw)) == len(free)
        frozen.execute("SET idle_in_transaction_session_timeout = '100ms'")  # it is two seconds for a relay

        def found() -> bool:  # Postgres ends a session that stands still in a transaction
            for relay, clock in zip(others, clocks, strict=True):
                pass_seconds(relay, clock, 1)
            return set(published(raw)) == free | held

        until("what the frozen one held is published", found)
        with pytest.raises(psycopg.Error, match="idle-in-transaction"):
            frozen.commit()
    assert value(sql, "SELECT max(publish_count) FROM fencepost.outbox") == 1
