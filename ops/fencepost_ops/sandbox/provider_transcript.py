"""What a model request says, read from three wires into one form, and refused where a provider refuses it.

Pure. The form does not tell the wires apart: a transcript has the same digest on all three. A model's turn is
known from the request alone, so that a request asked again is answered with the same turn.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple

from fencepost_ops.sandbox.provider_thoughts import opened, sealed

RESPONSES, CHAT, MESSAGES = "openai.responses", "openai.chat", "anthropic.messages"
WIRES: Final = (RESPONSES, CHAT, MESSAGES)
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_SAMPLING = ("temperature", "top_p", "top_k")  # refused by Anthropic's version 2026-10-21


class Malformed(ValueError):
    """The provider answers 400 to this request; the text says why."""


class Item(NamedTuple):
    """One thing of a transcript: what a `user` said, the model `said`, a `call` it made, a `result`; a
    `thought`, while it is read.
    """

    kind: str
    text: str
    id: str = ""
    name: str = ""

    @property
    def of_model(self) -> bool:
        """Whether the model made it."""
        return self.kind in ("said", "call")


@dataclass(frozen=True)
class Asked:
    """One request. `body` is its JSON."""

    wire: str
    model: str
    stream: bool
    system: str
    items: tuple[Item, ...]
    tools: tuple[str, ...]
    body: Mapping[str, Any]
    thoughts: int = 0
    """How many of the model's thoughts came back."""

    @cached_property
    def turns(self) -> tuple[tuple[Item, ...], ...]:
        """What the model has answered so far, turn by turn."""
        found: list[list[Item]] = []
        before = False
        for item in self.items:
            if item.of_model and not before:
                found.append([])
            if item.of_model:
                found[-1].append(item)
            before = item.of_model
        return tuple(map(tuple, found))

    @property
    def turn(self) -> int:
        """Which turn is asked for, from 1; the last one still where it was paused, and is to go on."""
        return len(self.turns) + (not self.goes_on)

    @property
    def goes_on(self) -> bool:
        """Whether the model is to go on with what it has said last."""
        return self.wire == MESSAGES and bool(self.items) and self.items[-1].of_model

    @cached_property
    def results(self) -> Mapping[str, str]:
        """The text of each result, by the id of its call."""
        return {item.id: item.text for item in self.items if item.kind == "result"}

    @property
    def first(self) -> str:
        """What the user said first."""
        return next((item.text for item in self.items if item.kind == "user"), "")

    @cached_property
    def digest(self) -> str:
        """Names the transcript: who said what, which calls, which results; no ids, no tools, no wire."""
        told = [self.system, *([item.kind, item.name, _same(item)] for item in self.items)]
        return hashlib.sha256(json.dumps(told).encode()).hexdigest()

    def given(self) -> Any:
        """The first JSON object in what the user said first; an empty one where there is none."""
        decoder = json.JSONDecoder()
        for found in re.finditer(r"\{", self.first):
            try:
                return decoder.raw_decode(self.first, found.start())[0]
            except ValueError:
                continue
        return {}


def read(wire: str, body: Any, headers: Mapping[str, str]) -> Asked:
    """Read a request. Raises Malformed as the provider would refuse it."""
    if not isinstance(body, dict):
        raise Malformed("the body must be a JSON object")
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise Malformed("model: a name is required")
    reader, check = _READERS[wire]
    check(body, headers)
    try:
        system, items = reader(body)
        tools = tuple(_tool(wire, tool) for tool in body.get("tools") or ())
    except (TypeError, AttributeError, KeyError) as error:
        raise Malformed(f"the transcript cannot be read: {error!r}") from None
    for name in tools:
        if _NAME.fullmatch(name) is None:
            raise Malformed(f"tools: the name {name!r} does not match {_NAME.pattern}")
    kept = _without_thoughts(model, items)
    _check_pairs(kept)
    thoughts = len(items) - len(kept)
    return Asked(wire, model, body.get("stream") is True, system, tuple(kept), tools, body, thoughts)


def _thought(data: str) -> Item:
    try:
        thought = opened(data)
    except ValueError:
        raise Malformed("the encrypted content could not be verified") from None
    return Item("thought", thought.text, thought.seal)


def _without_thoughts(model: str, items: Sequence[Item]) -> list[Item]:
    """What is left once the model's thoughts are read: each has to stand where it stood, before something."""
    kept: list[Item] = []
    before: list[tuple[str, str]] = []
    for number, item in enumerate(items):
        if item.kind == "thought":
            if item.id != sealed(model, before, item.text).seal:
                raise Malformed("invalid signature: a thought is not what the model thought, or not there")
            after = items[number + 1].kind if number + 1 < len(items) else ""
            if after not in ("said", "call", "thought"):
                raise Malformed("a thought was provided without the item that has to follow it")
        else:
            kept.append(item)
        of_model = item.of_model or item.kind == "thought"
        before = [*before, (item.kind, item.name or item.text)] if of_model else []
    return kept


def _same(item: Item) -> str:
    """A call's arguments, however they were spaced or ordered; other texts as they are."""
    if item.kind != "call":
        return item.text
    try:
        return json.dumps(json.loads(item.text), sort_keys=True)
    except ValueError:
        return item.text


def _check_pairs(items: Sequence[Item]) -> None:
    """Every call has one result, after its turn and before anything else."""
    open_calls: dict[str, str] = {}
    known: set[str] = set()
    turn_over = False
    for item in items:
        if item.kind == "result":
            turn_over = True
            if open_calls.pop(item.id, None) is None:
                raise Malformed(
                    f"there is a result for {item.id!r}, but no call before it that waits for one"
                )
            continue
        if open_calls and (turn_over or not item.of_model):
            raise Malformed(f"no result was found for the calls {', '.join(open_calls)}")
        turn_over = False
        if item.kind == "call":
            if item.id in known:
                raise Malformed(f"two calls have the id {item.id!r}")
            known.add(item.id)
            open_calls[item.id] = item.name
    if open_calls:
        raise Malformed(f"no result was found for the calls {', '.join(open_calls)}")
    if not any(item.kind == "user" for item in items):
        raise Malformed("there is no message of a user")


def _texts(content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    return "\n".join(str(part.get("text", part.get("refusal", ""))) for part in content)


def _tool(wire: str, tool: Mapping[str, Any]) -> str:
    if wire == CHAT:
        return str(tool["function"]["name"])
    return str(tool["name"]) if "name" in tool else str(tool["type"])


def _responses(body: Mapping[str, Any]) -> tuple[str, list[Item]]:
    given = body.get("input", "")
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    system = [_texts(body.get("instructions"))]
    items: list[Item] = []
    for one in given:
        kind = one.get("type", "message")
        if kind == "function_call":
            items.append(Item("call", one["arguments"], one["call_id"], one["name"]))
        elif kind == "function_call_output":
            items.append(Item("result", _texts(one["output"]), one["call_id"]))
        elif kind == "message" and one["role"] in ("system", "developer"):
            system.append(_texts(one["content"]))
        elif kind == "message":
            items.append(Item("said" if one["role"] == "assistant" else "user", _texts(one["content"])))
        elif kind != "reasoning":
            raise Malformed(f"input: unknown item type {kind!r}")
        elif one.get("encrypted_content"):
            items.append(_thought(one["encrypted_content"]))
    return "\n".join(filter(None, system)), items


def _chat(body: Mapping[str, Any]) -> tuple[str, list[Item]]:
    system: list[str] = []
    items: list[Item] = []
    for message in body.get("messages") or ():
        role, text = message["role"], _texts(message.get("content"))
        if role in ("system", "developer"):
            system.append(text)
        elif role == "tool":
            items.append(Item("result", text, message["tool_call_id"]))
        elif role == "assistant":
            items += _chat_turn(message, text)
        elif role == "user":
            items.append(Item("user", text))
        else:
            raise Malformed(f"messages: unknown role {role!r}")
    return "\n".join(filter(None, system)), items


def _chat_turn(message: Mapping[str, Any], text: str) -> Iterator[Item]:
    """What the model said, each thought before what it stood before; each is told in all of its ways."""
    thoughts = {one["index"]: _thought(one["data"]) for one in message.get("reasoning_details") or ()}
    if (message.get("reasoning_content") or "") != "".join(one.text for one in thoughts.values()):
        raise Malformed("the reasoning_content in the thinking mode must be passed back to the API")
    calls = message.get("tool_calls") or ()
    said = [Item("said", text)] if text else []
    for number, call in enumerate(calls, len(said)):
        signed = call.get("extra_content", {}).get("google", {}).get("thought_signature")
        if signed != (thoughts[number].id if number in thoughts else None):
            raise Malformed(f"function call {call['id']} is missing its thought_signature, or has another's")
    parts = [(one["function"]["arguments"], one["id"], one["function"]["name"]) for one in calls]
    for number, item in enumerate([*said, *(Item("call", *part) for part in parts)]):
        yield from [thoughts[number]] if number in thoughts else []
        yield item


def _messages(body: Mapping[str, Any]) -> tuple[str, list[Item]]:
    items: list[Item] = []
    last = ""
    for message in body.get("messages") or ():
        role = message["role"]
        if role not in ("user", "assistant"):
            raise Malformed(f"messages: unknown role {role!r}")
        if role == last == "user" and items and items[-1].kind == "result":
            raise Malformed("messages: what follows tool_use is one message of the user with all results")
        last = role
        items += _blocks(role, message["content"])
    return _texts(body.get("system")), items


def _blocks(role: str, content: Any) -> Iterator[Item]:
    said = "said" if role == "assistant" else "user"
    if isinstance(content, str):
        if not content:
            raise Malformed("messages: text content blocks must be non-empty")
        yield Item(said, content)
        return
    for block in content:
        if block["type"] == "text":
            if not block["text"]:
                raise Malformed("messages: text content blocks must be non-empty")
            yield Item(said, block["text"])
        elif block["type"] == "tool_use" and role == "assistant":
            if not isinstance(block["input"], dict):
                raise Malformed("messages: the input of tool_use must be an object")
            yield Item("call", json.dumps(block["input"]), block["id"], block["name"])
        elif block["type"] == "tool_result" and role == "user":
            yield Item("result", _texts(block.get("content")), block["tool_use_id"])
        elif block["type"] == "thinking":
            yield Item("thought", block["thinking"], block["signature"])
        elif block["type"] == "redacted_thinking":
            yield _thought(block["data"])
        else:
            raise Malformed(f"messages: unknown block type {block['type']!r}")


def _openai(body: Mapping[str, Any], headers: Mapping[str, str]) -> None:
    del headers
    if "stream_options" in body and body.get("stream") is not True:
        raise Malformed("stream_options is only allowed when stream is true")


def _anthropic(body: Mapping[str, Any], headers: Mapping[str, str]) -> None:
    if "anthropic-version" not in headers:
        raise Malformed("anthropic-version: header is required")
    if not isinstance(body.get("max_tokens"), int) or body["max_tokens"] < 1:
        raise Malformed("max_tokens: Field required")
    if headers["anthropic-version"] >= "2026-10-21":
        for name in _SAMPLING:
            if name in body:
                raise Malformed(f"{name}: no longer accepted")


_Reader = Callable[[Mapping[str, Any]], tuple[str, list[Item]]]
_Check = Callable[[Mapping[str, Any], Mapping[str, str]], None]
_READERS: Final[Mapping[str, tuple[_Reader, _Check]]] = {
    RESPONSES: (_responses, _openai),
    CHAT: (_chat, _openai),
    MESSAGES: (_messages, _anthropic),
}
