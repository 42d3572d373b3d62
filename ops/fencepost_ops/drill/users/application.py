"""The user's application as a drill runs it: a copy, with a planner for the one call."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from fencepost.app import App
from fencepost.authority import AllowList, Grant
from fencepost.contracts import Effect
from fencepost.declarations import problems_of
from fencepost.dependencies import DependencySpec
from fencepost.errors import UsageError
from fencepost.tools import Attempt, Context, Proposal, Tool, Turn
from fencepost_ops.drill.users.plan import PLANNER

ATTEMPT: Final[ContextVar[Attempt | None]] = ContextVar("fencepost_drill_attempt", default=None)
"""Which attempt of a Python tool runs here."""


def prepared(app: App, watch: Callable[[Tool, Attempt], None], principal: str) -> App:
    """The application with everything allowed to `principal`, unless its authority is one of its own.

    `watch` is told when an attempt of a Python tool has ended, however it has.
    """
    authority = app.authority
    if isinstance(authority, AllowList):
        grant = Grant(principal, tuple(sorted({name for name, _ in app.registry})))
        authority = AllowList((*authority.grants, grant))
    made = App(app.name, authority=authority)
    made.registry = {place: _watched(tool, watch) for place, tool in app.registry.items()}
    made.books, made.resolver = app.books, app.resolver
    for spec in app.planners.values():
        if spec.plan is not None:
            made.planner(spec.name, spec.version, timeout=spec.timeout)(spec.plan)
        elif spec.script is not None:
            made.scripted(spec.name, spec.version, spec.script)
        if spec.verify is not None:
            made.verify(spec.name)(spec.verify)
    made.planner(PLANNER)(_one)
    return made


def _one(context: Context) -> Turn:
    given = context.input
    if context.call("call") is None:
        call = Proposal(given["tool"], given["arguments"], "call", version=given["version"])
        return Turn([call])
    return Turn(finish={"done": True})


def _watched(tool: Tool, watch: Callable[[Tool, Attempt], None]) -> Tool:
    function = tool.function
    if function is None:
        return tool
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def awaited(args: Any, attempt: Attempt) -> Any:
            ATTEMPT.set(attempt)
            try:
                return await function(args, attempt)
            finally:
                watch(tool, attempt)

        return replace(tool, function=awaited)

    @functools.wraps(function)
    def called(args: Any, attempt: Attempt) -> Any:
        ATTEMPT.set(attempt)
        try:
            return function(args, attempt)
        finally:
            watch(tool, attempt)

    return replace(tool, function=called)


def checked(tool: Tool) -> Tool:
    """The tool, if it can be drilled. UsageError otherwise."""
    if tool.effect is Effect.READ:
        raise UsageError(f"tool {tool.name} is READ: it has no effect that could happen twice")
    if problems := problems_of(tool, None):
        raise UsageError("; ".join(problems))
    return tool


def input_of(tool: Tool, args: BaseModel | Mapping[str, Any] | None) -> dict[str, Any]:
    """The input of a run whose planner proposes this call. UsageError for wrong arguments."""
    try:
        taken = args if isinstance(args, tool.arguments) else tool.arguments.model_validate(args or {})
    except ValidationError as error:
        raise UsageError(f"args are none of {tool.name}: {error}") from None
    told = taken.model_dump(mode="json", by_alias=True)
    return {"tool": tool.name, "version": tool.version, "arguments": told}


def base_url(spec: DependencySpec) -> str:
    """Where a dependency is. UsageError that says how a test sets what it reads."""
    with _sayable():
        return spec.url()


def check_headers(spec: DependencySpec) -> None:
    """UsageError where a header's value is not there."""
    with _sayable():
        spec.sent_headers()


@contextmanager
def _sayable() -> Iterator[None]:
    try:
        yield
    except UsageError as error:
        said = f"{error}; in a test give it a harmless value: fencepost_drill(..., env={{'NAME': 'value'}})"
        raise UsageError(said) from None


@contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """These variables are set within it, and as they were after it."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
