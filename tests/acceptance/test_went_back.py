"""A data folder that was put back to an earlier day holds itself, and is recovered as the README says."""

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fencepost_ops.sandbox.book import BOOK_FILE, Book
from tests.acceptance.upped import Up, start
from tests.awaiting import until

pytestmark = pytest.mark.timeout(600)  # three fleets, one after the other
SERVICES = ("inventory", "shipping", "wallet")


@pytest.fixture
def start_up(tmp_path: Path) -> Iterator[Callable[..., Up]]:
    started: list[Up] = []

    def begin(*options: str) -> Up:
        up = start(tmp_path / "data", tmp_path / "tmp", "--no-flower", *options)
        started.append(up)
        up.read_until("Ctrl-C stops everything.")
        return up

    yield begin
    for one in started:
        one.process.kill()
        one.process.wait()
        os.close(one.out)


def stopped(up: Up) -> None:
    up.process.send_signal(signal.SIGINT)
    assert up.ended() == 0, up.said


def done(up: Up, *keys: str) -> None:
    until("orders", lambda: all(up.statuses().get(key) == "COMPLETED" for key in keys), 60)


def copied(source: Path, target: Path) -> None:
    subprocess.run(["cp", "-a", str(source), str(target)], check=True)


def refused(up: Up, *command: str) -> str:
    with pytest.raises(AssertionError) as error:
        up.shell(*command)
    return str(error.value)


def test_a_folder_that_was_put_back_holds_itself_and_is_recovered_as_documented(
    start_up: Callable[..., Up], tmp_path: Path
) -> None:
    up = start_up()
    up.enqueue(1)
    done(up, "o-1")
    stopped(up)
    copied(up.data / "postgres", tmp_path / "backup")
    up = start_up()
    ((since,),) = up.ask(
        "SELECT to_char(fencepost.now() AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"')"
    )
    up.enqueue(2)
    done(up, "o-2")
    until("its head is kept", (up.data / "head").exists)
    stopped(up)
    shutil.rmtree(up.data / "postgres")
    copied(tmp_path / "backup", up.data / "postgres")

    up = start_up()
    up.enqueue(2, 3)  # the producer asks again for what was lost
    told = refused(up, "doctor", "--json")
    assert "the ledger went back" in told
    assert "fencepost recover --since" in told
    assert up.statuses() == {"o-1": "COMPLETED", "o-2": "QUEUED", "o-3": "QUEUED"}
    assert "was not recovered" in refused(up, "recover", "--release", "--reason", "x")
    up.shell("recover", "--since", since, "--reason", "the disk was lost")
    told = refused(up, "recover", "--release", "--reason", "audited")
    audits = re.findall(r"fencepost (audit (\S+)/default --since \S+?)(?=[;.] )", told)
    assert tuple(sorted(service for _, service in audits)) == SERVICES
    for command, _ in audits:
        assert "effect_without_intent" in refused(up, *command.split()), "order 2 is in the books alone"
    up.shell("recover", "--release", "--reason", "the services deduplicate our keys")
    done(up, "o-2", "o-3")
    effects = Book(up.data / "sandbox" / BOOK_FILE).effects_per_key()
    assert sorted(effects.values()) == [1] * 9
    stopped(up)


def test_a_fleet_is_started_with_its_ledger_held(start_up: Callable[..., Up]) -> None:
    up = start_up("--hold")
    up.enqueue(4)
    assert json.loads(up.shell("watch", "--once", "--json"))["held"]["reason"] == "started with up --hold"
    assert up.statuses()["o-4"] == "QUEUED"
    up.shell("recover", "--release", "--without-audit", "--reason", "nothing was lost")
    done(up, "o-4")
