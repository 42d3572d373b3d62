"""Answers that came at once, not as a stream: put down by the collectors of their wires. PURE.

The end of a response is its status, of a chat's answer its `finish_reason`: without one, or with one that
does not say that the answer is done, nobody can tell whether it is, and it is no turn.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from fencepost_workers.models.answers import Facts, Means, parts, plain, word
from fencepost_workers.models.chat import Chat
from fencepost_workers.models.messages import Messages
from fencepost_workers.models.responses import Responses


def of_response(response: Mapping[str, Any]) -> Facts:
    """What a response of OpenAI Responses says. TooLong."""
    collector, status = Responses(), word(response.get("status"))
    for index, item in enumerate(map(plain, parts(response.get("output")))):
        at = {"output_index": index}
        collector.take({"type": "response.output_item.added", **at, "item": item})
        if item.get("type") == "function_call":
            delta = {"delta": item.get("arguments")}
            collector.take({"type": "response.function_call_arguments.delta", **at, **delta})
        collector.take({"type": "response.output_item.done", **at, "item": item})
    ended = status if status in {"completed", "incomplete", "failed"} else "completed"
    collector.take({"type": f"response.{ended}", "response": response})
    if status != ended:
        unfinished(collector.facts, status)
    return collector.facts


def of_completion(completion: Mapping[str, Any]) -> Facts:
    """What a completion of OpenAI Chat Completions says. TooLong."""
    collector = Chat()
    choices = [_as_delta(plain(choice)) for choice in parts(completion.get("choices"))]
    collector.take({**completion, "choices": choices})
    if not collector.facts.told:
        unfinished(collector.facts, "")
    return collector.facts


def of_message(message: Mapping[str, Any]) -> Facts:
    """What a message of Anthropic Messages says. TooLong."""
    collector = Messages()
    collector.take({"type": "message_start", "message": {**message, "content": []}})
    for index, block in enumerate(map(plain, parts(message.get("content")))):
        at = {"index": index}
        called = block.get("type") == "tool_use"
        begun = {**block, "input": {}} if called else block
        collector.take({"type": "content_block_start", **at, "content_block": begun})
        if called:
            delta = {"type": "input_json_delta", "partial_json": _written(block.get("input"))}
            collector.take({"type": "content_block_delta", **at, "delta": delta})
        collector.take({"type": "content_block_stop", **at})
    delta = {"stop_reason": message.get("stop_reason")}
    collector.take({"type": "message_delta", "delta": delta, "usage": message.get("usage")})
    collector.take({"type": "message_stop"})
    if not collector.facts.told:
        unfinished(collector.facts, "")
    return collector.facts


def _written(arguments: object) -> str | None:
    """Arguments as text; None for what is no object, which is a fault."""
    with suppress(TypeError):  # a number that no float holds as it is written
        return json.dumps(arguments) if isinstance(arguments, dict) else None
    return None


def _as_delta(choice: Mapping[str, Any]) -> Mapping[str, Any]:
    message = plain(choice.get("message"))
    # Each is whole, and in its place: here the order tells calls apart.
    calls = [{**plain(call), "index": n} for n, call in enumerate(parts(message.get("tool_calls")))]
    return {**choice, "delta": {**message, "tool_calls": calls}}


def unfinished(facts: Facts, told: str) -> None:
    """Note that it does not say that it is done: what it says instead makes it no turn."""
    facts.ended, facts.means = True, Means.EITHER
    facts.faults.insert(0, f"it does not say that it is done, but {told!r}")
