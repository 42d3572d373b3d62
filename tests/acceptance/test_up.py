"""`fencepost up` as an operator meets it: real processes, real signals, another shell beside it."""

import json
import os
import re
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psycopg
import pytest
from click.testing import CliRunner

from fencepost.ledger.migrations import versions
from fencepost.ledger.revision import NEEDED
from fencepost_ops import cli, fleet
from fencepost_ops.local import LocalPostgres
from fencepost_ops.sandbox.book import BOOK_FILE, Book
from fencepost_ops.up import exports
from tests.acceptance.upped import QUEUES, Up, order, start
from tests.acceptance.weather import long_only
from tests.awaiting import until


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


@long_only
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


@long_only
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
@pytest.mark.parametrize(
    "moment", [pytest.param("starting Valkey", marks=long_only), "starting relays and workers"]
)
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

@far.http("far.do", effect=Effect.{effect}, succeeded=bool, intent=lambda a: ("n", str(a.n)))
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
