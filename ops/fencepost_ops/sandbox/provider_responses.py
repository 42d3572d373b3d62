"""OpenAI Responses: a reply as the body and as the stream of the provider. PURE."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from fencepost_ops.sandbox import provider_replies as replies
from fencepost_ops.sandbox.provider_replies import Call, Piece, Reply, fragments
from fencepost_ops.sandbox.provider_sse import MADE, deltas, named
from fencepost_ops.sandbox.provider_thoughts import thoughts

_INCOMPLETE: Final = {replies.LENGTH: "max_output_tokens", replies.FILTER: "content_filter"}
_WHOLE: Final = (replies.TOOL, replies.END, replies.REFUSAL)


def body(reply: Reply) -> dict[str, Any]:
    """The whole answer."""
    whole = reply.stop in _WHOLE
    reason = None if whole else {"reason": _INCOMPLETE.get(reply.stop, reply.stop)}
    return {
        **_begun(reply),
        "status": "completed" if whole else "incomplete",
        "incomplete_details": reason,
        "output": [item for _, item in _items(reply)],
        "usage": _usage(reply),
    }


def _begun(reply: Reply) -> dict[str, Any]:
    return {
        "id": reply.id,
        "object": "response",
        "created_at": MADE,
        "model": reply.model,
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "output": [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": None,
    }


def _usage(reply: Reply) -> dict[str, Any] | None:
    usage = reply.usage
    if usage is None:
        return None
    return {
        "input_tokens": usage.input,
        "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": usage.written},
        "output_tokens": usage.output,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.input + usage.output,
    }


def _items(reply: Reply) -> list[tuple[Call | None, dict[str, Any]]]:
    """The items of the output, those that are calls with their call."""
    items = _parts(reply)
    parts = [("said", reply.text) if "content" in item else ("call", item["name"]) for _, item in items]
    pairs = zip(thoughts(reply, parts), items, strict=True)
    return [one for thought, item in pairs for one in ([(None, thought.item())] if thought else []) + [item]]


def _parts(reply: Reply) -> list[tuple[Call | None, dict[str, Any]]]:
    found: list[tuple[Call | None, dict[str, Any]]] = []
    if reply.text or reply.refusal:
        item = {"type": "message", "id": f"msg_{reply.id}", "role": "assistant", "status": "completed"}
        found.append((None, {**item, "content": [_part(reply)]}))
    if reply.hosted:
        item = {"type": "mcp_call", "id": f"mcp_{reply.id}", "server_label": "bank", "name": "pay"}
        found.append((None, {**item, "arguments": "{}", "output": "paid", "error": None}))
    for number, call in enumerate(reply.calls):
        whole = not (reply.stop == replies.LENGTH and number == len(reply.calls) - 1)
        item = {"type": "function_call", "id": _item_id(reply, number), "call_id": call.id}
        item |= {"name": call.name, "arguments": call.arguments}
        item["status"] = "completed" if whole else "incomplete"
        caller = {} if call.caller is None else {"caller": {"type": call.caller, "caller_id": "prog_1"}}
        found.append((call, {**item, **caller}))
    return found


def _part(reply: Reply) -> dict[str, Any]:
    if reply.refusal:
        return {"type": "refusal", "refusal": reply.refusal}
    return {"type": "output_text", "text": reply.text, "annotations": [], "logprobs": []}


def _item_id(reply: Reply, number: int) -> str:
    if reply.calls[number].id == "":
        return ""
    return f"fc_{reply.id}_{0 if reply.form.indexes == 'zero' else number}"


class _Numbered:
    """Gives each event of a stream its number."""

    def __init__(self) -> None:
        self._next = 0

    def __call__(self, event: str, place: str = "middle", **more: Any) -> Piece:
        told = {"type": event, "sequence_number": self._next, **more}
        self._next += 1
        return Piece(named(event, told), place)


def events(reply: Reply) -> Iterator[Piece]:
    """The stream."""
    told = _Numbered()
    yield told("response.created", "start", response=_begun(reply))
    yield told("response.in_progress", response=_begun(reply))
    items = _items(reply)
    plain = [item for call, item in items if call is None]
    if reply.thoughts:
        for index, (call, item) in enumerate(items):
            one = _plain(told, reply, index, item) if call is None else None
            yield from one or _calls(told, reply.only(call or reply.calls[0]), [item], index)
    else:
        for index, item in enumerate(plain):
            yield from _plain(told, reply, index, item)
        yield from _calls(told, reply, [item for call, item in items if call is not None], len(plain))
    final = body(reply)
    ending = "response.completed" if final["status"] == "completed" else "response.incomplete"
    yield told(ending, "stop", response=final)


def _plain(told: _Numbered, reply: Reply, index: int, item: Mapping[str, Any]) -> Iterator[Piece]:
    place: dict[str, Any] = {"output_index": index}
    if item["type"] != "message":
        begun = {"encrypted_content" if item["type"] == "reasoning" else "output": None}
        yield told("response.output_item.added", **place, item={**item, **begun})
        yield told("response.output_item.done", "block_end", **place, item=item)
        return
    yield told("response.output_item.added", **place, item={**item, "content": [], "status": "in_progress"})
    kind, field = ("refusal", "refusal") if reply.refusal else ("output_text", "text")
    part = item["content"][0]
    at: dict[str, Any] = {**place, "item_id": item["id"], "content_index": 0}
    yield told("response.content_part.added", **at, part={**part, field: ""})
    for piece in fragments(part[field]):
        yield told(f"response.{kind}.delta", **at, delta=piece, logprobs=[])
    yield told(f"response.{kind}.done", **at, **{field: part[field]}, logprobs=[])
    yield told("response.content_part.done", **at, part=part)
    yield told("response.output_item.done", "block_end", **place, item=item)


def _calls(told: _Numbered, reply: Reply, items: list[dict[str, Any]], first: int) -> Iterator[Piece]:
    indexes: list[dict[str, Any]] = [{"output_index": first + number} for number in range(len(items))]
    if reply.form.indexes == "zero":
        indexes = [{"output_index": first} for _ in items]
    elif reply.form.indexes == "missing":
        indexes = [{} for _ in items]

    def begin(number: int) -> Piece:
        item = {**items[number], "arguments": "", "status": "in_progress"}
        return told("response.output_item.added", **indexes[number], item=item)

    def finish(number: int) -> Iterator[Piece]:
        item = items[number]
        at = {**indexes[number], "item_id": item["id"]}
        whole = {"arguments": item["arguments"], "name": item["name"]}
        yield told("response.function_call_arguments.done", **at, **whole)
        yield told("response.output_item.done", "block_end", **indexes[number], item=item)

    def delta(found: tuple[int, str, str]) -> Piece:
        number, piece, place = found
        at = {**indexes[number], "item_id": items[number]["id"]}
        return told("response.function_call_arguments.delta", place, **at, delta=piece)

    every = range(len(items))
    if reply.form.by_turns:
        yield from [begin(number) for number in every]
        yield from map(delta, deltas(reply))
        for number in every:
            yield from finish(number)
        return
    for number in every:
        yield begin(number)
        yield from [delta(found) for found in deltas(reply) if found[0] == number]
        yield from finish(number)


def failed_body(reply: Reply) -> dict[str, Any]:
    """The answer where it failed."""
    error = {"code": "server_error", "message": "The model failed to generate a response"}
    return {**body(reply), "status": "failed", "output": [], "error": error, "usage": None}


def failed(reply: Reply) -> Piece:
    """What a stream ends with where the answer failed."""
    told = {"type": "response.failed", "sequence_number": 99, "response": failed_body(reply)}
    return Piece(named("response.failed", told), "stop")
