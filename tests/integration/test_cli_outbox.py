"""`fencepost outbox`: what is set aside, how it is sent again, and what nobody claims."""

import re
from collections.abc import Iterator
from uuid import UUID

import psycopg
import pytest

from fencepost_ops.checker import check
from fencepost_ops.database import LedgerDatabase
from tests.integration.checker_world import PaperBooks
from tests.integration.ledger_bench import Bench, open_bench
from tests.integration.shell import Shell

DIE = (
    "UPDATE fencepost.outbox SET failures = 5, error = 'LookupError: no such thing', publish_count = 0,"
    " dead_at = fencepost.now() WHERE subject = %s"
)
ROW = (
    "SELECT generation, failures, error, dead_at IS NULL, publish_count, publish_at <= fencepost.now()"
    " FROM fencepost.outbox WHERE subject = %s"
)
SENT = [(1, 0, None, True, 0, True)]


@pytest.fixture
def bench(database: LedgerDatabase) -> Iterator[Bench]:
    with open_bench(database) as opened:
        yield opened


def unsettled(bench: Bench) -> tuple[list[str], tuple[str, ...]]:
    """What the checker has against a fleet at rest, and what it says waits for a person."""
    with psycopg.connect(bench.database.dsns["reader"], autocommit=True) as reader:
        report = check(reader, PaperBooks(), settled=True)
    return report.violated, report.waiting


def test_what_is_set_aside_is_shown_wherever_something_waits_for_a_person(bench: Bench, shell: Shell) -> None:
    assert shell.ok("outbox", "--dead") == "nothing is set aside\n"
    run, other = bench.enqueue("o-1"), bench.enqueue("o-2")
    assert unsettled(bench)[0] == ["I12"]
    bench.sql(DIE, run)

    told = shell("outbox", "--dead")
    assert told.exit_code == 1
    assert re.search(r"planner p v1 run o-1: set aside for \d+(\.\d+)? m?s\n", told.output)
    assert f"  run     {run} (generation 1, for the planner)\n" in told.output
    assert "  why     failed 5 times; LookupError: no such thing\n" in told.output
    assert f"  next    a person: mend the cause, then fencepost outbox requeue {run}\n" in told.output
    (row,) = shell.json("outbox", "--dead", exit_code=1, role="reader")
    assert (row["subject"], row["run_key"], row["state"], row["failures"]) == (
        str(run),
        "o-1",
        "SET_ASIDE",
        5,
    )

    (queue,) = shell.json("outbox")
    assert (queue["rows"], queue["dead"]) == (2, 1)
    assert re.search(r"planner +2 +1 +\S+ m?s +0 +0 +1 ", shell.ok("outbox"))
    assert f"requeue {run}" in shell("unresolved").output
    assert [one["state"] for one in shell.json("unresolved", exit_code=1)] == ["SET_ASIDE"]
    assert [one["run_key"] for one in shell.json("runs", "--stuck")] == ["o-1"]
    shown = shell.ok("show", "o-1")
    assert "set aside: the run: the planner is asked for a turn; failed 5 times: LookupError" in shown
    assert f"send it again: fencepost outbox requeue {run}" in shown

    bench.sql(DIE, other)
    violated, waiting = unsettled(bench)
    assert violated == []
    for one in (run, other):
        assert any(f"fencepost outbox requeue {one}" in text for text in waiting)


def test_what_is_sent_again_is_due_under_its_generation_and_may_fail_anew(bench: Bench, shell: Shell) -> None:
    assert shell.refused(1, "outbox", "requeue", "--all") == "nothing is set aside"
    run, other, third = (bench.enqueue(f"o-{n}") for n in (1, 2, 3))
    told = shell.refused(1, "outbox", "requeue", "o-1")
    assert told == "nothing is set aside under 'o-1'; see fencepost outbox --dead"
    for one in (run, other, third):
        bench.sql(DIE, one)

    assert shell.ok("outbox", "requeue", str(run)[:23]) == (
        f"run {run} of run o-1 is sent again to the planner\n"
    )
    assert bench.sql(ROW, run) == SENT
    assert "nothing is set aside under" in shell.refused(1, "outbox", "requeue", str(run))
    assert str(other) in shell.ok("outbox", "requeue", "o-2")
    assert "this login may not do that" in shell.refused(2, "outbox", "requeue", "--all", role="reader")
    assert [one["subject"] for one in shell.json("outbox", "requeue", "--all")] == [str(third)]
    assert [bench.sql(ROW, one) for one in (other, third)] == [SENT, SENT]
    assert "name what to send again, or give --all" in shell.refused(2, "outbox", "requeue")
    assert "name what" in shell.refused(2, "outbox", "requeue", "o-1", "--all")
    assert "not both" in shell.refused(2, "outbox", "--dead", "--unclaimed")


def test_a_dead_step_of_a_run_does_not_stop_its_others_nor_a_cancel(bench: Bench, shell: Shell) -> None:
    run = bench.enqueue("o-1")
    first, second = bench.plan(run, ("wallet.debit", {"order": "a"}), ("wallet.debit", {"order": "b"}))
    bench.sql(DIE, first)
    assert bench.one(bench.claim_call(run, second, bench.term())) is not None
    assert bench.state(second) == "DISPATCHING"
    assert bench.sql("SELECT dead_at IS NULL FROM fencepost.outbox WHERE subject = %s", first) == [(False,)]
    violated, waiting = unsettled(bench)
    assert violated == ["I12"], "the other call is still at work"
    assert any(f"requeue {first}" in text for text in waiting)

    shell.ok("cancel", "o-1", "--reason", "not wanted")
    assert bench.state(first) == "CANCELLED"
    assert bench.sql("SELECT 1 FROM fencepost.outbox WHERE subject = %s", first) == []


def test_a_cancel_takes_back_a_run_that_was_set_aside(bench: Bench, shell: Shell) -> None:
    run = bench.enqueue("o-1")
    (call,) = bench.plan(run, ("wallet.debit", {"order": "a"}))
    bench.one(bench.claim_call(run, call, bench.term()))
    bench.sql(DIE, run)
    shell.ok("cancel", "o-1", "--reason", "not wanted")
    row = "SELECT queue, failures, error, dead_at FROM fencepost.outbox WHERE subject = %s"
    assert bench.sql(row, run) == [("compensator", 0, None, None)]


def test_what_is_published_and_never_claimed_is_listed_with_what_it_needs(bench: Bench, shell: Shell) -> None:
    assert shell.ok("outbox", "--unclaimed") == "whatever was published was claimed, or is new\n"
    run, new, failing = bench.enqueue("o-1"), bench.enqueue("o-2"), bench.enqueue("o-3")
    bench.sql("UPDATE fencepost.outbox SET publish_count = 7 WHERE subject = %s", run)
    bench.sql("UPDATE fencepost.outbox SET publish_count = 1 WHERE subject = %s", new)
    bench.sql("UPDATE fencepost.outbox SET failures = 2, error = 'so' WHERE subject = %s", failing)
    found = {UUID(row["subject"]): row for row in shell.json("outbox", "--unclaimed", role="reader")}
    assert found.keys() == {run, failing}
    assert (found[run]["published"], found[run]["state"], found[run]["name"]) == (7, "TRIED", "p")
    assert re.search(r"planner +o-1 +planner p v1 +\S+ m?s +7 +0 ", shell.ok("outbox", "--unclaimed"))
