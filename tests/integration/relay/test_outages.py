"""The relay while the broker or Postgres is silent, gone or lossy."""

import os
import signal
import socket
import time
from collections.abc import Callable
from datetime import timedelta

import pytest
import redis

from fencepost.errors import Unreachable, UsageError
from fencepost_ops.local import LocalPostgres, LocalValkey
from fencepost_relay.publisher import Publisher
from fencepost_relay.relay import Relay
from tests.awaiting import until
from tests.integration.relay.bench import (
    Watched,
    cut_sessions,
    messages,
    pauses,
    publish_again,
    published,
)
from tests.integration.rows import Sql, put_row, value
from tests.integration.wires import Proxy

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
    until("Valkey answers again", raw.ping)
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
