"""What Postgres refuses of the office that recovers a restored ledger, and of epochs."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.guards_bench import (
    EPOCH,
    HELD,
    OPERATOR,
    OWNER,
    WORKER,
    CallTarget,
    attack,
    presented,
)
from tests.integration.ledger_bench import Bench


def marked(
    target: CallTarget, role: str = OPERATOR, code: str = "ledger_restored", **columns: Any
) -> str | None:
    """An attempt to mark a call as a restore does."""
    seq, _ = target.event("recover", "ToolOutcomeMarkedUnknown", body={"code": code, "epoch": EPOCH})
    return target.update("recover", {"state": "UNKNOWN", "doubt": True, "version": seq, **columns}, role)


@pytest.fixture
def target(bench: Bench) -> Iterator[CallTarget]:
    run = bench.start()
    call, other = bench.plan(
        run, ("wallet.debit", {"order": bench.order()}), ("wallet.note", {"order": bench.order()})
    )
    with attack(bench) as opened:
        found = CallTarget((run, call, other, bench.call(call).version), opened)
        found.put("INTENT_RECORDED")
        yield found


def test_the_office_is_an_operators_and_only_while_the_ledger_is_held(target: CallTarget) -> None:
    assert marked(target) is None
    assert marked(target, WORKER) == "FP002"
    assert "is not an operator" in target.attack.said
    assert marked(target, code="worker_lost") == "FP002"
    target.attack.force("UPDATE fencepost.epochs SET released_at = now(), released_by = 'ann'")
    assert marked(target) == "FP002"
    assert "the ledger is not held" in target.attack.said


def test_the_office_says_until_when_something_may_be_under_way_and_nothing_else(target: CallTarget) -> None:
    later = {"in_flight_until": "2999-01-01Z", "quiet_at": "2999-01-02Z"}
    assert marked(target, **later) is None
    target.put("UNKNOWN", **later)
    for earlier in ({"in_flight_until": "2998-01-01Z"}, {"quiet_at": "2998-01-01Z"}):
        assert marked(target, **earlier) == "FP001"
    assert marked(target, request="{}") == "FP001"
    assert marked(target, fingerprint="f") == "FP001"
    assert marked(target, attempts=1) in {"FP001", "FP004"}
    # No other office may say so.
    target.put("INTENT_RECORDED", in_flight_until=None, quiet_at=None)
    assert target.move("evidence", "NEEDS_REPAIR") is None
    assert target.move("evidence", "NEEDS_REPAIR", **later) == "FP001"


def test_a_key_was_sent_before_only_if_its_call_says_so(target: CallTarget) -> None:
    key = target.column("operation")
    sent = "UPDATE fencepost.operations SET first_sent_at = now() - interval '1 h', doubt = %s WHERE key = %s"
    assert target.attack.attempt(sent, False, key) == "FP001"
    target.attack.connection.execute("RELEASE SAVEPOINT attempt")
    seq, _ = target.event("recover", "ToolOutcomeMarkedUnknown")
    target.put("UNKNOWN", version=seq)
    assert target.attack.attempt(sent, True, key) is None, target.attack.said


def test_a_resource_is_held_only_by_what_was_or_may_have_been_sent(bench: Bench) -> None:
    run = bench.start()
    (call,) = bench.plan(run, ("shelf.price", {"sku": bench.order(), "minor": 5}))
    hold = "UPDATE fencepost.operations SET status = 'open', call = %s, run = %s, doubt = %s WHERE key = %s"
    with attack(bench) as opened:
        key = bench.call(call).resource
        assert opened.attempt(hold, call, run, False, key) == "FP001"
        opened.put("calls", call, state="UNKNOWN", doubt=True)
        assert opened.attempt(hold, call, run, True, key) is None


def test_a_run_is_taken_from_its_holder_only_while_the_ledger_is_held(target: CallTarget) -> None:
    seq, _, head = target.attack.event(target.run, None, "LedgerRestored")
    target.attack.put("runs", target.run, status="PLANNING", **HELD)
    version = target.attack.force("SELECT seq FROM fencepost.runs WHERE id = %s", target.run)[0][0]
    change = {"seq": seq, "head_hash": head, **presented("recover", version)}
    assert target.attack.update("runs", target.run, change, OPERATOR) is None
    assert target.attack.update("runs", target.run, change, WORKER) == "FP002"
    assert target.attack.update("runs", target.run, change | {"status": "STOPPING"}, OPERATOR) == "FP001"
    target.attack.force("UPDATE fencepost.epochs SET released_at = now(), released_by = 'ann'")
    assert target.attack.update("runs", target.run, change, OPERATOR) == "FP002"


def test_an_epoch_is_released_once_and_never_changed_or_forgotten(target: CallTarget) -> None:
    by = "UPDATE fencepost.epochs SET released_at = now(), released_by = 'ann'"
    for role, statement, refused in (
        (OPERATOR, by, None),
        (WORKER, by, "42501"),
        (OPERATOR, "UPDATE fencepost.epochs SET since = now()", "42501"),
        (OWNER, "UPDATE fencepost.epochs SET since = now()", "FP004"),
        (OWNER, f"{by}, reason = 'another'", "FP004"),
        (OWNER, "DELETE FROM fencepost.epochs", "FP004"),
        (OWNER, "TRUNCATE fencepost.epochs", "FP004"),
        (WORKER, "INSERT INTO fencepost.epochs VALUES (99, now(), now(), 'b', 'r')", "42501"),
        (OWNER, "INSERT INTO fencepost.epochs VALUES (99, now() + interval '1 h', now(), 'b', 'r')", "FP001"),
    ):
        assert target.attack.attempt(statement, role=role) == refused, statement
    target.attack.force(by)
    assert target.attack.attempt(by, role=OWNER) == "FP004"
