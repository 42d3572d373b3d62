"""What a scripted model thinks between its words and calls: sealed, and read only where it stood. PURE.

As Anthropic signs thinking blocks and OpenAI encrypts reasoning items: nobody else can make or change one,
and one that comes back without what it stood after, or before, is refused.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from fencepost_ops.sandbox.provider_replies import Reply

REDACTED: Final = "#"
"""A thought that begins so is told to nobody, but in its seal."""

Before = Sequence[tuple[str, str]]
"""What stands before a thought in its answer: its kind, and its text or its name."""


@dataclass(frozen=True, slots=True)
class Thought:
    """One thought, and the seal of its place."""

    text: str
    seal: str

    @property
    def data(self) -> str:
        """Both in one text that nobody reads."""
        return f"{self.text.encode().hex()}.{self.seal}"

    def block(self) -> dict[str, Any]:
        """As Anthropic has it."""
        if self.text.startswith(REDACTED):
            return {"type": "redacted_thinking", "data": self.data}
        return {"type": "thinking", "thinking": self.text, "signature": self.seal}

    def item(self) -> dict[str, Any]:
        """As OpenAI Responses has it."""
        named = {"type": "reasoning", "id": f"rs_{self.seal[:16]}", "summary": []}
        return {**named, "encrypted_content": self.data}

    def detail(self, number: int) -> dict[str, Any]:
        """As OpenRouter has it, before what has this number in its answer."""
        return {"type": "reasoning.encrypted", "data": self.data, "index": number, "format": "sealed-v1"}


def opened(data: str) -> Thought:
    """The thought in such a text. ValueError for any other."""
    text, _, seal = data.partition(".")
    return Thought(bytes.fromhex(text).decode(), seal)


def sealed(model: str, before: Before, text: str) -> Thought:
    """A thought in its place."""
    told = json.dumps([model, list(before), text]).encode()
    return Thought(text, hashlib.sha256(told).hexdigest())


def thoughts(reply: Reply, parts: Sequence[tuple[str, str]]) -> list[Thought | None]:
    """The thought before each of these parts of a reply, if there is one."""
    before: list[tuple[str, str]] = []
    found: list[Thought | None] = []
    for number, part in enumerate(parts):
        text = reply.thoughts[number] if number < len(reply.thoughts) else ""
        found.append(sealed(reply.model, before, text) if text else None)
        before += [("thought", text)] if text else []
        before.append(part)
    return found
