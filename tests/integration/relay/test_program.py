"""The program: real processes, real signals, and a real Celery worker that listens."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from uuid import UUID

import pytest
import redis

from fencepost.doorbell import Doorbell
from fencepost_ops.local import LocalValkey
from fencepost_relay.__main__ import main
from fencepost_relay.relay import Relay
from tests.awaiting import until
from tests.integration.relay.bench import (
    Process,
    cut_sessions,
    published,
)
from tests.integration.rows import Sql, put_row, value


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

    raw.delete("planner")  # a message that was sent is lost as well
    survivor = make_relay()
    until("the survivor publishes", lambda: survivor.run_once().published)

    assert published(raw) == [subject]


def test_a_ring_is_answered_long_before_the_poll(
    sql: Sql, raw: redis.Redis, valkey: LocalValkey, start_relay: Callable[..., Process]
) -> None:
    first = put_row(sql)
    relay = start_relay(FENCEPOST_POLL_MS="60000")
    until("the first row is published", lambda: published(raw) == [str(first)])
    second, timer = put_row(sql), put_row(sql, due_in="1 s")

    began = time.monotonic()
    with Doorbell(valkey.url()) as doorbell:
        doorbell.ring()
        until("the second row is published", lambda: published(raw)[:2] == [str(first), str(second)])
    until("the timer is published", lambda: published(raw) == [str(first), str(second), str(timer)])

    assert time.monotonic() - began < 30, "a timer needs neither ring nor poll, which is a minute here"
    assert relay.stop() == 0
    assert relay.says("published 3")
    assert relay.says("stopped")


def test_a_relay_stops_within_two_seconds_while_postgres_is_silent(
    sql: Sql, raw: redis.Redis, start_relay: Callable[..., Process]
) -> None:
    put_row(sql)
    relay = start_relay(FENCEPOST_POLL_MS="60000")
    until("the row is published", lambda: len(published(raw)) == 1)
    backend = value(sql, "SELECT pid FROM pg_stat_activity WHERE application_name = 'fencepost relay'")
    os.kill(backend, signal.SIGSTOP)
    try:
        raw.rpush("fencepost:doorbell", "1")
        until("the bell is heard", lambda: raw.llen("fencepost:doorbell") == 0)
        began = time.monotonic()
        assert relay.stop() == 0
        assert time.monotonic() - began < 2
    finally:
        os.kill(backend, signal.SIGCONT)


def test_a_relay_outlives_outages_of_broker_and_postgres_and_says_so_once(
    sql: Sql, raw: redis.Redis, valkey: LocalValkey, start_relay: Callable[..., Process]
) -> None:
    relay = start_relay(FENCEPOST_POLL_MS="20")
    until("the relay runs", lambda: relay.says("runs"))

    raw.config_set("requirepass", "another")
    raw.client_kill_filter(_type="normal", skipme=True)
    until("the relay says that a pass failed", lambda: relay.says("pass failed"))
    raw.config_set("requirepass", valkey.url().split(":")[2].split("@")[0])
    until("the relay says that passes succeed", lambda: relay.says("passes succeed again"))

    cut_sessions(sql)
    subject = put_row(sql)
    until("the row is published", lambda: published(raw) == [str(subject)])
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
        until("the consumer hears all four queues", lambda: raw.llen("heard") == 4)
    finally:
        consumer.kill()
        consumer.wait()
    heard = raw.lrange("heard", 0, -1)
    assert sorted(heard) == sorted(f"{queue} shop {subject} 3".encode() for queue, subject in rows.items())
