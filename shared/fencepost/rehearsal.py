"""Tries what a tool declares, on sample arguments, when it is declared. PURE, as the functions it calls are.

Request, lookup and compensation are built once and judged by the engine's own rules, the intent's key is
made, a result is stored and read back; nothing is sent, and no Python tool is run. What the tool's own
`examples=` show wrong is a problem. Of samples made here only what the engine itself refuses, of every one of
them, is a problem: what the application's functions make of an unlikely value is a note.
"""

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from typing import Any, Final, get_args

from pydantic import BaseModel, Secret, SecretBytes, SecretStr, ValidationError

from fencepost.canonical import digest, encode, sanitize
from fencepost.dependencies import resolve
from fencepost.errors import UsageError
from fencepost.fields import TenantId, is_excluded, parts_of
from fencepost.misfits import misfits
from fencepost.misspelt import is_application, is_ours
from fencepost.outbound import outbound
from fencepost.outcomes import receipt_of, result_text, told
from fencepost.proposals import canonical_value
from fencepost.samples import NoSample, samples
from fencepost.tools import Proposal, Tool

TENANT: Final = "sample"
_KEY: Final = digest("fencepost.sample.v1", [])
_UNSET: Final = "https://unset.invalid"


@dataclass(frozen=True)
class Rehearsed:
    """What the trial of one tool found: what keeps it from running, and what could not be tried."""

    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Missed:
    """One part that failed on one sample; `ours`: it is the engine that refuses it."""

    part: str
    said: str
    ours: bool


def rehearse(tool: Tool, tools: Mapping[str, Tool]) -> Rehearsed:
    """The trial of one tool; `tools` are those that its compensation may propose.

    What its functions print goes to standard error, and a process that one of them forks ends here.
    """
    pid = os.getpid()
    try:
        with redirect_stdout(sys.stderr):
            return _rehearsed(tool, tools)
    finally:
        if os.getpid() != pid:
            os._exit(1)


def _rehearsed(tool: Tool, tools: Mapping[str, Tool]) -> Rehearsed:
    if hidden := sorted(set(_hidden(tool.arguments))):
        return Rehearsed(tuple(hidden))
    try:
        found = _arguments(tool)
    except UsageError as error:
        return Rehearsed((str(error),))
    except NoSample as error:
        return Rehearsed(notes=(f"was not tried: no arguments could be made up ({error}); {_line(tool)}",))
    tool = _reachable(tool)
    problems, notes = _sorted(tool, [list(_tried(tool, args)) for args in found])
    more, unsaid = _results(tool, found[0], tools)
    return Rehearsed((*problems, *more), (*notes, *unsaid))


def _line(tool: Tool) -> str:
    fields = ", ".join(f"{name}=..." for name in tool.arguments.model_fields)
    return f"add examples=[{tool.arguments.__name__}({fields})]"


def _hidden(model: type[BaseModel]) -> Iterator[str]:
    for name, kinds in _fields(model):
        if any(map(_stars, kinds)):
            yield f"argument {name} is masked, so that stars would be stored and sent; make it a SecretRef"
    for one in _models(model):
        for name, info in one.model_fields.items():
            if is_excluded(info):
                yield f"argument {name} is excluded (exclude=True), so that it would be lost; take that off"


def _fields(model: type[BaseModel]) -> Iterator[tuple[str, list[Any]]]:
    for one in _models(model):
        for name, info in one.model_fields.items():
            yield name, list(_kinds(info.annotation))


def _models(model: type[BaseModel]) -> set[type[BaseModel]]:
    found, rest = {model}, [model]
    while rest:
        for info in rest.pop().model_fields.values():
            for kind in _kinds(info.annotation):
                if isinstance(kind, type) and issubclass(kind, BaseModel) and kind not in found:
                    found.add(kind)
                    rest.append(kind)
    return found


def _kinds(annotation: Any) -> Iterator[Any]:
    yield getattr(annotation, "__origin__", annotation)
    for part in get_args(annotation):
        yield from _kinds(part)


def _arguments(tool: Tool) -> list[BaseModel]:
    """Sample arguments: those of `examples=`, else made up. UsageError for an example that is none."""
    texts = []
    for number, example in enumerate(tool.examples):
        try:
            given = Proposal(tool.name, example).arguments
            texts.append(given if isinstance(given, str) else encode(given).decode())
            tool.read_arguments(texts[-1])
        except ValidationError as error:
            said = "; ".join(one.told() for one in misfits(error)[:5])
            raise UsageError(f"examples[{number}] is no argument of it: {said}") from None
        except Exception as error:  # noqa: BLE001 - a validator of the model may raise anything
            raise UsageError(f"examples[{number}] is no argument of it: {told(error)}") from None
    if not texts:
        # Free text may be a path or a whole URL to its tool: what is refused of all three is refused always.
        words = ("sample", "/sample", f"{_base(tool)}/sample")
        known = dict.fromkeys(tool.tenant_fields, TENANT)
        secret = next(iter(tool.secrets), "sample").replace("*", "sample")
        fixed = {name: known[name] for name in known if name in tool.arguments.model_fields}
        texts = samples(tool.arguments, words, fixed=fixed | {"secret": secret}, strict=True)
    return [tool.read_arguments(text) for text in texts]


def _base(tool: Tool) -> str:
    host = next((one for one in tool.dependency.hosts if "*" not in one), None)
    return _UNSET if host is None else host if "://" in host else f"https://{host}"


def _reachable(tool: Tool) -> Tool:
    """The tool, at a place that stands for its base URL where this process does not know that."""
    spec = tool.dependency
    try:
        if spec.base_url is not None:
            outbound(resolve(spec.base_url), (), ())
        return tool
    except (UsageError, ValueError):
        return replace(tool, dependency=replace(spec, base_url=_UNSET))


def _tried(tool: Tool, args: BaseModel) -> Iterator[_Missed]:
    """What fails of these arguments: their canonical form, the tool's pure functions, the two requests."""
    tenant = next((part.tenant for part in parts_of(args) if isinstance(part, TenantId)), TENANT)

    def canonical() -> None:
        text = encode(canonical_value(args)).decode()
        if tool.read_arguments(text) != args:
            raise ValueError("the arguments change when written as JSON and read back")

    parts: dict[str, Callable[[], object]] = {
        "arguments": canonical,
        "intent": lambda: tool.operation(tenant, args, run="sample", turn=1, ordinal=0),
        "resource": lambda: tool.resource(tenant, args),
    }
    if tool.check is not None and tool.examples:
        parts["check"] = lambda: _passes(tool, args)
    if tool.acts_on is not None:
        parts["acts_on"] = lambda: tool.acts_on and tool.acts_on(args)
    if tool.amount is not None:
        parts["amount"] = lambda: tool.amount and tool.amount(args)
    if tool.request is not None:
        parts["request"] = lambda: tool.stored_request(args, _KEY)
    if tool.lookup is not None and tool.sends_request:  # a Python tool asks by itself
        parts["lookup"] = lambda: tool.lookup_request(args, _KEY)
    for part, attempt in parts.items():
        try:
            attempt()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the functions are the application's code
            yield _Missed(part, told(error), _ours(error))


def _passes(tool: Tool, args: BaseModel) -> None:
    if tool.check is not None and tool.check(args) is False:
        raise ValueError("it refuses these arguments")


def _ours(error: BaseException) -> bool:
    """Whether it is the engine that refused, not the application's own function that failed."""
    trace, last = error.__traceback__, ""
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if is_ours(name) or is_application(name):
            last = name
        trace = trace.tb_next
    return is_ours(last) and (last != __file__ or isinstance(error, ValueError))


def _sorted(tool: Tool, missed: list[list[_Missed]]) -> tuple[list[str], list[str]]:
    """What is a problem of the parts that failed, and what is a note."""
    if tool.examples:
        return list(dict.fromkeys(f"{one.part}: {one.said}" for each in missed for one in each)), []
    always = set.intersection(*({one.part for one in each} for each in missed))
    problems: dict[str, str] = {}
    notes: dict[str, str] = {}
    for one in (one for each in missed for one in each if one.part in always):
        ours = all(other.ours for each in missed for other in each if other.part == one.part)
        if ours:
            said = f"{one.part}: {one.said} (of made-up arguments; if they mislead, {_line(tool)})"
            problems.setdefault(one.part, said)
        else:
            notes.setdefault(
                one.part, f"its {one.part} was not tried: made-up arguments give {one.said}; {_line(tool)}"
            )
    return list(problems.values()), list(notes.values())


def _results(tool: Tool, args: BaseModel, tools: Mapping[str, Tool]) -> tuple[list[str], list[str]]:
    """The round trip of a result, and the compensation made of it."""
    if tool.returns is None:
        return _offsets(tool, args, [None], tools)
    name = tool.returns.__name__
    try:
        texts = samples(tool.returns)
    except NoSample as error:
        cure = f"give its fields Field(examples=[...]): no {name} could be made up ({error})"
        if tool.compensable and _serialized(tool.returns):
            return [f"its result has serializers of its own, not proved to read back; {cure}"], []
        return [], [f"its result was not tried; {cure}"]
    stored = []
    for text in texts:
        made = tool.returns.model_validate_json(text)
        stored.append(result_text(made))
        if (why := _unlike(made, stored[-1])) is not None:
            said = f"a result {name} does not read back from what is stored of it: {why}"
            return ([said], []) if tool.compensable else ([], [said])
    return _offsets(tool, args, stored, tools)


def _serialized(model: type[BaseModel]) -> bool:
    own = [one.__pydantic_decorators__ for one in _models(model)]
    return any(one.field_serializers or one.model_serializers for one in own)


def _unlike(made: BaseModel, stored: str) -> str | None:
    """Why a result is another one when it is read back; None where it is the same."""
    kind = type(made)
    try:
        read = kind.model_validate_json(stored)
    except ValidationError as error:
        said = "; ".join(one.told() for one in misfits(error)[:3])
        return f"{said} (use alias=, not validation_alias=; extra='ignore' beside a computed field)"
    except Exception as error:  # noqa: BLE001 - a validator of the model may raise anything
        return told(error)
    for name, info in kind.model_fields.items():
        was, now = getattr(made, name), getattr(read, name)
        if was != now and not is_excluded(info) and not _masked(info.annotation):
            return f"{name} was {sanitize(repr(was), 60)} and is {sanitize(repr(now), 60)}"
    return None


def _masked(annotation: Any) -> bool:
    """Whether a field may hold what is masked; what of it a compensation reads is refused there."""
    kinds = list(_kinds(annotation))
    models = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
    nested = (kind for model in models for _, inner in _fields(model) for kind in inner)
    return any(map(_stars, (*kinds, *nested)))


def _stars(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, SecretStr | SecretBytes | Secret)


def _offsets(
    tool: Tool, args: BaseModel, stored: Sequence[str | None], tools: Mapping[str, Tool]
) -> tuple[list[str], list[str]]:
    """What is wrong with the compensations of these results."""
    if tool.compensate is None or tool.memory is not None:
        return [], []
    notes: list[str] = []
    for result in stored:
        try:
            receipt = "sample" if result is None or tool.returns is None else _receipt(tool, result)
            offset = tool.compensation(args, result, receipt)
        except UsageError as error:
            return [str(error)], []
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the compensation is the application's code
            notes.append(f"its compensation was not tried: made-up values give {told(error)}")
            continue
        problem, note = _proposed(offset, tools)
        if problem:
            return [problem], []
        notes += [note] if note else []
    return [], list(dict.fromkeys(notes)) if len(notes) == len(stored) else []


def _receipt(tool: Tool, result: str) -> str | None:
    assert tool.returns is not None
    return receipt_of(tool, tool.returns.model_validate_json(result))


def _proposed(offset: object, tools: Mapping[str, Tool]) -> tuple[str | None, str | None]:
    """What is wrong with a compensation's proposal, and what is only unlikely."""
    if not isinstance(offset, Proposal):
        return f"its compensation gives {type(offset).__name__}, not a Proposal", None
    target = tools.get(offset.tool)
    if target is None or offset.version not in {None, target.version}:
        return f"its compensation proposes {offset.tool}, which is no tool of this app", None
    try:
        given = offset.arguments
        target.read_arguments(given if isinstance(given, str) else encode(given).decode())
    except ValidationError as error:
        said = "; ".join(one.told() for one in misfits(error)[:3])
        said = f"its compensation proposes {offset.tool} with arguments that it does not take: {said}"
        fatal = {one["type"] for one in error.errors()} & {"missing", "extra_forbidden"}
        return (said, None) if fatal else (None, f"{said} (of a made-up result)")
    except Exception as error:  # noqa: BLE001 - a validator of the model may raise anything
        return None, f"its compensation was not tried: {told(error)}"
    return None, None
