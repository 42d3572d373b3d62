"""A test's own world in a history: its fake made new, who answers where, its wires, its book."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from fencepost.app import App
from fencepost.errors import UsageError
from fencepost.tools import Tool
from fencepost_ops.drill.users import application
from fencepost_ops.drill.users.downstream import Downstream, Service, elsewhere, is_loopback
from fencepost_ops.drill.users.entries import Book, Entry, read_entries
from fencepost_ops.drill.virtual import VirtualClock

_RESETS: Final = ("reset", "clear")
_ATTEMPT: Final = timedelta(seconds=10)

Lines = Callable[[Callable[..., Any], Callable[[str], BaseException]], Callable[..., Any]]
"""Makes a wire of a function; what is raised for silence is made by the second."""


@dataclass
class Given:
    """What a test says of its own world."""

    app: App
    tool: Tool | None
    book: Book | None
    key: Callable[[Any], str | None] | None
    service: object
    fresh: Callable[[], object] | None
    through: Sequence[str | tuple[object, str]]
    lost: Callable[[str], BaseException]
    principal: str


@contextmanager
def world(given: Given, history: str, clock: VirtualClock, line: Lines) -> Iterator[Downstream]:
    """The test's fake, made new, with its wires in place."""
    made = _refreshed(given)
    service = given.service if given.service is not None else made
    entries = functools.partial(_entries, given, made)
    if before := entries():
        raise UsageError(
            f"before history {history} began, the book already held {len(before)} effect(s): "
            f"{before[0].text}. Give fresh=, which empties the fake (fresh=my_fake.reset) or makes a new one"
        )
    tool = given.tool
    seconds = tool.dependency.per_attempt if tool is not None else _ATTEMPT
    here = Downstream(clock, _places(given, service), entries, seconds)
    with ExitStack() as stack:
        for one in given.through:
            owner, name = (service, one) if isinstance(one, str) else one
            stack.enter_context(_wired(line, owner, name, given.lost))
        yield here


@contextmanager
def _wired(line: Lines, owner: object, name: str, lost: Callable[[str], BaseException]) -> Iterator[None]:
    function = getattr(owner, name, None)
    if not callable(function):
        raise UsageError(f"through= names {name!r}, which is no function of {owner!r}")
    own = name in vars(owner)
    before = vars(owner).get(name)
    setattr(owner, name, line(function, lost))
    try:
        yield
    finally:
        if own:
            setattr(owner, name, before)
        else:
            delattr(owner, name)


def _refreshed(given: Given) -> object:
    if given.fresh is not None:
        return given.fresh()
    for one in (
        given.service,
        getattr(given.service, "__self__", None),
        getattr(given.book, "__self__", None),
    ):
        reset = next((r for n in _RESETS if callable(r := getattr(one, n, None))), None)
        if one is not None and not isinstance(one, Mapping) and reset is not None:
            reset()
            break
    return None


def _entries(given: Given, made: object) -> list[Entry]:
    books = given.app.books
    if given.tool is not None:
        registered = books.get(given.tool.scope)
    else:
        registered = next(iter(books.values())) if len(books) == 1 else None
    book: Any = given.book
    if book is None:
        book = next(
            (b for b in (_attribute(made), _attribute(given.service), registered) if b is not None), None
        )
    if book is None:
        raise UsageError(
            "say who knows what really happened: book=, a callable that gives all effects there are"
        )
    return read_entries(book, given.key)


def _attribute(one: object) -> Any:
    return None if one is None or isinstance(one, Mapping) else getattr(one, "book", None)


def _places(given: Given, service: object) -> list[tuple[str, Service]]:
    tool = given.tool
    if isinstance(service, Mapping):
        known = {name: spec for spec in given.app.dependencies for name in (spec.scope, spec.name)}
        if strange := sorted(set(service) - set(known)):
            raise UsageError(f"service= names {strange[0]}, which is no dependency of {given.app.name}")
        return [(application.base_url(known[name]), one) for name, one in service.items()]
    if tool is None:
        if service is not None:
            raise UsageError(
                "with planner= say which service answers for which dependency: service={'name': fake}"
            )
        return []
    if tool.kind == "python":
        return []
    application.check_headers(tool.dependency)
    base = application.base_url(tool.dependency)
    if service is None and not is_loopback(base):
        raise UsageError(elsewhere(base))
    if service is None:
        return []
    if not callable(service):
        raise UsageError("service= has to be callable: it takes a request and answers (status, value)")
    return [(base, service)]
