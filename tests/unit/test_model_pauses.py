"""An answer that its provider paused goes on where it stood, as far as what is held goes, and is charged."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from fencepost.models import AgentSpec, Spent, Wire
from fencepost.views import Context
from fencepost_workers.models import AgentPlanner, Asking, ModelTurn, NoTurn, Providers
from fencepost_workers.models.agent import PAUSES
from tests.unit.model_wires import PAY, Event, app, messages
from tests.unit.test_model_requests import NOW, Provider, provider

THOUGHT = {"type": "thinking", "thinking": "Hm.", "signature": "s"}
ONCE = 16 + 30
"""Tokens of each answer here."""


def paused(*blocks: Event) -> list[Event]:
    start, *rest = messages(stop="pause_turn")
    told = [start]
    for index, block in enumerate(blocks):
        told.append({"type": "content_block_start", "index": index, "content_block": block})
        told.append({"type": "content_block_stop", "index": index})
    return [*told, *rest]


STILL = paused(THOUGHT, {"type": "text", "text": "Still at it. "})
DONE = messages([PAY], "Now I pay.")
Answers = Sequence[list[Event] | int | Event]
FIRST = Context("r", "t", "p", "x", 1)


def asked(
    answers: Answers, wire: Wire = Wire.MESSAGES, context: Context = FIRST, **said: Any
) -> tuple[ModelTurn | NoTurn, Provider]:
    """What comes of these answers, the last of them for ever; a number is the status of an error, and an
    object what a 400 says.
    """
    left = list(answers)

    async def answer(writer: asyncio.StreamWriter) -> None:
        one = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(one, int):
            writer.write(b"HTTP/1.1 %d X\r\ncontent-length: 0\r\nconnection: close\r\n\r\n" % one)
            return
        if isinstance(one, dict):
            told = json.dumps(one).encode()
            begun = b"HTTP/1.1 400 X\r\ncontent-type: application/json\r\nconnection: close\r\n"
            writer.write(begun + b"content-length: %d\r\n\r\n%b" % (len(told), told))
            return
        lines = [f"event: {event.get('type', 'x')}\ndata: {json.dumps(event)}\n\n" for event in one]
        head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
        writer.write((head + "".join(lines)).encode())

    async def ask() -> tuple[ModelTurn | NoTurn, Provider]:
        async with provider(answer) as told:
            model, providers = told.model(wire, **said), Providers()
            agent = AgentSpec(models=(model,), instructions="Pay.")
            try:
                asking = Asking(0, 30, NOW)
                return await AgentPlanner(agent, app.tools, providers).ask(context, asking), told
            except NoTurn as lost:
                return lost, told
            finally:
                await providers.aclose()

    return asyncio.run(ask())


def test_a_paused_answer_goes_on_where_it_stood_and_both_requests_are_charged() -> None:
    turn, told = asked([STILL, STILL, DONE])
    first, second, third = told.bodies
    said = [THOUGHT, {"type": "text", "text": "Still at it. "}]
    assert second == {
        **first,
        "max_tokens": first["max_tokens"] - 30,
        "messages": [*first["messages"], {"role": "assistant", "content": said}],
    }
    assert third["messages"] == [*first["messages"], {"role": "assistant", "content": said + said}]
    assert isinstance(turn, ModelTurn)
    assert [(one.tool, one.arguments) for one in turn.proposals] == [PAY[:2]]
    assert turn.spent == Spent(3 * ONCE, 0)
    assert turn.said["resumed"] == 2
    kept = json.loads(turn.raw)
    assert kept["text"] == "Still at it. Still at it. Now I pay."
    assert [part.get("text") or part["opaque"]["type"] for part in kept["parts"]] == [
        "thinking",
        "Still at it. ",
        "thinking",
        "Still at it. ",
        "Now I pay.",
    ]


def test_an_answer_that_is_paused_for_ever_is_no_turn_and_charged_as_often() -> None:
    lost, told = asked([STILL])
    assert isinstance(lost, NoTurn)
    assert (lost.code, lost.spent, len(told.bodies)) == ("paused", Spent((1 + PAUSES) * ONCE, 0), 1 + PAUSES)


@pytest.mark.parametrize(
    ("answers", "code", "spent"),
    [
        ([STILL, 400], "paused", Spent(ONCE)),  # as asked again from the start, it may be answered
        ([STILL, 500], "http_500", None),  # nobody knows what that cost
        ([STILL, 529], "http_529", Spent(ONCE)),
        ([STILL, DONE[:-1]], "response_lost", None),
        ([STILL, messages([PAY], stop="max_tokens")], "truncated", Spent(2 * ONCE)),
    ],
)
def test_what_breaks_off_after_a_pause_is_no_turn(answers: Answers, code: str, spent: Spent | None) -> None:
    lost, told = asked(answers)
    assert isinstance(lost, NoTurn)
    assert (lost.code, lost.spent, lost.stop, len(told.bodies)) == (code, spent, None, 2)


LONG = json.loads(json.dumps(STILL).replace('"input_tokens": 10', '"input_tokens": 16000'))
BEGUN: Event = {"type": "tool_use", "id": "one", "name": "pay", "input": {}}


@pytest.mark.parametrize(
    ("first", "said"),
    [
        (LONG, {}),  # twice that is more than is held for the turn
        (STILL, {"max_output": 30}),
        (paused(), {}),  # there is nowhere to go on
        (paused(THOUGHT, BEGUN), {}),  # a call would want its result
        (messages(stop="pause_turn", used=None), {}),
    ],
)
def test_what_cannot_go_on_within_what_is_held_is_no_turn(first: list[Event], said: dict[str, Any]) -> None:
    lost, told = asked([first, DONE], **said)
    assert isinstance(lost, NoTurn)
    assert (lost.code, len(told.bodies)) == ("paused", 1)
