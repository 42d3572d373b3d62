"""Requests and answers as bytes: what is stored, sent and read back.

A `Request` is what a tool says, relative to its dependency; a `StoredRequest` is the absolute one that the
ledger keeps and the engine sends, byte for byte, as often as it is sent.
"""

import base64
import codecs
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self
from urllib.parse import quote, urlencode

from pydantic import BaseModel

from fencepost import outbound
from fencepost.canonical import digest
from fencepost.fields import holds_masked
from fencepost.outbound import OutboundRefused
from fencepost.secrets import PLACEHOLDER, WIRE, placeheld

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_METHOD = re.compile(r"[A-Z]{1,16}")
_ABSOLUTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_PATH_SAFE = "/%:@!$&'()*+,;=~-._"
_QUERY_SAFE = _PATH_SAFE + "?[]{}|^`"
_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_CHARSET = re.compile(r';\s*charset\s*=\s*"?([A-Za-z0-9._:-]{1,40})', re.IGNORECASE)
_VISIBLE = re.compile(r"[\t\x20-\x7e]*")
_OURS = frozenset(
    {
        "accept-encoding",
        "connection",
        "content-length",
        "expect",
        "host",
        "idempotency-key",
        "keep-alive",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
_SECRET = frozenset({"authorization", "proxy-authorization", "cookie", "x-api-key"})


def check_headers(headers: Sequence[tuple[str, str]]) -> None:
    """ValueError for a header HTTP does not allow, or one that belongs to the engine or the transport."""
    for name, value in headers:
        if not _TOKEN.fullmatch(name) or not _VISIBLE.fullmatch(value):
            raise ValueError(f"header {name[:40]!r} has a name or value that HTTP does not allow")
        if name.lower() in _OURS or name.lower().startswith("fencepost-"):
            raise ValueError(f"header {name} is added when the request is sent")


def _check_path(path: str) -> None:
    if _ABSOLUTE.match(path):
        path = outbound.parse(path).rest.partition("?")[0] or "/"
    decoded = path.replace("%2e", ".").replace("%2E", ".")
    if not path.startswith("/") or path.startswith("//") or re.search(r"[\x00-\x20\x7f\\?#]", path):
        raise OutboundRefused(
            f"path {path[:80]!r} must start with one '/' and hold no '?', '#', '\\' or white space"
            "; a query is given as query={...}"
        )
    if {".", ".."} & set(decoded.split("/")):
        raise OutboundRefused(f"path {path[:80]!r} must not climb with '.' or '..'")


def check_base_url(url: str) -> str:
    """`url` without a trailing slash, if requests can be bound to it; ValueError otherwise."""
    try:
        target = outbound.parse(url)
    except OutboundRefused as error:
        raise ValueError(f"base_url must look like https://host[:port][/path]: {error}") from None
    if "?" in target.rest:
        raise ValueError("base_url must look like https://host[:port][/path], without a query")
    return url.rstrip("/")


@dataclass(frozen=True)
class StoredRequest:
    """A request exactly as the ledger stores and the engine sends it; `digest` names its content."""

    method: str
    target: str
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        parts = [
            self.method,
            self.target,
            [list(h) for h in self.headers],
            hashlib.sha256(self.body).hexdigest(),
        ]
        object.__setattr__(self, "digest", digest("fencepost.request.v1", parts))

    def to_text(self) -> str:
        """JSON with sorted keys, the body in base64; `from_text` gives back an equal request."""
        value = {
            "body": base64.b64encode(self.body).decode(),
            "headers": [list(h) for h in self.headers],
            "method": self.method,
            "target": self.target,
        }
        return json.dumps(value, sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> Self:
        """The request of `to_text`; ValueError for anything else."""
        try:
            value = json.loads(text)
            headers = tuple((str(name), str(content)) for name, content in value["headers"])
            body = base64.b64decode(value["body"], validate=True)
            return cls(str(value["method"]), str(value["target"]), headers, body)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError("not a stored request") from error


def fingerprint(tenant: str, scope: str, tool: str, version: int, request: str) -> str:
    """What a stored request's text is known by, from its first attempt on: 64 hex digits.

    Over the tenant, the dependency's scope, the tool and its version, and the text itself: method, target,
    headers (modes of the API are told there) and body. A resend must have the same.
    """
    return digest("fencepost.fingerprint.v1", [tenant, scope, tool, version, request])


@dataclass(frozen=True)
class Request:
    """What a tool wants sent, relative to its dependency's base URL, or to a whole URL of its `hosts`.

    Key, deadline and correlation headers are added when it is sent, credentials come from the dependency:
    naming any of them here is a ValueError, because the request is stored in the clear. `path` is sent as it
    is, but for characters outside ASCII; quote untrusted parts with `urllib.parse.quote(part, safe="")`. A
    whole URL may have its query; whether its host is one the dependency names is judged when it is bound.
    """

    method: str
    path: str
    query: tuple[tuple[str, str], ...] = ()
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""

    def __post_init__(self) -> None:
        if not _METHOD.fullmatch(self.method):
            raise ValueError(f"{self.method!r} is not an HTTP method in capitals")
        _check_path(self.path)
        check_headers(self.headers)
        told = [name for name, value in self.headers if not PLACEHOLDER.search(value)]
        if secret := [name for name in told if name.lower() in _SECRET]:
            raise ValueError(
                f"header {secret[0]} would be stored: give secrets to app.dependency(headers=...), "
                "or take them as a SecretRef argument"
            )

    @property
    def whole(self) -> bool:
        """Whether its path is a whole URL."""
        return _ABSOLUTE.match(self.path) is not None

    @classmethod
    def get(
        cls, path: str, *, query: Mapping[str, Any] | None = None, headers: Mapping[str, str] | None = None
    ) -> Self:
        """A GET without a body."""
        return cls("GET", path, _pairs(query), _pairs(headers))

    @classmethod
    def delete(
        cls, path: str, *, query: Mapping[str, Any] | None = None, headers: Mapping[str, str] | None = None
    ) -> Self:
        """A DELETE without a body."""
        return cls("DELETE", path, _pairs(query), _pairs(headers))

    @classmethod
    def post(
        cls,
        path: str,
        *,
        json: object = None,
        query: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Self:
        """A POST of `json`: a pydantic model or anything the json module takes; None sends no body."""
        return cls("POST", path, _pairs(query), *_json_body(json, headers))

    @classmethod
    def put(
        cls,
        path: str,
        *,
        json: object = None,
        query: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Self:
        """A PUT of `json`, as `post`."""
        return cls("PUT", path, _pairs(query), *_json_body(json, headers))

    def bind(self, base_url: str | None) -> StoredRequest:
        """The absolute request to store; equal inputs give equal bytes. ValueError for a bad base URL, and
        without one for a path that is no whole URL.
        """
        if self.whole:
            whole = outbound.parse(self.path)
            path, question, query = whole.rest.partition("?")
            target = whole.origin + (quote(path, safe=_PATH_SAFE) or "/")
            target += question + quote(query, safe=_QUERY_SAFE)
        elif base_url is None:
            raise OutboundRefused(f"path {self.path[:80]!r} needs a whole URL: there is no base_url")
        else:
            target = check_base_url(base_url) + quote(self.path, safe=_PATH_SAFE)
        if self.query:
            target += ("&" if "?" in target else "?") + urlencode(self.query, quote_via=quote)
        return StoredRequest(self.method, target, self.headers, self.body)


def _pairs(values: Mapping[str, Any] | None) -> tuple[tuple[str, str], ...]:
    for name, value in (values or {}).items():
        _plainly(value, name)
    return tuple((name, str(value)) for name, value in (values or {}).items())


def _plainly(value: object, name: str) -> None:
    if holds_masked(value):
        raise ValueError(f"{name} holds what is masked (SecretStr), so that stars would be sent for it")


def _json_body(value: object, headers: Mapping[str, str] | None) -> tuple[tuple[tuple[str, str], ...], bytes]:
    pairs = _pairs(headers)
    if value is None:
        return pairs, b""
    if isinstance(value, BaseModel):
        _plainly(value, type(value).__name__)
        value = value.model_dump(mode="json", by_alias=True, context=WIRE)
    compact: Any = {"separators": (",", ":"), "ensure_ascii": False, "allow_nan": False}
    body = json.dumps(value, default=placeheld, **compact).encode()
    if not any(name.lower() == "content-type" for name, _ in pairs):
        pairs = (*pairs, ("Content-Type", "application/json"))
    return pairs, body


@dataclass(frozen=True)
class Response:
    """A complete answer: status, headers by lower-case name, body as received."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""

    def json(self) -> Any:
        """The body as JSON, duplicates and NaN as Python reads them; ValueError if it is none."""
        return json.loads(self.read())

    def read(self) -> str:
        """The body by its byte order mark, else by the charset of its Content-Type, else as UTF-8.

        A charset nobody knows counts as UTF-8. ValueError for bytes that are no text in it.
        """
        return self._decoded("strict")

    @property
    def text(self) -> str:
        """The body as `read` gives it, undecodable bytes replaced."""
        return self._decoded("replace")

    def in_utf8(self) -> "Response":
        """The same answer with its body in UTF-8; as it came where it is that, or no text."""
        kind = self.headers.get("content-type", "")
        named = _CHARSET.search(kind)
        if named is None and not any(self.body.startswith(mark) for mark, _ in _MARKS):
            return self
        try:
            body = self.read().encode()
        except ValueError:
            return self
        told = kind if named is None else kind[: named.start(1)] + "utf-8" + kind[named.end(1) :]
        return replace(self, headers={**self.headers, "content-type": told}, body=body)

    def _decoded(self, errors: Literal["strict", "replace"]) -> str:
        for mark, charset in _MARKS:
            if self.body.startswith(mark):
                return self.body[len(mark) :].decode(charset, errors)
        named = _CHARSET.search(self.headers.get("content-type", ""))
        try:
            return self.body.decode(named[1] if named else "utf-8", errors)
        except LookupError:
            return self.body.decode("utf-8", errors)
