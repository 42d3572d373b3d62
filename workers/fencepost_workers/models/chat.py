"""The wire of OpenAI Chat Completions, and of all who speak it: its chunks, put down. PURE.

The end of an answer is the chunk with its `finish_reason`; a call has no end of its own. Servers differ in
how they number calls: the same index for all, none, an id that comes late or again. A call begins where an
index, an id or a name is new; where fragments could be of two calls they make JSON of neither, and the
answer is refused as a whole, as it is where index and id of a fragment are of two calls. Fields that are
empty are as good as absent, and no other servers' fields spoil an answer.

Some models are told again what they thought, or refuse to go on. Each server has a field for that, of the
answer or of a call; what stood there goes back under its own name (`opaque`, `beside`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from fencepost.canonical import sanitize
from fencepost_workers.models.answers import (
    Facts,
    Means,
    Most,
    Piece,
    Pieces,
    empty,
    means_of,
    parts,
    place,
    plain,
    spelled,
    stop_of,
    tokens_of,
    word,
)
from fencepost_workers.models.failures import stream_error

_BESIDE: Final = re.compile(r"index|finish_reason|logprobs|usage|content_filter_\w+")
_THOUGHTS: Final = ("reasoning_content", "reasoning")
"""Texts: of DeepSeek, Kimi, GLM and vLLM; of OpenRouter, Ollama and newer vLLM."""
_THOUGHT_LISTS: Final = ("reasoning_details", "thinking_blocks")
"""Lists of blocks that come in pieces: of OpenRouter, and of litellm."""
_SIGNED: Final = ("extra_content", "provider_specific_fields")
"""Objects: of Gemini and of litellm, for the answer or for a call."""
_PIECEWISE: Final = frozenset({"text", "summary", "thinking"})
"""The texts of a block that its next piece goes on with."""
_OF_CALL: Final = frozenset({"index", "id", "type", "function", *_SIGNED})
_OF_FUNCTION: Final = frozenset({"name", "arguments"})


def _beside(choice: Mapping[str, Any]) -> bool:
    """Whether it holds nothing but what is told about an answer, as Azure does late of its filter."""
    return all(empty(value, zero=False) or _BESIDE.fullmatch(name) for name, value in choice.items())


class _Thoughts:
    """What goes back with an answer, while it arrives."""

    def __init__(self) -> None:
        self._texts: dict[str, Pieces] = {}
        self._lists: dict[str, list[dict[str, Any]]] = {}
        self._signed: dict[str, Any] = {}
        self.place: dict[str, Any] | None = None

    def take(self, facts: Facts, delta: Mapping[str, Any]) -> None:
        """What a delta holds of it. TooLong."""
        for name in _THOUGHTS:
            if isinstance(text := delta.get(name), str):  # an empty one, too: DeepSeek wants it back
                self._texts.setdefault(name, Pieces()).add(facts.grow(text))
        for name in _THOUGHT_LISTS:
            for block in map(plain, parts(delta.get(name))):
                self._block(facts, self._lists.setdefault(name, []), block)
        for name, value in _signed(facts, delta).items():
            self._signed[name] = _joined(self._signed.get(name), value)
        if self.place is None and (self._texts or self._lists or self._signed):
            self.place = facts.begin()

    @staticmethod
    def _block(facts: Facts, blocks: list[dict[str, Any]], block: Mapping[str, Any]) -> None:
        facts.grow(spelled(block))
        last = blocks[-1] if blocks else {}
        pieces = _PIECEWISE.intersection(block)
        # Every piece may have index 0; a signature is a block's last.
        same = last.get("type") == block.get("type") and not last.get("signature") and pieces
        if not same or (last.get("id") and block.get("id") and last["id"] != block["id"]):
            blocks.append(dict(block))
            return
        for name, value in block.items():
            if name in _PIECEWISE:
                last[name] = word(last.get(name)) + word(value)
            elif not empty(value, zero=False):
                last[name] = value

    def whole(self) -> dict[str, Any]:
        """All of it. Blocks say what the texts say; that it thought nothing is said by DeepSeek's models."""
        texts = {name: pieces.text for name, pieces in self._texts.items()}
        if texts.get("reasoning_content") or self._lists:
            texts.pop("reasoning", None)
        told = {**{name: text for name, text in texts.items() if text}, **self._lists, **self._signed}
        return told or {name: text for name, text in texts.items() if name == "reasoning_content"}


def _signed(facts: Facts, said: Mapping[str, Any]) -> dict[str, Any]:
    found = {name: said[name] for name in _SIGNED if not empty(plain(said.get(name)))}
    if found:
        facts.grow(spelled(found))
    return found


def _joined(before: Any, more: Any) -> Any:
    if not isinstance(before, Mapping) or not isinstance(more, Mapping):
        return before if empty(more, zero=False) else more
    return {**before, **{name: _joined(before.get(name), value) for name, value in more.items()}}


class Chat:
    """Puts down one stream."""

    def __init__(self, most: Most | None = None) -> None:
        self.facts = Facts(most=most or Most())
        self._latest: dict[int | None, Piece] = {}  # by index: the call that fragments without an id are of
        self._labelled: dict[str, Piece] = {}  # by id: the last call that has it
        self._places: dict[str, int | None] = {}  # by id: the index that call had
        self._begun: Counter[int | None] = Counter()  # by index: how many calls began there
        self._told: dict[Piece, dict[str, Any]] = {}
        self._thoughts = _Thoughts()

    def take(self, event: Mapping[str, Any]) -> None:
        """One chunk. TooLong."""
        facts = self.facts
        facts.event()
        facts.response = word(event.get("id")) or facts.response
        if not empty(event.get("error")):
            facts.failed = facts.failed or stream_error(event)
        self._used(plain(event.get("usage")))
        for choice in map(_choice, parts(event.get("choices"))):
            if choice is None:
                facts.faults.append("a part of it is none that is known")
            elif place(facts, choice.get("index")) not in (0, None):
                facts.faults.append("it is several answers")
            else:
                self._choice(choice)

    def _used(self, usage: Mapping[str, Any]) -> None:
        if empty(usage):
            return
        # What a later chunk leaves out stays as it was.
        self.facts.usage |= {name: value for name, value in usage.items() if not empty(value, zero=False)}
        self.facts.tokens = tokens_of(
            self.facts.usage,
            prompt="prompt_tokens",
            output="completion_tokens",
            inside="prompt_tokens_details",
            reasoning="completion_tokens_details",
        )

    def _choice(self, choice: Mapping[str, Any]) -> None:
        delta, stop = choice.get("delta"), stop_of(choice.get("finish_reason"))
        self._used(plain(choice.get("usage")))
        if not empty(delta, zero=False) and not isinstance(delta, Mapping):
            self.facts.faults.append("a part of it is none that is known")
        self._delta(plain(delta))
        if stop:
            self._end(stop)
        elif not isinstance(delta, Mapping) and not _beside(choice):
            self.facts.faults.append("a part of it is none that is known")

    def _delta(self, delta: Mapping[str, Any]) -> None:
        facts = self.facts
        if not empty(delta.get("refusal")):
            facts.refused = True
        if text := facts.grow(_content(delta.get("content"))):
            facts.text.append(text)
        if not empty(delta.get("function_call")):
            facts.faults.append("it calls a function in the way of before tools")
        self._thoughts.take(facts, delta)
        calls = delta.get("tool_calls")
        if not empty(calls, zero=False) and not isinstance(calls, list):
            calls = [calls]
        before = len(facts.calls), facts.size
        for one in parts(calls):
            if not isinstance(one, Mapping) and not empty(one, zero=False):
                facts.faults.append("a part of a call that is none that is known")
            self._fragment(plain(one))
        if facts.ended and (text or (len(facts.calls), facts.size) != before):
            facts.faults.append("it goes on after its end")

    def _fragment(self, one: Mapping[str, Any]) -> None:
        facts, function = self.facts, plain(one.get("function"))
        index, label = place(facts, one.get("index")), _label(one.get("id"))
        name, said = word(function.get("name")).strip(), function.get("arguments")
        kind, signed = one.get("type"), _signed(facts, one)
        if not empty(kind) and word(kind).strip().casefold() not in {"function", "null"}:
            facts.faults.append(f"a call of type {sanitize(kind, 40)!r}")
        if not (label or name or signed) and said in (None, ""):
            unknown = {key: value for key, value in one.items() if key not in _OF_CALL}
            unknown |= {key: value for key, value in function.items() if key not in _OF_FUNCTION}
            odd = not isinstance(one.get("function"), Mapping) and not empty(one.get("function"))
            if odd or not empty(unknown, zero=False):
                facts.faults.append("a part of a call that is none that is known")
            return
        piece = self._of(index, label, name)
        if piece is None:
            piece = Piece(whole=True)  # its end is the answer's
            self._told[piece] = facts.begin(piece, index)
            self._begun[index] += 1
        if self._begun[index] > 1 and not label:
            facts.unsure = True
        if label and not piece.label:
            piece.label = label
            self._labelled[label], self._places[label] = piece, index
        piece.name = piece.name or name
        piece.add(facts.grow(spelled(said)))
        if signed:
            told = self._told[piece]
            told["beside"] = _joined(told.get("beside"), signed)
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
        facts, means = self.facts, means_of(stop)
        whole = isinstance(means, Means) and isinstance(facts.means, Means)
        if facts.ended and facts.means != means and not whole:
            facts.faults.append("it ends twice")
        facts.ended, facts.stop, facts.means = True, stop, means
        if self._thoughts.place is not None and (thoughts := self._thoughts.whole()):
            self._thoughts.place["opaque"] = thoughts


def _choice(given: Any) -> Mapping[str, Any] | None:
    return given if isinstance(given, Mapping) else {} if empty(given, zero=False) else None


def _label(given: Any) -> str:
    """An id, which some servers send as a number."""
    return str(given) if type(given) is int else word(given).strip()


def _content(given: Any) -> str:
    """The text of a content, which may come in parts."""
    if isinstance(given, list):
        return "".join(word(part.get("text")) for part in map(plain, given) if part.get("type") == "text")
    return word(given)
