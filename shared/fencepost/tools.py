"""The values tools and planners are made of: proposals, turns, contexts, dependencies, and the tool itself.

A tool of kind `http` or `mcp` is two pure parts, `request(args)` and `parse(response)`: what was hashed,
shown, approved and sent is one thing. Of a free-form `python` tool only the arguments are bound. No I/O here.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, StrEnum
from functools import cached_property
from ipaddress import IPv4Address, IPv6Address
from pathlib import PurePath
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Union, get_args, get_origin
from uuid import UUID

from pydantic import BaseModel, RootModel, ValidationError

from fencepost.canonical import CanonicalError, digest, encode
from fencepost.clock import rfc3339
from fencepost.contracts import Contract, Effect, Natural
from fencepost.contracts.carriers import KeyCarrier
from fencepost.dependencies import DependencySpec
from fencepost.errors import UsageError
from fencepost.fields import TenantId, decimal_text, is_masked, keep_only, withheld, without_withheld
from fencepost.joins import Join
from fencepost.mcp import Remote, ToolCall
from fencepost.money import Money
from fencepost.output import USUAL, Output
from fencepost.secrets import CONTEXT, Secret, SecretRef
from fencepost.views import CallView, Context
from fencepost.wire import Request, Response, StoredRequest

if TYPE_CHECKING:
    from fencepost.children import ChildSpec
    from fencepost.memory import MemorySpec

__all__ = [
    "PER_PROPOSAL",
    "Absent",
    "Attempt",
    "CallView",
    "Context",
    "DependencySpec",
    "Found",
    "Intent",
    "LookupResult",
    "OnStop",
    "PerProposal",
    "Proposal",
    "Request",
    "Response",
    "StoredRequest",
    "Tool",
    "Turn",
    "Unclear",
    "compensation_key",
    "load_result",
    "operation_key",
]


class OnStop(StrEnum):
    """What becomes of a stopped run's committed effects."""

    COMPENSATE = "compensate"
    """They are offset, in reverse order of success, by the compensations their tools declare: for reasons of
    the business only, and not while a call of the run is in doubt or with a person.
    """
    COMPENSATE_AT_ONCE = "compensate_at_once"
    """They are offset whatever the reason, and whatever else of the run is not settled."""
    LEAVE = "leave"
    """They stay, and the end state lists them."""


class PerProposal(Enum):
    """The type of `PER_PROPOSAL`."""

    PER_PROPOSAL = "per_proposal"


PER_PROPOSAL: Final = PerProposal.PER_PROPOSAL
"""Asked for explicitly: every proposal is a business intent of its own, so equals are executed twice."""


@dataclass(frozen=True)
class Found:
    """The lookup found the effect of this key. `same_arguments` False: the key carried another request."""

    receipt: str | None = None
    result: Any = None
    same_arguments: bool = True


@dataclass(frozen=True)
class Absent:
    """The lookup found nothing at the instant it was asked; what that proves the contract says."""


@dataclass(frozen=True)
class Unclear:
    """The lookup gave no answer that can be used; it is asked again later, unless it can never be `asked`."""

    detail: str = ""
    asked: bool = True


LookupResult = Found | Absent | Unclear
Intent = Callable[[Any], Sequence[object]] | PerProposal


@dataclass(frozen=True)
class Proposal:
    """One step a planner proposes: input to be validated, never an order.

    `arguments` is JSON text as a model wrote it, a mapping, or a pydantic model (kept as its JSON value).
    `call_id` is a label to find the result by, never a key. `required` is ignored: the tool says it.
    ValueError for a model that would be written as something else than it holds: masked, excluded, rounded.
    """

    tool: str
    arguments: Mapping[str, Any] | str | BaseModel = field(default_factory=dict)
    call_id: str = ""
    version: int | None = None
    required: bool | None = None

    def __post_init__(self) -> None:
        if isinstance(self.arguments, BaseModel):
            object.__setattr__(self, "arguments", _written(self.arguments))


@dataclass(frozen=True)
class Turn:
    """One answer of a planner: proposals, or the run's claimed result, or neither (an empty turn).

    `usage` and `raw` are what the model reported and said. `join` says how long the run waits for those that
    it starts. To propose and finish at once is a ValueError.
    """

    proposals: Sequence[Proposal] = ()
    finish: Any | None = None
    usage: Mapping[str, Any] = field(default_factory=dict)
    raw: str = ""
    join: Join | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "proposals", tuple(self.proposals))
        if self.proposals and self.finish is not None:
            raise ValueError("a turn either proposes calls or finishes the run, not both")


@dataclass(frozen=True)
class Attempt:
    """What a Python tool is handed beside its arguments, and all it may act with.

    `operation_key` names the business intent and is the same in every attempt: hand it downstream.
    `remaining` gives the seconds this attempt has left; after them nobody waits for the tool's answer.
    """

    run: str
    call: str
    number: int
    operation_key: str
    deadline: datetime
    remaining: Callable[[], float]
    capability: Mapping[str, Any] = field(default_factory=dict)
    secrets: Mapping[str, Secret] = field(default_factory=dict)
    """Those its arguments name, by name."""
    tenant: str = ""
    """Whose run it is: what a tool looks up or keeps for one tenant it never gives to another."""

    def secret(self, ref: SecretRef) -> Secret:
        """The secret an argument names; UsageError where it is not one of this attempt's."""
        if ref.name not in self.secrets:
            raise UsageError(f"the secret {ref.name} is not one that this attempt's arguments name")
        return self.secrets[ref.name]


@dataclass(frozen=True, kw_only=True)
class Tool:
    """A tool as registered: name and version, effect, contract, models and its pure parts.

    `intent` names the business intent from validated arguments; READ tools need none. `receipt` is the field
    of the result that holds the downstream's own reference, or a function of the result. `same` tells from
    arguments and an answer whether the one is for the other. `key` puts the
    operation key into the stored request as the downstream wants it; without a header `Idempotency-Key` in
    there the engine adds one with the raw key.
    """

    name: str
    version: int
    kind: Literal["http", "python", "run", "mcp"]
    effect: Effect
    dependency: DependencySpec
    contract: Contract
    arguments: type[BaseModel]
    returns: type[BaseModel] | None = None
    intent: Intent = PER_PROPOSAL
    request: Callable[[Any], Request | ToolCall] | None = None
    parse: Callable[[Any], Any] | None = None
    succeeded: Callable[[Any], bool] | None = None
    """From what `parse` is given (of a Python tool, what it returned) to whether that says "done"."""
    lookup: Callable[[Any, Any], Any] | None = None
    """From arguments and key to the request that asks; of a Python tool from arguments and `Attempt` to what
    it found, or an awaitable of that.
    """
    lookup_parse: Callable[[Any, Any], LookupResult] | None = None
    compensate: Callable[[Any, Any], Proposal] | None = None
    same: Callable[[Any, Any], bool] | None = None
    check: Callable[[Any], object] | None = None
    function: Callable[[Any, Attempt], Any] | None = None
    receipt: str | Callable[[Any], object] = "id"
    tenant_fields: tuple[str, ...] = ("tenant",)
    required: bool = True
    key: KeyCarrier | None = None
    acts_on: Callable[[Any], tuple[str, str]] | None = None
    """From validated arguments to the type and id of what is acted on: policies speak of it."""
    amount: Callable[[Any], Money | None] | None = None
    """From validated arguments to the money that is moved: policies and allowances speak of it."""
    untrusted: bool | None = None
    """Whether nobody vouches for its output. None: of a READ tool without a `returns` model nobody does."""
    egress: bool = False
    """Whether it carries data out of the tenant's hands: after untrusted output it needs an approval."""
    secrets: tuple[str, ...] = ()
    """Names, or patterns with `*`, of the secrets its arguments may name."""
    poller: bool = False
    """Whether asking the same again and learning the same is its use, and no standstill of a run."""
    cosmetic: tuple[str, ...] | None = None
    """Arguments in which calls may differ and ask the same, as a try. None: names tell (see `cosmetic`)."""
    output: Output = USUAL
    """How much of its output is kept, and what of it a planner is shown."""
    describe: str = ""
    """What a model is told it does; empty: the docstring of its function."""
    examples: tuple[Any, ...] = ()
    """Arguments it may be given, on which `App.check` tries it; without any it makes some up."""
    child: "ChildSpec | None" = None
    """The run it starts, for a tool of kind `run`."""
    memory: "MemorySpec | None" = None
    """The memory it works on; the worker has its function."""
    doubtful: Callable[[Any], bool] | None = None
    """From a result, as JSON, to whether nobody vouches for this very one, of a tool that taints by some."""
    grounds: Callable[[Any], Iterable[Mapping[str, Any]]] | None = None
    """From a result, as JSON, to what it rests on: that is recorded with it."""
    mcp: Remote | None = None
    """What it is at its MCP server, for a tool of kind `mcp`."""

    @property
    def sends_request(self) -> bool:
        """Whether a stored request is what it is: of kind `http` or `mcp`."""
        return self.kind in {"http", "mcp"}

    @cached_property
    def recognises(self) -> str | None:
        """Why no answer can tell this tool that its effect happened; None where one can, or none need.

        A result model that takes an answer which says nothing, or says no, recognises no success.
        """
        free = self.effect is Effect.READ or not self.sends_request
        if free or self.parse is not None or self.succeeded is not None:
            return None
        if self.returns is None:
            return "it declares no result"
        empty = json.dumps(_emptiest(self.returns))
        taken = next((said for said in (*SAYING_NOTHING, empty) if _reads(self.returns, said)), None)
        return taken and f"{self.returns.__name__} takes any answer, also {taken}"

    @property
    def taints(self) -> bool:
        """Whether reading its result makes a run tainted."""
        return self.untrusted if self.untrusted is not None else self._free_form

    @property
    def _free_form(self) -> bool:
        # A child's result taints where the child was tainted itself.
        return self.effect is Effect.READ and self.returns is None and self.kind != "run"

    @property
    def scope(self) -> str:
        """The scope its operation keys are unique in."""
        return self.dependency.scope

    @property
    def has_lookup(self) -> bool:
        """Whether the downstream can be asked about an unknown outcome."""
        return self.lookup is not None or (self.memory is not None and self.effect is not Effect.READ)

    @property
    def compensable(self) -> bool:
        """Whether a committed effect can be offset."""
        return self.compensate is not None

    @cached_property
    def definition_digest(self) -> str:
        """Names what is approved: name, version, kind, scope, effect, contract, arguments; not the code."""
        schema = json.dumps(self.arguments.model_json_schema(), sort_keys=True, default=str)
        parts = [
            self.name,
            self.version,
            self.kind,
            self.scope,
            self.effect.value,
            dict(self.contract.to_json()),
            schema,
        ]
        if self.key is not None:
            parts.append(self.key.to_json())
        if self.egress or self.untrusted is not None:
            parts.append({"egress": self.egress, "untrusted": self.untrusted})
        if self.secrets:
            parts.append({"secrets": list(self.secrets)})
        if self.poller:
            parts.append({"poller": True})
        if self.output != USUAL:
            parts.append({"output": self.output.row()})
        if self.mcp is not None:
            parts.append({"mcp": [self.mcp.name, self.mcp.definition, self.mcp.errors_apply_nothing]})
        if self.child is not None:
            parts.append({"child": self.child.to_json()})
        return digest("fencepost.tool.v1", parts)

    def read_arguments(self, text: str) -> BaseModel:
        """The argument model of stored canonical text; ValidationError if this version no longer takes it."""
        context = {CONTEXT: digest("fencepost.text.v1", text)} if self.secrets else None
        return self.arguments.model_validate_json(text, strict=True, extra="forbid", context=context)

    def operation(self, tenant: str, args: BaseModel, *, run: str, turn: int, ordinal: int) -> str | None:
        """The operation key of a proposal, None for READ; TypeError, or whatever `intent` raises."""
        if self.effect is Effect.READ:
            return None
        if isinstance(self.intent, PerProposal):
            return operation_key(tenant, self.scope, self.name, ("fencepost.proposal", run, turn, ordinal))
        parts = self.intent(args)
        if not isinstance(parts, tuple | list) or not parts:
            raise TypeError(
                f"intent of {self.name} must give a tuple of one or more parts, not {type(parts).__name__}"
            )
        return operation_key(tenant, self.scope, self.name, parts)

    def resource(self, tenant: str, args: BaseModel) -> str | None:
        """The key of what these arguments set, for a natural tool that names it; else None.

        Raises whatever the contract's function raises, CanonicalError for a name without a canonical form.
        """
        repeat = self.contract.repeat
        if self.effect is Effect.READ or not isinstance(repeat, Natural) or repeat.resource is None:
            return None
        named = repeat.resource(args)
        parts = list(named) if isinstance(named, tuple | list) else [named]
        return digest("fencepost.resource.v1", [tenant, self.scope, *map(_part, parts)])

    def stored_request(self, args: BaseModel, key: str | None = None) -> StoredRequest:
        """The exact request to store and send, with the operation key where the tool's `key` puts it.

        UsageError for a tool that sends none; ValueError where the key finds no place.
        """
        if self.request is None:
            raise UsageError(f"tool {self.name} sends no request")
        bound = self.dependency.bind(self.request(args))
        return bound if self.key is None or key is None else self.key.put(bound, key)

    def lookup_request(self, args: BaseModel, key: str) -> StoredRequest:
        """The exact request that asks for the effect of `key`; UsageError without a lookup.

        Its function is given the key as the downstream knows it.
        """
        if self.lookup is None or not self.sends_request:
            raise UsageError(f"tool {self.name} has no lookup that is a request")
        known = key if self.key is None else self.key.spell(key)
        return self.dependency.bind(self.lookup(args, known))

    def compensation(self, args: BaseModel, result: str | None, receipt: str | None) -> Proposal:
        """The proposal that offsets an effect, from its stored result text or else from its receipt.

        UsageError without a compensation or a result to rebuild, and for a field of the result that is not
        kept: masked, excluded, or told by nobody. `compensate` may raise as well.
        """
        if self.compensate is None:
            raise UsageError(f"tool {self.name} has no compensation")
        try:
            return self.compensate(args, self._rebuilt(result, receipt))
        except AttributeError as error:
            if not isinstance(error.obj, BaseModel) or error.name not in type(error.obj).model_fields:
                raise
            raise UsageError(
                f"the compensation of {self.name} reads {error.name} of its result, which is not kept: it is"
                " masked (SecretStr), excluded (exclude=True), or nobody told it; declare as a plain field"
                " what is needed to offset"
            ) from None

    def _rebuilt(self, result: str | None, receipt: str | None) -> Any:
        bare = {self.receipt if isinstance(self.receipt, str) else "id": receipt}
        if self.returns is None:
            return bare if result is None else load_result(result)
        for candidate in (result, json.dumps(bare)):
            if candidate is not None:
                try:
                    read = self.returns.model_validate_json(candidate)
                except ValidationError:
                    continue
                if candidate is not result:  # a default would be an answer that nobody gave
                    keep_only(read, read.model_fields_set)
                without_withheld(read)
                return read
        raise UsageError(
            f"the result of {self.name} cannot be rebuilt from what is stored, so it cannot be offset"
        )


def _written(arguments: BaseModel) -> dict[str, Any]:
    written = arguments.model_dump(mode="json", by_alias=True, exclude_computed_fields=True)
    changed = withheld(arguments)
    if changed is None:
        try:
            read = type(arguments).model_validate_json(json.dumps(written))
        except ValueError:
            return written  # step 1 refuses it, and says why
        names = type(arguments).model_fields
        changed = next((name for name in names if getattr(read, name) != getattr(arguments, name)), None)
    if changed is not None:
        raise ValueError(
            f"argument {changed} of {type(arguments).__name__} is not written as what it is (masked, excluded"
            " or changed by its serializer), so another value would be sent; make it a plain field, or a"
            " SecretRef"
        )
    return written


SAYING_NOTHING: Final = (
    "{}",
    "[]",
    "null",
    '{"ok": false}',
    '{"success": false}',
    '{"found": false}',
    '{"data": []}',
    '{"error": {"message": "no"}}',
)
"""Answers in which no effect is named. A model that takes one would take any refusal for an effect."""


def _emptiest(kind: Any) -> Any:
    """What a type takes that says least: null, false, nothing in it; a text or a number names something."""
    origin = get_origin(kind)
    if origin is Annotated:
        return _emptiest(get_args(kind)[0])
    if origin in (Union, UnionType):
        said = [_emptiest(one) for one in get_args(kind)]
        return next((one for one in said if not one), said[0])
    if kind in (None, NoneType, Any, object):
        return None
    if kind is bool:
        return False
    if origin is Literal:
        return next((value for value in get_args(kind) if not value), get_args(kind)[0])
    bare = origin or kind
    if not isinstance(bare, type):
        return _NAMED
    if issubclass(bare, RootModel):
        return _emptiest(bare.model_fields["root"].annotation)
    if issubclass(bare, BaseModel):
        needed = {name: info for name, info in bare.model_fields.items() if info.is_required()}
        return {
            str(info.validation_alias or info.alias or name): _emptiest(info.annotation)
            for name, info in needed.items()
        }
    if issubclass(bare, Mapping):
        return {}
    if issubclass(bare, list | set | frozenset | tuple):
        return []
    return _NAMED


_NAMED: Final[dict[str, list[None]]] = {"no field": [None]}
"""Taken by no type that holds a text, a number or a time: what has such a field cannot be said emptily."""


def _reads(model: type[BaseModel], text: str) -> bool:
    try:
        model.model_validate_json(text)
    except Exception:  # noqa: BLE001 - a model may break in any way: then it takes it for no result
        return False
    return True


def load_result(text: str) -> Any:
    """A stored result as a JSON value; what cannot be read as JSON comes back as the text itself."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def operation_key(tenant: str, scope: str, tool: str, parts: Sequence[object]) -> str:
    """The key of one business intent, 64 hex digits: equal intents are equal across attempts, turns and runs.

    The tool's version is left out on purpose. CanonicalError for parts that have no one text (floats, models,
    what is masked). A decimal is its digits, a duration its microseconds, bytes their hex digits.
    """
    return digest("fencepost.operation.v1", [tenant, scope, tool, *map(_part, parts)])


def compensation_key(operation: str) -> str:
    """The key of the one effect that offsets an operation."""
    return digest("fencepost.compensate.v1", [operation])


def _part(value: object) -> Any:
    match value:
        case None | bool() | int() | str() if not isinstance(value, Enum):
            return value
        case Enum():
            return _part(value.value)
        case UUID() | TenantId() | IPv4Address() | IPv6Address():
            return str(value)
        case SecretRef():
            return value.name
        case datetime():
            return rfc3339(value)
        case date() | time():
            return value.isoformat()
        case Decimal() if value.is_finite():
            return decimal_text(value)
        case timedelta():
            return f"{value // timedelta(microseconds=1)}us"
        case bytes():
            return value.hex()
        case PurePath():
            return value.as_posix()
        case list() | tuple():
            return [_part(item) for item in value]
        case set() | frozenset():
            return sorted(map(_part, value), key=encode)
        case dict():
            return {_key(name): _part(item) for name, item in value.items()}
        case _:
            raise CanonicalError(
                "type", "$", f"{_kind(value)} has no one text to name an intent by{_cure(value)}"
            )


def _key(name: object) -> str:
    said = _part(name)
    return said if isinstance(said, str) else encode(said).decode()


def _kind(value: object) -> str:
    return f"{value}" if isinstance(value, Decimal) else f"a {type(value).__name__}"


def _cure(value: object) -> str:
    match value:
        case float():
            return "use integer minor units, a Decimal, or text of one format"
        case BaseModel():
            return "name its fields one by one"
        case _ if is_masked(value):
            return "what is masked is named by a SecretRef"
        case _:
            return "turn it into text or integers that are equal exactly where the intents are"
