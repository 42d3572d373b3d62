"""The capability of an attempt, made of what its claim authorised; made again where that is told again."""

from __future__ import annotations

from datetime import datetime

from fencepost.authority.capabilities import Capability, capability_of
from fencepost.decide.authorize import request_of
from fencepost.decide.fold import Fold
from fencepost.subjects import Call
from fencepost.tools import Tool


def granted(fold: Fold, call: Call, tool: Tool, deadline: datetime) -> Capability | None:
    """What the attempt that runs under the call's term may do; None where nobody is told it.

    A Python tool is, and a dependency that asks for capabilities.
    """
    if tool.kind != "python" and tool.dependency.capability_header is None:
        return None
    try:
        asked = request_of(fold, call, tool, "claim", call.attempts)
    except Exception:  # noqa: BLE001 - the application's functions answered before; without it nothing is sent
        return None
    return capability_of(asked, fence=call.fence, issued_at=fold.now, expires_at=deadline)
