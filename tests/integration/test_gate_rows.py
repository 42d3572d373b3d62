"""The row of a dependency: changed only under its lock, and only by what is really sent or answered."""

import json
from typing import Any
from uuid import uuid4

import pytest

from fencepost import commands as c
from fencepost.breaker import State
from fencepost.ledger import health
from fencepost.outcomes import Refused
from tests.integration.ledger_bench import Bench
from tests.integration.test_gate import DONE, LOST, WALLET, close, fail, known, statements, waiting

__all__ = ["statements"]
PAST = '{"%s": "2020-01-01T00:00:00.000000Z"}'


def locked(said: list[str]) -> bool:
    return any("FROM fencepost.dependencies" in one and "FOR NO KEY UPDATE" in one for one in said)


def test_a_row_with_flights_of_a_limit_that_is_gone_is_written_under_its_lock(
    bench: Bench, statements: list[str]
) -> None:
    send, term = bench.dispatch(*waiting(bench))
    bench.sql("INSERT INTO fencepost.dependencies (scope, flights) VALUES (%s, %s)", WALLET, PAST % uuid4())
    statements.clear()
    assert bench.record(send, term, DONE) == c.Done("SUCCEEDED")
    assert locked(statements)
    assert (known(bench).flights, known(bench).version) == ("{}", 1)


def test_a_row_that_was_changed_meanwhile_is_not_overwritten(bench: Bench) -> None:
    fail(bench, 1)
    held = known(bench)
    for version, changed in ((held.version, 0), (held.version + 2, 0), (held.version + 1, 1)):
        row = health.values(held) | {"version": version}
        found = bench.owner.execute(health.UPDATE_DEPENDENCIES, [json.dumps([row], default=str)])
        assert found.rowcount == changed


def test_several_changes_of_a_row_in_one_batch_are_one(bench: Bench) -> None:
    sent = [bench.dispatch(*waiting(bench)) for _ in range(3)]
    answers: Any = bench.ledger.apply([bench.outcome(*one, LOST) for one in sent])
    assert answers == [c.Done("UNKNOWN")] * 3
    assert (known(bench).failures, known(bench).version) == (3, 1)


@pytest.mark.parametrize("why", ["denied", "changed"])
def test_a_repeat_that_is_not_sent_takes_no_place_of_a_probe(bench: Bench, why: str) -> None:
    run, call = waiting(bench, "wallet.hold")
    send, term = bench.dispatch(run, call)
    other = waiting(bench)
    bench.record(send, term, LOST)
    close(bench)
    bench.ahead(9)
    if why == "denied":
        bench.gate.closed.add(("wallet.hold", "claim"))
    else:
        bench.started.remove(run)  # whose replay says so too
        bench.sql("SET session_replication_role = replica")
        bench.sql("UPDATE fencepost.calls SET fingerprint = 'another' WHERE id = %s", call)
        bench.sql("SET session_replication_role = origin")
    state = bench.reconcile(run, call)[0]
    assert state == c.Done("UNKNOWN" if why == "denied" else "NEEDS_REPAIR")
    assert (known(bench).state, known(bench).probes) == (State.OPEN, "{}")
    bench.gate.closed.clear()
    assert isinstance(bench.dispatch(*other)[0], c.Send), "it is the probe"


def test_a_limit_holds_for_a_call_recorded_under_another_name_of_its_dependency(bench: Bench) -> None:
    """As when the account of a limited dependency is renamed while calls are open."""
    run, call = waiting(bench, "narrow.pay")
    renamed = bench.ledger_as("worker", limited=frozenset({"narrow/renamed"}))
    bench.sql("DELETE FROM fencepost.dependencies WHERE scope = 'narrow/default'")
    term = bench.term()
    (send,) = renamed.apply([bench.claim_call(run, call, term)])
    assert isinstance(send, c.Send), send
    assert list(json.loads(known(bench, "narrow/default").flights)) == [str(call)]
    (answer,) = renamed.apply([bench.outcome(send, term, Refused("http_402", "no", retryable=False))])
    assert answer == c.Done("FAILED")
    assert known(bench, "narrow/default").flights == "{}"
