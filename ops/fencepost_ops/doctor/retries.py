"""The clients of an application that retry behind our back (R4): found in what it holds, without a network.

Looked through are the globals of the modules that define the application and its functions, and what those
functions hold: closures, defaults, partial arguments, the objects they are methods of; bounded in depth and
number. What a function makes when it is called cannot be seen, and is said to be unseen.
"""

from __future__ import annotations

import dis
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from types import CodeType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any, Final

from fencepost.app import App
from fencepost_ops.doctor.findings import Area, Finding
from fencepost_ops.doctor.resends import OFF, Looked, look, look_at_module, wraps_in_retries

MAX_OBJECTS: Final = 20_000
MAX_DEPTH: Final = 6
MAX_ITEMS: Final = 500  # of one collection

_AREA: Final = Area("retries")
_OURS: Final = frozenset({"fencepost", "fencepost_workers", "fencepost_relay"})
_PARTS: Final = ("request", "parse", "lookup", "lookup_parse", "compensate", "check", "function", "intent")
_PLAIN: Final = (str, bytes, int, float, complex, bool, type(None), type(...))
_PACKAGE: Final = {"botocore": "boto3"}  # whose clients are of another package

Named = tuple[str, object]


def judge_retries(app: App, module: str) -> list[Finding]:
    """What the application's clients do by themselves; `module` is the one the application is named by."""
    roots = [*_functions(app)]
    modules = _modules(roots, module)
    walk = Walk([*roots, *_globals(modules)], modules)  # what is both is named by its part
    found = list(walk.clients())
    seen = {_PACKAGE.get(root := looked.client.partition(".")[0], root) for _, looked in found}
    named = _mentioned(modules) | _imported_by(walk.functions, modules)
    mentioned = {_PACKAGE.get(name, name) for name in named}
    findings = [finding for where, looked in found for finding in _judged(where, looked)]
    for name in sorted(mentioned | ({"stripe"} & sys.modules.keys())):
        if (looked := look_at_module(name)) is not None:
            findings += _judged("imported", looked)
            seen.add(name)
    findings += list(_wrapped(walk.functions))
    findings += list(_unseen(mentioned - seen))
    if walk.cut:
        findings.append(
            _AREA.note(f"the application holds more than {MAX_OBJECTS} objects; the rest was not looked at")
        )
    if not findings:
        findings.append(_AREA.ok("no client of the application sends again by itself, as far as can be seen"))
    return findings


def _judged(where: str, looked: Looked) -> Iterator[Finding]:
    for resend in looked.resends:
        says = f"{looked.client} ({where}) {resend.says}"
        yield _AREA.problem(says, resend.off) if resend.harmful else _AREA.warning(says, resend.off)
    if not looked.resends:
        yield _AREA.ok(f"{looked.client} ({where}) sends once")


def _wrapped(functions: Iterable[Named]) -> Iterator[Finding]:
    for where, function in functions:
        if (package := wraps_in_retries(function)) is not None:
            yield _AREA.problem(
                f"{where} is wrapped in retries of {package}: one attempt may act several times",
                f"take {package} off it; app.dependency(attempts=...) tries again, by the contract",
            )


def _unseen(packages: Iterable[str]) -> Iterator[Finding]:
    for name in sorted(packages):
        yield _AREA.note(
            f"{name} is used, and no client of it was found: what a function makes when called is not seen",
            f"make it once, beside the application, with {OFF[name]}",
        )


def _functions(app: App) -> Iterator[Named]:
    """What the application was declared with, by the part it plays."""
    for tool in app.registry.values():
        for part in _PARTS:
            if (value := getattr(tool, part)) is not None and not isinstance(value, _PLAIN):
                yield f"{part} of tool {tool.name}", value
        yield f"receipt of tool {tool.name}", tool.receipt
    for spec in app.planners.values():
        for name in ("plan", "script", "verify"):
            yield f"{name} of planner {spec.name}", getattr(spec, name)
    yield "the authority", app.authority


def _modules(roots: Iterable[Named], module: str) -> dict[str, ModuleType]:
    names = {module}
    for _, value in roots:
        inner = value.func if isinstance(value, partial) else value
        names.add(getattr(inner, "__module__", None) or type(inner).__module__)
    known = {name: sys.modules[name] for name in sorted(names) if name in sys.modules}
    return {n: m for n, m in known.items() if n.partition(".")[0] not in {*_OURS, *sys.stdlib_module_names}}


def _globals(modules: Mapping[str, ModuleType]) -> Iterator[Named]:
    for name, module in modules.items():
        for attribute, value in list(vars(module).items()):
            if not attribute.startswith("__"):
                yield f"{name}.{attribute}", value


def _mentioned(modules: Mapping[str, ModuleType]) -> set[str]:
    """The packages with known clients that these modules name: imported whole, or by one of their classes."""
    found = set()
    for _, value in _globals(modules):
        name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
        if isinstance(value, ModuleType | type | FunctionType) and isinstance(name, str):
            found.add(name.partition(".")[0])
    return found & OFF.keys()


def _imported_by(functions: Iterable[Named], modules: Mapping[str, ModuleType]) -> set[str]:
    """The packages with known clients that the modules' functions import for themselves when called."""
    theirs = [f for _, f in functions if isinstance(f, FunctionType) and f.__module__ in modules]
    return {name for function in theirs for name in _imports(function.__code__)} & OFF.keys()


def _imports(code: CodeType) -> Iterator[str]:
    for instruction in dis.get_instructions(code):
        if instruction.opname == "IMPORT_NAME":
            yield str(instruction.argval).partition(".")[0]
        elif isinstance(instruction.argval, CodeType):
            yield from _imports(instruction.argval)


class Walk:
    """A bounded look through objects, breadth first; it calls nothing and reads only what is stored."""

    def __init__(self, roots: Iterable[Named], modules: Mapping[str, ModuleType]) -> None:
        self._queue = deque((where, value, 0) for where, value in roots)
        self._modules = modules
        self._seen: dict[int, object] = {}  # holds them, so that no id is given again
        self.functions: list[Named] = []
        self.cut = False

    def clients(self) -> Iterator[tuple[str, Looked]]:
        """Every client that is reached, once, by the shortest way to it."""
        while self._queue:
            where, value, depth = self._queue.popleft()
            if issubclass(type(value), (*_PLAIN, ModuleType)) or id(value) in self._seen:
                continue
            if len(self._seen) >= MAX_OBJECTS:
                self.cut = True
                return
            self._seen[id(value)] = value
            if type(value) is FunctionType:
                self.functions.append((where, value))
            if (looked := look(value)) is not None:
                yield where, looked
            elif depth < MAX_DEPTH:
                self._queue.extend(
                    (f"{where}{step}", inner, depth + 1) for step, inner in self._inside(value)
                )

    def _inside(self, value: Any) -> Iterator[Named]:
        kind = type(value)  # never isinstance: a proxy would be asked what it stands for
        if issubclass(kind, dict):
            yield from ((f"[{_key(key)}]", item) for key, item in _some(dict.items(value)))
        elif issubclass(kind, list | tuple | set | frozenset | deque):
            yield from ((f"[{number}]", item) for number, item in enumerate(_some(value)))
        elif kind is FunctionType:
            yield from _held_by(value)
        elif kind is MethodType:
            yield from ((".__self__", value.__self__), (".__func__", value.__func__))
        elif kind is partial:
            yield from (("(...)", item) for item in (value.func, value.args, value.keywords))
        elif issubclass(kind, type):
            if value.__module__ in self._modules:
                yield from ((f".{name}", item) for name, item in _some(vars(value).items()))
        else:
            yield from _stored_in(value)


def _key(key: object) -> str:
    return repr(key)[:40] if type(key) in _PLAIN else type(key).__name__


def _some(items: Iterable[Any]) -> list[Any]:
    """A bounded copy, because what is looked at may change meanwhile."""
    try:
        return [item for _, item in zip(range(MAX_ITEMS), items, strict=False)]
    except RuntimeError:
        return []


def _held_by(function: FunctionType) -> Iterator[Named]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            yield f": its {name}", cell.cell_contents
        except ValueError:  # not filled yet
            continue
    arguments = function.__code__.co_varnames[: function.__code__.co_argcount]
    defaults = function.__defaults__ or ()
    yield from zip((f": its default {name}" for name in arguments[-len(defaults) :]), defaults, strict=False)
    for name, value in (function.__kwdefaults__ or {}).items():
        yield f": its default {name}", value
    if (wrapped := vars(function).get("__wrapped__")) is not None:
        yield ": what it wraps", wrapped


def _stored_in(value: object) -> Iterator[Named]:
    try:
        stored = object.__getattribute__(value, "__dict__")
    except AttributeError:
        stored = {}
    yield from ((f".{name}", item) for name, item in _some(stored.items()))
    for cls in type(value).__mro__:
        slots: Any = vars(cls).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else tuple(slots):
            if isinstance(member := vars(cls).get(name), MemberDescriptorType):
                try:
                    yield f".{name}", member.__get__(value, cls)
                except AttributeError:  # not set
                    continue
