import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from fencepost.authority import (
    ApprovalNeed,
    Approver,
    AuthorizationDecision,
    AuthorizationRequest,
    approve_safely,
    decide_safely,
)
from fencepost.authority.cedar import InvalidBundle, engine_of
from fencepost.authority.inforce import Engines, compiled
from fencepost.contracts import Effect
from fencepost.money import Money
from tests.unit.policies_app import WORDS, bundle, engine

ANY = '@id("x") permit (principal, action in Action::"tools", resource)'
MORNING = datetime(2026, 1, 5, 9, 30, tzinfo=UTC)
ARGUMENTS = {
    "order_id": "o-1",
    "account": "ann",
    "amount": {"currency": "EUR", "amount_minor": 1200, "scale": 2},
    "memo": None,
}
REQUEST = AuthorizationRequest(
    tenant="shop",
    principal="svc:checkout",
    tool="wallet.debit",
    tool_version=1,
    effect=Effect.REVERSIBLE,
    arguments=ARGUMENTS,
    arguments_hash="1:00",
    operation="00",
    run="r",
    call="c",
    attempt=1,
    phase="claim",
    at=MORNING,
    definition="d",
    resource=("account", "ann"),
    amount=Money(currency="EUR", amount_minor=1200, scale=2),
)
REFUND = replace(
    REQUEST,
    tool="wallet.refund",
    effect=Effect.IRREVERSIBLE,
    arguments={"debit": "d-1"},
    amount=None,
    resource=None,
)
MAIL = replace(
    REFUND,
    tool="mail.send",
    tool_version=1,
    effect=Effect.READ,
    egress=True,
    arguments={"to": "a", "text": "t"},
)

POLICIES = """
@id("debits")
permit (principal == Principal::"svc:checkout", action == Action::"wallet.debit", resource)
when {
    context.tenant == "shop" && context has amount && context.amount.currency == "EUR" &&
    context.amount.minor <= 5000 && context.now >= datetime("2026-01-05T08:00:00Z") &&
    context.now < datetime("2026-01-05T18:00:00Z")
};

@id("clerks") permit (principal in Role::"clerk", action in Action::"tools", resource)
when { principal.tenant == "shop" };

@id("small refunds") @unattended("irreversible")
permit (principal == Principal::"svc:refunds", action == Action::"wallet.refund", resource)
when { context.arguments.debit like "small-*" };

@id("refunds") permit (principal == Principal::"svc:refunds", action == Action::"wallet.refund", resource);

@id("frozen") @reason("the account is frozen")
forbid (principal, action, resource == Resource::"account/frozen");

@id("large") @within("2h") @reason("more than 3000")
forbid (principal, action == Action::"wallet.debit", resource)
when { context has amount && context.amount.minor > 3000 && context.amount.minor <= 4000 }
unless { context.approvals >= 2 };

@id("overflowing") forbid (principal, action == Action::"wallet.debit", resource)
when { context.attempt == 9 && context has amount && context.amount.minor * 9000000000000000 > 1 };

@id("controllers") permit (principal in Role::"controller", action in Action::"approve", resource)
unless { context.tool == "mail.send" };

@id("oneself")
permit (principal == Principal::"svc:trusted", action == Action::"approve wallet.refund", resource)
when { context.requester == principal.name };
"""
ENGINE = engine(
    POLICIES,
    entities_json='[{"uid": {"type": "Principal", "id": "boss"},'
    ' "parents": [{"type": "Role", "id": "head"}]},'
    ' {"uid": {"type": "Role", "id": "head"}, "parents": [{"type": "Role", "id": "clerk"}]}]',
)


def money(minor: int, currency: str = "EUR") -> Money:
    return Money(currency=currency, amount_minor=minor, scale=2 if currency == "EUR" else 0)


def clerk(request: AuthorizationRequest, **changes: Any) -> AuthorizationRequest:
    return replace(request, **{"principal": "carl", "roles": ("clerk",), **changes})


ALLOWED = [
    ("debits", REQUEST),
    ("debits", replace(REQUEST, amount=money(3000))),
    ("debits", replace(REQUEST, amount=money(5000))),
    ("debits", replace(REQUEST, at=datetime(2026, 1, 5, 8, tzinfo=UTC))),
    ("debits", replace(REQUEST, at=datetime.fromisoformat("2026-01-05T19:59:59.999999+02:00"))),
    ("clerks", clerk(REQUEST, amount=None)),
    ("clerks", clerk(REQUEST, principal="boss", roles=())),
    ("clerks", replace(REQUEST, principal="helper", on_behalf_of=("boss",), amount=None)),
    ("small refunds", replace(REFUND, principal="svc:refunds", arguments={"debit": "small-1"})),
    ("debits", replace(REQUEST, amount=money(3500), approvals=2)),
    ("clerks", clerk(MAIL)),
    ("clerks", clerk(MAIL, tainted=True, approvals=1)),
    ("clerks", clerk(REQUEST, tainted=True, amount=None)),  # neither irreversible nor sent out
]


@pytest.mark.parametrize(("policy", "request_"), ALLOWED)
def test_what_is_allowed_and_by_which_policy(policy: str, request_: AuthorizationRequest) -> None:
    decision = ENGINE.decide(request_)
    assert decision.allowed, decision
    assert policy in decision.deciding
    assert (decision.code, decision.approval, decision.policy_version) == ("", None, "7")
    assert set(decision.digests) == {"policy", "schema", "entities", "request"}


DENIED = [
    ("another tenant", replace(REQUEST, tenant="other"), ()),
    ("another currency", replace(REQUEST, amount=money(12, "JPY")), ()),
    ("above the limit", replace(REQUEST, amount=money(5001)), ()),
    ("no amount at all", replace(REQUEST, amount=None), ()),
    ("before the window", replace(REQUEST, at=MORNING - timedelta(hours=2)), ()),
    ("at its end", replace(REQUEST, at=datetime(2026, 1, 5, 18, tzinfo=UTC)), ()),
    ("nobody knows the principal", replace(REQUEST, principal="who?\n\"'\u2028"), ()),
    ("a role it lost", replace(clerk(REQUEST, amount=None), roles=()), ()),
    ("a role that is spelt otherwise", clerk(REQUEST, amount=None, principal="c", tenant="else"), ()),
    ("a forbid", replace(REQUEST, resource=("account", "frozen")), ("frozen",)),
    (
        "a forbid, whoever approves",
        replace(REQUEST, resource=("account", "frozen"), approvals=2),
        ("frozen",),
    ),
    ("not Ann, but for Ann", replace(REQUEST, principal="x", on_behalf_of=("svc:checkout",)), ()),
]


@pytest.mark.parametrize(("why", "request_", "deciding"), DENIED)
def test_what_is_denied(why: str, request_: AuthorizationRequest, deciding: tuple[str, ...]) -> None:
    decision = ENGINE.decide(request_)
    assert (decision.allowed, decision.code, decision.approval) == (False, "policy_denied", None), why
    assert decision.deciding == deciding
    assert ("the account is frozen" in decision.reason) == bool(deciding)


HOURS_2, DAY = timedelta(hours=2), timedelta(hours=24)
NEEDED = [
    ("dual control", replace(REQUEST, amount=money(3500)), ApprovalNeed(2, HOURS_2), ("large",)),
    (
        "one is not two",
        replace(REQUEST, amount=money(3500), approvals=1),
        ApprovalNeed(2, HOURS_2),
        ("large",),
    ),
    (
        "irreversible",
        replace(REFUND, principal="svc:refunds"),
        ApprovalNeed(1, DAY),
        ("fencepost.irreversible",),
    ),
    ("irreversible, by role", clerk(REFUND), ApprovalNeed(1, DAY), ("fencepost.irreversible",)),
    (
        "unattended lifts what it names only",
        replace(REFUND, principal="svc:refunds", arguments={"debit": "small-1"}, tainted=True),
        ApprovalNeed(1, DAY),
        ("fencepost.tainted",),
    ),
    ("tainted and sent out", clerk(MAIL, tainted=True), ApprovalNeed(1, DAY), ("fencepost.tainted",)),
    (
        "both",
        clerk(REFUND, tainted=True),
        ApprovalNeed(1, DAY),
        ("fencepost.irreversible", "fencepost.tainted"),
    ),
]


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


def test_three_persons_are_more_than_can_be_asked_for() -> None:
    asking = engine(f"{ANY} when {{ context.approvals > 2 }};")
    assert asking.decide(REQUEST).code == "policy_denied"
    assert asking.decide(replace(REQUEST, approvals=3)).allowed


ERRING = [
    ("a forbid that overflows beside a permit", replace(REQUEST, attempt=9), "policy overflowing"),
    ("an unknown tool", replace(REQUEST, tool="wallet.burn"), "without the tool wallet.burn"),
    ("an unknown version", replace(REQUEST, tool_version=9), "version 9 of wallet.debit"),
    ("a missing argument", replace(REQUEST, arguments={**ARGUMENTS, "account": None}), "arguments.account"),
    (
        "another type",
        replace(REQUEST, arguments={**ARGUMENTS, "account": 3}),
        "arguments.account is not text",
    ),
    ("no object", replace(REQUEST, arguments=["x"]), "arguments is no object"),  # type: ignore[arg-type]
    (
        "a huge integer",
        replace(REQUEST, arguments={**ARGUMENTS, "amount": {**ARGUMENTS["amount"], "amount_minor": 2**63}}),  # type: ignore[dict-item]
        "arguments.amount.amount_minor is no integer",
    ),
    (
        "a float",
        replace(REQUEST, arguments={**ARGUMENTS, "amount": {**ARGUMENTS["amount"], "amount_minor": 10.0}}),  # type: ignore[dict-item]
        "arguments.amount.amount_minor is no integer",
    ),
    (
        "a boolean for a number",
        replace(REQUEST, arguments={**ARGUMENTS, "amount": {**ARGUMENTS["amount"], "scale": True}}),  # type: ignore[dict-item]
        "arguments.amount.scale is no integer",
    ),
    ("a huge attempt", replace(REQUEST, attempt=2**63), "2**53"),
    ("a NUL", replace(REQUEST, principal="a\0"), "NUL"),
    ("half a character", replace(REQUEST, tenant="\ud800"), "half a character"),
    ("an instant without a zone", replace(REQUEST, at=datetime(2026, 1, 5)), "no time zone"),  # noqa: DTZ001
    ("a slash in a resource's type", replace(REQUEST, resource=("a/b", "c")), "slash"),
    (
        "an entity in disguise",
        replace(REQUEST, arguments={**ARGUMENTS, "account": {"__entity": {"type": "Role", "id": "clerk"}}}),
        "arguments.account is not text",
    ),
]


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


ANN = Approver("ann", ("controller",))


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


def test_the_digests_name_what_was_judged() -> None:
    digests = ENGINE.decide(REQUEST).digests
    assert ENGINE.decide(replace(REQUEST)).digests == digests

    def changed(**changes: Any) -> set[str]:
        now = ENGINE.decide(replace(REQUEST, **changes)).digests
        return {name for name in digests if now[name] != digests[name]}

    assert changed(attempt=2) == {"request"}
    assert changed(amount=money(1)) == {"request"}
    assert changed(roles=("clerk",)) == {"entities"}
    assert changed(tenant="other") == {"entities", "request"}
    assert changed(run="another", call="another") == set(), "which call it is no policy sees"
    other = engine(POLICIES + "// a remark").decide(REQUEST).digests
    assert other["schema"] == digests["schema"]


def test_a_published_text_decides_alike_in_another_process() -> None:
    text = ENGINE.compiled.bundle.pack()
    again = engine_of(text, "7")
    assert again.digest == ENGINE.digest
    assert again.compiled.bundle.pack() == text
    for _, request in [*ALLOWED, *((w, r) for w, r, *_ in DENIED), *((w, r) for w, r, *_ in NEEDED)]:
        assert again.decide(request) == ENGINE.decide(request)


class Limits:
    """A second engine: a function of the request, in plain Python."""

    def decide(self, request: AuthorizationRequest) -> AuthorizationDecision:
        if request.tool == "wallet.broken":
            raise LookupError("no limit for it")
        amount = request.amount
        fine = amount is not None and amount.amount_minor <= {"EUR": 5000}[amount.currency]
        return AuthorizationDecision(fine, "within limits" if fine else "too much", "limits-1", ("limits",))


@pytest.mark.parametrize("authority", [ENGINE, Limits()])
def test_two_engines_stand_behind_one_port(authority: Any) -> None:
    assert decide_safely(authority, REQUEST).allowed
    above = decide_safely(authority, replace(REQUEST, amount=money(5001)))
    assert (above.allowed, above.code) == (False, "policy_denied")
    assert not decide_safely(authority, replace(REQUEST, amount=money(1, "JPY"))).allowed
    assert not decide_safely(authority, replace(REQUEST, tool="wallet.broken")).allowed
    assert not approve_safely(authority, REQUEST, Approver("nobody")).allowed


def test_engines_are_kept_by_version_and_forgotten_when_there_are_too_many() -> None:
    engines = Engines(kept=2)
    text = ENGINE.compiled.bundle.pack()
    assert engines.engine(1) is None
    for version in (1, 2):
        engines.add(version, text)
    one, two = engines.engine(1), engines.engine(2)
    assert one is not None
    assert two is not None
    assert (one.decide(REQUEST).policy_version, two.decide(REQUEST).policy_version) == ("1", "2")
    assert one.compiled is two.compiled, "one text is compiled once"  # type: ignore[attr-defined]
    assert engines.engine(1) is one
    engines.add(3, text)
    assert engines.engine(2) is None, "the one asked for longest ago is gone"
    assert engines.engine(1) is one
    assert compiled(text) is one.compiled  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not JSON"),
        ('{"format": 2}', "format 1"),
        ('{"format": 1}', "KeyError"),
        (
            bundle(f"{ANY};").pack().replace("permit", "premit"),
            "invalid policy effect",
        ),
        (
            bundle(f"{ANY};").pack().replace("egress", "eggress"),
            "not described as policies keep it",
        ),
    ],
)
def test_a_version_that_cannot_be_used_denies_everything(text: str, says: str) -> None:
    engines = Engines()
    engines.add(4, text)
    unusable = engines.engine(4)
    assert unusable is not None
    decision = decide_safely(unusable, REQUEST)
    assert (decision.allowed, decision.code, decision.policy_version) == (False, "policy_error", "4")
    assert "policy 4 cannot be used" in decision.reason
    assert says in decision.reason
    assert not approve_safely(unusable, REQUEST, ANN).allowed


def test_without_cedar_the_kernel_loads_and_a_policy_denies_in_one_sentence() -> None:
    program = """
import sys
sys.modules["cedarpy"] = None
import fencepost
from fencepost.authority.inforce import Engines
engines = Engines()
engines.add(1, sys.stdin.read())
print(engines.engine(1).why)
"""
    text = ENGINE.compiled.bundle.pack()
    done = subprocess.run(
        [sys.executable, "-c", program], input=text, capture_output=True, text=True, check=True, timeout=60
    )
    assert (
        done.stdout.strip() == "policies need the Cedar engine; install fencepost[fleet], or cedarpy>=4.12.2"
    )
