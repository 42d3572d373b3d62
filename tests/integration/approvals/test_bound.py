"""An approval is of exactly what was approved, and opens nothing else."""

import json
from dataclasses import replace
from datetime import timedelta
from uuid import UUID

import psycopg
import pytest

from fencepost import commands as c
from fencepost.approvals import read
from fencepost.authority import Grant
from fencepost.ledger import approvals as reading
from fencepost.ledger import epochs
from fencepost.ledger.connect import connect
from fencepost.outcomes import Applied, Refused, Unsure
from fencepost.recovery import Answer
from fencepost.wire import Request
from fencepost_ops.checker import check
from fencepost_ops.commands.asked import lines
from tests.integration.approvals.desk import REFUND, USUAL, Desk, asking
from tests.integration.ledger_bench import TENANT

LOST = Unsure("timeout", "the answer was lost")
_ABSENT = Answer.ABSENT


# -- an approval is of exactly what was approved -----------------------------------------------------------


def _again(desk: Desk, run: UUID, call: UUID, why: str) -> None:
    """The claim asks anew, says why, and nothing was sent; a fresh approval opens it."""
    assert desk.honest_claim(run, call) == c.Done("AWAITING_APPROVAL")
    assert why in desk.bench.events(run)[-1].data["reason"]
    assert desk.attempts(run) == 0
    approval = read(desk.bench.call(call).approval)
    assert approval is not None
    assert approval.said == ()


def test_an_approval_under_another_policy_counts_no_longer(desk: Desk) -> None:
    run, call = desk.approved()
    desk.policy.grants = (*USUAL, Grant("svc:other", ("wallet.balance",)))
    _again(desk, run, call, "it was given under policy allow-")
    assert desk.say(call) == c.Done("INTENT_RECORDED")
    assert isinstance(desk.honest_claim(run, call), c.Send)


def test_a_policy_that_asks_for_more_persons_is_not_content_with_one(desk: Desk) -> None:
    run, call = desk.approved()
    desk.policy.grants = (asking("wallet.debit", count=2), REFUND)
    _again(desk, run, call, "needs 2 persons to approve it")


def test_an_approval_that_has_expired_counts_no_longer(desk: Desk) -> None:
    desk.policy.grants = (asking("wallet.debit", within=timedelta(minutes=10)), REFUND)
    run, call = desk.approved()
    desk.bench.ahead(601)
    _again(desk, run, call, "it expired at")


def test_an_approval_of_other_bytes_counts_no_longer(desk: Desk) -> None:
    run, call = desk.approved()
    other = Request.post("/debits", json={"order": "another", "minor": 100_000}).bind("http://127.0.0.1:9")
    claim = replace(desk.bench.claim_call(run, call), request=other.to_text())
    assert desk.bench.one(claim) == c.Done("AWAITING_APPROVAL")
    assert (
        "the request that would be sent is not what was approved" in desk.bench.events(run)[-1].data["reason"]
    )
    assert desk.attempts(run) == 0


def test_arguments_that_somebody_changed_behind_the_ledgers_back_are_not_what_was_approved(
    desk: Desk,
) -> None:
    run, call = desk.approved()
    desk.bench.started.remove(run)  # it cannot replay any more
    with desk.bench.owner.transaction():
        desk.bench.sql("SET LOCAL session_replication_role = replica")
        text = '{"minor":100000,"order":"x"}'
        desk.bench.sql("UPDATE fencepost.calls SET arguments = %s WHERE id = %s", text, call)
    was = json.loads(desk.bench.call(call).approval or "")["asked"]["request"]
    claim = replace(
        desk.bench.claim_call(run, call), request=was
    )  # as of a Python tool: only arguments differ
    assert desk.bench.one(claim) == c.Done("AWAITING_APPROVAL")
    assert "its arguments are not what was approved" in desk.bench.events(run)[-1].data["reason"]
    assert desk.attempts(run) == 0


def test_an_approval_of_another_definition_of_the_tool_counts_no_longer(desk: Desk) -> None:
    run, call = desk.approved()
    changed = replace(desk.bench.app.registry["wallet.debit", 1], egress=True)
    ledger = desk.bench.ledger_as("worker", tool=lambda _name, _version: changed)
    claim = replace(desk.bench.claim_call(run, call), request=desk.request(call))
    assert ledger.apply([claim]) == [c.Done("AWAITING_APPROVAL")]
    assert "the definition of its tool is not what was approved" in desk.bench.events(run)[-1].data["reason"]


def test_a_person_who_is_disabled_after_approving_has_approved_nothing(desk: Desk) -> None:
    run, call = desk.approved()
    desk.principal("ann", disabled=True)
    _again(desk, run, call, "ann, who gave it, is disabled: left")


def test_a_person_for_whom_the_run_acts_by_now_has_approved_nothing(desk: Desk) -> None:
    run, call = desk.approved()
    desk.delegate("ann", "svc:checkout")
    _again(desk, run, call, "ann, who gave it, asks for it by now")


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ("the principal is disabled", "principal_disabled"),
        ("its grant is gone", "policy_denied"),
        ("the tool is withdrawn", "tool_withdrawn"),
    ],
)
def test_what_forbids_it_altogether_ends_it_whoever_has_approved(desk: Desk, change: str, code: str) -> None:
    run, call = desk.approved()
    if change == "the principal is disabled":
        desk.principal("svc:checkout", disabled=True)
    elif change == "its grant is gone":
        desk.policy.grants = (REFUND,)
    else:
        desk.bench.sql("INSERT INTO fencepost.withdrawn VALUES ('wallet.debit', 1, now(), 'ann', 'a bug')")
    assert desk.honest_claim(run, call) == c.Done("REJECTED")
    denied = next(e for e in desk.bench.events(run) if e.type == "AuthorizationDenied")
    assert denied.data["code"] == code
    assert desk.attempts(run) == 0


def test_a_role_that_is_taken_away_while_it_waits_in_the_queue_takes_the_call_along(desk: Desk) -> None:
    desk.policy.grants = (replace(asking("wallet.debit"), principal="role:seller"),)
    desk.principal("svc:checkout", '["seller"]')
    run, call = desk.approved()
    desk.principal("svc:checkout")
    assert desk.honest_claim(run, call) == c.Done("REJECTED")
    assert desk.attempts(run) == 0


def test_one_approval_opens_one_call_and_not_its_neighbour(desk: Desk) -> None:
    run, order = desk.run(), desk.bench.order()
    small, large = desk.bench.plan(
        run, ("wallet.debit", {"order": order, "minor": 10}), ("wallet.note", {"order": order, "minor": 1000})
    )
    assert desk.say(small) == c.Done("INTENT_RECORDED")
    assert desk.bench.state(large) == "AWAITING_APPROVAL"
    desk.bench.sql("UPDATE fencepost.outbox SET due_at = fencepost.now() WHERE subject = %s", large)
    assert desk.honest_claim(run, large) == c.Moved()


# -- retries, doubts, offsetting ---------------------------------------------------------------------------


def test_an_approval_serves_the_call_with_its_retries(desk: Desk) -> None:
    run, call = desk.approved()
    term = desk.bench.term()
    send = desk.bench.one(replace(desk.bench.claim_call(run, call, term), request=desk.request(call)))
    busy = Refused("http_429", "later", retryable=True)
    assert desk.bench.record(send, term, busy) == c.Done("INTENT_RECORDED")
    desk.bench.ahead(1)
    assert isinstance(desk.honest_claim(run, call), c.Send)
    assert desk.attempts(run) == 2


def test_a_retry_after_the_approval_has_expired_asks_anew_and_evidence_still_finds_it(desk: Desk) -> None:
    desk.policy.grants = (asking("wallet.debit", within=timedelta(minutes=10)), REFUND)
    run, call = desk.approved()
    term = desk.bench.term()
    send = desk.bench.one(replace(desk.bench.claim_call(run, call, term), request=desk.request(call)))
    desk.bench.record(send, term, Refused("http_429", "later", retryable=True))
    desk.bench.ahead(601)
    assert desk.honest_claim(run, call) == c.Done("AWAITING_APPROVAL")
    late = desk.bench.evidence(send, term, Applied('{"id":"d-1"}', "d-1"))
    assert desk.bench.one(late) == c.Done("NEEDS_REPAIR")
    assert "the call is NEEDS_REPAIR" in desk.refused(call)


def test_a_doubtful_call_that_loses_its_approval_fails_once_it_is_proved_absent(desk: Desk) -> None:
    run, call = desk.approved()
    term = desk.bench.term()
    send = desk.bench.one(replace(desk.bench.claim_call(run, call, term), request=desk.request(call)))
    assert desk.bench.record(send, term, LOST) == c.Done("UNKNOWN")
    desk.principal("ann", disabled=True)
    desk.bench.ahead(4)
    ask, asking_term = desk.bench.reconcile(run, call)
    assert isinstance(ask, c.Ask)
    absent = desk.bench.looked_up(ask, asking_term, _ABSENT)
    desk.bench.one(absent)
    answer, _ = desk.bench.reconcile(run, call)
    assert answer == c.Done("FAILED")
    kept = desk.bench.call(call)
    assert (kept.state, kept.doubt, kept.attempts) == ("FAILED", False, 1)
    assert "ann, who gave it, is disabled" in (kept.error or "")


def test_a_compensation_may_wait_for_a_person_and_its_own_deadline_begins_with_the_approval(
    desk: Desk,
) -> None:
    desk.policy.grants = (Grant("svc:*", ("wallet.debit",)), asking("wallet.refund"))
    run = desk.run()
    call = desk.bench.debit(run, desk.bench.order())
    desk.bench.succeed(run, call)
    desk.bench.cancel(run)
    desk.bench.ahead(5)
    forward, back = desk.bench.offset(run)
    with connect(desk.bench.database.dsns["reader"], "test", autocommit=True) as reader:
        asked = reading.asked(reader, TENANT, back)
        assert asked is not None
        assert "purpose    it offsets an earlier effect of its run" in list(lines(asked, desk.bench.now()))
    assert (forward, desk.bench.state(back)) == (call, "AWAITING_APPROVAL")
    assert desk.bench.operation(call).status == "completed"
    desk.bench.ahead(3600)  # far beyond reconcile_for, which has not begun
    assert desk.say(back) == c.Done("INTENT_RECORDED")
    kept = desk.bench.call(back)
    assert kept.reconcile_until is not None
    assert kept.reconcile_until > desk.bench.now()
    term = desk.bench.term()
    send = desk.bench.one(replace(desk.bench.claim_call(run, back, term), request=desk.request(back)))
    assert isinstance(send, c.Send)
    assert desk.bench.record(send, term, Applied('{"id":"b-1"}', "b-1")) == c.Done("SUCCEEDED")
    assert desk.bench.operation(call).status == "compensated"


def test_a_compensation_approved_before_its_effect_is_quiet_waits_until_it_is(desk: Desk) -> None:
    desk.policy.grants = (Grant("svc:*", ("wallet.debit",)), asking("wallet.refund"))
    run = desk.run()
    call = desk.bench.debit(run, desk.bench.order())
    desk.bench.succeed(run, call)
    desk.bench.cancel(run)
    _, back = desk.bench.offset(run)
    quiet = desk.bench.call(call).quiet_at
    assert quiet is not None
    assert quiet > desk.bench.now()
    assert desk.say(back) == c.Done("INTENT_RECORDED")
    assert desk.bench.call(back).ready_at == quiet
    desk.bench.sql("UPDATE fencepost.outbox SET due_at = fencepost.now() WHERE subject = %s", back)
    assert desk.honest_claim(run, back) == c.Moved()
    assert desk.attempts(run) == 1
    desk.bench.ahead((quiet - desk.bench.now()).total_seconds())
    assert isinstance(desk.honest_claim(run, back), c.Send)


def test_an_effect_is_not_being_offset_while_what_offsets_it_waits_for_a_person(desk: Desk) -> None:
    desk.policy.grants = (Grant("svc:*", ("wallet.debit", "wallet.refund")),)
    run = desk.run()
    call = desk.bench.debit(run, desk.bench.order())
    desk.bench.succeed(run, call)
    desk.bench.cancel(run)
    desk.bench.ahead(5)
    _, back = desk.bench.offset(run)
    assert desk.bench.state(back) == "INTENT_RECORDED"
    desk.policy.grants = (Grant("svc:*", ("wallet.debit",)), asking("wallet.refund"))
    assert desk.honest_claim(run, back) == c.Done("AWAITING_APPROVAL")
    assert desk.bench.operation(call).status == "completed"
    assert desk.say(back) == c.Done("INTENT_RECORDED")
    assert isinstance(desk.honest_claim(run, back), c.Send)
    assert desk.bench.operation(call).status == "compensating"


@pytest.mark.parametrize("how", ["denied", "expired"])
def test_a_compensation_that_is_denied_or_expires_is_listed_as_not_offset(desk: Desk, how: str) -> None:
    desk.policy.grants = (Grant("svc:*", ("wallet.debit",)), asking("wallet.refund"))
    run = desk.run()
    call = desk.bench.debit(run, desk.bench.order())
    desk.bench.succeed(run, call)
    desk.bench.cancel(run)
    desk.bench.ahead(5)
    _, back = desk.bench.offset(run)
    if how == "denied":
        assert desk.say(back, approve=False) == c.Done("REJECTED")
    else:
        desk.bench.ahead(24 * 3600)
        assert desk.honest_claim(run, back) == c.Done("REJECTED")
    desk.bench.one(desk.bench.claim_stopped(run))
    assert desk.bench.status(run) == "STOPPED"
    (left,) = desk.bench.events(run)[-1].data["not_offset"]
    assert left["call"] == str(call)


def test_after_a_restore_a_call_that_waited_may_have_been_approved_and_sent_meanwhile(desk: Desk) -> None:
    run, call = desk.asked()
    since = desk.bench.now()
    with connect(desk.bench.database.dsns["operator"], "test", autocommit=True) as operator:
        epoch = epochs.open_epoch(operator, since, "ann", "a restore")
        command = c.Restore(**desk.bench.base(run), epoch=epoch.epoch, since=since, by="ann")
        (answer,) = desk.ledgers["ann"].apply([command])
        epochs.release(operator, "ann", "audited")
    assert answer == c.Restored(calls=1, unfamiliar=0)
    kept = desk.bench.call(call)
    assert (kept.state, kept.doubt) == ("UNKNOWN", True)
    assert "the call is UNKNOWN" in desk.refused(call)


# -- keys --------------------------------------------------------------------------------------------------


def test_what_its_key_refuses_bothers_nobody(desk: Desk) -> None:
    _, call = desk.approved()
    kept = json.loads(desk.bench.call(call).arguments)
    desk.honest_claim(desk.bench.call(call).run, call)
    run = desk.run()
    (other,) = desk.bench.plan(run, ("wallet.debit", {**kept, "minor": 7}))
    assert (desk.bench.state(other), desk.bench.call(other).error) == (
        "REJECTED",
        "key_arguments_differ: a call of the same key has other arguments",
    )


def test_of_two_equal_calls_the_second_to_be_approved_waits_and_takes_the_result(desk: Desk) -> None:
    order = desk.bench.order()
    one, two = desk.run(), desk.run()
    first, second = desk.bench.debit(one, order), desk.bench.debit(two, order)
    assert desk.say(first) == c.Done("INTENT_RECORDED")
    term = desk.bench.term()
    send = desk.bench.one(replace(desk.bench.claim_call(one, first, term), request=desk.request(first)))
    assert desk.say(second) == c.Done("INTENT_RECORDED")
    assert desk.bench.call(second).waits
    assert desk.bench.call(second).ready_at == desk.bench.run(two).deadline, "nobody looks at it in vain"
    desk.bench.record(send, term, Applied('{"id":"d-9"}', "d-9"))
    assert desk.honest_claim(two, second) == c.Done("SUCCEEDED")
    assert desk.bench.call(second).reused
    assert desk.attempts(two) == 0


# -- what Postgres and the checker say ---------------------------------------------------------------------


def test_the_checker_finds_what_was_sent_although_too_few_had_approved_it(desk: Desk) -> None:
    desk.policy.grants = (asking("wallet.debit", count=2), REFUND)
    run, call = desk.asked()
    assert desk.say(call) == c.Done("AWAITING_APPROVAL")
    desk.bench.started.remove(run)  # what is forged here does not replay
    with desk.bench.owner.transaction():
        desk.bench.sql("SET LOCAL session_replication_role = replica")
        forged = (
            "UPDATE fencepost.calls SET state = 'INTENT_RECORDED', ready_at = fencepost.now() WHERE id = %s"
        )
        desk.bench.sql(forged, call)
    desk.policy.grants = (Grant("svc:*", ("wallet.debit",)),)
    desk.bench.sql("UPDATE fencepost.outbox SET due_at = fencepost.now() WHERE subject = %s", call)
    assert isinstance(desk.honest_claim(run, call), c.Send)
    with psycopg.connect(desk.bench.database.dsns["reader"], autocommit=True) as reader:
        report = check(reader, None, settled=False, runs=[run])
    said = [v.message for verdict in report.verdicts if verdict.invariant == "I3" for v in verdict.violations]
    assert any("although 1 of the 2 persons that it takes had approved it" in message for message in said)


def test_the_checker_has_nothing_against_approved_denied_and_expired_calls(desk: Desk) -> None:
    runs = []
    for approve in (True, False):
        run, call = desk.asked()
        desk.say(call, approve=approve)
        runs.append(run)
    run, call = desk.approved()
    desk.bench.ahead(1)
    term = desk.bench.term()
    send = desk.bench.one(replace(desk.bench.claim_call(run, call, term), request=desk.request(call)))
    desk.bench.record(send, term, Applied('{"id":"d-5"}', "d-5"))
    with psycopg.connect(desk.bench.database.dsns["reader"], autocommit=True) as reader:
        report = check(reader, None, settled=False, runs=[*runs, run])
    assert [v.message for verdict in report.verdicts for v in verdict.violations] == []
