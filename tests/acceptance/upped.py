"""`fencepost up` as a process: what it says, its tree, its ports, and whether anything of it is left."""

import json
import os
import re
import select
import shlex
import socket
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from tests.awaiting import until

ROOT = Path(__file__).resolve().parents[2]
UP_WITHIN_S = 120.0
QUEUES = ["compensator", "dispatcher", "intake", "planner", "reconciler"]
CLI = [sys.executable, "-m", "fencepost_ops.cli"]


def order(number: int) -> dict[str, Any]:
    amount = {"currency": "EUR", "amount_minor": 100, "scale": 2}
    goods = {"order_id": f"o-{number}", "sku": "apple", "quantity": 1, "account": "acc", "address_id": "a-1"}
    return {"run_key": f"o-{number}", "input": {**goods, "amount": amount}}


def tree(pid: int) -> set[tuple[int, str]]:
    """A process and all its descendants now, each with the time it began (a number may be given again)."""
    children: dict[int, list[int]] = {}
    began: dict[int, str] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        number = int(stat.parent.name)
        children.setdefault(int(fields[1]), []).append(number)
        began[number] = fields[19]
    found, waiting = set(), [pid]
    while waiting:
        number = waiting.pop()
        if number in began:
            found.add((number, began[number]))
            waiting += children.get(number, [])
    return found


def lives(process: tuple[int, str]) -> bool:
    number, began = process
    try:
        fields = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return fields[19] == began and fields[0] != "Z"


def accepts(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@dataclass
class Up:
    """A running `fencepost up`, and the shell beside it."""

    process: subprocess.Popen[bytes]
    out: int
    data: Path
    tmp: Path
    said: str = ""
    trees: set[tuple[int, str]] = field(default_factory=set)

    def read_until(self, text: str) -> None:
        """Read on until it has said so."""
        end = time.monotonic() + UP_WITHIN_S
        while text not in self.said:
            ready, _, _ = select.select([self.out], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"not in {UP_WITHIN_S:g} s: {text}\n{self.said}"
            chunk = os.read(self.out, 65536)
            assert chunk, f"it ended ({self.process.wait()}): {self.said}"
            self.said += chunk.decode()

    def ended(self) -> int:
        """Read to its end; its exit code."""
        while chunk := os.read(self.out, 65536):
            self.said += chunk.decode()
        return self.process.wait()

    @property
    def ports(self) -> list[int]:
        return [int(port) for port in re.findall(r"127\.0\.0\.1:(\d+)", self.said)]

    def url(self, name: str) -> str:
        found = re.search(rf"{name} +(http://\S+)", self.said)
        assert found, self.said
        return found[1]

    def shell(self, *command: str, stdin: str = "") -> str:
        """What `fencepost` says in another shell, after `. DATA/env`."""
        words = shlex.join([*CLI, *command])
        script = f". {shlex.quote(str(self.data / 'env'))} && exec {words}"
        done = subprocess.run(["sh", "-c", script], input=stdin, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def beside(self, *command: str) -> subprocess.Popen[str]:
        """`fencepost` in another shell, left running."""
        script = f". {shlex.quote(str(self.data / 'env.reader'))} && exec {shlex.join([*CLI, *command])}"
        return subprocess.Popen(
            ["sh", "-c", script], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def flower(self, path: str) -> Any:
        """What Flower's API says."""
        url = f"{self.url('Flower')}/api/{path}"
        with urllib.request.urlopen(url, timeout=30) as answer:  # noqa: S310 - our own, on this machine
            return json.load(answer)

    def queues_of_workers(self) -> dict[str, list[str]]:
        """The queues of each worker that answers Flower, by the worker's name."""
        workers = self.flower("workers?refresh=1")
        queues = {name: [q["name"] for q in w.get("active_queues", ())] for name, w in workers.items()}
        return {name.partition("@")[0]: of for name, of in queues.items() if of}

    def json(self, *command: str) -> Any:
        return json.loads(self.shell(*command, "--json"))

    def enqueue(self, *numbers: int) -> None:
        lines = "".join(json.dumps(order(n)) + "\n" for n in numbers)
        self.shell("enqueue", "fulfil", "-", "--tenant", "shop", "--principal", "svc:checkout", stdin=lines)

    def ask(self, question: str) -> list[Any]:
        """What the ledger says to a reader's login."""
        (dsn,) = re.findall(r"FENCEPOST_DSN=(\S+)", (self.data / "env.reader").read_text())
        with psycopg.connect(shlex.split(dsn)[0]) as connection:
            return connection.execute(question).fetchall()

    def statuses(self) -> dict[str, str]:
        return dict(self.ask("SELECT run_key, status FROM fencepost.runs"))

    def pid_of(self, role: str) -> int:
        (pid,) = [w["pid"] for w in self.json("workers") if w["role"] == role and w["ended_at"] is None]
        return int(pid)

    def remember(self) -> None:
        """Note the processes there are, to ask later whether they are gone."""
        self.trees |= tree(self.process.pid)

    def leaves_nothing(self) -> None:
        until("every process of its tree is gone", lambda: not any(map(lives, self.trees)))
        assert not any(map(accepts, self.ports))
        until("its temporary folders are gone", lambda: not list(self.tmp.iterdir()))


def start(folder: Path, tmp: Path, *options: str) -> Up:
    tmp.mkdir(exist_ok=True)
    env = {**os.environ, "TMPDIR": str(tmp), "PYTHONUNBUFFERED": "1"}
    command = [*CLI, "up", "--data", str(folder), *options]
    out, ours = os.pipe()
    process = subprocess.Popen(command, stdout=ours, stderr=ours, env=env, cwd=ROOT)
    os.close(ours)
    return Up(process, out, folder, tmp)
