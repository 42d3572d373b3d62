"""A client whose connection, Postgres or process ends at the worst moment says so, and repeating is safe."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from click.testing import CliRunner

from fencepost import Client, Conflict, Enqueued, Unreachable
from fencepost_ops import cli
from fencepost_ops.database import LedgerDatabase
from tests.integration.door import Door
from tests.integration.ledger_bench import TENANT
from tests.integration.test_client import enqueue, request

SAFE = "sending the same again is safe"
COMMITTED = b"COMMIT\0"  # as the server's answer to one


@pytest.fixture
def door(database: LedgerDatabase) -> Iterator[Door]:
    port = int(database.owner.rsplit(":", 1)[1].split("/")[0])
    with Door(port) as opened:
        yield opened


@pytest.fixture
def client(database: LedgerDatabase, door: Door) -> Iterator[Client]:
    with Client(door.dsn(database.dsns["producer"])) as opened:
        yield opened


def before_commit(reply: bool, data: bytes) -> bool:
    return not reply and b"COMMIT" in data


def after_commit(reply: bool, data: bytes) -> bool:
    return reply and COMMITTED in data


@pytest.mark.parametrize(("cut", "was_there"), [(before_commit, False), (after_commit, True)])
def test_a_connection_cut_at_the_commit_leaves_no_doubt_about_what_to_do(
    client: Client, door: Door, cut: Callable[[bool, bytes], bool], was_there: bool
) -> None:
    enqueue(client, "o-1")
    door.watch = cut
    with pytest.raises(Unreachable, match=SAFE):
        enqueue(client, "o-2")
    door.watch = None
    assert enqueue(client, "o-2").created is not was_there
    assert enqueue(client, "o-2").created is False


def test_of_many_requests_whole_batches_are_there_and_all_can_be_sent_again(
    client: Client, door: Door
) -> None:
    asked = [request(f"o-{n:04}") for n in range(1200)]
    seen = 0

    def second(reply: bool, data: bytes) -> bool:
        nonlocal seen
        seen += after_commit(reply, data)
        return seen == 2

    door.watch = second
    with pytest.raises(Unreachable, match=SAFE):
        client.enqueue_many(asked)
    door.watch = None
    outcomes = client.enqueue_many(asked)
    assert [outcome.created for outcome in outcomes if isinstance(outcome, Enqueued)].count(True) == 200


SCRIPT = """
import os, sys
from datetime import timedelta
from fencepost import Client
from fencepost.testing import FAULTS

faults = sys.argv[1:]
go = os.pipe()
for fault in faults:
    if os.fork() == 0:
        os.close(go[1])
        FAULTS.arm(fault.partition(":")[2])
        with Client() as client:
            os.read(go[0], 1)
            told = client.enqueue("p", {"order": "o-1"}, run_key=fault.partition(":")[0], tenant="shop",
                                  principal="svc:checkout", deadline=timedelta(minutes=1))
        os.write(1, f"{told.run_id} {told.created}\\n".encode())  # whole: the others write there too
        os._exit(0)
sys.stdin.readline()
os.close(go[1])
for _ in faults:
    os.write(1, f"ended {os.waitstatus_to_exitcode(os.wait()[1])}\\n".encode())
"""


def producers(database: LedgerDatabase, *asked: str) -> subprocess.Popen[str]:
    """A process for each `key:fault`, all forks of one, which send when told to."""
    given = {
        **os.environ,
        "FENCEPOST_DSN": database.dsns["producer"],
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-c", SCRIPT, *asked], env=given, **pipes)


def test_producers_killed_at_the_commit_send_again(database: LedgerDatabase) -> None:
    faults = ("o-1:enqueue.before_commit=crash", "o-2:enqueue.after_commit=crash")
    with producers(database, *faults) as killed:
        said, _ = killed.communicate("\n")
    assert said.split("\n") == ["ended -9", "ended -9", ""]
    with Client(database.dsns["producer"]) as client:
        outcomes = client.enqueue_many([request(key, input={"order": "o-1"}) for key in ("o-1", "o-2")])
    assert [outcome.created for outcome in outcomes if isinstance(outcome, Enqueued)] == [True, False]


def test_eight_threads_and_eight_processes_with_one_run_key_make_one_run(database: LedgerDatabase) -> None:
    with (
        producers(database, *["o-1:"] * 8) as others,
        Client(database.dsns["producer"], pool_size=8) as client,
        ThreadPoolExecutor(8) as threads,
    ):
        assert others.stdin is not None
        others.stdin.write("\n")
        others.stdin.flush()
        told = list(threads.map(lambda _: enqueue(client), range(8)))
        said = [line.split() for line in others.communicate()[0].splitlines()]
        told += [Enqueued(UUID(run), created == "True") for run, created in said if run != "ended"]
        assert sorted(one.created for one in told) == [False] * 15 + [True]
        (run,) = {one.run_id for one in told}
        (outcome,) = client.enqueue_many([request(input="another")])
    assert isinstance(outcome, Conflict)
    assert outcome.held_by == run
    assert f"taken by another request, that of run {run} (" in str(outcome)


def test_a_postgres_that_is_away_is_said_within_seconds_and_not_for_ever(client: Client, door: Door) -> None:
    enqueue(client, "o-1")
    client._pool._pool.timeout = 1  # it is 5 s
    door.shut()
    began = time.monotonic()
    with pytest.raises(Unreachable, match=SAFE):
        enqueue(client, "o-2")
    assert time.monotonic() - began < 30
    door.open()
    assert enqueue(client, "o-2").created


def test_the_command_line_says_it_in_one_sentence(
    database: LedgerDatabase, door: Door, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("FENCEPOST_")]:
        monkeypatch.delenv(name)
    file = tmp_path / "runs.jsonl"
    file.write_text(json.dumps({"run_key": "o-1", "input": 1}))
    arguments = ["--dsn", door.dsn(database.dsns["producer"]), "enqueue", "p", str(file)]
    arguments += ["--tenant", TENANT, "--principal", "svc"]
    door.watch = after_commit
    lost = CliRunner().invoke(cli.main, arguments)
    assert (lost.exit_code, lost.stderr.count("\n")) == (3, 1)
    assert SAFE in lost.stderr
    door.watch = None
    again = CliRunner().invoke(cli.main, arguments)
    assert (again.exit_code, "0 created, 1 existing, 0 conflicts" in again.stdout) == (0, True)
    door.shut()
    away = CliRunner().invoke(cli.main, arguments)
    assert (away.exit_code, away.stderr.count("\n")) == (3, 1)
