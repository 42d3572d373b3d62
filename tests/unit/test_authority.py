from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from fencepost.authority import (
    AllowList,
    ApprovalNeed,
    AuthorizationDecision,
    AuthorizationRequest,
    Grant,
    decide_safely,
    matches,
)
from fencepost.contracts import Effect

REQUEST = AuthorizationRequest(
    tenant="shop",
    principal="svc:checkout",
    tool="wallet.debit",
    tool_version=1,
    effect=Effect.REVERSIBLE,
    arguments={"order_id": "o-1"},
    arguments_hash="1:00",
    operation="00",
    run="r",
    call="c",
    attempt=0,
    phase="recording",
    at=datetime(2026, 1, 2, tzinfo=UTC),
)


def allowed(grants: list[Grant], **changes: Any) -> bool:
    return AllowList(tuple(grants)).decide(replace(REQUEST, **changes)).allowed


def test_nothing_is_allowed_without_a_grant() -> None:
    decision = AllowList().decide(REQUEST)
    assert not decision.allowed
    assert decision.reason == "no grant lets svc:checkout use wallet.debit in shop"
    assert decision.deciding == ()


def test_a_grant_allows_its_principal_its_tools_in_its_tenant() -> None:
    grants = [Grant("svc:checkout", ("wallet.debit",), "shop")]
    assert allowed(grants)
    assert not allowed(grants, principal="svc:other")
    assert not allowed(grants, tool="wallet.credit")
    assert not allowed(grants, tenant="other")


def test_a_grant_without_a_tenant_holds_in_all() -> None:
    assert allowed([Grant("svc:checkout", ("wallet.debit",))], tenant="anywhere")


def test_a_star_matches_any_text_and_everything_else_itself() -> None:
    assert allowed([Grant("svc:*", ("wallet.*",))])
    assert not allowed([Grant("svc:*", ("wallet.*",))], tool="walletXdebit")
    assert matches("*", "")
    assert matches("a*c", "abbc")
    assert not matches("a*c", "abbcd")
    assert not matches("[ab]?", "a1")


def test_an_irreversible_tool_is_allowed_by_its_exact_name_only() -> None:
    irreversible = {"effect": Effect.IRREVERSIBLE}
    assert not allowed([Grant("*", ("*",)), Grant("*", ("wallet.*",))], **irreversible)
    assert allowed([Grant("*", ("*",)), Grant("svc:*", ("wallet.debit",))], **irreversible)
    assert "exact name" in AllowList().decide(replace(REQUEST, effect=Effect.IRREVERSIBLE)).reason


def test_a_decision_names_the_policy_and_the_grant_that_decided() -> None:
    policy = AllowList((Grant("nobody", ("x",)), Grant("svc:*", ("wallet.*",), "shop")))
    decision = policy.decide(REQUEST)
    assert decision.deciding == ("shop/svc:*: wallet.*",)
    assert decision.policy_version == policy.version


def test_the_policy_version_changes_with_its_grants() -> None:
    one, two = Grant("a", ("x",)), Grant("b", ("x",))
    versions = {
        AllowList(grants).version for grants in [(), (one,), (two,), (one, two), (replace(one, tenant="t"),)]
    }
    assert len(versions) == 5
    assert AllowList((one,)).version == AllowList((Grant("a", ("x",)),)).version


class Broken:
    def decide(self, request: AuthorizationRequest) -> AuthorizationDecision:
        raise RuntimeError(f"no rule for {request.tool}\0")


class Careless:
    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def decide(self, request: AuthorizationRequest) -> AuthorizationDecision:
        answer: AuthorizationDecision = self.answer
        return answer


def test_an_engine_that_raises_denies() -> None:
    decision = decide_safely(Broken(), REQUEST)
    assert not decision.allowed
    assert decision.reason == "policy engine failed: RuntimeError: no rule for wallet.debit\\u0000"


@pytest.mark.parametrize("answer", [None, True, "yes", AuthorizationDecision("yes", "", "1")])  # type: ignore[arg-type]
def test_anything_but_a_decision_denies(answer: Any) -> None:
    assert not decide_safely(Careless(answer), REQUEST).allowed


@pytest.mark.parametrize(
    "parts",
    [
        {"reason": None},
        {"policy_version": None},
        {"policy_version": "7\0"},
        {"policy_version": "\ud800"},
        {"code": 7},
        {"deciding": None},
        {"deciding": "r1"},
        {"deciding": (object(),)},
        {"allowed": False, "approval": True},
        {"allowed": False, "approval": ApprovalNeed(count="two")},  # type: ignore[arg-type]
        {"allowed": False, "approval": ApprovalNeed(within=60)},  # type: ignore[arg-type]
    ],
)
def test_a_decision_that_the_ledger_could_not_keep_denies(parts: dict[str, Any]) -> None:
    decision = decide_safely(Careless(replace(AuthorizationDecision(True, "because", "7"), **parts)), REQUEST)
    assert (decision.allowed, decision.code, decision.approval) == (False, "policy_error", None)


def test_a_proper_decision_passes_unchanged() -> None:
    decision = AuthorizationDecision(allowed=True, reason="because", policy_version="7", deciding=("r1",))
    assert decide_safely(Careless(decision), REQUEST) is decision
