"""`fencepost stats`: every figure against a history made by hand, and what reading it costs."""

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from uuid import UUID

import psycopg
import pytest

from fencepost import commands as c
from fencepost.ledger import stats
from fencepost.ledger.connect import connect
from fencepost.ledger.held import held
from fencepost.mcp import CHANGED
from fencepost.outcomes import Applied, Refused, Unsure
from fencepost.recovery import Answer
from fencepost_ops.database import LedgerDatabase
from tests.integration.ledger_bench import Bench, open_bench
from tests.integration.shell import Shell, needs_repair

DAY = timedelta(days=1)


@pytest.fixture
def bench(database: LedgerDatabase) -> Iterator[Bench]:
    with open_bench(database) as opened:
        yield opened


def measured(bench: Bench, since: timedelta = DAY, most: int = stats.MOST) -> stats.Stats:
    with connect(bench.database.dsns["reader"], "test", autocommit=True) as connection:
        return stats.read_stats(connection, since, most=most)


def answered(bench: Bench, send: c.Send, term: c.Term, outcome: object, requests: int = 1) -> None:
    record = bench.outcome(send, term, outcome)  # type: ignore[arg-type]
    bench.one(replace(record, requests=requests))


def refused_then_applied(bench: Bench, requests: int = 1) -> UUID:
    """A run with one debit: due 2 s before it was taken, a 429 after 1 s, applied at the second attempt."""
    run = bench.start()
    call = bench.debit(run, bench.order())
    bench.ahead(2)
    send, term = bench.dispatch(run, call)
    bench.ahead(1)
    answered(bench, send, term, Refused("429", "slow down", retryable=True))
    bench.ahead(1)
    send, term = bench.dispatch(run, call)
    answered(bench, send, term, Applied('{"id":"d-1"}', "d-1"), requests)
    assert bench.finish(run) == c.Done("COMPLETED")
    return run


def test_attempts_and_requests_are_counted_by_tool(bench: Bench) -> None:
    for _ in range(3):
        refused_then_applied(bench)
    refused_then_applied(bench, requests=2)
    needs_repair(bench)
    found = {tool.tool: tool for tool in measured(bench).tools}
    debit, note = found["wallet.debit"], found["wallet.note"]
    assert (debit.dependency, debit.calls, debit.attempts, debit.amplification) == ("wallet/default", 4, 8, 2)
    assert (debit.answered, debit.requests, debit.hidden, debit.failed) == (8, 9, 1, 4)
    assert debit.requests_per_attempt == 9 / 8
    assert (note.calls, note.attempts, note.unknown, note.amplification) == (1, 1, 1, 1)


def test_repeats_and_sharing_are_counted_by_key(bench: Bench) -> None:
    refused_then_applied(bench)
    order = bench.order()
    first = bench.start()
    bench.succeed(first, bench.debit(first, order))
    bench.succeed_by_reuse(bench.start(), order)
    keys = measured(bench).keys
    assert (keys.keys, keys.shared, keys.repeated, keys.repeats) == (2, 1, 1, 1)
    assert (keys.most_attempts, keys.most_calls) == (2, 2)


def test_each_hop_is_measured_between_its_own_events(bench: Bench) -> None:
    run = bench.start(deadline_s=600)
    bench.ahead(1)
    claim = bench.claim_run(run)
    bench.one(claim)
    bench.ahead(4)  # the model thinks
    record = bench.turn(run, claim, ("wallet.debit", {"order": bench.order()}))
    bench.one(record)
    (call,) = record.call_ids
    bench.ahead(8)  # the call waits
    send, term = bench.dispatch(run, call)
    bench.ahead(1.5)  # the tool works
    bench.record(send, term, Unsure("timeout", "no answer"))
    bench.ahead(3)
    ask, asking = bench.reconcile(run, call)
    bench.ahead(1.9)  # it is asked
    bench.one(bench.looked_up(ask, asking, Answer.FOUND, "d-1"))
    hops = {hop.name: hop for hop in measured(bench).hops}
    near = {"model": 4, "tool": 1.5, "lookup": 1.9}
    for name, seconds in near.items():
        assert hops[name].count == 1
        assert seconds <= hops[name].p50.total_seconds() < seconds + 1
    assert hops["queue"].count == 3  # the run, the call, the call in doubt
    assert 8 <= hops["queue"].longest.total_seconds() < 9
    assert 2 < hops["queue"].p50.total_seconds() < 4


def test_a_pause_before_another_attempt_is_backoff(bench: Bench) -> None:
    run = bench.start(deadline_s=600)
    call = bench.debit(run, bench.order(), "slow.pay")
    send, term = bench.dispatch(run, call)
    record = replace(bench.outcome(send, term, Refused("429", "later", retryable=True)), rand=0.5)
    bench.one(record)
    (hop,) = [hop for hop in measured(bench).hops if hop.name == "backoff"]
    due = bench.call(call).ready_at - bench.events(run)[-1].recorded_at
    assert hop.p50 == due
    assert due > timedelta(seconds=1)


def test_what_is_unresolved_and_open_is_told_by_age(bench: Bench) -> None:
    needs_repair(bench, "o-1")
    bench.ahead(3700)
    run = bench.enqueue("o-2")
    call = bench.debit(run, "o-2")
    send, term = bench.dispatch(run, call)
    bench.record(send, term, Unsure("timeout", "no answer"))
    found = measured(bench)
    assert [(aged.state, aged.count, aged.above) for aged in found.unresolved] == [
        ("UNKNOWN", 1, timedelta(0)),
        ("NEEDS_REPAIR", 1, timedelta(hours=1)),
    ]
    assert [(aged.state, aged.above, aged.below) for aged in found.open_runs] == [
        ("ACTING", timedelta(0), timedelta(seconds=1)),
        ("ACTING", timedelta(hours=1), timedelta(days=1)),
    ]


def test_finished_runs_are_told_by_how_long_they_took(bench: Bench) -> None:
    refused_then_applied(bench)
    (done,) = measured(bench).finished
    assert (done.name, done.count) == ("COMPLETED", 1)
    assert 4 <= done.p50.total_seconds() < 8


def test_only_the_period_is_counted(bench: Bench) -> None:
    refused_then_applied(bench)
    bench.ahead(7200)
    refused_then_applied(bench)
    (both,) = measured(bench).tools
    (late,) = measured(bench, timedelta(hours=1)).tools
    assert (both.answered, late.answered) == (4, 2)


def test_of_a_long_period_only_the_newest_events_are_read_and_it_says_so(bench: Bench, shell: Shell) -> None:
    for _ in range(4):
        refused_then_applied(bench)
    whole, cut = measured(bench), measured(bench, most=20)
    assert not whole.cut
    assert cut.cut
    assert cut.events <= 20 < whole.events
    assert cut.tools[0].answered < whole.tools[0].answered
    told = shell.ok("stats", "--most", "20", role="reader")
    assert "only the newest were read: from " in told


def test_the_command_prints_and_its_json_has_every_figure(bench: Bench, shell: Shell) -> None:
    assert "no attempt was answered" in shell.ok("stats", role="reader")
    refused_then_applied(bench, requests=2)
    needs_repair(bench)
    told = shell.ok("stats", role="reader")
    assert re.search(r"wallet/default +wallet\.debit +1 +2 +2\.000 +3 +1\.500 +0 +1\n", told)
    assert "keys 2 · proposed by several calls 0" in told
    assert re.search(r"tool +3 +", told)
    assert re.search(r"unresolved: 1\n", told)
    found = shell.json("stats", "--since", "1h", role="reader")
    assert found["tools"][0]["amplification"] == 2.0
    assert set(found["hops"]) <= set(stats.HOPS)
    assert found["finished"]["COMPLETED"]["count"] == 1
    assert found["unresolved"][0]["state"] == "NEEDS_REPAIR"
    assert "a moment is 24h" in shell.refused(2, "stats", "--since", "yesterday")
    assert "this login may not do that" in shell.refused(2, "stats", role="producer")


def test_a_held_call_of_which_no_event_tells_has_been_held_since_now(bench: Bench) -> None:
    calls = [bench.debit(bench.start(), bench.order()) for _ in range(2)]
    with psycopg.connect(bench.database.owner) as owner:
        owner.execute("SET session_replication_role = replica")
        for call, why in zip(calls, (CHANGED, CHANGED.replace("_", "-")), strict=True):
            owner.execute("UPDATE fencepost.calls SET error = %s WHERE id = %s", [f"{why}: so", call])
    (aged,) = measured(bench).unresolved
    assert (aged.state, aged.count, aged.oldest < timedelta(seconds=1)) == ("HELD", 1, True)
    with connect(bench.database.dsns["reader"], "test", autocommit=True) as connection:
        assert [one.call for one in held(connection)] == calls[:1]


def test_no_statement_reads_a_whole_table(bench: Bench) -> None:
    refused_then_applied(bench)
    bench.sql("SET enable_seqscan = off")
    asked = stats._asked(bench.now() - DAY, bench.now(), bench.now(), 1000)
    for name, statement in stats.STATEMENTS.items():
        plan = psycopg.ClientCursor(bench.owner).execute("EXPLAIN " + statement, asked).fetchall()
        lines = [line for (line,) in plan]
        assert any("Index" in line for line in lines), name
        assert not [line for line in lines if re.search(r"Seq Scan on (events|calls|runs)", line)], lines
        assert name != "open" or any("runs_open" in line for line in lines)
