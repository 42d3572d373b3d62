"""Who may have what done: the port every policy engine stands behind, and the default allow-list.

A decision is asked for twice, when a proposal is recorded and again in the claim that sends it; neither is
cached, and only the second one opens anything.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property, lru_cache
from typing import Any, Literal, Protocol

from fencepost.canonical import digest, sanitize
from fencepost.contracts import Effect
from fencepost.money import Money

UNKNOWN_POLICY = "unknown"


@dataclass(frozen=True)
class AuthorizationRequest:
    """Everything a decision may depend on; `operation` is None for READ, `attempt` 0 at recording.

    `definition` is the tool's definition digest; `resource` what it acts on, as a type and an id; `amount`
    what it moves; `roles` what the principal is, by its own right or by delegation (`delegation` names each
    link as "from>to"); `tainted` whether the run has read untrusted output; `egress` whether the tool sends
    data out; `approvals` how many persons have approved exactly this, and still count.
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
    delegation: tuple[str, ...] = ()
    tainted: bool = False
    egress: bool = False
    approvals: int = 0


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


def decide_safely(authority: Authority, request: AuthorizationRequest) -> AuthorizationDecision:
    """The engine's decision; a denial if it raises or gives anything but a decision."""
    try:
        decision: object = authority.decide(request)
    except Exception as error:  # noqa: BLE001 - an engine that fails must deny, however it fails
        reason = f"policy engine failed: {type(error).__name__}: {sanitize(error, 200)}"
        return AuthorizationDecision(allowed=False, reason=reason, policy_version=UNKNOWN_POLICY)
    if not isinstance(decision, AuthorizationDecision) or not isinstance(decision.allowed, bool):
        return AuthorizationDecision(
            allowed=False, reason="policy engine gave no decision", policy_version=UNKNOWN_POLICY
        )
    return decision


@dataclass(frozen=True)
class Grant:
    """A principal, and the tools it may use in a tenant (None: in every tenant). `*` matches any text."""

    principal: str
    tools: tuple[str, ...]
    tenant: str | None = None

    def names(self, tool: str) -> bool:
        """Whether the tool is named exactly, as IRREVERSIBLE ones must be."""
        return tool in self.tools

    def covers(self, tool: str) -> bool:
        """Whether the tool is named or matched."""
        return any(matches(pattern, tool) for pattern in self.tools)

    @property
    def label(self) -> str:
        """How a decision refers to it."""
        return f"{self.tenant or '*'}/{self.principal}: {', '.join(self.tools)}"


@dataclass(frozen=True)
class AllowList:
    """The default authority: nothing is allowed but what a grant covers.

    Its version is the digest of its grants. An IRREVERSIBLE tool is allowed only by a grant that names it
    exactly, never by a pattern.
    """

    grants: tuple[Grant, ...] = ()

    @cached_property
    def version(self) -> str:
        """Changes with every grant, and with their order."""
        rows = [[grant.tenant, grant.principal, list(grant.tools)] for grant in self.grants]
        return "allow-" + digest("fencepost.allow.v1", rows)[:16]

    def decide(self, request: AuthorizationRequest) -> AuthorizationDecision:
        """Allowed by the first grant of this tenant and principal that covers the tool."""
        exact = request.effect is Effect.IRREVERSIBLE
        for grant in self.grants:
            if grant.tenant not in {None, request.tenant} or not matches(grant.principal, request.principal):
                continue
            if grant.names(request.tool) if exact else grant.covers(request.tool):
                return AuthorizationDecision(True, "granted", self.version, (grant.label,))
        who, where = sanitize(request.principal, 80), sanitize(request.tenant, 80)
        reason = f"no grant lets {who} use {request.tool} in {where}"
        if exact:
            reason += "; an irreversible tool must be granted by its exact name"
        return AuthorizationDecision(False, reason, self.version)


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, pattern.split("*"))), re.DOTALL)


def matches(pattern: str, text: str) -> bool:
    """Whether `text` fits a pattern in which `*` stands for any text and everything else for itself."""
    return _compiled(pattern).fullmatch(text) is not None
