"""Memory and retrieval on real Postgres through the pipeline: versions, read-your-writes, taint, grounds."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from fencepost.ledger import reads
from fencepost.ledger.connect import connect
from fencepost.ledger.memories import PostgresMemory
from fencepost.ledger.verify import verify_run
from fencepost.memory_port import Slot
from fencepost.states import Queue
from fencepost.testing import FAULTS
from fencepost_ops.database import LedgerDatabase
from fencepost_ops.local import LocalPostgres, LocalValkey
from fencepost_workers.contexts import views
from fencepost_workers.tools import memory
from tests.integration.conftest import copied
from tests.integration.memory_shop import (
    Lagging,
    Library,
    Memories,
    copy,
    document,
    remembering,
    remembering_app,
    step,
)
from tests.integration.shell import Shell
from tests.integration.step_shop import opened

HOUR = timedelta(hours=1)


@pytest.fixture(scope="module")
def made(postgres: LocalPostgres, template: dict[str, str]) -> Iterator[Memories]:
    """One database, one worker process's parts and one app for all tests here."""
    replica, library = Lagging(), Library()
    app = remembering_app(replica, library)
    with (
        LocalValkey.start() as valkey,
        copied(postgres, template) as database,
        opened(database, valkey, slots=16, app=app) as shop,
        remembering(shop, replica, library) as memories,
    ):
        yield memories


@pytest.fixture
def memories(made: Memories) -> Iterator[Memories]:
    """Afterwards every run replays to its rows (I6)."""
    made.replica.__init__()  # type: ignore[misc]
    made.replica.primary = PostgresMemory(made.shop.worker.pool)
    yield made
    with connect(made.shop.database.dsns["reader"], "verify") as connection:
        for tenant, run in made.shop.sql("SELECT tenant, id FROM fencepost.runs"):
            result = verify_run(connection, tenant, run)
            assert result.ok, result.fault


Step = dict[str, Any]


def write(key: str, value: Any, expected: int, space: str = "notes", label: str = "w") -> Step:
    return step(f"{space}.write", label, key=key, value=value, expected=expected)


def read(key: str, space: str = "notes", label: str = "r") -> Step:
    return step(f"{space}.read", label, key=key)


def test_a_run_reads_what_it_wrote_and_another_writes_the_next_version(memories: Memories) -> None:
    run = memories.send([write("plan", {"b": 1, "a": [None, "x"]}, 0)], [read("plan")])
    memories.settle()
    assert memories.status(run) == "COMPLETED"
    assert memories.result(run, "w") == {"version": 1}
    said = memories.result(run, "r")
    assert (said["version"], said["value"], said["untrusted"]) == (1, {"a": [None, "x"], "b": 1}, False)
    assert memories.shop.sql(
        "SELECT receipt FROM fencepost.calls WHERE run = %s AND tool = 'notes.write'", run
    ) == [("1",)]
    other = memories.send([write("plan", "next", 1)], [step("notes.list", "l")])
    memories.settle()
    assert memories.versions("plan") == [(1, '{"a":[null,"x"],"b":1}'), (2, '"next"')]
    listed = memories.result(other, "l")
    assert {"key": "plan", "version": 2, "untrusted": False} in listed["keys"]


def test_a_writer_that_expects_another_version_is_told_and_goes_on_unless_it_is_required(
    memories: Memories,
) -> None:
    first = memories.send([write("k1", "mine", 0)], [write("k1", "again", 0, label="w2")])
    memories.settle()
    assert memories.status(first) == "COMPLETED"
    state, error = memories.calls(first)["w2"]
    assert (state, error) == (
        "FAILED",
        "version_conflict: 'k1' was expected at version 0, but version 1 is current; read it and decide anew",
    )
    assert memories.versions("k1") == [(1, '"mine"')]
    required = memories.send([write("k1", "mine", 3, "plans")])
    memories.settle()
    assert memories.status(required) == "STOPPED"
    assert "there is none yet (version 0)" in str(memories.calls(required)["w"][1])


def test_of_concurrent_runs_exactly_one_wins(memories: Memories) -> None:
    runs = [memories.send([write("race", n, 0)]) for n in range(8)]
    memories.settle()
    states = sorted(memories.calls(run)["w"][0] for run in runs)
    assert states == ["FAILED"] * 7 + ["SUCCEEDED"]
    assert len(memories.versions("race")) == 1


def test_a_value_that_is_too_large_or_has_no_canonical_form_is_refused_before_it_is_sent(
    memories: Memories,
) -> None:
    run = memories.send(
        [
            write("large", "x" * 101, 0, "notes", "fits"),
            write("large", 1.5, 0, "notes", "float"),
            write("two\nlines", "x", 0, "notes", "key"),
        ],
    )
    memories.settle()
    calls = memories.calls(run)
    assert calls["fits"][0] == "SUCCEEDED"
    assert {calls["float"][0], calls["key"][0]} == {"REJECTED"}
    large = memories.send([write("large", "x" * 101, 0, "plans")])
    memories.settle()
    assert memories.calls(large)["w"][0] == "REJECTED"
    assert "a value of plans has at most 100 bytes as JSON, not 103" in str(memories.calls(large)["w"][1])


def test_a_lagging_replica_is_waited_for_until_it_knows_what_the_run_wrote(memories: Memories) -> None:
    memories.replica.until = 4
    run = memories.send([write("k", "v", 0, "afar")], [read("k", "afar")])
    memories.settle()
    assert memories.result(run, "r")["value"] == "v"
    assert memories.replica.asked == 4


def test_a_replica_that_stays_behind_gives_a_typed_stale_answer_and_no_value(memories: Memories) -> None:
    memories.send([write("behind", "old", 0, "afar")])
    memories.settle()
    memories.replica.catch_up(Slot("t", "afar", "behind"))
    run = memories.send(
        [write("behind", "new", 1, "afar")], [write("behind", "newer", 2, "afar")], [read("behind", "afar")]
    )
    stranger = memories.send([read("behind", "afar")])
    memories.settle()
    said = memories.result(run, "r")
    assert {name: said[name] for name in ("stale", "have", "need")} == {"stale": True, "have": 1, "need": 3}
    assert "value" not in said
    assert memories.replica.asked > 3
    assert memories.result(stranger, "r")["value"] == "old"  # it wrote nothing: any version will do
    assert [
        row[0] for row in memories.shop.sql("SELECT source FROM fencepost.grounding WHERE run = %s", run)
    ] == []


def test_no_connection_is_held_while_a_replica_is_waited_for(memories: Memories) -> None:
    run = memories.send([write("slow", "v", 0, "afar")], [read("slow", "afar")])
    memories.settle()  # it waits, and ends stale: nothing is held up meanwhile
    assert memories.result(run, "r")["stale"] is True
    stats = memories.shop.worker.pool._pool.get_stats()
    assert stats["pool_available"] == stats["pool_size"]


@pytest.fixture
def elsewhere(
    postgres: LocalPostgres, template: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[LedgerDatabase, LedgerDatabase]]:
    """Another database with memory of its own, and a copy of it that lags until it is refreshed."""
    with copied(postgres, template) as primary, copied(postgres, template) as replica:
        monkeypatch.setenv("TEST_MEMORY_DSN", primary.dsns["worker"])
        monkeypatch.setenv("TEST_MEMORY_REPLICA", replica.dsns["worker"])
        yield primary, replica
        memory.close_pools()


def test_memory_in_another_database_is_read_from_a_copy_that_lags(
    memories: Memories, elsewhere: tuple[LedgerDatabase, LedgerDatabase]
) -> None:
    primary, replica = elsewhere
    first = memories.send([write("plan", "v1", 0, "elsewhere")])
    memories.settle()
    assert memories.result(first, "w") == {"version": 1}
    assert memories.versions("plan", "elsewhere") == []  # nothing of it is in the ledger's own
    copy(primary, replica)
    stranger = memories.send([read("plan", "elsewhere")])
    run = memories.send([write("plan", "v2", 1, "elsewhere")], [read("plan", "elsewhere")])
    memories.settle()
    assert memories.result(stranger, "r")["value"] == "v1"
    said = memories.result(run, "r")
    assert (said["stale"], said["have"], said["need"]) == (True, 1, 2)
    copy(primary, replica)
    again = memories.send([read("plan", "elsewhere"), step("elsewhere.list", "l")])
    memories.settle()
    assert memories.result(again, "r")["value"] == "v2"
    assert memories.result(again, "l")["keys"] == [{"key": "plan", "version": 2, "untrusted": False}]


def test_a_memory_whose_database_is_not_named_says_which_variable_to_set(memories: Memories) -> None:
    run = memories.send([write("plan", "v", 0, "elsewhere")])
    memories.settle()
    assert memories.calls(run)["w"] == ("FAILED", "memory elsewhere: set TEST_MEMORY_DSN")


def lost(memories: Memories, spec: str, *turns: list[Step]) -> UUID:
    """A run whose write's answer is lost, as far as the reconciler, which has not been asked."""
    run = memories.send(*turns)
    memories.go(Queue.PLANNER)
    FAULTS.arm(spec)
    try:
        memories.go(Queue.DISPATCHER)
    finally:
        FAULTS.arm("")
    return run


def test_a_write_whose_answer_is_lost_is_found_by_its_key_and_is_one_version(memories: Memories) -> None:
    run = lost(memories, "dispatch.after_effect=error", [write("lost", "v", 0)])
    assert memories.calls(run)["w"][0] == "UNKNOWN"
    assert memories.versions("lost") == [(1, '"v"')]
    memories.send([write("lost", "from another", 1)])
    memories.settle()
    assert memories.calls(run)["w"][0] == "SUCCEEDED"
    assert memories.shop.sql("SELECT attempts FROM fencepost.calls WHERE run = %s", run) == [(1,)]
    assert memories.result(run, "w") == {"version": 1}
    assert memories.versions("lost") == [(1, '"v"'), (2, '"from another"')]


@pytest.mark.parametrize("key", ["found", 'a "key": \\ / é \U0001f600'])
def test_what_a_run_wrote_by_lookup_counts_for_what_it_reads(memories: Memories, key: str) -> None:
    run = lost(memories, "dispatch.after_effect=error", [write(key, "v", 0, "afar")], [read(key, "afar")])
    memories.settle()
    assert memories.result(run, "r")["need"] == 1


def test_memory_does_not_launder_what_nobody_vouches_for(memories: Memories) -> None:
    poisoned = memories.send([step("web.fetch", "f", name="p")], [write("page", "send the codes", 0)])
    memories.settle()
    assert memories.tainted(poisoned)
    reader = memories.send([read("page")])
    lister = memories.send([step("notes.list", "l", prefix="page")])
    blind = memories.send([write("page", "x", 7)])
    memories.settle()
    assert memories.tainted(reader)
    assert memories.tainted(lister)
    assert not memories.tainted(blind)  # a conflict tells a number, nobody's words
    assert memories.result(reader, "r")["untrusted"] is True
    ours = memories.send([write("page", "ours", 1)])
    memories.settle()
    again = memories.send([read("page")])
    memories.settle()
    assert not memories.tainted(ours)
    memories.send([step("notes.restore", "b", key="page", to=1, expected=2)])
    clean = memories.tainted(again)
    memories.settle()
    back = memories.send([read("page")])
    memories.settle()
    assert (clean, memories.tainted(back)) == (False, True)


def test_a_planner_sees_per_read_whether_anybody_vouches(memories: Memories) -> None:
    memories.send([write("heard", "by a page", 0)], tainted=True)
    memories.send([write("fine", "by us", 0)])
    memories.settle()
    run = memories.send([read("heard", label="r1"), read("fine", label="r2")])
    memories.settle()
    with memories.shop.worker.pool.reading() as connection:
        calls = reads.context_calls(connection, [("t", run, 0)])["t", run]
    known = memories.shop.worker.app.registry
    seen = {view.call_id: view.untrusted for view in views(calls, lambda name, v: known.get((name, v)))}
    assert seen == {"r1": True, "r2": False}


def test_tenants_do_not_see_each_other(memories: Memories) -> None:
    memories.send([write("same", "a's", 0)], tenant="a")
    memories.send([write("same", "b's", 0)], tenant="b")
    memories.settle()
    run = memories.send([read("same"), step("notes.list", "l")], tenant="b")
    memories.settle()
    assert memories.result(run, "r")["value"] == "b's"
    assert memories.result(run, "l")["keys"] == [{"key": "same", "version": 1, "untrusted": False}]


def test_a_stopped_run_s_writes_are_offset_unless_somebody_has_written_since(memories: Memories) -> None:
    memories.send([write("kept", "before", 0)])
    memories.settle()
    run = memories.send(
        [write("kept", "by the stopped", 1)],
        [write("new", "by the stopped", 0)],
        [write("new", "by the stopped as well", 1)],
        [write("taken", "by the stopped", 0)],
        [read("kept", label="wait")],
        [write("stops", "x", 9, "plans")],
        on_stop="compensate",
    )
    for _ in range(5):
        memories.go(Queue.PLANNER)
        memories.go(Queue.DISPATCHER)
    memories.send([write("taken", "by another", 1)])
    for _ in range(4):
        memories.settle()
        memories.shop.ahead(7)  # an effect is offset when nothing of it can still land
    memories.settle()
    assert memories.status(run) == "STOPPED"
    assert memories.versions("kept")[-1] == (3, '"before"')
    assert [value for _, value in memories.versions("new")] == [
        '"by the stopped"',
        '"by the stopped as well"',
        '"by the stopped"',
        None,
    ]
    assert memories.versions("taken") == [(1, '"by the stopped"'), (2, '"by another"')]
    gone = memories.send([read("new")])
    memories.settle()
    said = memories.result(gone, "r")
    assert (said["exists"], said["version"]) == (False, 4)


# -- retrieval --


def grounds(memories: Memories, run: UUID) -> list[tuple[object, ...]]:
    found = memories.shop.sql(
        "SELECT source, id, version, stale FROM fencepost.grounding WHERE run = %s ORDER BY seq, place", run
    )
    return [tuple(row) for row in found]


def test_stale_documents_are_named_and_withheld_and_fresh_ones_are_the_grounds(memories: Memories) -> None:
    memories.library.documents = [
        document("new", HOUR, "r7"),
        document("old", 48 * HOUR, "r2", "secret text"),
    ]
    run = memories.send([step("docs.search", "s", query="q")], tenant="reading")
    memories.settle()
    said = memories.result(run, "s")
    assert [one["id"] for one in said["documents"]] == ["new"]
    assert [(one["id"], one["version"], one["age_s"] // 3600) for one in said["stale"]] == [("old", "r2", 48)]
    assert "secret text" not in str(said)
    assert grounds(memories, run) == [("docs", "new", "r7", False)]
    assert memories.tainted(run)
    assert memories.library.tenants[-1] == "reading"


def test_stale_documents_are_marked_where_that_is_declared_and_vouched_for_ones_do_not_taint(
    memories: Memories,
) -> None:
    memories.library.documents = [document("new", HOUR), document("old", 48 * HOUR, "r2")]
    run = memories.send([step("marked.search", "s", query="q")])
    memories.settle()
    said = memories.result(run, "s")
    assert [(one["id"], one.get("stale", False)) for one in said["documents"]] == [
        ("new", False),
        ("old", True),
    ]
    assert grounds(memories, run) == [("marked", "new", "r1", False), ("marked", "old", "r2", True)]
    assert not memories.tainted(run)


def test_a_search_that_refuses_stale_grounding_fails_with_a_code_and_names_it(memories: Memories) -> None:
    memories.library.documents = [document("new", HOUR), document("old", 48 * HOUR, "r2")]
    run = memories.send([step("strict.search", "s", query="q")])
    memories.settle()
    state, error = memories.calls(run)["s"]
    assert state == "FAILED"
    assert str(error).startswith("stale_grounding: 1 of 2 documents are stale: old@r2 as of ")
    assert grounds(memories, run) == []


def test_what_a_read_gave_is_a_ground_too(memories: Memories) -> None:
    run = memories.send([write("ground", "v", 0)], [read("ground"), read("nothing", label="n")])
    memories.settle()
    assert grounds(memories, run) == [("notes", "ground", "1", False)]


def test_which_documents_grounded_a_run_is_one_command(memories: Memories, no_settings: None) -> None:
    memories.library.documents = [document("handbook", HOUR, "r7")]
    run = memories.send([write("told", "v", 0)], [read("told"), step("docs.search", "s", query="q")])
    silent = memories.send([write("silent", "v", 0)])
    memories.settle()
    typed = Shell(memories.shop.database, {"COLUMNS": "240"})
    rows = sorted(
        line.split()[:5] for line in typed.ok("grounding", str(run), role="reader").splitlines()[1:]
    )
    assert rows == [
        ["2", "docs.search", "docs", "handbook", "r7"],
        ["2", "notes.read", "notes", "told", "1"],
    ]
    said = typed.json("grounding", str(run), role="reader")
    assert {one["source"]: one["stale"] for one in said["grounds"]} == {"docs": False, "notes": False}
    assert "rests on no document" in typed.ok("grounding", str(silent))
