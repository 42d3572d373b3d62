"""Values that storage refuses and requests that make no sense: recorded visibly, or refused at the door."""

from typing import Any

import psycopg
import pytest

from fencepost import commands as c
from fencepost.clock import uuid7
from fencepost.outcomes import Applied, Refused, Unsure
from fencepost.proposals import Rejected
from fencepost.recovery import Answer
from tests.integration.ledger_bench import TENANT, Bench, kept

HOSTILE = "NUL \0, half \ud800, escape \x1b[31m, ümlaut"
VISIBLE = "NUL \\u0000, half \\ud800, escape \\u001b[31m, ümlaut"


def sent(bench: Bench) -> tuple[Any, c.Send, c.Term]:
    run = bench.start()
    call = bench.debit(run, bench.order())
    send, term = bench.dispatch(run, call)
    return run, send, term


@pytest.mark.parametrize(
    "result",
    ['{"id": "a\\u0000b"}', '{"n": NaN, "i": -Infinity}', '{"x": 1e400, "y": 0.1}', "not json at all", ""],
)
def test_a_success_is_recorded_whatever_the_downstream_answered(bench: Bench, result: str) -> None:
    run, send, term = sent(bench)
    record = bench.outcome(send, term, Applied(result, HOSTILE))
    assert bench.one(record) == c.Done("SUCCEEDED")
    call = bench.call(send.call.id)
    assert call.receipt == VISIBLE
    assert call.result == kept(result).digest
    data = bench.sql("SELECT data FROM fencepost.payloads WHERE digest = %s", call.result)
    assert data == [(result.encode(),)]
    assert bench.status(run) == "ACTING"


def test_a_preview_that_cannot_be_stored_does_not_stop_a_success(bench: Bench) -> None:
    _, send, term = sent(bench)
    result = c.Payload(kept("x").digest, b"x", HOSTILE)
    base = bench.base(send.call.run) | {"payloads": (result,)}
    done = Applied("x", "r-1")
    record = c.RecordOutcome(**base, term=term, call=send.call.id, attempt=1, outcome=done, result=result)
    assert bench.one(record) == c.Done("SUCCEEDED")
    assert bench.call(send.call.id).preview == VISIBLE


@pytest.mark.parametrize(
    ("outcome", "state"),
    [(Refused("http_402", HOSTILE, retryable=False), "FAILED"), (Unsure(HOSTILE, HOSTILE), "UNKNOWN")],
)
def test_error_paths_survive_the_same_bytes(bench: Bench, outcome: Any, state: str) -> None:
    _, send, term = sent(bench)
    assert bench.record(send, term, outcome) == c.Done(state)
    assert bench.call(send.call.id).error == VISIBLE


def test_evidence_and_lookups_survive_the_same_bytes(bench: Bench) -> None:
    run, send, term = sent(bench)
    bench.ahead(4)
    ask, asking = bench.reconcile(run, send.call.id)
    found = bench.looked_up(ask, asking, Answer.FOUND, "r-1")
    hostile = c.RecordLookup(
        **bench.base(run),
        term=asking,
        call=send.call.id,
        answer=type(found.answer)(Answer.UNCLEAR, ask.asked_at, HOSTILE, None, HOSTILE),
    )
    assert bench.one(hostile) == c.Done("UNKNOWN")
    assert bench.one(bench.evidence(send, term, Applied("{}", HOSTILE))) == c.Done("UNKNOWN")
    bench.ahead(1)
    assert bench.reconcile(run, send.call.id)[0] == c.Done("SUCCEEDED")
    assert bench.call(send.call.id).receipt == VISIBLE


def test_a_planner_a_person_and_a_rejected_proposal_may_say_anything(bench: Bench) -> None:
    run = bench.start()
    claim = bench.claim_run(run)
    bench.one(claim)
    lost = c.RecordPlanLost(**bench.base(run), term=claim.term, code=HOSTILE, message=HOSTILE)
    assert bench.one(lost) == c.Done("PLANNING")
    bench.ahead(1)
    claim = bench.claim_run(run)
    bench.one(claim)
    strange = Rejected(1, HOSTILE, HOSTILE, HOSTILE, HOSTILE, HOSTILE)
    said: dict[str, Any] = {"proposals": (strange,), "call_ids": (uuid7(),), "objection": HOSTILE}
    assert bench.one(c.RecordTurn(**bench.base(run), term=claim.term, turn=1, seen=0, **said)) == c.Done(
        "ACTING"
    )
    assert bench.call(said["call_ids"][0]).tool == VISIBLE
    assert bench.one(c.RequestCancel(**bench.base(run), by="ann", reason=HOSTILE)) == c.Done("STOPPED")
    assert bench.events(run)[-1].principal == "ann"


# -- requests ----------------------------------------------------------------------------------------

GOOD: dict[str, Any] = {
    "tenant": TENANT,
    "run_key": "k",
    "planner": "p",
    "version": 1,
    "principal": "svc:checkout",
    "input": "{}",
    "deadline": "1 minute",
    "budget": "{}",
    "on_stop": "leave",
}
ENQUEUE = (
    "SELECT run FROM fencepost.enqueue_run(%(tenant)s, %(run_key)s, %(planner)s, %(version)s, %(principal)s,"
    " %(input)s::jsonb, %(deadline)s::interval, %(budget)s::jsonb, %(on_stop)s)"
)


@pytest.mark.parametrize(
    "wrong",
    [
        *({name: None} for name in GOOD),
        *({name: ""} for name in ("tenant", "run_key", "planner", "principal")),
        {"run_key": "k" * 201},
        {"tenant": "t" * 101},
        {"principal": "p" * 201},
        {"planner": "p" * 201},
        {"deadline": "0"},
        {"deadline": "-1 second"},
        {"deadline": "3651 days"},
        {"deadline": "9000 years"},
        {"input": '"' + "x" * 1_048_577 + '"'},
        {"on_stop": "maybe"},
        {"budget": "[]"},
        {"budget": '"x"'},
        {"budget": "null"},
        {"budget": '{"turn": 1}'},
        {"budget": '{"turns": -1}'},
        {"budget": '{"turns": 1.5}'},
        {"budget": '{"turns": 3.0}'},
        {"budget": '{"turns": "1"}'},
        {"budget": '{"turns": null}'},
        {"budget": '{"turns": 2147483648}'},
        {"budget": '{"turns": 99999999999999999999}'},
        {"budget": '{"wall_clock_ms": 0}'},
        {"budget": '{"wall_clock_ms": 315360000001}'},
    ],
    ids=lambda wrong: str(wrong)[:60],
)
def test_a_request_that_makes_no_sense_is_refused_before_anything_is_written(
    bench: Bench, wrong: dict[str, Any]
) -> None:
    with pytest.raises(psycopg.Error) as caught:
        bench.producer.execute(ENQUEUE, GOOD | {"run_key": str(uuid7())} | wrong)
    assert caught.value.sqlstate == "FP422"


@pytest.mark.parametrize(
    "budget",
    [
        "{}",
        '{"turns": 0, "calls": 0, "attempts": 2147483647, "wall_clock_ms": null}',
        '{"wall_clock_ms": 315360000000}',
        '{"turns": 1e2}',
    ],
)
def test_every_budget_that_is_let_in_can_be_decided_on(bench: Bench, budget: str) -> None:
    request = GOOD | {"run_key": str(uuid7()), "budget": budget, "deadline": "3650 days"}
    row = bench.producer.execute(ENQUEUE, request).fetchone()
    assert row is not None
    bench.started.append(row[0])
    assert isinstance(bench.one(bench.claim_run(row[0])), c.Plan | c.Done)


def test_an_input_with_a_nul_is_refused_by_postgres_itself(bench: Bench) -> None:
    with pytest.raises(psycopg.Error) as caught:
        bench.producer.execute(ENQUEUE, GOOD | {"run_key": str(uuid7()), "input": '{"a": "\\u0000"}'})
    assert caught.value.sqlstate == "22P05"
