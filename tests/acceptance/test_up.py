"""`fencepost up` as an operator meets it: real processes, real signals, another shell beside it."""

import json
import os
import re
import select
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner

from fencepost.ledger.migrations import versions
from fencepost.ledger.revision import NEEDED
from fencepost_ops import cli, fleet
from fencepost_ops.local import LocalPostgres
from fencepost_ops.sandbox.book import BOOK_FILE, Book
from fencepost_ops.up import exports
from tests.acceptance.stage import until

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


def an_old_ledger(data: Path) -> None:
    """Data that the first version left, with an order nobody has touched yet."""
    sql = Path(versions.__file__).with_name("0001_initial.sql").read_text(encoding="utf-8")
    goods = json.dumps(order(0)["input"])
    data.mkdir()
    with LocalPostgres.start(data / "postgres") as server:
        with psycopg.connect(server.superuser_dsn, autocommit=True) as connection:
            connection.execute("CREATE DATABASE fencepost")
        with psycopg.connect(server.superuser_dsn.rsplit("/", 1)[0] + "/fencepost") as connection:
            connection.execute("CREATE SCHEMA fencepost")
            connection.execute("CREATE TABLE fencepost.alembic_version (version_num varchar(32) PRIMARY KEY)")
            connection.execute(sql.encode())
            connection.execute("INSERT INTO fencepost.alembic_version VALUES ('0001')")
            connection.execute(
                "SELECT fencepost.enqueue_run('shop', 'o-0', 'fulfil', 1, 'svc:checkout', %s, '5 min')",
                [goods],
            )


@pytest.fixture
def start_up(tmp_path: Path) -> Iterator[Callable[..., Up]]:
    started: list[Up] = []

    def begin(*options: str) -> Up:
        up = start(tmp_path / "data", tmp_path / "tmp", *options)
        started.append(up)
        up.read_until("Ctrl-C stops everything.")
        up.remember()
        return up

    yield begin
    for one in started:
        one.process.kill()
        one.process.wait()
        os.close(one.out)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_orders_survive_a_killed_worker_and_everything_ends_with_ctrl_c(
    start_up: Callable[..., Up],
) -> None:
    up = start_up("--scale", "planner=2")
    up.enqueue(1)
    first = up.pid_of("dispatcher")
    os.kill(first, signal.SIGKILL)
    up.enqueue(2)
    until("both orders are done", lambda: set(up.statuses().values()) == {"COMPLETED"}, 60)
    assert up.pid_of("dispatcher") not in {0, first}
    effects = Book(up.data / "sandbox" / BOOK_FILE).effects_per_key()
    assert sorted(effects.values()) == [1] * 6

    assert len(up.json("workers")) == 5
    shown = {"planner-1": ["planner"], "planner-2": ["planner"]}
    shown |= {queue: [queue] for queue in QUEUES if queue != "planner"}
    until("Flower shows every worker with its queue", lambda: up.queues_of_workers() == shown)
    lengths = up.flower("queues/length")["active_queues"]
    assert {queue["name"]: queue["messages"] for queue in lengths} == dict.fromkeys(QUEUES, 0)
    assert up.ask("SHOW max_connections") == [("300",)]
    found = up.json("doctor")["findings"]
    assert [f["says"] for f in found if f["level"] == "problem"] == []
    assert [f["says"] for f in found if f["area"] == "fleet" and "2 planners; 0 steps due" in f["says"]]

    second = CliRunner().invoke(cli.main, ["up", "--data", str(up.data)])
    assert second.exit_code == 2
    assert second.stderr == (
        f"fencepost: another `fencepost up` (pid {up.process.pid}) runs on {up.data}; "
        "stop it or choose another --data\n"
    )
    for secret in re.findall(r"://[^:]*:([^@]+)@", (up.data / "env").read_text()):
        assert secret not in up.said
    assert (up.data / "env").stat().st_mode & 0o777 == 0o600

    up.remember()
    up.process.send_signal(signal.SIGINT)
    assert up.ended() == 0, up.said
    stopping = re.findall(r"(?m)^ *\d+\.\d s  stopping (\w+)", up.said)
    assert stopping == ["relays", "the", "Valkey", "Postgres"]
    assert up.said.endswith("stopped\n")
    up.leaves_nothing()
    assert not (up.data / "env").exists()


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_killed_up_leaves_nothing_running_and_the_next_one_has_its_data(
    start_up: Callable[..., Up], tmp_path: Path
) -> None:
    an_old_ledger(tmp_path / "data")
    up = start_up("--no-flower")
    assert f"migrated the ledger from 0001 to {NEEDED}" in up.said
    up.enqueue(1)
    done = {"o-0": "COMPLETED", "o-1": "COMPLETED"}
    until("both orders are done", lambda: up.statuses() == done)
    place = up.url("sandbox")
    up.remember()
    up.process.kill()
    up.process.wait()
    up.leaves_nothing()

    up = start_up("--no-flower")
    assert up.url("sandbox") == place  # stored requests name it
    assert "migrated" not in up.said
    assert up.statuses() == done
    up.enqueue(1, 2)  # the first is known already
    until("all are done", lambda: up.statuses() == done | {"o-2": "COMPLETED"})
    assert len(Book(up.data / "sandbox" / BOOK_FILE).effects()) == 9

    watched = up.beside("watch", "--interval", "300ms")
    assert watched.stdout is not None
    first = watched.stdout.readline()
    servers = [pid for pid, _ in up.trees if is_server(pid)]
    assert len(servers) == 3
    for pid in servers:
        os.kill(pid, signal.SIGKILL)
    for name in ("Postgres", "Valkey", "the sandbox"):
        up.read_until(f"{name} had died and was started again")
    up.enqueue(3)
    until("an order after that is done", lambda: up.statuses()["o-3"] == "COMPLETED", 60)
    assert watched.poll() is None
    watched.send_signal(signal.SIGINT)
    out, err = watched.communicate(timeout=30)
    assert watched.returncode == 130
    assert re.fullmatch(r"(.*; waiting for it\nPostgres answers again\n)+", err), err
    assert "ended 3 (3 COMPLETED)" in first
    assert re.search(r"workers \d (alive|busy)", out)

    up.remember()
    up.process.terminate()
    assert up.ended() == 0, up.said
    up.leaves_nothing()


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("moment", ["starting Valkey", "starting relays and workers"])
def test_ctrl_c_while_it_starts_ends_what_was_started(tmp_path: Path, moment: str) -> None:
    up = start(tmp_path / "data", tmp_path / "tmp", "--no-flower")
    try:
        up.read_until(moment)
        up.remember()
        up.process.send_signal(signal.SIGINT)
        assert up.ended() == 130, up.said
        assert up.said.endswith("fencepost: interrupted\n")
        up.leaves_nothing()
        assert not list((tmp_path / "data").glob("env*"))
    finally:
        up.process.kill()
        up.process.wait()
        os.close(up.out)


def is_server(pid: int) -> bool:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    postmaster = words[0].endswith(b"/bin/postgres") and b"-D" in words
    return postmaster or b"valkey-server" in words[0] or b"fencepost_ops.sandbox" in words


BROKEN_APP = """
from fencepost import App, Contract, Effect, Request
from pydantic import BaseModel

class Args(BaseModel):
    n: int

app = App("broken")
far = app.dependency("far", "env:NO_SUCH_PLACE")

@far.http("far.do", effect=Effect.{effect}, intent=lambda a: ("n", str(a.n)))
def do(args: Args) -> Request:
    return Request.post("/do", json={{"n": args.n}})

{more}
"""


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--app", "no_such_module:app"], "there is no module no_such_module"),
        (["--app", "json:app"], "json has no attribute app"),
        (["--app", "json:loads"], "json:loads is a function, not a fencepost.App"),
        (["--app", "orders"], "an app is named as package.module:attribute"),
        (["--app", "app_with_problems:app"], "app_with_problems:app cannot run: "),
        (["--app", "app_without_place:app"], "dependency far: environment variable NO_SUCH_PLACE is not set"),
        (["--app", "fencepost_ops.examples.orders:app", "--no-sandbox"], "FENCEPOST_SANDBOX_URL is not set"),
        (["--scale", "dispatchers=3"], "there is no role 'dispatchers'"),
        (["--scale", "dispatcher=0"], "dispatcher may have 1 to 32 processes, not '0'"),
        (["--scale", "dispatcher"], "dispatcher may have 1 to 32 processes, not ''"),
        (["--flower-port", "{taken}"], "port {taken} (--flower-port) cannot be used"),
        (["--sandbox-port", "{taken}"], "port {taken} (--sandbox-port) cannot be used"),
        (["--flower-port", "99999"], "99999 is not in the range"),
    ],
)
def test_a_bad_setting_is_refused_in_one_sentence_before_anything_starts(
    options: Sequence[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("FENCEPOST_SANDBOX_URL", raising=False)
    monkeypatch.delenv("FENCEPOST_APP", raising=False)
    allowed = 'app.allow("*", tools=["far.do"])'
    (tmp_path / "app_with_problems.py").write_text(BROKEN_APP.format(effect="REVERSIBLE", more=allowed))
    (tmp_path / "app_without_place.py").write_text(BROKEN_APP.format(effect="IRREVERSIBLE", more=allowed))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        words = [word.replace("{taken}", port) for word in options]
        refused = CliRunner().invoke(cli.main, ["up", "--data", str(tmp_path / "data"), *words])
    assert refused.exit_code == 2, refused.output
    assert sentence.replace("{taken}", port) in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert not (tmp_path / "data").exists()


def test_a_taken_port_of_the_sandbox_on_this_data_is_named_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "PORT_FREES_WITHIN_S", 0.0)
    data = tmp_path / "data"
    (data / "sandbox").mkdir(parents=True)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        (data / "sandbox" / fleet.PORT_FILE).write_text(f"{port}\n")
        refused = CliRunner().invoke(cli.main, ["up", "--data", str(data)])
    assert refused.exit_code == 2, refused.output
    assert refused.stderr == (
        f"fencepost: port {port}, by which requests stored in {data} name the sandbox, cannot be used: "
        "Address already in use; free it, or choose another with --sandbox-port\n"
    )
    assert not (data / "postgres").exists()


def test_a_wrong_variable_is_refused_by_its_name(tmp_path: Path) -> None:
    wrong = CliRunner(env={"FENCEPOST_SLOTS": "many"})
    refused = wrong.invoke(cli.main, ["up", "--data", str(tmp_path / "data")])
    assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1)
    assert "FENCEPOST_SLOTS" in refused.stderr


def test_a_data_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    refused = CliRunner().invoke(cli.main, ["up", "--data", str(tmp_path / "data")])
    assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1)


def test_exported_values_mean_the_same_in_a_shell() -> None:
    value = "postgresql://u:a'b $c@h/d"
    script = exports({"X": value}) + 'printf %s "$X"'
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == value
