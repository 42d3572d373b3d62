"""What `fencepost explain` says of an attempt's capability: only where its dependency asks for one."""

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from fencepost import App, Effect
from fencepost.decide.capable import capability_said
from fencepost.events import Event, EventType, body_digest, body_text
from fencepost_ops.commands.explained import explain
from tests.unit.test_app import get

CALL = UUID(int=7)
TOLD = " Its capability is for svc:a, these arguments and this attempt alone, and ends with it."


@pytest.mark.parametrize("asks", [False, True, "X-Leave"])
def test_a_capability_is_told_of_only_where_it_was_declared(asks: Any) -> None:
    app = App("shop")
    app.dependency("w", "http://w.test", capability=asks).http("t", effect=Effect.READ)(get)
    body = body_text({"deadline": "2026-01-01T00:00:02Z", "repeat": False, **capability_said(app.tool("t"))})
    at = datetime(2026, 1, 1, tzinfo=UTC)
    kind = EventType.TOOL_ATTEMPT_STARTED
    header = (1, UUID(int=1), kind, 1, CALL, 1, body, body_digest(body), "svc:a", None, None, None)
    (told,) = explain([Event("t", UUID(int=2), *header, UUID(int=1), at, None, "", "")], CALL)
    assert told.text.endswith(TOLD) is bool(asks)
    assert ("capability" in told.text) is bool(asks)
