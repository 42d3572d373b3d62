"""What happens to every request, whatever it asks for: its id, its time, its log line, its last resort."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from fencepost.clock import uuid7
from fencepost.settings import redact
from fencepost.telemetry import metrics
from fencepost_ops.api.problems import MEDIA_TYPE, Problem, again

log = logging.getLogger(__name__)

_ID: Final = re.compile(rb"[A-Za-z0-9._:/+=-]{1,128}")
_NO_STORE: Final = (b"cache-control", b"no-store")
_NO_GUESS: Final = (b"x-content-type-options", b"nosniff")
_STREAM: Final = b"text/event-stream"

Asgi = Callable[[Any, Any, Any], Awaitable[None]]


class Edge:
    """Around the application: an id for each request (its own, if it brings a sane one), a limit to its time,
    and an answer even where there is a bug. Nothing of a header or a query is logged.
    """

    def __init__(self, app: Asgi, timeout_s: float) -> None:
        self._app = app
        self._timeout_s = timeout_s

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(scope, send)
        began = time.monotonic()
        try:
            async with asyncio.timeout(self._timeout_s) as limit:
                exchange.limit = limit
                await self._app(scope, receive, exchange.send)
        except TimeoutError:
            await exchange.refuse(again("unavailable", "this took too long; sending the same again is safe"))
        except Problem as problem:
            await exchange.refuse(problem)
        except Exception as error:
            what = redact(f"{type(error).__name__}: {error}".splitlines()[0])
            log.exception("request %s failed: %s", exchange.request_id, what)
            await exchange.refuse(Problem("bug", "this failed by a fault of ours; its request_id is logged"))
        finally:
            path = getattr(scope.get("route"), "path", "-")
            took = (time.monotonic() - began) * 1000
            metrics.answered(exchange.status)
            log.info("%s %s %s %.0f ms %s", scope["method"], path, exchange.status, took, exchange.request_id)


class _Exchange:
    """One request and what was sent of its answer."""

    def __init__(self, scope: Any, send: Any) -> None:
        given = [value for name, value in scope["headers"] if name == b"x-request-id"]
        sane = len(given) == 1 and _ID.fullmatch(given[0])
        self.request_id = given[0].decode() if sane else str(uuid7())
        scope.setdefault("state", {})["request_id"] = self.request_id
        self._send = send
        self.status = 0
        self.limit: asyncio.Timeout | None = None

    async def send(self, message: Any) -> None:
        """Pass a piece of the answer on."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = list(message["headers"])
            if self.limit is not None and any(_STREAM in value for _, value in headers):
                self.limit.reschedule(None)
            own = (b"x-request-id", self.request_id.encode())
            message = {**message, "headers": [*headers, own, _NO_STORE, _NO_GUESS]}
        await self._send(message)

    async def refuse(self, problem: Problem) -> None:
        """Answer with a problem, unless an answer has begun."""
        if self.status:
            return
        body = problem.body(self.request_id)
        headers = [(b"content-type", MEDIA_TYPE.encode()), (b"content-length", str(len(body)).encode())]
        headers += [(name.lower().encode(), value.encode()) for name, value in problem.headers.items()]
        if problem.code in {"body_too_large", "timeout"}:
            headers.append((b"connection", b"close"))  # the rest of the body is not read
        await self.send({"type": "http.response.start", "status": problem.status, "headers": headers})
        await self._send({"type": "http.response.body", "body": body})
