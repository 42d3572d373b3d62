"""A fleet that was found: only who holds the folder's lock owns it; nothing is wiped that is not its own."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from fencepost.errors import Unreachable, UsageError
from fencepost_ops.chaos_found import FoundFleet
from fencepost_ops.fleet import ORDERS
from fencepost_ops.folders import DataDirLock
from fencepost_ops.local import LocalValkey


@pytest.fixture
def valkey(tmp_path: Path) -> Iterator[LocalValkey]:
    """A real one, below this process."""
    with LocalValkey.start(tmp_path / "valkey") as server:
        yield server


def data(folder: Path, redis_url: str) -> Path:
    """What an `up` leaves in its folder for others to read."""
    values = {
        "FENCEPOST_APP": ORDERS,
        "FENCEPOST_SANDBOX_URL": "http://127.0.0.1:9",
        "FENCEPOST_DSN": "postgresql://nobody@127.0.0.1:9/fencepost",
        "FENCEPOST_REDIS_URL": redis_url,
    }
    folder.mkdir()
    text = "".join(f"export {name}='{value}'\n" for name, value in values.items())
    for name in ("env", "env.producer", "env.operator", "env.reader"):
        (folder / name).write_text(text)
    return folder


def test_a_lock_that_nobody_holds_names_no_owner(tmp_path: Path) -> None:
    folder = data(tmp_path / "data", "redis://127.0.0.1:9/0")
    with DataDirLock(folder):
        assert FoundFleet(folder).pids() == {}
    assert (folder / "lock").read_text() == f"{os.getpid()}\n"  # who is alive, and holds it no more
    with pytest.raises(UsageError, match="no `fencepost up` runs on"):
        FoundFleet(folder)


def test_only_a_redis_of_the_fleet_is_wiped(tmp_path: Path, valkey: LocalValkey) -> None:
    folder = data(tmp_path / "data", valkey.url())
    other = subprocess.Popen(["sleep", "600"])
    try:
        with redis.Redis.from_url(valkey.url()) as client, DataDirLock(folder):
            client.set("precious", 1)
            (folder / "lock").write_text(f"{other.pid}\n")  # as if that were who runs the fleet
            with pytest.raises(Unreachable, match=r"Redis of the fleet on .* is no process of it"):
                FoundFleet(folder).lose("redis-flush")
            assert client.get("precious") is not None
            (folder / "lock").write_text(f"{os.getpid()}\n")
            FoundFleet(folder).lose("redis-flush")
            assert client.get("precious") is None
    finally:
        other.kill()
        other.wait()
