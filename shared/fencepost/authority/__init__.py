"""Who may have what done: the port every policy engine stands behind, and the engines that come along."""

from fencepost.authority.allowlist import AllowList, Grant, matches
from fencepost.authority.decisions import (
    UNKNOWN_POLICY,
    ApprovalNeed,
    Approvals,
    Approver,
    Authority,
    AuthorizationDecision,
    AuthorizationRequest,
    approve_safely,
    decide_safely,
)

__all__ = [
    "UNKNOWN_POLICY",
    "AllowList",
    "ApprovalNeed",
    "Approvals",
    "Approver",
    "Authority",
    "AuthorizationDecision",
    "AuthorizationRequest",
    "Grant",
    "approve_safely",
    "decide_safely",
    "matches",
]
