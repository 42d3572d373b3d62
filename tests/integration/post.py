"""A plain Celery client's side of the intake's queue, and the other ways in beside it."""

import base64
import json
import threading
import time
import uuid
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import redis
from celery import Celery
from click.testing import CliRunner

from fencepost import Client, Conflict, RunRequest
from fencepost.strictjson import parse
from fencepost_ops import cli
from fencepost_ops.database import LedgerDatabase
from fencepost_ops.local import LocalValkey
from tests.awaiting import until
from tests.integration.door import Door

TENANT, PRINCIPAL = "takers", "svc:intake"
GOOD: dict[str, Any] = {"planner": "p", "input": {"order": 1}, "deadline_s": 300}
Same = list[bool]


@dataclass
class Post:
    """A producer's side of the queue, and what became of what it sent."""

    database: LedgerDatabase
    valkey: LocalValkey
    door: Door
    folder: Path
    celery: Celery = field(init=False)
    broker: redis.Redis = field(init=False)

    def __post_init__(self) -> None:
        self.celery = Celery(broker=self.valkey.url())
        self.broker = redis.Redis.from_url(self.valkey.url())

    def send(self, key: str = "", **changes: Any) -> str:
        """Send a good message but for the changes; its run key, new unless given."""
        key = key or uuid.uuid4().hex
        asked = {"run_key": key, **GOOD, **changes}
        self.raw({name: value for name, value in asked.items() if value is not ...})
        return key

    def raw(self, kwargs: Any, **options: Any) -> None:
        task = options.pop("task", "fencepost.intake")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.celery.send_task(task, kwargs=kwargs, queue="intake", retry=False, **options)

    @property
    def log(self) -> Path:
        return self.folder / "log"

    @property
    def once(self) -> Path:
        return self.folder / "once"

    def verbatim(self, kwargs: str) -> None:
        """A Celery client's message, with this text for its keyword arguments."""
        body = base64.b64encode(f"[[], {kwargs}, {{}}]".encode()).decode()
        properties = {"body_encoding": "base64", "delivery_tag": uuid.uuid4().hex, "delivery_info": {}}
        made = {"body": body, "content-type": "application/json", "content-encoding": "utf-8"}
        headers = {"task": "fencepost.intake", "id": uuid.uuid4().hex}
        self.broker.lpush("intake", json.dumps({**made, "headers": headers, "properties": properties}))

    def sql(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.database.owner, autocommit=True) as owner:
            return owner.execute(statement, list(values)).fetchall()

    def runs(self, *keys: str) -> list[Any]:
        return self.sql("SELECT id FROM fencepost.runs WHERE run_key = ANY(%s)", list(keys))

    def refused(self) -> list[tuple[str, str]]:
        """Error and message of all that was refused, in order."""
        return self.sql("SELECT error, message FROM fencepost.intake_refusals ORDER BY received_at")

    def refused_of(self, *keys: str) -> dict[str, str]:
        """Why messages under these run keys were refused."""
        return {key: error for error, message in self.refused() for key in keys if f'"{key}"' in message}

    def run(self, statement: str) -> None:
        with psycopg.connect(self.database.owner, autocommit=True) as owner:
            owner.execute(statement)

    def age(self) -> bool:
        """Let the visibility timeout of all that is delivered have passed."""
        tags: Any = self.broker.zrange("unacked_intake_index", 0, -1)
        for tag in tags:
            self.broker.zadd("unacked_intake_index", {tag: 1}, xx=True)
        return True

    def length(self, queue: str) -> int:
        found: Any = self.broker.llen(queue)
        return int(found)

    def outstanding(self) -> int:
        """What the broker has, queued or delivered and not acknowledged."""
        with self.broker.pipeline() as both:
            both.llen("intake")
            both.hlen("unacked_intake")
            return sum(both.execute())

    def settled(self) -> None:
        until("an empty queue", lambda: self.outstanding() == 0)

    def pid(self) -> int:
        """The process there is, or was a moment ago."""
        return int((self.folder / "pid").read_text())

    def consumes(self) -> bool:
        """Whether a process waits for messages."""
        waiting: Any = self.broker.client_list()
        return any(one["cmd"] == "blmove" for one in waiting)

    @contextmanager
    def pinged(self) -> Iterator[list[float]]:
        """How long the broker took, in seconds, to answer each PING meanwhile."""
        waits, over = [0.0], threading.Event()

        def ping() -> None:
            with redis.Redis.from_url(self.valkey.url()) as other:
                while not over.wait(0.01):
                    began = time.monotonic()
                    other.ping()
                    waits.append(time.monotonic() - began)

        with ThreadPoolExecutor(1) as thread:
            pinging = thread.submit(ping)
            try:
                yield waits
            finally:
                over.set()
            pinging.result()


class Producers:
    """The four ways in, asked to enqueue inputs (as JSON text) under run keys: is each the run there is?"""

    def __init__(self, post: Post) -> None:
        self.post = post

    def sql(self, asked: dict[str, str]) -> Same:
        statement = "SELECT created FROM fencepost.enqueue_run(%s, %s, 'p', 1, %s, %s::jsonb, '300 s')"
        refused: dict[str, str | None] = {}
        with psycopg.connect(self.post.database.dsns["producer"], autocommit=True) as session:
            for key, text in asked.items():
                try:
                    session.execute(statement, [TENANT, key, PRINCIPAL, text])
                except psycopg.Error as error:
                    refused[key] = error.sqlstate
        assert set(refused.values()) <= {"FP409"}
        return [key not in refused for key in asked]

    def client(self, asked: dict[str, str]) -> Same:
        whose: dict[str, Any] = {
            "planner": "p",
            "tenant": TENANT,
            "principal": PRINCIPAL,
            "deadline": timedelta(minutes=5),
        }
        requests = [RunRequest(run_key=key, input=parse(text), **whose) for key, text in asked.items()]
        with Client(self.post.database.dsns["producer"]) as client:
            return [not isinstance(outcome, Conflict) for outcome in client.enqueue_many(requests)]

    def jsonl(self, asked: dict[str, str]) -> Same:
        text = "".join(f'{{"run_key": "{key}", "input": {given}}}\n' for key, given in asked.items())
        arguments = ["--dsn", self.post.database.dsns["producer"], "enqueue", "p", "-", "--deadline", "5m"]
        arguments += ["--tenant", TENANT, "--principal", PRINCIPAL, "--json"]
        told = json.loads(CliRunner().invoke(cli.main, arguments, input=text).stdout)
        return [run["outcome"] != "conflict" for run in told["runs"]]

    def intake(self, asked: dict[str, str]) -> Same:
        for key, text in asked.items():
            self.post.verbatim(f'{{"run_key": "{key}", "planner": "p", "deadline_s": 300, "input": {text}}}')
        self.post.settled()
        refused = self.post.refused_of(*asked)
        assert all(" is taken by another request, that of run " in why for why in refused.values())
        return [key not in refused for key in asked]
