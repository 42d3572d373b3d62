"""Real sessions at once: rounds of a whole fleet, and contests that decide what only one may decide."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest

from fencepost import commands as c
from fencepost.errors import UsageError
from fencepost.outcomes import Applied
from fencepost.recovery import Answer
from fencepost_ops.drill import races as races_of_threads
from fencepost_ops.drill.people import Producer
from fencepost_ops.drill.races import RUNS, Races
from fencepost_ops.local import LocalPostgres
from tests.acceptance.weather import LONG
from tests.integration.ledger_bench import Bench

ROUNDS = 60 if LONG else 1
CONTESTS = 40 if LONG else 4
again = pytest.mark.parametrize("number", range(CONTESTS))
APPLIED = Applied('{"id":"r-1"}', "r-1")


@pytest.fixture(scope="module")
def races(postgres: LocalPostgres) -> Iterator[Races]:
    one = Races(postgres, 1, "drill_races")
    yield one
    one.close()


@pytest.mark.timeout(3600)
def test_a_fleet_of_threads_on_colliding_intents_breaks_nothing(races: Races) -> None:
    for number in range(1, ROUNDS + 1):
        assert races.round(number) == []
    result = races.result
    assert result.ok
    assert result.runs == ROUNDS * RUNS
    assert result.effects > 0
    assert {"delays", "lost COMMITs", "doubled messages"} <= result.counts.keys()


def test_a_round_ends_although_its_producers_and_its_sweeper_do_not(
    postgres: LocalPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()

    def refused(*_given: object) -> None:
        raise UsageError("planted")

    monkeypatch.setattr(races_of_threads, "ENDS_S", 1.0)
    monkeypatch.setattr(races_of_threads, "LETS_GO_S", 1.0)
    monkeypatch.setattr(races_of_threads, "sweep", lambda *_given: go_on.wait(60))
    monkeypatch.setattr(Producer, "ask", refused)
    with closing(Races(postgres, 2, "drill_races_end")) as one:
        try:
            failures = one.round(1)
        finally:
            go_on.set()
    assert failures[0].startswith("it did not come to an end within 1 s: ")
    assert failures[1] == "still at work after 1 s: sweeper"
    assert one.result.stuck


def at_once(*works: Callable[[], Any]) -> list[Any]:
    """All of them, each in a thread and a session of its own, begun together."""
    together = threading.Barrier(len(works))

    def one(work: Callable[[], Any]) -> Any:
        together.wait()
        return work()

    with ThreadPoolExecutor(len(works)) as pool:
        return list(pool.map(one, works))


@again
def test_a_claim_a_cancel_and_a_sweep_at_once_leave_one_story(number: int, bench: Bench) -> None:
    run = bench.start()
    call = bench.debit(run, bench.order())
    claims = [bench.claim_call(run, call) for _ in range(3)]
    swept = c.Sweep(**bench.base(run), subject=call)
    answers = at_once(
        *[lambda claim=claim: bench.one(claim) for claim in claims],
        lambda: bench.cancel(run),
        lambda: bench.one(swept),
    )
    sent = [answer for answer in answers if isinstance(answer, c.Send)]
    assert len(sent) <= 1
    assert bench.call(call).attempts == len(sent)
    assert bench.state(call) == ("DISPATCHING" if sent else "CANCELLED")
    assert bench.status(run) == ("STOPPING" if sent else "STOPPED")
    assert (bench.row(call) is not None) == bool(sent), "what is open has its row, and nothing else"


@again
def test_a_record_a_takeover_and_a_cancel_at_once_settle_a_call_once(number: int, bench: Bench) -> None:
    run = bench.start()
    call = bench.debit(run, bench.order())
    send, term = bench.dispatch(run, call)
    bench.ahead(4)  # its time is over, so that it may be taken over
    record, doubt = bench.outcome(send, term, APPLIED), bench.claim_doubt(run, call)
    recorded, taken, _ = at_once(
        lambda: bench.one(record), lambda: bench.one(doubt), lambda: bench.cancel(run)
    )
    assert (recorded == c.Done("SUCCEEDED")) != isinstance(taken, c.Ask | c.Send), (recorded, taken)
    if isinstance(recorded, c.Fenced):
        bench.one(bench.evidence(send, term, APPLIED))
        assert bench.one(bench.looked_up(taken, doubt.term, Answer.UNCLEAR)) == c.Done("SUCCEEDED")
    assert bench.state(call) == "SUCCEEDED"
    assert bench.kinds(run, call).count("ToolAttemptStarted") == 1


@again
def test_evidence_beside_a_persons_decision_is_never_lost(number: int, bench: Bench) -> None:
    """Whoever is first: an effect that is proved does not stay FAILED."""
    run = bench.start()
    call = bench.debit(run, bench.order(), "mail.send")
    send, term = bench.dispatch(run, call)
    bench.ahead(4)
    assert bench.reconcile(run, call)[0] == c.Done("NEEDS_REPAIR")
    evidence = bench.evidence(send, term, APPLIED)
    at_once(lambda: bench.one(evidence), lambda: bench.repair(call, "FAILED"))
    assert bench.state(call) in ("NEEDS_REPAIR", "SUCCEEDED")
    assert bench.sql("SELECT count(*) FROM fencepost.evidence WHERE call = %s", call) == [(1,)]
    assert bench.row(call) is not None or bench.state(call) == "SUCCEEDED"


def test_batches_in_different_orders_end_and_count_everything_once(bench: Bench) -> None:
    runs = [bench.start() for _ in range(8)]
    order = bench.order()
    calls = [bench.plan(run, ("wallet.debit", {"order": bench.order()}), ("wallet.hold", {"order": order}))
             for run in runs]  # fmt: skip
    sent = [bench.dispatch(run, pair[0]) for run, pair in zip(runs, calls, strict=True)]
    records = [bench.outcome(send, term, APPLIED) for send, term in sent]
    claims = [bench.claim_call(run, pair[1]) for run, pair in zip(runs, calls, strict=True)]
    batches: list[list[c.Command]] = [
        [*records, *claims],
        [*reversed(claims), *reversed(records)],
        [*records[4:], *claims[:4], *records[:4]],
        [*claims[4:], *reversed(records), *claims[:4]],
        [*reversed([*records, *claims])],
    ]
    at_once(*[lambda batch=batch: bench.ledger.apply(batch) for batch in batches])
    assert [bench.state(pair[0]) for pair in calls] == ["SUCCEEDED"] * 8
    assert [bench.call(pair[0]).attempts for pair in calls] == [1] * 8
    assert sum(bench.state(pair[1]) == "DISPATCHING" for pair in calls) <= 1, "one key, one holder"
    for run in runs:
        assert [event.seq for event in bench.events(run)] == list(range(1, bench.run(run).seq + 1))


def test_a_record_whose_commit_went_unheard_is_the_same_again_from_many(bench: Bench) -> None:
    """Its answer to COMMIT was lost: it is applied again, by several at once, while others go on."""
    run = bench.start()
    call = bench.debit(run, bench.order())
    send, term = bench.dispatch(run, call)
    record = bench.outcome(send, term, APPLIED)
    first = bench.one(record)
    following = bench.claim_run(run)
    answers = at_once(*[lambda: bench.one(record)] * 4, lambda: bench.one(following))
    assert answers[:4] == [first] * 4 == [c.Done("SUCCEEDED")] * 4
    assert isinstance(answers[4], c.Plan)
    assert bench.kinds(run, call).count("ToolResultRecorded") == 1
