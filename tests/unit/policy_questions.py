"""Questions put to policies, and what is to be said to each: the tables of the policy tests."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from fencepost.authority import (
    ApprovalNeed,
    Approver,
    AuthorizationRequest,
)
from fencepost.contracts import Effect
from fencepost.money import Money
from tests.unit.policies_app import engine

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

ANN = Approver("ann", ("controller",))

ASKED: list[AuthorizationRequest] = [
    *(request for _, request in ALLOWED),
    *(request for _, request, _ in DENIED),
    *(request for _, request, _, _ in NEEDED),
    *(request for _, request, _ in ERRING),
]
