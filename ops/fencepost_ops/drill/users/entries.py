"""A user's own book, in whatever form it is: one entry is one effect that really happened."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from fencepost.canonical import sanitize
from fencepost.errors import UsageError

Book = Callable[[], Any] | Iterable[Any]
"""A callable that gives the effects there are (of two parameters: from one moment to before another, as
`Dependency.book`), the list itself, a mapping of keys to effects, or a callable that gives how
many there are. It only grows: an undo takes nothing out of it."""

_SHOWN_CHARS: Final = 300
_EVER: Final = (datetime(1970, 1, 1, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC))


@dataclass(frozen=True, slots=True)
class Entry:
    """One effect, as far as the book tells."""

    key: str | None
    receipt: str | None
    text: str
    instead: str | None = None
    """Which entry is no longer in the book since this one is."""

    @property
    def named(self) -> str:
        """How a sentence names it."""
        name = f"receipt {self.receipt}" if self.receipt else self.text
        return name if self.instead is None else f"{name} (in the book in the place of {self.instead})"

    @property
    def known_by(self) -> tuple[str | None, str]:
        """A receipt names one effect, whatever else its entry says by now; without one, all it says does."""
        return self.key, self.receipt or self.text


def read_entries(book: Book, key: Callable[[Any], str | None] | None) -> list[Entry]:
    """All effects in a book, oldest first. UsageError for a book that is none; what the book raises."""
    found = book(*_EVER[: _parameters(book)]) if callable(book) else book
    if isinstance(found, int) and not isinstance(found, bool):
        return [Entry(None, None, f"number {n + 1}") for n in range(found)]
    if isinstance(found, Mapping):
        return [_named(name, one, key) for name, one in found.items()]
    if not isinstance(found, Iterable) or isinstance(found, str | bytes):
        raise UsageError(f"book= gives a {type(found).__name__}; it has to give the list of effects")
    return [_entry(one, key) for one in found]


def grown(before: Sequence[Entry], now: Sequence[Entry]) -> tuple[list[Entry], list[Entry]]:
    """What is new in a book since it was read before, and what is in it no more.

    An entry in another's place is new. Entries that say the same of all there is to say are one only where
    there is one of them: a book that overwrites an entry with an equal one hides an effect.
    """
    fresh, gone = _less(now, before), _less(before, now)
    told = [replace(one, instead=other.named) for one, other in zip(fresh, gone, strict=False)]
    return [*told, *fresh[len(told) :]], gone


def _less(some: Sequence[Entry], others: Sequence[Entry]) -> list[Entry]:
    left, found = Counter(one.known_by for one in others), []
    for one in some:
        if left[one.known_by] > 0:
            left[one.known_by] -= 1
        else:
            found.append(one)
    return found


def _named(name: Any, one: Any, key: Callable[[Any], str | None] | None) -> Entry:
    entry = _entry(one, key)
    receipt = entry.receipt or (one if isinstance(one, str) else None)
    return Entry(entry.key or str(name), receipt, entry.text)


def _parameters(book: Callable[..., Any]) -> int:
    try:
        wanted = [
            one
            for one in inspect.signature(book).parameters.values()
            if one.default is one.empty and one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
        ]
    except (TypeError, ValueError):
        return 0
    if len(wanted) not in (0, 2):
        raise UsageError(f"book= takes no argument, or from when and until when; it takes {len(wanted)}")
    return len(wanted)


def _entry(one: Any, key: Callable[[Any], str | None] | None) -> Entry:
    told = key(one) if key is not None else _field(one, ("key", "idempotency_key"))
    return Entry(told, _field(one, ("receipt", "id")), sanitize(repr(one), _SHOWN_CHARS))


def _field(one: Any, names: Sequence[str]) -> str | None:
    for name in names:
        value = one.get(name) if isinstance(one, Mapping) else getattr(one, name, None)
        if isinstance(value, str | int) and not isinstance(value, bool):
            return str(value)
    return None
