"""The wire of OpenAI Responses: its events, put down. PURE.

The end of an answer is the event `response.completed`, of an item its `response.output_item.done`. The
response told at the end has to hold the very calls that were streamed. Items of any type but messages,
reasoning and function calls are acts of the provider's own, as is a call by anybody but the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from fencepost_workers.models.answers import (
    Ending,
    Facts,
    Means,
    Most,
    Piece,
    empty,
    parts,
    place,
    plain,
    tokens_of,
    word,
)
from fencepost_workers.models.failures import failed, stream_error

_OURS: Final = frozenset({"message", "reasoning", "function_call"})
_NONE: Final[tuple[str, Piece | None, dict[str, Any]]] = ("", None, {})
_INCOMPLETE: Final = {"max_output_tokens": Ending.TRUNCATED, "content_filter": Ending.CONTENT_FILTER}


class Responses:
    """Puts down one stream."""

    def __init__(self, most: Most | None = None) -> None:
        self.facts = Facts(most=most or Most())
        # By output_index: the items not done, each with its call and its place.
        self._open: dict[int | None, tuple[str, Piece, dict[str, Any]]] = {}
        self._streamed: list[tuple[str, str]] = []
        self._number = 0

    def take(self, event: Mapping[str, Any]) -> None:
        """One event. TooLong."""
        kind, facts = word(event.get("type")), self.facts
        index = place(facts, event.get("output_index"))
        facts.event()
        self._in_order(event.get("sequence_number"))
        match kind:
            case "response.created" | "response.in_progress":
                facts.response = word(plain(event.get("response")).get("id"))
            case "response.output_item.added":
                self._begin(index, plain(event.get("item")))
            case "response.function_call_arguments.delta":
                self._more(index, facts.grow(event.get("delta")))
            case "response.function_call_arguments.done":
                self._same(index, word(event.get("arguments")))
            case "response.refusal.delta" | "response.refusal.done":
                facts.refused = True
            case "response.output_item.done":
                self._done(index, plain(event.get("item")))
            case "response.completed" | "response.incomplete" | "response.failed":
                self._end(kind.removeprefix("response."), plain(event.get("response")))
            case _ if kind == "error" or not empty(event.get("error")):
                facts.failed = facts.failed or stream_error(event)

    def _in_order(self, number: object) -> None:
        """An event is told once, after those before it; a server that does not number them says nought."""
        if type(number) is int and number > 0:
            if number <= self._number:
                self.facts.faults.append(f"event {number} comes after event {self._number}")
            self._number = number

    def _begin(self, index: int | None, item: Mapping[str, Any]) -> None:
        kind = word(item.get("type"))
        self._foreign(kind, item)
        if index in self._open:
            self.facts.faults.append(f"item {index} begins before the one in its place is done")
            return
        piece = Piece(word(item.get("name")), word(item.get("call_id")))
        self._open[index] = kind, piece, self.facts.begin(piece if kind == "function_call" else None, index)

    def _foreign(self, kind: str, item: Mapping[str, Any]) -> None:
        if kind not in _OURS:
            self.facts.hosted.append(f"an item of type {kind!r}")
        caller = plain(item.get("caller")).get("type", "direct")
        if caller != "direct" or item.get("namespace") or item.get("async"):
            self.facts.hosted.append(f"a call by {caller!r}, or one that is of no tool of ours")

    def _more(self, index: int | None, text: str) -> None:
        kind, piece, _ = self._open.get(index, _NONE)
        if piece is None or kind != "function_call":
            self.facts.faults.append(f"arguments of item {index}, which is no open call")
        else:
            piece.add(text)

    def _same(self, index: int | None, arguments: str) -> None:
        # Of what has faults nothing is used, and joining what is streamed each time would be dear.
        if self.facts.faults or not arguments:
            return
        _, piece, _ = self._open.get(index, _NONE)
        if piece is None or piece.arguments != arguments:
            self.facts.faults.append(f"the arguments of item {index} are not what was streamed of them")

    def _done(self, index: int | None, item: Mapping[str, Any]) -> None:
        kind, facts = word(item.get("type")), self.facts
        self._foreign(kind, item)
        begun, piece, at = self._open.pop(index, _NONE)
        if piece is None or begun != kind:
            facts.faults.append(f"item {index} is done and did not begin, or began as another")
        elif kind == "function_call":
            told = word(item.get("name")), word(item.get("arguments"))
            if told != (piece.name, piece.arguments) or item.get("status") not in ("completed", None):
                facts.faults.append(f"call {piece.name!r} is done and not what was streamed of it")
            piece.whole = True
            self._streamed.append(told)
        elif kind == "message":
            if item.get("status") not in ("completed", None):
                facts.faults.append(f"a message is done and yet {item['status']!r}")
            at["text"] = self._said(item)
        elif item.get("encrypted_content"):  # without it nobody could read it again
            at["opaque"] = dict(item)

    def _said(self, item: Mapping[str, Any]) -> str:
        said = [self.facts.grow(part.get("text")) for part in map(plain, parts(item.get("content")))]
        if any(part.get("type") == "refusal" for part in map(plain, parts(item.get("content")))):
            self.facts.refused = True
        self.facts.text += said
        return "".join(said)

    def _end(self, kind: str, response: Mapping[str, Any]) -> None:
        facts = self.facts
        if facts.ended:
            facts.faults.append("it ends twice")
        facts.ended = True
        facts.response = word(response.get("id")) or facts.response
        facts.usage = dict(plain(response.get("usage")))
        facts.tokens = tokens_of(
            facts.usage,
            prompt="input_tokens",
            output="output_tokens",
            inside="input_tokens_details",
            reasoning="output_tokens_details",
        )
        status = word(response.get("status"))
        facts.stop = status
        for item in map(plain, parts(response.get("output"))):
            self._foreign(word(item.get("type")), item)
        if kind == "failed":
            facts.failed = failed(None, plain(response.get("error")), "the provider failed")
        elif kind == "incomplete":
            facts.stop = word(plain(response.get("incomplete_details")).get("reason")) or status
            facts.means = _INCOMPLETE.get(facts.stop)
        elif status == "completed":
            facts.means = Means.EITHER
            if response.get("error"):
                facts.faults.append("it is completed, and has an error")
            self._whole(response)

    def _whole(self, response: Mapping[str, Any]) -> None:
        items = [plain(item) for item in parts(response.get("output"))]
        told = [
            (word(item.get("name")), word(item.get("arguments")))
            for item in items
            if item.get("type") == "function_call"
        ]
        if told != self._streamed:
            self.facts.faults.append("the calls it ends with are not the ones that were streamed")
        if self._open:
            self.facts.faults.append(f"{len(self._open)} items did not come to their end")
