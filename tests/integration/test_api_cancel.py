"""What a cancel writes, the login of the HTTP interface may write; and it may not do what operators do."""

import pytest

from fencepost import commands as c
from fencepost.clock import uuid7
from fencepost.errors import UsageError
from fencepost.outcomes import Unsure
from tests.integration.ledger_bench import TENANT, Bench


def test_the_interfaces_login_cancels_whatever_a_run_is_at(bench: Bench) -> None:
    ledger = bench.ledger_as("api")

    def cancel(run: object) -> c.Answer:
        base = bench.base(run)  # type: ignore[arg-type]
        (answer,) = ledger.apply([c.RequestCancel(**base, by="svc:x/token:ab", reason="enough")])
        return answer

    fresh = bench.start()
    assert cancel(fresh) == c.Done("STOPPED")
    planning = bench.start()
    bench.one(bench.claim_run(planning))
    assert cancel(planning) == c.Done("STOPPED")
    order = bench.order()
    first, second = bench.start(), bench.start()
    holder = bench.debit(first, order)
    waiting = bench.debit(second, order)  # the same key: it waits for the first
    assert cancel(first) == c.Done("STOPPED")
    assert bench.state(holder) == "CANCELLED"
    row = bench.row(waiting)
    assert row is not None
    assert row.due_at <= bench.now()  # and is told that the key is free
    flying = bench.start()
    call = bench.debit(flying, bench.order())
    send, term = bench.dispatch(flying, call)
    assert cancel(flying) == c.Done("STOPPING")
    assert bench.record(send, term, Unsure("timeout", "no answer")) == c.Done("UNKNOWN")
    effect = bench.start()
    bench.succeed(effect, bench.debit(effect, bench.order()))
    assert cancel(effect) == c.Done("COMPENSATING")
    assert isinstance(cancel(fresh), c.Gone)


def test_the_interfaces_login_settles_and_approves_nothing(bench: Bench) -> None:
    run = bench.start()
    call = bench.debit(run, bench.order())
    send, term = bench.dispatch(run, call)
    bench.record(send, term, Unsure("timeout", "no answer"))
    command = c.DecideRepair(
        id=uuid7(), tenant=TENANT, run=run, call=call, decision="FAILED", by="x", reason="y", receipt=None
    )
    with pytest.raises(UsageError, match="may not do that"):
        bench.ledger_as("api").apply([command])
    assert bench.state(call) == "UNKNOWN"
