"""What an application declares of a remote service: the service itself, and the tools that talk to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypedDict, TypeVar, Unpack, overload

from pydantic import BaseModel

from fencepost.books import BookReader
from fencepost.contracts import Effect
from fencepost.declarations import (
    HttpTool,
    McpTool,
    PythonTool,
    ToolOptions,
    argument_model,
    declared_tool,
    known_options,
)
from fencepost.dependencies import Breaker, DependencySpec
from fencepost.errors import UsageError
from fencepost.mcp import McpServer, Remote, ToolCall
from fencepost.misspelt import check_values
from fencepost.tools import Attempt, Request, Tool

ArgsT = TypeVar("ArgsT", bound=BaseModel)
ResultT = TypeVar("ResultT", bound=BaseModel)
BookT = TypeVar("BookT", bound=BookReader)


class DependencyOptions(TypedDict, total=False):
    """What else a dependency may say; meanings and defaults are those of `DependencySpec`."""

    attempts: int
    per_attempt: timedelta
    backoff: timedelta
    backoff_cap: timedelta
    grace: timedelta
    reserve: timedelta
    reconcile_for: timedelta
    margin: timedelta
    account: str
    breaker: Breaker
    rate: float | None
    concurrency: int | None
    slots: int | None
    hosts: tuple[str, ...]
    private: bool | tuple[str, ...]
    capability: bool | str
    redirects: int
    mcp: McpServer | None


class Dependency:
    """A remote service of an app; its methods register the tools that talk to it."""

    def __init__(
        self, registry: dict[tuple[str, int], Tool], books: dict[str, BookReader], spec: DependencySpec
    ) -> None:
        self.spec = spec
        self._registry = registry
        self._books = books

    def book(self, function: BookT) -> BookT:
        """Register who reads the service's own list of effects, for `fencepost audit` and `fencepost check`.

        `def effects(since: datetime, until: datetime) -> Iterable[BookedEffect]`: every effect from the first
        moment to before the second, in any order (`fencepost.books`). Not needed to run.
        """
        check_values(f"dependency {self.spec.scope}", {"function": function}, Dependency.book)
        if self.spec.scope in self._books:
            raise UsageError(f"dependency {self.spec.scope} has two books")
        self._books[self.spec.scope] = function
        return function

    @overload
    def http(
        self, name: str, *, effect: Effect, returns: type[ResultT], **options: Unpack[ToolOptions]
    ) -> Callable[[Callable[[ArgsT], Request]], HttpTool[ArgsT, ResultT]]: ...

    @overload
    def http(
        self, name: str, *, effect: Effect, returns: None = None, **options: Unpack[ToolOptions]
    ) -> Callable[[Callable[[ArgsT], Request]], HttpTool[ArgsT, Any]]: ...

    def http(
        self, name: str, *, effect: Effect, returns: type[Any] | None = None, **options: Unpack[ToolOptions]
    ) -> Callable[[Callable[[ArgsT], Request]], HttpTool[ArgsT, Any]]:
        """Register a pure function from validated arguments to the request to send; UsageError if wrong.

        The first parameter's annotation is the argument model. `returns` is the model an answer has to fit to
        count as success; without one an effect needs `parse` or `succeeded=`, or is refused by `App.check`.
        """
        known_options(f"tool {name}", options, self.http)
        if self.spec.base_url is None and not self.spec.hosts:
            raise UsageError(
                f"dependency {self.spec.name} needs a base_url for the http tool {name}, or hosts=(...)"
            )

        def register(function: Callable[[ArgsT], Request]) -> HttpTool[ArgsT, Any]:
            tool = declared_tool(name, self.spec, effect, returns, argument_model(function), options)
            return HttpTool(self._registry, replace(tool, kind="http", request=function))

        return register

    @overload
    def mcp(
        self,
        name: str,
        *,
        arguments: type[ArgsT],
        effect: Effect,
        returns: type[ResultT],
        remote: str | None = None,
        definition: str | None = None,
        errors_apply_nothing: bool = False,
        **options: Unpack[ToolOptions],
    ) -> McpTool[ArgsT, ResultT]: ...

    @overload
    def mcp(
        self,
        name: str,
        *,
        arguments: type[ArgsT],
        effect: Effect,
        returns: None = None,
        remote: str | None = None,
        definition: str | None = None,
        errors_apply_nothing: bool = False,
        **options: Unpack[ToolOptions],
    ) -> McpTool[ArgsT, Any]: ...

    def mcp(
        self,
        name: str,
        *,
        arguments: type[ArgsT],
        effect: Effect,
        returns: type[Any] | None = None,
        remote: str | None = None,
        definition: str | None = None,
        errors_apply_nothing: bool = False,
        **options: Unpack[ToolOptions],
    ) -> McpTool[ArgsT, Any]:
        """Register a tool of this MCP server, called `remote` there (else as here). UsageError if wrong.

        `arguments` are sent as they are, unless `McpTool.sends` says otherwise. `definition` is the digest of
        what the server says the tool is (`fencepost mcp pin`), or the server's `pins` hold it: a call is
        held, and nothing sent, while the server says something else. The effect and the contract are what is
        declared here; the server's own hints may only forbid. With `errors_apply_nothing` an answer with
        `isError` proves that nothing happened; without, nobody knows. A result that is not what `returns` or
        the server's pinned schema declares leaves the outcome unknown.
        """
        known_options(f"tool {name}", options, self.mcp)
        server = self.spec.mcp
        if server is None:
            raise UsageError(
                f"dependency {self.spec.name} is no MCP server; it needs mcp=Streamable() or mcp=Stdio(...)"
            )
        called = remote or name
        place = Remote(called, definition or server.pins.get(called), errors_apply_nothing)
        tool = declared_tool(name, self.spec, effect, returns, arguments, options)
        call = replace(tool, kind="mcp", mcp=place, request=lambda args: ToolCall(called, args))
        return McpTool(self._registry, call)

    @overload
    def python(
        self, name: str, *, effect: Effect, returns: type[ResultT], **options: Unpack[ToolOptions]
    ) -> Callable[[Callable[[ArgsT, Attempt], Any]], PythonTool[ArgsT, ResultT]]: ...

    @overload
    def python(
        self, name: str, *, effect: Effect, returns: None = None, **options: Unpack[ToolOptions]
    ) -> Callable[[Callable[[ArgsT, Attempt], Any]], PythonTool[ArgsT, Any]]: ...

    def python(
        self, name: str, *, effect: Effect, returns: type[Any] | None = None, **options: Unpack[ToolOptions]
    ) -> Callable[[Callable[[ArgsT, Attempt], Any]], PythonTool[ArgsT, Any]]:
        """Register a free-form `def` or `async def` of arguments and attempt. UsageError if it cannot be.

        Only its arguments are bound: that it does what its contract says is its own affair. Every exception
        but NotApplied leaves the outcome unknown.
        """
        known_options(f"tool {name}", options, self.python)

        def register(function: Callable[[ArgsT, Attempt], Any]) -> PythonTool[ArgsT, Any]:
            tool = declared_tool(
                name, self.spec, effect, returns, argument_model(function, parameters=2), options
            )
            return PythonTool(self._registry, replace(tool, kind="python", function=function))

        return register
