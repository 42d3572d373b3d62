"""Options nobody knows, and values no option takes: both would be found in a run, far from where they stand.

A misspelt option would be one that is not said, and some of them are for safety.
"""

import difflib
import inspect
import os
import sysconfig
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from datetime import timedelta
from enum import Enum
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from fencepost.errors import Mistyped, UsageError

_HERE: Final = f"{Path(__file__).parent}{os.sep}"
_INSTALLED: Final = tuple(
    {f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "purelib", "platlib")}
)
_SHOWN: Final = 60
_UNSAID: Final = frozenset({"headers", "key", "env", "dsn", "replica"})
"""Options whose value may hold a credential: their type is told only."""


def taken(maker: Callable[..., object], options: type) -> set[str]:
    """What a declaration takes beside its name: its own parameters, and the options of this TypedDict."""
    own = inspect.signature(maker).parameters.values()
    named = {one.name for one in own if one.kind is one.KEYWORD_ONLY or one.default is not one.empty}
    return named.union(options.__annotations__)


def refuse_unknown(
    whose: str,
    said: Iterable[str],
    known: Iterable[str],
    elsewhere: Mapping[str, Iterable[str]] | None = None,
) -> None:
    """UsageError for the first option said that is none of the known, with the nearest and all of them.

    `elsewhere` are the options of other declarations, by what declares them.
    """
    takes = sorted(known)
    for option in said:
        if option in takes:
            continue
        home = next((place for place, options in (elsewhere or {}).items() if option in options), None)
        near = difflib.get_close_matches(option, takes, 1)
        hint = f"; it belongs to {home}" if home else f"; did you mean {near[0]}?" if near else ""
        raise UsageError(f"{whose} has no option {option}{hint} (it takes {', '.join(takes)})")


def check_fields(declared: Any, whose: str = "") -> None:
    """Mistyped for the first field of a dataclass whose value is not of the type it declares."""
    values = {one.name: getattr(declared, one.name) for one in fields(declared)}
    check_values(whose or type(declared).__name__, values, type(declared))


def check_values(whose: str, values: Mapping[str, object], kind: object) -> None:
    """Mistyped for the first value that its annotation in `kind`, a class or a function, does not take.

    It names the option, the type with an example, the value, and the line of the application that says it.
    """
    hints = _hints(kind)
    for name, value in values.items():
        if name in hints and not _takes(hints[name], value):
            got = f"a {type(value).__name__}" if name in _UNSAID else repr(value)
            got = got if len(got) <= _SHOWN else f"{got[:_SHOWN]}…"
            raise Mistyped(f"{whose}: {name}= takes {_said(hints[name], value)}; got {got}{_place()}")


def is_ours(file: str) -> bool:
    """Whether a file of code is this library's."""
    return file.startswith(_HERE)


def is_application(file: str) -> bool:
    """Whether a file of code is the application's: neither ours, nor installed, nor Python's own."""
    return not is_ours(file) and not file.startswith(("<", *_INSTALLED))


def _place() -> str:
    """The nearest line of a caller that is the application's."""
    frame = inspect.currentframe()
    while frame is not None:
        if is_application(frame.f_code.co_filename):
            return f" ({Path(frame.f_code.co_filename).name}:{frame.f_lineno})"
        frame = frame.f_back
    return ""


@cache
def _hints(kind: Any) -> dict[str, Any]:
    """The annotations of a class or function, but for those that only a type checker can resolve."""
    try:
        return get_type_hints(kind)
    except NameError:
        pass
    found: dict[str, Any] = {}
    for name, raw in kind.__annotations__.items():
        alone = type("alone", (), {"__annotations__": {name: raw}, "__module__": kind.__module__})
        try:
            found |= get_type_hints(alone)
        except NameError:
            continue
    return found


def _takes(hint: Any, value: object) -> bool:
    origin, given = get_origin(hint), get_args(hint)
    if isinstance(hint, TypeVar):
        return hint.__bound__ is None or _takes(hint.__bound__, value)
    if hint is Any or hint is object:
        return True
    if origin is Annotated:
        return _takes(given[0], value)
    if origin is Union or origin is UnionType:
        return any(_takes(one, value) for one in given)
    if origin is Literal:
        return any(type(value) is type(one) and value == one for one in given)
    if origin is type:
        return isinstance(value, type) and (not isinstance(given[0], type) or issubclass(value, given[0]))
    if hint is None or hint is NoneType:
        return value is None
    if hint in (int, float):
        return isinstance(value, (int, hint)) and not isinstance(value, bool)
    return _holds(origin or hint, given, value)


def _holds(kind: Any, given: tuple[Any, ...], value: object) -> bool:
    if kind is tuple:
        if not isinstance(value, tuple | list):
            return False
        each = given[:1] * len(value) if given[-1:] == (...,) else given or (Any,) * len(value)
        return len(each) == len(value) and all(map(_takes, each, value))
    if kind is Callable:
        return callable(value)
    try:
        if not isinstance(value, kind):
            return False
    except TypeError:  # a protocol that nobody can ask for
        return True
    if isinstance(value, Mapping) and len(given) == 2:
        return all(_takes(given[0], key) and _takes(given[1], item) for key, item in value.items())
    if isinstance(value, str | bytes):
        return not given
    return len(given) != 1 or not isinstance(value, Iterable) or all(_takes(given[0], one) for one in value)


def _said(hint: Any, value: object) -> str:
    """The type in words, with an example where there is a usual one."""
    origin, given = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _said(given[0], value)
    if isinstance(hint, TypeVar):
        return _said(hint.__bound__, value)
    if origin is Union or origin is UnionType:
        return " or ".join(dict.fromkeys(_said(one, value) for one in given if one is not NoneType))
    if origin is Literal:
        return " or ".join(map(repr, given))
    if origin is tuple:
        return (
            f"a tuple, e.g. ({value!r},)"
            if isinstance(value, str | int)
            else f"a tuple, each of which is {_said(given[0], None)}"
        )
    if origin is frozenset:
        return "a frozenset, e.g. frozenset({400, 402})" if given[0] is int else "a frozenset"
    if hint is timedelta:
        number = value if isinstance(value, int | float) and not isinstance(value, bool) else 10
        return f"a timedelta, e.g. timedelta(seconds={number})"
    if isinstance(hint, type) and issubclass(hint, Enum):
        return " or ".join(map(str, (f"{hint.__name__}.{one.name}" for one in hint)))
    known = {int: "a whole number", float: "a number", bool: "True or False", str: "text", type(None): "None"}
    if hint in known:
        return known[hint]
    if origin is type:
        return f"{getattr(given[0], '__name__', 'a class')} or a subclass of it"
    kind = origin or hint
    named = {"Callable": "a function", "Sequence": "a list", "Mapping": "a dict"}
    name = getattr(kind, "__name__", str(kind))
    return named.get(name, f"a {name}, e.g. {name}(...)")
