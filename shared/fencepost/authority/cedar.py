"""The policy engine that reads Cedar: a bundle compiled once, asked for every decision.

A decision is allowed only if Cedar allows it and no policy erred. Cedar leaves out a policy that errs, and a
forbid that is left out would allow; so any error denies, with the code `policy_error`. So does whatever has
no place in a request: a tool or version the bundle was not checked against, an argument of another type, an
integer that JSON does not hold exactly. A plain no is `policy_denied`.

If a call is not allowed as it stands, it is judged once more as if one person more had approved it, then two,
up to two in all; the first that allows is the approval it needs (`approval_required`). What is asked for is
therefore what the policies say themselves, with `context.approvals`.

Nothing here remembers a decision.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from fencepost.allowances import Allowance
from fencepost.authority.bundle import Bundle
from fencepost.authority.compiled import Answer, Compiled, Question
from fencepost.authority.decisions import (
    ApprovalNeed,
    Approver,
    AuthorizationDecision,
    AuthorizationRequest,
)
from fencepost.authority.defaults import RULES, SAYINGS, asks_itself, unmet
from fencepost.authority.vocabulary import approve_action
from fencepost.canonical import CanonicalError, sanitize

PERSONS: Final = 2
"""How many persons a policy can ask for."""
UNPUBLISHED: Final = "unpublished"
DENIED, ERROR, NEEDED = "policy_denied", "policy_error", "approval_required"
_SAID: Final = 500  # characters of what policies say of themselves
_UNFIT: Final = (CanonicalError, ValueError, RecursionError, OverflowError)


@dataclass(frozen=True)
class CedarEngine:
    """A compiled bundle as an `Authority`, deciding in the name of one published version."""

    compiled: Compiled
    version: str = UNPUBLISHED

    @property
    def digest(self) -> str:
        """Of the bundle."""
        return self.compiled.bundle.digest

    @property
    def allowances(self) -> tuple[Allowance, ...]:
        """Those of the bundle."""
        return self.compiled.allowances

    def decide(self, request: AuthorizationRequest) -> AuthorizationDecision:
        """Allowed, denied, or what approval would open it. Never raises for what a request holds."""
        try:
            asking = Approver(request.principal, request.roles, request.on_behalf_of)
            question = Question(self.compiled, request, asking, request.tool)
            return self._decided(request, question)
        except _UNFIT as error:
            return self._erred(request, sanitize(error, 300), {})

    def _decided(self, request: AuthorizationRequest, question: Question) -> AuthorizationDecision:
        (first,) = question.answers([request.approvals])
        digests = question.digests
        if first.errors:
            return self._erred(request, "; ".join(first.errors), digests)
        lacking = unmet(request, self._lifted(first.ids)) if first.allows else ()
        if first.allows and not lacking:
            return AuthorizationDecision(True, "permitted", self.version, first.ids, digests=digests)
        ahead = list(range(request.approvals + 1, PERSONS + 1))
        for count, answer in zip(ahead, question.answers(ahead), strict=True):
            if answer.errors:
                return self._erred(request, "; ".join(answer.errors), digests)
            if answer.allows:
                return self._needed(request, count, first, answer, lacking, digests)
        who, where = sanitize(request.principal, 80), sanitize(request.tenant, 80)
        if first.ids and not first.allows:
            reason = f"{request.tool} is forbidden: {self._said(first.ids)}"
        else:
            reason = f"no policy lets {who} use {request.tool} in {where}"
        return AuthorizationDecision(False, reason, self.version, first.ids, DENIED, digests=digests)

    def _needed(
        self,
        request: AuthorizationRequest,
        count: int,
        first: Answer,
        opened: Answer,
        lacking: tuple[str, ...],
        digests: Mapping[str, str],
    ) -> AuthorizationDecision:
        forbids = () if first.allows else first.ids
        asking = (*forbids, *(RULES[account] for account in lacking))
        why = [self._said(forbids)] if forbids else [SAYINGS[account] for account in lacking]
        persons = "a person" if count == 1 else f"{count} persons"
        reason = f"{request.tool} needs the approval of {persons}" + (f": {'; '.join(why)}" if why else "")
        need = ApprovalNeed(count, self._within({*forbids, *opened.ids}))
        return AuthorizationDecision(
            False, reason, self.version, asking or opened.ids, NEEDED, need, digests=digests
        )

    def _within(self, ids: set[str]) -> timedelta:
        said = [self.compiled.statements[name].within for name in ids]
        return min((span for span in said if span is not None), default=self.compiled.bundle.within)

    def _lifted(self, ids: Sequence[str]) -> frozenset[str]:
        return frozenset[str]().union(*(self.compiled.statements[name].unattended for name in ids))

    def _said(self, ids: Sequence[str]) -> str:
        said = [self.compiled.statements[name].annotations.get("reason", "") for name in ids]
        told = "; ".join(reason or f"policy {name}" for name, reason in zip(ids, said, strict=True))
        return sanitize(told, _SAID)

    def _erred(
        self, request: AuthorizationRequest, why: str, digests: Mapping[str, str]
    ) -> AuthorizationDecision:
        reason = f"policy {self.version} cannot judge {sanitize(request.tool, 80)}: {sanitize(why, 500)}"
        found = digests or self.compiled.digests
        return AuthorizationDecision(False, reason, self.version, (), ERROR, digests=found)

    def may_approve(self, request: AuthorizationRequest, approver: Approver) -> AuthorizationDecision:
        """Whether this person may approve exactly this call. Never raises for what a request holds.

        That two approvals are of two persons is for whoever counts them.
        """
        more = {"requester": request.principal}
        try:
            question = Question(self.compiled, request, approver, approve_action(request.tool), more)
            (answer,) = question.answers([request.approvals])
            digests = question.digests
        except _UNFIT as error:
            return self._erred(request, sanitize(error, 300), {})
        if answer.errors:
            return self._erred(request, "; ".join(answer.errors), digests)
        ids, who = answer.ids, sanitize(approver.principal, 80)
        if answer.allows and not asks_itself(request, approver):
            return AuthorizationDecision(True, "may approve", self.version, ids, digests=digests)
        if answer.allows:
            reason = f"{who} asks for it and cannot approve it"
        elif ids:
            reason = f"{who} may not approve {request.tool}: {self._said(ids)}"
        else:
            reason = f"no policy lets {who} approve {request.tool} in {sanitize(request.tenant, 80)}"
        return AuthorizationDecision(False, reason, self.version, ids, DENIED, digests=digests)


def engine_of(text: str, version: str = UNPUBLISHED) -> CedarEngine:
    """The engine of a published text. UsageError if it cannot be read or does not compile."""
    return CedarEngine(Compiled(Bundle.unpack(text)), version)
