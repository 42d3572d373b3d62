import asyncio
import contextvars
import dataclasses
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from queue import Queue
from typing import Any

import pytest
from pydantic import BaseModel

from fencepost.contracts import Effect
from fencepost.errors import NotApplied, UsageError
from fencepost.outcomes import Applied, Outcome, Refused, Unsure
from fencepost.output import Output
from fencepost.tools import Absent, Attempt, Found, Unclear
from fencepost_workers.tools.python import ask_python, run_python
from tests.typing.user_code import Closed, CloseDay, close_day, debit

FREE = dataclasses.replace(close_day.tool, returns=None)
ARGS = CloseDay(tenant="shop", day="2026-01-02")


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


def attempt(left: float = 30) -> Attempt:
    return Attempt("r", "c", 1, "key", datetime(2026, 1, 2, tzinfo=UTC), lambda: left)


def run(
    function: Callable[..., Any],
    executor: ThreadPoolExecutor,
    *,
    left: float = 30,
    effect: Effect = Effect.IRREVERSIBLE,
) -> Outcome:
    tool = dataclasses.replace(FREE, function=function, effect=effect)
    return asyncio.run(run_python(tool, ARGS, attempt(left), executor))


def both(function: Callable[[BaseModel, Attempt], Any]) -> list[Callable[..., Any]]:
    """The function as `def` and as `async def`."""

    async def awaited(args: BaseModel, attempt: Attempt) -> Any:
        await asyncio.sleep(0)
        return function(args, attempt)

    return [function, awaited]


def test_what_a_tool_returns_is_its_result(executor: ThreadPoolExecutor) -> None:
    outcome = asyncio.run(run_python(close_day.tool, ARGS, attempt(), executor))
    assert outcome == Applied('{"number": 10}', "10")


def test_what_it_returns_is_compared_with_its_arguments(executor: ThreadPoolExecutor) -> None:
    for function in both(lambda _args, _attempt: {"day": "2026-01-03"}):
        tool = dataclasses.replace(FREE, function=function, same=lambda a, r: a.day == r["day"])
        outcome = asyncio.run(run_python(tool, ARGS, attempt(), executor))
        assert isinstance(outcome, Unsure)
        assert (outcome.code, outcome.repair) == ("other_request", True)


def test_def_and_async_def_are_told_the_same(executor: ThreadPoolExecutor) -> None:
    for function in both(
        lambda args, attempt: {"args": args, "key": attempt.operation_key, "left": attempt.remaining()}
    ):
        outcome = run(function, executor)
        assert isinstance(outcome, Applied)
        assert (
            outcome.result_json_text
            == '{"args": {"tenant": "shop", "day": "2026-01-02"}, "key": "key", "left": 30}'
        )


def test_only_not_applied_proves_a_refusal(executor: ThreadPoolExecutor) -> None:
    refusal = NotApplied("late", "tomorrow", retryable=True, retry_after=timedelta(seconds=3))

    def raising(_args: BaseModel, _attempt: Attempt) -> None:
        raise refusal

    expected = Refused("late", "tomorrow", retryable=True, retry_after=timedelta(seconds=3))
    for function in [*both(raising), *both(lambda _args, _attempt: refusal)]:
        assert run(function, executor) == expected


@pytest.mark.parametrize(
    "error",
    [
        ValueError("x"),
        TimeoutError(),
        ConnectionError(),
        UsageError(),
        SystemExit(3),
        ExceptionGroup("g", [ValueError()]),
    ],
)
def test_every_other_exception_leaves_the_outcome_unknown(
    error: BaseException, executor: ThreadPoolExecutor
) -> None:
    def raising(_args: BaseModel, _attempt: Attempt) -> None:
        raise error

    for function in both(raising):
        outcome = run(function, executor)
        assert isinstance(outcome, Unsure)
        assert outcome.code == "exception"
        assert outcome.message.startswith(type(error).__name__)


def test_a_tool_that_cancels_itself_leaves_the_outcome_unknown(executor: ThreadPoolExecutor) -> None:
    def raising(_args: BaseModel, _attempt: Attempt) -> None:
        raise asyncio.CancelledError

    assert [run(function, executor) for function in both(raising)] == [
        Unsure("exception", "CancelledError: "),
        Unsure("cancelled", "the tool cancelled itself"),
    ]


@pytest.mark.parametrize("declared", [{"returns": Closed}, {"succeeded": lambda result: result["ok"]}])
@pytest.mark.parametrize("said", [{"ok": False}, {"error": "no"}, {}, [], None, float("nan")])
def test_a_result_that_does_not_say_that_it_happened_is_unknown(
    executor: ThreadPoolExecutor, declared: dict[str, Any], said: object
) -> None:
    for function in both(lambda _args, _attempt: said):
        tool = dataclasses.replace(FREE, function=function, **declared)
        outcome = asyncio.run(run_python(tool, ARGS, attempt(), executor))
        assert isinstance(outcome, Unsure)


def test_a_thread_that_takes_too_long_is_left_behind(executor: ThreadPoolExecutor) -> None:
    release = threading.Event()

    def slow(_args: BaseModel, _attempt: Attempt) -> str:
        release.wait(30)
        return "too late"

    try:
        assert run(slow, executor, left=0.01) == Unsure("timeout", "no result within 0.010 s")
    finally:
        release.set()


def test_a_coroutine_that_takes_too_long_is_cancelled_and_left_behind(executor: ThreadPoolExecutor) -> None:
    history: list[str] = []

    async def stubborn(_args: BaseModel, _attempt: Attempt) -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            history.append("cancelled")
        return "too late"

    async def scenario() -> Outcome:
        tool = dataclasses.replace(close_day.tool, function=stubborn)
        outcome = await run_python(tool, ARGS, attempt(0.01), executor)
        await asyncio.sleep(0)
        history.append("loop still running")
        return outcome

    assert asyncio.run(scenario()) == Unsure("timeout", "no result within 0.010 s")
    assert history == ["cancelled", "loop still running"]


def test_a_tool_that_never_got_a_thread_is_refused(executor: ThreadPoolExecutor) -> None:
    release = threading.Event()
    calls: list[int] = []

    def counted(_args: BaseModel, _attempt: Attempt) -> None:
        calls.append(1)

    executor.submit(release.wait, 30)
    try:
        outcome = run(counted, executor, left=0.01)
    finally:
        release.set()
    assert outcome == Refused("not_started", "no thread was free within 0.010 s", retryable=True)
    executor.shutdown()
    assert run(counted, executor) == Refused(
        "not_started", "RuntimeError: cannot schedule new futures after shutdown", retryable=True
    )
    assert calls == []


def test_a_tool_without_time_left_is_not_run(executor: ThreadPoolExecutor) -> None:
    for function in both(lambda _args, _attempt: pytest.fail("ran")):
        assert run(function, executor, left=0) == Refused(
            "deadline_passed", "the attempt had no time left", retryable=True
        )


def test_a_tool_whose_time_ran_out_before_it_could_begin_is_not_run(executor: ThreadPoolExecutor) -> None:
    ran: list[int] = []
    for function in both(lambda _args, _attempt: ran.append(1)):
        looks = [-1.0, 30.0]  # the first look, at the start of the attempt, finds time left; the next none
        late = dataclasses.replace(attempt(), remaining=looks.pop)
        tool = dataclasses.replace(FREE, function=function)
        outcome = asyncio.run(run_python(tool, ARGS, late, executor))
        assert outcome == Refused("deadline_passed", "the attempt had no time left", retryable=True)
    assert ran == []


def test_a_tool_that_got_its_thread_after_its_time_is_not_run(executor: ThreadPoolExecutor) -> None:
    release, ran = threading.Event(), threading.Event()
    left = [30.0]
    executor.submit(release.wait, 30)
    tool = dataclasses.replace(close_day.tool, function=lambda _args, _attempt: ran.set())
    starved = dataclasses.replace(attempt(), remaining=lambda: left[0])

    async def scenario() -> Outcome:
        running = asyncio.create_task(run_python(tool, ARGS, starved, executor))
        await asyncio.sleep(0)
        left[0] = 0  # the process stood still: its timers have not run, its time has
        release.set()
        return await running

    outcome = asyncio.run(scenario())
    assert outcome == Refused("deadline_passed", "the attempt had no time left", retryable=True)
    assert not ran.is_set()


@pytest.mark.parametrize(
    ("answer", "expected"),
    [("done", Applied('"done"', None)), (NotApplied("no"), Refused("no", "", retryable=False))],
)
def test_what_a_thread_answers_after_its_time_is_told(
    executor: ThreadPoolExecutor, answer: object, expected: Outcome
) -> None:
    release = threading.Event()
    told: Queue[Outcome] = Queue()

    def slow(_args: BaseModel, _attempt: Attempt) -> object:
        release.wait(30)
        return answer

    tool = dataclasses.replace(FREE, function=slow)
    outcome = asyncio.run(run_python(tool, ARGS, attempt(0.01), executor, told.put))
    assert isinstance(outcome, Unsure)
    assert told.empty()
    release.set()
    assert told.get(timeout=30) == expected


def test_what_a_coroutine_answers_after_its_time_is_told_unless_it_was_cancelled(
    executor: ThreadPoolExecutor,
) -> None:
    async def stubborn(_args: BaseModel, _attempt: Attempt) -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
        return "done"

    async def obedient(_args: BaseModel, _attempt: Attempt) -> None:
        await asyncio.Event().wait()

    async def scenario(function: Callable[..., Any]) -> list[Outcome]:
        told: list[Outcome] = []
        tool = dataclasses.replace(FREE, function=function)
        await run_python(tool, ARGS, attempt(0.01), executor, told.append)
        for _ in range(5):
            await asyncio.sleep(0)
        return told

    assert asyncio.run(scenario(stubborn)) == [Applied('"done"', None)]
    assert asyncio.run(scenario(obedient)) == []


def test_an_answer_in_time_and_a_read_are_not_told_twice(executor: ThreadPoolExecutor) -> None:
    told: list[Outcome] = []
    release = threading.Event()
    quick = dataclasses.replace(close_day.tool, function=lambda _args, _attempt: "done")
    slow = dataclasses.replace(close_day.tool, function=lambda _a, _b: release.wait(30), effect=Effect.READ)
    asyncio.run(run_python(quick, ARGS, attempt(), executor, told.append))
    asyncio.run(run_python(slow, ARGS, attempt(0.01), executor, told.append))
    release.set()
    executor.shutdown()
    assert told == []


def test_a_read_is_never_in_doubt(executor: ThreadPoolExecutor) -> None:
    def raising(_args: BaseModel, _attempt: Attempt) -> None:
        raise ValueError("x")

    assert run(raising, executor, effect=Effect.READ) == Refused("exception", "ValueError: x", retryable=True)


def test_a_def_that_returns_a_coroutine_is_not_believed(executor: ThreadPoolExecutor) -> None:
    async def inner() -> None:
        raise AssertionError

    outcome = run(lambda _args, _attempt: inner(), executor)
    assert isinstance(outcome, Unsure)
    assert outcome.code == "not_awaited"


def test_context_variables_reach_the_thread(executor: ThreadPoolExecutor) -> None:
    variable = contextvars.ContextVar("variable", default="unset")
    variable.set("set")
    outcome = run(lambda _args, _attempt: variable.get(), executor)
    assert outcome == Applied('"set"', None)


def test_a_cancelled_worker_cancels_its_tool(executor: ThreadPoolExecutor) -> None:
    history: list[str] = []

    async def endless(_args: BaseModel, _attempt: Attempt) -> None:
        history.append("started")
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            history.append("cancelled")
            raise

    started = asyncio.Event()
    tool = dataclasses.replace(close_day.tool, function=endless)

    async def scenario() -> None:
        task = asyncio.create_task(run_python(tool, ARGS, attempt(), executor))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scenario())
    assert history == ["started", "cancelled"]


def test_an_http_tool_is_not_a_python_tool(executor: ThreadPoolExecutor) -> None:
    with pytest.raises(UsageError, match=r"wallet\.debit has no Python function"):
        asyncio.run(run_python(debit.tool, ARGS, attempt(), executor))


def test_a_long_result_that_fits_is_an_effect_though_not_all_of_it_is_kept(
    executor: ThreadPoolExecutor,
) -> None:
    def long(_args: BaseModel, _attempt: Attempt) -> Any:
        return {"number": 10, "note": "x" * 100_000}

    tool = dataclasses.replace(close_day.tool, function=long, output=Output(max_bytes=2000))
    outcome = asyncio.run(run_python(tool, ARGS, attempt(), executor))
    assert isinstance(outcome, Applied)
    assert len(outcome.result_json_text) <= 2000


# Lookups


@pytest.mark.parametrize(
    ("said", "found"),
    [
        (Found("r-1", {"id": "r-1"}), Found("r-1", {"id": "r-1"})),
        (Absent(), Absent()),
        (Unclear("down"), Unclear("down")),
    ],
)
def test_a_lookup_says_what_it_found(executor: ThreadPoolExecutor, said: object, found: object) -> None:
    for function in both(lambda _args, _attempt: said):
        tool = dataclasses.replace(FREE, lookup=function)
        assert asyncio.run(ask_python(tool, ARGS, attempt(), executor)) == found


@pytest.mark.parametrize("said", [None, True, {"id": "r-1"}, [], "found"])
def test_a_lookup_that_gives_anything_else_is_unclear(executor: ThreadPoolExecutor, said: object) -> None:
    for function in both(lambda _args, _attempt: said):
        tool = dataclasses.replace(FREE, lookup=function)
        assert isinstance(asyncio.run(ask_python(tool, ARGS, attempt(), executor)), Unclear)


@pytest.mark.parametrize("error", [KeyError("id"), NotApplied("no"), SystemExit(1)])
def test_a_lookup_that_raises_is_unclear(executor: ThreadPoolExecutor, error: BaseException) -> None:
    def raising(_args: BaseModel, _attempt: Attempt) -> None:
        raise error

    for function in both(raising):
        tool = dataclasses.replace(FREE, lookup=function)
        assert isinstance(asyncio.run(ask_python(tool, ARGS, attempt(), executor)), Unclear)


def test_nobody_waits_for_a_lookup_beyond_its_time(executor: ThreadPoolExecutor) -> None:
    release = threading.Event()

    async def endless(_args: BaseModel, _attempt: Attempt) -> None:
        await asyncio.Event().wait()

    async def asked() -> None:
        for function in (lambda _args, _attempt: release.wait(30), endless):
            tool = dataclasses.replace(FREE, lookup=function)
            assert isinstance(await ask_python(tool, ARGS, attempt(0.01), executor), Unclear)
            release.set()

    asyncio.run(asked())


def test_what_a_lookup_fails_with_is_cleaned_before_it_is_cut(executor: ThreadPoolExecutor) -> None:
    def fail(_args: BaseModel, _attempt: Attempt) -> Any:
        raise ValueError("." * 480 + " a-long-secret " + "." * 90)

    for lookup in both(fail):
        tool = dataclasses.replace(FREE, lookup=lookup)

        def hide(text: str) -> str:
            return text.replace("a-long-secret", "***")

        said = asyncio.run(ask_python(tool, ARGS, attempt(), executor, hide=hide))
        assert isinstance(said, Unclear)
        assert "a-lo" not in said.detail
