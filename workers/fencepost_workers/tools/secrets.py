"""Resolving the secrets an attempt's arguments name, after its claim's COMMIT, and putting them on the wire.

The stored request keeps its placeholders: what is made here lives as long as the attempt.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from pathlib import Path
from typing import Final
from urllib.parse import quote

from pydantic import BaseModel

from fencepost.authority import matches
from fencepost.errors import FencepostError, UsageError
from fencepost.fields import parts_of
from fencepost.secrets import PLACEHOLDER, Resolver, Secret, SecretRef
from fencepost.settings import SECRET_PREFIX, variable
from fencepost.tools import StoredRequest, Tool
from fencepost_workers.tools.credentials import LEAST_CHARS

MAX_CHARS: Final = 64 * 1024
_HEADER: Final = re.compile(r"[\t\x20-\x7e]*")


class SecretUnavailable(FencepostError):
    """A secret could not be resolved, or has no place in the request; nothing was sent."""


class _OnTheWire(StoredRequest):
    """A request with its secrets in place, which is neither shown nor named by a digest."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "digest", "")

    def __repr__(self) -> str:
        return "<a request with secrets>"


class Resolved:
    """The secrets of one attempt: by name for a Python tool, by placeholder for a request."""

    __slots__ = ("_values", "handed")

    def __init__(self, handed: Mapping[str, Secret], placeholders: Mapping[str, str]) -> None:
        self.handed = handed
        self._values = {placeholder: handed[name] for placeholder, name in placeholders.items()}

    def __repr__(self) -> str:
        return f"Resolved({sorted(self.handed)})"

    @property
    def values(self) -> tuple[str, ...]:
        """All values, to be hidden wherever they come back."""
        return tuple(secret.reveal() for _, secret in sorted(self.handed.items()))

    def put(self, stored: StoredRequest) -> StoredRequest:
        """The request as it goes on the wire; `stored` itself where it holds no placeholder.

        A value is escaped as its place demands: in a target and a form as URLs do, in a JSON body as JSON
        does, elsewhere not at all. SecretUnavailable for a placeholder of no secret of these arguments, and
        for a value that a header cannot hold.
        """
        body = stored.body.decode("utf-8", "surrogateescape")
        if not any(map(PLACEHOLDER.search, (stored.target, body, *(value for _, value in stored.headers)))):
            return stored
        kind = next((value for name, value in stored.headers if name.lower() == "content-type"), "").lower()
        as_body = _in_json if "json" in kind else _in_url if "form-urlencoded" in kind else str
        headers = tuple((name, self._filled(value, _in_header)) for name, value in stored.headers)
        filled = self._filled(body, as_body).encode("utf-8", "surrogateescape")
        return _OnTheWire(stored.method, self._filled(stored.target, _in_url), headers, filled)

    def _filled(self, text: str, spell: Callable[[str], str]) -> str:
        return PLACEHOLDER.sub(lambda found: spell(self._value(found[0])), text)

    def _value(self, placeholder: str) -> str:
        if placeholder not in self._values:
            raise SecretUnavailable("the request holds a placeholder that is of no secret of its arguments")
        return self._values[placeholder].reveal()


def _in_url(value: str) -> str:
    return quote(value, safe="")


def _in_json(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)[1:-1]


def _in_header(value: str) -> str:
    if not _HEADER.fullmatch(value):
        raise SecretUnavailable(
            "a header cannot hold the secret: it has characters HTTP does not allow there"
        )
    return value


NONE: Final = Resolved({}, {})
"""Of an attempt whose arguments name no secret."""


async def resolve(
    tool: Tool, args: BaseModel, tenant: str, resolver: Resolver, executor: Executor, seconds: float
) -> Resolved:
    """The secrets these arguments name, asked for now, in a thread, for so many seconds at most.

    SecretUnavailable, without a value in it, if one is not there: the resolver raised, was too slow, knows no
    such name, or gave what cannot be hidden again.
    """
    refs = {part.name: part for part in parts_of(args) if isinstance(part, SecretRef)}
    for name in refs:
        if not any(matches(pattern, name) for pattern in tool.secrets):
            raise SecretUnavailable(f"{tool.name} is not declared to use the secret {name}")
    if not refs:
        return NONE
    asking = executor.submit(_ask, resolver, tenant, sorted(refs))
    await asyncio.wait({asyncio.wrap_future(asking)}, timeout=max(0.0, seconds))
    if not asking.done():
        asking.cancel()
        raise SecretUnavailable(f"the secrets {', '.join(sorted(refs))} were not resolved in time")
    handed = asking.result()
    if isinstance(handed, str):
        raise SecretUnavailable(handed)
    return Resolved(handed, {ref.placeholder: name for name, ref in refs.items()})


def _ask(resolver: Resolver, tenant: str, names: list[str]) -> dict[str, Secret] | str:
    """The secrets, or why there are none: a sentence, since an error would carry values in its frames."""
    found: dict[str, Secret] = {}
    for name in names:
        try:
            value: object = resolver(tenant, name)
        except UsageError as error:  # a sentence of ours, which never holds a value
            return f"the secret {name} could not be read: {error}"
        except BaseException as error:  # noqa: BLE001 - what it says may hold a value
            return f"the secret {name} could not be resolved: {type(error).__name__}"
        if value is None:
            return f"this tenant has no secret {name}"
        if not isinstance(value, str):
            return f"the secret {name} is {type(value).__name__}, not text"
        if not LEAST_CHARS <= len(value) <= MAX_CHARS:
            bounds = f"less than {LEAST_CHARS} or more than {MAX_CHARS} characters"
            return f"the secret {name} has {bounds}: it could not be hidden in what comes back"
        found[name] = Secret(name, value)
    return found


def files_and_variables(folder: str) -> Resolver:
    """The default resolver: the file TENANT/NAME in `folder`, if one is set, else an environment variable.

    The variable of tenant `shop` and name `mailbox/anna` is `FENCEPOST_SECRET_shop__mailbox_2Fanna`: whatever
    is no ASCII letter or digit is `_` and its UTF-8 bytes in hex. A tenant's folder is its name as in a URL.
    A line's end at the end of a file is no part of the value.
    """

    def resolver(tenant: str, name: str) -> str | None:
        if folder and (text := _in_file(Path(folder), tenant, name)) is not None:
            return text
        return variable(f"{SECRET_PREFIX}{_spelled(tenant)}__{_spelled(name)}")

    return resolver


def _spelled(text: str) -> str:
    return "".join(
        c if c.isascii() and c.isalnum() else "".join(f"_{b:02X}" for b in c.encode()) for c in text
    )


def _in_file(folder: Path, tenant: str, name: str) -> str | None:
    own = quote(tenant, safe="").replace(".", "%2E")  # no tenant is called `..`, or reaches another's folder
    path = folder / own / name
    try:
        if not path.resolve().is_relative_to(folder.resolve()):
            raise UsageError("it lies outside of FENCEPOST_SECRETS_DIR")
        if not path.exists():
            return None
        if not path.is_file() or path.stat().st_size > MAX_CHARS:
            raise UsageError("it is no file, or a very long one")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(error.strerror or "it cannot be read") from None
    except UnicodeDecodeError:
        raise UsageError("it is not a text in UTF-8") from None
    return text.removesuffix("\n").removesuffix("\r")
