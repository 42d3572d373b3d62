"""More delegate to one principal than are read: it gets nothing, and its neighbours lose nothing."""

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from fencepost import commands as c
from fencepost.authority import AllowList, Grant
from fencepost.authority.standing import MAX_DELEGATIONS, MOST_TOLD
from fencepost.errors import UsageError
from fencepost.ledger import principals
from fencepost.ledger.connect import Connection, connect
from tests.integration.ledger_bench import TENANT, Bench

WHO = "svc:checkout"
NAMED: Any = {"by": "ann", "reason": "the test says so"}
INSERT = (
    "INSERT INTO fencepost.delegations"
    " (tenant, id, principal, delegate, tools, since, until, made_by, reason)"
    " SELECT %s, gen_random_uuid(), format(%s, i), format(%s, i), '*', fencepost.now(),"
    " fencepost.now() + interval '1 day', 't', 'x' FROM generate_series(1, %s) i"
)


@pytest.fixture
def operator(bench: Bench) -> Iterator[Connection]:
    usual = bench.ledger
    bench.ledger = bench.ledger_as("worker", authority=AllowList((Grant("boss-1", ("wallet.*",)),)))
    with connect(bench.database.dsns["operator"], "operator", autocommit=True) as operator:
        yield operator
    bench.ledger = usual
    for table in ("principals", "delegations"):
        bench.sql(f"DELETE FROM fencepost.{table}")


def by_hand(bench: Bench, principal: str, delegate: str, count: int) -> None:
    """Rows as somebody may insert them: no command limits them."""
    bench.sql(INSERT, TENANT, principal, delegate, count)


def waiting(bench: Bench) -> c.ClaimCall:
    """The claim of a call that was authorised by one delegation."""
    if not bench.sql("SELECT 1 FROM fencepost.delegations"):
        by_hand(bench, "boss-%s", WHO, 1)
    run = bench.start(deadline_s=3600)
    return bench.claim_call(run, bench.debit(run, bench.order()))


def last(bench: Bench, claim: c.ClaimCall) -> dict[str, Any]:
    return dict(
        json.loads([e for e in bench.events(claim.run) if e.type.startswith("Authorization")][-1].body)
    )


def test_as_many_as_may_be_are_read_and_an_event_names_some(bench: Bench, operator: Connection) -> None:
    claim = waiting(bench)
    by_hand(bench, "other-%s", WHO, MAX_DELEGATIONS - 1)
    assert isinstance(bench.one(claim), c.Send)
    told = last(bench, claim)["delegation"]
    assert len(told) == MOST_TOLD + 1
    assert told[-1] == f"and {MAX_DELEGATIONS - MOST_TOLD} more"


@pytest.mark.parametrize(
    ("principal", "delegate"),
    [
        ("other-%s", WHO),
        ("boss-1", WHO),  # always the same two
        ("other-%s", "boss-1"),  # further along
    ],
)
def test_one_too_many_lets_nothing_out(
    bench: Bench, operator: Connection, principal: str, delegate: str
) -> None:
    claim = waiting(bench)
    by_hand(bench, principal, delegate, MAX_DELEGATIONS + (delegate != WHO))
    assert not isinstance(bench.one(claim), c.Send)
    denied = last(bench, claim)
    assert denied["code"] == "too_many_delegations"
    assert f"more than {MAX_DELEGATIONS} delegations lead to it" in denied["reason"]


def test_many_thousands_cost_nobody_more(bench: Bench, operator: Connection) -> None:
    """And of those who delegate to each other, everybody counts once."""
    first, second = waiting(bench), waiting(bench)
    by_hand(bench, "other-%s", "svc:else", 20_000)
    by_hand(bench, "svc:else", "svc:else-%s", 1000)
    for one in range(15):
        by_hand(bench, f"mate-{one}", "mate-%s", 14)
    by_hand(bench, "mate-1", WHO, 1)
    assert [type(answer) for answer in bench.ledger.apply([first, second])] == [c.Send, c.Send]


def test_ended_ones_count_no_longer(bench: Bench, operator: Connection) -> None:
    by_hand(bench, "other-%s", WHO, MAX_DELEGATIONS)
    bench.sql("UPDATE fencepost.delegations SET until = fencepost.now() WHERE principal <> 'other-1'")
    bench.sql("UPDATE fencepost.delegations SET revoked_at = fencepost.now()")
    by_hand(bench, "boss-%s", WHO, MAX_DELEGATIONS)
    assert isinstance(bench.one(waiting(bench)), c.Send)


def test_one_too_many_is_not_made(bench: Bench, operator: Connection) -> None:
    by_hand(bench, "other-%s", WHO, MAX_DELEGATIONS)
    until = bench.now() + timedelta(hours=1)
    with pytest.raises(UsageError, match=f"may have {MAX_DELEGATIONS}: revoke some"):
        principals.delegate(operator, TENANT, "boss", WHO, until=until, **NAMED)
    principals.delegate(operator, "elsewhere", "boss", WHO, until=until, **NAMED)
    bench.sql("UPDATE fencepost.delegations SET revoked_at = fencepost.now() WHERE principal = 'other-1'")
    principals.delegate(operator, TENANT, "boss", WHO, until=until, **NAMED)
