"""One sending to a raw server that answers as told, and the count of what reached it."""

import asyncio
from datetime import UTC, datetime
from typing import Any

from fencepost.clock import boottime
from fencepost.outbound import Outbound, OutboundRefused, outbound
from fencepost.outcomes import Sent
from fencepost.tools import StoredRequest
from fencepost_workers.tools.http import HttpEngine, Kind
from tests.integration.raw_server import Answer, RawServer

DEADLINE = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
CORRELATION = {"run": "r-1", "call": "c-1", "attempt": "2", "fence": "7"}


def at(url: str) -> Outbound:
    """The rules of a dependency whose base URL this is, or would be if it could be one."""
    try:
        return outbound(url, (), ())
    except OutboundRefused:
        return Outbound()


async def send(
    engine: HttpEngine,
    stored: StoredRequest,
    *,
    timeout: float = 20,  # noqa: ASYNC109 - passed on
    kind: Kind = "effect",
    allowed: Outbound | None = None,
    **more: Any,
) -> Sent:
    return await engine.send(
        stored,
        allowed=allowed or at(stored.target),
        key="key-1",
        deadline=DEADLINE,
        until=boottime() + timeout,
        correlation=CORRELATION,
        kind=kind,
        **more,
    )


def sent_to(
    *answers: Answer, timeout: float = 20, times: int = 1, **options: Any
) -> tuple[list[Sent], RawServer]:
    """The results of sending to a server with these answers; every test of the count goes through here."""

    async def scenario() -> tuple[list[Sent], RawServer]:
        async with RawServer(list(answers)) as server, HttpEngine(**options) as engine:
            results = [await send(engine, server.stored(), timeout=timeout) for _ in range(times)]
            assert engine.requests_sent["effect"] == engine.requests_sent.total() == len(server.requests)
            assert sum(result.requests for result in results) == len(server.requests)
            return results, server

    return asyncio.run(scenario())
