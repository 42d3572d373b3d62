"""A request of Chat that its server refuses for its form is asked in the form that the refusal names."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from fencepost.models import Spent, Wire
from fencepost.states import StopReason
from fencepost.views import CallView, Context, Signal
from fencepost_workers.models import ModelTurn, NoTurn
from fencepost_workers.models.prompt import UNSIGNED
from tests.unit.model_wires import PAY, Event, chat
from tests.unit.test_model_pauses import asked

PAID = CallView("one", "pay", {"to": "acct_9"}, "SUCCEEDED", result={"id": "p1"}, turn=1)
HEARD = Signal(1, "hurry", {"by": "noon"}, "p", datetime(2026, 1, 1, tzinfo=UTC))
ONWARDS = Context("r", "t", "p", "Pay.", 2, (PAID, replace(PAID, ordinal=1)), signals=(HEARD,))
DONE = chat([PAY])


def refusal(message: str) -> Event:
    return {"error": {"message": message, "type": "invalid_request_error", "code": 400}}


UNSIGNED_CALL = [refusal("Function call is missing a thought_signature in functionCall parts.")]
UNTHOUGHT: Any = refusal("The reasoning_content in the thinking mode must be passed back to the API.")
ORDER: Any = {"object": "error", "message": "Unexpected role 'user' after role 'tool'", "code": "3230"}


def form(messages: list[dict[str, Any]]) -> list[str]:
    return [message["role"] for message in messages]


@pytest.mark.parametrize("refused", [UNSIGNED_CALL, UNTHOUGHT, ORDER])
def test_what_a_server_misses_in_a_transcript_is_put_there_and_nothing_else_is_changed(refused: Any) -> None:
    turn, told = asked([refused[0] if isinstance(refused, list) else refused, DONE], Wire.CHAT, ONWARDS)
    assert isinstance(turn, ModelTurn), turn
    assert (turn.spent, turn.said["repaired"]) == (Spent(46), True)
    before, after = (body["messages"] for body in told.bodies)
    assert form(before) == ["system", "user", "assistant", "tool", "tool", "user"]
    calls = before[2]["tool_calls"]
    if refused is ORDER:
        assert form(after) == form(before)[:-1]
        assert after[1]["content"] == f"Pay.\n\n{before[-1]['content']}"
    elif refused is UNTHOUGHT:
        assert after == [*before[:2], {**before[2], "reasoning_content": ""}, *before[3:]]
    else:
        signed = {**before[2], "tool_calls": [{**calls[0], **UNSIGNED}, calls[1]]}
        assert after == [*before[:2], signed, *before[3:]]


@pytest.mark.parametrize(
    ("answers", "requests"),
    [
        ([refusal("tools.0.function.parameters is invalid")], 1),  # nothing that the transcript misses
        ([UNTHOUGHT], 2),  # it was put there, and is refused again
    ],
)
def test_a_request_that_is_wrong_otherwise_is_refused(answers: list[Any], requests: int) -> None:
    lost, told = asked(answers, Wire.CHAT, ONWARDS)
    assert isinstance(lost, NoTurn)
    assert (lost.code, lost.spent, lost.stop) == ("http_400", Spent(), StopReason.PLANNER_FAILED)
    assert len(told.bodies) == requests
