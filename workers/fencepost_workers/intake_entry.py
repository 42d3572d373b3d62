"""What lies in the intake's queue, and the run it asks for. Pure.

Any Celery client may have put it there, or anybody else. What it asks for is read from its keyword arguments
and nowhere else; whose run it is says the process that takes it in, never the message.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from hashlib import sha256
from typing import Any, Final
from uuid import UUID, uuid5

from fencepost.budgets import Budget
from fencepost.canonical import sanitize
from fencepost.errors import UsageError
from fencepost.runrequest import RunRequest
from fencepost.strictjson import BadJson, parse
from fencepost.tools import OnStop

TASK: Final = "fencepost.intake"
MAX_BYTES: Final = 8 * 1024 * 1024
"""Of one message, unpacked: an input of 1 MiB with every letter escaped, and room."""
MAX_ENTRY: Final = MAX_BYTES * 3 // 2
"""Of one as it lies in the queue: such a message in base64, and its envelope."""
_NAMESPACE: Final = UUID("6f1b9a52-7c1d-5e0e-9a44-0d6a3a2f5c11")
_REQUIRED: Final = ("run_key", "planner", "input", "deadline_s")
_FIELDS: Final = (*_REQUIRED, "version", "budget", "on_stop", "tainted")
_BOUND: Final = ("tenant", "principal")
_TIMED: Final = ("eta", "expires")
_FOLLOWING: Final = ("callbacks", "errbacks", "chain", "chord")
_SHOWN: Final = 80


@dataclass(frozen=True, slots=True)
class Binding:
    """A queue, and whose runs its messages become. UsageError for a name the ledger would not take."""

    queue: str
    tenant: str
    principal: str

    def __post_init__(self) -> None:
        self.request(planner="any", input=None, run_key="any", deadline=timedelta(days=1))

    def request(self, **asked: Any) -> RunRequest:
        """A request of this tenant and principal; UsageError says what is wrong with it."""
        return RunRequest(tenant=self.tenant, principal=self.principal, **asked)


@dataclass(frozen=True, slots=True)
class Cut:
    """That of an entry only the first bytes came: how many it had, how many are read, and what tells it from
    others that begin alike.
    """

    size: int
    limit: int
    tag: str


@dataclass(frozen=True, slots=True)
class Judged:
    """A message, known by its queue, task id and content, and the request it is, or why it is none."""

    id: UUID
    text: bytes
    request: RunRequest | None
    error: str = ""


def judged(item: bytes, binding: Binding, cut: Cut | None = None) -> Judged:
    """What an entry asks for. Never raises for anything an entry may hold."""
    task_id, text = "", item
    if cut is not None:
        return Judged(_identity(binding.queue, cut.tag, item), item, None, _too_long(cut.size, cut.limit))
    try:
        if len(item) > MAX_ENTRY:
            raise UsageError(_too_long(len(item), MAX_ENTRY))
        headers, text = _opened(item)
        task_id = str(headers.get("id", ""))
        if len(text) > MAX_BYTES:
            raise UsageError(_too_long(len(text), MAX_BYTES))
        request = _request(_asked(headers, text), binding)
    except (UsageError, BadJson) as error:
        return Judged(_identity(binding.queue, task_id, text), text, None, str(error))
    return Judged(_identity(binding.queue, task_id, text), text, request)


def _identity(queue: str, task_id: str, text: bytes) -> UUID:
    # With its content: under the task id of one message another may come, and neither is to hide the other.
    return uuid5(_NAMESPACE, json.dumps([queue, task_id, sha256(text).hexdigest()]))


def _too_long(size: int, limit: int) -> str:
    return f"the message has {size} bytes, at most {limit} are read"


def _opened(item: bytes) -> tuple[Mapping[str, Any], bytes]:
    """Headers and body of what a Celery client sent. UsageError if it is nothing of the kind."""
    try:
        message = parse(item.decode())
        headers, properties = message["headers"], message["properties"]
        body, kind = message["body"], message["content-type"]
        packed = headers.get("compression")
        encoding = properties.get("body_encoding")
        raw = base64.b64decode(body, validate=True) if encoding == "base64" else body.encode()
    except (KeyError, TypeError, ValueError, AttributeError):
        raise UsageError(f"this is no message of a Celery client: send it with send_task({TASK!r})") from None
    if kind != "application/json":
        raise UsageError(f"its content is {sanitize(kind, _SHOWN)}, only application/json is read")
    if packed is not None:
        raw = _unpacked(raw, packed)
    return headers, raw


def _unpacked(raw: bytes, how: object) -> bytes:
    if how != "application/x-gzip":
        raise UsageError(f"it is compressed as {sanitize(how, _SHOWN)}; send it as gzip, or as it is")
    unpacker = zlib.decompressobj()
    try:
        found = unpacker.decompress(raw, MAX_BYTES + 1)
    except zlib.error:
        found = b""
    if not unpacker.eof and len(found) <= MAX_BYTES:
        raise UsageError("it cannot be decompressed")
    return found


def _asked(headers: Mapping[str, Any], text: bytes) -> Mapping[str, Any]:
    """The keyword arguments, of either message protocol."""
    try:
        content = parse(text.decode())
    except UnicodeDecodeError:
        raise UsageError("its content is not UTF-8") from None
    if "task" in headers:
        if not isinstance(content, list) or len(content) != 3 or not isinstance(content[2], dict):
            raise UsageError("its content is no list of args, kwargs and what follows")
        args, kwargs, following = content
        said = {**following, **headers}
    elif isinstance(content, dict):
        args, kwargs, said = content.get("args"), content.get("kwargs"), content
    else:
        raise UsageError("it names no task")
    if said.get("task") != TASK:
        raise UsageError(f"the intake knows no task {sanitize(said.get('task'), _SHOWN)}, only {TASK}")
    if any(said.get(name) is not None for name in _TIMED):
        raise UsageError("a run begins at once: send no eta, countdown or expires; deadline_s bounds it")
    if any(said.get(name) for name in _FOLLOWING):
        raise UsageError("nothing follows a run here: send no link, chain or chord")
    if args:
        raise UsageError("a run is asked for by keyword: send kwargs, no args")
    if not isinstance(kwargs, dict):
        raise UsageError("its kwargs are no object")
    return kwargs


def _request(kwargs: Mapping[str, Any], binding: Binding) -> RunRequest:
    for name in _BOUND:
        if name in kwargs:
            setting = f"FENCEPOST_INTAKE_{name.upper()}"
            raise UsageError(f"a message does not name its {name}: it is the intake's own ({setting})")
    if unknown := sorted(set(kwargs) - set(_FIELDS)):
        raise UsageError(f"unknown field {sanitize(unknown[0], _SHOWN)}; there are {', '.join(_FIELDS)}")
    if missing := [name for name in _REQUIRED if name not in kwargs]:
        raise UsageError(f"it lacks {' and '.join(missing)}")
    request = binding.request(
        planner=kwargs["planner"],
        version=kwargs.get("version", 1),
        input=kwargs["input"],
        run_key=kwargs["run_key"],
        deadline=_deadline(kwargs["deadline_s"]),
        budget=_budget(kwargs.get("budget")),
        on_stop=kwargs.get("on_stop", OnStop.COMPENSATE),
        tainted=kwargs.get("tainted", False),
    )
    _check_plain(request.input, "input")
    return request


def _deadline(value: object) -> timedelta:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise UsageError(f"deadline_s is a number of seconds from now, not {sanitize(repr(value), _SHOWN)}")
    try:
        return timedelta(seconds=float(value))
    except (OverflowError, ValueError):
        raise UsageError("deadline_s is further ahead than any clock counts") from None


def _budget(value: Any) -> Budget | None:
    if value is None:
        return None
    try:
        return Budget.from_json(value)
    except ValueError as error:
        raise UsageError(sanitize(error, 200)) from None


def _check_plain(value: object, path: str) -> None:
    """Celery writes dates, decimals and ids in a notation of its own, which no planner would understand."""
    if isinstance(value, dict):
        if value.keys() == {"__type__", "__value__"}:
            kind = sanitize(value["__type__"], _SHOWN)
            raise UsageError(
                f"{path} is a {kind} in Celery's own notation, which is not JSON: send it as text"
            )
        for key, item in value.items():
            _check_plain(item, f"{path}.{sanitize(key, _SHOWN)}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _check_plain(item, f"{path}[{index}]")
