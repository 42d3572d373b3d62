"""Messages of pydantic-ai: a transcript made into them, and what one of its responses kept of an answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from fencepost.models import Tokens
from fencepost_workers.models.answers import Ending, Facts, Means, Piece, count
from fencepost_workers.models.at_once import unfinished
from fencepost_workers.models.transcript import Told, Transcript

_FINISHED: Final[Mapping[str, Means | Ending]] = {
    "stop": Means.NORMAL,
    "tool_call": Means.CALLS,
    "length": Ending.TRUNCATED,
    "content_filter": Ending.CONTENT_FILTER,
}


def history(told: Transcript, provider: str) -> list[Any]:
    """The transcript, told to a model of this provider."""
    from pydantic_ai import messages as m

    made: list[Any] = [m.ModelRequest([m.UserPromptPart(told.first)])]
    for exchange in told.exchanges:
        if exchange.calls or exchange.text:
            said = [part for one in exchange.said if one != "" for part in _parts(one, provider)]
            made.append(m.ModelResponse(said, provider_name=provider))
        answered: list[Any] = [m.ToolReturnPart(call.name, call.result, call.id) for call in exchange.calls]
        answered += [m.UserPromptPart(exchange.note)] if exchange.note else []
        made.append(m.ModelRequest(answered))
    if told.last:
        made.append(m.ModelRequest([m.UserPromptPart(told.last)]))
    return made


def _parts(one: str | Told | Mapping[str, Any], provider: str) -> list[Any]:
    from pydantic_ai import messages as m

    if isinstance(one, str):
        return [m.TextPart(one)]
    if isinstance(one, Told):
        return [m.ToolCallPart(one.name, one.arguments, one.id)]
    match one:
        case {"type": "thinking", "thinking": str(text), "signature": str(signature)}:
            return [m.ThinkingPart(text, signature=signature, provider_name=provider)]
        case {"type": "redacted_thinking" as kind, "data": str(data)}:
            return [m.ThinkingPart("", id=kind, signature=data, provider_name=provider)]
        case {"type": "reasoning", "id": str(name), "encrypted_content": str(data)}:
            return [m.ThinkingPart("", id=name, signature=data, provider_name=provider)]
    return []


def facts_of(response: Any) -> Facts:
    """What the framework has kept of an answer: its stop reason, and arguments as the model wrote them."""
    details = response.provider_details or {}
    stop = str(response.finish_reason or "")
    facts = Facts(ended=True, stop=stop, means=_FINISHED.get(stop), tokens=_tokens(response.usage))
    facts.response = response.provider_response_id or ""
    if "finish_reason" not in details and facts.means in {Means.NORMAL, Means.CALLS}:
        unfinished(facts, "")  # the framework takes a missing reason for a normal stop
    elif facts.means is Means.NORMAL and details.get("finish_reason") == "completed":
        facts.means = Means.EITHER  # OpenAI Responses has one word for both
    for part in response.parts:
        match part.part_kind:
            case "tool-call":
                arguments = part.args if isinstance(part.args, str) else json.dumps(part.args or {})
                facts.calls.append(
                    Piece(part.tool_name, part.tool_call_id, facts.grow(arguments), whole=True)
                )
            case "text":
                facts.text.append(facts.grow(part.content))
            case "thinking":
                pass
            case kind:
                facts.hosted.append(f"a part of kind {kind}")
    return facts


def _tokens(usage: Any) -> Tokens | None:
    """What it kept of the tokens; None where it has none, as nobody asks with no word at all."""
    try:
        read, written = count(usage.cache_read_tokens), count(usage.cache_write_tokens)
        plain, made = count(usage.input_tokens) - read - written, count(usage.output_tokens)
    except ValueError:
        return None
    return Tokens(plain, read, written, made) if usage.input_tokens and made and plain >= 0 else None
