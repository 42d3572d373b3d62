"""The one request that a context makes, for each wire: the same bytes on every rebuild. PURE.

    instructions, tools, the run's input, then turn by turn: what the model said, its calls, one result each

`Prompt.body` holds the arguments of the SDK's `create`. Temperature and its kind are sent only if the
application says so: some models refuse them. Shapes as in the API references of OpenAI (Responses,
Chat) and of Anthropic (Messages).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from fencepost.models import AgentSpec, ModelSpec, Wire
from fencepost.tools import Context
from fencepost_workers.models.answers import word
from fencepost_workers.models.declared import Declared
from fencepost_workers.models.transcript import STANDING, Exchange, Told, Transcript, estimate, transcript

_STREAMED: Final[Mapping[Wire, Mapping[str, Any]]] = {
    Wire.RESPONSES: {"stream": True},
    Wire.CHAT: {"stream": True, "stream_options": {"include_usage": True}},
    Wire.MESSAGES: {"stream": True},
}


@dataclass(frozen=True, slots=True)
class Prompt:
    """A request: `digest` is of all that is sent (`sent`), `tokens` as estimated; for `left_out` turns and of
    `cut` results the window had no room.
    """

    body: Mapping[str, Any]
    digest: str
    tokens: int
    left_out: int
    cut: int


def prompt(model: ModelSpec, agent: AgentSpec, declared: Declared, context: Context) -> Prompt:
    """What `model` is asked for the next turn of this context."""
    instructions = f"{agent.instructions}\n\n{STANDING}"
    head = _HEADS[model.wire](model, instructions, declared)
    told = transcript(
        context,
        declared,
        window=min(agent.window, model.window),
        fixed=len(_text(sent(model, head)).encode("utf-8", "surrogatepass")),
        asked=f"{model.wire} {model.model}",
    )
    body = _storable({**head, **_TURNS[model.wire](instructions, told)})
    digest = hashlib.sha256(_text(sent(model, body)).encode("utf-8", "surrogatepass")).hexdigest()
    return Prompt(body, digest, estimate(told.size), told.left_out, told.cut)


def sent(model: ModelSpec, body: Mapping[str, Any]) -> dict[str, Any]:
    """The whole request, as it is sent and digested: the body, how it is answered, and the parameters."""
    return {**body, **_STREAMED[model.wire], **model.parameters}


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _storable(body: dict[str, Any]) -> dict[str, Any]:
    """The body with nothing in it that UTF-8 has no bytes for: half characters become question marks."""
    text = _text(body)
    try:
        text.encode()
    except UnicodeEncodeError:
        body = json.loads(text.encode("utf-8", "replace"))
    return body


# -- OpenAI Responses ----------------------------------------------------------------------------------------


def _responses_head(model: ModelSpec, instructions: str, declared: Declared) -> dict[str, Any]:
    tools = [
        {
            "type": "function",
            "name": tool.name,
            "description": tool.description,
            "parameters": tool.schema,
            "strict": False,
        }
        for tool in declared.tools
    ]
    return {
        "model": model.model,
        "instructions": instructions,
        "max_output_tokens": model.max_output,
        "store": False,
        **({"tools": tools} if tools else {}),
    }


def _responses(_instructions: str, told: Transcript) -> dict[str, Any]:
    return {"input": response_items(told)}


def response_items(told: Transcript) -> list[dict[str, Any]]:
    """A transcript as the input items of OpenAI Responses."""
    items: list[dict[str, Any]] = [_user(told.first)]
    for exchange in told.exchanges:
        items += [_item(part) for part in exchange.said if part != ""]
        for call in exchange.calls:
            items.append({"type": "function_call_output", "call_id": call.id, "output": call.result})
        if exchange.note:
            items.append(_user(exchange.note))
    return [*items, *([_user(told.last)] if told.last else [])]


def _item(part: str | Told | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(part, str):
        return {"role": "assistant", "content": part}
    if isinstance(part, Told):
        called = {"call_id": part.id, "name": part.name, "arguments": part.arguments}
        return {"type": "function_call", **called}
    return dict(part)


def _user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


# -- OpenAI Chat Completions ---------------------------------------------------------------------------------


def _chat_head(model: ModelSpec, _instructions: str, declared: Declared) -> dict[str, Any]:
    tools = [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.schema,
            },
        }
        for tool in declared.tools
    ]
    old = "max_tokens" in model.parameters
    return {
        "model": model.model,
        **({} if old else {"max_completion_tokens": model.max_output}),
        **({"tools": tools} if tools else {}),
    }


def _chat(instructions: str, told: Transcript) -> dict[str, Any]:
    messages: list[dict[str, Any]] = [{"role": "system", "content": instructions}, _user(told.first)]
    thoughts = [_chat_thoughts(exchange) for exchange in told.exchanges]
    # Once a model has thought, DeepSeek misses it in each turn that called, also where there was none.
    none = {"reasoning_content": ""} if any("reasoning_content" in one for one in thoughts) else {}
    for exchange, thought in zip(told.exchanges, thoughts, strict=True):
        if exchange.calls or exchange.text:
            messages.append({**_chat_turn(exchange), **(none if exchange.calls else {}), **thought})
        messages += [
            {"role": "tool", "tool_call_id": call.id, "content": call.result} for call in exchange.calls
        ]
        if exchange.note:
            messages.append(_user(exchange.note))
    return {"messages": [*messages, *([_user(told.last)] if told.last else [])]}


def _chat_thoughts(exchange: Exchange) -> dict[str, Any]:
    """What the model's server put beside its answer, under the names that it has there."""
    return {name: one for part in exchange.said if isinstance(part, Mapping) for name, one in part.items()}


UNSIGNED: Final = {"extra_content": {"google": {"thought_signature": "skip_thought_signature_validator"}}}
"""What Gemini takes for the signature of a call that another model made (its guide to thought signatures)."""
_OUT_OF_ORDER: Final = re.compile(r"\broles?\b.*\b(after|alternate)|message_order", re.DOTALL | re.IGNORECASE)


def repaired(body: Mapping[str, Any], refusal: str) -> Mapping[str, Any] | None:
    """The same request of Chat in the form that its server misses, by what the refusal names; None for none.

    Nothing is known of a server before: one wants a signature at each call, also at another model's (Gemini),
    one the thoughts of each turn that called (DeepSeek), and one no user after a result (Mistral).
    """
    made = [dict(message) for message in body.get("messages", ())]
    calling = [message for message in made if message.get("tool_calls")]
    if "thought_signature" in refusal:
        for message in calling:
            first, *others = message["tool_calls"]
            if not any("extra_content" in one for one in message["tool_calls"]):
                message["tool_calls"] = [{**first, **UNSIGNED}, *others]
    if "reasoning_content" in refusal:
        for message in calling:
            message.setdefault("reasoning_content", "")
    if _OUT_OF_ORDER.search(refusal):
        made = _in_order(made)
    return None if made == list(body.get("messages", ())) else {**body, "messages": made}


def _in_order(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What stands after results, or in a row, is said with what the user said before."""
    kept: list[dict[str, Any]] = []
    for message in messages:
        said = [one for one in kept if one["role"] == "user"]
        if message["role"] == "user" and said and kept[-1]["role"] in {"tool", "user"}:
            said[-1]["content"] += f"\n\n{message['content']}"
        else:
            kept.append(message)
    return kept


def _chat_turn(exchange: Exchange) -> dict[str, Any]:
    calls = [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
            **call.beside,
        }
        for call in exchange.calls
    ]
    said: dict[str, Any] = {"role": "assistant", "content": exchange.text or None}
    return {**said, "tool_calls": calls} if calls else said


# -- Anthropic Messages --------------------------------------------------------------------------------------


def _messages_head(model: ModelSpec, instructions: str, declared: Declared) -> dict[str, Any]:
    tools = [
        {"name": tool.name, "description": tool.description, "input_schema": tool.schema}
        for tool in declared.tools
    ]
    return {
        "model": model.model,
        "system": instructions,
        "max_tokens": model.max_output,
        **({"tools": tools} if tools else {}),
    }


def _messages(_instructions: str, told: Transcript) -> dict[str, Any]:
    messages: list[dict[str, Any]] = []

    def say(role: str, blocks: list[dict[str, Any]]) -> None:
        """Turns alternate: what one side says in a row is one message."""
        if messages and messages[-1]["role"] == role:
            messages[-1]["content"] += blocks
        elif blocks:
            messages.append({"role": role, "content": blocks})

    say("user", _words(told.first))
    for exchange in told.exchanges:
        if exchange.calls or exchange.text.strip():
            say("assistant", [block for part in exchange.said for block in _block(part)])
        results: list[dict[str, Any]] = [
            {
                "type": "tool_result",
                "tool_use_id": call.id,
                "content": call.result,
                "is_error": not call.succeeded,
            }
            for call in exchange.calls
        ]
        say("user", results + _words(exchange.note))
    say("user", _words(told.last))
    return {"messages": messages}


def going_on(
    body: Mapping[str, Any], parts: Sequence[Mapping[str, Any]], most: int
) -> Mapping[str, Any] | None:
    """The request after this one's answer was paused: the same, what was said as it is, and for at most so
    many tokens more. None where nothing was said.
    """
    said = [
        block
        for part in parts
        for block in _block(word(part.get("text")) or part.get("opaque") or "")
        if block
    ]
    told = {"role": "assistant", "content": said}
    return {**body, "messages": [*body["messages"], told], "max_tokens": most} if said else None


def _block(part: str | Told | Mapping[str, Any]) -> list[dict[str, Any]]:
    if isinstance(part, str):
        return _words(part)
    if isinstance(part, Told):
        return [{"type": "tool_use", "id": part.id, "name": part.name, "input": json.loads(part.arguments)}]
    return [dict(part)]


def _words(text: str) -> list[dict[str, Any]]:
    """A text as a block; none for one of blanks, which this wire refuses."""
    return [{"type": "text", "text": text}] if text.strip() else []


_HEADS: Final[Mapping[Wire, Callable[[ModelSpec, str, Declared], dict[str, Any]]]] = {
    Wire.RESPONSES: _responses_head,
    Wire.CHAT: _chat_head,
    Wire.MESSAGES: _messages_head,
}
_TURNS: Final[Mapping[Wire, Callable[[str, Transcript], dict[str, Any]]]] = {
    Wire.RESPONSES: _responses,
    Wire.CHAT: _chat,
    Wire.MESSAGES: _messages,
}
