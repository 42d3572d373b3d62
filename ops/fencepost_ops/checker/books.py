"""The services' own books, as the checker reads them: what was really asked, and what really happened."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

from fencepost_ops.sandbox.book import Book

if TYPE_CHECKING:
    from fencepost_ops.checker.ledgered import Ledgered

SANDBOX_SERVICES = ("wallet", "inventory", "shipping", "mail", "pages")


@dataclass(frozen=True, slots=True)
class Origin:
    """Which attempt a request says it comes from, by its `Fencepost-` headers; None where it does not say."""

    call: UUID | None = None
    attempt: int | None = None
    fence: int | None = None


@dataclass(frozen=True, slots=True)
class BookEffect:
    """One effect that happened. `digest` is the SHA-256 (hex) of the body that asked for it.

    `key` in whatever form the service knows it. Empty `receipt` and `digest`: its book does not say. Of a
    service that does not keep keys, `receipt` says which call it belongs to, else `reference`: a value that
    is among the arguments of one call only (of `tool`, where named).
    """

    service: str
    receipt: str
    key: str | None
    digest: str
    at: datetime
    origin: Origin
    reference: str | None = None
    tool: str | None = None

    @property
    def called(self) -> str:
        """What its service calls it, as far as its book says."""
        return self.receipt or (f"of {self.reference}" if self.reference else f"at {self.at.isoformat()}")

    @property
    def named(self) -> str:
        """How a sentence names it."""
        return f"{self.service}'s effect {self.called}"


@dataclass(frozen=True, slots=True)
class BookRequest:
    """One request for an effect that arrived, answered or not. `id` names it within its service."""

    service: str
    id: str
    key: str | None
    at: datetime
    status: int | None
    origin: Origin

    @property
    def named(self) -> str:
        """How a sentence names it."""
        return f"{self.service}'s request {self.id}"


class BookReader(Protocol):
    """Books of services that only this ledger's runs use: every effect in them must be explained.

    Implementations read what the service itself keeps, never the ledger. What is in a book stays in it.
    """

    def services(self) -> Sequence[str]:
        """The services that have a book, by the name of their dependency, or by `name/account`."""
        ...

    def effects(self, service: str) -> Sequence[BookEffect]:
        """Every effect, undone ones too, in order."""
        ...

    def requests(self, service: str) -> Sequence[BookRequest]:
        """Every request for an effect, in order of arrival; no lookups. None where the book keeps none."""
        ...


class SandboxBooks:
    """The book of the sandbox, also while it runs, after it was killed, or when it is gone."""

    def __init__(self, book: Book) -> None:
        self._book = book

    def services(self) -> Sequence[str]:
        """The sandbox's services."""
        return SANDBOX_SERVICES

    def effects(self, service: str) -> Sequence[BookEffect]:
        """See BookReader."""
        return [read_effect(effect.wire()) for effect in self._book.effects(service)]

    def requests(self, service: str) -> Sequence[BookRequest]:
        """See BookReader."""
        return [read_request(request.wire()) for request in self._book.requests(service)]


def read_effect(wire: Mapping[str, Any]) -> BookEffect:
    """An effect as the sandbox tells it. Raises KeyError for what is none."""
    where = (wire["service"], wire["id"], wire["key"], wire["digest"])
    return BookEffect(*where, _time(wire["at"]), origin(wire["headers"]))


def read_request(wire: Mapping[str, Any]) -> BookRequest:
    """A request as the sandbox tells it. Raises KeyError for what is none."""
    where = (wire["service"], str(wire["seq"]), wire["key"])
    return BookRequest(*where, _time(wire["at"]), wire["status"], origin(wire["headers"]))


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def origin(headers: Mapping[str, str]) -> Origin:
    """What the headers (names in lower case) say; a value that cannot be read is taken for none."""
    return Origin(
        call=_read(UUID, headers.get("fencepost-call")),
        attempt=_read(int, headers.get("fencepost-attempt")),
        fence=_read(int, headers.get("fencepost-fence")),
    )


def _read(kind: Any, text: str | None) -> Any:
    try:
        return None if text is None else kind(text)
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class Books:
    """All books as read at one time. Empty where there is no reader: then nothing outside can be checked."""

    services: frozenset[str]
    effects: tuple[BookEffect, ...]
    requests: tuple[BookRequest, ...]


def read_books(reader: BookReader | None) -> Books:
    """Everything the reader's books hold now."""
    if reader is None:
        return Books(frozenset(), (), ())
    services = list(reader.services())
    return Books(
        frozenset(services),
        tuple(effect for service in services for effect in reader.effects(service)),
        tuple(request for service in services for request in reader.requests(service)),
    )


class Sides:
    """The books before the ledger was read, and as they are now, given out a group of calls at a time.

    Effects go with the call whose key they have, requests with the one they say they are of; what no group
    was given is left.
    """

    def __init__(self, before: Books, now: Books) -> None:
        self.before = before
        self.services = now.services
        self._before = _by(before.effects, lambda effect: effect.key)
        self._now = _by(now.effects, lambda effect: effect.key)
        self._requests = _by(before.requests, lambda request: request.origin.call)

    def of(self, ledger: Ledgered) -> tuple[Books, Books]:
        """What there is of these keys and calls: before, and now. It is given once."""
        requests = [one for call in ledger.calls for one in self._requests.pop(call, ())]
        found = [
            tuple(effect for key in ledger.of_key for effect in book.pop(key, ()))
            for book in (self._before, self._now)
        ]
        return (
            Books(self.before.services, found[0], tuple(requests)),
            Books(self.services, found[1], ()),
        )

    def left(self) -> tuple[Books, Books]:
        """What nobody was given."""
        requests = tuple(one for some in self._requests.values() for one in some)
        before = tuple(one for some in self._before.values() for one in some)
        now = tuple(one for some in self._now.values() for one in some)
        return Books(self.before.services, before, requests), Books(self.services, now, ())


def _by(found: Iterable[Any], name: Callable[[Any], Hashable]) -> dict[Any, list[Any]]:
    kept: dict[Any, list[Any]] = defaultdict(list)
    for one in found:
        kept[name(one)].append(one)
    return kept
