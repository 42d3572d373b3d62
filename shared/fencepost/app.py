"""The application: what a user declares before anything runs.

An `App` collects dependencies, tools, planners and grants. A wrong declaration fails at once, with a sentence
saying what to do; `App.check` finds what only the whole can show, and `load_app` refuses an application with
problems.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeVar, Unpack, overload

from pydantic import BaseModel

from fencepost.allowances import Allowance, AllowanceOptions, read
from fencepost.authority import AllowList, Authority, Grant
from fencepost.authority.allowlist import matches
from fencepost.books import BookReader
from fencepost.children import ChildOptions, ChildTool, declare_child, orphans
from fencepost.contracts import Effect
from fencepost.declarations import (
    PythonTool,
    ToolOptions,
    called,
    check_version,
    known_options,
    problems_of,
)
from fencepost.dependencies import DependencySpec, check_name
from fencepost.errors import NotFound, UsageError
from fencepost.memory import Memory, MemoryOptions, declare_memory, dependency_of
from fencepost.misspelt import check_values, refuse_unknown, taken
from fencepost.models import (
    AgentOptions,
    AgentSpec,
    ModelOptions,
    ModelSpec,
    check_agent,
    check_currencies,
)
from fencepost.names import named, patterns
from fencepost.planners import PlannerSpec, Script
from fencepost.rehearsal import rehearse
from fencepost.retrieval import RetrievalOptions, Retrieved, Search, declare_retrieval, home_options
from fencepost.secrets import Resolver
from fencepost.services import Dependency, DependencyOptions
from fencepost.tools import Attempt, Context, Tool, Turn

ArgsT = TypeVar("ArgsT", bound=BaseModel)
ResultT = TypeVar("ResultT", bound=BaseModel)
PlanT = TypeVar("PlanT", bound=Callable[[Context], Turn | Awaitable[Turn]])
VerifyT = TypeVar("VerifyT", bound=Callable[[Context], bool | str])
BookT = TypeVar("BookT", bound=BookReader)


class App:
    """Everything a fleet has to know about an application, under one name."""

    def __init__(self, name: str, *, authority: Authority | None = None) -> None:
        self.name = check_name("app", name)
        self.registry: dict[tuple[str, int], Tool] = {}
        self._authority = authority
        self._grants: tuple[Grant, ...] = ()
        self._dependencies: dict[str, Dependency] = {}
        self._planners: dict[tuple[str, int], PlannerSpec] = {}
        self.books: dict[str, BookReader] = {}
        self.resolver: Resolver | None = None
        self.allowances: tuple[Allowance, ...] = ()
        self.models: dict[str, ModelSpec] = {}

    def dependency(
        self,
        name: str,
        base_url: str | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        **options: Unpack[DependencyOptions],
    ) -> Dependency:
        """Declare a remote service, or one account of it. UsageError for a second one of the same scope.

        `base_url` and the values of `headers` may be `env:NAME`, read when they are used; headers are sent
        with every request and never stored, so credentials belong there.
        """
        elsewhere = {"its tools": ToolOptions.__annotations__}
        known = taken(self.dependency, DependencyOptions)
        refuse_unknown(f"dependency {name}", options, known, elsewhere)
        spec = DependencySpec(name, base_url, headers=tuple((headers or {}).items()), **options)
        if spec.scope in self._dependencies:
            raise UsageError(f"dependency {spec.scope} is declared twice")
        self._dependencies[spec.scope] = Dependency(self.registry, self.books, spec)
        return self._dependencies[spec.scope]

    @overload
    def python(
        self,
        name: str,
        *,
        effect: Effect,
        returns: type[ResultT],
        dependency: Dependency | None = None,
        **options: Unpack[ToolOptions],
    ) -> Callable[[Callable[[ArgsT, Attempt], Any]], PythonTool[ArgsT, ResultT]]: ...

    @overload
    def python(
        self,
        name: str,
        *,
        effect: Effect,
        returns: None = None,
        dependency: Dependency | None = None,
        **options: Unpack[ToolOptions],
    ) -> Callable[[Callable[[ArgsT, Attempt], Any]], PythonTool[ArgsT, Any]]: ...

    def python(
        self,
        name: str,
        *,
        effect: Effect,
        returns: type[Any] | None = None,
        dependency: Dependency | None = None,
        **options: Unpack[ToolOptions],
    ) -> Callable[[Callable[[ArgsT, Attempt], Any]], PythonTool[ArgsT, Any]]:
        """Register a Python tool of a dependency, by default one named `local`; see `Dependency.python`."""
        known_options(f"tool {name}", options, self.python)
        check_values(f"tool {name}", {"dependency": dependency}, App.python)
        home = dependency or self._dependencies.get("local/default") or self.dependency("local")
        return home.python(name, effect=effect, returns=returns, **options)

    def secrets(self, resolver: Resolver) -> Resolver:
        """Register who knows the secrets that arguments name: a function of tenant and name, None: unknown.

        Without one they are files in FENCEPOST_SECRETS_DIR, or environment variables.
        """
        check_values(f"app {self.name}", {"resolver": resolver}, App.secrets)
        if self.resolver is not None:
            raise UsageError(f"app {self.name} has two functions that resolve secrets")
        self.resolver = resolver
        return resolver

    def planner(
        self, name: str, version: int = 1, *, timeout: timedelta | None = None
    ) -> Callable[[PlanT], PlanT]:
        """Register a planner, `def` or `async def` of the context. The function itself stays as it was.

        `timeout` bounds one answer; without it a function has 30 s, and a framework's agent its model's.
        """

        def register(function: PlanT) -> PlanT:
            self._plan(PlannerSpec(name, version, plan=function, timeout=timeout))
            return function

        return register

    def scripted(self, name: str, version: int, turns: Script) -> None:
        """Register a planner whose turns are data; a bad script fails when a worker loads it."""
        self._plan(PlannerSpec(name, version, script=turns))

    def child(
        self,
        name: str,
        *,
        planner: str,
        arguments: type[BaseModel],
        effect: Effect,
        returns: type[Any] | None = None,
        **options: Unpack[ChildOptions],
    ) -> ChildTool[Any, Any]:
        """Register a tool whose attempt is a run of its own, with these arguments as its input.

        `effect` is what its tools may do: a READ child uses READ tools only. REVERSIBLE needs `compensate`,
        for a child that has COMPLETED; one that is stopped offsets what it did itself. What of `budget=` is
        as `Budget` has it by default counts as not named, and is at most a share, unless `whole=("turns",)`
        says so (`ChildSpec`). UsageError if wrong.
        """
        refuse_unknown(f"child {name}", options, taken(self.child, ChildOptions))
        return declare_child(self.registry, name, planner, arguments, effect, returns, options)

    def memory(self, space: str, **said: Unpack[MemoryOptions]) -> Memory:
        """Register `SPACE.read`, `.write`, `.restore` and `.list` on a memory of versioned values.

        Meanings as in `MemorySpec`; `fencepost.memory` says what is guaranteed. UsageError for a second one.
        """
        refuse_unknown(f"memory {space}", said, taken(self.memory, MemoryOptions))
        name, options = dependency_of(space, said)
        return declare_memory(space, self.dependency(name, **options), said)

    def retrieval(
        self, source: str, *, search: Search, **said: Unpack[RetrievalOptions]
    ) -> PythonTool[Any, Retrieved]:
        """Register `SOURCE.search`, which finds documents; `fencepost.retrieval` says what it promises."""
        check_values(f"retrieval {source}", {"search": search}, App.retrieval)
        refuse_unknown(f"retrieval {source}", said, taken(self.retrieval, RetrievalOptions))
        check_values(f"retrieval {source}", said, RetrievalOptions)
        return declare_retrieval(source, self.dependency(source, **home_options(said)), search, said)

    def model(self, name: str, *, via: Dependency, **said: Unpack[ModelOptions]) -> ModelSpec:
        """Declare a model at a dependency; meanings as in `ModelSpec`. UsageError for a second one."""
        if name in self.models:
            raise UsageError(f"model {name} is declared twice")
        check_name("model", name)
        refuse_unknown(f"model {name}", said, taken(self.model, ModelOptions))
        check_values(f"model {name}", {"via": via}, App.model)
        spec = ModelSpec(name=name, dependency=via.spec, **said)
        check_currencies([*self.models.values(), spec])
        self.models[name] = spec
        return spec

    def agent(
        self,
        name: str,
        version: int = 1,
        *,
        model: ModelSpec | Sequence[ModelSpec],
        instructions: str,
        **said: Unpack[AgentOptions],
    ) -> None:
        """Register a planner that is a model, or several to be asked in turn; meanings as in `AgentSpec`."""
        check_values(f"agent {name}", {"model": model, "instructions": instructions}, App.agent)
        models = (model,) if isinstance(model, ModelSpec) else tuple(model)
        refuse_unknown(f"agent {name}", said, taken(self.agent, AgentOptions))
        agent = AgentSpec(models=models, instructions=instructions, **said)
        check_agent(name, agent)
        self._plan(PlannerSpec(name, version, agent=agent))

    def _plan(self, spec: PlannerSpec) -> None:
        check_name("planner", spec.name)
        key = spec.name, check_version(spec.name, spec.version)
        if key in self._planners:
            raise UsageError(f"planner {spec.name} version {spec.version} is registered twice")
        self._planners[key] = spec

    def verify(self, planner: str) -> Callable[[VerifyT], VerifyT]:
        """Register the judge of a planner's claimed completions, for all its versions: True, or why not."""

        def register(function: VerifyT) -> VerifyT:
            mine = [key for key in self._planners if key[0] == planner]
            if not mine:
                raise NotFound(f"there is no planner {planner} to verify; register it first")
            for key in mine:
                self._planners[key] = replace(self._planners[key], verify=function)
            return function

        return register

    def allow(
        self,
        principal: str,
        tools: Sequence[str],
        tenant: str | None = None,
        *,
        approvals: int = 0,
        approvers: Sequence[str] = (),
        within: timedelta = timedelta(hours=24),
        tainted: bool = False,
    ) -> None:
        """Grant a principal tools; `*` matches any text, but IRREVERSIBLE tools must be named exactly.

        With `approvals` so many persons that fit `approvers` must approve each call, within that time. A run
        that has read untrusted output needs one for what is IRREVERSIBLE or sends data out, unless `tainted`.
        Both `principal` and `approvers` may be roles, as `role:finance`.
        """
        said = {"tenant": tenant, "approvals": approvals, "within": within, "tainted": tainted}
        check_values("allow()", {"principal": principal, **said}, App.allow)
        if self._authority is not None:
            raise UsageError(
                f"app {self.name} has an authority of its own; allow() fills the default one only"
            )
        if isinstance(tools, str) or not tools:
            raise UsageError("allow() needs a list of tool names or patterns")
        if isinstance(approvers, str) or approvals < 0 or within <= timedelta(0):
            raise UsageError(
                "allow() takes approvals from 0 on, a list of approvers, and a time to approve in"
            )
        if approvals and not approvers:
            raise UsageError(
                "allow() with approvals= needs approvers=[...]: principals, or roles as role:NAME"
            )
        patterns("principal", [principal])
        patterns("approvers", approvers)
        if tenant is not None:
            named("tenant", tenant)
        self._grants += (
            Grant(principal, tuple(tools), tenant, approvals, tuple(approvers), within, tainted),
        )

    def allowance(self, name: str, **said: Unpack[AllowanceOptions]) -> None:
        """Limit how many calls, or how much money, are let go per window; meanings as in `Allowance`.

        It holds beside those of the policy in force, unless that declares one of the same id, which then
        takes its place. One whose window, `per` or currency is changed counts anew, from nothing. UsageError
        for one that cannot be used.
        """
        refuse_unknown(f"allowance {name}", said, taken(self.allowance, AllowanceOptions))
        self.allowances = read([*self.allowances, {"id": name, **said}])

    @property
    def authority(self) -> Authority:
        """The app's own policy engine, or the allow-list of its grants."""
        return self._authority or AllowList(self._grants)

    @property
    def governed(self) -> bool:
        """Whether published policies decide where there are any: not under an authority of the app's own."""
        return self._authority is None

    @property
    def tools(self) -> dict[str, Tool]:
        """The newest version of every tool, by name: the ones a planner may propose."""
        return {name: self.registry[name, version] for name, version in sorted(self.registry)}

    @property
    def planners(self) -> dict[str, PlannerSpec]:
        """The newest version of every planner, by name."""
        return {name: self._planners[name, version] for name, version in sorted(self._planners)}

    @property
    def planner_versions(self) -> frozenset[tuple[str, int]]:
        """Every (name, version) of a planner this app can run."""
        return frozenset(self._planners)

    def agent_of(self, name: str, version: int) -> AgentSpec | None:
        """The model that a planner is, or hosts; None for one that is none, or is not known."""
        spec = self.planner_of(name, version)
        return spec.asked if spec is not None else None

    def planner_of(self, name: str, version: int) -> PlannerSpec | None:
        """The planner of this name and version; None if it is not known."""
        return self._planners.get((name, version))

    @property
    def providers(self) -> tuple[DependencySpec, ...]:
        """The dependencies of all models that may be asked, those of hosted agents too."""
        agents = [spec.asked for spec in self._planners.values() if spec.asked is not None]
        models = [*self.models.values(), *(model for agent in agents for model in agent.models)]
        return tuple({model.scope: model.dependency for model in models}.values())

    @property
    def dependencies(self) -> tuple[DependencySpec, ...]:
        """Every declared dependency, by scope."""
        return tuple(self._dependencies[scope].spec for scope in sorted(self._dependencies))

    def tool(self, name: str, version: int | None = None) -> Tool:
        """The tool of this name and version, by default the newest; NotFound if there is none."""
        return _found("tool", self.registry, name, version)

    def find_planner(self, name: str, version: int | None = None) -> PlannerSpec:
        """The planner of this name and version, by default the newest; NotFound if there is none."""
        return _found("planner", self._planners, name, version)

    def check(self) -> list[str]:
        """What is wrong with the whole, one sentence each; empty for an app that may run.

        Each tool is tried on its `examples=`, or on made-up arguments (`fencepost.rehearsal`): what cannot be
        built, or would be refused, is found here and not in a run.
        """
        grants = self._grants if self._authority is None else None
        found = []
        for key in sorted(self.registry):
            tool = self.registry[key]
            wrong = problems_of(tool, grants)
            found += wrong or [f"{called(tool)}: {said}" for said in rehearse(tool, self.tools).problems]
        return (
            found
            + orphans(self.registry.values(), self.planner_versions)
            + self._told_of_nothing()
            + self._bind_nothing()
        )

    def _bind_nothing(self) -> list[str]:
        """Times declared where only models are asked: they bind tools, and a model has its own."""
        of_tools = {tool.dependency.scope for tool in self.registry.values()}
        return [
            f"dependency {spec.scope}: per_attempt={spec.per_attempt} binds no model; say "
            "app.model(timeout=...) for a whole answer, idle=... for silence"
            for spec in self.providers
            if spec.scope not in of_tools and spec.per_attempt != DependencySpec("any").per_attempt
        ]

    def notes(self) -> list[str]:
        """What `check` could not try, one sentence each, with what to add so that it can."""
        tools = (self.registry[key] for key in sorted(self.registry))
        return [f"{called(tool)}: {said}" for tool in tools for said in rehearse(tool, self.tools).notes]

    def _told_of_nothing(self) -> list[str]:
        """Patterns of agents that fit no tool: a misspelt one would leave its model without."""
        return [
            f"agent {name} version {version}: tools=[{pattern!r}] fits no tool of this app"
            for (name, version), spec in sorted(self._planners.items())
            if spec.asked is not None
            for pattern in spec.asked.tools
            if pattern != "*" and not any(matches(pattern, tool) for tool, _ in self.registry)
        ]


Entry = TypeVar("Entry")


def _found(what: str, entries: Mapping[tuple[str, int], Entry], name: str, version: int | None) -> Entry:
    versions = [v for n, v in entries if n == name]
    if not versions:
        known = ", ".join(sorted({n for n, _ in entries})) or "none at all"
        raise NotFound(f"there is no {what} {name}; known: {known}")
    if version is None:
        version = max(versions)
    if version not in versions:
        raise NotFound(f"there is no {what} {name} version {version}; it has {sorted(versions)}")
    return entries[name, version]
