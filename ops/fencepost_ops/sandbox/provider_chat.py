"""Chat Completions: a reply as the body and as the stream that OpenAI-compatible servers send. PURE.

What a model thinks is told in all the ways that such servers have: as a text (`reasoning_content`), sealed
for the answer (`reasoning_details`, each with the number of what it stands before), and sealed for a call
(`extra_content`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from fencepost_ops.sandbox import provider_replies as replies
from fencepost_ops.sandbox.provider_replies import Call, Piece, Reply, Usage, fragments
from fencepost_ops.sandbox.provider_sse import MADE, deltas, unnamed
from fencepost_ops.sandbox.provider_thoughts import Thought, thoughts

_STOPS: Final = {
    replies.TOOL: "tool_calls",
    replies.END: "stop",
    replies.LENGTH: "length",
    replies.REFUSAL: "stop",
    replies.FILTER: "content_filter",
}


def _usage(usage: Usage | None) -> dict[str, Any] | None:
    if usage is None:
        return None
    return {
        "prompt_tokens": usage.input,
        "completion_tokens": usage.output,
        "total_tokens": usage.input + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    }


def body(reply: Reply) -> dict[str, Any]:
    """The whole answer."""
    message: dict[str, Any] = {"role": "assistant", "content": reply.text or None}
    message["refusal"] = reply.refusal or None
    if thought := _thoughts(reply):
        message |= {"reasoning_content": "".join(one.text for _, one in thought)}
        message["reasoning_details"] = [one.detail(number) for number, one in thought]
    if reply.calls:
        message["tool_calls"] = [
            {
                "id": c.id,
                "type": "function",
                "function": {"name": c.name, "arguments": c.arguments},
                **_signed(reply, n),
            }
            for n, c in enumerate(reply.calls)
        ]
    stop = _STOPS.get(reply.stop, reply.stop)
    choice = {"index": 0, "finish_reason": stop, "logprobs": None, "message": message}
    made = {"id": reply.id, "object": "chat.completion", "created": MADE, "model": reply.model}
    usage = {} if reply.usage is None else {"usage": _usage(reply.usage)}
    return {**made, "choices": [choice], **usage}


def _thoughts(reply: Reply) -> list[tuple[int, Thought]]:
    """Each thought, and the number of the part that it stands before."""
    said = [("said", reply.text)] if reply.text else []
    parts = said + [("call", call.name) for call in reply.calls]
    return [(n, one) for n, one in enumerate(thoughts(reply, parts)) if one is not None]


def _signed(reply: Reply, call: int) -> dict[str, Any]:
    number = call + bool(reply.text)
    seals = [one.seal for n, one in _thoughts(reply) if n == number]
    return {"extra_content": {"google": {"thought_signature": seals[0]}}} if seals else {}


def _chunk(reply: Reply, delta: Mapping[str, Any], finish: str | None = None) -> bytes:
    made = {"id": reply.id, "object": "chat.completion.chunk", "created": MADE, "model": reply.model}
    return unnamed({**made, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})


def _call(reply: Reply, number: int, call: Call | None, arguments: str) -> dict[str, Any]:
    told: dict[str, Any] = {"index": 0 if reply.form.indexes in ("zero", "mingled") else number}
    if reply.form.indexes == "missing":
        del told["index"]
    if call is None:
        return {**told, "function": {"arguments": arguments}}
    function = {"name": call.name, "arguments": arguments}
    return {**told, "id": call.id, "type": "function", "function": function, **_signed(reply, number)}


def events(reply: Reply, *, usage: bool) -> Iterator[Piece]:
    """The stream; `usage`: with the tokens at its end."""
    yield Piece(_chunk(reply, {"role": "assistant", "content": ""}), "start")
    for number, thought in _thoughts(reply):
        for piece in fragments(thought.text):
            yield Piece(_chunk(reply, {"reasoning_content": piece}))
        yield Piece(_chunk(reply, {"reasoning_details": [thought.detail(number)]}))
    for piece in fragments(reply.text):
        yield Piece(_chunk(reply, {"content": piece}))
    for piece in fragments(reply.refusal):
        yield Piece(_chunk(reply, {"refusal": piece}))
    yield from _calls(reply)
    yield Piece(_chunk(reply, {}, _STOPS.get(reply.stop, reply.stop)), "stop")
    if usage and reply.usage is not None:
        made = {"id": reply.id, "object": "chat.completion.chunk", "created": MADE, "model": reply.model}
        yield Piece(unnamed({**made, "choices": [], "usage": _usage(reply.usage)}), "end")
    yield Piece(b"data: [DONE]\n\n", "end")


def _calls(reply: Reply) -> Iterator[Piece]:
    late = reply.form.indexes == "late"
    begun: set[int] = set()
    if reply.form.by_turns:
        for number, call in enumerate(reply.calls):
            begun.add(number)
            yield Piece(_chunk(reply, {"tool_calls": [_call(reply, number, call, "")]}))
    for number, piece, place in deltas(reply):
        if number not in begun and not late:
            begun.add(number)
            told = _call(reply, number, reply.calls[number], "")
            yield Piece(_chunk(reply, {"tool_calls": [told]}))
        yield Piece(_chunk(reply, {"tool_calls": [_call(reply, number, None, piece)]}), place)
    for number, call in enumerate(reply.calls):
        if number not in begun:
            told = _call(reply, number, call, "")
            yield Piece(_chunk(reply, {"tool_calls": [told]}))
