"""What a model's answer comes to: one closed mapping for all wires. PURE.

A collector per wire (`responses.py`, `chat.py`, `messages.py`) puts down what the stream said; `settle` alone
judges it. Calls are taken only from an answer whose terminal event arrived, whose stop reason is a whole
answer's, whose every call came to its own end, and whose arguments do not break off as the raw text stands.
Anything else is no turn, and no part of it is used. A field that is empty says as much as one that is absent.
Arguments that are whole, and wrong all the same, are taken as they are written: step 1 refuses that call and
tells the planner. Where it is not sure which call a part is of, all arguments have to be one strict JSON
object, or it is no turn. A call is known by its place in the answer; the provider's ids are labels.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final, Protocol

from fencepost.canonical import sanitize
from fencepost.models import Tokens
from fencepost.strictjson import BadJson, parse

MAX_CHARS: Final = 4 * 1024 * 1024
"""Of one answer, all its texts together; a longer one is malformed."""
CHARS_PER_TOKEN: Final = 32
"""More than any text has, but for runs of blanks."""
EVENTS_PER_TOKEN: Final = 4
"""Providers send one event for a token or more of them; some send one for each character."""
BESIDE: Final = 64 * 1024
"""Characters, and events, that an answer may have whatever its limit: its frame, signatures, pings."""
WHY_CHARS: Final = 300
LABEL_CHARS: Final = 200
STOP_CHARS: Final = 100


class Ending(StrEnum):
    """What an answer comes to. The values of those that are no turn are codes of ModelOutcomeUnknown."""

    PROPOSED = "proposed"
    """Calls, all whole."""
    CLAIMED = "claimed"
    """Text without calls and a normal stop: the model says it is done. No more than a claim."""
    EMPTY = "empty"
    """A normal stop, and nothing said."""
    REFUSED = "model_refused"
    """The model will not."""
    CONTENT_FILTER = "content_filter"
    """The provider will not let it."""
    TRUNCATED = "truncated"
    """The limit of its output cut it off."""
    CONTEXT_EXCEEDED = "context_exceeded"
    """It was told more than it takes."""
    PAUSED = "paused"
    """The provider wants to be asked again."""
    UNKNOWN_STOP = "unknown_stop"
    """It ended for a reason nobody here knows."""
    HOSTED = "hosted_tool"
    """The provider acted, or somebody else than the model proposed: outside of all authority."""
    MALFORMED = "malformed_turn"
    """It contradicts itself, or a call in it is not whole."""
    LOST = "response_lost"
    """The stream ended without saying that the answer has."""
    FAILED = "provider_error"
    """The provider said that it failed; `Answer.code` says how."""


TURNS: Final = frozenset({Ending.PROPOSED, Ending.CLAIMED, Ending.EMPTY})
"""What is recorded as a turn; the rest is no answer that anybody can use."""


class Means(StrEnum):
    """What a wire's stop reason says, where it is no ending by itself."""

    CALLS = "calls"
    """It stopped to have calls made."""
    EITHER = "either"
    """It is complete, whatever it holds: many servers have one word for both."""


def _of(means: Means | Ending, *words: str) -> dict[str, Means | Ending]:
    return dict.fromkeys(words, means)


STOPS: Final[Mapping[str, Means | Ending]] = {
    **_of(Means.CALLS, "tool_calls", "tool_call", "tool_use", "function_call"),
    **_of(Means.EITHER, "stop", "end_turn", "eos", "eos_token", "stop_sequence"),
    **_of(Ending.TRUNCATED, "length", "max_tokens", "max_output_tokens", "model_length"),
    **_of(Ending.CONTEXT_EXCEEDED, "model_context_window_exceeded"),
    **_of(Ending.CONTENT_FILTER, "content_filter", "safety"),
    **_of(Ending.REFUSED, "refusal"),
    **_of(Ending.PAUSED, "pause_turn"),
}
"""Why an answer of Chat or of Messages stopped, in small letters: gateways use one's words on the other."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A call as the model wrote it: `arguments` is its own text or empty, `label` the provider's id."""

    name: str
    arguments: str
    label: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer, judged. `tokens` None: the provider did not say, or nothing one can read.

    `parts` are what it said in its own order, where some of that is opaque: texts (`text`), calls by their
    numbers (`call`), and what goes back to the same model as it is, where it stood (`opaque`) or with its
    call (`beside`). Of a paused answer they are all it said. `usage` is the provider's own account.
    """

    ending: Ending
    calls: tuple[Wanted, ...] = ()
    text: str = ""
    stop: str = ""
    why: str = ""
    code: str = ""
    tokens: Tokens | None = None
    usage: Mapping[str, Any] = field(default_factory=dict)
    parts: tuple[Mapping[str, Any], ...] = ()
    response: str = ""


class TooLong(ValueError):
    """An answer is longer than one of so many tokens can be."""


@dataclass(frozen=True, slots=True)
class Most:
    """How much one answer may be: characters of all its texts together, and events."""

    chars: int = MAX_CHARS
    events: int = MAX_CHARS

    @classmethod
    def of(cls, tokens: int) -> Most:
        """Of an answer whose output is limited to so many tokens."""
        chars = min(MAX_CHARS, BESIDE + CHARS_PER_TOKEN * tokens)
        return cls(chars, BESIDE + EVENTS_PER_TOKEN * tokens)


class Pieces:
    """A text while it arrives: its parts are joined when it is read, not with each that comes."""

    __slots__ = ("_parts",)

    def __init__(self, text: str = "") -> None:
        self._parts = [text] if text else []

    def add(self, text: str) -> None:
        """It goes on with this."""
        self._parts.append(text)

    @property
    def text(self) -> str:
        """All of it so far."""
        if len(self._parts) > 1:
            self._parts = ["".join(self._parts)]
        return self._parts[0] if self._parts else ""


class Piece:
    """A call while it arrives."""

    __slots__ = ("_arguments", "label", "name", "whole")

    def __init__(self, name: str = "", label: str = "", arguments: str = "", *, whole: bool = False) -> None:
        self.name = name
        self.label = label
        self.whole = whole
        self._arguments = Pieces(arguments)

    def add(self, text: str) -> None:
        """Its arguments go on with this."""
        self._arguments.add(text)

    @property
    def arguments(self) -> str:
        """Its arguments so far."""
        return self._arguments.text


@dataclass(slots=True)
class Facts:
    """What a stream has said so far; the collectors write it, `settle` reads it.

    `unsure`: of which call a part is, nothing but the order says.
    """

    ended: bool = False
    stop: str = ""
    means: Means | Ending | None = None
    calls: list[Piece] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    refused: bool = False
    unsure: bool = False
    hosted: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    failed: tuple[Ending, str, str] | None = None
    usage: dict[str, Any] = field(default_factory=dict)
    tokens: Tokens | None = None
    parts: list[dict[str, Any]] = field(default_factory=list)
    response: str = ""
    size: int = 0
    events: int = 0
    latest: int = 0
    most: Most = field(default_factory=Most)

    @property
    def told(self) -> bool:
        """Whether all that matters has been said: the answer has ended, or the provider has failed."""
        return self.ended or self.failed is not None

    def begin(self, piece: Piece | None = None, index: int | None = None) -> dict[str, Any]:
        """The place of a part that begins here: a call, or something that is put into it once it is whole."""
        place: dict[str, Any] = {}
        if index is not None and index < self.latest:  # calls are told apart, and ordered, by their places
            self.faults.append(f"part {index} begins after part {self.latest}")
        self.latest = max(self.latest, index or 0)
        if piece is not None:
            place["call"] = len(self.calls)
            self.calls.append(piece)
        self.parts.append(place)
        return place

    def grow(self, text: object) -> str:
        """The text, counted; nothing for what is none. TooLong."""
        said = text if isinstance(text, str) else ""
        self.size += len(said)
        if self.size > self.most.chars:
            raise TooLong(f"the answer is longer than {self.most.chars} characters")
        return said

    def event(self) -> None:
        """One more event has come. TooLong."""
        self.events += 1
        if self.events > self.most.events:
            raise TooLong(f"the answer has more than {self.most.events} events")


class Collector(Protocol):
    """Puts down one stream, event by event."""

    facts: Facts

    def take(self, event: Mapping[str, Any]) -> None:
        """One event of the stream, as plain values. TooLong."""
        ...


def settle(facts: Facts) -> Answer:
    """What the answer comes to; total. Its texts are as they came: `cut` it once nothing secret is in it."""
    ending, why, code = _ending(facts)
    taken = ending is Ending.PROPOSED
    calls = tuple(Wanted(p.name, written(p.arguments), p.label) for p in facts.calls)
    return Answer(
        ending,
        calls if taken else (),
        "".join(facts.text) if ending in TURNS else "",
        facts.stop,
        why,
        code,
        facts.tokens,
        facts.usage,
        _parts(facts, ending),
        facts.response,
    )


def _parts(facts: Facts, ending: Ending) -> tuple[Mapping[str, Any], ...]:
    parts = tuple(part for part in facts.parts if part)
    if ending is Ending.PAUSED:
        return () if facts.calls or facts.faults else parts
    told = ending in TURNS and any("opaque" in part or "beside" in part for part in parts)
    return parts if told else ()


def written(arguments: str) -> str:
    """Arguments as they stand, and an empty text for none: servers have several spellings of that."""
    return "" if arguments.strip() in {"", "null"} else arguments


def broken(facts: Facts, ending: Ending, why: str) -> Answer:
    """What an answer comes to that could not be read to its end: no turn, and what was said of it is kept."""
    if facts.hosted or facts.failed is not None:
        return settle(facts)
    told = Answer(ending, stop=facts.stop, why=why, tokens=facts.tokens, usage=facts.usage)
    return replace(told, response=facts.response)


def cut(answer: Answer) -> Answer:
    """The answer with what is told of it bounded and storable. Half a secret would be found by nobody."""
    return replace(
        answer,
        calls=tuple(replace(call, label=sanitize(call.label, LABEL_CHARS)) for call in answer.calls),
        stop=sanitize(answer.stop, STOP_CHARS),
        why=sanitize(answer.why, WHY_CHARS),
        response=sanitize(answer.response, LABEL_CHARS),
    )


def _ending(facts: Facts) -> tuple[Ending, str, str]:
    if facts.hosted:  # first: asking again would have it act again
        return Ending.HOSTED, f"the answer holds {facts.hosted[0]}", ""
    if facts.failed is not None:
        ending, code, why = facts.failed
        return ending, why, code
    if not facts.ended:
        return Ending.LOST, "the stream ended without the event that ends an answer", ""
    if facts.refused:
        return Ending.REFUSED, "the model refused to answer", ""
    if facts.means is None:
        return Ending.UNKNOWN_STOP, f"the stop reason {facts.stop!r} is not known", ""
    if isinstance(facts.means, Ending):
        return facts.means, f"the stop reason is {facts.stop}", ""
    if (fault := _fault(facts, facts.means)) is not None:
        return Ending.MALFORMED, fault, ""
    if facts.calls:
        return Ending.PROPOSED, "", ""
    return (Ending.CLAIMED if "".join(facts.text).strip() else Ending.EMPTY), "", ""


def _fault(facts: Facts, means: Means) -> str | None:
    if facts.faults:
        return facts.faults[0]
    if not facts.calls and means is Means.CALLS:
        return f"the stop reason {facts.stop} says that it proposes calls, but it holds none"
    unfit = (_unfit(n, piece, strict=facts.unsure) for n, piece in enumerate(facts.calls, 1))
    return next(filter(None, unfit), None)


def _unfit(number: int, piece: Piece, *, strict: bool) -> str | None:
    if not piece.whole:
        return f"call {number} did not come to its end"
    if not piece.name:
        return f"call {number} has no name"
    if not strict:
        return f"the arguments of call {number} break off" if _breaks_off(piece.arguments) else None
    try:
        value = parse(piece.arguments)
    except BadJson as error:
        return f"the arguments of call {number} may be of another: {error}"
    return None if isinstance(value, dict) else f"the arguments of call {number} are no JSON object"


_CLOSED: Final = re.compile(r'"(?:[^"\\]|\\.)*+"', re.DOTALL)


def _breaks_off(text: str) -> bool:
    """Whether a text or an object in it has no end: more was to come, whatever the stop reason says."""
    outside = _CLOSED.sub("", text)
    opened = outside.count("{") + outside.count("["), outside.count("}") + outside.count("]")
    return '"' in outside or opened[0] > opened[1]


def count(value: object) -> int:
    """A number of tokens, rounded up, 0 where none is told; ValueError for what is no such number."""
    if empty(value):
        return 0
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 10:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**31:
        raise ValueError(f"{value!r} is no number of tokens")
    return math.ceil(value)


def counted(usage: Mapping[str, Any], name: str) -> int | None:
    """A count; None where it is not told, or as none."""
    try:
        return None if empty(usage.get(name), zero=False) else count(usage[name])
    except ValueError:
        return None


def tokens_of(
    usage: Mapping[str, Any], *, prompt: str, output: str, inside: str, reasoning: str
) -> Tokens | None:
    """The tokens of an OpenAI wire, whose count of the input includes what a cache held. None: unreadable.

    Servers disagree on what includes what. Whatever is told beside what should hold it is charged as well,
    and a total that is more than its parts as output, which is the dearer: rather too much than too little.
    """
    read_in, made, total = counted(usage, prompt), counted(usage, output), counted(usage, "total_tokens")
    held, thought = plain(usage.get(inside)), counted(plain(usage.get(reasoning)), "reasoning_tokens") or 0
    if total is None and (read_in is None or made is None):
        return None
    if read_in is None:
        read_in = max(0, (total or 0) - made) if made is not None else 0
    if made is None:
        made = max(0, (total or 0) - read_in)
    if thought > made:
        made += thought
    read, wrote = counted(held, "cached_tokens") or 0, counted(held, "cache_write_tokens") or 0
    fresh = read_in if read + wrote > read_in else read_in - read - wrote
    made = max(made, (total or 0) - fresh - read - wrote)
    return Tokens(fresh, read, wrote, made, thought)


def place(facts: Facts, index: object) -> int | None:
    """A place in an answer, however its number is written; anything else is none, and a fault."""
    if empty(index, zero=False):
        return None
    if isinstance(index, str) and index.isascii() and index.isdigit() and len(index) <= 10:
        return int(index)
    if type(index) is int or (isinstance(index, float) and index.is_integer()):
        return int(index)
    facts.faults.append(f"{sanitize(index, 40)!r} is no place in an answer")
    return None


def empty(value: object, *, zero: bool = True) -> bool:
    """Whether it says nothing: null, blanks, what holds nothing but such; with `zero` also 0 and false."""
    if isinstance(value, str):
        return not value.strip()
    if isinstance(value, Mapping):
        return all(empty(one, zero=zero) for one in value.values())
    if isinstance(value, list):
        return all(empty(one, zero=zero) for one in value)
    return value is None or (zero and value in (0, False))


def plain(value: object) -> Mapping[str, Any]:
    """A part of an event as a mapping; an empty one for what is none."""
    return value if isinstance(value, Mapping) else {}


def parts(value: object) -> Sequence[Any]:
    """A part of an event as a list; an empty one for what is none."""
    return value if isinstance(value, list) else []


def word(value: object) -> str:
    """A part of an event as text; empty for what is none."""
    return value if isinstance(value, str) else ""


def stop_of(value: object) -> str:
    """A stop reason as it was told; empty where none is told yet."""
    said = word(value).strip()
    return "" if said.casefold() in {"null", "none"} else said


def means_of(stop: str) -> Means | Ending | None:
    """What a stop reason of Chat or of Messages says; None for one that nobody here knows."""
    return STOPS.get(stop.casefold())


def spelled(arguments: object) -> str:
    """Arguments as text, also of servers that send the value itself."""
    return arguments if isinstance(arguments, str) else "" if arguments is None else json.dumps(arguments)
