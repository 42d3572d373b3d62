"""The services once more, behind a door: `/guarded/wallet/debits` for who brings a capability.

    POST /guarded/PATH        an effect, if the header Fencepost-Capability allows exactly this request
    GET  /guarded/PATH        a lookup; it shows nothing that its asker did not do
    GET  /guarded/refused     what was turned away, for tests; kept as long as the process lives

Its keys and its name come by `POST /admin/config {"guard": {"jwks": …, "audience": …}}`;
until then it lets nobody in. It judges by the services' clock.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from fencepost_ops.sandbox import answers
from fencepost_ops.sandbox.answers import Answer
from fencepost_ops.sandbox.settings import Settings
from fencepost_ops.sandbox.wire import HttpRequest

PREFIX = "/guarded"
HEADER = "Fencepost-Capability"
_FORBIDDEN = frozenset({"wrong_audience", "wrong_request", "wrong_tenant", "over_limit"})


class Guard:
    """The door of one sandbox. `base` is its own address, once it has one."""

    def __init__(self, now: Callable[[], float], settings: Callable[[], Settings]) -> None:
        self.base = ""
        self._now = now
        self._settings = settings
        self._refused: list[dict[str, Any]] = []

    def judge(self, request: HttpRequest) -> Answer | HttpRequest:
        """The request as the services behind take it, or why it is turned away."""
        path = request.path.removeprefix(PREFIX)
        if (request.method, path) == ("GET", "/refused"):
            return answers.success(200, {"refused": self._refused})
        why = self._why_not(request) if request.method != "GET" else None
        if why is None:
            return replace(request, path=path)
        code, detail = why
        self._refused.append({"path": request.path, "code": code, "at": self._now()})
        return answers.problem(403 if code in _FORBIDDEN else 401, code, detail)

    def _why_not(self, request: HttpRequest) -> tuple[str, str] | None:
        guard = self._settings().guard
        token = request.headers.get(HEADER.lower())
        if token is None or guard is None:
            return "no_capability", f"{HEADER} is missing, or this door believes no keys yet"
        from fencepost.capabilities import CapabilityRefused, verify  # as any downstream would; else unused

        try:
            capability = verify(
                token,
                guard["jwks"],
                audience=guard["audience"],
                method=request.method,
                url=self.base + request.path,
                body=request.body,
                now=datetime.fromtimestamp(self._now(), UTC),
            )
        except CapabilityRefused as error:
            return error.code, str(error)
        asked = _amount(request.body)
        if asked is not None and capability.limit is not None and asked > capability.limit.amount_minor:
            return "over_limit", f"{asked} is more than {capability.limit.amount_minor}"
        return None


def _amount(body: bytes) -> int | None:
    """The minor units a request moves, if it says so; what it is worth judges the service behind."""
    try:
        minor = json.loads(body)["amount"]["amount_minor"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return minor if isinstance(minor, int) else None
