"""A call that begins to wait for a key once it is approved closes no circle of waits either."""

from dataclasses import replace

from fencepost import commands as c
from fencepost.authority import Grant
from fencepost.clock import uuid7
from tests.integration.approvals.desk import REFUND, Desk, asking
from tests.integration.family import LARGE, NESTED, begin, declare


def test_a_call_that_waits_once_it_is_approved_is_looked_at_again(desk: Desk) -> None:
    bench = desk.bench
    if ("wallet.chain", 1) not in bench.app.registry:
        declare(bench.app, "wallet.chain", budget=replace(NESTED, depth=3, children=6, turns=16, calls=16))
    free, asks = (Grant("svc:*", ("wallet.chain",)), REFUND), (asking("wallet.chain"), REFUND)
    one, other = {"topic": bench.order()}, {"topic": bench.order()}
    desk.policy.grants = free
    below, under = [
        begin(bench, run := desk.run(budget=LARGE), bench.plan(run, ("wallet.chain", topic))[0])
        for topic in (one, other)
    ]
    desk.policy.grants = asks
    (closing,) = bench.plan(under, ("wallet.chain", one))
    assert bench.state(closing) == "AWAITING_APPROVAL"
    desk.policy.grants = free
    (waits,) = bench.plan(below, ("wallet.chain", other))
    assert bench.state(waits) == "INTENT_RECORDED"
    desk.policy.grants = asks
    assert desk.say(closing) == c.Done("INTENT_RECORDED")
    claim = replace(bench.claim_call(under, closing), child=uuid7(), request=None)
    assert bench.one(claim) == c.Done("REJECTED")
    assert "key_in_circle" in (bench.call(closing).error or "")
