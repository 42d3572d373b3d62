"""What servers take away and give back: a fleet goes on by itself, in the same processes, within 15 s."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
import redis
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from fencepost_ops.fleet import Fleet, FleetOptions
from fencepost_workers.__main__ import TASKS_AT_ONCE
from tests.acceptance.stage import ENDS, Stage, staged, step, until

HEALED_S = 15.0
MORE_S = 12.0  # a claim that meets an outage is dropped within eight


class Filed(Fleet):
    """A fleet whose processes read their logins from files."""

    def env(self, role: str) -> dict[str, str]:
        found = super().env(role)
        for name in ("FENCEPOST_DSN", "FENCEPOST_REDIS_URL"):
            file = self.folder / f"{role}.{name}"
            if not file.exists():
                file.write_text(found[name] + "\n")
            found[name], found[f"{name}_FILE"] = "", str(file)
        return found

    @property
    def folder(self) -> Path:
        assert self.options.data is not None
        return self.options.data


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    def filed(options: FleetOptions) -> Fleet:
        return Filed(options)

    with staged(tmp_path_factory.mktemp("healing"), kind=filed, env={"FENCEPOST_TASK_LIST": "1"}) as stage:
        yield stage


def test_a_worker_that_is_cut_off_leaves_the_queue_to_others(stage: Stage) -> None:
    pids = stage.fleet.pids()
    login = sql.Identifier(str(conninfo_to_dict(stage.fleet.database.dsns["worker"])["user"]))
    log = stage.folder / "fleet.log"
    said = len(log.read_text())

    def dropped() -> int:
        lines = log.read_text()[said:].splitlines()
        return sum(line.startswith("planner ") and "published again later" in line for line in lines)

    order(stage, sql.SQL("ALTER ROLE {} NOLOGIN").format(login), CUT)
    try:
        for _ in range(40):
            stage.send([step("bank.debit", reference=secrets.token_hex(8))])
        until("a planner is cut off", dropped)
        began = time.monotonic()
        until("it had time for more", lambda: time.monotonic() - began > MORE_S)
        assert dropped() <= 2 * TASKS_AT_ONCE, "what it had in hand, and no more"
    finally:
        order(stage, sql.SQL("ALTER ROLE {} LOGIN").format(login))
    goes_on(stage, pids, "after-cut")


def order(stage: Stage, *statements: sql.SQL | sql.Composed) -> None:
    with psycopg.connect(stage.fleet.postgres.superuser_dsn, autocommit=True) as session:
        for statement in statements:
            session.execute(statement)


CUT = sql.SQL(
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE usename LIKE 'fencepost%' AND application_name LIKE 'fencepost%'"
)


def goes_on(stage: Stage, pids: dict[str, int], reference: str) -> None:
    """A run ends in time, and no process had to begin anew."""
    run = stage.send([step("bank.debit", reference=reference)])
    until("the run ends", lambda: stage.history(run).run.status in ENDS, within_s=HEALED_S)
    assert stage.ended(run) == ["COMPLETED"]
    assert stage.fleet.pids() == pids


def rotate(stage: Stage) -> dict[Path, str]:
    """New passwords for every process's login; what the files should say."""
    folder = stage.fleet.options.data
    assert folder is not None
    found = {}
    for file in folder.glob("*.FENCEPOST_DSN"):
        before = conninfo_to_dict(file.read_text().strip())
        password = secrets.token_urlsafe(16)
        order(
            stage,
            sql.SQL("ALTER ROLE {} PASSWORD {}").format(
                sql.Identifier(str(before["user"])), sql.Literal(password)
            ),
        )
        found[file] = make_conninfo("", **{**before, "password": password})
    return found


def test_a_rotated_password_is_read_from_its_file_by_every_process(stage: Stage) -> None:
    goes_on(stage, pids := stage.fleet.pids(), "before-rotation")
    rotated = rotate(stage)
    order(stage, CUT)
    log = stage.folder / "fleet.log"
    until("somebody is refused", lambda: "password authentication failed" in log.read_text())
    new = dict(stage.fleet.database.dsns)
    for file, dsn in rotated.items():
        file.write_text(dsn)
        role = file.name.partition(".")[0]
        new[role] = dsn
    stage.fleet.database = replace(stage.fleet.database, dsns=new)
    goes_on(stage, pids, "after-rotation")


def test_a_rotated_password_of_redis_is_read_from_its_file_by_every_process(stage: Stage) -> None:
    pids, url = stage.fleet.pids(), stage.fleet.valkey.url()
    first = urlsplit(url).password or ""
    rotated = url.replace(first, "rotated-password")
    assert stage.fleet.options.data is not None
    files = list(stage.fleet.options.data.glob("*.FENCEPOST_REDIS_URL"))
    with redis.Redis.from_url(url) as admin:
        for password, told in (("rotated-password", rotated), (first, url)):
            admin.config_set("requirepass", password)
            for file in files:
                file.write_text(told)
            admin.execute_command("CLIENT", "KILL", "SKIPME", "yes")
            goes_on(stage, pids, f"after-{secrets.token_hex(4)}")


def fencepost(stage: Stage, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **Fleet.env(stage.fleet, "reader")}
    command = [sys.executable, "-m", "fencepost_ops.cli", *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


def test_a_postgres_that_was_read_only_is_written_again_and_meanwhile_it_is_said(stage: Stage) -> None:
    pids = stage.fleet.pids()
    name = sql.Identifier(stage.fleet.database.name)
    order(stage, sql.SQL("ALTER DATABASE {} SET default_transaction_read_only = on").format(name), CUT)
    log = stage.folder / "fleet.log"
    until("a session is refused", lambda: "read-only" in log.read_text())
    assert fencepost(stage, "workers", "--check").returncode == 1
    assert "default_transaction_read_only is on" in fencepost(stage, "doctor").stdout
    order(stage, sql.SQL("ALTER DATABASE {} RESET default_transaction_read_only").format(name))
    goes_on(stage, pids, "after-read-only")


@pytest.mark.parametrize("how", ["replica", "full", "key of another type"])
def test_a_redis_that_refuses_ends_no_process(stage: Stage, how: str) -> None:
    pids = stage.fleet.pids()
    log = stage.folder / "fleet.log"
    said = len(log.read_text())
    with redis.Redis.from_url(stage.fleet.valkey.url()) as admin:
        begin, end = REFUSALS[how]
        for command in begin:
            admin.execute_command(*command)
        try:
            stage.send([step("bank.debit", reference=f"refused-{how}")])
            until("a relay is refused", lambda: "pass failed" in log.read_text()[said:])
            if how != "full":  # of which workers that only take hear nothing
                until("a planner is refused", lambda: "\nplanner " in log.read_text()[said:])
        finally:
            admin.execute_command(*end)
    goes_on(stage, pids, f"after-{how}")


REFUSALS: dict[str, tuple[list[tuple[str, ...]], tuple[str, ...]]] = {
    "replica": ([("REPLICAOF", "127.0.0.1", "1")], ("REPLICAOF", "NO", "ONE")),
    "full": ([("CONFIG", "SET", "maxmemory", "1")], ("CONFIG", "SET", "maxmemory", "0")),
    "key of another type": ([("DEL", "planner"), ("SET", "planner", "a stranger's")], ("DEL", "planner")),
}
