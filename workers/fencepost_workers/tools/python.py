"""Runs Python tools, `def` in a thread and `async def` on the loop; whatever comes back is an outcome.

Only NotApplied proves that nothing happened. Nobody waits for a tool beyond its attempt: a coroutine is
cancelled and left, a thread cannot be stopped and goes on by itself. What it answers in the end is still
heard, as evidence.
"""

import asyncio
import inspect
import os
import sys
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextvars import copy_context
from functools import partial
from typing import Any, Final

from pydantic import BaseModel

from fencepost.canonical import sanitize
from fencepost.contracts import Effect
from fencepost.errors import NotApplied, UsageError
from fencepost.outcomes import (
    MAX_TEXT_CHARS,
    Applied,
    Hide,
    Outcome,
    Refused,
    Unsure,
    answers_other,
    heard,
    names_nothing,
    not_understood,
    receipt_of,
    refused,
    result_text,
    sent_late,
    told,
    without_effect,
)
from fencepost.tools import Attempt, LookupResult, Tool, Unclear
from fencepost_workers import forks

Late = Callable[[Outcome], object]
"""Told what a tool answered after its attempt's time; from a thread of the executor, or from the loop."""

_TOO_LATE: Final = Refused("deadline_passed", "the attempt had no time left", retryable=True)


async def run_python(
    tool: Tool,
    args: BaseModel,
    attempt: Attempt,
    executor: Executor,
    late: Late | None = None,
    hide: Hide | None = None,
) -> Outcome:
    """Execute the tool's function once, for at most `attempt.remaining()` seconds; raises only cancellation.

    Refused if the function raised or returned NotApplied, or was never started; Unsure after any other
    exception, after a timeout, and where what it returned does not fit its result model. After a
    timeout `late` is called with the outcome once the function ends, if it ends; never for a READ tool.
    `hide` takes credentials out of texts before they are cut to their length.
    """
    if tool.effect is Effect.READ:
        return without_effect(await _run(tool, args, attempt, executor, None, hide))
    return await _run(tool, args, attempt, executor, late, hide)


async def _run(
    tool: Tool,
    args: BaseModel,
    attempt: Attempt,
    executor: Executor,
    late: Late | None,
    hide: Hide | None,
) -> Outcome:
    if tool.function is None:
        raise UsageError(f"tool {tool.name} has no Python function")
    left = attempt.remaining()
    if left <= 0:
        return _TOO_LATE
    if inspect.iscoroutinefunction(tool.function):
        return await _on_the_loop(tool, args, attempt, left, late, hide)
    return await _in_a_thread(tool, args, attempt, executor, left, late, hide)


async def _on_the_loop(
    tool: Tool, args: BaseModel, attempt: Attempt, left: float, late: Late | None, hide: Hide | None
) -> Outcome:
    task = asyncio.ensure_future(_awaited(tool, args, attempt, hide))
    try:
        await asyncio.wait({task}, timeout=left)
    finally:
        task.cancel()
    if not task.done():
        if late is not None:
            task.add_done_callback(lambda ended: None if ended.cancelled() else late(ended.result()))
        return _timeout(left)
    if task.cancelled():
        return Unsure("cancelled", "the tool cancelled itself")
    return task.result()


async def _awaited(tool: Tool, args: BaseModel, attempt: Attempt, hide: Hide | None) -> Outcome:
    assert tool.function is not None  # checked by the caller
    if attempt.remaining() <= 0:  # the process stood still, or a thread was long in coming
        return _TOO_LATE
    pid = os.getpid()
    try:
        result = await tool.function(args, attempt)
        forks.ours(pid)
        return _in_time(_returned(tool, args, result, hide), attempt)
    except NotApplied as refusal:
        return refused(refusal, hide=hide)
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # noqa: BLE001 - SystemExit and its kind would end the loop for everybody
        forks.ours(pid)
        return _in_time(Unsure("exception", told(error, hide=hide)), attempt)


async def _in_a_thread(
    tool: Tool,
    args: BaseModel,
    attempt: Attempt,
    executor: Executor,
    left: float,
    late: Late | None,
    hide: Hide | None,
) -> Outcome:
    try:
        context = copy_context()
        running: Future[Outcome] = executor.submit(context.run, _called, tool, args, attempt, hide)
    except RuntimeError as error:  # the executor is shut down
        return Refused("not_started", told(error), retryable=True)
    try:
        await asyncio.wait({asyncio.wrap_future(running)}, timeout=left)
    except asyncio.CancelledError:
        running.cancel()
        raise
    if running.cancel():  # it was still waiting for a thread
        return Refused("not_started", f"no thread was free within {left:.3f} s", retryable=True)
    if running.done():
        return running.result()
    if late is not None:
        running.add_done_callback(lambda ended: late(ended.result()))
    return _timeout(left)


def _called(tool: Tool, args: BaseModel, attempt: Attempt, hide: Hide | None) -> Outcome:
    assert tool.function is not None  # checked by the caller
    if attempt.remaining() <= 0:  # the process stood still, or a thread was long in coming
        return _TOO_LATE
    pid = os.getpid()
    try:
        return _in_time(_returned(tool, args, tool.function(args, attempt), hide), attempt)
    except NotApplied as refusal:
        return refused(refusal, hide=hide)
    except BaseException as error:  # noqa: BLE001 - nothing may leave the thread but an outcome
        return _in_time(Unsure("exception", told(error, hide=hide)), attempt)
    finally:
        forks.ours(pid)


async def ask_python(
    tool: Tool, args: BaseModel, attempt: Attempt, executor: Executor, *, hide: Hide | None = None
) -> LookupResult:
    """What a Python tool's lookup found, asked once for at most `attempt.remaining()` seconds.

    Unclear after any exception, after a timeout, and for what is no `Found`, `Absent` or `Unclear`.
    Raises only cancellation. `hide` takes credentials out of an error before that is cut to its length.
    """
    if tool.lookup is None:
        return Unclear(f"tool {tool.name} has no lookup")
    try:
        async with asyncio.timeout(max(0.0, attempt.remaining())):
            if inspect.iscoroutinefunction(tool.lookup):
                found = await tool.lookup(args, attempt)
            else:
                run = partial(copy_context().run, tool.lookup, args, attempt)
                found = await asyncio.get_running_loop().run_in_executor(executor, run)
        return heard(tool, args, found)
    except TimeoutError as error:
        return Unclear(f"no answer in the time there was: {told(error)}")
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # noqa: BLE001 - SystemExit and its kind would end the loop for everybody
        return Unclear(told(error, hide=hide))


def _returned(tool: Tool, args: BaseModel, result: Any, hide: Hide | None) -> Outcome:
    if isinstance(result, NotApplied):
        return refused(result, hide=hide)
    if inspect.iscoroutine(result):
        result.close()
        return Unsure("not_awaited", f"{tool.name} is a def that returned a coroutine; declare it async def")
    if (why := not_understood(tool, result)) is not None:
        return why
    text, receipt = result_text(result, hide=hide, most=tool.output.max_bytes), receipt_of(tool, result)
    declared = result
    if tool.returns is not None and not isinstance(result, tool.returns):
        try:  # all of it, as it came: what is kept may be cut, and have credentials hidden
            declared = tool.returns.model_validate_json(result_text(result, most=sys.maxsize))
        except Exception:  # noqa: BLE001 - a model may break in any way
            other = f"it returned what is no {tool.returns.__name__}: {text}"
            return Unsure("unreadable_answer", sanitize(other, MAX_TEXT_CHARS))
    why = answers_other(tool, args, result) or names_nothing(tool, declared)
    return why or Applied(text, receipt)


def _in_time(outcome: Outcome, attempt: Attempt) -> Outcome:
    """A function that ends after its time may have sent until then."""
    return sent_late(outcome) if attempt.remaining() <= 0 else outcome


def _timeout(left: float) -> Unsure:
    return Unsure("timeout", f"no result within {left:.3f} s")
