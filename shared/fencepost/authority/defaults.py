"""What holds whatever a policy allows, unless it says otherwise in so many words.

Two rules ask for one person: an irreversible call, and a call by a run that has read untrusted output if it
sends data out or cannot be taken back. In Cedar nothing overrules a forbid, so these are not policies but
stand behind them, and it is the permit which lifts them: `@unattended("irreversible")` on a permit says that
what it allows, under its own conditions, needs no person for being irreversible.

    @id("small refunds") @unattended("irreversible")
    permit (principal in Role::"checkout", action == Action::"wallet.refund", resource)
    when { context has amount && context.amount.currency == "EUR" && context.amount.minor <= 500 };

A second permit without the annotation that allows the same call takes nothing away: any permit is enough. The
annotation lifts these two rules only; a forbid of one's own holds on, and says in `unless` what opens it:
`unless { context.approvals >= 2 }` asks for two persons.

Nobody approves a call that it asks for, in its own name or on another's behalf, whatever is permitted.
"""

from __future__ import annotations

from typing import Final

from fencepost.authority.decisions import Approver, AuthorizationRequest
from fencepost.authority.statements import IRREVERSIBLE, OURS, TAINTED
from fencepost.contracts import Effect

RULES: Final = {
    IRREVERSIBLE: f"{OURS}irreversible",
    TAINTED: f"{OURS}tainted",
}
"""The ids of the two rules in a decision, by the word that lifts them."""

SAYINGS: Final = {
    IRREVERSIBLE: "it is irreversible",
    TAINTED: "its run has read untrusted output",
}


def unmet(request: AuthorizationRequest, lifted: frozenset[str] = frozenset()) -> tuple[str, ...]:
    """On which accounts the call still needs a person; empty once one has approved, or where it is lifted."""
    if request.approvals >= 1:
        return ()
    irreversible = request.effect is Effect.IRREVERSIBLE
    found = {IRREVERSIBLE: irreversible, TAINTED: request.tainted and (irreversible or request.egress)}
    return tuple(account for account, holds in found.items() if holds and account not in lifted)


def asks_itself(request: AuthorizationRequest, approver: Approver) -> bool:
    """Whether the person would approve its own call, or one of somebody whose authority both use."""
    asking = {request.principal, *request.on_behalf_of}
    return not asking.isdisjoint({approver.principal, *approver.on_behalf_of})
