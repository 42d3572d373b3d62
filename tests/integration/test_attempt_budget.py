"""Attempts: a budget of them is spent under one lock, and none is left where the next would come too late."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

from fencepost import commands as c
from fencepost.outcomes import Refused
from tests.integration.ledger_bench import Bench

EIGHT = 8


def at_once(bench: Bench, commands: Sequence[c.Command]) -> list[Any]:
    with ThreadPoolExecutor(len(commands)) as sessions:
        return list(sessions.map(bench.one, commands))


def test_eight_claims_at_once_spend_what_there_is_and_no_more(bench: Bench) -> None:
    run = bench.start(budget='{"attempts": 3}')
    calls = bench.plan(run, *[("wallet.note", {"order": bench.order()}) for _ in range(EIGHT)])
    answers = at_once(bench, [bench.claim_call(run, call) for call in calls])
    sends = [answer for answer in answers if isinstance(answer, c.Send)]
    assert len(sends) == 3
    assert bench.run(run).attempts == 3
    assert bench.kinds(run).count("ToolAttemptStarted") == 3
    assert bench.run(run).stop_reason == "budget_exhausted"
    unsent = {bench.state(call) for call in calls} - {"DISPATCHING"}
    assert unsent <= {"REJECTED", "CANCELLED"}
    told = {bench.call(call).error for call in calls if bench.state(call) == "REJECTED"}
    assert told == {"budget: the run's budget of attempts is used up"}


def test_a_refusal_is_final_when_the_retry_would_come_too_late(bench: Bench) -> None:
    run = bench.start()
    call = bench.debit(run, bench.order())
    send, term = bench.dispatch(run, call)
    wait = timedelta(minutes=5)
    refused = Refused("http_429", "not now", retryable=True, retry_after=wait)
    assert bench.record(send, term, refused) == c.Done("FAILED")
