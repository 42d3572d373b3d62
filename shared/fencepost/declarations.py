"""Tools while they are declared: the handles whose decorators add a tool's other parts, and its checks."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, TypedDict, TypeVar, cast, get_type_hints

from pydantic import BaseModel

from fencepost.authority import Grant
from fencepost.contracts import Contract, Effect
from fencepost.contracts.carriers import KeyCarrier, Place
from fencepost.dependencies import DependencySpec, check_name
from fencepost.errors import NotApplied, UsageError
from fencepost.mcp import ToolCall, ToolResult
from fencepost.misspelt import check_values, is_application, refuse_unknown, taken
from fencepost.money import Money
from fencepost.output import INLINE_BYTES, MAX_OUTPUT_BYTES, Output
from fencepost.secrets import NAMES_A_SECRET, declared
from fencepost.tools import (
    PER_PROPOSAL,
    Attempt,
    Intent,
    LookupResult,
    Proposal,
    Request,
    Response,
    Tool,
)

if TYPE_CHECKING:
    from fencepost.memory import MemorySpec

ArgsT = TypeVar("ArgsT", bound=BaseModel)
ResultT = TypeVar("ResultT")
ParseT = TypeVar("ParseT", bound=Callable[[Response], Any])

Registry = MutableMapping[tuple[str, int], Tool]


def argument_model(function: Callable[..., Any], parameters: int = 1) -> type[BaseModel]:
    """The pydantic model that annotates a function's first parameter; UsageError if there is none."""
    name = getattr(function, "__qualname__", repr(function))
    names = list(inspect.signature(function).parameters)
    if len(names) != parameters:
        wanted = "one parameter, its arguments" if parameters == 1 else "two, its arguments and its attempt"
        raise UsageError(f"{name} must take {wanted}; it takes {len(names)}")
    try:
        model = get_type_hints(function).get(names[0])
    except NameError as error:
        raise UsageError(
            f"annotations of {name} cannot be read ({error}); define models at module level"
        ) from None
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        raise UsageError(f"annotate {names[0]!r} of {name} with the pydantic model of the tool's arguments")
    return model


class ToolOptions(TypedDict, total=False):
    """What else a tool may say; meanings and defaults as in `Tool`. `intent` is required but for READ."""

    version: int
    intent: Intent
    contract: Contract
    key: KeyCarrier | None
    check: Callable[[Any], object]
    required: bool
    succeeded: Callable[[Any], bool] | None
    receipt: str | Callable[[Any], object]
    tenant_fields: tuple[str, ...]
    acts_on: Callable[[Any], tuple[str, str]] | None
    amount: Callable[[Any], Money | None] | None
    untrusted: bool | None
    egress: bool
    secrets: tuple[str, ...]
    poller: bool
    cosmetic: tuple[str, ...] | None
    max_output_bytes: int
    inline_bytes: int
    promote: tuple[str, ...] | None
    describe: str
    examples: Sequence[Any]
    memory: "MemorySpec | None"
    doubtful: Callable[[Any], bool] | None
    grounds: Callable[[Any], Iterable[Mapping[str, Any]]] | None


_ELSEWHERE: Final = {
    "app.dependency": tuple(part.name for part in fields(DependencySpec)),
    "app.python": ("dependency",),
    "an MCP server's tool": ("arguments", "remote", "definition", "errors_apply_nothing"),
}


def known_options(what: str, options: Mapping[str, object], maker: Callable[..., object]) -> None:
    """UsageError for an option that this maker of tools does not take, before it is ignored."""
    refuse_unknown(what, options, taken(maker, ToolOptions), _ELSEWHERE)


def declared_tool(
    name: str,
    dependency: DependencySpec,
    effect: Effect,
    returns: type[BaseModel] | None,
    arguments: type[BaseModel],
    options: ToolOptions,
) -> Tool:
    """The tool these options declare, without its function. UsageError saying what is missing or wrong."""
    said = {"effect": effect, "returns": returns, "arguments": arguments, **options}
    check_values(f"tool {name}", said, ToolOptions)
    check_values(f"tool {name}", said, declared_tool)
    if "intent" not in options and effect is not Effect.READ:
        raise UsageError(
            f"tool {name} needs intent=: a function from arguments to the parts that name one business "
            "intent, or PER_PROPOSAL if every proposal is an intent of its own"
        )
    return Tool(
        name=check_name("tool", name),
        version=check_version(name, options.get("version", 1)),
        kind="http",
        effect=effect,
        dependency=dependency,
        contract=options.get("contract", Contract()),
        arguments=arguments,
        returns=returns,
        intent=options.get("intent", PER_PROPOSAL),
        check=options.get("check"),
        required=options.get("required", True),
        succeeded=options.get("succeeded"),
        receipt=options.get("receipt", "id"),
        acts_on=options.get("acts_on"),
        amount=options.get("amount"),
        untrusted=options.get("untrusted"),
        egress=options.get("egress", False),
        secrets=declared(name, options.get("secrets", ())),
        poller=options.get("poller", False),
        cosmetic=options.get("cosmetic"),
        output=_output(name, options),
        tenant_fields=options.get("tenant_fields", ("tenant",)),
        key=options.get("key"),
        describe=options.get("describe", ""),
        examples=tuple(options.get("examples", ())),
        memory=options.get("memory"),
        doubtful=options.get("doubtful"),
        grounds=options.get("grounds"),
    )


def _output(name: str, options: ToolOptions) -> Output:
    sizes = options.get("max_output_bytes", MAX_OUTPUT_BYTES), options.get("inline_bytes", INLINE_BYTES)
    try:
        return Output(*sizes, options.get("promote"))
    except UsageError as error:
        raise UsageError(f"tool {name}: {error}") from None


def check_version(name: str, version: int) -> int:
    """The version itself; UsageError for one that is none."""
    check_values(f"{name}", {"version": version}, check_version)
    if version < 1:
        raise UsageError(f"the version of {name} must be 1 or more, not {version}")
    return version


class ToolHandle(Generic[ArgsT, ResultT]):
    """A registered tool under the name of its function; `tool` is the value everything else works with."""

    def __init__(self, registry: Registry, tool: Tool) -> None:
        self._registry = registry
        self._key = tool.name, tool.version
        if self._key in registry:
            raise UsageError(f"tool {tool.name} version {tool.version} is registered twice")
        registry[self._key] = tool

    @property
    def tool(self) -> Tool:
        """The tool with all parts declared so far."""
        return self._registry[self._key]

    def _add(self, part: str, function: Any) -> None:
        if callable(getattr(self.tool, part)):
            raise UsageError(f"tool {self.tool.name} has two {part} functions")
        self._registry[self._key] = replace(self.tool, **{part: function})

    def propose(self, args: ArgsT, *, call_id: str = "") -> Proposal:
        """A proposal of this tool, for planners written in Python."""
        return Proposal(self.tool.name, args, call_id)

    def compensate(
        self, function: Callable[[ArgsT, ResultT], Proposal]
    ) -> Callable[[ArgsT, ResultT], Proposal]:
        """Declare the pure function that proposes the new effect which offsets this one."""
        self._add("compensate", function)
        return function

    def same(self, function: Callable[[ArgsT, ResultT], bool]) -> Callable[[ArgsT, ResultT], bool]:
        """Declare the pure function that tells whether an answer is for these arguments.

        For a downstream that answers a known key whatever comes with it (`Mismatch.IGNORED`): without it no
        repeat is made on the strength of the key. Every answer is compared, also the result of a lookup (a
        `Found` without a result says itself whether it is for these arguments); one that is for another
        request goes to a person, what the function raises leaves the outcome unknown.
        """
        self._add("same", function)
        return function

    def receipt(self, function: Callable[[ResultT], object]) -> Callable[[ResultT], object]:
        """Declare the pure function that finds the downstream's own reference in a result."""
        self._add("receipt", function)
        return function


class HttpTool(ToolHandle[ArgsT, ResultT]):
    """An http tool; called, it gives the request its function makes."""

    def __call__(self, args: ArgsT) -> Request:
        """The request for these arguments; nothing is sent."""
        assert self.tool.request is not None
        return cast("Request", self.tool.request(args))

    def parse(
        self, function: Callable[[Response], ResultT | NotApplied]
    ) -> Callable[[Response], ResultT | NotApplied]:
        """Declare the pure function that reads a 2xx answer. What it raises makes the outcome unknown."""
        self._add("parse", function)
        return function

    def lookup(self, function: Callable[[ArgsT, str], Request]) -> Callable[[ArgsT, str], Request]:
        """Declare the pure function that asks whether the effect of a key happened."""
        self._add("lookup", function)
        return function

    def lookup_parse(
        self, function: Callable[[Response, ArgsT], LookupResult]
    ) -> Callable[[Response, ArgsT], LookupResult]:
        """Declare how a lookup's answer is read.

        By default a 200 that names a receipt, or that `same` takes for these arguments, is found; a status of
        `Lookup.absent` is absent; all else is unclear.
        """
        self._add("lookup_parse", function)
        return function


class McpTool(ToolHandle[ArgsT, ResultT]):
    """A tool of an MCP server; called, it gives the call that is made."""

    def __call__(self, args: ArgsT) -> ToolCall:
        """The call for these arguments; nothing is sent."""
        assert self.tool.request is not None
        return cast("ToolCall", self.tool.request(args))

    def sends(
        self, function: Callable[[ArgsT], Mapping[str, Any] | BaseModel]
    ) -> Callable[[ArgsT], Mapping[str, Any] | BaseModel]:
        """Declare the pure function that makes the remote arguments, where they are not ours as they are."""
        remote = self.tool.mcp
        assert remote is not None
        name = remote.name
        self._registry[self._key] = replace(self.tool, request=lambda args: ToolCall(name, function(args)))
        return function

    def parse(
        self, function: Callable[[ToolResult], ResultT | NotApplied]
    ) -> Callable[[ToolResult], ResultT | NotApplied]:
        """Declare the pure function that reads a result. What it raises leaves the outcome unknown; only
        NotApplied says that nothing happened.
        """
        self._add("parse", function)
        return function

    def lookup(self, function: Callable[[ArgsT, str], ToolCall]) -> Callable[[ArgsT, str], ToolCall]:
        """Declare the pure function that asks, by a tool of the same server, for the effect of a key."""
        self._add("lookup", function)
        return function

    def lookup_parse(
        self, function: Callable[[ToolResult, ArgsT], LookupResult]
    ) -> Callable[[ToolResult, ArgsT], LookupResult]:
        """Declare how a lookup's result is read; there is no default."""
        self._add("lookup_parse", function)
        return function


class PythonTool(ToolHandle[ArgsT, ResultT]):
    """A Python tool; called, it runs its function."""

    def __call__(self, args: ArgsT, attempt: Attempt) -> Any:
        """What the function gives, an awaitable for `async def`; no lease, no record, no timeout."""
        assert self.tool.function is not None
        return self.tool.function(args, attempt)

    def lookup(self, function: Callable[[ArgsT, Attempt], Any]) -> Callable[[ArgsT, Attempt], Any]:
        """Declare the function, sync or async, that asks for the effect of `attempt.operation_key`.

        It gives `Found`, `Absent` or `Unclear`; whatever else it gives or raises is unclear.
        """
        self._add("lookup", function)
        return function


def problems_of(tool: Tool, grants: Sequence[Grant] | None) -> list[str]:
    """What is wrong with a completely declared tool; `grants` is None under an authority of the app's own."""
    return [f"{called(tool)}: {problem}" for problem in _problems(tool, grants)]


def called(tool: Tool) -> str:
    """A tool in a sentence about its declaration, with the place of its function."""
    code = getattr(tool.function if tool.request is None else tool.request, "__code__", None)
    own = code is not None and is_application(code.co_filename)
    place = f" ({Path(code.co_filename).name}:{code.co_firstlineno})" if code and own else ""
    return f"tool {tool.name} version {tool.version}{place}"


def _problems(tool: Tool, grants: Sequence[Grant] | None) -> Iterator[str]:
    if tool.effect is Effect.REVERSIBLE and not tool.compensable:
        yield "is REVERSIBLE and has no compensate function; add one, or call it IRREVERSIBLE"
    if tool.effect is Effect.READ and tool.compensable:
        yield "is READ, there is nothing to compensate"
    if tool.contract.lookup is not None and not tool.has_lookup:
        yield "its contract has a lookup, but there is no lookup function"
    if tool.has_lookup and tool.contract.lookup is None:
        yield "has a lookup function, but its contract does not say what it proves; add lookup=Lookup(...)"
    yield from _recognition_problems(tool)
    if tool.lookup_parse is not None and not tool.has_lookup:
        yield "has lookup_parse, but no lookup function"
    yield from _mcp_problems(tool)
    if tool.key is not None and tool.key.place is Place.HEADER:
        sent = {name.lower() for name, _ in tool.dependency.headers}
        if tool.key.name.lower() in sent:
            yield f"its key travels in {tool.key.name}, which its dependency sends with a value of its own"
    yield from _model_problems(tool)
    if grants is not None:
        yield from _grant_problems(tool, grants)


def _recognition_problems(tool: Tool) -> Iterator[str]:
    if tool.recognises is not None:
        answer = "result" if tool.kind == "mcp" else "answer"
        done = "result.value['done']" if tool.kind == "mcp" else "answer.status == 201"
        yield (
            f"cannot tell a success from an answer that says nothing: {tool.recognises}. Add returns= with a "
            f"model that has a field only a success has, or succeeded=lambda {answer}: {done}"
        )
    if tool.kind != "http" or tool.lookup is None or tool.lookup_parse is not None or tool.same is not None:
        return
    if callable(tool.receipt) or tool.effect is Effect.READ:
        return
    if tool.returns is None:
        if tool.parse is None:
            yield (
                "its lookup cannot tell what it found: no result is declared. Add returns= with a model that "
                "has the receipt, a @tool.same that compares, or a @tool.lookup_parse function"
            )
        return
    if tool.receipt not in tool.returns.model_fields:
        yield (
            f"its lookup cannot tell what it found: {tool.returns.__name__} has no field {tool.receipt!r} "
            "that names the effect. Add receipt= with the field that does, or a @tool.lookup_parse function"
        )


def _mcp_problems(tool: Tool) -> Iterator[str]:
    if tool.kind != "mcp":
        return
    if tool.has_lookup and tool.lookup_parse is None:
        yield "has a lookup, and no lookup_parse: nobody else knows what an MCP server's answer says"
    if tool.key is not None and tool.key.place is not Place.BODY:
        yield "is of an MCP server, whose key travels in the call: KeyCarrier(Place.BODY, 'arguments.NAME')"


def _model_problems(tool: Tool) -> Iterator[str]:
    try:
        named = NAMES_A_SECRET in str(tool.arguments.model_json_schema())
        if named and not tool.secrets:
            yield "has an argument that names a secret; say which it may name, as secrets=['mailbox/*']"
    except Exception as error:  # noqa: BLE001 - whatever a model breaks with is a problem to report
        yield f"the argument model has no JSON schema ({type(error).__name__}); planners could not be told it"
    for name, info in tool.arguments.model_fields.items():
        if info.annotation is float:
            yield f"argument {name} is a float, which has no exact text; use int minor units, or Decimal"
    names = stored_names(tool.arguments)
    if unknown := [name for name in tool.cosmetic or () if name not in names]:
        yield f"cosmetic= names no argument: {', '.join(unknown)} (there are {', '.join(sorted(names))})"
    fields = {"id"} if tool.returns is None else {"id", *tool.returns.model_fields}
    if tool.returns is not None and isinstance(tool.receipt, str) and tool.receipt not in fields:
        yield f"receipt={tool.receipt!r} is no field of {tool.returns.__name__}"
    for path in tool.output.promote or ():
        if tool.returns is not None and path.partition(".")[0] not in stored_names(tool.returns):
            yield f"promote={path!r} is no field of {tool.returns.__name__}"


def stored_names(model: type[BaseModel]) -> set[str]:
    """What the fields of these arguments, or of this result, are called in what is stored."""
    return {info.serialization_alias or name for name, info in model.model_fields.items()}


def _grant_problems(tool: Tool, grants: Sequence[Grant]) -> Iterator[str]:
    if tool.effect is Effect.IRREVERSIBLE and not any(grant.names(tool.name) for grant in grants):
        yield "is IRREVERSIBLE and nobody is granted it by its exact name; app.allow(principal, tools=[name])"
    elif not any(grant.covers(tool.name) for grant in grants):
        yield "nobody may use it; app.allow(principal, tools=[...])"
