"""Under a published policy Cedar says that persons are needed, and which; no application is asked."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from fencepost import Client
from fencepost import commands as c
from fencepost.authority.inforce import Engines
from fencepost.errors import FencepostError
from fencepost.ledger import policies, principals
from fencepost.ledger.connect import Connection, connect
from fencepost_ops.database import LedgerDatabase
from tests.integration.ledger_bench import TENANT, Bench, open_bench
from tests.integration.policy_app import bundle

ASKS = """
@id("debits") permit (principal, action == Action::"wallet.debit", resource);
@id("a person looks") @within("2h")
forbid (principal, action == Action::"wallet.debit", resource) unless { context.approvals >= 1 };
@id("bosses approve") permit (principal in Role::"boss", action == Action::"approve wallet.debit", resource);
"""
ASKS_TWO = ASKS.replace(">= 1", ">= 2")


@pytest.fixture
def bench(database: LedgerDatabase) -> Iterator[Bench]:
    """A bench whose workers ask the policy in force."""
    with open_bench(database) as opened:
        opened.known = replace(opened.known, engines=Engines())
        opened.ledger = opened.ledger_as("worker", engines=opened.known.engines)
        yield opened


@pytest.fixture
def operator(database: LedgerDatabase) -> Iterator[Connection]:
    with connect(database.dsns["operator"], "test", autocommit=True) as connection:
        yield connection


def test_the_policy_in_force_says_that_persons_are_needed_and_which(
    bench: Bench, operator: Connection
) -> None:
    policies.publish(operator, bundle(ASKS), tenant=TENANT, by="ann", note="n")
    run = bench.start(deadline_s=36_000)
    call = bench.debit(run, bench.order())
    with Client(bench.database.dsns["operator"]) as client:
        (asked,) = client.approvals(run=run)
        span = asked.approval.expires_at - asked.approval.requested_at
        assert (asked.approval.count, asked.approval.asked["policy"], span.total_seconds()) == (1, "1", 7200)
        with pytest.raises(FencepostError, match="no policy lets carol approve"):
            client.approve(call, "carol", "looked")
        principals.set_roles(operator, TENANT, "carol", add=["boss"], by="ann", reason="she is")
        assert client.approve(call, "carol", "looked") == "INTENT_RECORDED"
        policies.publish(operator, bundle(ASKS_TWO), tenant=TENANT, by="ann", note="two")
        built = bench.app.registry["wallet.debit", 1]
        kept = bench.call(call)
        request = built.stored_request(built.read_arguments(kept.arguments), kept.operation).to_text()
        answer = bench.one(replace(bench.claim_call(run, call), request=request))
        assert answer == c.Done("AWAITING_APPROVAL")
        (again,) = client.approvals(run=run)
        assert (again.approval.count, again.approval.asked["policy"]) == (2, "2")
        assert client.approve(call, "carol", "looked again") == "AWAITING_APPROVAL"
    assert bench.kinds(run).count("ToolAttemptStarted") == 0
