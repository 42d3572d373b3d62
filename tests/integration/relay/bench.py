"""What the relay's tests look at and play with."""

import base64
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import redis

from fencepost_relay.publisher import Item, Publisher
from fencepost_relay.relay import Relay
from tests.integration.rows import Sql

MINUTE = timedelta(minutes=1)


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


class Clock:
    """A relay's own clock, which stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def pass_seconds(relay: Relay, clock: Clock, seconds: int) -> list[str]:
    """A pass after each second of its clock; who was declared dead."""
    dead: list[str] = []
    for _ in range(seconds):
        clock.now += 1
        dead += relay.run_once().declared_dead
    return dead


class Watched(Publisher):
    """A publisher that does something else before it sends."""

    def __init__(self, url: str, before: Callable[[], object]) -> None:
        super().__init__(url)
        self.before = before

    def publish(self, queue: str, items: Sequence[Item], traceparent: str | None = None) -> None:
        self.before()
        super().publish(queue, items, traceparent)


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
        code = self.process.wait(60)
        self._reader.join()
        return code

    def stop(self) -> int:
        self.process.terminate()
        return self.wait()
