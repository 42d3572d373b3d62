"""The capability of an attempt, made of what its claim authorised."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from fencepost.authority import AuthorizationRequest
from fencepost.authority.capabilities import Capability, capability_of
from fencepost.decide.fold import Fold
from fencepost.subjects import Call
from fencepost.tools import Tool


def granted(
    fold: Fold, call: Call, tool: Tool, asked: AuthorizationRequest | None, deadline: datetime
) -> Capability | None:
    """What the attempt that runs under the call's term may do; None where nobody is told it.

    A Python tool is, and a dependency that asks for capabilities.
    """
    if asked is None or (tool.kind != "python" and tool.dependency.capability_header is None):
        return None
    return capability_of(asked, fence=call.fence, issued_at=fold.now, expires_at=deadline)


def capability_said(tool: Tool) -> dict[str, Any]:
    """What ToolAttemptStarted tells of an attempt whose dependency asks for capabilities."""
    return {"capability": True} if tool.dependency.capability_header is not None else {}
