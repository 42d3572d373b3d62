"""Child runs as an application declares them: a tool whose attempt is a run of its own."""

from __future__ import annotations

from collections.abc import Container, Iterable, MutableMapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, TypedDict, TypeVar

from pydantic import BaseModel

from fencepost import slices
from fencepost.budgets import Budget
from fencepost.contracts import Contract, Effect
from fencepost.declarations import ToolHandle, ToolOptions, check_version, declared_tool
from fencepost.dependencies import DependencySpec, check_name
from fencepost.errors import UsageError
from fencepost.joins import ALL, Join
from fencepost.misspelt import check_fields, check_values
from fencepost.tools import OnStop, Tool

ArgsT = TypeVar("ArgsT", bound=BaseModel)
ResultT = TypeVar("ResultT")

USUAL = Budget(turns=4, calls=8, attempts=32, depth=0, children=0)
"""What a child takes at most that says nothing of its own: small, and with no runs below it."""


@dataclass(frozen=True)
class ChildSpec:
    """The run that a tool starts: its planner, what of its parent's budget it takes, which tools it may use.

    `tools` are names and patterns, narrowed further at each level below. The run acts for its parent's
    principal, inherits its taint and its trace, and ends before its parent's deadline less `reserve`. `join`
    is how long a turn waits that starts runs by this tool alone, and says nothing itself.

    A limit of `budget` that differs from `Budget`'s default, or that `whole` names, is given whole, or the
    call is refused with code `budget` and the limit's name; if it is required, that stops its parent. All
    others (with `budget` None, which is `USUAL`: all but `children`) are at most an equal share of what its
    parent has left as the run is started, among the calls of the same turn whose runs are still to be
    started and the parent itself, so that a turn may start several; `tokens` and `cost` that are left open
    (None) are that share. Where nothing is left it is refused. A slice is the child's until its call has
    ended in any way: by its run's end what was not used comes back; where a person settles the call, and
    the end of its run is not known, all of it counts as used. At most `slices.MAX_OPEN` (256) runs of one
    run are open at once, whatever its budget says.
    """

    planner: str
    planner_version: int = 1
    budget: Budget | None = None
    tools: tuple[str, ...] = ("*",)
    on_stop: OnStop = OnStop.COMPENSATE
    join: Join | None = None
    whole: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def wanted(self) -> Budget:
        """What it takes at most."""
        return self.budget or USUAL

    @property
    def firm(self) -> frozenset[str]:
        """The limits that it is given whole, or is refused for."""
        named = frozenset({"children"}) if self.budget is None else slices.named(self.budget)
        return named | {*self.whole}

    def to_json(self) -> dict[str, Any]:
        """As a tool's definition names it."""
        said = {
            "planner": [self.planner, self.planner_version],
            "budget": self.wanted.to_json(),
            "tools": list(self.tools),
            "on_stop": self.on_stop.value,
        }
        return said | ({"whole": sorted(self.whole)} if self.whole else {})


class ChildOptions(ToolOptions, total=False):
    """What else a child may say; meanings as in `ToolOptions`, `ChildSpec` and `DependencySpec`.

    `deadline` is how long it may take at most (five minutes), `grace` how long after that it is still waited
    for, `reconcile_for` for how long it is then UNKNOWN before a person is asked.
    """

    planner_version: int
    budget: Budget | None
    whole: tuple[str, ...]
    tools: tuple[str, ...]
    on_stop: OnStop
    join: Join | None
    deadline: timedelta
    grace: timedelta
    reserve: timedelta
    reconcile_for: timedelta


class _Times(TypedDict, total=False):
    grace: timedelta
    reserve: timedelta
    reconcile_for: timedelta


class ChildTool(ToolHandle[ArgsT, ResultT]):
    """A registered tool that starts a run; `propose` it as any other."""


def declare_child(
    registry: MutableMapping[tuple[str, int], Tool],
    name: str,
    planner: str,
    arguments: type[BaseModel],
    effect: Effect,
    returns: type[Any] | None,
    options: ChildOptions,
) -> ChildTool[Any, Any]:
    """Register it. UsageError for what cannot be, in one sentence."""
    check_values(f"child {name}", options, ChildOptions)
    times: _Times = {}
    if "grace" in options:
        times["grace"] = options["grace"]
    if "reserve" in options:
        times["reserve"] = options["reserve"]
    if "reconcile_for" in options:
        times["reconcile_for"] = options["reconcile_for"]
    deadline = options.get("deadline", timedelta(minutes=5))
    # Its own retry owner: the child. One attempt, as long as the run may take.
    home = DependencySpec(f"run.{name}", attempts=1, per_attempt=deadline, **times)
    if more := sorted({"contract", "key", "receipt"} & set(options)):
        raise UsageError(
            f"child {name} takes no {', '.join(more)}: its run is started once, and is its receipt"
        )
    if "intent" in options and effect is Effect.READ:
        raise UsageError(f"child {name} is READ: it has no intent, each proposal starts a run of its own")
    spec = ChildSpec(
        planner=check_name("planner", planner),
        planner_version=check_version(planner, options.get("planner_version", 1)),
        budget=options.get("budget"),
        tools=tuple(options.get("tools", ("*",))),
        on_stop=options.get("on_stop", OnStop.COMPENSATE),
        join=options.get("join"),
        whole=tuple(options.get("whole", ())),
    )
    may = [limit for limit in slices.SHARED if getattr(spec.wanted, limit) is not None]
    if wrong := [limit for limit in spec.whole if limit not in may]:
        raise UsageError(
            f"child {name}: whole names limits that its budget has: {', '.join(may)}; not {', '.join(wrong)}"
        )
    tool = declared_tool(name, home, effect, returns, arguments, options)
    # It is started once, and its end is heard in this ledger: nothing is repeated, asked or still to land.
    once = Contract(settle=timedelta(0))
    return ChildTool(
        registry, replace(tool, kind="run", child=spec, contract=once, key=None, receipt=_no_receipt)
    )


def join_of(turn: Join | None, agent: Join | None, tools: Iterable[Tool | None]) -> Join:
    """How long a turn waits for the runs it starts: as it says itself, else its agent, else its tools if they
    all say the same, else for all of them.
    """
    if turn is not None or agent is not None:
        return turn or agent or ALL
    said = {tool.child.join for tool in tools if tool is not None and tool.child is not None}
    return (said.pop() if len(said) == 1 else None) or ALL


def orphans(tools: Iterable[Tool], planners: Container[tuple[str, int]]) -> list[str]:
    """What is wrong with children whose planner there is not, one sentence each."""
    lost = [(tool, tool.child) for tool in tools if tool.child is not None]
    return [
        f"tool {tool.name} version {tool.version}: there is no planner {spec.planner} version"
        f" {spec.planner_version} for the run it starts; register it, or name another"
        for tool, spec in lost
        if (spec.planner, spec.planner_version) not in planners
    ]


def _no_receipt(_result: object) -> str:
    return ""
