"""Asking a provider: one request through the official SDK, its raw events put down, nothing tried again (R4).

One client per model and process, made on the loop that uses it when it is first used. Keys and addresses are
read anew for each request; a changed one makes a new client. Requests follow no redirect, and nothing is sent
that the environment says to an SDK: no proxy, no header, no organisation. Whatever fails is an answer like
any other (`Heard`), with the code an outcome would have.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cache
from importlib import import_module
from typing import Any, Final

import httpx2

from fencepost.canonical import sanitize
from fencepost.dependencies import resolve
from fencepost.errors import UsageError
from fencepost.models import ModelSpec, Wire
from fencepost.outcomes import Hide, retry_after, told
from fencepost.redaction import own
from fencepost.telemetry import correlation
from fencepost.telemetry.names import TRACEPARENT
from fencepost.tools import Response
from fencepost_workers import redaction
from fencepost_workers.models.answers import Answer, Collector, Ending, Most, TooLong, broken, settle
from fencepost_workers.models.chat import Chat
from fencepost_workers.models.failures import failed, unbilled
from fencepost_workers.models.hiding import hidden
from fencepost_workers.models.messages import Messages
from fencepost_workers.models.pools import Pools
from fencepost_workers.models.prompt import sent
from fencepost_workers.models.responses import Responses
from fencepost_workers.tools.credentials import Credentials

log = logging.getLogger(__name__)

LINGER_S: Final = 2.0
"""How long what follows the end of an answer is waited for: its usage, and the end of the stream."""
CONNECT_S: Final = 10.0

_COLLECTORS: Final[Mapping[Wire, type[Responses | Chat | Messages]]] = {
    Wire.RESPONSES: Responses,
    Wire.CHAT: Chat,
    Wire.MESSAGES: Messages,
}
_SDKS: Final[Mapping[Wire, tuple[str, str]]] = {
    Wire.RESPONSES: ("openai", "openai.resources.responses"),
    Wire.CHAT: ("openai", "openai.resources.chat"),
    Wire.MESSAGES: ("anthropic", "anthropic.resources.messages"),
}
"""The SDK of a wire, which is also the extra that installs it, and the part of it that is used."""
_PATHS: Final[Mapping[Wire, str]] = {
    Wire.RESPONSES: "/responses",
    Wire.CHAT: "/chat/completions",
    Wire.MESSAGES: "/v1/messages",
}
_REQUEST_IDS: Final = ("x-request-id", "request-id")


class KeyUnavailable(UsageError):
    """The key or the address of a model is not there; nothing was sent."""


@dataclass(frozen=True, slots=True)
class Heard:
    """What came of one request. `free`: it surely cost nothing. `request` is the provider's id of it;
    `resumed`: how many paused answers it went on with; `repaired`: the request was refused at first, for its
    form.
    """

    answer: Answer
    request: str = ""
    free: bool = False
    retry_after: timedelta | None = None
    resumed: int = 0
    repaired: bool = False


@dataclass(slots=True, eq=False)
class _Client:
    """An SDK's client, and what it was made with. `asks`: how many requests are in flight on it."""

    made_with: tuple[str, str, tuple[tuple[str, str], ...]]
    sdk: Any
    stream: Any
    errors: tuple[type[Exception], ...]
    credentials: Credentials
    asks: int = 0


class Providers:
    """This process's clients. All methods are called on one event loop."""

    def __init__(self) -> None:
        self._clients: dict[ModelKey, _Client] = {}
        self._old: list[_Client] = []

    async def ask(self, model: ModelSpec, body: Mapping[str, Any], seconds: float, now: datetime) -> Heard:
        """One answer to `body` within so many seconds. Raises UsageError where nothing could be sent:
        without the SDK, the key or the address. `now` makes a time to wait of a date that was told.
        """
        client = self._client(model)
        client.asks += 1
        try:
            return await self._heard(client, model, body, seconds, now)
        finally:
            client.asks -= 1
            await self._close_idle()

    async def _heard(
        self, client: _Client, model: ModelSpec, body: Mapping[str, Any], seconds: float, now: datetime
    ) -> Heard:
        collector = _COLLECTORS[model.wire](Most.of(model.max_output))
        heard = Heard(late(seconds))
        begun = _Begun()
        try:
            async with asyncio.timeout(seconds):
                heard = await _asked(client, model, body, seconds, now, collector, begun)
        except TimeoutError:
            if collector.facts.told:  # all of it is there, and only the end of the stream is not
                heard = Heard(settle(collector.facts))
        answer = hidden(heard.answer, client.credentials)
        request = sanitize(client.credentials.hide(heard.request or begun.request), 200)
        return replace(heard, answer=answer, request=request)

    def _client(self, model: ModelSpec) -> _Client:
        made_with, credentials = self._made_with(model)
        held = self._clients.get(key := _key(model))
        if held is not None and held.made_with == made_with:
            return held
        if held is not None:  # requests may be in flight on it
            self._old.append(held)
        redaction.learn(credentials)
        own(made_with[1])
        self._clients[key] = _made(model.wire, made_with, credentials)
        return self._clients[key]

    @staticmethod
    def _made_with(
        model: ModelSpec,
    ) -> tuple[tuple[str, str, tuple[tuple[str, str], ...]], Credentials]:
        try:
            secret = _sendable(model.key, resolve(model.key)) if model.key else ""
            made_with = model.dependency.url(), secret, model.dependency.sent_headers()
            return made_with, Credentials.of(model.dependency, (secret,) if secret else ())
        except UsageError as error:
            raise KeyUnavailable(f"model {model.name}: {error}") from None

    async def _close_idle(self) -> None:
        """Close the clients that others have replaced, once nothing is in flight on them."""
        idle = [client for client in self._old if not client.asks]
        self._old = [client for client in self._old if client.asks]
        await _close(idle)

    async def aclose(self) -> None:
        """Close all connections."""
        clients = [*self._clients.values(), *self._old]
        self._clients, self._old = {}, []
        await _close(clients)


async def _close(clients: Iterable[_Client]) -> None:
    for client in clients:
        try:
            await client.sdk.close()
        except Exception as error:  # noqa: BLE001 - the others are closed all the same
            log.warning("connections to a provider did not close: %s", told(error))


def _sendable(named: str, key: str) -> str:
    """The key, if a header can hold it; UsageError otherwise, without a character of it."""
    if not key.isascii() or not key.isprintable() or key != key.strip():
        raise UsageError(
            f"the key in {named.removeprefix('env:')} has a character that no header can hold: use printable "
            "ASCII, without a blank or a line break at its ends"
        )
    return key


ModelKey = tuple[str, str, str]


def _key(model: ModelSpec) -> ModelKey:
    return model.name, model.wire, model.scope


class _Begun:
    """What is known of a request before its answer is."""

    request = ""


def _made(
    wire: Wire, made_with: tuple[str, str, tuple[tuple[str, str], ...]], credentials: Credentials
) -> _Client:
    sdk = _sdk(wire)
    url, secret, headers = made_with
    options: dict[str, Any] = {
        "api_key": secret or "none",
        "base_url": url,
        "max_retries": 0,
        "default_headers": dict(headers),
        "http_client": _http(),
    }
    if wire is Wire.MESSAGES:
        # The trace headers that it sends of its own would be a second voice beside ours.
        client = sdk.AsyncAnthropic(**options, open_telemetry=False)
    else:
        client = sdk.AsyncOpenAI(**options)
        client.organization = client.project = client.admin_api_key = client.webhook_secret = None
    client._custom_headers = dict(headers)  # noqa: SLF001 - it has read those of the environment too
    errors = (sdk.APIError, httpx2.HTTPError)
    return _Client(made_with, client, sdk.AsyncStream[object], errors, credentials)


def _sdk(wire: Wire) -> Any:
    name, part = _SDKS[wire]
    try:
        import_module(part)
        return import_module(name)
    except ImportError:
        raise UsageError(
            f"models by the wire {wire} need the extra {name}: pip install 'fencepost[{name}]'"
        ) from None


def prepare(wires: Iterable[Wire]) -> None:
    """Read the SDKs of these wires now: that takes a second or more, in which an event loop would stand
    still. One that is missing is told of when it is used.
    """
    for wire in sorted(set(wires)):
        with suppress(UsageError):
            _sdk(wire)
    _trusted()


def _http() -> httpx2.AsyncClient:
    plainly = {"Accept-Encoding": "identity"}
    return httpx2.AsyncClient(
        transport=Pools(_trusted()), headers=plainly, follow_redirects=False, trust_env=False, timeout=None
    )


@cache
def _trusted() -> ssl.SSLContext:
    """The certificates that are trusted, read once: that takes tens of milliseconds."""
    return httpx2.create_ssl_context(trust_env=False)


async def _asked(
    client: _Client,
    model: ModelSpec,
    body: Mapping[str, Any],
    seconds: float,
    now: datetime,
    collector: Collector,
    begun: _Begun,
) -> Heard:
    timeout = limits(model, seconds)
    try:
        stream = await _create(client, model, body, timeout)
        try:
            begun.request = request_id(stream.response.headers)
            await _read(stream, collector)
        except client.errors:
            raise
        except TooLong as error:
            return Heard(broken(collector.facts, Ending.MALFORMED, str(error)))
        except Exception as error:  # noqa: BLE001 - whatever an event does to its readers, it is no turn
            # Half an event, of which a stream was cut off, is what the SDK cannot read as JSON.
            ending = Ending.LOST if isinstance(error, ValueError) else Ending.MALFORMED
            why = f"an event of the stream cannot be read: {told(error, hide=client.credentials.hide)}"
            return Heard(broken(collector.facts, ending, why))
        finally:
            with suppress(*client.errors):
                await stream.close()
    except client.errors as error:
        return heard_of(error, now, client.credentials.hide, timeout)
    return Heard(settle(collector.facts))


def limits(model: ModelSpec, seconds: float) -> httpx2.Timeout:
    """Of one request: how long it may be silent, as its model declares, and how long to be connected."""
    idle = model.timeout if model.idle is None else model.idle
    silent = min(idle.total_seconds(), seconds)
    return httpx2.Timeout(seconds, read=silent, connect=min(seconds, CONNECT_S))


def late(seconds: float) -> Answer:
    """No whole answer within its time."""
    why = f"no whole answer within {seconds:.4g} s, which is the model's timeout or what was left of its run"
    return Answer(Ending.FAILED, code="timeout", why=why)


async def _create(client: _Client, model: ModelSpec, body: Mapping[str, Any], within: httpx2.Timeout) -> Any:
    """The stream of one request, its events as plain values: models of them would cost more than the rest.

    An error in an event of OpenAI's wires is for the collectors to judge: it may be an empty one.
    """
    plainly = {} if model.wire is Wire.MESSAGES else {"stream_mode": "events"}
    return await client.sdk.post(
        _PATHS[model.wire],
        body=sent(model, body),
        options={"timeout": within, "headers": _tree(), **plainly},
        cast_to=object,
        stream=True,
        stream_cls=client.stream,
    )


def _tree() -> dict[str, str]:
    """The header by which the provider's trace, if it keeps one, is matched with ours."""
    tree = correlation.current()
    return {} if tree is None else {TRACEPARENT: tree}


async def _read(stream: Any, collector: Collector) -> None:
    events: AsyncIterator[Any] = stream.__aiter__()
    async for event in events:
        collector.take(_plain(event))
        if collector.facts.told:
            break
    # The answer is whole. What breaks from here on breaks nothing of it.
    with suppress(Exception):
        async with asyncio.timeout(LINGER_S):
            async for event in events:
                collector.take(_plain(event))


def _plain(event: Any) -> Mapping[str, Any]:
    return event if isinstance(event, Mapping) else {}


def heard_of(error: Exception, now: datetime, hide: Hide, within: httpx2.Timeout) -> Heard:
    """What an error of an SDK, or of its transport, says of a request."""
    response = getattr(error, "response", None)
    status = getattr(error, "status_code", None)
    body = getattr(error, "body", None)
    if isinstance(status, int) and isinstance(response, httpx2.Response):
        ending, code, why = failed(status, body, str(error))
        wait = retry_after(Response(status, dict(response.headers), b""), now)
        return Heard(
            Answer(ending, code=code, why=why),
            request_id(response.headers),
            free=unbilled(status, ending),
            retry_after=_milliseconds(response.headers) or wait,
        )
    if body is not None:  # an error told within the stream
        ending, code, why = failed(None, body, str(error))
        return Heard(Answer(ending, code=code, why=why))
    if isinstance(_root(error), httpx2.ReadTimeout):
        why = (
            f"not a byte came for {within.read:.4g} s, which is the model's idle or what was left of its run"
        )
        return Heard(Answer(Ending.FAILED, code="timeout", why=why))
    code, free = _transport(error)
    return Heard(Answer(Ending.FAILED, code=code, why=told(_root(error), hide=hide)), free=free)


def _transport(error: Exception) -> tuple[str, bool]:
    """The code of an error without an answer, and whether nothing was sent."""
    cause = _root(error)
    match cause:
        case httpx2.ConnectTimeout():
            return "connect_timeout", True
        case httpx2.ConnectError():
            return "connect_failed", True
        case httpx2.PoolTimeout():
            return "not_started", True
        case httpx2.TimeoutException():
            return "timeout", False
    return "connection_lost", False


def _root(error: Exception) -> BaseException:
    """The transport's own error, which an SDK may have wrapped."""
    cause = error.__cause__
    return cause if isinstance(cause, httpx2.HTTPError) else error


def request_id(headers: Mapping[str, str]) -> str:
    """The provider's id of a request; empty where it tells none."""
    return next((headers[name] for name in _REQUEST_IDS if name in headers), "")


def _milliseconds(headers: Mapping[str, str]) -> timedelta | None:
    """The finer wait that OpenAI tells beside Retry-After, at most an hour."""
    text = headers.get("retry-after-ms", "")
    return timedelta(milliseconds=min(int(text), 3_600_000)) if text.isascii() and text.isdigit() else None
