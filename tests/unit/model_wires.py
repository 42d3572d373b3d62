"""Whole answers of models on each wire, as plain events; and how they are heard."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from fencepost import App, Effect, Request
from fencepost.models import Wire
from fencepost.proposals import Rejected, Validated, validate
from fencepost.tools import Proposal
from fencepost_workers.models.answers import Answer, Most, Wanted, settle
from fencepost_workers.models.chat import Chat
from fencepost_workers.models.messages import Messages
from fencepost_workers.models.responses import Responses

Event = dict[str, Any]
Made = Sequence[tuple[str, str, str]]
"""Calls as name, arguments, id."""

PAY = ("pay", '{"amount_minor": 120000, "to": "acct_9"}', "one")
ASK = ("ask", '{"what": "why"}', "two")
WIRES = list(Wire)


def halves(text: str) -> list[str]:
    return [text[: len(text) // 2], text[len(text) // 2 :]]


def messages(calls: Made = (), text: str = "", stop: str | None = "tool_use", used: Any = 30) -> list[Event]:
    usage = {"input_tokens": 10, "cache_read_input_tokens": 4, "cache_creation_input_tokens": 2}
    events: list[Event] = [{"type": "message_start", "message": {"id": "msg_1", "usage": usage}}]
    blocks: list[tuple[Event, list[Event]]] = []
    if text:
        said = [{"type": "text_delta", "text": half} for half in halves(text)]
        blocks.append(({"type": "text", "text": ""}, said))
    for name, arguments, label in calls:
        parts = [{"type": "input_json_delta", "partial_json": half} for half in halves(arguments)]
        blocks.append(({"type": "tool_use", "id": label, "name": name, "input": {}}, parts))
    for index, (block, deltas) in enumerate(blocks):
        events.append({"type": "content_block_start", "index": index, "content_block": block})
        events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        events.append({"type": "content_block_stop", "index": index})
    ending = {"type": "message_delta", "delta": {"stop_reason": stop}, "usage": {"output_tokens": used}}
    return [*events, ending, {"type": "message_stop"}]


def responses(calls: Made = (), text: str = "", status: str = "completed", **more: Any) -> list[Event]:
    events: list[Event] = [{"type": "response.created", "response": {"id": "resp_1"}}]
    output: list[Event] = []
    if text:
        item = {"type": "message", "content": [{"type": "output_text", "text": text}]}
        added = {"type": "response.output_item.added", "output_index": 0, "item": {"type": "message"}}
        events += [added, {"type": "response.output_item.done", "output_index": 0, "item": item}]
        output.append(item)
    for n, (name, arguments, label) in enumerate(calls, len(output)):
        head = {"type": "function_call", "call_id": label, "name": name}
        at = {"output_index": n, "item_id": label}
        delta = "response.function_call_arguments.delta"
        whole = {**head, "arguments": arguments, "status": "completed"}
        events += [
            {"type": "response.output_item.added", **at, "item": {**head, "arguments": ""}},
            *({"type": delta, **at, "delta": half} for half in halves(arguments)),
            {"type": "response.function_call_arguments.done", **at, "arguments": arguments},
            {"type": "response.output_item.done", **at, "item": whole},
        ]
        output.append(whole)
    usage = {
        "input_tokens": 16,
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 2},
        "output_tokens": 30,
        "output_tokens_details": {"reasoning_tokens": 7},
    }
    ended = {"id": "resp_1", "status": status, "output": output, "usage": usage} | more
    return [*events, {"type": f"response.{status}", "response": ended}]


def fragment(index: Any, name: str | None, arguments: str, label: str | None) -> Event:
    function = {"arguments": arguments} | ({"name": name} if name else {})
    one: Event = {"function": function} | ({"index": index} if index is not None else {})
    return one | ({"id": label, "type": "function"} if label is not None else {})


def chunk(*calls: Event, stop: str | None = None, **delta: Any) -> Event:
    choice = {"index": 0, "delta": {**delta, **({"tool_calls": list(calls)} if calls else {})}}
    return {"id": "c1", "choices": [{**choice, "finish_reason": stop}]}


CHAT_USAGE = {
    "id": "c1",
    "choices": [],
    "usage": {
        "prompt_tokens": 16,
        "prompt_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 2},
        "completion_tokens": 30,
        "completion_tokens_details": {"reasoning_tokens": 7},
    },
}


def chat(calls: Made = (), text: str = "", stop: str = "tool_calls") -> list[Event]:
    events = [chunk(content=half) for half in halves(text)] if text else []
    for n, (name, arguments, label) in enumerate(calls):
        first, last = halves(arguments)
        events += [chunk(fragment(n, name, first, label)), chunk(fragment(n, None, last, None))]
    return [*events, chunk(stop=stop), CHAT_USAGE]


def heard(wire: Wire, events: Iterable[Mapping[str, Any]], most: Most | None = None) -> Answer:
    made: dict[Wire, type[Responses | Chat | Messages]] = {
        Wire.RESPONSES: Responses,
        Wire.CHAT: Chat,
        Wire.MESSAGES: Messages,
    }
    collector = made[wire](most)
    for event in events:
        collector.take(event)
    return settle(collector.facts)


def whole(wire: Wire, calls: Made = (), text: str = "") -> list[Event]:
    if wire is Wire.RESPONSES:
        return responses(calls, text)
    if wire is Wire.CHAT:
        return chat(calls, text, "tool_calls" if calls else "stop")
    return messages(calls, text, "tool_use" if calls else "end_turn")


def wanted(answer: Answer) -> list[tuple[str, str, str]]:
    return [(call.name, call.arguments, call.label) for call in answer.calls]


app = App("wires")
bank = app.dependency("bank", "http://127.0.0.1:1")


class Payment(BaseModel):
    to: str
    amount_minor: int = 0


@bank.http("pay", effect=Effect.READ)
def pay(args: Payment) -> Request:
    return Request.get("/")


def judged(call: Wanted) -> Validated | Rejected:
    """What becomes of a call of the tool `pay`."""
    proposal = Proposal(call.name, call.arguments, call.label)
    return validate(proposal, tools=app.tools, tenant="t", run_id="r", turn=1, ordinal=0)
