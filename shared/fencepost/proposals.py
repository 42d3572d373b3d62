"""What a planner proposes is input: the first five checks, each with its own typed rejection.

(1) schema and size, (2) known tool and version, (3) canonical arguments, (4) tenant binding, (5) the tool's
own business check. Authority (6) stands behind its port; the call's lease and doubt (7) and the budget (8)
are judged in the claim. Nothing here raises for what a planner wrote, and nothing rejected can be dispatched.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from fencepost.authority import matches
from fencepost.canonical import CanonicalError, admit, arguments_hash, encode, parse, sanitize
from fencepost.clock import rfc3339
from fencepost.contracts import Effect
from fencepost.fields import CODE_PREFIX, TenantId, parts_of
from fencepost.misfits import misfits
from fencepost.outbound import OutboundRefused
from fencepost.secrets import SecretRef
from fencepost.tools import Proposal, Tool

PREVIEW_CHARS: Final = 2000
LABEL_CHARS: Final = 200
MESSAGE_CHARS: Final = 500
WITHHELD: Final = "(not kept: these arguments may hold a secret)"

# What is no JSON at all, or too much of it, fails the schema; JSON that two readers could take for different
# things fails canonical form.
_SCHEMA_CODES = frozenset({"syntax", "encoding", "too_large", "too_deep", "key_type", "type"})


@dataclass(frozen=True)
class Limits:
    """How large the arguments of one proposal may be, as canonical text, and how deeply nested."""

    max_bytes: int = 64 * 1024
    max_depth: int = 32


@dataclass(frozen=True)
class Validated:
    """A proposal that passed checks 1 to 5. `arguments` is canonical text, `operation` None for READ."""

    tool_name: str
    tool_version: int
    label: str
    arguments: str
    arguments_hash: str
    operation: str | None
    scope: str
    effect: Effect
    required: bool
    resource: str | None = None


@dataclass(frozen=True)
class Rejected:
    """A proposal that failed check `step`. All text is safe to store and show; `arguments` is a preview."""

    step: int
    code: str
    message: str
    tool_name: str
    label: str
    arguments: str


class _Refusal(Exception):
    def __init__(self, step: int, code: str, message: object, *, withhold: bool = False) -> None:
        super().__init__(step, code, message)
        self.step, self.code, self.message = step, code, sanitize(message, MESSAGE_CHARS)
        self.withhold = withhold


def validate(
    proposal: Proposal,
    *,
    tools: Mapping[str, Tool],
    tenant: str,
    run_id: str,
    turn: int,
    ordinal: int,
    limits: Limits = Limits(),
) -> Validated | Rejected:
    """Checks 1 to 5 of one proposal; `tools` maps names to their newest versions, the only ones proposable.

    `ordinal` is the proposal's place in its turn. A proposal without a label is labelled `turn.ordinal`.
    """
    label = sanitize(proposal.call_id, LABEL_CHARS, data=True) or f"{turn}.{ordinal}"
    try:
        tool, args = _recognised(proposal, tools, limits)
        text, hashed = _canonical(tool, args, limits)
        _bound(tool, args, tenant)
        _business(tool, args)
        _admitted(tool, args)
        operation = _operation(tool, args, tenant, run_id, turn, ordinal)
        resource = _resource(tool, args, tenant)
    except _Refusal as refusal:
        name = sanitize(proposal.tool, LABEL_CHARS)
        told = f"{refusal.code}: {refusal.message}"  # the planner is told the message alone
        # What stands where a secret's name should may be the secret.
        shown = WITHHELD if refusal.withhold else preview(proposal.arguments)
        return Rejected(refusal.step, refusal.code, told, name, label, shown)
    return Validated(
        tool.name,
        tool.version,
        label,
        text,
        hashed,
        operation,
        tool.scope,
        tool.effect,
        tool.required,
        resource,
    )


def preview(arguments: object, limit: int = PREVIEW_CHARS) -> str:
    """Arguments as bounded, storable text for people; never raises and is never parsed again."""
    if not isinstance(arguments, str | bytes):
        try:
            arguments = json.dumps(arguments, default=repr)
        except Exception:  # noqa: BLE001 - a preview must never be what fails
            arguments = f"<{type(arguments).__name__}>"
    return sanitize(arguments, limit)


def _recognised(proposal: Proposal, tools: Mapping[str, Tool], limits: Limits) -> tuple[Tool, BaseModel]:
    """Steps 1 and 2, and the part of 3 that a text shows before any model has read it."""
    late: CanonicalError | None = None
    value: object = {}
    try:
        value = _parsed(proposal.arguments, limits)
    except CanonicalError as error:
        if error.code in _SCHEMA_CODES:
            raise _Refusal(1, error.code, f"{error.path}: {error.message}") from None
        late = error
    if not isinstance(value, dict):
        raise _Refusal(1, "not_an_object", f"arguments must be a JSON object, not {type(value).__name__}")
    tool = tools.get(proposal.tool)
    if tool is None:
        raise _Refusal(2, "unknown_tool", f"there is no tool {proposal.tool!r}")
    if proposal.version not in {None, tool.version}:
        raise _Refusal(
            2, "unknown_version", f"{tool.name} is at version {tool.version}, not {proposal.version}"
        )
    if late is not None:
        raise _Refusal(3, late.code, f"{late.path}: {late.message}")
    return tool, _modelled(tool, encode(value).decode())


def _parsed(arguments: object, limits: Limits) -> object:
    if isinstance(arguments, str):
        return parse(arguments, max_bytes=limits.max_bytes, max_depth=limits.max_depth)
    value = dict(arguments) if isinstance(arguments, Mapping) else arguments
    admit(value, max_depth=limits.max_depth)
    _sized(encode(value), limits)
    return value


def _sized(data: bytes, limits: Limits) -> None:
    if len(data) > limits.max_bytes:
        raise CanonicalError("too_large", "$", f"{len(data)} bytes; at most {limits.max_bytes} are accepted")


def _modelled(tool: Tool, text: str) -> BaseModel:
    try:
        return tool.read_arguments(text)
    except ValidationError as error:
        found = misfits(error)
        problems = "; ".join(one.told() for one in found[:5])
        secret = any(one.kind == f"{CODE_PREFIX}secret" for one in found)
        if all(one.kind.startswith(CODE_PREFIX) for one in found):  # it fits, but has no canonical form
            code = found[0].kind.removeprefix(CODE_PREFIX)
            raise _Refusal(3, code, problems, withhold=secret) from None
        raise _Refusal(1, "schema", problems, withhold=secret) from None
    except Exception as error:  # noqa: BLE001 - a model's own validator may raise anything
        raise _Refusal(1, "schema", _told(error)) from None


def _canonical(tool: Tool, args: BaseModel, limits: Limits) -> tuple[str, str]:
    """Step 3: defaults filled in, sets sorted, and proof that the text reads back as the same arguments."""
    try:
        value = canonical_value(args)
        data = encode(value)
        _sized(data, limits)
        text = data.decode()
        same = tool.read_arguments(text) == args
        hashed = arguments_hash(value)
    except CanonicalError as error:
        raise _Refusal(3, error.code, f"{error.path}: {error.message}") from None
    except Exception as error:  # noqa: BLE001 - serializers and validators of the model may raise anything
        raise _Refusal(3, "not_canonical", _told(error)) from None
    if not same:
        raise _Refusal(
            3, "not_canonical", f"arguments of {tool.name} change when written as JSON and read back"
        )
    return text, hashed


def canonical_value(args: BaseModel) -> Any:
    """The JSON value of validated arguments: by alias, defaults included, sets sorted by their text, instants
    in UTC with six decimals.

    CanonicalError for a time without a zone.
    """
    written = args.model_dump(mode="json", by_alias=True, exclude_computed_fields=True, warnings=False)
    return _spelled(args, written)


def _spelled(value: object, written: Any) -> Any:
    """`written`, which is what the model made of `value`, in the one spelling of what JSON has none for.

    What a serializer of the application's own has given another shape is left as it gave it.
    """
    if isinstance(written, str):
        return _instant(value, written) if isinstance(value, datetime) else written
    if isinstance(written, dict):
        if isinstance(value, BaseModel):
            return written | dict(_spelled_fields(value, written))
        if isinstance(value, dict) and len(value) == len(written):
            pairs = zip(value.values(), written.items(), strict=True)
            return {name: _spelled(item, text) for item, (name, text) in pairs}
        if is_dataclass(value):
            named = {f.name: getattr(value, f.name) for f in fields(value)}
            return {name: _spelled(named.get(name), text) for name, text in written.items()}
    if isinstance(written, list):
        if isinstance(value, set | frozenset | list | tuple) and len(value) == len(written):
            written = [_spelled(item, text) for item, text in zip(value, written, strict=True)]
        return sorted(written, key=encode) if isinstance(value, set | frozenset) else written
    return written


def _spelled_fields(model: BaseModel, written: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, info in type(model).model_fields.items():
        alias = info.serialization_alias or info.alias or name
        if alias in written:
            yield alias, _spelled(getattr(model, name), written[alias])
    for name, item in (model.model_extra or {}).items():
        if name in written:
            yield name, _spelled(item, written[name])


def _instant(value: datetime, written: str) -> str:
    try:
        same = datetime.fromisoformat(written) == value
    except (ValueError, TypeError):
        same = False
    if not same:  # a spelling of the application's own
        return written
    if value.tzinfo is None:
        message = (
            "a time without a zone may be any of a day's instants; declare it as fencepost.fields.Instant"
        )
        raise CanonicalError("instant", "$", message)
    return rfc3339(value)


def _bound(tool: Tool, args: BaseModel, tenant: str) -> None:
    """Step 4: whatever names a tenant names this one, and a secret is one the tool is declared to use."""
    for part in parts_of(args):
        if isinstance(part, TenantId) and part.tenant != tenant:
            raise _Refusal(4, "tenant", f"a {part.kind} id of {tool.name} is not one of the run's tenant")
        if isinstance(part, SecretRef) and not any(matches(one, part.name) for one in tool.secrets):
            raise _Refusal(4, "secret", f"{tool.name} is not declared to use the secret {part.name}")
        if isinstance(part, BaseModel):
            for name in tool.tenant_fields:
                if name in type(part).model_fields and getattr(part, name) != tenant:
                    raise _Refusal(4, "tenant", f"{name} of {tool.name} is not the run's tenant")


def _business(tool: Tool, args: BaseModel) -> None:
    """Step 5: the tool's own invariants."""
    if tool.check is None:
        return
    try:
        verdict = tool.check(args)
    except ValueError as error:
        raise _Refusal(5, "business_rule", error) from None
    except Exception as error:  # noqa: BLE001 - a check that breaks has not passed
        raise _Refusal(5, "check_failed", _told(error)) from None
    if verdict is False:
        raise _Refusal(5, "business_rule", f"the check of {tool.name} refused these arguments")


def _admitted(tool: Tool, args: BaseModel) -> None:
    """Step 5, where arguments may choose the host: it is one of the dependency's. The claim asks again."""
    if tool.request is None or not tool.dependency.hosts:
        return
    try:
        tool.dependency.bind(tool.request(args))
    except OutboundRefused as error:
        raise _Refusal(5, error.code, error) from None
    except Exception:  # noqa: BLE001, S110 - only who sends it has to be able to make it; its claim says so
        pass


def _operation(tool: Tool, args: BaseModel, tenant: str, run: str, turn: int, ordinal: int) -> str | None:
    try:
        return tool.operation(tenant, args, run=run, turn=turn, ordinal=ordinal)
    except Exception as error:  # noqa: BLE001 - the intent is the application's code
        raise _Refusal(5, "intent", _told(error)) from None


def _resource(tool: Tool, args: BaseModel, tenant: str) -> str | None:
    try:
        return tool.resource(tenant, args)
    except Exception as error:  # noqa: BLE001 - the function that names it is the application's code
        raise _Refusal(5, "resource", _told(error)) from None


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {sanitize(error, MESSAGE_CHARS)}"
