"""`fencepost doctor` against a real Postgres and a real Valkey, healthy and not."""

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest
import redis

from fencepost.outcomes import Refused
from fencepost_ops.database import LedgerDatabase
from fencepost_ops.local import LocalValkey
from tests.integration.ledger_bench import TENANT, Bench, open_bench
from tests.integration.shell import Shell, needs_repair


@pytest.fixture
def broker(valkey: LocalValkey) -> Iterator[redis.Redis]:
    """The broker, empty and as it was before."""
    client = redis.Redis.from_url(valkey.url())
    client.flushall()
    yield client
    client.config_set("maxmemory-policy", "noeviction")
    client.config_set("maxmemory", 0)
    client.close()


@pytest.fixture
def shell(database: LedgerDatabase, valkey: LocalValkey, broker: redis.Redis, no_settings: None) -> Shell:
    return Shell(database, {"COLUMNS": "240", "FENCEPOST_REDIS_URL": valkey.url()})


@pytest.fixture
def bench(database: LedgerDatabase) -> Iterator[Bench]:
    with open_bench(database) as opened:
        yield opened


def found(told: Any, level: str, says: str) -> dict[str, Any]:
    """The one finding of this level that says so."""
    (finding,) = [f for f in told["findings"] if f["level"] == level and says in f["says"]]
    return dict(finding)


def test_everything_is_asked_and_what_is_wrong_is_said(
    bench: Bench, shell: Shell, broker: redis.Redis
) -> None:
    needs_repair(bench)
    bench.enqueue("o-2")
    told = shell.json("doctor", exit_code=1)
    found(told, "ok", "it answers in")
    found(told, "ok", "as this version needs")
    found(told, "ok", "has the role fencepost_operator and no more")
    found(told, "warning", "this database's clock can be moved")
    found(told, "problem", "fsync and full_page_writes are off")  # as the tests' Postgres is
    found(told, "note", "no standby")
    found(told, "problem", "no relay is connected")
    found(told, "ok", "1 dispatcher; 0 steps due")
    found(told, "warning", "no reconciler works")
    found(told, "problem", "no planner works; 1 step due, 0 messages in its queue")
    found(told, "warning", "1 call in need of a person")
    found(told, "ok", "1 process with pools of 8 may open 29 of 397 sessions (400 in all)")
    found(told, "note", "no maxmemory is set")
    settings = {item["name"]: item for item in told["settings"]}
    assert settings["FENCEPOST_POOL_SIZE"]["default"] is True
    assert settings["FENCEPOST_DSN"]["default"] is False
    assert ":***@" in settings["FENCEPOST_DSN"]["value"]
    broker.config_set("maxmemory-policy", "allkeys-lru")
    broker.config_set("maxmemory", 20 * 2**20)
    found(shell.json("doctor", exit_code=1), "problem", "maxmemory-policy is allkeys-lru")


def test_for_people_each_finding_says_what_to_do(bench: Bench, shell: Shell) -> None:
    result = shell("doctor", "--settings", FENCEPOST_POLL_MS="9000")
    assert (result.exit_code, result.stderr) == (1, "")
    told = result.stdout
    assert re.search(r"\nFENCEPOST_POLL_MS +9000\b", told)
    assert re.search(r"\nsettings\n  problem  FENCEPOST_POLL_MS \(9000\) is more than a third", told)
    assert re.search(r"\n           → keep the poll below a third", told)
    assert re.search(r"\n\d+ problems, \d+ warnings?\n", told)
    assert told.index("\nsettings\n") < told.index("\nSETTING ")  # what is found stands first
    brief = shell("doctor", FENCEPOST_POLL_MS="9000").stdout
    assert "SETTING" not in brief
    assert re.search(r"\n\d+ of \d+ settings are not the default: fencepost doctor --settings\n$", brief)


def test_another_environment_in_the_same_redis_is_found(
    bench: Bench, shell: Shell, broker: redis.Redis
) -> None:
    run = bench.enqueue("o-1")
    broker.set(f"fencepost:fence:{{{TENANT}/{run}}}", 1)
    broker.lpush("planner", "{}")
    told = shell.json("doctor", exit_code=1)
    found(told, "ok", "its 2 keys are Fencepost's")
    broker.set(f"fencepost:fence:{{{TENANT}/{uuid4()}}}", 1)
    told = shell.json("doctor", exit_code=1)
    found(told, "problem", "1 of 2 subjects leased here lately are not in this ledger")
    broker.set("session:42", "x")
    found(
        shell.json("doctor", exit_code=1), "warning", "keys of somebody else's are in this database ('session"
    )


def test_a_server_that_is_away_is_said_beside_all_the_rest(bench: Bench, shell: Shell) -> None:
    told = shell.json("doctor", exit_code=3, FENCEPOST_REDIS_URL="redis://:hunter2secret@127.0.0.1:9/0")
    found(told, "problem", "cannot reach Redis at redis://:***@127.0.0.1:9/0")
    found(told, "ok", "as this version needs")
    told = shell.json("doctor", exit_code=3, FENCEPOST_DSN="postgresql://u:hunter2secret@127.0.0.1:9/db")
    found(told, "problem", "cannot reach Postgres at postgresql://u:***@127.0.0.1:9/db")
    found(told, "note", "whether this database is shared with another ledger: not checked (Postgres was not")
    wrong = shell.database.dsns["reader"].replace("://", "://nobody")
    found(shell.json("doctor", exit_code=3, FENCEPOST_DSN=wrong), "problem", "refuses the login")
    assert "set FENCEPOST_DSN" in shell.refused(2, "doctor", FENCEPOST_DSN="")
    told = shell.json("doctor", exit_code=3, FENCEPOST_REDIS_URL="")
    found(told, "problem", "set FENCEPOST_REDIS_URL")
    said = shell.refused(2, "doctor", FENCEPOST_REDIS_URL="http://x")
    assert said.startswith("FENCEPOST_REDIS_URL: it begins with redis://")


@pytest.mark.parametrize("role", ["relay", "producer", "reader", "worker"])
def test_what_a_login_may_not_see_it_says(bench: Bench, shell: Shell, role: str) -> None:
    told = shell.json("doctor", exit_code=1, role=role)
    found(told, "ok", f"has the role fencepost_{role} and no more")
    found(told, "note", "the oldest open transaction: not checked")
    hidden = [
        f["says"] for f in told["findings"] if f["level"] == "note" and "permission denied" in f["says"]
    ]
    assert bool(hidden) is (role in {"relay", "producer"})


def test_an_owner_and_an_old_ledger_are_found(bench: Bench, shell: Shell) -> None:
    with psycopg.connect(bench.database.owner) as holder:
        holder.execute("SELECT 1")  # a transaction that stays open, as it does in somebody's shell
        bench.sql("UPDATE fencepost.alembic_version SET version_num = '0000'")
        told = shell.json("doctor", "--dsn", bench.database.owner, exit_code=1)
    found(told, "warning", "is a superuser")
    found(told, "problem", "the ledger is at revision 0000, and this version needs")
    assert not [f for f in told["findings"] if "open transaction: not checked" in f["says"]]


def test_a_ledger_that_is_not_there_is_found(shell: Shell) -> None:
    bare = shell.database.owner.rsplit("/", 1)[0] + "/postgres"
    told = shell.json("doctor", "--dsn", bare, exit_code=1)
    found(told, "problem", "there is no ledger: run `fencepost migrate` first")
    assert next(f for f in told["findings"] if f["area"] == "fleet")["level"] == "note"


def test_a_closed_dependency_and_a_hidden_retry_are_found(bench: Bench, shell: Shell) -> None:
    told = shell.json("doctor", exit_code=1)
    found(told, "ok", "none is closed")
    found(told, "ok", "no attempt of the last day sent a request more than once")
    run = bench.enqueue("o-1")
    call = bench.debit(run, "o-1")
    send, term = bench.dispatch(run, call)
    closes = Refused("http_429", "not now", retryable=True, retry_after=timedelta(seconds=30))
    bench.one(replace(bench.outcome(send, term, closes), requests=2))
    told = shell.json("doctor", exit_code=1)
    found(told, "warning", "wallet/default is left alone for")
    found(told, "warning", "(http_429, Retry-After 30 s); 1 call may wait for it")
    found(told, "problem", "1 attempt of the last day sent a request more than once")
    bench.cancel(run)
    bench.ahead(31)
    found(shell.json("doctor", exit_code=1), "ok", "none is closed")
    assert "2 requests in one attempt: something sends again" in shell.ok("show", str(run))
