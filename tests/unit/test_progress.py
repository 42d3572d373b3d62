"""Whether a run gets on: a table of what planners do when they do not, and of what only looks like it."""

import dataclasses
import itertools
import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from fencepost import App, Contract, Effect, Request
from fencepost.ledger.reads import ContextCall
from fencepost.progress import FAR, LONGEST, MOST_MOVING, PATIENCE, stuck
from fencepost.tools import Tool

N = 3
"""Of `repeats`: looks that differ in what only counts may come twice as often."""

app = App("p")
shop = app.dependency("shop", base_url="http://127.0.0.1:9")


class Args(BaseModel):
    n: int = 0
    note: str = ""
    tags: list[str] = []


@shop.http("look", effect=Effect.READ)
def look(args: Args) -> Request:
    return Request.get("/look")


@shop.http("job.state", effect=Effect.READ, poller=True)
def state(args: Args) -> Request:
    return Request.get("/state")


@shop.http("mail.send", effect=Effect.IRREVERSIBLE, intent=lambda a: ("mail", a.n), contract=Contract())
def send(args: Args) -> Request:
    return Request.post("/mails", json={})


app.memory("notes")


def tool(name: str, version: int) -> Tool | None:
    return app.registry.get((name, version))


Said = tuple[str, dict[str, Any], str]
"""A call: its tool, its arguments, and what came of it: after `!` the code of an error and its words, after
`^` a refusal's words, after `?` an open state.
"""
STATES = {"!": "FAILED", "^": "REJECTED"}


def history(turns: Sequence[Sequence[Said]], version: int = 1) -> list[ContextCall]:
    made: list[Any] = []
    for turn, said in enumerate(turns, start=1):
        for ordinal, (name, arguments, came) in enumerate(said):
            mark, code = came[0], came[1:].split(" ")[0]
            made.append(
                ContextCall(
                    tenant="t", run=None, id=None, turn=turn, ordinal=ordinal, version=1, label="",  # type: ignore[arg-type]
                    tool=name, arguments=json.dumps(arguments), result=None, receipt=None,
                    state=came[1:] if mark == "?" else STATES.get(mark, "SUCCEEDED"),
                    error=came[1:] if mark in STATES else None, tool_version=version,
                    digest=None if mark in "?!^" else came, code=code if mark == "!" else None,
                )
            )  # fmt: skip
    return made


def one(name: str, came: str = "[]", **arguments: Any) -> list[Said]:
    return [(name, arguments, came)]


def nested(depth: int, value: Any) -> dict[str, Any]:
    return {"a": nested(depth - 1, value) if depth else value}


A, B, C = one("look", n=1), one("look", "other", n=2), one("look", "third", n=3)
D = one("look", "fourth", n=4)
WORDS = ("gate", "pole", "wire", "rail", "post", "mesh", "nail", "bolt", "hook", "knob")
POLL = one("job.state", "still running")
GETS_STUCK = {
    "the same call, and the same result": [A] * N,
    "the same after other turns": [B, C, B, *[A] * N],
    "a fixed error": [one("look", "!503")] * N,
    "an effect that is one no more": [one("mail.send", "sent", n=1)] * N,
    "two at once, in whatever order": [[*A, *B], [*B, *A], [*A, *B]],
    "with a poller asked in between": [A, POLL, A, POLL, POLL, A],
    "with a poller asked beside": [[*A, *POLL]] * N,
    "A, B, A, B": [A, B] * N,
    "A, B, A, B, begun with B": [A, *[A, B] * N],
    "A, B, C": [A, B, C] * N,
    "A, B, C, D": [A, B, C, D] * N,
    "a circle of eight": [one("look", f"r{n}", n=n) for n in range(8)] * N,
    "a fixed error, worded anew": [one("look", f"!http_503 busy, request {n}") for n in range(N)],
    "a refusal, worded anew": [one("nothing", f"^no_tool: at 12:00:0{n}") for n in range(N)],
    "a tool there is not": [one("nothing", "!unknown_tool")] * N,
    "one number changes": [one("look", n=n) for n in range(2 * N)],
    "one text changes": [one("look", note=f"try {n}") for n in range(2 * N)],
    "one item of a list changes": [one("look", tags=["a", str(n)]) for n in range(2 * N)],
    "one number changes, and it fails alike": [one("mail.send", "!402", n=n) for n in range(2 * N)],
    "two numbers change": [one("look", n=n, note=f"{7 - n}") for n in range(2 * N)],
    "four calls, and a counter in one": list(
        itertools.chain.from_iterable((one("look", n=n), A, B, C) for n in range(2 * N))
    ),
    "two calls, a counter in each": [[*one("look", n=n), *one("look", "x", n=-n)] for n in range(2 * N)],
    "A, B, and a counter in one": list(
        itertools.chain.from_iterable((one("look", n=n), one("look", "x", note="b")) for n in range(2 * N))
    ),
    "as many places change as are looked for": [
        one("look", tags=[str(n + m) for m in range(MOST_MOVING)]) for n in range(2 * N)
    ],
    "a long call beside one that counts": [
        one("look", note="x" * 100_000) + one("look", n=n) for n in range(2 * N)
    ],
    "calls that are beside it, and stay": [one("look", "?DISPATCHING", n=1)] * N,
}
GETS_ON = {
    "nothing yet": [],
    "one turn too few": [A] * (N - 1),
    "an interruption": [A, A, B, A, A],
    "another result each time": [one("look", f"r{n}") for n in range(20)],
    "the same call many times in one turn": [[*A] * 20],
    "a round too few": [A, B] * (N - 1),
    "a poller": [POLL] * 200,
    "a poller whose result changes slowly": [one("job.state", f"{n // 10} %") for n in range(200)],
    "one number changes, but not often": [one("look", n=n) for n in range(2 * N - 1)],
    "each is an effect": [one("mail.send", "sent", n=n) for n in range(50)],
    "a circle of nine": [one("look", f"r{n}", n=n) for n in range(9)] * N,
    "another error each time": [one("look", f"!{code}") for code in ("a", "b", "c", "d")],
    "another word each time": [one("look", note=word) for word in WORDS],
    "a number and a word change": [one("look", n=n, note=word) for n, word in enumerate(WORDS)],
    "numbers in no order": [one("look", n=n * n % 17) for n in range(17)],
    "half as much each time": [one("look", n=2**n) for n in range(20, 0, -1)],
    "a day after the other": [one("look", note=f"2026-11-{n:02}") for n in range(1, 29)],
    "one argument more": [[("look", {f"x{n}": 1}, "[]")] for n in range(20)],
    "a list that grows": [one("look", tags=["a"] * n) for n in range(20)],
    "a word, at a path that is spelled as another": [
        [("look", {"a": {"b": n}, "a.b": word}, "[]")] for n, word in enumerate(WORDS)
    ],
    "a word, at another place of a list that is spelled alike": [
        [("look", {"a": [n], "a[0]": word}, "[]")] for n, word in enumerate(WORDS)
    ],
    "more places change than are looked for": [
        one("look", tags=[str(n + m) for m in range(MOST_MOVING + 1)]) for n in range(20)
    ],
    "more places change, in two calls": [
        [call for m in range(MOST_MOVING + 1) for call in one("look", n=n + m)] for n in range(20)
    ],
    "more differs than is looked into": [
        [call for m in range(4) for call in one("look", n=n + m, note="x" * 14_000)] for n in range(20)
    ],
    "the result changes with the argument": [one("look", f"page {n}", n=n) for n in range(20)],
}


@pytest.mark.parametrize("turns", GETS_STUCK.values(), ids=GETS_STUCK)
def test_a_run_that_learns_nothing_new_is_stuck(turns: Sequence[Sequence[Said]]) -> None:
    version = 0 if turns[0][0][0] == "nothing" else 1
    assert stuck(history(turns, version), N, tool) is not None
    assert stuck(history(turns[:-1], version), N, tool) is None, "and not a turn earlier"


@pytest.mark.parametrize("turns", GETS_ON.values(), ids=GETS_ON)
def test_a_run_that_gets_on_is_not(turns: Sequence[Sequence[Said]]) -> None:
    assert stuck(history(turns), N, tool) is None


def test_the_sentence_names_tool_and_count() -> None:
    assert stuck(history([A] * N), N, tool) == (
        "look: called 3 turns in a row with the same arguments and the same result"
    )
    assert stuck(history([A, one("mail.send", "x")] * N), N, tool) == (
        "look, then mail.send: called in a circle 3 times with the same arguments and the same results"
    )
    assert stuck(history([one("look", n=n) for n in range(6)]), N, tool) == (
        "look: called 6 times in a row with the same result while only n changed"
    )
    assert stuck(history([[("look", {"a": {"b": [0, n]}}, "[]")] for n in range(6)]), N, tool) == (
        "look: called 6 times in a row with the same result while only a.b[1] changed"
    )


def test_what_is_too_deep_is_not_looked_into() -> None:
    deep = [[("look", nested(40, n), "[]")] for n in range(2 * N)]
    assert "the whole changed" in (stuck(history(deep), N, tool) or "")


def test_a_long_name_of_a_planners_own_is_cut() -> None:
    said = stuck(history([one("y" * 5000, "!unknown_tool")] * N, version=0), N, tool) or ""
    assert "yyy" in said
    assert len(said) < 300


def test_calls_of_a_version_that_another_process_knows_do_not_count() -> None:
    assert stuck(history([A] * N, version=2), N, tool) is None


def test_how_far_back_is_looked_does_not_grow_with_the_run() -> None:
    most = LONGEST * PATIENCE * N
    near = [A] * (N - 1) + [POLL] * (FAR * most - N - 1) + [A]
    assert stuck(history(near), N, tool) is not None
    assert stuck(history([A] * (N - 1) + [POLL] * (FAR * most) + [A]), N, tool) is None


@given(st.lists(st.sampled_from([A, B, C, POLL, [*A, *B]]), max_size=40), st.integers(2, 6))
def test_nothing_is_forgotten_by_looking_again(turns: list[list[Said]], repeats: int) -> None:
    """What was stuck stays so until something else comes of a turn, however often it is asked."""
    calls = history(turns)
    assert stuck(calls, repeats, tool) == stuck(list(calls), repeats, tool)
    if stuck(calls, repeats, tool) is not None and turns[-1] != POLL:
        last = [turns[-1]] * repeats
        assert stuck(history([*turns, *last]), repeats, tool) is not None


def readings(*said: dict[str, Any]) -> list[ContextCall]:
    calls = history([one("notes.read", f"digest-{n}", key="k") for n in range(len(said))])
    return [
        dataclasses.replace(call, result=json.dumps(text).encode())
        for call, text in zip(calls, said, strict=True)
    ]


def test_when_a_reading_was_made_is_nothing_learnt() -> None:
    said = {"key": "k", "version": 3, "exists": True, "value": {"now": "kept"}}
    same = [said | {"as_of": f"2026-01-01T00:00:0{n}Z"} for n in range(N)]
    assert stuck(readings(*same), N, tool) is not None
    assert stuck(readings(*same[:-1], same[-1] | {"version": 4}), N, tool) is None
    assert stuck(readings(*same[:-1], same[-1] | {"stale": True}), N, tool) is None


# -- lists ---------------------------------------------------------------------------------------------------

SKUS = [f"AB-{n}" for n in range(1040, 1050)]


def absent(skus: Sequence[str]) -> list[ContextCall]:
    return history([one("look", note=sku) for sku in skus])


def learnt(result: str) -> list[ContextCall]:
    """A turn with this result, before those of a list."""
    (call,) = history([one("look", "list")])
    return [dataclasses.replace(call, turn=0, result=result.encode())]


GIVEN = {
    "in the run's input": json.dumps({"skus": SKUS}),
    "in a text, line by line": json.dumps("Look for:\n" + "\n".join(SKUS)),
    "from the first to the last": '"Look for AB-1040 to AB-1049."',
    "half of them": json.dumps(SKUS[::2]),
}


@pytest.mark.parametrize("given", GIVEN.values(), ids=GIVEN)
def test_a_list_that_the_planner_was_told_is_walked_through(given: str) -> None:
    assert stuck(absent(SKUS), 5, tool) is not None
    assert stuck(absent(SKUS), 5, tool, lambda: [given]) is None


@pytest.mark.parametrize("given", GIVEN.values(), ids=GIVEN)
def test_a_list_that_a_call_has_brought_is_walked_through(given: str) -> None:
    assert stuck([*learnt(given), *absent(SKUS)], 5, tool) is None


@pytest.mark.parametrize("given", [json.dumps(SKUS[:4]), '"AB-10400 1040 XAB-1041"', '"AB-0 to AB-9"'])
def test_what_only_resembles_the_list_is_not_it(given: str) -> None:
    assert stuck(absent(SKUS), 5, tool, lambda: [given]) is not None


IDS = [f"k{n}f3q9x00dz{9 - n}" for n in range(10)]


def after(said: str, *, where: str, calls: Sequence[ContextCall]) -> list[ContextCall]:
    """A turn of which this is told, before the others."""
    (call,) = history([one("look", "!first")])
    error, receipt = (said, None) if where == "error" else (None, said)
    return [dataclasses.replace(call, turn=0, error=error, receipt=receipt), *calls]


@pytest.mark.parametrize("where", ["error", "receipt"])
def test_a_list_that_an_error_or_a_receipt_told_is_walked_through(where: str) -> None:
    for words in (IDS, SKUS):
        assert stuck(absent(words), 5, tool) is not None
        known = f"bad_id: known are {', '.join(words)}"
        assert stuck(after(known, where=where, calls=absent(words)), 5, tool) is None


def failing(error: Callable[[str], str], words: Sequence[str]) -> list[ContextCall]:
    return history([one("look", f"!no_such_id {error(word)}", note=word) for word in words])


@pytest.mark.parametrize("words", [IDS, SKUS], ids=["ids", "numbers"])
def test_what_an_error_repeats_of_its_own_call_was_not_told(words: Sequence[str]) -> None:
    def echo(word: str) -> str:
        return f"there is no {word}: '{word}' was looked for"

    def choice(word: str) -> str:
        return f"there is no {word}, there are {', '.join(words)}"

    assert stuck(failing(echo, words), 5, tool) is not None
    assert stuck(failing(choice, words), 5, tool) is None


def test_a_number_that_an_error_repeats_within_a_word_was_not_told() -> None:
    calls = history([one("look", f"!gone order AB-{n} is gone", n=n) for n in range(1040, 1050)])
    assert stuck(calls, 5, tool) is not None


def test_how_many_arguments_are_looked_for_in_errors_is_bounded() -> None:
    """Beyond that an error is heard as it is."""
    long = "x" * 2 * 1024 * 1024
    calls = failing(lambda word: f"there is no {word}", IDS)
    big = dataclasses.replace(calls[-1], turn=99, tool="job.state", arguments=json.dumps(long))
    assert stuck([*calls, big], 5, tool) is None
    assert stuck([*calls, dataclasses.replace(big, arguments="{}")], 5, tool) is not None


def test_a_counter_beside_a_list_is_no_standstill() -> None:
    calls = history([one("look", note=sku, n=n) for n, sku in enumerate(SKUS)])
    assert stuck(calls, 5, tool, lambda: SKUS) is None
    assert "n and note changed" in (stuck(calls, 5, tool) or "")


def test_what_was_told_is_asked_for_at_the_last_moment() -> None:
    def never() -> list[str]:
        raise AssertionError("it was asked for")

    assert stuck(absent(SKUS[:-1]), 5, tool, never) is None
