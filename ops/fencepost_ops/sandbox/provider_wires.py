"""Replies on whichever wire: bodies, streams, errors, as the official SDKs read them. PURE."""

from __future__ import annotations

from typing import Final

from fencepost_ops.sandbox import provider_chat, provider_messages, provider_responses
from fencepost_ops.sandbox.provider_replies import Piece, Reply
from fencepost_ops.sandbox.provider_sse import dumped, named, spliced, unnamed
from fencepost_ops.sandbox.provider_transcript import CHAT, MESSAGES, RESPONSES

_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    529: "overloaded_error",
}


def body(wire: str, reply: Reply) -> bytes:
    """A whole answer."""
    if wire == RESPONSES:
        return dumped(provider_responses.body(reply))
    if wire == CHAT:
        return dumped(provider_chat.body(reply))
    readable = [provider_messages.readable(call.arguments) for call in reply.calls]
    return spliced(provider_messages.body(reply), readable)


def failed(reply: Reply) -> bytes:
    """A whole Responses answer that says that it failed."""
    return dumped(provider_responses.failed_body(reply))


def events(wire: str, reply: Reply, *, usage: bool) -> list[Piece]:
    """The same as a stream. `usage`: whether a Chat stream ends with it."""
    if wire == CHAT:
        return list(provider_chat.events(reply, usage=usage))
    return list(provider_messages.events(reply) if wire == MESSAGES else provider_responses.events(reply))


def error(wire: str, status: int, message: str, code: str | None = None) -> bytes:
    """The body of an error answer."""
    kind = _TYPES.get(status, "api_error" if wire == MESSAGES else "server_error")
    if wire == MESSAGES:
        return dumped({"type": "error", "error": {"type": kind, "message": message}})
    return dumped({"error": {"message": message, "type": kind, "code": code, "param": None}})


def error_event(wire: str) -> bytes:
    """What a provider says in a stream that it breaks off itself."""
    if wire == MESSAGES:
        return named(
            "error", {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
        )
    told = {"code": "server_error", "message": "The server had an error", "param": None}
    if wire == CHAT:
        return unnamed({"error": {**told, "type": "server_error"}})
    return named("error", {"type": "error", "sequence_number": 99, **told})
