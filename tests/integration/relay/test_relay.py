"""Passes of the relay against a real Postgres and a real Valkey."""

from collections.abc import Callable
from datetime import timedelta

import psycopg
import pytest
import redis

from fencepost.errors import Unreachable
from fencepost.publication import republish_delay
from fencepost_ops.local import LocalPostgres, LocalValkey
from fencepost_relay import taking
from fencepost_relay.publisher import Publisher
from fencepost_relay.relay import Relay
from tests.awaiting import until
from tests.integration.relay.bench import (
    MINUTE,
    Clock,
    Process,
    Watched,
    cut_sessions,
    items,
    messages,
    pass_seconds,
    pauses,
    publish_again,
    published,
)
from tests.integration.rows import Sql, put_row, value

# ---- what is published


def test_a_due_row_becomes_a_task_that_names_subject_and_generation(
    sql: Sql, raw: redis.Redis, make_relay: Callable[..., Relay]
) -> None:
    subject = put_row(sql, generation=7, queue="dispatcher", kind="call")

    result = make_relay().run_once()

    assert (result.taken, result.published) == (1, 1)
    (message,) = messages(raw, "dispatcher")
    assert items(message) == [["shop", str(subject), 7]]
    assert message["headers"]["task"] == "fencepost.dispatcher"
    assert message["headers"]["retries"] == 0
    assert message["headers"]["eta"] is None
    assert (message["content-type"], message["properties"]["body_encoding"]) == ("application/json", "base64")
    assert sorted(raw.keys()) == [b"dispatcher"], "nothing else that a wipe could lose"


def test_a_message_says_to_which_tree_of_runs_it_belongs_where_it_is_one(
    sql: Sql, raw: redis.Redis, make_relay: Callable[..., Relay]
) -> None:
    root = put_row(sql)
    put_row(sql, run=root, kind="call", queue="dispatcher")
    put_row(sql, root=root, queue="dispatcher")  # a run below it
    put_row(sql, queue="reconciler")
    put_row(sql, queue="reconciler")

    make_relay().run_once()

    for queue in ("planner", "dispatcher"):
        (message,) = messages(raw, queue)
        version, trace, _, flags = message["headers"]["traceparent"].split("-")
        assert (version, trace, flags) == ("00", root.hex, "01")
    (message,) = messages(raw, "reconciler")
    assert "traceparent" not in message["headers"], "rows of two trees"


def test_rows_go_to_their_queues_in_lists_oldest_first(
    sql: Sql, raw: redis.Redis, make_relay: Callable[..., Relay]
) -> None:
    planned = [put_row(sql, due_in=f"-{100 - n} s") for n in range(25)]
    dispatched = [put_row(sql, queue="dispatcher") for _ in range(3)]

    result = make_relay(list_size=10).run_once()

    assert (result.taken, result.published) == (28, 28)
    assert [len(items(message)) for message in messages(raw)] == [10, 10, 5]
    assert published(raw) == [str(subject) for subject in planned]
    assert published(raw, "dispatcher") == [str(subject) for subject in dispatched]


def test_a_full_pass_is_followed_at_once_by_the_next(sql: Sql, make_relay: Callable[..., Relay]) -> None:
    for _ in range(5):
        put_row(sql)
    relay = make_relay(take=3)

    first, second = relay.run_once(), relay.run_once()

    assert (first.taken, first.next_due_in) == (3, timedelta(0))
    assert second.taken == 2


def test_a_row_that_is_not_due_waits_and_the_pass_says_how_long(
    sql: Sql, raw: redis.Redis, make_relay: Callable[..., Relay]
) -> None:
    relay = make_relay()
    assert relay.run_once().next_due_in is None

    put_row(sql, due_in="20 s")
    sql.execute("UPDATE fencepost.outbox SET publish_at = '9999-01-01' WHERE subject = %s", [put_row(sql)])
    result = relay.run_once()

    assert result.taken == 0
    assert result.next_due_in is not None
    assert timedelta(seconds=18) < result.next_due_in <= timedelta(seconds=20)
    assert raw.keys() == []


# ---- publishing is pushed first, and again


def test_the_push_is_committed_before_the_message_is_sent(
    sql: Sql, valkey: LocalValkey, make_relay: Callable[..., Relay]
) -> None:
    put_row(sql)
    seen: list[tuple[int, bool]] = []

    def look() -> None:
        found = sql.execute("SELECT publish_count, publish_at > fencepost.now() FROM fencepost.outbox")
        seen.extend(found.fetchall())

    make_relay(Watched(valkey.url(), look)).run_once()

    assert seen == [(1, True)]


def test_a_row_nobody_claims_is_published_again_ever_more_slowly(
    sql: Sql, raw: redis.Redis, make_relay: Callable[..., Relay]
) -> None:
    put_row(sql)
    clock = Clock()
    relay = make_relay(clock=clock)

    for count in range(6):
        publish_again(sql)
        raw.delete("planner")
        clock.now += 1
        assert relay.run_once().published == 1
        (pause,) = pauses(sql)
        expected = republish_delay(count, MINUTE)
        assert expected - timedelta(seconds=2) < pause <= expected

    due = "SELECT due_at <= fencepost.now() AND generation = 1 FROM fencepost.outbox"
    assert value(sql, due), "publishing moves nothing but the publication"


def test_a_message_that_may_still_wait_in_its_queue_is_not_sent_again(
    sql: Sql, raw: redis.Redis, make_relay: Callable[..., Relay], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(taking, "_APART", timedelta(0))
    clock = Clock()
    relay = make_relay(clock=clock, republish=timedelta(milliseconds=1))  # all pauses are over at once
    old = put_row(sql)
    relay.run_once()
    new = put_row(sql)
    pass_seconds(relay, clock, 3)
    assert published(raw) == [str(old), str(new)], "what no queue has held goes out whatever waits there"
    counts = "SELECT publish_count FROM fencepost.outbox"
    assert [count for (count,) in sql.execute(counts)] == [1, 1], "and what waits costs no update"

    raw.rpop("planner")  # somebody took the message of the old one, and nobody claimed it
    pass_seconds(relay, clock, 3)
    assert published(raw) == [str(new), str(old)], "the one left was sent after it"


def test_a_relay_that_has_just_begun_waits_until_it_knows_what_a_queue_holds(
    sql: Sql, raw: redis.Redis, make_relay: Callable[..., Relay]
) -> None:
    old = put_row(sql)
    make_relay().run_once()
    publish_again(sql)
    clock = Clock()
    relay = make_relay(clock=clock)
    pass_seconds(relay, clock, 2)
    assert published(raw) == [str(old)]

    raw.delete("planner")  # Redis has lost everything
    pass_seconds(relay, clock, 2)
    assert published(raw) == [str(old)]


# ---- side by side


def test_while_one_relay_publishes_another_finds_nothing_to_do(
    sql: Sql, raw: redis.Redis, valkey: LocalValkey, make_relay: Callable[..., Relay]
) -> None:
    put_row(sql)
    other = make_relay()
    found: list[int] = []

    make_relay(Watched(valkey.url(), lambda: found.append(other.run_once().taken))).run_once()

    assert found == [0]
    assert len(messages(raw)) == 1


def test_a_row_locked_by_somebody_is_skipped_and_not_waited_for(
    sql: Sql, postgres: LocalPostgres, raw: redis.Redis, make_relay: Callable[..., Relay]
) -> None:
    locked, free = put_row(sql, due_in="-1 s"), put_row(sql)
    with psycopg.connect(postgres.superuser_dsn) as holder:
        holder.execute("SELECT 1 FROM fencepost.outbox WHERE subject = %s FOR NO KEY UPDATE", [locked])
        assert make_relay().run_once().taken == 1
    assert published(raw) == [str(free)]


def test_two_relay_processes_publish_each_due_row_once(
    sql: Sql, raw: redis.Redis, start_relay: Callable[..., "Process"]
) -> None:
    queues = ("planner", "dispatcher")
    relays = [start_relay(FENCEPOST_POLL_MS="1", FENCEPOST_TASK_LIST="7") for _ in range(2)]
    until("both relays run", lambda: all(relay.says("runs") for relay in relays))
    with sql.transaction():  # due one after the other, so that the two meet again and again
        subjects = [str(put_row(sql, queue=queues[n % 2], due_in=f"{4 * n} ms")) for n in range(300)]

    taken = "SELECT count(*) FROM fencepost.outbox WHERE publish_count > 0"
    until("every row is published", lambda: value(sql, taken) == len(subjects))
    for relay in relays:
        assert relay.stop() == 0
    assert sorted(published(raw, "planner") + published(raw, "dispatcher")) == sorted(subjects)
    origins = {message["headers"]["origin"] for queue in queues for message in messages(raw, queue)}
    assert len(origins) == 2, "both took part"


# ---- silent workers


def put_worker(sql: Sql, token: str, *, ended: bool = False) -> None:
    sql.execute(
        "INSERT INTO fencepost.workers (token, role, host, pid, started_at, last_seen, ended_at)"
        " SELECT %s, 'planner', 'h', 1, now, now, CASE WHEN %s THEN now END FROM fencepost.now()",
        [token, ended],
    )


def stamp(sql: Sql, token: str) -> None:
    sql.execute("UPDATE fencepost.workers SET last_seen = fencepost.now() WHERE token = %s", [token])


def test_the_rows_of_a_silent_worker_are_due_after_a_ttl_of_our_time(
    sql: Sql, raw: redis.Redis, make_relay: Callable[..., Relay]
) -> None:
    put_worker(sql, "silent")
    put_worker(sql, "lively")
    lost, _ = put_row(sql, worker="silent", due_in="1 h"), put_row(sql, worker="lively", due_in="1 h")
    clock = Clock()
    relay = make_relay(clock=clock, worker_ttl=timedelta(seconds=10))

    for _ in range(5):
        assert pass_seconds(relay, clock, 2) == []
        stamp(sql, "lively")
    assert published(raw) == []

    assert pass_seconds(relay, clock, 1) == ["silent"], "told once"
    assert published(raw) == [str(lost)]
    late = put_row(sql, worker="silent", due_in="1 h")
    assert pass_seconds(relay, clock, 3) == []
    assert published(raw) == [str(lost), str(late)], "each pass looks again, and does not repeat what is due"


def test_an_outage_of_postgres_declares_nobody_dead(
    sql: Sql, raw: redis.Redis, make_relay: Callable[..., Relay]
) -> None:
    put_worker(sql, "cut off as well")
    clock = Clock()
    relay = make_relay(clock=clock, worker_ttl=timedelta(seconds=10))
    pass_seconds(relay, clock, 9)
    cut_sessions(sql)

    with pytest.raises(Unreachable):
        pass_seconds(relay, clock, 1)

    assert pass_seconds(relay, clock, 10) == []
    assert pass_seconds(relay, clock, 2) == ["cut off as well"], "a whole ttl after the outage"


def test_a_pause_of_the_relay_itself_declares_nobody_dead(sql: Sql, make_relay: Callable[..., Relay]) -> None:
    put_worker(sql, "w")
    clock = Clock()
    relay = make_relay(clock=clock, worker_ttl=timedelta(seconds=10))
    pass_seconds(relay, clock, 9)

    clock.now += 3600

    assert pass_seconds(relay, clock, 1) == []


def test_what_an_ended_worker_still_holds_is_due(
    sql: Sql, raw: redis.Redis, make_relay: Callable[..., Relay]
) -> None:
    put_worker(sql, "ended", ended=True)
    put_worker(sql, "lively")
    left, _ = put_row(sql, worker="ended", due_in="1 h"), put_row(sql, worker="lively", due_in="1 h")

    make_relay().run_once()

    assert published(raw) == [str(left)]


def test_silence_is_judged_while_the_broker_is_down(sql: Sql, make_relay: Callable[..., Relay]) -> None:
    put_worker(sql, "ended", ended=True)
    put_row(sql, worker="ended", due_in="1 h")

    with pytest.raises(Unreachable):
        make_relay(Publisher("redis://127.0.0.1:1/0")).run_once()

    assert max(pauses(sql)) <= timedelta(0)
