"""The relay against a real Postgres, a real Valkey, real processes and a real Celery worker."""

import base64
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest
import redis

from fencepost.doorbell import Doorbell
from fencepost.errors import Unreachable, UsageError
from fencepost.leases import connect
from fencepost.ledger.migrate import upgrade
from fencepost_ops.local import LocalPostgres, LocalValkey
from fencepost_relay.__main__ import main
from fencepost_relay.publisher import Item, Publisher
from fencepost_relay.relay import Relay, republish_delay
from tests.integration.rows import Sql, eventually, put_row, value
from tests.integration.wires import Proxy

MINUTE = timedelta(minutes=1)


@pytest.fixture(scope="module")
def postgres() -> Iterator[LocalPostgres]:
    with LocalPostgres.start(fsync=False) as server:
        upgrade(server.superuser_dsn)
        with psycopg.connect(server.superuser_dsn, autocommit=True) as sql:
            sql.execute("CREATE ROLE relay LOGIN PASSWORD 'relay-secret' IN ROLE fencepost_relay")
        yield server


@pytest.fixture(scope="module")
def valkey() -> Iterator[LocalValkey]:
    with LocalValkey.start() as server:
        yield server


@pytest.fixture
def sql(postgres: LocalPostgres) -> Iterator[Sql]:
    with psycopg.connect(postgres.superuser_dsn, autocommit=True) as session:
        session.execute("TRUNCATE fencepost.outbox, fencepost.workers")
        yield session


@pytest.fixture
def raw(valkey: LocalValkey) -> Iterator[redis.Redis]:
    client = connect(valkey.url(), size=1)
    client.flushall()
    client.config_resetstat()
    yield client
    client.connection_pool.disconnect()


@pytest.fixture
def dsn(postgres: LocalPostgres) -> str:
    return postgres.dsn("relay", "relay-secret", "postgres")


@pytest.fixture
def make_relay(dsn: str, valkey: LocalValkey, raw: redis.Redis) -> Iterator[Callable[..., Relay]]:
    made: list[Relay] = []

    def make(publisher: Publisher | None = None, **settings: Any) -> Relay:
        made.append(Relay(dsn, publisher or Publisher(valkey.url()), **{"republish": MINUTE} | settings))
        return made[-1]

    yield make
    for relay in made:
        relay.close()


def messages(raw: redis.Redis, queue: str = "planner") -> list[dict[str, Any]]:
    """What waits in a queue, oldest first."""
    return [json.loads(text) for text in reversed(raw.lrange(queue, 0, -1))]


def items(message: dict[str, Any]) -> list[list[Any]]:
    args, kwargs, _ = json.loads(base64.b64decode(message["body"]))
    assert kwargs == {}
    (listed,) = args
    return list(listed)


def published(raw: redis.Redis, queue: str = "planner") -> list[str]:
    return [subject for message in messages(raw, queue) for _, subject, _ in items(message)]


def publish_again(sql: Sql) -> None:
    sql.execute("UPDATE fencepost.outbox SET publish_at = fencepost.now()")


def pauses(sql: Sql) -> list[timedelta]:
    found = sql.execute("SELECT publish_at - fencepost.now() FROM fencepost.outbox ORDER BY subject")
    return [pause for (pause,) in found]


def cut_sessions(sql: Sql) -> None:
    relays = "FROM pg_stat_activity WHERE application_name = 'fencepost relay'"
    sql.execute(f"SELECT pg_terminate_backend(pid) {relays}")


class Watched(Publisher):
    """A publisher that does something else before it sends."""

    def __init__(self, url: str, before: Callable[[], object]) -> None:
        super().__init__(url)
        self.before = before

    def publish(self, queue: str, items: Sequence[Item]) -> None:
        self.before()
        super().publish(queue, items)


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
    subject = put_row(sql)
    relay = make_relay()

    for count in range(6):
        publish_again(sql)
        assert relay.run_once().published == 1
        (pause,) = pauses(sql)
        expected = republish_delay(count, MINUTE)
        assert expected - timedelta(seconds=2) < pause <= expected

    assert published(raw) == [str(subject)] * 6
    due = "SELECT due_at <= fencepost.now() AND generation = 1 FROM fencepost.outbox"
    assert value(sql, due), "publishing moves nothing but the publication"


def test_a_long_queue_gets_new_rows_only(
    sql: Sql, raw: redis.Redis, make_relay: Callable[..., Relay]
) -> None:
    old = put_row(sql)
    relay = make_relay(queue_limit=2)
    relay.run_once()
    raw.rpush("planner", "x")
    publish_again(sql)
    new = put_row(sql)

    result = make_relay(queue_limit=2).run_once()

    assert (result.taken, result.published) == (2, 1)
    raw.lrem("planner", 1, "x")
    assert published(raw) == [str(old), str(new)]
    assert min(pauses(sql)) > timedelta(seconds=50), "what was held back comes again later"

    publish_again(sql)
    raw.delete("planner")
    assert make_relay(queue_limit=2).run_once().published == 2


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
    eventually(lambda: all(relay.says("runs") for relay in relays))
    with sql.transaction():  # due one after the other, so that the two meet again and again
        subjects = [str(put_row(sql, queue=queues[n % 2], due_in=f"{4 * n} ms")) for n in range(300)]

    taken = "SELECT count(*) FROM fencepost.outbox WHERE publish_count > 0"
    eventually(lambda: value(sql, taken) == len(subjects), within=10)
    for relay in relays:
        assert relay.stop() == 0
    assert sorted(published(raw, "planner") + published(raw, "dispatcher")) == sorted(subjects)
    origins = {message["headers"]["origin"] for queue in queues for message in messages(raw, queue)}
    assert len(origins) == 2, "both took part"


# ---- outages


def test_a_refusing_broker_costs_a_row_nothing(sql: Sql, make_relay: Callable[..., Relay]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    put_row(sql)

    with pytest.raises(Unreachable):
        make_relay(Publisher(f"redis://127.0.0.1:{port}/0")).run_once()

    assert value(sql, "SELECT publish_count FROM fencepost.outbox") == 0
    assert max(pauses(sql)) <= timedelta(0)


def test_a_black_hole_fails_the_pass_within_three_seconds_and_keeps_the_row(
    sql: Sql, make_relay: Callable[..., Relay]
) -> None:
    put_row(sql)
    with socket.create_server(("127.0.0.1", 0)) as hole:
        relay = make_relay(Publisher(f"redis://127.0.0.1:{hole.getsockname()[1]}/0"))
        began = time.monotonic()
        with pytest.raises(Unreachable):
            relay.run_once()
        assert time.monotonic() - began < 3
    assert value(sql, "SELECT publish_count FROM fencepost.outbox") == 0


def test_a_broker_that_falls_silent_between_take_and_publish_costs_one_interval(
    sql: Sql, raw: redis.Redis, valkey: LocalValkey, make_relay: Callable[..., Relay]
) -> None:
    subject = put_row(sql)
    relay = make_relay(Watched(valkey.url(), lambda: os.kill(valkey.pid, signal.SIGSTOP)))
    try:
        began = time.monotonic()
        with pytest.raises(Unreachable):
            relay.run_once()
        assert time.monotonic() - began < 3
    finally:
        os.kill(valkey.pid, signal.SIGCONT)
    assert value(sql, "SELECT publish_count FROM fencepost.outbox") == 1
    eventually(raw.ping)
    raw.delete("planner")  # what was sent into the silence may have arrived

    publish_again(sql)
    assert make_relay().run_once().published == 1
    assert published(raw) == [str(subject)]


def test_after_a_failed_publication_the_broker_is_asked_before_more_is_taken(
    sql: Sql, valkey: LocalValkey, make_relay: Callable[..., Relay]
) -> None:
    def broken() -> None:
        raise Unreachable("gone")

    class Away(Watched):
        def lengths(self) -> dict[str, int]:
            if self.asked:
                raise Unreachable("still gone")
            self.asked = True
            return super().lengths()

        asked = False

    relay = make_relay(Away(valkey.url(), broken))
    put_row(sql)
    with pytest.raises(Unreachable, match=r"^gone"):
        relay.run_once()
    untouched = put_row(sql)
    with pytest.raises(Unreachable, match=r"^still gone"):
        relay.run_once()
    assert value(sql, "SELECT publish_count FROM fencepost.outbox WHERE subject = %s", untouched) == 0


def test_a_lost_reply_is_not_sent_again_by_the_client(
    sql: Sql, raw: redis.Redis, valkey: LocalValkey, make_relay: Callable[..., Relay]
) -> None:
    wire = Proxy(valkey.port)
    url = valkey.url().replace(f":{valkey.port}/", f":{wire.port}/")
    put_row(sql)

    def cut() -> None:
        wire.swallow_replies = True

    try:
        with pytest.raises(Unreachable):
            make_relay(Watched(url, cut)).run_once()
    finally:
        wire.close()

    assert raw.info("commandstats")["cmdstat_lpush"]["calls"] == 1
    assert len(messages(raw)) == 1


def test_a_cut_session_fails_one_pass_and_the_next_succeeds(
    sql: Sql, raw: redis.Redis, make_relay: Callable[..., Relay]
) -> None:
    relay = make_relay()
    relay.run_once()
    put_row(sql)
    cut_sessions(sql)

    with pytest.raises(Unreachable):
        relay.run_once()
    assert relay.run_once().published == 1


def test_a_ledger_without_tables_is_a_matter_of_use(
    postgres: LocalPostgres, valkey: LocalValkey, sql: Sql
) -> None:
    relay = Relay(postgres.dsn("relay", "relay-secret", "template1"), Publisher(valkey.url()))
    with pytest.raises(UsageError, match="run `fencepost migrate` first") as caught:
        relay.run_once()
    relay.close()
    assert "relay-secret" not in str(caught.value)


# ---- silent workers


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def put_worker(sql: Sql, token: str, *, ended: bool = False) -> None:
    sql.execute(
        "INSERT INTO fencepost.workers (token, role, host, pid, started_at, last_seen, ended_at)"
        " SELECT %s, 'planner', 'h', 1, now, now, CASE WHEN %s THEN now END FROM fencepost.now()",
        [token, ended],
    )


def stamp(sql: Sql, token: str) -> None:
    sql.execute("UPDATE fencepost.workers SET last_seen = fencepost.now() WHERE token = %s", [token])


def pass_seconds(relay: Relay, clock: Clock, seconds: int) -> list[str]:
    dead: list[str] = []
    for _ in range(seconds):
        clock.now += 1
        dead += relay.run_once().declared_dead
    return dead


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


# ---- the program


class Process:
    """`python -m fencepost_relay`, up when it has said so."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "fencepost_relay"],
            env={**os.environ, **environment},
            stderr=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr:
            self.lines.extend(self.process.stderr)

    def says(self, text: str) -> bool:
        return any(text in line for line in self.lines)

    def wait(self) -> int:
        code = self.process.wait(10)
        self._reader.join()
        return code

    def stop(self) -> int:
        self.process.terminate()
        return self.wait()


@pytest.fixture
def start_relay(dsn: str, valkey: LocalValkey, raw: redis.Redis) -> Iterator[Callable[..., Process]]:
    started: list[Process] = []

    def start(**environment: str) -> Process:
        started.append(Process({"FENCEPOST_DSN": dsn, "FENCEPOST_REDIS_URL": valkey.url(), **environment}))
        return started[-1]

    yield start
    for relay in started:
        relay.process.kill()
        relay.wait()


@pytest.mark.parametrize("point", ["relay.after_take", "relay.after_publish"])
def test_a_relay_killed_in_a_pass_loses_nothing(
    sql: Sql,
    raw: redis.Redis,
    start_relay: Callable[..., Process],
    make_relay: Callable[..., Relay],
    point: str,
) -> None:
    subject = str(put_row(sql))
    killed = start_relay(FENCEPOST_FAULT=f"{point}=crash", FENCEPOST_REPUBLISH_S="0.5")
    assert killed.wait() == -signal.SIGKILL
    before = published(raw)
    assert before == ([] if point == "relay.after_take" else [subject])

    survivor = make_relay()
    eventually(lambda: survivor.run_once().published, within=1)

    assert published(raw) == [*before, subject]


def test_a_ring_is_answered_long_before_the_poll(
    sql: Sql, raw: redis.Redis, valkey: LocalValkey, start_relay: Callable[..., Process]
) -> None:
    first = put_row(sql)
    relay = start_relay(FENCEPOST_POLL_MS="60000")
    eventually(lambda: published(raw) == [str(first)])
    second, timer = put_row(sql), put_row(sql, due_in="1 s")

    began = time.monotonic()
    with Doorbell(valkey.url()) as doorbell:
        doorbell.ring()
        eventually(lambda: published(raw) == [str(first), str(second)], within=0.9)
    eventually(lambda: published(raw) == [str(first), str(second), str(timer)])

    assert time.monotonic() - began < 2, "a timer needs neither ring nor poll"
    began = time.monotonic()
    assert relay.stop() == 0
    assert time.monotonic() - began < 1
    assert relay.says("published 3")
    assert relay.says("stopped")


def test_a_relay_stops_within_two_seconds_while_postgres_is_silent(
    sql: Sql, raw: redis.Redis, start_relay: Callable[..., Process]
) -> None:
    put_row(sql)
    relay = start_relay(FENCEPOST_POLL_MS="60000")
    eventually(lambda: len(published(raw)) == 1)
    backend = value(sql, "SELECT pid FROM pg_stat_activity WHERE application_name = 'fencepost relay'")
    os.kill(backend, signal.SIGSTOP)
    try:
        raw.rpush("fencepost:doorbell", "1")
        eventually(lambda: raw.llen("fencepost:doorbell") == 0)
        began = time.monotonic()
        assert relay.stop() == 0
        assert time.monotonic() - began < 2
    finally:
        os.kill(backend, signal.SIGCONT)


def test_a_relay_outlives_outages_of_broker_and_postgres_and_says_so_once(
    sql: Sql, raw: redis.Redis, valkey: LocalValkey, start_relay: Callable[..., Process]
) -> None:
    relay = start_relay(FENCEPOST_POLL_MS="20")
    eventually(lambda: relay.says("runs"))

    raw.config_set("requirepass", "another")
    raw.client_kill_filter(_type="normal", skipme=True)
    eventually(lambda: relay.says("pass failed"))
    raw.config_set("requirepass", valkey.url().split(":")[2].split("@")[0])
    eventually(lambda: relay.says("passes succeed again"))

    cut_sessions(sql)
    subject = put_row(sql)
    eventually(lambda: published(raw) == [str(subject)])
    assert relay.stop() == 0


@pytest.mark.parametrize(
    ("environment", "sentence"),
    [
        ({"FENCEPOST_DSN": "", "FENCEPOST_REDIS_URL": ""}, "set FENCEPOST_DSN and FENCEPOST_REDIS_URL\n"),
        ({"FENCEPOST_POLL_MS": "soon"}, "FENCEPOST_POLL_MS: "),
    ],
)
def test_wrong_settings_end_it_with_a_sentence(
    environment: dict[str, str],
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, text in environment.items():
        monkeypatch.setenv(name, text)

    assert main() == 2

    said = capsys.readouterr().err
    assert said.startswith(f"fencepost relay: {sentence}")
    assert said.count("\n") == 1


# ---- a real consumer

CONSUMER = """
import os
from celery import Celery
from kombu import Queue
import redis

NAMES = ("planner", "dispatcher", "reconciler", "compensator")
app = Celery("consumer", broker=os.environ["FENCEPOST_REDIS_URL"])
app.conf.update(task_queues=[Queue(name) for name in NAMES], task_ignore_result=True,
                broker_connection_retry_on_startup=True, worker_enable_remote_control=False)
heard = redis.Redis.from_url(os.environ["FENCEPOST_REDIS_URL"])

def hear(name):
    @app.task(name=f"fencepost.{name}")
    def take(items):
        for tenant, subject, generation in items:
            heard.rpush("heard", f"{name} {tenant} {subject} {generation}")

for name in NAMES:
    hear(name)
app.worker_main(["worker", "-P", "threads", "-c", "1", "-l", "error", "--without-gossip", "--without-mingle"])
"""


def test_a_celery_worker_hears_what_the_relay_publishes(
    sql: Sql, raw: redis.Redis, valkey: LocalValkey, make_relay: Callable[..., Relay]
) -> None:
    queues = ("planner", "dispatcher", "reconciler", "compensator")
    rows: dict[str, UUID] = {queue: put_row(sql, queue=queue, generation=3) for queue in queues}
    make_relay().run_once()
    consumer = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", CONSUMER],
        env={**os.environ, "FENCEPOST_REDIS_URL": valkey.url()},
        stdout=subprocess.DEVNULL,
    )
    try:
        eventually(lambda: raw.llen("heard") == 4, within=15)
    finally:
        consumer.kill()
        consumer.wait()
    heard = raw.lrange("heard", 0, -1)
    assert sorted(heard) == sorted(f"{queue} shop {subject} 3".encode() for queue, subject in rows.items())
