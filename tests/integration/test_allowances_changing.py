"""Allowances while something else changes: the policy, the clock, the ledger itself, the message's number."""

import itertools
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
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
from fencepost.outcomes import Refused
from fencepost.recovery import Answer
from tests.awaiting import until
from tests.integration.allowed import NOBODY_KNOWS, NOT_YET, Allowed, euros, name, under
from tests.integration.ledger_bench import TENANT, Bench
from tests.integration.recovering import doubted, release, released_afterwards, restore

CLOSES = Refused("http_429", "not now", retryable=True, retry_after=timedelta(seconds=7))
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


@dataclass
class Mine(Allowed):
    """Under an allowance of its own calls: a restore also marks what other tests have left behind."""

    orders: set[str]

    def calls(self, count: int, **how: Any) -> list[UUID]:
        orders = [self.bench.order() for _ in range(count)]
        self.orders.update(orders)
        return self.planned(orders, **how)


@contextmanager
def _under_mine(bench: Bench, few: str, **limits: Any) -> Iterator[Mine]:
    orders = set[str]()

    def acts_on(args: Any) -> tuple[str, str]:
        return ("mine" if args.order in orders else "other"), args.order

    with under(bench, Allowance(id=few, resource="mine", **limits), acts_on=acts_on) as allowed:
        yield Mine(bench, allowed.changes, orders)


@contextmanager
def _recovered(allowed: Allowed, *, knowing: bool) -> Iterator[None]:
    """The ledger is restored, by a process that knows the tools and allowances or by one that does not."""
    bench, before = allowed.bench, allowed.bench.operator
    bench.operator = bench.ledger_as("operator", **allowed.changes) if knowing else before
    try:
        restore(bench)
    finally:
        bench.operator = before
    yield
    release(bench)


def _found(allowed: Allowed, call: UUID) -> None:
    """A reconciler asks about the call, and is told that it happened."""
    bench = allowed.bench
    order, term = doubted(bench, bench.call(call).run, call)
    assert isinstance(order, c.Ask), order
    assert bench.one(bench.looked_up(order, term, Answer.FOUND, "r-1")) == c.Done("SUCCEEDED")


def test_what_may_have_been_sent_in_a_lost_time_holds_its_share_at_once_and_beyond_the_limit(
    bench: Bench,
) -> None:
    few = name()
    with _under_mine(bench, few, count=1, spend=euros(150)) as allowed:
        first, second = allowed.calls(2)
        with _recovered(allowed, knowing=True):
            assert allowed.used(few) == [(2, 200)]
        sibling, later = allowed.calls(2)
        assert "is used up: 2 of 1 calls" in allowed.refused(sibling)
        bench.ahead(4)
        _found(allowed, first)
        _found(allowed, second)
        assert allowed.used(few) == [(2, 200)]
        assert "is used up: 2 of 1 calls" in allowed.refused(later)


def test_a_process_that_knows_the_tool_counts_what_the_one_that_recovered_could_not(bench: Bench) -> None:
    few = name()
    with _under_mine(bench, few, count=1) as allowed:
        (call,) = allowed.calls(1)
        with _recovered(allowed, knowing=False):
            assert allowed.used(few) == []
            order, term = doubted(bench, bench.call(call).run, call)
            assert isinstance(order, c.Ask)
            assert (allowed.held(call), allowed.used(few)) == ([few], [(1, 0)])
            bench.one(bench.looked_up(order, term, Answer.FOUND, "r-1"))
        assert bench.state(call) == "SUCCEEDED"
        assert allowed.used(few) == [(1, 0)]
        assert "is used up: 1 of 1 calls" in allowed.refused(allowed.calls(1)[0])


@pytest.mark.parametrize("knowing", [True, False])
def test_what_has_no_room_fails_once_it_is_proved_absent_and_makes_room(bench: Bench, knowing: bool) -> None:
    few = name()
    with _under_mine(bench, few, count=1) as allowed:
        call, second = allowed.calls(2)
        with _recovered(allowed, knowing=knowing):
            for one in (call, second):
                doubted(bench, bench.call(one).run, one)
            # Each may have happened, so that neither is let go beside the other until a lookup has spoken.
            bench.ahead(3)
            assert allowed.used(few) == [(2, 0)]
            assert _absent(bench, call) == c.Done("FAILED")
            assert allowed.code(call) == "allowance_exceeded"
            assert allowed.used(few) == [(1, 0)]
            assert isinstance(_absent(bench, second), c.Send)


def test_one_that_fits_is_sent_with_the_share_it_holds_and_gives_it_back(bench: Bench) -> None:
    few = name()
    with _under_mine(bench, few, count=1) as allowed:
        (call,) = allowed.calls(1)
        with _recovered(allowed, knowing=True):
            send = _absent(bench, call)
            assert isinstance(send, c.Send), send
            assert send.repeat
        assert allowed.used(few) == [(1, 0)]
        started = [e for e in bench.events(send.call.run) if e.type == "ToolAttemptStarted"][-1]
        assert [share["allowance"] for share in started.data["reserved"]] == [few]


def test_a_recovery_names_what_is_not_counted_and_no_function_that_raises_stops_it(bench: Bench) -> None:
    cash, few = name(), name()
    raising = False

    def acts_on(args: Any) -> tuple[str, str]:
        if raising:
            raise ValueError("not now")
        return "account", args.order

    allowances = Allowance(id=cash, spend=euros(500)), Allowance(id=few, count=5000)
    for raises, held, unclear in ((False, [few], [cash]), (True, [], [cash, few])):
        with under(bench, *allowances, amount=None, acts_on=acts_on) as allowed:
            (call,) = allowed.calls(1)
            raising = raises
            with _recovered(allowed, knowing=True):
                assert allowed.held(call) == held
            raising = False
        marked = [e for e in bench.events(bench.call(call).run) if e.type == "ToolOutcomeMarkedUnknown"]
        assert marked[-1].data["uncounted"] == unclear


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


def test_a_repeat_that_an_allowance_refuses_takes_no_place_at_the_dependency(bench: Bench) -> None:
    few = name()
    with _under_mine(bench, few, count=1) as allowed:
        call = allowed.calls(2)[0]  # both may have been sent: neither is let go beside the other
        send, term = allowed.sent(allowed.planned([bench.order()])[0])
        bench.record(send, term, CLOSES)
        with _recovered(allowed, knowing=True):
            bench.ahead(7.1)
            ask, term = doubted(bench, bench.call(call).run, call)
            assert isinstance(ask, c.Ask), ask
            bench.one(bench.looked_up(ask, term, Answer.ABSENT))
            bench.ahead(4)  # the question was the one probe there may be, and counts no more
            assert doubted(bench, bench.call(call).run, call)[0] == c.Done("FAILED")
            assert allowed.code(call) == "allowance_exceeded"
        allowed.sent(allowed.planned([bench.order()])[0])


def test_an_allowance_made_while_a_call_is_in_doubt_does_not_stop_its_repeat(bench: Bench) -> None:
    few = name()
    with under(bench) as allowed:
        call = allowed.calls(1, tool="wallet.hold")[0]
        bench.record(*allowed.sent(call), NOBODY_KNOWS)
    with under(bench, Allowance(id=few, count=0)) as allowed:
        again, _ = bench.reconcile(bench.call(call).run, call)
        assert isinstance(again, c.Send), again
        assert (again.repeat, allowed.held(call), allowed.used(few)) == (True, [], [])


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


def test_allowances_of_the_policy_in_force_hold_beside_those_of_the_application(bench: Bench) -> None:
    own, theirs, later = name(), name(), name()
    with under(bench, Allowance(id=own, count=3), Allowance(id=theirs, count=0, tool="none")) as allowed:
        bench.ledger = bench.ledger_as("worker", **allowed.changes, engines=Engines())
        first, second, third, fourth = allowed.calls(4)
        allowed.sent(first)
        _publish(bench, TENANT, {"id": theirs, "tool": "wallet.*", "count": 1, "window": "365d"})
        send, term = allowed.sent(second)
        assert (allowed.held(second), allowed.used(own)) == ([theirs, own], [(2, 0)])
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
        assert allowed.held(second) == [theirs, own, later]
        assert allowed.used(later) == [(1, 0)]
        assert theirs in allowed.refused(fourth)
        denied = [e for e in bench.events(bench.call(fourth).run) if e.type == "AuthorizationDenied"][-1]
        assert denied.policy == str(version)


def test_a_counter_that_is_not_locked_lets_nothing_go(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    few = name()
    with under(bench, Allowance(id=few, count=5), acts_on=None, amount=None) as allowed:
        call = allowed.calls(1)[0]
        monkeypatch.setattr(counters, "lock", lambda *_: True)
        answer = allowed.claimed(call)
        assert isinstance(answer, c.Broken)
        assert "is not locked" in answer.why
        assert (bench.state(call), allowed.used(few)) == ("INTENT_RECORDED", [])


def test_an_allowance_of_the_application_does_not_go_away_with_a_policy_that_says_nothing_of_it(
    bench: Bench,
) -> None:
    none = name()
    with under(bench, Allowance(id=none, count=0)) as allowed:
        bench.ledger = bench.ledger_as("worker", **allowed.changes, engines=Engines())
        _publish(bench, TENANT)
        assert f"allowance {none} is used up" in allowed.refused(allowed.calls(1)[0])
        _publish(bench, TENANT, {"id": none, "count": 1})
        allowed.sent(allowed.calls(1)[0])


@pytest.mark.parametrize("named", ["\ud800", "a\0b"])
def test_what_has_no_canonical_text_is_denied_by_name(bench: Bench, named: str) -> None:
    few = name()
    allowance = Allowance(id=few, per=("resource",), count=5)
    with under(bench, allowance, acts_on=lambda _args: ("account", named)) as allowed:
        (call,) = allowed.calls(1)
        assert "not authorised (allowance_error): what it takes of allowances cannot" in allowed.refused(call)
        assert allowed.code(call) == "allowance_error"


@pytest.mark.parametrize("raising", [2, 3])
def test_a_function_that_raises_every_now_and_then_is_a_denial_wherever_it_does(
    bench: Bench, raising: int
) -> None:
    asked = itertools.count(1)

    def acts_on(args: Any) -> tuple[str, str]:
        if next(asked) == raising:
            raise ValueError("not now")
        return "account", args.order

    allowance = Allowance(id=name(), per=("resource",), count=5)
    with under(bench, allowance, acts_on=acts_on) as allowed:
        (call,) = allowed.calls(1)  # is asked once as it is recorded
        allowed.refused(call)
        assert allowed.code(call) == ("policy_error" if raising == 3 else "allowance_error")


def test_what_a_call_acts_on_is_asked_once_under_the_locks_and_once_before_them(bench: Bench) -> None:
    asked: list[str] = []

    def acts_on(args: Any) -> tuple[str, str]:
        asked.append(args.order)
        return "account", args.order

    for allowances, often in (((), 1), ((Allowance(id=name(), per=("resource",), count=5),), 2)):
        with under(bench, *allowances, acts_on=acts_on) as allowed:
            (call,) = allowed.calls(1)
            asked.clear()
            allowed.sent(call)
            assert len(asked) == often


def test_a_restore_counts_in_the_allowances_of_the_policy_in_force(bench: Bench) -> None:
    theirs = name()
    with _under_mine(bench, name(), count=9) as allowed:
        allowed.changes["engines"] = Engines()
        bench.ledger = bench.ledger_as("worker", **allowed.changes)
        _publish(bench, TENANT, {"id": theirs, "resource": "mine", "count": 1})
        (call,) = allowed.calls(1)
        with _recovered(allowed, knowing=True):
            assert theirs in allowed.held(call)
        assert allowed.used(theirs) == [(1, 0)]


def test_a_policy_that_cannot_be_used_leaves_the_applications_allowances_and_denies_everything(
    bench: Bench,
) -> None:
    engines = Engines()
    unusable = engines.add(7, "{}")
    known = replace(bench.known, engines=engines, allowances=(Allowance(id=name(), count=1),))
    standing = replace(EVERYBODY, policies={TENANT: 7}, engines={7: unusable})
    assert allow.in_force(known, standing, TENANT) == known.allowances
    assert allow.in_force(known, EVERYBODY, TENANT) == known.allowances
