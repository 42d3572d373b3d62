"""One turn of a scripted model, before it has a wire: what it says, what it calls, why it stopped.

Pure. A reply is spoiled here where a fault changes what is said; where it changes how that is put on a wire,
the wires read it from `Form`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

TOOL, END, LENGTH = "tool", "end", "length"  # why it stopped, in no wire's words
REFUSAL, FILTER, PAUSE, CONTEXT = "refusal", "filter", "pause", "context"
UNKNOWN = "brand_new_reason"
FRAGMENT_CHARS: Final = 16


@dataclass(frozen=True)
class Call:
    """One call a model makes; `arguments` is the text as it would write it."""

    id: str
    name: str
    arguments: str
    caller: str | None = None


@dataclass(frozen=True)
class Usage:
    """Tokens as the provider counts them; `input` holds the cached ones."""

    input: int = 10
    output: int = 10
    cached: int = 0
    written: int = 0
    reasoning: int = 0


@dataclass(frozen=True)
class Form:
    """How a reply is put on its wire, where that is not as usual.

    `indexes`: `usual`, all `zero`, `missing`, `interleaved` (fragments of all calls by turns), `mingled` (the
    same under one index), or `late` (a call's id comes after its arguments). `cut`: at which character of the
    last call's arguments one fragment ends for certain.
    """

    indexes: str = "usual"
    cut: int | None = None

    @property
    def by_turns(self) -> bool:
        """Whether the fragments of all calls come by turns."""
        return self.indexes in ("interleaved", "mingled")


@dataclass(frozen=True)
class Reply:
    """What a model answers. `usage` None: the provider does not say. `hosted`: it acted by itself, too.

    `thoughts`: what it thinks before each thing that it says and calls, empty where it does not.
    """

    id: str
    model: str
    text: str = ""
    calls: tuple[Call, ...] = ()
    refusal: str = ""
    stop: str = END
    usage: Usage | None = field(default_factory=Usage)
    hosted: bool = False
    form: Form = field(default_factory=Form)
    thoughts: tuple[str, ...] = ()

    def only(self, call: Call) -> Reply:
        """A reply that is this call of it, and nothing else."""
        form = self.form if call is self.calls[-1] else Form()
        return replace(self, text="", refusal="", calls=(call,), hosted=False, form=form, thoughts=())

    def with_last_arguments(self, text: str) -> Reply:
        """The same with other arguments of the last call."""
        if not self.calls:
            return self
        last = replace(self.calls[-1], arguments=text)
        return replace(self, calls=(*self.calls[:-1], last))


def fragments(text: str, cut: int | None = None) -> list[str]:
    """A text as a stream sends it, in pieces of at most FRAGMENT_CHARS; one of them ends at `cut`."""
    ends = [*range(FRAGMENT_CHARS, len(text), FRAGMENT_CHARS), len(text)]
    if cut is not None and 0 < cut < len(text):
        ends = sorted({*ends, cut})
    starts = [0, *ends[:-1]]
    return [text[start:end] for start, end in zip(starts, ends, strict=True)] if text else []


@dataclass(frozen=True, slots=True)
class Piece:
    """Some bytes of a stream; `place` says what they are: see PLACES."""

    data: bytes
    place: str = "middle"


PLACES: Final = ("start", "middle", "arguments", "cut", "block_end", "stop", "end")
"""What a piece of a stream is: its first event, anything between, a fragment of arguments, the fragment that
ends where a fault cuts, the end of a block, the stop reason, and what ends the stream."""


def argument_pieces(pieces: Sequence[str], cut: int | None) -> list[str]:
    """The place of each fragment of one call's arguments."""
    places, reached = [], 0
    for piece in pieces:
        reached += len(piece)
        places.append("cut" if reached == cut else "arguments")
    return places
