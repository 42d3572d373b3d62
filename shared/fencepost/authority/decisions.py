"""What a decision is asked with, what it answers, and the port every policy engine stands behind.

A decision is asked for twice, when a proposal is recorded and again in the claim that sends it; neither is
cached, and only the second one opens anything.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Literal, Protocol

from fencepost.canonical import sanitize
from fencepost.contracts import Effect
from fencepost.money import Money

UNKNOWN_POLICY = "unknown"


@dataclass(frozen=True)
class AuthorizationRequest:
    """Everything a decision may depend on; `operation` is None for READ, `attempt` 0 at recording.

    `definition` is the tool's definition digest; `resource` what it acts on, as a type and an id; `amount`
    what it moves; `roles` what the principal is, by its own right or by delegation (`on_behalf_of` names
    whose authority it may use, `delegation` each link as "from>to"); `tainted` whether the run has read
    untrusted output; `egress` whether the tool sends data out; `approvals` how many persons have approved
    exactly this, and still count; `compensates` whether it offsets an earlier effect of its run.
    """

    tenant: str
    principal: str
    tool: str
    tool_version: int
    effect: Effect
    arguments: Mapping[str, Any]
    arguments_hash: str
    operation: str | None
    run: str
    call: str
    attempt: int
    phase: Literal["recording", "claim"]
    at: datetime
    definition: str = ""
    resource: tuple[str, str] | None = None
    amount: Money | None = None
    roles: tuple[str, ...] = ()
    on_behalf_of: tuple[str, ...] = ()
    delegation: tuple[str, ...] = ()
    tainted: bool = False
    egress: bool = False
    approvals: int = 0
    compensates: bool = False


@dataclass(frozen=True)
class ApprovalNeed:
    """What would open a call that is not allowed: so many different persons, within that time."""

    count: int = 1
    within: timedelta = timedelta(hours=24)


@dataclass(frozen=True)
class AuthorizationDecision:
    """Allowed or not, why, under which policy, and by which of its rules.

    `code` is the denial as a machine reads it. `approval` says that persons may open what is not allowed.
    `digests` are the evidence: of the policy, its schema and entities, and of the request that was judged.
    """

    allowed: bool
    reason: str
    policy_version: str
    deciding: tuple[str, ...] = ()
    code: str = ""
    approval: ApprovalNeed | None = None
    digests: Mapping[str, str] = field(default_factory=dict)


class Authority(Protocol):
    """A policy engine: pure and quick, no I/O, called under the ledger's locks. Whatever it raises denies."""

    def decide(self, request: AuthorizationRequest) -> AuthorizationDecision:
        """Allowed only if a rule says so."""
        ...


@dataclass(frozen=True)
class Approver:
    """A person as it stands at this instant: its roles, and whose authority it may use."""

    principal: str
    roles: tuple[str, ...] = ()
    on_behalf_of: tuple[str, ...] = ()


class Approvals(Protocol):
    """What an engine that asks for approvals has as well."""

    def may_approve(self, request: AuthorizationRequest, approver: Approver) -> AuthorizationDecision:
        """Whether this person's approval of exactly this request counts."""
        ...


def decide_safely(authority: Authority, request: AuthorizationRequest) -> AuthorizationDecision:
    """The engine's decision; a denial if it raises or gives anything but a decision."""
    return _safely(lambda: authority.decide(request))


def approve_safely(
    authority: Authority, request: AuthorizationRequest, approver: Approver
) -> AuthorizationDecision:
    """Whether the engine lets this person approve; no, of one that has no rules for it, or if it raises."""
    may = getattr(authority, "may_approve", None)
    if may is None:
        return AuthorizationDecision(
            allowed=False,
            reason="this policy engine has no rule for who may approve",
            policy_version=UNKNOWN_POLICY,
            code="policy_denied",
        )
    return _safely(lambda: may(request, approver))


def _safely(ask: Callable[[], object]) -> AuthorizationDecision:
    try:
        decision = ask()
    except Exception as error:  # noqa: BLE001 - an engine that fails must deny, however it fails
        return _failed(f"policy engine failed: {type(error).__name__}: {sanitize(error, 200)}")
    if not isinstance(decision, AuthorizationDecision) or not _is_whole(decision):
        return _failed("policy engine gave no decision")
    if decision.allowed and decision.approval is not None:
        return _failed("policy engine allowed what it says needs an approval")
    return decision if decision.allowed or decision.code else replace(decision, code="policy_denied")


def _is_whole(decision: Any) -> bool:
    """Whether its parts are what the ledger can keep: an engine may be anybody's function."""
    need, texts = decision.approval, (decision.reason, decision.policy_version, decision.code)
    if not isinstance(decision.allowed, bool) or not isinstance(decision.deciding, tuple):
        return False
    if not all(isinstance(text, str) for text in (*texts, *decision.deciding)):
        return False
    asks = need is None or (
        isinstance(need, ApprovalNeed) and type(need.count) is int and isinstance(need.within, timedelta)
    )
    return asks and bool(decision.policy_version.isprintable())


def _failed(reason: str) -> AuthorizationDecision:
    return AuthorizationDecision(
        allowed=False, reason=reason, policy_version=UNKNOWN_POLICY, code="policy_error"
    )
