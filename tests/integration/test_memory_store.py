"""The shipped store of memory keeps what the port promises, and Postgres refuses what nobody may."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from fencepost.errors import NotApplied
from fencepost.ledger.connect import Pool, connect
from fencepost.ledger.memories import _KEYS, PostgresMemory, erase, keys, versions
from fencepost.memory_conformance import broken_promises
from fencepost.memory_port import Change, Erased, MemoryStore, Slot, WriteAnswer, Writer, Wrote
from fencepost_ops.database import LedgerDatabase
from fencepost_ops.local import LocalPostgres
from tests.awaiting import until
from tests.integration.conftest import copied
from tests.integration.shell import Shell


@pytest.fixture(scope="module")
def place(postgres: LocalPostgres, template: dict[str, str]) -> Iterator[LedgerDatabase]:
    with copied(postgres, template) as database:
        yield database


@pytest.fixture
def pool(place: LedgerDatabase) -> Iterator[Pool]:
    made = Pool(place.dsns["worker"], "conformance", 10)
    yield made
    made.close()


def slot(key: str) -> Slot:
    return Slot("t", "notes", key)


def writer(**said: Any) -> Writer:
    usual = Writer(uuid4().hex, str(uuid4()), str(uuid4()), False, datetime.now(UTC) + timedelta(hours=1))
    return replace(usual, **said)


def test_it_keeps_every_promise_of_the_port(pool: Pool) -> None:
    assert broken_promises(PostgresMemory(pool)) == []


FILL = """
DO $$ BEGIN FOR i IN 0..4999 LOOP
    PERFORM fencepost.write_memory('t', 'walked', 'counter', i, '1', NULL, false, 'walked' || i,
        gen_random_uuid(), gen_random_uuid(), now() + interval '1 day');
END LOOP; END $$
"""


def test_a_list_reads_a_row_for_a_key_however_often_it_was_written(place: LedgerDatabase, pool: Pool) -> None:
    store = PostgresMemory(pool)
    names = [f"zz{i:02}" for i in range(30)]
    for name in names:
        store.write(Slot("t", "walked", name), Change(0, "1"), writer())
    gone = Slot("t", "walked", "zz05")
    store.write(gone, Change(1, restores=0), writer())
    left = [name for name in names if name != "zz05"]
    with psycopg.connect(place.owner, autocommit=True) as owner:
        owner.execute(FILL)
        owner.execute("ANALYZE fencepost.memory")
        asked = {"tenant": "t", "space": "walked", "prefix": "", "after": "", "limit": 10}
        (told,) = owner.execute("EXPLAIN (ANALYZE, FORMAT JSON) " + _KEYS, asked).fetchone() or ((),)
    assert _read(told[0]["Plan"]) < 300
    listed = store.keys("t", "walked", "", "", 40)
    assert [(one.key, one.version) for one in listed] == [("counter", 5000), *((name, 1) for name in left)]
    assert [one.key for one in store.keys("t", "walked", "zz", "zz03", 3)] == ["zz04", "zz06", "zz07"]
    assert [one.key for one in store.keys("t", "walked", "co", "", 3)] == ["counter"]
    assert store.keys("t", "walked", "zzz", "", 3) == store.keys("t", "nowhere", "", "", 3) == []


def _read(plan: dict[str, Any]) -> int:
    """The rows of the table that a plan has read, those it has thrown away among them."""
    rows = plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0) if "Relation Name" in plan else 0
    return int(rows * plan["Actual Loops"]) + sum(_read(one) for one in plan.get("Plans", ()))


class Forgetful(PostgresMemory):
    """Forgets which operation wrote what."""

    def write(self, slot: Slot, change: Change, writer: Writer) -> WriteAnswer:
        return super().write(slot, change, replace(writer, operation=uuid4().hex))


class Trusting(PostgresMemory):
    """Takes every writer's word."""

    def write(self, slot: Slot, change: Change, writer: Writer) -> WriteAnswer:
        return super().write(slot, change, replace(writer, untrusted=False))


class Patient(PostgresMemory):
    """Takes what comes late."""

    def write(self, slot: Slot, change: Change, writer: Writer) -> WriteAnswer:
        return super().write(slot, change, replace(writer, until=writer.until + timedelta(days=900)))


class Mixing(PostgresMemory):
    """Keeps all tenants' values in one place."""

    def write(self, slot: Slot, change: Change, writer: Writer) -> WriteAnswer:
        return super().write(replace(slot, tenant="all"), change, writer)


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (Forgetful, "its repeat: Conflicting(current=1), not Wrote(version=1)"),
        (Trusting, "what an untrusted run wrote: False, not True"),
        (Patient, "a write after its time: Wrote(version=1), not TooLate()"),
        (Mixing, "its first write: Conflicting(current=1), not Wrote(version=1)"),
    ],
)
def test_the_conformance_suite_finds_a_store_that_breaks_a_promise(
    pool: Pool, kind: type[PostgresMemory], told: str
) -> None:
    store: MemoryStore = kind(pool)
    broken = broken_promises(store, f"broken-{kind.__name__}")
    assert told in broken, broken


GAP = """
INSERT INTO fencepost.memory (tenant, space, key, version, value, untrusted, operation, run, call, written_at)
VALUES ('t', 'notes', 'guarded', 9, '1', false, 'gap', gen_random_uuid(), gen_random_uuid(), now())
"""


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE fencepost.memory SET value = '2' WHERE key = 'guarded'",
        "UPDATE fencepost.memory SET value = NULL WHERE key = 'guarded'",
        "UPDATE fencepost.memory SET untrusted = false WHERE key = 'guarded'",
        "DELETE FROM fencepost.memory WHERE key = 'guarded'",
        "TRUNCATE fencepost.memory",
        GAP,
    ],
)
def test_nobody_changes_a_version_or_leaves_one_out_not_even_the_owner(
    place: LedgerDatabase, pool: Pool, statement: str
) -> None:
    PostgresMemory(pool).write(slot("guarded"), Change(0, "1"), writer(untrusted=True))
    with psycopg.connect(place.owner, autocommit=True) as owner, pytest.raises(psycopg.Error) as refused:
        owner.execute(statement.encode())
    assert refused.value.sqlstate in {"FP001", "FP004"}


def test_erasing_a_version_erases_whatever_restored_it(place: LedgerDatabase, pool: Pool) -> None:
    store, where = PostgresMemory(pool), slot("restored")
    for number, change in enumerate(
        (
            Change(0, '"personal"'),
            Change(1, '"other"'),
            Change(2, restores=1),
            Change(3, '"third"'),
            Change(4, restores=3),  # what restored the first, restored
            Change(5, restores=2),
        ),
        1,
    ):
        assert store.write(where, change, writer()) == Wrote(number)
    with connect(place.dsns["operator"], "erase", autocommit=True) as operator:
        assert erase(operator, where, 1, by="ann", reason="asked to") == [1, 3, 5]
        left = {one.version: one.value for one in versions(operator, where, 10)}
    assert left == {1: None, 2: '"other"', 3: None, 4: '"third"', 5: None, 6: '"other"'}
    with psycopg.connect(place.owner) as owner:
        assert owner.execute(
            "SELECT count(*) FROM fencepost.memory WHERE value = '\"personal\"'"
        ).fetchall() == [(0,)]


def test_a_version_that_is_being_restored_is_waited_for_and_erased(place: LedgerDatabase, pool: Pool) -> None:
    store, where = PostgresMemory(pool), slot("meanwhile")
    assert store.write(where, Change(0, '"personal"'), writer()) == Wrote(1)
    restoring = (
        "SELECT fencepost.write_memory('t', 'notes', 'meanwhile', 1, NULL, 1, false, 'again',"
        " gen_random_uuid(), gen_random_uuid(), now() + interval '1 hour')"
    )
    with (
        psycopg.connect(place.dsns["worker"]) as worker,
        connect(place.dsns["operator"], "erase", autocommit=True) as operator,
        ThreadPoolExecutor(1) as threads,
    ):
        worker.execute(restoring)
        operator.execute("SET lock_timeout = 0")
        erasing = threads.submit(erase, operator, where, 1, by="ann", reason="asked to")
        waits = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        with psycopg.connect(place.owner, autocommit=True) as owner:
            until("it waits", lambda: owner.execute(waits).fetchall(), 10)
        worker.commit()
        assert erasing.result() == [1, 2]


@pytest.mark.parametrize("role", ["worker", "relay", "producer", "reader"])
def test_only_an_operator_s_login_erases_and_what_is_erased_is_written_once_all_the_same(
    place: LedgerDatabase, pool: Pool, role: str
) -> None:
    store, where, by = PostgresMemory(pool), slot(f"erase-{role}"), writer()
    assert store.write(where, Change(0, '"personal"'), by) == Wrote(1)
    with (
        psycopg.connect(place.dsns[role], autocommit=True) as mere,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        erase(mere, where, 1, by="mallory", reason="why not")
    with connect(place.dsns["operator"], "erase", autocommit=True) as operator:
        assert erase(operator, where, 1, by="ann", reason="asked to") == [1]
        assert erase(operator, where, 1, by="ann", reason="asked to") == []
        (version,) = versions(operator, where, 10)
        assert (version.value, version.erased_by, version.erased_reason) == (None, "ann", "asked to")
        assert [one.key for one in keys(operator, "t", "notes", f"erase-{role}", "", 9)] == [f"erase-{role}"]
    read = store.read(where)
    assert (read.version, read.value, read.exists, read.erased) == (1, None, True, True)
    assert store.write(where, Change(0, '"personal"'), by) == Wrote(1)
    assert store.write(where, Change(1, restores=1), writer()) == Erased()


def test_who_may_not_write_is_refused_and_nothing_happened(place: LedgerDatabase) -> None:
    mere = Pool(place.dsns["reader"], "reader", 1)
    try:
        with pytest.raises(NotApplied, match="use the DSN of another role"):
            PostgresMemory(mere).write(slot("mere"), Change(0, "1"), writer())
    finally:
        mere.close()


def test_while_a_write_is_under_way_an_absence_proves_nothing(place: LedgerDatabase, pool: Pool) -> None:
    store = PostgresMemory(pool)
    with psycopg.connect(place.dsns["worker"]) as writing:
        writing.execute(
            "SELECT * FROM fencepost.write_memory('t', 'notes', 'held', 0, '1', NULL, false, 'op-held',"
            " gen_random_uuid(), gen_random_uuid(), fencepost.now() + interval '1 hour')"
        )
        with pytest.raises(BlockingIOError, match="is being written"):
            store.written(slot("held"), "op-held")
        writing.commit()
    assert store.written(slot("held"), "op-held") == 1


# -- what people type --


@pytest.fixture
def typed(place: LedgerDatabase, no_settings: None) -> Shell:
    return Shell(place, {"COLUMNS": "240"})


def test_keys_and_versions_are_listed_shown_and_erased(typed: Shell, pool: Pool) -> None:
    store, where = PostgresMemory(pool), Slot("people", "notes", "plan")
    store.write(where, Change(0, '{"a":"\u200bhidden"}'), writer(untrusted=True))
    store.write(where, Change(1, '"next"'), writer())
    store.write(where, Change(2, restores=0), writer())
    store.write(Slot("people", "notes", "other"), Change(0, "1"), writer())
    of = ("--tenant", "people")
    assert typed.ok("memory", "list", "notes", *of).split() == ["KEY", "VERSION", "TAINT", "other", "1"]
    assert typed.json("memory", "list", "notes", *of) == [{"key": "other", "version": 1, "untrusted": False}]
    assert "remembers nothing" in typed.ok("memory", "list", "elsewhere", *of)
    shown = typed.ok("memory", "show", "notes", "plan", *of)
    assert [line.split()[:2] for line in shown.splitlines()[1:]] == [
        ["3", "(nothing)"],
        ["2", '"next"'],
        ["1", r'{"a":"\u200bhidden"}'],
    ]
    assert "untrusted" in shown.splitlines()[3]
    asked = ("erase", "notes", "plan", *of, "--to", "2", "--reason", "ann asked", "--by", "bob")
    assert typed.ok("memory", *asked) == "erased 2 of plan: version 1, 2\n"
    assert "(erased by bob: ann asked)" in typed.ok("memory", "show", "notes", "plan", *of)
    assert "not erased already" in typed.refused(1, "memory", *asked)
    assert "use the DSN of another role" in typed.refused(2, "memory", *asked, role="reader")
    assert typed.refused(2, "memory", "show", "notes", "nothing", *of).startswith(
        "tenant people has no nothing"
    )
