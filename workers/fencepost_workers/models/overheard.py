"""What a framework's client sends and hears, seen where it does: by the hooks of its HTTP client.

A framework keeps a part of an answer, and asks again where it sees fit. Here one request goes out in a turn,
no longer than what is held for it, and the raw answer is put down before anybody makes anything of it. What
nobody can read raw is not asked for, and what nobody heard asked for is no answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
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
from fencepost_workers.models.answers import Answer, Ending, Facts, plain, settle
from fencepost_workers.models.at_once import of_completion, of_message, of_response
from fencepost_workers.models.failures import failed, unbilled
from fencepost_workers.models.providers import Heard, heard_of, request_id

_READ: Final[Mapping[str, Callable[[Mapping[str, Any]], Facts]]] = {
    "/responses": of_response,
    "/chat/completions": of_completion,
    "/messages": of_message,
}
"""By the end of the address: how what is answered there is read. Nothing is asked for anywhere else."""
_ENDS: Final = ", ".join(_READ)
_SDKS: Final = frozenset({("openai", "AsyncOpenAI"), ("anthropic", "AsyncAnthropic")})


class Refused(Exception):
    """A request that was not let out."""


@dataclass(slots=True)
class Line:
    """One turn: at most `most` bytes are sent, once, with the limits of time `within`, whatever those of the
    client are. `kept`: why they were not. `facts`: what was answered, with which `status`.
    """

    most: int
    within: httpx2.Timeout
    requests: int = 0
    kept: Answer | None = None
    facts: Facts | None = None
    status: int = 0
    request: str = ""

    def judged(self, hide: Hide) -> Heard:
        """What was answered; nothing where nobody heard that it was asked for, whatever a framework has."""
        if self.kept is not None:
            return Heard(self.kept, free=True)
        if not self.requests:
            why = "its framework answered, and no request was heard: have it use the client it was handed in"
            return Heard(Answer(Ending.FAILED, code="unheard", why=why))
        facts = self.facts or Facts(failed=(Ending.MALFORMED, "", "the framework had no answer"))
        answer = settle(facts)
        return Heard(answer, hide(self.request), free=unbilled(self.status, answer.ending))

    def broken(self, error: BaseException, now: datetime, hide: Hide) -> Heard:
        """What an error says that left no answer."""
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, Exception) and _of_request(cause):
                return heard_of(cause, now, hide, self.within)
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
    kinds = {(kind.__module__.partition(".")[0], kind.__name__) for kind in type(client).__mro__}
    http = getattr(client, "_client", None)
    if not kinds & _SDKS or not isinstance(http, httpx2.AsyncClient):
        raise UsageError(
            f"nobody here could count or read what the agent's client, {type(client).__name__}, hears; "
            "give an openai.AsyncOpenAI or an anthropic.AsyncAnthropic, with an http_client= of httpx2"
        )
    for kind, hook in (("request", _sent), ("response", _answered)):
        if hook not in http.event_hooks[kind]:
            http.event_hooks[kind].append(hook)


async def _sent(request: Any) -> None:
    if (line := _line.get()) is None:
        return
    line.requests += 1
    if line.requests > 1:
        raise Refused("a framework asks its model once in a turn")
    line.kept = _kept(line, request.url.path, len(await request.aread()))
    if line.kept is not None:
        raise Refused(line.kept.why)
    request.extensions["timeout"] = line.within.as_dict()
    if (tree := correlation.current()) is not None:
        request.headers[TRACEPARENT] = tree


def _kept(line: Line, path: str, size: int) -> Answer | None:
    """Why a request to this path is not let out, of so many bytes; None: it is."""
    if _reader(path) is None:
        why = (
            f"nobody here can read what {sanitize(path, 100)} answers: ask an address that ends with {_ENDS}"
        )
        return Answer(Ending.FAILED, code="not_started", why=why)
    if size > line.most:
        why = f"its framework made a request of {size} bytes, and {line.most} are held for"
        return Answer(Ending.CONTEXT_EXCEEDED, why=why)
    return None


def _reader(path: str) -> Callable[[Mapping[str, Any]], Facts] | None:
    return next((read for end, read in _READ.items() if path.endswith(end)), None)


async def _answered(response: Any) -> None:
    if (line := _line.get()) is None:
        return
    line.request, line.status = request_id(response.headers), response.status_code
    # Followed, a redirect would be a second request; without its place it is an answer like any other.
    response.headers.pop("location", None)
    read, kind = _reader(response.url.path), response.headers.get("content-type", "")
    if read is None:  # what no request of ours went to
        return
    if line.status >= 300:
        line.facts = Facts(failed=failed(line.status, _json(await response.aread()), "it was turned away"))
    elif "json" not in kind:
        why = f"what was answered is of type {sanitize(kind, 100)!r}: ask where application/json is answered"
        line.facts = Facts(failed=(Ending.FAILED, "unreadable_answer", why))
    else:
        line.facts = _facts(read, await response.aread())


def _json(body: bytes) -> object:
    with suppress(ValueError):
        return parse(body.decode())
    return None


def _facts(read: Callable[[Mapping[str, Any]], Facts], body: bytes) -> Facts:
    try:
        return read(plain(parse(body.decode())))
    except ValueError as error:  # no JSON, no UTF-8, or too long
        return Facts(failed=(Ending.MALFORMED, "", sanitize(f"it cannot be read: {error}", 200)))


def _of_request(error: Exception) -> bool:
    answered = isinstance(getattr(error, "response", None), httpx2.Response)
    return answered or isinstance(error, httpx2.HTTPError) or isinstance(error.__cause__, httpx2.HTTPError)
