"""Effects that a stopped run did not offset: flagged until a person has them offset, or leaves them."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

import psycopg
import pytest

from fencepost import commands as c
from fencepost import machine
from fencepost.ledger import listings
from fencepost.ledger.connect import connect
from fencepost.outcomes import Applied, Refused, Unsure
from tests.integration.guards_bench import OPERATOR, OWNER, WORKER, CallTarget, attack
from tests.integration.ledger_bench import Bench, Fields
from tests.integration.test_compensation import effects, end, flagged

APPLIED = Applied('{"id":"r-1"}', "r-1")
LOST = Unsure("timeout", "the answer was lost")
REFUSED = Refused("http_402", "no money", retryable=False)
NOT_FORGOTTEN = (
    "its compensation failed, and the downstream is not known to forget a failure under its key: "
    "settle it there, then accept that the effect stays"
)


WHY = {
    "FAILED": "compensation failed: no money",
    "REJECTED": "compensation rejected: not authorised (policy_denied): the gate is closed",
}


def owed(bench: Bench, run: UUID) -> list[str]:
    """What the run itself says that it owes."""
    with connect(bench.database.dsns["reader"], "look", autocommit=True) as reader:
        listed = {info.run_id: info.owed for info in listings.list_runs(reader, owed=True, limit=10_000)}
        stuck = {info.run_id for info in listings.list_runs(reader, stuck=True, limit=10_000)}
    found: list[str] = json.loads(bench.run(run).owed or "[]")
    assert listed.get(run, 0) == len(found)
    assert not found or run in stuck
    return found


def left(bench: Bench, how: str = "FAILED", tool: str = "wallet.debit") -> tuple[UUID, UUID, UUID]:
    """A stopped run whose only effect is still there, because its compensation ended like this."""
    run, (call,) = effects(bench, tool)
    if how == "REJECTED":
        bench.gate.closed.add(("wallet.refund", "claim"))
    _, undo = bench.offset(run)
    if how == "REJECTED":
        assert bench.one(bench.claim_call(run, undo)) == c.Done("REJECTED")
        bench.gate.closed.clear()
    else:
        send, term = bench.dispatch(run, undo)
        bench.record(send, term, REFUSED)
    assert bench.state(undo) == how
    assert bench.one(bench.claim_stopped(run)) == c.Done("STOPPED")
    return run, call, undo


@pytest.mark.parametrize("how", ["FAILED", "REJECTED"])
def test_a_compensation_that_came_to_nothing_is_made_again_under_its_key(bench: Bench, how: str) -> None:
    run, call, undo = left(bench, how)
    (found,) = flagged(bench, run)
    assert (found.call, found.again, found.why) == (call, True, WHY[how])
    assert found.owed
    assert owed(bench, run) == [str(call)]
    assert bench.repair(call, c.OFFSET) == c.Done("SUCCEEDED")
    assert (bench.status(run), flagged(bench, run), owed(bench, run)) == ("COMPENSATING", [], [])
    decided = bench.events(run)[-2]
    assert (decided.type, decided.call, decided.principal) == ("RepairDecided", call, "ann")
    assert (decided.data["offset"], decided.data["reason"]) == ("again", "looked")
    forward, second = bench.offset(run)
    assert (forward, second != undo) == (call, True)
    assert bench.call(second).operation == bench.call(undo).operation, "never under another key"
    bench.succeed(run, second)
    assert bench.one(bench.claim_stopped(run)) == c.Done("STOPPED")
    assert (end(bench, run)["offset"], flagged(bench, run)) == ([str(call)], [])
    assert bench.operation(call).status == "compensated"
    assert bench.repair(call, c.OFFSET) == c.Denied("its effect is compensated already")


@pytest.mark.parametrize(
    ("second", "receipt", "ends"),
    [
        (None, "r-1", "NEEDS_REPAIR"),
        ("r-1", "r-1", "SUCCEEDED"),
        ("r-2", "r-1", "NEEDS_REPAIR"),
        ("DISPATCHING", "r-1", "DISPATCHING"),
    ],
)
def test_a_late_answer_of_a_compensation_that_was_made_again_is_kept(
    bench: Bench, second: str | None, receipt: str, ends: str
) -> None:
    run, (call,) = effects(bench, "wallet.debit")
    _, undo = bench.offset(run)
    send, term = bench.dispatch(run, undo)
    bench.record(send, term, REFUSED)
    assert bench.one(bench.claim_stopped(run)) == c.Done("STOPPED")
    bench.repair(call, c.OFFSET)
    _, again = bench.offset(run)
    if second is not None:
        sent, its_term = bench.dispatch(run, again)
        if second != "DISPATCHING":
            bench.record(sent, its_term, Applied(f'{{"id":"{second}"}}', second))
    assert bench.one(bench.evidence(send, term, Applied(f'{{"id":"{receipt}"}}', receipt))) == c.Done(
        "FAILED"
    )
    assert bench.kinds(run).count("EvidenceFiled") == 1
    assert (bench.state(undo), bench.state(again)) == ("FAILED", ends)
    if second is None:
        error = bench.call(again).error or ""
        assert error.startswith("the call is INTENT_RECORDED, yet an attempt was applied (receipt r-1)")


def test_one_word_is_one_attempt(bench: Bench) -> None:
    """It fails again, and again waits for a person; nothing goes round by itself."""
    run, call, _ = left(bench)
    for _ in range(2):
        assert bench.repair(call, c.OFFSET) == c.Done("SUCCEEDED")
        _, undo = bench.offset(run)
        send, term = bench.dispatch(run, undo)
        bench.record(send, term, REFUSED)
        assert bench.one(bench.claim_stopped(run)) == c.Done("STOPPED")
        assert [found.call for found in flagged(bench, run)] == [call]
    made = bench.sql("SELECT count(*) FROM fencepost.calls WHERE run = %s AND compensates IS NOT NULL", run)
    assert made == [(3,)]


def test_a_failure_that_is_not_known_to_be_forgotten_is_not_tried_again(bench: Bench) -> None:
    run, call, _ = left(bench, tool="wallet.lend")
    (found,) = flagged(bench, run)
    assert not found.again
    assert bench.repair(call, c.OFFSET) == c.Denied(NOT_FORGOTTEN)
    assert bench.status(run) == "STOPPED"
    unknowing = bench.ledger_as("operator", tool=lambda _name, _version: None)
    said: Fields = {"decision": c.OFFSET, "by": "ann", "reason": "again", "call": call}
    (answer,) = unknowing.apply([c.DecideRepair(**bench.base(run), **said)])
    assert answer == c.Denied(NOT_FORGOTTEN), "a person's own process knows no contracts"


def test_what_another_run_has_used_is_not_offset_after_all(bench: Bench) -> None:
    run, call, _ = left(bench)
    order = bench.sql("SELECT arguments::json->>'order' FROM fencepost.calls WHERE id = %s", call)[0][0]
    bench.succeed_by_reuse(bench.start(), order)
    answer = bench.repair(call, c.OFFSET)
    assert answer == c.Denied("another run has taken its result; an effect that is shared is not offset")
    assert bench.status(run) == "STOPPED"


def test_only_what_was_asked_for_is_made_again(bench: Bench) -> None:
    run, (first, second) = effects(bench, "wallet.debit", "wallet.debit")
    for _ in range(2):
        _, undo = bench.offset(run)
        send, term = bench.dispatch(run, undo)
        bench.record(send, term, REFUSED)
    bench.one(bench.claim_stopped(run))
    assert {found.call for found in flagged(bench, run)} == {first, second}
    bench.repair(first, c.OFFSET)
    assert bench.offset(run)[0] == first
    undo = max(bench.sql("SELECT id FROM fencepost.calls WHERE run = %s AND state = 'INTENT_RECORDED'", run))
    bench.succeed(run, undo[0])
    assert bench.one(bench.claim_stopped(run)) == c.Done("STOPPED")
    assert [found.call for found in flagged(bench, run)] == [second]


@pytest.mark.parametrize("tool", ["wallet.debit", "mail.send", "wallet.note"])
def test_an_effect_is_left_as_it_is_by_a_persons_word_and_its_reason(bench: Bench, tool: str) -> None:
    if tool == "wallet.debit":
        run, call, _ = left(bench)
    else:
        run, (call,) = effects(bench, tool)
        bench.one(bench.claim_stopped(run))
    assert [found.call for found in flagged(bench, run)] == [call]
    before = bench.call(call)
    assert bench.repair(call, c.LEAVE) == c.Done("SUCCEEDED")
    assert (flagged(bench, run), bench.status(run)) == ([], "STOPPED")
    after, decided = bench.call(call), bench.events(run)[-1]
    assert (after.state, after.receipt, after.proof) == (before.state, before.receipt, before.proof)
    assert (decided.type, decided.data["offset"], decided.data["reason"]) == (
        "RepairDecided",
        "left",
        "looked",
    )
    assert decided.principal == "ann"


def test_a_person_may_think_again(bench: Bench) -> None:
    run, call, _ = left(bench)
    bench.repair(call, c.LEAVE)
    assert bench.repair(call, c.OFFSET) == c.Done("SUCCEEDED")
    _, undo = bench.offset(run)
    bench.succeed(run, undo)
    bench.one(bench.claim_stopped(run))
    assert bench.repair(call, c.LEAVE) == c.Denied("its effect is compensated already")


def test_what_is_left_stays_left_when_its_run_is_opened_for_another(bench: Bench) -> None:
    run, (first, second) = effects(bench, "wallet.debit", "wallet.debit")
    while isinstance(bench.one(bench.claim_stopped(run)), c.Offset):
        bench.ahead(4)  # each compensator dies: the planning of both is given up
    assert {found.call for found in flagged(bench, run)} == {first, second}
    bench.repair(second, c.LEAVE)
    bench.repair(first, c.OFFSET)
    forward, undo = bench.offset(run)
    assert forward == first
    assert bench.repair(second, c.LEAVE) == c.Denied(
        "the run is COMPENSATING; only a run that stopped to offset its effects takes this up again"
    )
    bench.succeed(run, undo)
    assert bench.one(bench.claim_stopped(run)) == c.Done("STOPPED")
    assert (end(bench, run)["offset"], flagged(bench, run)) == ([str(first)], [])
    assert owed(bench, run) == []


def test_nobody_leaves_what_is_no_effect_of_a_stopped_run(bench: Bench) -> None:
    run = bench.start()
    call = bench.debit(run, bench.order())
    assert isinstance(bench.repair(call, c.LEAVE), c.Denied)
    bench.succeed(run, call)
    assert isinstance(bench.repair(call, c.LEAVE), c.Denied)
    _, _, undo = left(bench)
    assert isinstance(bench.repair(undo, c.LEAVE), c.Denied)


@pytest.mark.parametrize("decision", [c.OFFSET, c.LEAVE])
def test_a_word_on_what_somebody_saw_is_refused_once_it_has_changed(bench: Bench, decision: str) -> None:
    run, call, _ = left(bench)
    (found,) = flagged(bench, run)
    bench.repair(call, c.LEAVE)
    said: Fields = {"call": call, "decision": decision, "by": "bob", "reason": "x", "seen": found.version}
    (answer,) = bench.operator.apply([c.DecideRepair(**bench.base(run), **said)])
    assert answer == c.Denied("the call has changed since you looked at it; look again, then decide")


def test_of_two_people_who_ask_at_once_one_is_heard(bench: Bench) -> None:
    run, call, _ = left(bench)
    said: Fields = {"call": call, "decision": c.OFFSET, "by": "ann", "reason": "x"}
    asked = [c.DecideRepair(**bench.base(run), **said) for _ in range(2)]
    with ThreadPoolExecutor(2) as people:
        answers = list(people.map(lambda one: bench.operator.apply([one])[0], asked))
    assert {type(answer) for answer in answers} == {c.Done, c.Denied}
    claims = [bench.claim_stopped(run) for _ in range(2)]
    with ThreadPoolExecutor(2) as compensators:
        orders = list(compensators.map(bench.one, claims))
    assert sum(isinstance(order, c.Offset) for order in orders) == 1, orders


def test_two_sessions_cannot_offset_one_effect(bench: Bench) -> None:
    """The unique index decides: the second waits for the first, and is refused."""
    run = bench.start()
    step = "wallet.refund"
    calls = bench.plan(run, *((step, {"order": bench.order()}) for _ in range(2)))
    update = "UPDATE fencepost.calls SET compensates = 'one effect' WHERE id = %s"
    with (
        psycopg.connect(bench.database.owner) as one,
        psycopg.connect(bench.database.owner) as two,
        ThreadPoolExecutor(1) as second,
    ):
        for session in (one, two):
            session.execute("SET session_replication_role = replica")
        one.execute(update, [calls[0]])
        waiting = second.submit(two.execute, update, [calls[1]])
        one.commit()
        with pytest.raises(psycopg.errors.UniqueViolation, match="calls_one_compensation"):
            waiting.result(10)
        one.execute("UPDATE fencepost.calls SET compensates = NULL WHERE id = %s", [calls[0]])
        one.commit()


# -- what Postgres refuses -------------------------------------------------------------------------------


@pytest.mark.parametrize("column", ["offset_asked", "offset_left"])
def test_a_persons_word_is_written_by_an_operator_with_its_event_alone(bench: Bench, column: str) -> None:
    run = bench.start()
    call, other = bench.plan(run, *(("wallet.debit", {"order": bench.order()}) for _ in range(2)))
    with attack(bench) as opened:
        target = CallTarget((run, call, other, bench.call(call).version), opened)
        target.put("SUCCEEDED", version=bench.call(call).version)

        def word(
            via: str = "repair",
            kind: str = "RepairDecided",
            role: str | None = OPERATOR,
            columns: dict[str, Any] | None = None,
        ) -> str | None:
            seq, _ = target.event(via, kind, body={"to": "SUCCEEDED"})
            return target.update(via, {"version": seq, column: seq} | (columns or {}), role)

        assert word() is None
        assert word(role=WORKER) == "FP002"
        assert word(kind="RepairRequested") == "FP002", "no decision"
        assert word(columns={column: 1}) == "FP001", "another event's number"
        assert word(columns={column: None}) == "FP001", "nothing said"
        assert word(columns={"receipt": "r-2"}) == "FP001", "and nothing else changes"
        for via in ("claim", "term", "evidence", "cancel"):
            assert word(via, role=OWNER) in {"FP001", "FP002"}
        target.put("NEEDS_REPAIR", version=bench.call(call).version)
        assert word(columns={"state": "UNKNOWN"}) == "FP001"


@pytest.mark.parametrize("undone", [True, False])
@pytest.mark.parametrize("decided_first", [True, False])
def test_an_effect_that_comes_back_into_doubt_while_it_is_offset_settles_as_both_ended(
    bench: Bench, decided_first: bool, undone: bool
) -> None:
    run = bench.start()
    call = bench.debit(run, bench.order())
    first, early = bench.dispatch(run, call)
    bench.record(first, early, Applied('{"id":"r-1"}', "r-1"))
    bench.cancel(run)
    bench.ahead(4)
    _, undo = bench.offset(run)
    send, term = bench.dispatch(run, undo)
    bench.one(bench.evidence(first, early, Applied('{"id":"r-2"}', "r-2")))
    key = bench.operation(call)
    assert (bench.state(call), key.status, key.doubt) == ("NEEDS_REPAIR", "compensating", True)
    answer = Applied('{"id":"u-1"}', "u-1") if undone else Refused("http_402", "no", retryable=False)
    if decided_first:
        assert bench.repair(call, "SUCCEEDED", "r-2") == c.Done("SUCCEEDED")
        assert bench.operation(call).status == "compensating"
    assert bench.record(send, term, answer) == c.Done("SUCCEEDED" if undone else "FAILED")
    if not decided_first:
        key = bench.operation(call)
        assert (key.status, key.doubt) == ("compensated" if undone else "open", True)
        assert bench.repair(call, "SUCCEEDED", "r-2") == c.Done("SUCCEEDED")
    key = bench.operation(call)
    assert (key.status, key.doubt) == ("compensated" if undone else "completed", False)
    assert key.receipt == "r-2"


def test_what_is_owed_ends_with_a_persons_word(bench: Bench) -> None:
    run, call, _ = left(bench)
    assert owed(bench, run) == [str(call)]
    assert bench.repair(call, c.LEAVE) == c.Done("SUCCEEDED")
    assert owed(bench, run) == []


def test_what_nothing_can_offset_is_owed_by_nobody(bench: Bench) -> None:
    run, (call,) = effects(bench, "mail.send")
    assert bench.one(bench.claim_stopped(run)) == c.Done("STOPPED")
    (found,) = flagged(bench, run)
    assert (found.call, found.why, found.owed) == (call, "irreversible", False)
    assert owed(bench, run) == []


@pytest.mark.parametrize("wrong", [None, "[]", '["01a22f98-a027-7e44-be08-f27466b783cf"]'])
def test_postgres_takes_no_run_that_says_otherwise_what_it_owes(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, wrong: str | None
) -> None:
    run, (call,) = effects(bench, "wallet.debit")
    _, undo = bench.offset(run)
    send, term = bench.dispatch(run, undo)
    bench.record(send, term, REFUSED)
    with monkeypatch.context() as lying:
        lying.setattr(machine, "_owed", lambda _calls: wrong)
        answer = bench.one(bench.claim_stopped(run))
    assert "what it owes comes with the event that says so" in getattr(answer, "why", "")
    assert bench.one(bench.claim_stopped(run)) == c.Done("STOPPED")
    assert owed(bench, run) == [str(call)]
