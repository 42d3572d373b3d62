"""A ledger that went back is held by whoever remembers better: this process, Redis or a file."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import pytest

from fencepost import commands as c
from fencepost.clock import rfc3339, uuid7
from fencepost.heads import Heads, Mark
from fencepost.ledger.apply import Ledger
from fencepost.ledger.connect import Pool
from fencepost_ops.local import LocalValkey
from fencepost_relay.publisher import Publisher
from fencepost_relay.relay import Relay
from tests.integration.ledger_bench import TENANT, Bench
from tests.integration.recovering import release, released_afterwards, restore


@pytest.fixture(autouse=True)
def released(bench: Bench) -> Iterator[None]:
    with released_afterwards(bench):
        yield


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "head"


def heads(valkey: LocalValkey, file: Path | str = "") -> Heads:
    return Heads(valkey.url(), str(file))


def look(bench: Bench, who: Heads, role: str = "worker") -> str | None:
    """Open a session as a process does; why the ledger is held after that, if it is."""
    pool = Pool(bench.database.dsns[role], "test", 1, opened=who.look)
    try:
        with pool.connection():
            pass
    finally:
        pool.close()
    found = bench.sql("SELECT reason FROM fencepost.epochs WHERE released_at IS NULL ORDER BY epoch")
    assert len(found) <= 1, "one loss is one epoch"
    return str(found[0][0]) if found else None


def forget(bench: Bench, event: UUID) -> None:
    """What a restore does, as far as a head can tell."""
    with bench.owner.transaction():
        bench.owner.execute("SET LOCAL session_replication_role = replica")
        bench.owner.execute("UPDATE fencepost.events SET id = gen_random_uuid() WHERE id = %s", [event])


def newest(bench: Bench) -> tuple[UUID, Mark]:
    """A committed event, and the mark of it."""
    run = bench.start()
    bench.plan(run, ("wallet.debit", {"order": bench.order()}))
    ((event, at),) = bench.sql(
        "SELECT id, recorded_at FROM fencepost.events WHERE run = %s ORDER BY seq DESC LIMIT 1", run
    )
    bench.started.remove(run)  # its history is broken by the test
    return event, Mark(TENANT, event, at)


def remembering(bench: Bench, who: Heads, mark: Mark) -> None:
    assert look(bench, who) is None
    who.confirmed(mark.tenant, mark.event, mark.at)
    who.keep()


def test_a_ledger_that_has_everything_is_not_held(bench: Bench, valkey: LocalValkey, file: Path) -> None:
    _, mark = newest(bench)
    remembering(bench, heads(valkey, file), mark)
    assert look(bench, heads(valkey, file)) is None


@pytest.mark.parametrize("where", ["redis", "file", "memory"])
def test_a_ledger_that_went_back_holds_itself(
    bench: Bench, valkey: LocalValkey, file: Path, where: str
) -> None:
    event, mark = newest(bench)
    first = heads(valkey, file if where == "file" else "")
    remembering(bench, first, mark)
    if where != "redis":
        first._redis.flushall()
    forget(bench, event)
    again = first if where == "memory" else heads(valkey, file if where == "file" else "")
    assert str(event) in (look(bench, again) or "")
    assert isinstance(bench.one(bench.claim_run(bench.start())), c.OnHold)
    assert str(event) in (look(bench, heads(valkey)) or str(event)), "others hold it no second time"
    release(bench)
    assert look(bench, again) is None, "a loss that a person has released is known"


def test_a_recovery_that_covers_the_loss_is_all_there_is(bench: Bench, valkey: LocalValkey) -> None:
    event, mark = newest(bench)
    remembering(bench, heads(valkey), mark)
    forget(bench, event)
    restore(bench, timedelta(minutes=5))
    assert look(bench, heads(valkey)) == "restored"


def test_a_relay_notices_it_too(bench: Bench, valkey: LocalValkey) -> None:
    event, mark = newest(bench)
    remembering(bench, heads(valkey), mark)
    forget(bench, event)
    relay = Relay(bench.database.dsns["relay"], Publisher(valkey.url()), opened=heads(valkey).look)
    relay.run_once()
    relay.close()
    assert str(event) in (look(bench, heads(valkey)) or "")


def test_each_commit_moves_the_head(bench: Bench, valkey: LocalValkey) -> None:
    told: list[tuple[str, UUID]] = []
    pool = Pool(bench.database.dsns["worker"], "test", 1)
    ledger = Ledger(
        pool, bench.known, worker_ttl=timedelta(hours=1), confirmed=lambda t, e, _at: told.append((t, e))
    )
    claim = bench.claim_run(bench.start())
    assert isinstance(ledger.apply([claim])[0], c.Plan)
    pool.close()
    ((tenant, event),) = told
    assert bench.sql("SELECT type FROM fencepost.events WHERE id = %s AND tenant = %s", event, tenant) == [
        ("ModelRequestStarted",)
    ]


@pytest.mark.parametrize("text", ["", "x", "{}", '{"tenant":1}', "[]", '{"event":"x","at":"y","tenant":"t"}'])
def test_what_is_no_mark_is_none(text: str) -> None:
    assert Mark.from_text(text) is None


@pytest.mark.parametrize("at", ["9999-12-31T23:59:59.000000Z", "~"])
def test_a_forged_mark_does_not_stand_in_the_way_of_later_ones(
    bench: Bench, valkey: LocalValkey, file: Path, at: str
) -> None:
    event, mark = newest(bench)
    who = heads(valkey, file)
    remembering(bench, who, mark)
    key = f"fencepost:head:{who._ledger}"
    forged = mark.to_text().replace(rfc3339(mark.at), at)
    assert at in forged
    who._redis.set(key, forged)
    file.write_text(f"{who._ledger} {forged}")
    again = heads(valkey, file)
    remembering(bench, again, Mark(mark.tenant, event, mark.at))
    assert who._redis.get(key) == mark.to_text().encode()
    assert file.read_text() == f"{who._ledger} {mark.to_text()}"


def test_an_older_mark_takes_no_later_ones_place(bench: Bench, valkey: LocalValkey, file: Path) -> None:
    _, mark = newest(bench)
    remembering(bench, heads(valkey, file), mark)
    before = file.read_text()
    late = heads(valkey, file)
    assert look(bench, late) is None
    late.confirmed(TENANT, uuid7(), mark.at - timedelta(seconds=1))
    late.keep()
    assert file.read_text() == before
    assert look(bench, heads(valkey)) is None, "what was written in Redis is the later one"
