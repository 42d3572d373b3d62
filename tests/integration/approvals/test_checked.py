"""Approvals before the checker: who asks has not approved (I3), whatever let it through."""

from collections.abc import Iterator
from datetime import timedelta
from unittest.mock import patch
from uuid import UUID

import psycopg
import pytest

from fencepost import commands as c
from fencepost.authority import AllowList, AuthorizationDecision
from fencepost.decide import approvals
from fencepost_ops.checker import check
from fencepost_ops.checker.facts import snapshot
from fencepost_ops.drill.sabotages.switch import silenced
from tests.integration.approvals.desk import Desk

YES = AuthorizationDecision(allowed=True, reason="whoever", policy_version="v", deciding=("all",))


def violated(desk: Desk, run: UUID) -> list[str]:
    with psycopg.connect(desk.bench.database.dsns["reader"], autocommit=True) as connection:
        report = check(connection, None, settled=False, runs=[run], tolerance=timedelta(0))
    return [f"{v.invariant}: {w.message}" for v in report.verdicts for w in v.violations]


def test_who_acted_for_the_run_and_does_no_longer_may_approve_it(desk: Desk) -> None:
    made = desk.delegate("ann", "svc:checkout")
    run, call = desk.asked()
    assert "asks for it" in desk.refused(call)
    desk.bench.sql(
        "UPDATE fencepost.delegations SET revoked_at = fencepost.now(), revoked_by = 'x' WHERE id = %s", made
    )
    assert desk.say(call) == c.Done("INTENT_RECORDED")
    assert violated(desk, run) == []


@pytest.fixture
def trusting(desk: Desk) -> Iterator[None]:
    """Postgres believes whoever approves."""
    ((kept,),) = desk.bench.sql("SELECT pg_get_functiondef('fencepost.guard_call'::regproc)")
    desk.bench.owner.execute(silenced(kept, ("cannot approve or deny it like this",)).encode())
    yield
    desk.bench.owner.execute(kept.encode())


@pytest.mark.parametrize("who", ["svc:checkout", "boss", "ann"])
def test_an_approval_of_ones_own_request_is_found(desk: Desk, trusting: None, who: str) -> None:
    desk.delegate("boss", "svc:checkout")
    desk.delegate("svc:checkout", "ann")
    run, call = desk.asked()
    with (
        patch.object(approvals, "_not_again", lambda *_: None),
        patch.object(AllowList, "may_approve", lambda *_: YES),
    ):
        assert desk.say(call, who) == c.Done("INTENT_RECORDED")
    (found,) = violated(desk, run)
    assert found.startswith("I3: ")
    assert f"{who} approved call {call} (wallet.debit), which was asked for by or for" in found


def test_only_what_concerns_the_runs_that_are_asked_about_is_read(desk: Desk) -> None:
    run, _ = desk.asked()
    desk.principal("ann")
    desk.bench.sql(
        "INSERT INTO fencepost.principals (tenant, principal, roles, changed_at, changed_by)"
        " VALUES ('elsewhere', 'eve', '[]', fencepost.now(), 'test')"
    )
    for tool in ("wallet.debit", "mail.send"):
        desk.bench.sql(
            "INSERT INTO fencepost.withdrawn (tool, version, withdrawn_at, withdrawn_by, reason)"
            " VALUES (%s, 7, fencepost.now(), 'test', 'old')",
            tool,
        )
    with psycopg.connect(desk.bench.database.dsns["reader"], autocommit=True) as connection:
        with snapshot(connection, [run]) as some:
            mine = some.common().changes
        with snapshot(connection) as every:
            everything = every.common().changes
    assert {change.tenant for change in everything} >= {"elsewhere", desk.bench.run(run).tenant, ""}
    assert {change.tenant for change in mine} == {desk.bench.run(run).tenant, ""}
    assert all("mail.send" not in change.said for change in mine)
    assert any('"wallet.debit"' in change.said for change in mine)
