"""What a framework's client sends and hears, seen where it does: by the hooks of its HTTP client.

A framework keeps a part of an answer, and asks again where it sees fit. Here one request goes out in a turn,
no longer than what is held for it, and the raw answer is put down before anybody makes anything of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import httpx2

from fencepost.canonical import sanitize
from fencepost.errors import UsageError
from fencepost.outcomes import Hide, told
from fencepost.strictjson import parse
from fencepost.telemetry import correlation
from fencepost.telemetry.names import TRACEPARENT
from fencepost_workers.models.answers import Answer, Ending, Facts, plain
from fencepost_workers.models.at_once import of_completion, of_message, of_response
from fencepost_workers.models.providers import Heard, heard_of, request_id

_READ: Final[Mapping[str, Callable[[Mapping[str, Any]], Facts]]] = {
    "/responses": of_response,
    "/chat/completions": of_completion,
    "/messages": of_message,
}
"""By the end of the address: how what is answered there is read."""


class Refused(Exception):
    """A request that was not let out."""


@dataclass(slots=True)
class Line:
    """One turn: at most `most` bytes are sent, once; more of them are `long`. `facts`: what was answered, as
    far as that can be read here.
    """

    most: int
    requests: int = 0
    long: int = 0
    facts: Facts | None = None
    request: str = ""

    def broken(self, error: BaseException, now: datetime, hide: Hide) -> Heard:
        """What an error says that left no answer."""
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, Exception) and _of_request(cause):
                return heard_of(cause, now, hide)
            cause = cause.__cause__ or cause.__context__  # what it was about to ask again for
        return Heard(
            Answer(Ending.FAILED, code="planner_error", why=told(error, hide=hide)), free=not self.requests
        )


_line: Final[ContextVar[Line | None]] = ContextVar("fencepost_line", default=None)


@contextmanager
def overhearing(line: Line) -> Iterator[None]:
    """Inside, what the clients that are listened to send and hear goes by this line."""
    token = _line.set(line)
    try:
        yield
    finally:
        _line.reset(token)


def listen(client: Any) -> None:
    """Listen to an SDK's client from now on. UsageError for one that cannot be."""
    hooks = getattr(getattr(client, "_client", None), "event_hooks", None)
    if not isinstance(hooks, dict):
        raise UsageError("the agent's client is none of openai's or anthropic's SDK: nobody could count it")
    for kind, hook in (("request", _sent), ("response", _answered)):
        if hook not in hooks.setdefault(kind, []):
            hooks[kind].append(hook)


async def _sent(request: Any) -> None:
    if (line := _line.get()) is None:
        return
    line.requests += 1
    if line.requests > 1:
        raise Refused("a framework asks its model once in a turn")
    size = len(await request.aread())
    if size > line.most:
        line.requests, line.long = 0, size
        raise Refused(f"the request has {size} bytes, and {line.most} are let out")
    if (tree := correlation.current()) is not None:
        request.headers[TRACEPARENT] = tree


async def _answered(response: Any) -> None:
    if (line := _line.get()) is None:
        return
    line.request = request_id(response.headers)
    # Followed, a redirect would be a second request; without its place it is an answer like any other.
    response.headers.pop("location", None)
    read = next((read for end, read in _READ.items() if response.url.path.endswith(end)), None)
    if response.status_code >= 300 or read is None or "json" not in response.headers.get("content-type", ""):
        return
    line.facts = _facts(read, await response.aread())


def _facts(read: Callable[[Mapping[str, Any]], Facts], body: bytes) -> Facts:
    try:
        return read(plain(parse(body.decode())))
    except ValueError as error:  # no JSON, no UTF-8, or too long
        return Facts(failed=(Ending.MALFORMED, "", sanitize(f"it cannot be read: {error}", 200)))


def _of_request(error: Exception) -> bool:
    answered = isinstance(getattr(error, "response", None), httpx2.Response)
    return answered or isinstance(error, httpx2.HTTPError) or isinstance(error.__cause__, httpx2.HTTPError)
