"""Runs read from a file: a JSON object, an array of them, or JSON Lines. Pure; nothing is sent from here.

The whole file is judged before any of it is used, and every problem is told with its line. Duplicate keys,
NaN and unknown fields are refused: each would be a request other than the one its author reads.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from fencepost.budgets import Budget
from fencepost.canonical import sanitize
from fencepost.errors import UsageError
from fencepost.runrequest import RunRequest
from fencepost.strictjson import DECODER, BadJson, explained, parse
from fencepost.tools import OnStop
from fencepost_ops.commands.durations import parse_duration

FIELDS: Final = frozenset(
    {
        "run_key",
        "input",
        "planner",
        "version",
        "tenant",
        "principal",
        "deadline",
        "budget",
        "on_stop",
        "tainted",
    }
)
_TOLD: Final = 10  # problems; the first ones explain the rest
_SPACE: Final = re.compile(r"[ \t\r\n]*")


@dataclass(frozen=True, kw_only=True)
class Defaults:
    """What holds for every run that does not say otherwise.

    With `key_field`, each object is an input as it stands, and that field of it is the run key. `version_of`
    finds the version of a planner that was given none.
    """

    deadline: timedelta
    version_of: Callable[[str, int | None], int]
    planner: str | None = None
    version: int | None = None
    tenant: str | None = None
    principal: str | None = None
    on_stop: OnStop = OnStop.COMPENSATE
    tainted: bool = False
    key_field: str | None = None


@dataclass(frozen=True)
class Problem:
    """What is wrong with one line."""

    line: int
    message: str


class BadFile(UsageError):
    """A file of runs that cannot be used; `problems` says why, in the order of lines."""

    def __init__(self, name: str, problems: list[Problem]) -> None:
        told = [f"  line {problem.line}: {problem.message}" for problem in problems[:_TOLD]]
        if len(problems) > _TOLD:
            told.append(f"  and {len(problems) - _TOLD} more")
        lines = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        super().__init__("\n".join([f"{sanitize(name, 200)} has {lines}, nothing was enqueued:", *told]))
        self.problems = problems


def read_requests(data: bytes, name: str, defaults: Defaults) -> list[RunRequest]:
    """The runs `data` asks for, in order. `BadFile` if any of them cannot be; it calls the file `name`."""
    problems: list[Problem] = []
    requests: list[RunRequest] = []
    seen: dict[tuple[str, str], tuple[int, RunRequest]] = {}
    for line, value in _values(data):
        try:
            if isinstance(value, BadJson):
                raise value
            request = _request(value, defaults)
            first, same = seen.setdefault((request.tenant, request.run_key), (line, request))
            if same is not request and same.means() != request.means():
                raise BadJson(
                    f"run key {sanitize(request.run_key, 80)} was used on line {first} for another request"
                )
            requests.append(request)
        except (BadJson, UsageError) as error:
            problems.append(Problem(line, str(error)))
    if problems:
        raise BadFile(name, problems)
    if not requests:
        raise UsageError(f"{sanitize(name, 200)} holds no runs")
    return requests


# -- from bytes to values ----------------------------------------------------------------------------------


def _values(data: bytes) -> Iterator[tuple[int, Any]]:
    """Each value with the number of its first line; `BadJson` in place of one that cannot be read."""
    try:
        text = _trimmed(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        yield data.count(b"\n", 0, error.start) + 1, BadJson("is not UTF-8")
        return
    start = _skip(text, 0)
    if text.startswith("[", start):
        yield from _array(text, start + 1)
    elif text[start:]:
        yield from _objects(text)


def _trimmed(text: str) -> str:
    """Without blank lines at the end: what is missing there is missing in the last line that is none."""
    end = text.find("\n", len(text.rstrip()))
    return text if end < 0 else text[:end]


def _objects(text: str) -> Iterator[tuple[int, Any]]:
    """One object over any number of lines, or one in each line."""
    numbered = [(n, line) for n, line in enumerate(text.split("\n"), 1) if line.strip()]
    first_line = numbered[0][1].strip()
    if len(numbered) > 1 and first_line.endswith("}"):
        for number, line in numbered:
            yield number, _value(line)
        return
    value = _value(text)
    at = value.offset if isinstance(value, BadJson) else 0
    yield (text.count("\n", 0, at) + 1 if at else numbered[0][0]), value


def _array(text: str, at: int) -> Iterator[tuple[int, Any]]:
    """The values of an array, one by one, so that each has its line; ends at the first that is not JSON."""
    line, counted, comma = 1, 0, False
    while True:
        at = _skip(text, at)
        line, counted = line + text.count("\n", counted, at), at
        if text.startswith("]", at):
            if comma or text[at + 1 :].strip():
                what = "a run is missing after the last comma" if comma else "there is more after the array"
                yield line, BadJson(f"not JSON: {what}")
            return
        try:
            value, end = DECODER.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            bad = explained(error)
            yield (line + text.count("\n", counted, bad.offset) if bad.offset > counted else line), bad
            return
        yield line, value
        at = _skip(text, end)
        if comma := text.startswith(",", at):
            at += 1
        elif not text.startswith("]", at):
            yield line + text.count("\n", counted, at), BadJson("not JSON: expected , or ] after this run")
            return


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _value(text: str) -> Any:
    try:
        return parse(text)
    except BadJson as error:
        return error


# -- from values to requests -------------------------------------------------------------------------------


def _request(value: Any, defaults: Defaults) -> RunRequest:
    if not isinstance(value, dict):
        raise BadJson(f"a run is a JSON object, not {_kind(value)}")
    item = _keyed(value, defaults.key_field) if defaults.key_field is not None else value
    if unknown := sorted(set(item) - FIELDS):
        hint = (
            "" if "input" in item else "; or is it an input? then say which field is the key with --key-field"
        )
        raise BadJson(
            f"unknown field {sanitize(unknown[0], 80)!r}; a run has {', '.join(sorted(FIELDS))}{hint}"
        )
    if "input" not in item:
        raise BadJson("no input: a run has an input, or --key-field says that each object is one")
    planner = _needed(item, "planner", defaults.planner)
    return RunRequest(
        planner=planner,
        version=defaults.version_of(planner, item.get("version", defaults.version)),
        input=item["input"],
        run_key=_needed(item, "run_key", None),
        tenant=_needed(item, "tenant", defaults.tenant),
        principal=_needed(item, "principal", defaults.principal),
        deadline=_deadline(item.get("deadline"), defaults.deadline),
        budget=_budget(item.get("budget")),
        on_stop=item.get("on_stop", defaults.on_stop),
        tainted=item.get("tainted", defaults.tainted),
    )


def _keyed(value: Mapping[str, Any], field: str) -> dict[str, Any]:
    if field not in value:
        raise BadJson(f"no field {sanitize(field, 80)!r}, which --key-field says is the run key")
    key = value[field]
    if isinstance(key, bool) or not isinstance(key, str | int):
        raise BadJson(
            f"the run key in field {sanitize(field, 80)!r} is {_kind(key)}, not a text or whole number"
        )
    return {"run_key": str(key), "input": value}


def _needed(item: Mapping[str, Any], field: str, default: str | None) -> Any:
    value = item.get(field, default)
    if value is None:
        how = "give one in the run" + (f", or with --{field}" if field != "run_key" else "")
        raise BadJson(f"no {field}: {how}")
    return value


def _deadline(value: Any, default: timedelta) -> timedelta:
    if value is None:
        return default
    if not isinstance(value, str):
        raise BadJson(f'deadline is a duration from now, such as "5m", not {_kind(value)}')
    try:
        return parse_duration(value)
    except ValueError as error:
        raise BadJson(f"deadline {error}") from None


def _budget(value: Any) -> Budget | None:
    if value is None:
        return None
    try:
        return Budget.from_json(value)
    except ValueError as error:
        raise BadJson(str(error)) from None


def _kind(value: object) -> str:
    names = {dict: "an object", list: "an array", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")
