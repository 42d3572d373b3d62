"""What a model's answer comes to: one closed mapping for all wires. PURE.

A collector per wire (`responses.py`, `chat.py`, `messages.py`) puts down what the stream said; `settle` alone
judges it. Calls are taken only from an answer whose terminal event arrived, whose stop reason says that it
proposes calls, whose every call came to its own end, and whose arguments are one strict JSON object as the
raw text stands: no duplicate keys, no NaN, nothing behind it. Anything else is no turn, and no part of it is
used. A call is known by its place in the answer; the provider's ids are labels, whatever they are.
"""

from __future__ import annotations

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
    NORMAL = "normal"
    """It said all it had to say."""
    EITHER = "either"
    """It is complete, whatever it holds."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A call as the model wrote it: `arguments` is its own text, `label` the provider's id, if any."""

    name: str
    arguments: str
    label: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer, judged. `tokens` None: the provider did not say, or nothing one can read.

    `parts` are what it said in its own order, where some of that is opaque: texts (`text`), calls by their
    numbers (`call`), and what goes back to the same model as it is and where it stood (`opaque`). `usage` is
    the provider's own account.
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
    """What a stream has said so far; the collectors write it, `settle` reads it."""

    ended: bool = False
    stop: str = ""
    means: Means | Ending | None = None
    calls: list[Piece] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    refused: bool = False
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
    calls = tuple(Wanted(p.name, p.arguments, p.label) for p in facts.calls)
    return Answer(
        ending,
        calls if taken else (),
        "".join(facts.text) if ending in TURNS else "",
        facts.stop,
        why,
        code,
        facts.tokens,
        facts.usage,
        _parts(facts) if ending in TURNS else (),
        facts.response,
    )


def _parts(facts: Facts) -> tuple[Mapping[str, Any], ...]:
    parts = tuple(part for part in facts.parts if part)
    return parts if any("opaque" in part for part in parts) else ()


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
    if facts.calls and means is Means.NORMAL:
        return f"it holds calls, but the stop reason {facts.stop} does not say that it proposes any"
    if not facts.calls and means is Means.CALLS:
        return f"the stop reason {facts.stop} says that it proposes calls, but it holds none"
    return next((fault for n, piece in enumerate(facts.calls) if (fault := _unfit(n, piece))), None)


def _unfit(ordinal: int, piece: Piece) -> str | None:
    where = f"call {ordinal + 1}"
    if not piece.whole:
        return f"{where} did not come to its end"
    if not piece.name:
        return f"{where} has no name"
    try:
        value = parse(piece.arguments)
    except BadJson as error:
        return f"the arguments of {where} are no JSON: {error}"
    return None if isinstance(value, dict) else f"the arguments of {where} are no JSON object"


def count(value: object) -> int:
    """A number of tokens, 0 where none is told; ValueError for what is no such number."""
    if value is None:
        return 0
    if type(value) is not int or not 0 <= value < 2**31:
        raise ValueError(f"{value!r} is no number of tokens")
    return value


def tokens_of(
    usage: Mapping[str, Any], *, total: str, output: str, inside: str, reasoning: str
) -> Tokens | None:
    """The tokens of an OpenAI wire, whose total of the input includes what a cache held. None: unreadable."""
    try:
        if usage.get(total) is None or usage.get(output) is None:
            return None
        details, made = usage.get(inside) or {}, usage.get(reasoning) or {}
        read, written = count(details.get("cached_tokens")), count(details.get("cache_write_tokens"))
        plain = count(usage[total]) - read - written
        told = Tokens(plain, read, written, count(usage[output]), count(made.get("reasoning_tokens")))
    except (ValueError, AttributeError):
        return None
    return told if plain >= 0 and told.reasoning <= told.output else None


def place(facts: Facts, index: object) -> int | None:
    """A place in an answer; anything but a number or none is none, and a fault."""
    if index is None or type(index) is int:
        return index
    facts.faults.append(f"{sanitize(index, 40)!r} is no place in an answer")
    return None


def plain(value: object) -> Mapping[str, Any]:
    """A part of an event as a mapping; an empty one for what is none."""
    return value if isinstance(value, Mapping) else {}


def parts(value: object) -> Sequence[Any]:
    """A part of an event as a list; an empty one for what is none."""
    return value if isinstance(value, list) else []


def word(value: object) -> str:
    """A part of an event as text; empty for what is none."""
    return value if isinstance(value, str) else ""
