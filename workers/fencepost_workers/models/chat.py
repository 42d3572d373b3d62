"""The wire of OpenAI Chat Completions, and of all who speak it: its chunks, put down. PURE.

The end of an answer is the chunk with its `finish_reason`; a call has no end of its own. Servers differ in
how they number calls: the same index for all, none, an id that comes late or again. A call begins where an
index, an id or a name is new; where fragments could be of two calls they make JSON of neither, and the
answer is refused as a whole, as it is where index and id of a fragment are of two calls.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from fencepost_workers.models.answers import (
    Ending,
    Facts,
    Means,
    Most,
    Piece,
    parts,
    place,
    plain,
    tokens_of,
    word,
)
from fencepost_workers.models.failures import stream_error

_STOPS: Final[Mapping[str, Means | Ending]] = {
    "stop": Means.NORMAL,
    "tool_calls": Means.CALLS,
    "length": Ending.TRUNCATED,
    "content_filter": Ending.CONTENT_FILTER,
}

_BESIDE: Final = re.compile(r"index|finish_reason|logprobs|content_filter_\w+")


def _beside(choice: Mapping[str, Any]) -> bool:
    """Whether it holds nothing but what is told about an answer, as Azure does late of its filter."""
    return bool(choice) and all(value is None or _BESIDE.fullmatch(name) for name, value in choice.items())


class Chat:
    """Puts down one stream."""

    def __init__(self, most: Most | None = None) -> None:
        self.facts = Facts(most=most or Most())
        self._latest: dict[int | None, Piece] = {}  # by index: the call that fragments without an id are of
        self._labelled: dict[str, Piece] = {}  # by id: the last call that has it
        self._places: dict[str, int | None] = {}  # by id: the index that call had

    def take(self, event: Mapping[str, Any]) -> None:
        """One chunk. TooLong."""
        facts = self.facts
        facts.event()
        facts.response = word(event.get("id")) or facts.response
        if event.get("error"):
            facts.failed = facts.failed or stream_error(event)
        if usage := plain(event.get("usage")):
            facts.usage = dict(usage)
            facts.tokens = tokens_of(
                usage,
                total="prompt_tokens",
                output="completion_tokens",
                inside="prompt_tokens_details",
                reasoning="completion_tokens_details",
            )
        for choice in map(plain, parts(event.get("choices"))):
            if place(facts, choice.get("index")) not in (0, None):
                facts.faults.append("it is several answers")
                continue
            self._delta(plain(choice.get("delta")))
            if choice.get("finish_reason") is not None:
                self._end(word(choice["finish_reason"]))
            elif not isinstance(choice.get("delta"), Mapping) and not _beside(choice):
                facts.faults.append("a part of it is none that is known")

    def _delta(self, delta: Mapping[str, Any]) -> None:
        facts = self.facts
        if delta.get("refusal"):
            facts.refused = True
        if text := facts.grow(delta.get("content")):
            facts.text.append(text)
        if delta.get("function_call"):
            facts.faults.append("it calls a function in the way of before tools")
        calls = parts(delta.get("tool_calls"))
        if facts.ended and (text or calls):
            facts.faults.append("it goes on after its end")
        for one in map(plain, calls):
            self._fragment(one)

    def _fragment(self, one: Mapping[str, Any]) -> None:
        index, label = place(self.facts, one.get("index")), word(one.get("id"))
        function = plain(one.get("function"))
        name = word(function.get("name"))
        if one.get("type") not in ("function", None):
            self.facts.hosted.append(f"a call of type {one.get('type')!r}")
        piece = self._of(index, label, name)
        if piece is None:
            piece = Piece(whole=True)  # its end is the answer's
            self.facts.begin(piece, index)
        if label and not piece.label:
            piece.label = label
            self._labelled[label], self._places[label] = piece, index
        piece.name = piece.name or name
        piece.add(self.facts.grow(said := function.get("arguments")))
        if said is not None and not isinstance(said, str):
            self.facts.faults.append("arguments that are no text")
        if "arguments" not in function and not name and not label:
            self.facts.faults.append("a part of a call that is none that is known")
        self._latest[index] = piece

    def _of(self, index: int | None, label: str, name: str) -> Piece | None:
        """The call a fragment goes on with; None: it begins one."""
        latest, labelled = self._latest.get(index), self._labelled.get(label)
        two = latest is not None and labelled is not None and latest is not labelled
        if two and index is not None and self._places[label] != index:
            self.facts.faults.append(f"a part of one call by its index {index}, of another by its id")
        if label and (latest is None or (latest.label and latest.label != label)):
            # An index of its own makes it a call of its own, also under the id of another.
            return labelled if latest is not None or index is None else None
        if latest is not None and name and latest.name not in {"", name}:
            return None
        return latest

    def _end(self, stop: str) -> None:
        facts = self.facts
        if facts.ended and facts.stop != stop:
            facts.faults.append("it ends twice")
        facts.ended, facts.stop, facts.means = True, stop, _STOPS.get(stop)
