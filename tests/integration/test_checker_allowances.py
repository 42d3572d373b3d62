"""Allowances before the checker: counters that are not as told, and attempts beyond a limit (I13)."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from unittest.mock import patch
from uuid import UUID

import psycopg
import pytest

from fencepost import commands as c
from fencepost.allowances import Allowance
from fencepost.decide import allow
from fencepost.ledger import allowances as counters
from fencepost.recovery import Answer
from fencepost_ops.checker import Report, Violation, check
from tests.integration.allowed import DONE, NOT_DONE, NOT_YET, Allowed, name, under
from tests.integration.ledger_bench import Bench
from tests.integration.recovering import doubted, released_afterwards, restore


def checked(bench: Bench, *runs: UUID) -> Report:
    with psycopg.connect(bench.database.dsns["reader"], autocommit=True) as connection:
        return check(connection, None, settled=False, runs=runs or None)


def found(report: Report, allowance: str) -> list[Violation]:
    """What I13 has against an allowance. Nothing else may be violated: other tests leave nothing behind."""
    broken = {verdict.invariant: verdict.violations for verdict in report.verdicts if verdict.violations}
    assert set(broken) <= {"I13"}, broken
    mine = [violation for violation in broken.get("I13", ()) if f"allowance {allowance}" in violation.message]
    assert len(mine) == len(broken.get("I13", ())), broken
    return mine


@contextmanager
def unguarded(bench: Bench) -> Iterator[None]:
    """Postgres lets counters be anything."""
    bench.sql("ALTER TABLE fencepost.allowances DISABLE TRIGGER guard_allowance")
    try:
        yield
    finally:
        bench.sql("ALTER TABLE fencepost.allowances ENABLE TRIGGER guard_allowance")


def _history(allowed: Allowed) -> list[UUID]:
    """A call that succeeds, one that fails and is found to have happened, one that holds, one refused."""
    bench = allowed.bench
    calls = allowed.calls(4)
    bench.record(*allowed.sent(calls[0]), DONE)
    send, term = allowed.sent(calls[1])
    bench.record(send, term, NOT_DONE)
    bench.record(*allowed.sent(calls[2]), NOT_YET)
    bench.one(bench.evidence(send, term, DONE))
    allowed.refused(calls[3])
    return calls


def test_what_is_used_held_given_back_and_came_to_light_is_what_histories_tell(bench: Bench) -> None:
    few = name()
    with under(bench, Allowance(id=few, count=2, window=timedelta(days=3000))) as allowed:
        _history(allowed)
        assert allowed.used(few) == [(3, 0)]
        report = checked(bench)
        assert found(report, few) == []
        assert next(v for v in report.verdicts if v.invariant == "I13").count > 0


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("UPDATE fencepost.allowances SET used_count = 2 WHERE allowance = %s", "counts 2 calls"),
        ("UPDATE fencepost.allowances SET used_minor = 7 WHERE allowance = %s", "and 7"),
        ("DELETE FROM fencepost.allowances WHERE allowance = %s", "is gone"),
    ],
)
def test_a_counter_that_is_not_what_histories_tell_is_found(bench: Bench, change: str, says: str) -> None:
    few = name()
    with under(bench, Allowance(id=few, count=2)) as allowed:
        _history(allowed)
        kept = bench.sql("SELECT to_json(a) FROM fencepost.allowances a WHERE allowance = %s", few)[0][0]
        with unguarded(bench):
            bench.sql(change, few)
            (violation,) = found(checked(bench), few)
            assert says in violation.message
            assert "histories tell of 3 calls" in violation.message
            bench.sql("DELETE FROM fencepost.allowances WHERE allowance = %s", few)
            put = (
                "INSERT INTO fencepost.allowances SELECT * FROM json_populate_record(%s::fencepost.allowances"
            )
            put = put.replace("%s::fencepost.allowances", "NULL::fencepost.allowances, %s")
            bench.sql(put + ")", json.dumps(kept))
        assert found(checked(bench), few) == []


def test_of_some_runs_alone_a_counter_is_not_added_up(bench: Bench) -> None:
    few = name()
    with under(bench, Allowance(id=few, count=2)) as allowed:
        calls = _history(allowed)
        report = checked(bench, bench.call(calls[0]).run)
        assert found(report, few) == []
        (notes,) = [verdict.notes for verdict in report.verdicts if verdict.invariant == "I13"]
        assert notes == ("counters of allowances also count runs that were not read: check --all adds up",)
        (notes,) = [verdict.notes for verdict in checked(bench).verdicts if verdict.invariant == "I13"]
        assert notes == ()


def test_a_counter_of_which_no_history_tells_is_found(bench: Bench) -> None:
    few = name()
    with unguarded(bench):
        bench.sql(
            "INSERT INTO fencepost.allowances (tenant, key, allowance, first_call, used_count)"
            " VALUES ('shop', 'x', %s, gen_random_uuid(), 1)",
            few,
        )
        (violation,) = found(checked(bench), few)
        assert "histories tell of 0 calls" in violation.message
        bench.sql("DELETE FROM fencepost.allowances WHERE allowance = %s", few)


def test_an_effect_of_a_lost_time_that_nobody_could_count_is_noted_and_one_that_was_counted_is_not(
    bench: Bench,
) -> None:
    few = name()
    with under(bench, Allowance(id=few, count=1)) as allowed, released_afterwards(bench):
        calls = allowed.calls(2)  # and whatever other tests have left is marked as well
        knowing, bench.operator = bench.operator, bench.ledger_as("operator", **allowed.changes)
        try:
            restore(bench)
        finally:
            bench.operator = knowing
        for call in calls:
            order, term = doubted(bench, bench.call(call).run, call)
            assert bench.one(bench.looked_up(order, term, Answer.FOUND, "r-1")) == c.Done("SUCCEEDED")
        assert [allowed.held(call) for call in calls] == [[few], [few]]
        assert (found(checked(bench), few), _notes(bench)) == ([], ())
    with released_afterwards(bench):
        (call,) = allowed.calls(1)
        restore(bench)
        order, term = doubted(bench, bench.call(call).run, call)
        bench.one(bench.looked_up(order, term, Answer.FOUND, "r-1"))
        (note,) = _notes(bench)
        assert f"whether call {call} (wallet.debit) counts in any allowance is not told" in note


def _notes(bench: Bench) -> tuple[str, ...]:
    (notes,) = [verdict.notes for verdict in checked(bench).verdicts if verdict.invariant == "I13"]
    return notes


def test_a_counter_may_be_gone_a_day_after_its_window_and_no_sooner(bench: Bench) -> None:
    few = name()
    with under(bench, Allowance(id=few, count=2, window=timedelta(minutes=1))) as allowed:
        bench.record(*allowed.sent(allowed.calls(1)[0]), DONE)
        kept = bench.sql("SELECT to_json(a) FROM fencepost.allowances a WHERE allowance = %s", few)[0][0]
        with unguarded(bench):
            bench.sql("DELETE FROM fencepost.allowances WHERE allowance = %s", few)
            assert len(found(checked(bench), few)) == 1
            bench.sql(
                "INSERT INTO fencepost.allowances"
                " SELECT * FROM json_populate_record(NULL::fencepost.allowances, %s)",
                json.dumps(kept),
            )
        bench.ahead(86400 + 60)
        with bench.pools[0].connection() as connection:
            counters.forget(connection)
        assert allowed.used(few) == []
        assert found(checked(bench), few) == []


def test_attempts_beyond_a_limit_are_found_and_named(bench: Bench) -> None:
    # The last of this file: what it leaves behind stays violated.
    few = name()
    with under(bench, Allowance(id=few, count=2)) as allowed:
        calls = allowed.calls(3)
        nothing: Any = None
        with unguarded(bench), patch.object(allow, "refused", lambda _share, _used: nothing):
            for call in calls:
                assert isinstance(allowed.claimed(call), c.Send)
        (violation,) = found(checked(bench), few)
        assert f"with it 3 calls of allowance {few}, whose limit is 2, were held" in violation.message
        assert (violation.call, violation.attempt) == (calls[2], 1)
