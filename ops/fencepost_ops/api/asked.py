"""From headers, query and body to what is asked for, or to the problem that says why not. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from fencepost.budgets import Budget
from fencepost.canonical import sanitize
from fencepost.errors import UsageError
from fencepost.ledger.tokens import Bearer
from fencepost.runrequest import RunRequest, is_traceparent
from fencepost.states import RunStatus
from fencepost.strictjson import BadJson, parse
from fencepost.tools import OnStop
from fencepost_ops.api.problems import Problem, forbidden

RUN_FIELDS: Final = (
    "planner",
    "version",
    "input",
    "principal",
    "deadline",
    "budget",
    "on_stop",
    "tainted",
    "run_key",
)
SIGNAL_FIELDS: Final = ("name", "body")
MAX_KEY: Final = 200
PAGE: Final = 50
LARGEST_PAGE: Final = 200
EVENTS_PAGE: Final = 200
LARGEST_EVENTS_PAGE: Final = 500
_NEEDED: Final = ("planner", "input", "deadline")
_QUOTED: Final = re.compile(r'"((?:[ !#-\[\]-~]|\\["\\])*)"', re.ASCII)  # RFC 8941, 3.3.3
_RAW: Final = re.compile(r"[!#-+\--:<-~]+", re.ASCII)  # no quote, no space, and neither , nor ;
_PLACE: Final = re.compile(r"(?:a key of )?([a-z_]+)", re.ASCII)
_SHOWN: Final = 80
_MOST_SEQ: Final = 2**63 - 1


def idempotency_key(values: Sequence[str]) -> str:
    """The key that comes with a request: a structured-field string ("k-1"), or the same without quotes."""
    if not values:
        raise Problem(
            "idempotency_key_required",
            "send an Idempotency-Key of your own with each new request, and the same one when you repeat it",
        )
    if len(values) > 1:
        raise Problem("invalid_request", "there are several Idempotency-Key headers; send one")
    text = values[0].strip(" \t")
    if (match := _QUOTED.fullmatch(text)) is not None:
        key = re.sub(r'\\(["\\])', r"\1", match[1])
    elif _RAW.fullmatch(text):
        key = text
    else:
        raise Problem("invalid_request", 'an Idempotency-Key is written "like-this", or without the quotes')
    if not 1 <= len(key) <= MAX_KEY:
        raise Problem("invalid_request", f"an Idempotency-Key has 1 to {MAX_KEY} characters")
    return key


def traceparent(values: Sequence[str]) -> str | None:
    """The trace a request comes from; None for none, for several, and for one that is not W3C's: as that
    says, it is left out and the request is carried out.
    """
    return values[0] if len(values) == 1 and is_traceparent(values[0]) else None


def json_body(data: bytes, content_type: str | None) -> dict[str, Any]:
    """The object in a body, strictly: duplicate keys, NaN and what is no UTF-8 are refused."""
    kind, _, parameters = (content_type or "").partition(";")
    charset = parameters.strip().lower().replace('"', "")
    if kind.strip().lower() != "application/json" or charset not in {"", "charset=utf-8"}:
        raise Problem("unsupported_media_type", "send the body as application/json, in UTF-8")
    try:
        value = parse(data.decode())
    except UnicodeDecodeError:
        raise Problem("invalid_request", "the body is not UTF-8", "") from None
    except BadJson as error:
        raise Problem("invalid_request", f"the body is {_said(error)}", "") from None
    if not isinstance(value, dict):
        raise Problem("invalid_request", "the body is one JSON object", "")
    return value


def _said(error: BadJson) -> str:
    text = str(error)
    return text if text.startswith(("not JSON", "nested")) else f"not JSON that can be taken: {text}"


def run_request(value: Mapping[str, Any], key: str, bearer: Bearer, trace: str | None) -> RunRequest:
    """The run a body asks for. The tenant is the token's; so is the principal, if none is named."""
    _only(value, RUN_FIELDS)
    for name in _NEEDED:
        if name not in value:
            raise Problem("invalid_request", f"{name} is missing", f"/{name}")
    if value.get("run_key", key) != key:
        raise Problem("invalid_request", "run_key is another one than the Idempotency-Key says", "/run_key")
    try:
        return RunRequest(
            planner=value["planner"],
            version=value.get("version", 1),
            input=value["input"],
            run_key=key,
            tenant=bearer.tenant,
            principal=_principal(value, bearer),
            deadline=_deadline(value["deadline"]),
            budget=_budget(value.get("budget")),
            on_stop=value.get("on_stop", OnStop.COMPENSATE),
            tainted=value.get("tainted", False),
            traceparent=trace,
        )
    except UsageError as error:
        raise Problem("invalid_request", str(error), _pointer(str(error))) from None


def _principal(value: Mapping[str, Any], bearer: Bearer) -> str:
    named = value.get("principal")
    if named is None:
        return bearer.principal
    if not isinstance(named, str):
        raise Problem("invalid_request", "principal is a text", "/principal")
    if named not in bearer.principals:
        problem = forbidden("runs:write")
        problem.detail = f"this token may not name the principal {sanitize(named, _SHOWN)}"
        problem.pointer = "/principal"
        raise problem
    return named


def _deadline(value: object) -> timedelta:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise UsageError("deadline is a number of seconds from now")
    try:
        return timedelta(seconds=float(value))
    except (OverflowError, ValueError):
        raise UsageError("deadline is further ahead than any clock counts") from None


def _budget(value: Any) -> Budget | None:
    if value is None:
        return None
    try:
        return Budget.from_json(value)
    except (ValueError, TypeError) as error:
        raise UsageError(str(error)) from None


def _pointer(sentence: str) -> str:
    """Where a sentence of `RunRequest` points: they begin with the field, or with "the" and the field."""
    match = _PLACE.match(sentence.removeprefix("the "))
    return f"/{match[1]}" if match is not None and match[1] in RUN_FIELDS else ""


@dataclass(frozen=True)
class SignalRequest:
    """A signal to send."""

    name: str
    body: Any


def signal_request(value: Mapping[str, Any]) -> SignalRequest:
    """The signal a body describes."""
    _only(value, SIGNAL_FIELDS)
    name = value.get("name")
    if not isinstance(name, str) or not 1 <= len(name) <= 100:
        raise Problem("invalid_request", "name is a text of 1 to 100 characters", "/name")
    return SignalRequest(name, value.get("body", {}))


def cancel_reason(value: Mapping[str, Any]) -> str:
    """Why a run is cancelled."""
    _only(value, ("reason",))
    reason = value.get("reason")
    if not isinstance(reason, str) or not reason.strip():
        raise Problem("invalid_request", "reason is a text: it goes into the history", "/reason")
    return reason


def _only(value: Mapping[str, Any], fields: Sequence[str]) -> None:
    if unknown := [name for name in value if name not in fields]:
        shown = sanitize(unknown[0], _SHOWN)
        where = "/" + shown.replace("~", "~0").replace("/", "~1")
        raise Problem("invalid_request", f"unknown field {shown}; there are {', '.join(fields)}", where)


# -- the query -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ListRequest:
    """Which runs to list; `before` is the id of the last one of the page before."""

    status: tuple[str, ...] = ()
    planner: str | None = None
    run_key: str | None = None
    before: UUID | None = None
    limit: int = PAGE


Query = Iterable[tuple[str, str]]


def no_query(query: Query) -> None:
    """Nothing can be asked beside the path."""
    _query(query, ())


def list_request(query: Query) -> ListRequest:
    """Which page of which runs."""
    said = _query(query, ("status", "planner", "run_key", "cursor", "limit"))
    wanted = tuple(said["status"].split(",")) if "status" in said else ()
    if unknown := [name for name in wanted if name not in set(RunStatus)]:
        said_so = f"there is no status {sanitize(unknown[0], _SHOWN)}"
        raise Problem("invalid_request", f"{said_so}; there are {', '.join(RunStatus)}")
    for name in ("planner", "run_key"):
        if "\0" in said.get(name, ""):
            raise Problem("invalid_request", f"{name} holds a NUL")
    before = said.get("cursor")
    return ListRequest(
        wanted,
        said.get("planner"),
        said.get("run_key"),
        None if before is None else _cursor(before),
        _number(said, "limit", PAGE, 1, LARGEST_PAGE),
    )


def events_request(query: Query) -> tuple[int, int]:
    """After which event, and how many."""
    said = _query(query, ("after", "limit"))
    limit = _number(said, "limit", EVENTS_PAGE, 1, LARGEST_EVENTS_PAGE)
    return _number(said, "after", 0, 0, _MOST_SEQ), limit


def stream_request(query: Query, last_event_id: Sequence[str]) -> tuple[int, bool]:
    """After which event; and whether it is a stream that was there before, as its client says."""
    said = _query(query, ("after",))
    if last_event_id and last_event_id[-1].strip():
        return _number({"Last-Event-ID": last_event_id[-1].strip()}, "Last-Event-ID", 0, 0, _MOST_SEQ), True
    return _number(said, "after", 0, 0, _MOST_SEQ), False


def run_id(text: str) -> UUID:
    """The id in a path; what is none is that of no run."""
    try:
        found = UUID(text)
    except ValueError:
        found = None
    if found is None or str(found) != text.lower():
        raise no_run(text)
    return found


def no_run(text: object) -> Problem:
    """404, in the same words for what is not there and for what is another tenant's."""
    return Problem("not_found", f"there is no run {sanitize(text, 60)}")


def _query(query: Query, known: Sequence[str]) -> dict[str, str]:
    said: dict[str, str] = {}
    for name, value in query:
        if name not in known:
            there = f"; there are {', '.join(known)}" if known else ""
            raise Problem("invalid_request", f"unknown parameter {sanitize(name, _SHOWN)}{there}")
        if name in said:
            raise Problem("invalid_request", f"the parameter {name} is there twice")
        said[name] = value
    return said


def _cursor(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise Problem("invalid_request", "cursor is the `next` of the page before") from None


def _number(said: Mapping[str, str], name: str, default: int, least: int, most: int) -> int:
    if name not in said:
        return default
    text = said[name]
    if not text.isascii() or not text.isdecimal() or len(text) > 19 or not least <= int(text) <= most:
        raise Problem("invalid_request", f"{name} is a whole number from {least} to {most}")
    return int(text)
