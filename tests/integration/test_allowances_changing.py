"""Allowances while something else changes: the policy, the clock, the ledger itself, the message's number."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest

from fencepost import commands as c
from fencepost.allowances import Allowance
from fencepost.authority import ApprovalNeed, AuthorizationDecision, AuthorizationRequest
from fencepost.authority.bundle import read_bundle
from fencepost.authority.inforce import Engines
from fencepost.authority.standing import EVERYBODY
from fencepost.authority.vocabulary import vocabulary
from fencepost.decide import allow
from fencepost.ledger import allowances as counters
from fencepost.ledger import policies
from fencepost.ledger.connect import connect
from fencepost.recovery import Answer
from tests.awaiting import until
from tests.integration.allowed import NOT_YET, name, under
from tests.integration.ledger_bench import TENANT, Bench
from tests.integration.recovering import doubted, release, released_afterwards, restore

ANY = '@id("debits") permit (principal, action == Action::"wallet.debit", resource);\n'


@pytest.fixture(autouse=True)
def released(bench: Bench) -> Iterator[None]:
    with released_afterwards(bench):
        yield


def test_a_claim_that_is_applied_again_takes_nothing_again(bench: Bench) -> None:
    few = name()
    with under(bench, Allowance(id=few, count=5)) as allowed:
        claim = allowed.claim(allowed.calls(1)[0])
        first, second = bench.one(claim), bench.one(claim)
        assert isinstance(first, c.Send)
        assert isinstance(second, c.Send)
        assert allowed.used(few) == [(1, 0)]


def test_a_claim_that_waited_into_another_window_takes_from_that_one(bench: Bench) -> None:
    few = name()
    with under(bench, Allowance(id=few, count=5, window=timedelta(minutes=1))) as allowed:
        bench.ahead(60 - bench.now().timestamp() % 60)
        first, second = (allowed.planned_in(bench.start(deadline_s=600), bench.order()) for _ in "ab")
        allowed.sent(first)
        claim = allowed.claim(second)
        with psycopg.connect(bench.database.owner) as holder, ThreadPoolExecutor(1) as thread:
            lock = "SELECT 1 FROM fencepost.allowances WHERE allowance = %s FOR UPDATE"
            assert holder.execute(lock, [few]).fetchall() == [(1,)]
            answer = thread.submit(bench.one, claim)
            until("the claim waits", lambda: _waits(bench), every_s=0.005)
            bench.ahead(60)
            holder.commit()
            assert isinstance(answer.result(60), c.Send)
        assert allowed.used(few) == [(1, 0), (1, 0)]
        started = bench.events(bench.call(second).run)[-1]
        (share,) = started.data["reserved"]
        assert share["since"] <= started.recorded_at.strftime("%Y-%m-%dT%H:%M:%S.%fZ") < share["until"]


def _waits(bench: Bench) -> bool:
    return bool(bench.sql("SELECT count(*) > 0 FROM pg_locks WHERE NOT granted")[0][0])


def test_what_was_never_sent_as_far_as_a_restored_ledger_knows_takes_its_share_with_the_repeat(
    bench: Bench,
) -> None:
    few = name()
    with under(bench, Allowance(id=few, count=1)) as allowed:
        call, second = allowed.calls(2)
        restore(bench)
        answers = [_absent(bench, one) for one in (call, second)]
        assert isinstance(answers[0], c.Send)
        assert answers[0].repeat
        assert allowed.used(few) == [(1, 0)]
        # It may have happened: no denial says that it has not.
        assert answers[1] == c.Done("UNKNOWN")
        assert allowed.code(second) == "allowance_exceeded"
        release(bench)


def _absent(bench: Bench, call: UUID) -> Any:
    """What a reconciler is answered once a lookup has proved that nothing happened."""
    run = bench.call(call).run
    ask, _ = doubted(bench, run, call)
    if ask == c.Moved():
        return ask
    bench.ahead(4)
    again, term = doubted(bench, run, call)
    assert isinstance(again, c.Ask), again
    bench.one(bench.looked_up(again, term, Answer.ABSENT))
    answer, _ = doubted(bench, run, call)
    return answer


@dataclass
class Asking:
    """An authority that has had second thoughts: everything needs an approval now."""

    def decide(self, request: AuthorizationRequest) -> AuthorizationDecision:
        need = ApprovalNeed(1, timedelta(seconds=5))
        return AuthorizationDecision(False, "ask", "asking-1", code="approval_required", approval=need)


def test_a_share_is_held_while_persons_are_asked_and_given_back_if_nobody_answers(bench: Bench) -> None:
    few = name()
    with under(bench, Allowance(id=few, count=1)) as allowed:
        call = allowed.planned_in(bench.start(deadline_s=600), bench.order())
        bench.record(*allowed.sent(call), NOT_YET)
        bench.ahead(1)
        bench.ledger = bench.ledger_as("worker", **allowed.changes, authority=Asking())
        assert allowed.claimed(call) == c.Done("AWAITING_APPROVAL")
        assert allowed.used(few) == [(1, 0)]
        bench.ahead(6)
        assert allowed.claimed(call) == c.Done("REJECTED")
        assert "ApprovalDecided" in bench.kinds(bench.call(call).run, call)
        assert allowed.used(few) == [(0, 0)]


# -- published policies ------------------------------------------------------------------------------------


def _publish(bench: Bench, tenant: str, *allowances: dict[str, Any]) -> int:
    words, _ = vocabulary(bench.app.registry)
    settings = json.dumps({"name": "bench", "allowances": list(allowances)})
    bundle, problems = read_bundle({"bundle.json": settings, "all.cedar": ANY}, words)
    assert bundle is not None, problems
    with connect(bench.database.dsns["operator"], "test", autocommit=True) as connection:
        return policies.publish(connection, bundle, tenant=tenant, by="ann", note="n").version


def test_the_policy_in_force_decides_what_is_allowed_and_the_application_no_longer(bench: Bench) -> None:
    own, theirs, later = name(), name(), name()
    with under(bench, Allowance(id=own, count=1)) as allowed:
        bench.ledger = bench.ledger_as("worker", **allowed.changes, engines=Engines())
        first, second, third, fourth = allowed.calls(4)
        allowed.sent(first)
        _publish(bench, TENANT, {"id": theirs, "tool": "wallet.*", "count": 1, "window": "365d"})
        send, term = allowed.sent(second)
        assert (allowed.held(second), allowed.used(own)) == ([theirs], [(1, 0)])
        assert "is used up: 1 of 1 calls" in allowed.refused(third)
        denied = [e for e in bench.events(bench.call(third).run) if e.type == "AuthorizationDenied"][-1]
        assert (denied.data["deciding"], denied.data["code"]) == (
            [f"allowance:{theirs}"],
            "allowance_exceeded",
        )
        # Another policy, while the second waits for its retry: it keeps what it has, and takes what is new.
        bench.record(send, term, NOT_YET)
        version = _publish(bench, TENANT, {"id": theirs, "count": 0}, {"id": later, "count": 1})
        bench.ahead(1)
        allowed.sent(second)
        assert allowed.held(second) == [theirs, later]
        assert allowed.used(later) == [(1, 0)]
        assert theirs in allowed.refused(fourth)
        denied = [e for e in bench.events(bench.call(fourth).run) if e.type == "AuthorizationDenied"][-1]
        assert denied.policy == str(version)


def test_a_counter_that_is_not_locked_lets_nothing_go(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    few = name()
    with under(bench, Allowance(id=few, count=5)) as allowed:
        call = allowed.calls(1)[0]
        monkeypatch.setattr(counters, "lock", lambda *_: True)
        answer = allowed.claimed(call)
        assert isinstance(answer, c.Broken)
        assert "is not locked" in answer.why
        assert (bench.state(call), allowed.used(few)) == ("INTENT_RECORDED", [])


def test_a_policy_that_cannot_be_used_has_no_allowances_and_denies_everything(bench: Bench) -> None:
    engines = Engines()
    unusable = engines.add(7, "{}")
    known = replace(bench.known, engines=engines, allowances=(Allowance(id=name(), count=1),))
    standing = replace(EVERYBODY, policies={TENANT: 7}, engines={7: unusable})
    assert allow.in_force(known, standing, TENANT) == ()
    assert allow.in_force(known, EVERYBODY, TENANT) == known.allowances
