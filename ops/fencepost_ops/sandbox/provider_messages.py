"""Anthropic Messages: a reply as the body and as the stream of the provider. PURE."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from fencepost_ops.sandbox import provider_replies as replies
from fencepost_ops.sandbox.provider_replies import Piece, Reply, Usage, fragments
from fencepost_ops.sandbox.provider_sse import RAW, deltas, named
from fencepost_ops.sandbox.provider_thoughts import thoughts

_STOPS: Final = {
    replies.TOOL: "tool_use",
    replies.END: "end_turn",
    replies.LENGTH: "max_tokens",
    replies.REFUSAL: "refusal",
    replies.FILTER: "refusal",
    replies.PAUSE: "pause_turn",
    replies.CONTEXT: "model_context_window_exceeded",
}


def _usage(usage: Usage | None) -> dict[str, Any]:
    if usage is None:
        return {}
    return {
        "input_tokens": usage.input - usage.cached - usage.written,
        "output_tokens": usage.output,
        "cache_read_input_tokens": usage.cached,
        "cache_creation_input_tokens": usage.written,
    }


def readable(text: str) -> str:
    """Arguments as they stand in a whole answer, which is JSON: what is cut was closed by the provider."""
    if not text:
        return "{}"
    try:
        return text[: json.JSONDecoder().raw_decode(text)[1]]
    except ValueError:
        pass
    for end in ("}", '"}', "null}", ":null}", '":null}', '"":null}'):
        try:
            json.loads(text + end)
        except ValueError:
            continue
        return text + end
    return "{}"


def _blocks(reply: Reply) -> list[dict[str, Any]]:
    blocks = _parts(reply)
    parts = [("call", one["name"]) if "name" in one else ("said", one["text"]) for one in blocks]
    pairs = zip(thoughts(reply, parts), blocks, strict=True)
    return [one for thought, block in pairs for one in ([thought.block()] if thought else []) + [block]]


def _parts(reply: Reply) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if reply.text or reply.refusal:
        blocks.append({"type": "text", "text": reply.text or reply.refusal})
    if reply.hosted:
        told = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "bash_code_execution"}
        blocks.append({**told, "input": {"command": "curl -X POST https://bank.example"}})
    for number, call in enumerate(reply.calls):
        block = {"type": "tool_use", "id": call.id, "name": call.name, "input": RAW.format(number)}
        if call.caller is not None:
            block["caller"] = {"type": call.caller, "tool_id": "srvtoolu_1"}  # type: ignore[assignment]
        blocks.append(block)
    return blocks


def body(reply: Reply) -> dict[str, Any]:
    """The whole answer; arguments are marks, to be spliced in."""
    usage = {} if reply.usage is None else {"usage": _usage(reply.usage)}
    return {
        "id": reply.id,
        "type": "message",
        "role": "assistant",
        "model": reply.model,
        "content": _blocks(reply),
        **_stop(reply),
        **usage,
    }


def _stop(reply: Reply) -> dict[str, Any]:
    stop = {"stop_reason": _STOPS.get(reply.stop, reply.stop), "stop_sequence": None}
    if reply.stop in (replies.REFUSAL, replies.FILTER):
        details = {"type": "refusal", "category": "cyber", "explanation": "This asks for what is not done."}
        return {**stop, "stop_details": details}
    return stop


def events(reply: Reply) -> Iterator[Piece]:
    """The stream."""
    begun = {**body(reply), "content": [], "stop_reason": None}
    begun.pop("stop_details", None)
    if reply.usage is not None:
        begun["usage"] = {**_usage(reply.usage), "output_tokens": 1}
    yield Piece(named("message_start", {"type": "message_start", "message": begun}), "start")
    yield Piece(named("ping", {"type": "ping"}))
    yield from _in_order(reply) if reply.thoughts else _calls_last(reply)
    usage = {} if reply.usage is None else {"usage": {"output_tokens": reply.usage.output}}
    told = {"type": "message_delta", "delta": _stop(reply), **usage}
    yield Piece(named("message_delta", told), "stop")
    yield Piece(named("message_stop", {"type": "message_stop"}), "end")


def _calls_last(reply: Reply) -> Iterator[Piece]:
    blocks = _blocks(reply)
    for place, block in enumerate(blocks[: len(blocks) - len(reply.calls)]):
        yield from _plain_block(place, block)
    yield from _tool_blocks(reply, len(blocks) - len(reply.calls))


def _in_order(reply: Reply) -> Iterator[Piece]:
    calls = iter(reply.calls)
    for place, block in enumerate(_blocks(reply)):
        if block["type"] == "tool_use":
            yield from _tool_blocks(reply.only(next(calls)), place)
        else:
            yield from _plain_block(place, block)


def _block(what: str, index: int | None, **more: Any) -> bytes:
    place = {} if index is None else {"index": index}
    return named(f"content_block_{what}", {"type": f"content_block_{what}", **place, **more})


def _plain_block(place: int, block: Mapping[str, Any]) -> Iterator[Piece]:
    if block["type"] == "text":
        yield Piece(_block("start", place, content_block={**block, "text": ""}))
        for piece in fragments(block["text"]):
            yield Piece(_block("delta", place, delta={"type": "text_delta", "text": piece}))
    elif block["type"] == "thinking":
        yield Piece(_block("start", place, content_block={**block, "thinking": "", "signature": ""}))
        for piece in fragments(block["thinking"]):
            yield Piece(_block("delta", place, delta={"type": "thinking_delta", "thinking": piece}))
        signed = {"type": "signature_delta", "signature": block["signature"]}
        yield Piece(_block("delta", place, delta=signed))
    elif block["type"] == "redacted_thinking":
        yield Piece(_block("start", place, content_block=block))
    else:
        yield Piece(_block("start", place, content_block={**block, "input": {}}))
        given = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
        yield Piece(_block("delta", place, delta=given))
    yield Piece(_block("stop", place), "block_end")


def _tool_blocks(reply: Reply, first: int) -> Iterator[Piece]:
    blocks = _parts(reply)[-len(reply.calls) :] if reply.calls else []
    indexes: list[int | None] = [first + number for number in range(len(blocks))]
    if reply.form.indexes == "zero":
        indexes = [first for _ in blocks]
    elif reply.form.indexes == "missing":
        indexes = [None for _ in blocks]
    interleaved, last = reply.form.by_turns, -1
    starts = [
        Piece(_block("start", index, content_block={**block, "input": {}}))
        for index, block in zip(indexes, blocks, strict=True)
    ]
    stops = [Piece(_block("stop", index), "block_end") for index in indexes]
    if interleaved:
        yield from starts
    for number, piece, place in deltas(reply):
        if not interleaved and number != last:
            yield from stops[last : last + 1] if last >= 0 else ()
            # a call without arguments has no delta, and its block stands between
            for skipped in range(last + 1, number):
                yield from (starts[skipped], stops[skipped])
            yield starts[number]
            last = number
        told = {"type": "input_json_delta", "partial_json": piece}
        yield Piece(_block("delta", indexes[number], delta=told), place)
    if interleaved:
        yield from stops
        return
    yield from stops[last : last + 1] if last >= 0 else ()
    for skipped in range(last + 1, len(blocks)):
        yield from (starts[skipped], stops[skipped])
