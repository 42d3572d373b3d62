"""A downstream's side of an audit: the application's own reader, or the book of a sandbox."""

from __future__ import annotations

import http.client
import json
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from fencepost.app import App
from fencepost.books import BookedEffect, BookReader
from fencepost.errors import FencepostError, Unreachable, UsageError
from fencepost.settings import redact
from fencepost_ops.checker.books import SANDBOX_SERVICES
from fencepost_ops.sandbox.book import Book

_PAGE: Final = 1000
_PATIENCE_S: Final = 10.0


def scope_of(name: str, app: App | None) -> str:
    """The scope that an operator means by `wallet` or `wallet/account`. UsageError where several are meant,
    or the application has none of that name.
    """
    if app is None:
        return name if "/" in name else f"{name}/default"
    known = [spec for spec in app.dependencies if name in {spec.scope, spec.name}]
    if not known:
        names = ", ".join(spec.scope for spec in app.dependencies) or "none at all"
        raise UsageError(f"the application has no dependency {name}; known: {names}")
    if len(known) > 1:
        raise UsageError(f"{name} has several accounts: name one of {', '.join(s.scope for s in known)}")
    return known[0].scope


def reader_of(
    scope: str, app: App | None, book: str | None, service: str | None, sandbox: str | None = None
) -> BookReader:
    """Who reads the book of this dependency: a named sandbox's, else the application's own, else that of the
    `sandbox` the fleet talks to. UsageError, saying what to do, if nobody can.
    """
    name = service or scope.partition("/")[0]
    if book is None and sandbox and name in SANDBOX_SERVICES and (app is None or scope not in app.books):
        book = sandbox
    if book is not None:
        if name not in SANDBOX_SERVICES:
            raise UsageError(
                f"a sandbox keeps no book of {name}; name one of its services with --service: "
                f"{', '.join(SANDBOX_SERVICES)}"
            )
        return _sandbox(book, name)
    if app is not None and scope in app.books:
        return _guarded(scope, app.books[scope])
    raise UsageError(
        f"nobody reads the book of {scope}: declare @dependency.book in the application and name it with "
        "--app, or give --book with a sandbox's address or data folder"
    )


def _guarded(scope: str, reader: BookReader) -> BookReader:
    """The application's reader, its failure one sentence and never half a book taken for a whole one."""

    def read(since: datetime, until: datetime) -> Iterator[BookedEffect]:
        try:
            for effect in reader(since, until):
                if not isinstance(effect, BookedEffect):
                    raise UsageError(f"the book of {scope} yields a {type(effect).__name__}, no BookedEffect")
                if since <= effect.at < until:
                    yield effect
        except FencepostError:
            raise
        except Exception as error:
            what = redact(f"{type(error).__name__}: {error}".splitlines()[0])
            raise Unreachable(f"the book of {scope} cannot be read: {what}") from error

    return read


def _sandbox(place: str, service: str) -> BookReader:
    page = _remote(place, service) if place.startswith(("http://", "https://")) else _stored(place, service)

    def read(since: datetime, until: datetime) -> Iterator[BookedEffect]:
        last = 0
        while found := page(last):
            last = found[-1]["seq"]
            for wire in found:
                effect = booked(wire)
                if since <= effect.at < until:
                    yield effect

    return read


def booked(wire: Mapping[str, Any]) -> BookedEffect:
    """An effect as the sandbox tells it. Its amount counts where the request named one."""
    body = dict(wire["body"]) if isinstance(wire["body"], dict) else {}
    if "amount" in body and wire["amount"] is not None:
        body["amount"] = dict(wire["amount"])
    at = datetime.fromtimestamp(wire["at"], UTC)
    return BookedEffect(wire["id"], at, key=wire["key"], arguments=body, digest=wire["digest"])


Page = Callable[[int], list[Mapping[str, Any]]]


def _remote(url: str, service: str) -> Page:
    address = f"{url.rstrip('/')}/effects?service={quote(service)}&limit={_PAGE}&since="

    def page(last: int) -> list[Mapping[str, Any]]:
        try:
            with urllib.request.urlopen(f"{address}{last}", timeout=_PATIENCE_S) as answer:  # noqa: S310 - checked
                found: list[Mapping[str, Any]] = json.load(answer)["effects"]
        except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
            raise Unreachable(f"no book at {redact(url)}: {error}") from error
        return found

    return page


def _stored(place: str, service: str) -> Page:
    book = Book(Path(place))

    def page(last: int) -> list[Mapping[str, Any]]:
        try:
            return [effect.wire() for effect in book.effects(service, since=last, limit=_PAGE)]
        except FileNotFoundError as error:
            raise UsageError(f"--book: {error}") from error

    return page


def paged(effects: Iterable[BookedEffect], size: int = _PAGE) -> Iterator[list[BookedEffect]]:
    """The same effects in lists of at most `size`."""
    page: list[BookedEffect] = []
    for effect in effects:
        page.append(effect)
        if len(page) == size:
            yield page
            page = []
    if page:
        yield page
