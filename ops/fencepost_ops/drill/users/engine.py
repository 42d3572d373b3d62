"""`UserDrill`: what the fixture `fencepost_drill` gives. One server, any number of sweeps."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, ParamSpec, TypeVar, Unpack, cast

from pydantic import BaseModel

from fencepost.app import App
from fencepost.errors import UsageError
from fencepost.tools import Attempt, Tool
from fencepost_ops.drill.drill import Drill
from fencepost_ops.drill.protocol import Asked, Protocol, parse_protocol
from fencepost_ops.drill.users import application, plan
from fencepost_ops.drill.users.downstream import Downstream, Wired
from fencepost_ops.drill.users.options import Options, check_names
from fencepost_ops.drill.users.played import Ended, Played
from fencepost_ops.drill.users.result import Result
from fencepost_ops.drill.users.sweep import Sweep
from fencepost_ops.drill.users.world import Given, world
from fencepost_ops.drill.virtual import VirtualClock

P = ParamSpec("P")
R = TypeVar("R")

_CALLS: Final = """
SELECT id::text, label, state, operation, arguments FROM fencepost.calls ORDER BY run, turn, ordinal, id
"""


@dataclass
class Told:
    """How much a drill has done, for the end of a test run."""

    started_s: float = 0.0
    sweeps: int = 0
    histories: int = 0
    took_s: float = 0.0


@dataclass
class UserDrill:
    """Sweeps faults over users' own tools. For one thread at a time; see `__call__`."""

    drill: Drill
    told: Told = field(default_factory=Told)
    _clock: VirtualClock | None = None
    _downstream: Downstream | None = None

    def now(self) -> datetime:
        """What time it is: in a history its own, virtual time, which a fake that forgets has to go by."""
        return datetime.now(UTC) if self._clock is None else self._clock.now

    def line(
        self, function: Callable[P, R], lost: Callable[[str], BaseException] = TimeoutError
    ) -> Callable[P, R]:
        """`function`, by which a Python tool reaches its service, as a wire that faults strike.

        In a history its calls may never arrive, arrive late, or lose their answer: then it raises
        `lost(why)`, as a client does that waits in vain. Outside of one it is the function itself.

        A process that is killed unwinds here, as no SIGKILL lets it: the tool's `finally` and
        `except BaseException` still run. By a wire they reach nothing any more; past it, straight at the
        fake, they would clean up what a really killed process leaves behind, and the tool is judged kinder.
        """
        wired = Wired(function, lost)
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def awaited(*args: P.args, **kwargs: P.kwargs) -> Any:
                here = self._downstream
                return await (
                    function(*args, **kwargs) if here is None else here.acall(wired, *args, **kwargs)
                )

            return cast("Callable[P, R]", awaited)

        @functools.wraps(function)
        def called(*args: P.args, **kwargs: P.kwargs) -> R:
            here = self._downstream
            return function(*args, **kwargs) if here is None else here.call(wired, *args, **kwargs)

        return called

    def __call__(
        self,
        app: App,
        tool: str | None = None,
        args: BaseModel | Mapping[str, Any] | None = None,
        **options: Unpack[Options],
    ) -> Result:
        """Put one tool, or one planner, through every fault its own run passes; say what came of it.

        `tool` and `args` are the call; or `planner=` and `run=`. What `options` mean stands at `Options`.

        UsageError for a test that is set up wrongly, or would prove nothing: patterns that this run's
        points do not match, a protocol whose fault never strikes. What the test's own code raises.
        """
        check_names(options)
        only, most = options.get("only", "*"), options.get("most", 3)
        patterns = (only,) if isinstance(only, str) else tuple(only)
        plan.check_patterns(patterns)
        if most < 1:
            raise UsageError(f"most={most}: say after how many histories that fail to stop, one or more")
        found = app.tool(tool, options.get("version")) if tool is not None else None
        if (found is None) == (options.get("planner") is None):
            raise UsageError("say what to drill: tool= and args=, or planner= and run=")
        given = _given(app, found, options)
        with application.environment(options.get("env") or {}):
            case = _case(given, args, options)
            prepared = application.prepared(app, self.attempted, given.principal)
            sweep = Sweep(self.play, prepared, given, case, most)
            protocol = _protocol(options.get("protocol"), case)
            result = sweep.run(patterns, pairs=options.get("pairs", False), protocol=protocol)
        self.told.sweeps += 1
        self.told.histories += len(result.played)
        self.told.took_s += result.took_s
        return result

    def play(self, given: Given, app: App, protocol: Protocol) -> Played:
        """One history, on a fresh fake."""
        with ExitStack() as stack:

            def downstream(clock: VirtualClock) -> Downstream:
                self._clock = clock
                self._downstream = stack.enter_context(world(given, protocol.name, clock, self.line))
                return self._downstream

            try:
                outcome = self.drill.run(protocol, app=app, downstream=downstream)
                here = self._downstream
                assert here is not None
                here.finish()
            finally:
                self._clock = self._downstream = None
        rows = self.drill.ledger.owner.execute(_CALLS).fetchall()
        calls = tuple(Ended(row[0], row[1], row[2], row[3], _text(row[4])) for row in rows)
        return Played(outcome, calls, tuple(here.seen), tuple(here.makers), tuple(here.log))

    def attempted(self, tool: Tool, attempt: Attempt) -> None:
        """An attempt of a Python tool is over."""
        if self._downstream is not None:
            self._downstream.attempted(tool, attempt)


def _given(app: App, tool: Tool | None, options: Options) -> Given:
    return Given(
        app,
        tool,
        options.get("book"),
        options.get("key"),
        options.get("service"),
        options.get("fresh"),
        options.get("through", ()),
        options.get("lost", TimeoutError),
        options.get("principal", "svc:drill"),
    )


def _case(given: Given, args: BaseModel | Mapping[str, Any] | None, options: Options) -> plan.Case:
    tool, more = given.tool, {"principal": given.principal, **(options.get("run") or {})}
    if tool is None:
        planner = options.get("planner") or ""
        given.app.find_planner(planner)
        return plan.Case(planner, None, plan.wanted(None, {**more, "planner": planner}), again=False)
    application.checked(tool)
    asked = plan.wanted(tool, {**more, "input": application.input_of(tool, args)})
    second: Asked | None = None
    if (other := options.get("other")) is not None:
        update = {"input": application.input_of(tool, other), "run_key": plan.OTHER, "at_s": 1.0}
        second = asked.model_copy(update=update)
    return plan.Case(tool.name, tool, asked, second, options.get("again", True))


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _protocol(given: str | Protocol | None, case: plan.Case) -> Protocol | None:
    if given is None:
        return None
    return case.completed(parse_protocol(given, "protocol=") if isinstance(given, str) else given)
