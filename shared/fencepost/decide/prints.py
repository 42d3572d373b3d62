"""What was sent first is what is sent again: the fingerprint of a stored request. Pure."""

from __future__ import annotations

from fencepost.subjects import Call
from fencepost.wire import fingerprint


def of(call: Call, request: str) -> str:
    """The fingerprint of a call's request."""
    return fingerprint(call.tenant, call.scope, call.tool, call.tool_version, request)


def kept(call: Call) -> bool:
    """Whether a call's request has a fingerprint: not one that was first sent before there were any."""
    return call.attempts == 0 or call.fingerprint is not None


def drifted(call: Call) -> str | None:
    """Why the stored request may not be sent again: it is not what was sent first. None if it is, or if that
    cannot be told, as of one sent before there were fingerprints; Postgres knows which those are.
    """
    if call.request is None or not kept(call) or call.fingerprint == of(call, call.request):
        return None
    return "the stored request is not the one that was sent first: its fingerprint differs; nothing is sent"
