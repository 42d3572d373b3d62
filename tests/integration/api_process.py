"""The HTTP interface as a real process on a real ledger, and clients of it."""

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx2
import psycopg

from fencepost.ledger import tokens
from fencepost_ops.database import LedgerDatabase


def token(database: LedgerDatabase, tenant: str = "shop", *principals: str, **options: Any) -> str:
    """The text of a new one."""
    with psycopg.connect(database.dsns["operator"], autocommit=True) as connection:
        named = principals or ("svc:checkout",)
        return tokens.make(connection, tenant, named, by="tester", **options)[1]


@dataclass
class Api:
    """One process of it, which may open so many `files`; `log` is all it wrote."""

    database: LedgerDatabase
    env: Mapping[str, str] = field(default_factory=dict)
    files: int | None = None
    port: int = 0
    log: str = ""

    def start(self) -> None:
        own = {name: value for name, value in os.environ.items() if not name.startswith("FENCEPOST_")}
        own |= {"PYTHONPATH": os.pathsep.join(sys.path), "FENCEPOST_DSN": self.database.dsns["api"]}
        command = [sys.executable, "-m", "fencepost_ops.cli", "api", "--log", "--port", str(self.port)]
        if self.files is not None:
            command = ["sh", "-c", 'ulimit -n "$0" && exec "$@"', str(self.files), *command]
        self.child = subprocess.Popen(
            command, env={**own, **self.env}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.child.stdout is not None
        readable, _, _ = select.select([self.child.stdout], [], [], 60)
        line = self.child.stdout.readline() if readable else ""
        assert line.startswith("listening on http://127.0.0.1:"), self.end(signal.SIGKILL)
        self.url = line.split()[-1]
        self.port = int(self.url.rpartition(":")[2])

    def end(self, number: int = signal.SIGTERM) -> int:
        """End it, if it has not ended; its exit code."""
        self.child.send_signal(number)  # nothing, to one that has
        out, err = self.child.communicate(timeout=60)
        self.log += out + err
        return self.child.returncode

    def client(self, bearer: str | None, **options: Any) -> httpx2.Client:
        headers = {"Authorization": f"Bearer {bearer}"} if bearer is not None else {}
        return httpx2.Client(base_url=self.url, headers=headers, timeout=30, **options)


@contextmanager
def started(api: Api) -> Iterator[Api]:
    api.start()
    try:
        yield api
    finally:
        if api.child.stdout is not None and not api.child.stdout.closed:
            api.end()


def running(database: LedgerDatabase, **env: str) -> AbstractContextManager[Api]:
    return started(Api(database, env))


RUN = {"planner": "p", "input": {"order": "o-1"}, "deadline": 600}


def start(client: httpx2.Client, key: str, **changes: Any) -> httpx2.Response:
    """A run, asked for under this key."""
    return client.post("/v1/runs", json={**RUN, **changes}, headers={"Idempotency-Key": key})


@dataclass
class Frame:
    """One message of a stream."""

    id: int | None = None
    event: str = ""
    data: Any = None


def frames(lines: Iterator[str]) -> Iterator[Frame]:
    """The messages of a stream, comments left out."""
    found = Frame()
    for line in lines:
        name, _, value = line.partition(": ")
        if name == "id":
            found.id = int(value)
        elif name == "event":
            found.event = value
        elif name == "data":
            found.data = json.loads(value)
        elif not line and found.event:
            yield found
            found = Frame()
