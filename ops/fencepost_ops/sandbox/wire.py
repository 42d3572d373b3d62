"""HTTP/1.1 as far as the sandbox needs it: requests with a Content-Length in, answers out."""

from __future__ import annotations

import asyncio
import http
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote

from fencepost_ops.sandbox.answers import Answer, Sent

MAX_HEAD_BYTES = 64 * 1024
MAX_BODY_BYTES = 1024 * 1024


class BadRequest(Exception):
    """The bytes received are no request the sandbox can read; it answers this and closes the connection."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One request. `path` is as sent, without the query; header names are in lower case."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    keep_alive: bool

    @property
    def segments(self) -> tuple[str, ...]:
        """The parts of the path, each decoded."""
        return tuple(unquote(part) for part in self.path.strip("/").split("/"))


async def read_request(reader: asyncio.StreamReader) -> HttpRequest | None:
    """The next request of a connection; None at its end. Raises BadRequest for what it cannot read."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    except asyncio.LimitOverrunError:
        raise BadRequest(431, f"the header is longer than {MAX_HEAD_BYTES} bytes") from None
    request_line, *lines = head[:-4].decode("latin-1").split("\r\n")
    headers = dict(map(_header, lines))
    method, target = _request_line(request_line)
    length = _content_length(headers)
    try:
        body = await reader.readexactly(length) if length else b""
    except asyncio.IncompleteReadError:
        return None
    path, _, query = target.partition("?")
    keep_alive = headers.get("connection", "").lower() != "close" and request_line.endswith("HTTP/1.1")
    return HttpRequest(method, path, dict(parse_qsl(query)) if query else {}, headers, body, keep_alive)


def _request_line(line: str) -> tuple[str, str]:
    method, _, rest = line.partition(" ")
    target, _, version = rest.rpartition(" ")
    if not method.isalpha() or not target.startswith("/") or version not in ("HTTP/1.1", "HTTP/1.0"):
        raise BadRequest(400, "the request line is not HTTP/1.1")
    return method, target


def _header(line: str) -> tuple[str, str]:
    name, colon, value = line.partition(":")
    if not colon or not name or name != name.strip():
        raise BadRequest(400, "a header line is malformed")
    return name.lower(), value.strip()


def _content_length(headers: Mapping[str, str]) -> int:
    if "transfer-encoding" in headers:
        raise BadRequest(411, "send a Content-Length")
    text = headers.get("content-length", "0")
    if not text.isdecimal():
        raise BadRequest(400, "Content-Length is not a number")
    if int(text) > MAX_BODY_BYTES:
        raise BadRequest(413, f"a body has at most {MAX_BODY_BYTES} bytes")
    return int(text)


def encode(answer: Answer, *, keep_alive: bool) -> bytes:
    """The bytes of an answer, as many as are to leave."""
    if answer.sent in (Sent.NOTHING, Sent.RESET):
        return b""
    body = answer.body[: len(answer.body) // 2] if answer.sent is Sent.HALF else answer.body
    lines = [
        f"HTTP/1.1 {answer.status} {_reason(answer.status)}",
        f"Content-Length: {len(answer.body)}",
        *(f"{name}: {value}" for name, value in answer.headers.items()),
    ]
    if not keep_alive:
        lines.append("Connection: close")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def _reason(status: int) -> str:
    try:
        return http.HTTPStatus(status).phrase
    except ValueError:
        return "Unnamed"
