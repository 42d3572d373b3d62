"""Messages of pydantic-ai: a transcript made into them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fencepost_workers.models.transcript import Told, Transcript


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
        signed: dict[str, Any] = {"provider_name": provider, "provider_details": dict(one.beside)}
        return [m.ToolCallPart(one.name, one.arguments, one.id, **(signed if one.beside else {}))]
    match one:
        case {"type": "thinking", "thinking": str(text), "signature": str(signature)}:
            return [m.ThinkingPart(text, signature=signature, provider_name=provider)]
        case {"type": "redacted_thinking" as kind, "data": str(data)}:
            return [m.ThinkingPart("", id=kind, signature=data, provider_name=provider)]
        case {"type": "reasoning", "id": str(name), "encrypted_content": str(data)}:
            return [m.ThinkingPart("", id=name, signature=data, provider_name=provider)]
    # Of Chat: the framework sends a text back in the field that it is named after.
    texts = [name for name in ("reasoning_content", "reasoning") if isinstance(one.get(name), str)]
    return [m.ThinkingPart(one[name], id=name, provider_name=provider) for name in texts]
