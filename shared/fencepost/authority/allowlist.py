"""The default engine: nothing is allowed but what a grant covers."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property, lru_cache
from typing import Any

from fencepost.authority.decisions import (
    ApprovalNeed,
    Approver,
    AuthorizationDecision,
    AuthorizationRequest,
)
from fencepost.canonical import digest, sanitize
from fencepost.contracts import Effect


@dataclass(frozen=True)
class Grant:
    """A principal, and the tools it may use in a tenant (None: in every tenant). `*` matches any text.

    A principal written `role:NAME` is everybody with that role. With `approvals` so many persons that fit
    `approvers` must approve each call, within that time. A run that read untrusted output needs one approval
    for tools that are IRREVERSIBLE or send data out, unless the grant says `tainted`.
    """

    principal: str
    tools: tuple[str, ...]
    tenant: str | None = None
    approvals: int = 0
    approvers: tuple[str, ...] = ()
    within: timedelta = timedelta(hours=24)
    tainted: bool = False

    def names(self, tool: str) -> bool:
        """Whether the tool is named exactly, as IRREVERSIBLE ones must be."""
        return tool in self.tools

    def covers(self, tool: str) -> bool:
        """Whether the tool is named or matched."""
        return any(matches(pattern, tool) for pattern in self.tools)

    def needed(self, request: AuthorizationRequest) -> int:
        """How many persons must approve this request. What offsets an effect is proposed by the tool that had
        it, not by whoever has read something.
        """
        grave = request.egress or request.effect is Effect.IRREVERSIBLE
        careful = request.tainted and grave and not request.compensates
        return max(self.approvals, 1 if careful and not self.tainted else 0)

    @property
    def label(self) -> str:
        """How a decision refers to it."""
        return f"{self.tenant or '*'}/{self.principal}: {', '.join(self.tools)}"

    @property
    def row(self) -> list[Any]:
        """All of it as JSON values; what is usual is left out."""
        usual = [self.tenant, self.principal, list(self.tools)]
        asks = [self.approvals, list(self.approvers), int(self.within.total_seconds()), self.tainted]
        return usual if asks == _USUAL else [*usual, *asks]


_USUAL = [0, [], 24 * 3600, False]


@dataclass(frozen=True)
class AllowList:
    """The default authority: nothing is allowed but what a grant covers.

    Its version is the digest of its grants. An IRREVERSIBLE tool is allowed only by a grant that names it
    exactly, never by a pattern. Of several grants that cover a call, the one that asks least decides.
    """

    grants: tuple[Grant, ...] = ()

    @cached_property
    def version(self) -> str:
        """Changes with every grant, and with their order."""
        return "allow-" + digest("fencepost.allow.v1", [grant.row for grant in self.grants])[:16]

    def decide(self, request: AuthorizationRequest) -> AuthorizationDecision:
        """Allowed by the first grant of this tenant and principal that covers the tool and asks for no more
        approvals than there are.
        """
        covering = list(self._covering(request))
        asking = _asking(covering, request)
        for grant in covering:
            needed = grant.needed(request)
            if needed == 0 or (grant is asking and needed <= request.approvals):
                return AuthorizationDecision(True, "granted", self.version, (grant.label,))
        if covering:
            return self._asks(request, covering)
        who, where = sanitize(request.principal, 80), sanitize(request.tenant, 80)
        reason = f"no grant lets {who} use {request.tool} in {where}"
        if request.effect is Effect.IRREVERSIBLE:
            reason += "; an irreversible tool must be granted by its exact name"
        return AuthorizationDecision(False, reason, self.version, code="policy_denied")

    def _asks(self, request: AuthorizationRequest, covering: list[Grant]) -> AuthorizationDecision:
        """Persons are asked by the grant that asks least of those that name any: nobody waits for nobody."""
        asking = _asking(covering, request)
        least = asking or covering[0]
        count = least.needed(request)
        why = "the run has read untrusted output" if least.approvals < count else "its grant says so"
        reason, label = f"{request.tool} needs {_persons(count)} to approve it: {why}", (least.label,)
        if asking is None:
            reason += "; its grant names nobody who may: allow(..., approvers=[...])"
            return AuthorizationDecision(False, reason, self.version, label, "policy_denied")
        need = ApprovalNeed(count, least.within)
        return AuthorizationDecision(False, reason, self.version, label, "approval_required", need)

    def may_approve(self, request: AuthorizationRequest, approver: Approver) -> AuthorizationDecision:
        """Whoever fits the approvers of the grant that asks, and of no other: what those approve opens that
        grant alone. Never who asks for it, in whatever name.
        """
        mine = {approver.principal, *approver.on_behalf_of}
        if mine & {request.principal, *request.on_behalf_of}:
            reason = f"{sanitize(approver.principal, 80)} asks for it and cannot approve it"
            return AuthorizationDecision(False, reason, self.version, code="policy_denied")
        names = (approver.principal, *approver.on_behalf_of)
        asking = _asking(list(self._covering(request)), request)
        if asking is not None and any(_is(pattern, names, approver.roles) for pattern in asking.approvers):
            return AuthorizationDecision(True, "may approve", self.version, (asking.label,))
        reason = f"no grant lets {sanitize(approver.principal, 80)} approve {request.tool}"
        return AuthorizationDecision(False, reason, self.version, code="policy_denied")

    def _covering(self, request: AuthorizationRequest) -> Iterator[Grant]:
        exact = request.effect is Effect.IRREVERSIBLE
        names = (request.principal, *request.on_behalf_of)
        for grant in self.grants:
            if grant.tenant not in {None, request.tenant} or not _is(grant.principal, names, request.roles):
                continue
            if grant.names(request.tool) if exact else grant.covers(request.tool):
                yield grant


def _asking(covering: Sequence[Grant], request: AuthorizationRequest) -> Grant | None:
    """Of the grants that name approvers the first that needs least: persons are asked by one grant."""
    named = [grant for grant in covering if grant.approvers]
    return min(named, key=lambda grant: grant.needed(request), default=None)


def _is(pattern: str, names: tuple[str, ...], roles: tuple[str, ...]) -> bool:
    """Whether somebody fits: `role:NAME` is about roles alone, whatever a principal calls itself."""
    kind, role, wanted = pattern.partition("role:")
    if not kind and role:
        return any(matches(wanted, one) for one in roles)
    return any(matches(pattern, one) for one in names)


def _persons(count: int) -> str:
    return "one person" if count == 1 else f"{count} persons"


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, pattern.split("*"))), re.DOTALL)


def matches(pattern: str, text: str) -> bool:
    """Whether `text` fits a pattern in which `*` stands for any text and everything else for itself."""
    return _compiled(pattern).fullmatch(text) is not None
