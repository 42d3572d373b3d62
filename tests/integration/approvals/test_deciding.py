"""What persons are asked, who of them may decide, and what comes of it."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from fencepost import commands as c
from fencepost.approvals import read
from fencepost.authority import Grant
from fencepost.outcomes import Applied
from tests.integration.approvals.desk import REFUND, USUAL, Desk, Policy, asking

# -- asking ------------------------------------------------------------------------------------------------


def test_what_only_persons_open_waits_for_them_and_says_exactly_what_would_be_sent(desk: Desk) -> None:
    run, call = desk.asked()
    kept, bench = desk.bench.call(call), desk.bench
    approval = read(kept.approval)
    assert approval is not None
    asked = approval.asked
    tool = bench.app.registry["wallet.debit", 1]
    assert (asked["operation"], asked["arguments_hash"], asked["definition"], asked["policy"]) == (
        kept.operation,
        kept.arguments_hash,
        tool.definition_digest,
        desk.policy.now.version,
    )
    assert asked["request"] == desk.request(call)
    assert (asked["effect"], asked["requester"], asked["turn"]) == ("reversible", "svc:checkout", 1)
    assert (approval.count, approval.missing, approval.said) == (1, 1, ())
    assert approval.expires_at - approval.requested_at == timedelta(days=1)
    # The run's deadline comes first: at it the run stops, and nobody is asked any more.
    row = bench.row(call)
    assert row is not None
    assert (row.queue, row.due_at) == ("dispatcher", bench.run(run).deadline)
    assert bench.kinds(run, call) == ["ToolProposalRecorded", "ArgumentsCanonicalized", "ApprovalRequested"]


def test_an_approved_call_is_due_at_once_and_is_sent_once(desk: Desk) -> None:
    run, call = desk.asked()
    assert desk.say(call) == c.Done("INTENT_RECORDED")
    bench = desk.bench
    row = bench.row(call)
    assert row is not None
    assert row.due_at <= bench.now()
    send = desk.honest_claim(run, call)
    assert isinstance(send, c.Send)
    assert desk.policy.seen[-1].approvals == 1
    assert bench.kinds(run, call)[3:] == [
        "ApprovalDecided",
        "DispatchIntentRecorded",
        "LeaseAcquired",
        "AuthorizationAllowed",
        "ToolAttemptStarted",
    ]
    decided = next(e for e in bench.events(run) if e.type == "ApprovalDecided")
    assert (decided.principal, decided.data["decision"]["login"]) == ("ann", desk.logins["ann"])


def test_nothing_is_sent_of_what_waits_for_an_approval(desk: Desk) -> None:
    run, call = desk.asked()
    desk.bench.sql("UPDATE fencepost.outbox SET due_at = fencepost.now() WHERE subject = %s", call)
    assert desk.honest_claim(run, call) == c.Moved()
    assert desk.attempts(run) == 0
    assert desk.bench.state(call) == "AWAITING_APPROVAL"


def test_a_policy_that_asks_only_now_holds_up_what_was_allowed_when_it_was_recorded(desk: Desk) -> None:
    desk.policy.grants = (Grant("svc:*", ("wallet.*",)),)
    run = desk.run()
    call = desk.bench.debit(run, desk.bench.order())
    assert desk.bench.state(call) == "INTENT_RECORDED"
    desk.policy.grants = USUAL
    assert desk.honest_claim(run, call) == c.Done("AWAITING_APPROVAL")
    assert desk.attempts(run) == 0
    assert desk.say(call) == c.Done("INTENT_RECORDED")
    assert isinstance(desk.honest_claim(run, call), c.Send)


def test_what_only_reads_may_need_a_person_as_well(desk: Desk) -> None:
    desk.policy.grants = (asking("wallet.balance"),)
    run, call = desk.asked("wallet.balance")
    assert desk.say(call) == c.Done("INTENT_RECORDED")
    assert isinstance(desk.honest_claim(run, call), c.Send)


# -- who may decide ----------------------------------------------------------------------------------------


def test_only_whom_the_policy_lets_may_approve_or_deny(desk: Desk) -> None:
    _, call = desk.asked()
    assert "no grant lets eve approve wallet.debit" in desk.refused(call, "eve")
    assert "no grant lets eve approve wallet.debit" in desk.refused(call, "eve", approve=False)
    desk.principal("carol", '["boss"]')
    assert desk.say(call, "carol") == c.Done("INTENT_RECORDED")


def test_who_asks_cannot_approve_in_whatever_name(desk: Desk) -> None:
    desk.policy.grants = (replace(asking("wallet.debit"), approvers=("*",)), REFUND)
    _, call = desk.asked()
    assert "asks for it" in desk.refused(call, "svc:checkout")
    desk.delegate("dora", "svc:checkout")
    assert "asks for it" in desk.refused(call, "dora")
    desk.bench.sql("DELETE FROM fencepost.delegations")


def test_an_engine_that_lets_everybody_approve_still_does_not_let_who_asks(desk: Desk) -> None:
    _, call = desk.asked()
    permissive = replace(desk.bench.known, authority=_Everybody())
    ledger = desk.bench.ledger_as("operator", authority=permissive.authority)
    (answer,) = ledger.apply([desk.command(call, "svc:checkout")])
    assert isinstance(answer, c.Denied)
    assert "asks for it" in answer.why
    (answer,) = ledger.apply([desk.command(call, "eve")])
    assert answer == c.Done("INTENT_RECORDED")


class _Everybody:
    def decide(self, request: Any) -> Any:
        raise AssertionError

    def may_approve(self, request: Any, approver: Any) -> Any:
        return replace(Policy().now.decide(request), allowed=True, approval=None, code="")


def test_a_disabled_person_decides_nothing(desk: Desk) -> None:
    _, call = desk.asked()
    desk.principal("ann", disabled=True)
    assert desk.refused(call) == "ann is disabled: left"


def test_a_delegation_gives_the_word_and_is_recorded_link_by_link(desk: Desk) -> None:
    run, call = desk.asked()
    desk.principal("carol", '["boss"]')
    desk.delegate("carol", "dan", "wallet.*")
    desk.delegate("dan", "eve", "wallet.*")
    assert desk.say(call, "eve") == c.Done("INTENT_RECORDED")
    said = next(e for e in desk.bench.events(run) if e.type == "ApprovalDecided").data["decision"]
    assert (said["roles"], said["links"]) == (["boss"], ["dan>eve", "carol>dan"])
    desk.bench.sql("UPDATE fencepost.delegations SET revoked_at = fencepost.now() WHERE delegate = 'dan'")
    assert desk.honest_claim(run, call) == c.Done("AWAITING_APPROVAL")  # the chain is followed in the claim
    assert "eve, who gave it, may do so no longer" in desk.bench.events(run)[-1].data["reason"]


def test_a_person_who_looked_at_an_older_version_decides_nothing(desk: Desk) -> None:
    _, call = desk.asked()
    seen = desk.bench.call(call).version
    assert "has changed since" in desk.refused(call, seen=seen - 1)
    assert desk.say(call, seen=seen) == c.Done("INTENT_RECORDED")


# -- what they say -----------------------------------------------------------------------------------------


def test_a_denial_is_final_stops_the_run_and_is_told_in_so_many_words(desk: Desk) -> None:
    run, call = desk.asked()
    assert desk.say(call, approve=False) == c.Done("REJECTED")
    kept, ended = desk.bench.call(call), desk.bench.run(run)
    assert kept.error == "approval_denied: ann denied it: ann looked"
    assert (ended.status, ended.stop_reason) == ("STOPPED", "authorization_denied")
    assert desk.bench.row(call) is None
    assert "ann" in desk.refused(call, "bob")
    assert desk.attempts(run) == 0


@pytest.mark.parametrize("on_stop", ["compensate", "leave"])
def test_a_denial_lets_what_is_in_flight_settle_and_offsets_what_was_done(desk: Desk, on_stop: str) -> None:
    desk.policy.grants = (asking("mail.send"), Grant("svc:*", ("wallet.*",)))
    run, order = desk.run(on_stop=on_stop), desk.bench.order()
    sent, waiting = desk.bench.plan(run, ("wallet.debit", {"order": order}), ("mail.send", {"order": order}))
    send, term = desk.bench.dispatch(run, sent)
    assert desk.say(waiting, approve=False) == c.Done("REJECTED")
    assert desk.bench.status(run) == "STOPPING"
    desk.bench.record(send, term, Applied('{"id":"d-1"}', "d-1"))
    assert desk.bench.status(run) == ("COMPENSATING" if on_stop == "compensate" else "STOPPED")
    assert desk.bench.run(run).stop_reason == "authorization_denied"


def test_a_denial_of_the_last_open_call_stops_the_run_at_once_and_offsets_what_was_done(desk: Desk) -> None:
    desk.policy.grants = (asking("mail.send"), Grant("svc:*", ("wallet.*",)))
    run, order = desk.run(), desk.bench.order()
    done, waiting = desk.bench.plan(run, ("wallet.debit", {"order": order}), ("mail.send", {"order": order}))
    desk.bench.succeed(run, done)
    assert desk.say(waiting, approve=False) == c.Done("REJECTED")
    assert desk.bench.status(run) == "COMPENSATING"


def test_a_denial_of_what_is_not_required_goes_back_to_the_planner(desk: Desk) -> None:
    run, call = desk.asked("wallet.note")
    assert desk.say(call, approve=False) == c.Done("REJECTED")
    assert desk.bench.status(run) == "ACTING"
    assert isinstance(desk.bench.finish(run), c.Done)


def test_the_opposite_word_is_refused_and_says_who_decided_what_when(desk: Desk) -> None:
    run, call = desk.approved()
    why = desk.refused(call, "bob", approve=False)
    assert why.startswith(f"it is decided already: ann (login {desk.logins['ann']}) approved it at ")
    assert "it is decided already" in desk.refused(call, "ann", approve=False)
    assert "it is decided already" in desk.refused(call, "bob")
    assert isinstance(desk.honest_claim(run, call), c.Send)


def test_the_same_word_again_changes_nothing(desk: Desk) -> None:
    run, call = desk.approved()
    before = desk.bench.run(run).seq
    assert desk.say(call) == c.Done("INTENT_RECORDED")
    assert desk.bench.run(run).seq == before


def test_who_approved_is_not_told_that_all_is_well_once_another_has_denied(desk: Desk) -> None:
    desk.policy.grants = (asking("wallet.debit", count=2), REFUND)
    _, call = desk.asked()
    desk.say(call)
    desk.say(call, "bob", approve=False)
    assert "bob (login" in desk.refused(call)
    assert desk.say(call, "bob", approve=False) == c.Done("REJECTED")


def test_a_decision_applied_again_after_a_lost_reply_is_one_decision(desk: Desk) -> None:
    run, call = desk.asked()
    command = desk.command(call)
    assert [desk.ledgers["ann"].apply([command]) for _ in "12"] == [[c.Done("INTENT_RECORDED")]] * 2
    assert desk.bench.kinds(run).count("ApprovalDecided") == 1


def test_two_persons_are_two_names_under_two_logins(desk: Desk) -> None:
    desk.policy.grants = (asking("wallet.debit", count=2), REFUND)
    run, call = desk.asked()
    assert desk.say(call) == c.Done("AWAITING_APPROVAL")
    assert desk.say(call) == c.Done("AWAITING_APPROVAL")
    assert "login" in desk.refused(call, "bob", login=desk.logins["ann"], through="ann")
    assert "ann has approved it already" in desk.refused(call, "ann", login=desk.logins["bob"], through="bob")
    assert desk.say(call, "bob") == c.Done("INTENT_RECORDED")
    assert isinstance(desk.honest_claim(run, call), c.Send)
    assert desk.policy.seen[-1].approvals == 2


def test_who_acts_for_one_of_them_is_no_second_person(desk: Desk) -> None:
    desk.policy.grants = (asking("wallet.debit", count=2), REFUND)
    desk.delegate("ann", "carl")
    run, call = desk.asked()
    assert desk.say(call, "ann") == c.Done("AWAITING_APPROVAL")
    by_bobs_login: Any = {"through": "bob", "login": desk.logins["bob"]}
    assert "no grant lets carl approve" in desk.refused(call, "carl", **by_bobs_login)
    desk.delegate("ann", "bob")  # who may approve by a right of his own
    assert desk.say(call, "bob") == c.Done("INTENT_RECORDED")
    assert isinstance(desk.honest_claim(run, call), c.Send)
    _, other = desk.asked()
    assert desk.say(other, "carl", **by_bobs_login) == c.Done("AWAITING_APPROVAL")
    assert desk.say(other, "ann") == c.Done("INTENT_RECORDED")
    assert desk.honest_claim(desk.bench.call(other).run, other) == c.Done("AWAITING_APPROVAL")
    assert desk.attempts(desk.bench.call(other).run) == 0


def test_one_of_two_persons_is_enough_to_deny(desk: Desk) -> None:
    desk.policy.grants = (asking("wallet.debit", count=2), REFUND)
    _, call = desk.asked()
    assert desk.say(call) == c.Done("AWAITING_APPROVAL")
    assert desk.say(call, "bob", approve=False) == c.Done("REJECTED")


# -- time --------------------------------------------------------------------------------------------------


def test_what_nobody_approves_in_time_ends_and_is_never_sent(desk: Desk) -> None:
    desk.policy.grants = (asking("wallet.debit", within=timedelta(minutes=10)), REFUND)
    run, call = desk.asked()
    row = desk.bench.row(call)
    approval = read(desk.bench.call(call).approval)
    assert row is not None
    assert approval is not None
    assert row.due_at == approval.expires_at
    desk.bench.ahead(601)
    assert "that is over" in desk.refused(call)
    assert desk.honest_claim(run, call) == c.Done("REJECTED")
    assert (desk.bench.call(call).error or "").startswith("approval_expired: it was asked for until ")
    assert desk.bench.run(run).stop_reason == "authorization_denied"
    assert desk.attempts(run) == 0


def test_at_its_deadline_the_run_stops_and_nobody_is_asked_any_more(desk: Desk) -> None:
    run, call = desk.asked(deadline_s=60)
    desk.bench.ahead(61)
    assert "deadline" in desk.refused(call)
    assert desk.honest_claim(run, call) == c.Late()
    desk.bench.one(desk.bench.claim_run(run))
    assert (desk.bench.state(call), desk.bench.status(run)) == ("CANCELLED", "STOPPED")


def test_a_cancelled_run_asks_nobody_any_more(desk: Desk) -> None:
    run, call = desk.asked()
    assert desk.bench.cancel(run) == c.Done("STOPPED")
    assert desk.bench.state(call) == "CANCELLED"
    assert "the call is CANCELLED" in desk.refused(call)
