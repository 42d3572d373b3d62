from dataclasses import replace
from datetime import timedelta

import pytest

from fencepost.authority import (
    ApprovalNeed,
    Approver,
    AuthorizationRequest,
)
from fencepost.authority.compiled import InvalidBundle, Question
from fencepost.contracts import Effect
from tests.unit.policies_app import WORDS, engine
from tests.unit.policy_questions import (
    ALLOWED,
    ANN,
    ANY,
    DENIED,
    ENGINE,
    ERRING,
    MAIL,
    NEEDED,
    REFUND,
    REQUEST,
)


@pytest.mark.parametrize(("policy", "request_"), ALLOWED)
def test_what_is_allowed_and_by_which_policy(policy: str, request_: AuthorizationRequest) -> None:
    decision = ENGINE.decide(request_)
    assert decision.allowed, decision
    assert policy in decision.deciding
    assert (decision.code, decision.approval, decision.policy_version) == ("", None, "7")
    assert set(decision.digests) == {"policy", "schema", "entities", "request"}


@pytest.mark.parametrize(("why", "request_", "deciding"), DENIED)
def test_what_is_denied(why: str, request_: AuthorizationRequest, deciding: tuple[str, ...]) -> None:
    decision = ENGINE.decide(request_)
    assert (decision.allowed, decision.code, decision.approval) == (False, "policy_denied", None), why
    assert decision.deciding == deciding
    assert ("the account is frozen" in decision.reason) == bool(deciding)


@pytest.mark.parametrize(("why", "request_", "need", "deciding"), NEEDED)
def test_what_needs_persons_how_many_and_how_soon(
    why: str, request_: AuthorizationRequest, need: ApprovalNeed, deciding: tuple[str, ...]
) -> None:
    decision = ENGINE.decide(request_)
    assert (decision.allowed, decision.code, decision.approval) == (False, "approval_required", need), why
    assert decision.deciding == deciding
    assert ENGINE.decide(replace(request_, approvals=need.count)).allowed


def test_a_permit_that_itself_asks_for_an_approval() -> None:
    asking = engine(
        '@id("asks") @within("30m") permit (principal, action in Action::"reversible", resource)'
        " when { context.approvals >= 1 };"
    )
    decision = asking.decide(REQUEST)
    assert decision.approval == ApprovalNeed(1, timedelta(minutes=30))
    assert decision.deciding == ("asks",)
    assert asking.decide(replace(REQUEST, approvals=1)).allowed


def test_who_acts_for_somebody_is_in_that_principal_but_is_not_it() -> None:
    anns = engine('@id("x") permit (principal in Principal::"ann", action in Action::"tools", resource);')
    assert anns.decide(replace(REQUEST, principal="ann")).allowed
    assert anns.decide(replace(REQUEST, principal="helper", on_behalf_of=("bob", "ann"))).allowed
    assert not anns.decide(replace(REQUEST, principal="helper", on_behalf_of=("bob",))).allowed


def test_what_a_policy_says_of_itself_is_bounded_and_shown_plainly() -> None:
    long = "\u202e" + "x" * 5000
    said = engine(f'{ANY}; @id("y") @reason("{long}") forbid (principal, action, resource);').decide(REQUEST)
    assert len(said.reason) < 600
    assert said.reason.startswith("wallet.debit is forbidden: \\u202exxx")


def test_three_persons_are_more_than_can_be_asked_for() -> None:
    asking = engine(f"{ANY} when {{ context.approvals > 2 }};")
    assert asking.decide(REQUEST).code == "policy_denied"
    assert asking.decide(replace(REQUEST, approvals=3)).allowed


@pytest.mark.parametrize(("why", "request_", "says"), ERRING)
def test_whatever_errs_denies_and_asks_nobody(why: str, request_: AuthorizationRequest, says: str) -> None:
    decision = ENGINE.decide(request_)
    assert (decision.allowed, decision.code, decision.approval) == (False, "policy_error", None), why
    assert says in decision.reason
    assert decision.digests["policy"] == ENGINE.decide(REQUEST).digests["policy"]


def test_an_attribute_that_may_be_missing_cannot_be_read_without_asking_for_it() -> None:
    with pytest.raises(InvalidBundle, match=r"all\.cedar:1: .*optional attribute `amount`"):
        engine(f"{ANY} when {{ context.amount.minor < 3 }};")


def test_an_entity_that_is_not_there_errs() -> None:
    small, boxes = f'{ANY} when {{ Box::"b".size < 3 }};', "entity Box { size: Long };"
    missing = engine(small, schema_cedarschema=boxes)
    assert missing.decide(REQUEST).code == "policy_error"
    box = '[{"uid": {"type": "Box", "id": "b"}, "attrs": {"size": 2}, "parents": []}]'
    assert engine(small, schema_cedarschema=boxes, entities_json=box).decide(REQUEST).allowed


def test_arguments_of_every_type_are_seen() -> None:
    seeing = engine(
        """@id("x") permit (principal, action == Action::"wallet.everything", resource) when {
            context.arguments.text == "a" && context.arguments.number == -5 && context.arguments.flag &&
            context.arguments.moment == datetime("2026-01-02T03:04:05.678Z") &&
            context.arguments.day == datetime("2026-01-02") && context.arguments.exact == "1.50" &&
            context.arguments.kind == "y" && context.arguments.labels.contains("l") &&
            context.arguments.addresses.isEmpty() == false &&
            !(context.arguments has home)
        };"""
    )
    arguments = {
        "text": "a",
        "number": -5,
        "flag": True,
        "moment": "2026-01-02T05:04:05.678999+02:00",
        "day": "2026-01-02",
        "exact": "1.50",
        "kind": "y",
        "labels": ["l", "l"],
        "addresses": [{"street": "s", "zip-code": "9"}],
        "home": None,
        "weight": "not seen, so not judged",
    }
    request = replace(REQUEST, tool="wallet.everything", effect=Effect.READ, arguments=arguments)
    assert seeing.decide(request).allowed
    assert not seeing.decide(replace(request, arguments={**arguments, "labels": []})).allowed
    assert not seeing.decide(
        replace(request, arguments={**arguments, "moment": "2026-01-02T03:04:05Z"})
    ).allowed
    unzoned = replace(request, arguments={**arguments, "moment": "2026-01-02T03:04:05"})
    assert seeing.decide(unzoned).code == "policy_error"


def test_the_words_say_what_no_policy_can_read() -> None:
    assert sorted(WORDS.left_out) == [
        "mail.send: text",  # text in one version, a number in the other
        "wallet.everything: either",
        "wallet.everything: free",
        "wallet.everything: maybe",
        "wallet.everything: weight",
    ]


def test_versions_of_a_tool_are_one_action_of_the_gravest_effect() -> None:
    read_only = engine('@id("x") permit (principal, action in Action::"read", resource);')
    assert read_only.decide(replace(REQUEST, tool="wallet.look", arguments={"account": "a"})).allowed
    assert not read_only.decide(MAIL).allowed
    copies = engine(
        '@id("x") permit (principal, action == Action::"mail.send", resource)'
        " when { context.tool_version == 1 ||"
        " (context.arguments has copies && context.arguments.copies < 2) };"
    )
    assert copies.decide(MAIL).allowed
    newer = replace(MAIL, tool_version=2, arguments={"to": "a", "text": 1, "copies": 1})
    assert copies.decide(newer).allowed
    assert not copies.decide(replace(newer, arguments={"to": "a", "text": 1, "copies": 2})).allowed


def test_an_action_may_be_told_by_what_leaves_the_house() -> None:
    house = engine('@id("x") permit (principal, action in Action::"egress", resource);')
    assert house.decide(MAIL).allowed
    assert not house.decide(REQUEST).allowed


def test_who_may_approve_is_what_policies_say_of_approving() -> None:
    decision = ENGINE.may_approve(REFUND, ANN)
    assert (decision.allowed, decision.deciding, decision.policy_version) == (True, ("controllers",), "7")
    assert not ENGINE.may_approve(REFUND, Approver("ann")).allowed
    assert not ENGINE.may_approve(REFUND, Approver("carl", ("clerk",))).allowed, "to use is not to approve"
    assert not ENGINE.may_approve(MAIL, ANN).allowed
    assert not ENGINE.decide(replace(REFUND, principal="ann", roles=("controller",))).allowed, (
        "nor the reverse"
    )
    assert ENGINE.may_approve(replace(REFUND, tool_version=9), ANN).code == "policy_error"
    assert ENGINE.may_approve(replace(REFUND, resource=("account", "frozen")), ANN).deciding == ("frozen",)


def test_nobody_approves_what_it_asks_for_whatever_a_policy_says() -> None:
    own = replace(REFUND, principal="ann")
    assert not ENGINE.may_approve(own, ANN).allowed
    assert "cannot approve it" in ENGINE.may_approve(own, ANN).reason
    assert not ENGINE.may_approve(replace(REFUND, on_behalf_of=("ann",)), ANN).allowed
    assert not ENGINE.may_approve(own, replace(ANN, principal="bob", on_behalf_of=("ann",))).allowed
    trusted = replace(REFUND, principal="svc:trusted")
    refused = ENGINE.may_approve(trusted, Approver("svc:trusted"))
    assert (refused.allowed, refused.deciding) == (False, ("oneself",))


def test_an_answer_with_an_error_allows_nothing_though_another_policy_permits() -> None:
    erring = '@id("y") permit (principal, action in Action::"tools", resource) when { Box::"b".size < 3 };'
    mixed = engine(f"{ANY}; {erring}", schema_cedarschema="entity Box { size: Long };")
    assert mixed.decide(REQUEST).code == "policy_error"
    asking = Approver(REQUEST.principal, REQUEST.roles, REQUEST.on_behalf_of)
    (answer,) = Question(mixed.compiled, REQUEST, asking, REQUEST.tool).answers([0])
    assert (answer.allows, len(answer.errors)) == (False, 1)
