"""Grants that ask for approvals, and who they are for: roles, delegations, tainted runs."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from fencepost.authority import AllowList, ApprovalNeed, Approver, AuthorizationRequest, Grant
from fencepost.canonical import digest
from fencepost.contracts import Effect

REQUEST = AuthorizationRequest(
    tenant="shop",
    principal="svc:web",
    tool="bank.pay",
    tool_version=1,
    effect=Effect.REVERSIBLE,
    arguments={},
    arguments_hash="1:0",
    operation="k",
    run="r",
    call="c",
    attempt=1,
    phase="claim",
    at=datetime(2030, 1, 1, tzinfo=UTC),
)
HOUR = timedelta(hours=1)
PAY = ("bank.pay",)
ONE = Grant("svc:*", PAY, approvals=1, approvers=("ann",), within=HOUR)
TWO = Grant("svc:*", PAY, approvals=2, approvers=("ann", "bob"), within=HOUR)


def decided(*grants: Grant, **changes: Any) -> bool | ApprovalNeed | None:
    decision = AllowList(grants).decide(replace(REQUEST, **changes))
    assert (
        decision.code
        == {True: "", False: "approval_required" if decision.approval else "policy_denied"}[decision.allowed]
    )
    return True if decision.allowed else decision.approval


@pytest.mark.parametrize(
    ("grant", "changes", "wanted"),
    [
        (Grant("role:teller", PAY), {}, None),
        (Grant("role:teller", PAY), {"roles": ("teller",)}, True),
        (Grant("role:tell*", PAY), {"roles": ("teller",)}, True),
        # A name is no role, and a role no name, whatever they look like.
        (Grant("role:teller", PAY), {"principal": "role:teller"}, None),
        (Grant("teller", PAY), {"roles": ("teller",)}, None),
        (Grant("*", PAY), {"principal": "anybody"}, True),
        (Grant("clerk:eve", PAY), {}, None),
        (Grant("clerk:eve", PAY), {"on_behalf_of": ("clerk:eve",)}, True),
        (ONE, {}, ApprovalNeed(1, HOUR)),
        (ONE, {"approvals": 1}, True),
        (TWO, {"approvals": 1}, ApprovalNeed(2, HOUR)),
        (TWO, {"approvals": 2}, True),
        # Nobody waits for whom no grant names.
        (Grant("svc:*", PAY, approvals=1, within=HOUR), {}, None),
    ],
)
def test_a_grant_is_for_whom_it_names_and_asks_for_so_many(
    grant: Grant, changes: dict[str, Any], wanted: bool | ApprovalNeed | None
) -> None:
    assert decided(grant, **changes) == wanted


@pytest.mark.parametrize("grave", [{"effect": Effect.IRREVERSIBLE}, {"egress": True}])
def test_after_untrusted_output_what_is_grave_takes_a_person(grave: dict[str, Any]) -> None:
    usual = Grant("svc:*", PAY, approvers=("ann",))
    assert decided(replace(usual, approvers=()), tainted=True, **grave) is None
    assert decided(usual, **grave) is True
    assert decided(usual, tainted=True) is True
    assert decided(usual, tainted=True, **grave) == ApprovalNeed()
    assert decided(usual, tainted=True, approvals=1, **grave) is True
    assert decided(replace(usual, tainted=True), tainted=True, **grave) is True
    assert decided(usual, tainted=True, compensates=True, **grave) is True


def test_of_several_grants_the_one_that_asks_least_decides() -> None:
    assert decided(TWO, ONE) == ApprovalNeed(1, HOUR)
    assert decided(TWO, replace(ONE, approvers=())) == ApprovalNeed(2, HOUR)
    assert decided(TWO, ONE, Grant("svc:web", ("bank.*",))) is True


@pytest.mark.parametrize(
    ("who", "changes", "may"),
    [
        (Approver("ann"), {}, False),
        (Approver("ann", roles=("finance",)), {}, True),
        (Approver("role:finance"), {}, False),
        (Approver("carl", on_behalf_of=("bob",)), {}, True),
        (Approver("bob"), {}, True),
        # Whoever asks does not approve, in whatever name.
        (Approver("svc:web", roles=("finance",)), {}, False),
        (Approver("ann", ("finance",), ("svc:web",)), {}, False),
        (Approver("bob"), {"on_behalf_of": ("bob",)}, False),
        (Approver("bob"), {"tenant": "other"}, False),
        (Approver("bob"), {"tool": "bank.close"}, False),
    ],
)
def test_approvers_are_those_of_a_grant_that_covers_the_call_and_never_who_asks(
    who: Approver, changes: dict[str, Any], *, may: bool
) -> None:
    grant = Grant("svc:*", PAY, "shop", approvals=1, approvers=("role:finance", "bob"))
    assert AllowList((grant,)).may_approve(replace(REQUEST, **changes), who).allowed is may


def test_whom_another_grant_names_opens_not_this_one() -> None:
    strict = Grant("role:clerk", PAY, approvals=1, approvers=("controller",), within=HOUR)
    lax = Grant("svc:*", PAY, approvals=2, approvers=("intern",), within=HOUR)
    both = replace(REQUEST, roles=("clerk",))
    for grants in ((strict, lax), (lax, strict)):
        engine = AllowList(grants)
        assert engine.decide(both).approval == ApprovalNeed(1, HOUR)
        assert engine.decide(replace(both, approvals=1)).deciding == (strict.label,)
        assert engine.may_approve(both, Approver("controller")).allowed
        assert not engine.may_approve(both, Approver("intern")).allowed
        assert engine.may_approve(REQUEST, Approver("intern")).allowed


def test_grants_as_they_were_before_they_could_ask_keep_their_version() -> None:
    plain = AllowList((Grant("svc:*", PAY), Grant("a", PAY, "t")))
    rows = [[None, "svc:*", ["bank.pay"]], ["t", "a", ["bank.pay"]]]
    assert plain.version == "allow-" + digest("fencepost.allow.v1", rows)[:16]
    asking = [
        replace(plain.grants[0], approvals=1),
        replace(plain.grants[0], approvers=("a",)),
        replace(plain.grants[0], within=HOUR),
        replace(plain.grants[0], tainted=True),
    ]
    versions = {AllowList((grant, plain.grants[1])).version for grant in asking}
    assert len(versions | {plain.version}) == 5
