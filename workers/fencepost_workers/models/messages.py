"""The wire of Anthropic Messages: its events, put down. PURE.

The end of an answer is `message_stop` after a `message_delta` with its stop reason, of a block its
`content_block_stop`. Arguments are the text of the `input_json_delta` events; the object that the first event
of a block holds is used only where it is empty and no text came; a part of a call that is not understood
leaves no turn, or the call would go out without what that said. Blocks of other types than text, thinking
and tool_use are acts of the provider's own, as is a call by anybody but the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from fencepost.models import Tokens
from fencepost_workers.models.answers import (
    Facts,
    Most,
    Piece,
    Pieces,
    counted,
    means_of,
    place,
    plain,
    stop_of,
    word,
)
from fencepost_workers.models.failures import stream_error

_TEXTS: Final = {
    "text_delta": "text",
    "thinking_delta": "thinking",
    "signature_delta": "signature",
    "input_json_delta": "partial_json",
}
_GOES_IN: Final = {
    "text_delta": "text",
    "thinking_delta": "thinking",
    "signature_delta": "thinking",
    "input_json_delta": "tool_use",
}


@dataclass(slots=True)
class _Block:
    """A block while it arrives: as it began, its call if it is one, its place, its texts by their names."""

    begun: dict[str, Any]
    piece: Piece
    place: dict[str, Any]
    texts: dict[str, Pieces] = field(default_factory=dict)

    def add(self, name: str, text: str) -> None:
        """Its text of this name goes on with this."""
        if name not in self.texts:
            self.texts[name] = Pieces(word(self.begun.get(name)))
        self.texts[name].add(text)

    def whole(self) -> dict[str, Any]:
        """The block with all its texts."""
        return self.begun | {name: pieces.text for name, pieces in self.texts.items()}


class Messages:
    """Puts down one stream."""

    def __init__(self, most: Most | None = None) -> None:
        self.facts = Facts(most=most or Most())
        self._open: dict[int | None, _Block] = {}  # by index: the blocks not stopped
        self._begun = False

    def take(self, event: Mapping[str, Any]) -> None:
        """One event. TooLong."""
        kind, facts = word(event.get("type")), self.facts
        index = place(facts, event.get("index"))
        facts.event()
        if facts.ended and kind not in {"ping", "error"}:
            facts.faults.append("it goes on after its end")
        match kind:
            case "message_start":
                self._start(plain(event.get("message")))
            case "content_block_start":
                self._begin(index, plain(event.get("content_block")))
            case "content_block_delta":
                self._more(index, plain(event.get("delta")))
            case "content_block_stop":
                self._stop(index)
            case "message_delta":
                self._delta(plain(event.get("delta")), plain(event.get("usage")))
            case "message_stop":
                self._end()
            case "error":
                facts.failed = facts.failed or stream_error(event)

    def _start(self, message: Mapping[str, Any]) -> None:
        if self._begun:
            self.facts.faults.append("it begins twice")
        self._begun = True
        self.facts.response = word(message.get("id"))
        # At its beginning an answer has made a token or none; what it made in all is told at its end.
        usage = plain(message.get("usage"))
        self._used({name: value for name, value in usage.items() if name != "output_tokens"})

    def _used(self, usage: Mapping[str, Any]) -> None:
        # Counts are cumulative, and what a later event leaves out stays as it was.
        self.facts.usage |= {name: value for name, value in usage.items() if value is not None}

    def _begin(self, index: int | None, block: Mapping[str, Any]) -> None:
        facts, kind = self.facts, word(block.get("type"))
        if index in self._open:
            facts.faults.append(f"block {index} begins before the one in its place is done")
            return
        piece = Piece(word(block.get("name")), word(block.get("id")))
        place = facts.begin(piece if kind == "tool_use" else None, index)
        self._open[index] = _Block(dict(block), piece, place)
        if kind == "tool_use":
            caller = plain(block.get("caller")).get("type", "direct")
            if caller != "direct" or block.get("toolset_name"):
                facts.hosted.append(f"a call by {caller!r}, or one that is of no tool of ours")
            if block.get("input", {}) not in ({}, None):
                facts.faults.append(f"call {piece.name!r} began with arguments of which no text came")
        elif kind not in {"text", "thinking", "redacted_thinking"}:
            facts.hosted.append(f"a block of type {kind!r}")

    def _more(self, index: int | None, delta: Mapping[str, Any]) -> None:
        kind = word(delta.get("type"))
        block = self._open.get(index)
        if kind not in _TEXTS:  # citations and the like belong to a text; of a call it may be the arguments
            if block is None or block.begun.get("type") == "tool_use":
                self.facts.faults.append(f"a part of kind {kind!r} for block {index}, which is not known")
            return
        if block is None or block.begun.get("type") != _GOES_IN[kind]:
            self.facts.faults.append(f"a {kind} for block {index}, which is none that takes it")
            return
        text = self.facts.grow(said := delta.get(_TEXTS[kind]))
        if kind == "input_json_delta":
            if not isinstance(said, str):
                self.facts.faults.append(f"arguments for block {index} that are no text")
            block.piece.add(text)
        else:
            block.add(_TEXTS[kind], text)

    def _stop(self, index: int | None) -> None:
        block = self._open.pop(index, None)
        if block is None:
            self.facts.faults.append(f"block {index} is done and did not begin")
            return
        block.piece.whole = True
        whole = block.whole()
        match whole.get("type"):
            case "tool_use":
                if not block.piece.arguments:
                    block.piece.add("{}")
            case "text":
                block.place["text"] = word(whole.get("text"))
                self.facts.text.append(block.place["text"])
            case _:
                block.place["opaque"] = whole

    def _delta(self, delta: Mapping[str, Any], usage: Mapping[str, Any]) -> None:
        facts = self.facts
        self._used(usage)
        if not (stop := stop_of(delta.get("stop_reason"))):
            return
        if facts.stop and facts.means != means_of(stop):
            facts.faults.append("it gives two stop reasons")
        facts.stop, facts.means = stop, means_of(stop)

    def _end(self) -> None:
        facts = self.facts
        facts.ended = bool(facts.stop)  # without a reason the answer has not said that it is one
        facts.tokens = _tokens(facts.usage)
        if not self._begun:
            facts.faults.append("it ends and did not begin")
        if self._open:
            facts.faults.append(f"{len(self._open)} blocks did not come to their end")


def _tokens(usage: Mapping[str, Any]) -> Tokens | None:
    """Here the input excludes what a cache held. None where the provider did not say."""
    read_in, made = counted(usage, "input_tokens"), counted(usage, "output_tokens")
    if read_in is None or made is None:
        return None
    thought = plain(usage.get("output_tokens_details"))
    found = counted(thought, "reasoning_tokens") or counted(thought, "thinking_tokens") or 0
    read, wrote = (counted(usage, f"cache_{name}_input_tokens") or 0 for name in ("read", "creation"))
    return Tokens(read_in, read, wrote, made, min(made, found))
