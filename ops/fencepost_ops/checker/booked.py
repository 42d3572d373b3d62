"""The books that an application reads of its dependencies (`@dependency.book`), as the checker reads them.

They say less than the sandbox's: which attempt asked for an effect is not known, and requests are not kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from fencepost.books import BookedEffect
from fencepost.books import BookReader as Read
from fencepost_ops.checker.books import BookEffect, BookReader, BookRequest, Origin


class BookedBooks:
    """Readers by the scope of their dependency, each asked for everything from `since` to before `until`.

    Every effect of the period must be explained by the ledger that it is held against, as `fencepost audit`
    asks too. Raises whatever a reader raises.
    """

    def __init__(self, readers: Mapping[str, Read], since: datetime, until: datetime) -> None:
        self._readers = readers
        self._since = since
        self._until = until

    def services(self) -> Sequence[str]:
        """The dependencies that have a reader, as `name/account`."""
        return tuple(self._readers)

    def effects(self, service: str) -> Sequence[BookEffect]:
        """See BookReader."""
        found = self._readers[service](self._since, self._until)
        return [booked_effect(service, effect) for effect in found]

    def requests(self, service: str) -> Sequence[BookRequest]:  # noqa: ARG002 - the protocol's
        """None: an effect is all that such a book has."""
        return ()


def booked_effect(service: str, effect: BookedEffect) -> BookEffect:
    """The same effect for the checker; what its arguments were, `fencepost audit` compares."""
    told = (effect.receipt or "", effect.key, effect.digest or "", effect.at)
    return BookEffect(service, *told, Origin(), effect.reference, effect.tool)


class AllBooks:
    """Several readers as one. A dependency of which several have a book is read from the first of them."""

    def __init__(self, *readers: BookReader) -> None:
        self._of: dict[str, BookReader] = {}
        for reader in readers:
            for service in reader.services():
                if service not in self._of and service.partition("/")[0] not in self._of:
                    self._of[service] = reader

    def services(self) -> Sequence[str]:
        """All their services."""
        return tuple(self._of)

    def effects(self, service: str) -> Sequence[BookEffect]:
        """See BookReader."""
        return self._of[service].effects(service)

    def requests(self, service: str) -> Sequence[BookRequest]:
        """See BookReader."""
        return self._of[service].requests(service)
