"""Approvals attacked in plain SQL: who approves is who is logged in, once, and what was said stays said."""

from typing import Any

import pytest

from tests.integration.guards_bench import (
    ASKED,
    LOGIN,
    OPERATOR,
    OWNER,
    WORKER,
    CallTarget,
    approval,
    presented,
)

MINE = {"who": "ann", "login": LOGIN, "approve": True}
BOB = {"who": "bob", "login": "second", "approve": True}
OVER = ASKED | {"expires_at": "2026-01-01T00:00:00Z"}


def wait(target: CallTarget, asked: dict[str, Any] = ASKED, *said: dict[str, Any]) -> None:
    target.put("AWAITING_APPROVAL", owner=None, approval=approval(asked, *said))


def say(
    target: CallTarget,
    word: dict[str, Any],
    to: str = "INTENT_RECORDED",
    role: str | None = OPERATOR,
    **columns: Any,
) -> str | None:
    """An honest decision, but for `columns`: with its event, its version and the text that follows."""
    seq, _ = target.event("approval", "ApprovalDecided", body={"decision": word})
    kept = target.attack.force("SELECT approval::json FROM fencepost.calls WHERE id = %s", target.call)[0][0]
    follows = approval(kept["asked"], *kept["decisions"], word)
    change = {"state": to, "version": seq, **presented("approval", target.version), "approval": follows}
    return target.attack.update("calls", target.call, change | columns, role)


def test_an_operator_approves_under_its_own_login(target: CallTarget) -> None:
    wait(target)
    assert say(target, MINE) is None
    assert say(target, MINE | {"approve": False}, "REJECTED") is None
    for role in (OPERATOR, OWNER):
        assert say(target, MINE | {"login": "another"}, role=role) == "FP002"
        assert say(target, {"who": "ann", "approve": True}, role=role) == "FP002"


def test_a_worker_approves_and_denies_nothing(target: CallTarget) -> None:
    wait(target)
    assert say(target, MINE, role=WORKER) == "FP002"
    assert say(target, MINE | {"approve": False}, "REJECTED", role=WORKER) == "FP002"


def test_what_was_said_is_what_comes_of_it(target: CallTarget) -> None:
    wait(target)
    assert say(target, MINE, "REJECTED") == "FP002"
    assert say(target, MINE | {"approve": False}) == "FP002"
    assert say(target, MINE | {"approve": False}, "AWAITING_APPROVAL") == "FP002"
    assert say(target, {"who": "ann", "login": LOGIN}, "INTENT_RECORDED") == "FP002"


def test_what_takes_two_persons_is_not_sent_on_with_one(target: CallTarget) -> None:
    two = ASKED | {"count": 2}
    wait(target, two)
    assert say(target, MINE) == "FP002"
    assert say(target, MINE, "AWAITING_APPROVAL") is None
    wait(target, two, BOB)
    assert say(target, MINE) is None


def test_no_login_and_no_name_approves_twice(target: CallTarget) -> None:
    wait(target, ASKED | {"count": 2}, {"who": "bob", "login": LOGIN, "approve": True})
    assert say(target, MINE) == "FP002"
    wait(target, ASKED | {"count": 2}, BOB)
    assert say(target, MINE | {"who": "bob"}) == "FP002"
    assert say(target, MINE | {"who": "bob", "approve": False}, "REJECTED") is None


def test_who_asks_for_a_call_denies_it_and_does_not_approve_it(target: CallTarget) -> None:
    wait(target)
    ((asks,),) = target.attack.force("SELECT principal FROM fencepost.runs WHERE id = %s", target.run)
    for role in (OPERATOR, OWNER):
        assert say(target, MINE | {"who": asks}, role=role) == "FP002"
        assert say(target, MINE | {"who": asks, "approve": False}, "REJECTED", role=role) is None


def test_after_its_time_nobody_decides_and_before_it_no_claim_ends_it(target: CallTarget) -> None:
    wait(target, OVER)
    assert say(target, MINE) == "FP002"
    assert say(target, MINE | {"approve": False}, "REJECTED") == "FP002"
    assert end(target) is None
    wait(target)
    assert end(target) == "FP002"


def end(target: CallTarget, kind: str = "ApprovalDecided", **columns: Any) -> str | None:
    seq, _ = target.event("claim", kind, body={"code": "approval_expired"})
    change = {"state": "REJECTED", "version": seq, **presented("claim"), **columns}
    return target.attack.update("calls", target.call, change, WORKER)


def test_a_claim_that_ends_it_says_so_with_the_event_of_it(target: CallTarget) -> None:
    wait(target, OVER)
    assert end(target, "AuthorizationDenied") == "FP002"
    assert end(target, approval=approval(OVER, MINE)) == "FP001"


@pytest.mark.parametrize("role", [WORKER, OPERATOR, OWNER])
def test_what_was_asked_and_said_changes_only_with_its_event(target: CallTarget, role: str | None) -> None:
    text = approval(ASKED, MINE)
    wait(target)
    assert target.attack.update("calls", target.call, {"approval": text}, role) == "FP004"
    target.put("INTENT_RECORDED", approval=approval(ASKED))
    seq, _ = target.event("claim", "DispatchDeferred")
    change = {"version": seq, **presented("claim"), "approval": text}
    assert target.attack.update("calls", target.call, change, role) == "FP001"
    assert target.attack.update("calls", target.call, change | {"approval": None}, role) == "FP001"


def test_an_operator_adds_its_own_word_and_nothing_else(target: CallTarget) -> None:
    wait(target, ASKED | {"count": 2})
    more = approval(ASKED | {"count": 2}, BOB, MINE)
    assert say(target, MINE, approval=more) == "FP001"
    assert say(target, MINE, approval=approval(ASKED, MINE)) == "FP001"
    assert say(target, MINE, approval=approval(ASKED | {"count": 2})) == "FP002"


def test_a_claim_asks_with_its_event_and_for_nobody_s_approval_in_advance(target: CallTarget) -> None:
    target.put("INTENT_RECORDED", owner=None)

    def ask(kept: str | None, kind: str = "ApprovalRequested") -> str | None:
        seq, _ = target.event("claim", kind, body={"asked": ASKED})
        change = {"state": "AWAITING_APPROVAL", "version": seq, **presented("claim"), "approval": kept}
        return target.attack.update("calls", target.call, change, WORKER)

    assert ask(None, "DispatchDeferred") == "FP004"
    target.put("INTENT_RECORDED", owner=None, approval=approval(ASKED))
    assert ask(approval(ASKED), "DispatchDeferred") == "FP004"
    target.put("INTENT_RECORDED", owner=None, approval=None)
    assert ask(approval(ASKED)) is None
    assert ask(approval(ASKED, BOB)) == "FP001"
    assert ask(approval(ASKED | {"count": 0})) == "FP001"
    assert ask(None) == "FP004"
    target.put("INTENT_RECORDED", owner=None, approval=approval(ASKED, BOB))
    assert ask(approval(ASKED, BOB)) == "FP004"  # what was approved before is asked for anew
