"""Whether a run gets on: a table of what planners do when they do not, and of what only looks like it."""

import dataclasses
import itertools
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from fencepost import App, Contract, Effect, Request, progress
from fencepost.ledger.reads import ContextCall
from fencepost.progress import FAR, LONGEST, MOST_READ, PATIENCE, stuck
from fencepost.tools import PER_PROPOSAL, Tool

N = 3
"""Of `repeats`: looks that differ in what counts by its name may come twice as often."""

app = App("p")
shop = app.dependency("shop", base_url="http://127.0.0.1:9")


class Args(BaseModel):
    n: int = 0
    tries: int = 0
    note: str = ""
    tags: list[str] = []


@shop.http("look", effect=Effect.READ)
def look(args: Args) -> Request:
    return Request.get("/look")


@shop.http("job.state", effect=Effect.READ, poller=True)
def state(args: Args) -> Request:
    return Request.get("/state")


@shop.http("rack.look", effect=Effect.READ, cosmetic=("note",))
def rack(args: Args) -> Request:
    return Request.get("/rack")


@shop.http(
    "mail.send",
    effect=Effect.IRREVERSIBLE,
    intent=lambda a: ("mail", a.n),
    contract=Contract(),
    cosmetic=("note",),
)
def send(args: Args) -> Request:
    return Request.post("/mails", json={})


@shop.http("motor.step", effect=Effect.REVERSIBLE, intent=PER_PROPOSAL)
def step(args: Args) -> Request:
    return Request.post("/steps", json={})


@shop.http("mail.file", effect=Effect.IRREVERSIBLE, intent=lambda a: ("file", a.n), contract=Contract())
def file(args: Args) -> Request:
    return Request.post("/files", json={})


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


A, B, C = one("look", n=1), one("look", "other", n=2), one("look", "third", n=3)
D = one("look", "fourth", n=4)
WORDS = ("gate", "pole", "wire", "rail", "post", "mesh", "nail", "bolt", "hook", "knob")
POLL = one("job.state", "still running")
GETS_STUCK = {
    "the same call, and the same result": [A] * N,
    "the same after other turns": [B, C, B, *[A] * N],
    "a fixed error": [one("look", "!503")] * N,
    "the same effect, each time anew": [one("motor.step", "ok")] * N,
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
    "one number changes": [one("look", tries=n) for n in range(2 * N)],
    "one text changes": [one("look", note=f"try {n}") for n in range(2 * N)],
    "one item of a list changes": [one("look", tags=["a", f"try {n}"]) for n in range(2 * N)],
    "what its tool declares cosmetic changes": [one("rack.look", n=1, note=word) for word in ("a", "b", "c")],
    "and it fails alike": [one("mail.send", "!402", n=1, note=word) for word in ("a", "b", "c")],
    "one number changes, and it fails alike": [one("look", "!402", tries=n) for n in range(2 * N)],
    "two numbers change": [one("look", tries=n * n, note=f"retry {7 - n}") for n in range(2 * N)],
    "four calls, and a counter in one": list(
        itertools.chain.from_iterable((one("look", tries=n), A, B, C) for n in range(2 * N))
    ),
    "two calls, a counter in each": [
        [*one("look", tries=n), *one("look", "x", tries=-n)] for n in range(2 * N)
    ],
    "A, B, and a counter in one": list(
        itertools.chain.from_iterable(
            (one("look", tries=n), one("look", "x", note="b")) for n in range(2 * N)
        )
    ),
    "a long call beside one that counts": [
        one("look", note="x" * 100_000) + one("look", tries=n) for n in range(2 * N)
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
    "one number changes, but not often": [one("look", tries=n) for n in range(2 * N - 1)],
    "an effect beside what counts": [[*one("mail.file", "sent"), *one("look", tries=n)] for n in range(50)],
    "what may be an effect": [one("mail.file", "?ACCEPTED_UNKNOWN", tries=n) for n in range(20)],
    "what may be one, of a tool that says what counts": [
        one("mail.send", "?NEEDS_REPAIR", note=str(n)) for n in range(20)
    ],
    "one prime after the other": [one("look", n=n) for n in range(40)],
    "each is an effect": [one("mail.file", "sent", tries=n) for n in range(50)],
    "each is one, of a tool that says what counts": [one("mail.send", "sent", n=n) for n in range(50)],
    "a circle of nine": [one("look", f"r{n}", n=n) for n in range(9)] * N,
    "another error each time": [one("look", f"!{code}") for code in ("a", "b", "c", "d")],
    "another word each time": [one("look", note=word) for word in WORDS],
    "a number and a word change": [one("look", n=n, note=word) for n, word in enumerate(WORDS)],
    "one sequence after the other": [[("look", {"sequence": word}, "no hits")] for word in WORDS * 4],
    "one id after the other": [[("look", {"uuid": f"{n:032x}"}, "!404")] for n in range(40)],
    "one salt after the other": [[("look", {"salt": word}, "no")] for word in WORDS * 4],
    "one name after the other": [[("look", {"page": word}, "no")] for word in WORDS * 4],
    "one binding after the other": [[("look", {"bindings": {"n": n}}, "no")] for n in range(40)],
    "one amount after the other": [one("look", note=f"TRY {100 * n}") for n in range(40)],
    "more is asked than is looked into": [
        [call for m in range(50) for call in one("look", tries=n + m, note="x" * (MOST_READ // 290))]
        for n in range(2 * N)
    ],
    "one rack after the other": [[("look", {"rack": n}, "[]")] for n in range(1, 41)],
    "where each argument means something": [one("rack.look", n=n) for n in range(40)],
    "each is an effect, whatever is declared": [one("mail.send", "sent", note=str(n)) for n in range(50)],
    "a counter beside a list": [one("look", note=f"AB-{n}", tries=n) for n in range(1040, 1060)],
    "one argument more": [[("look", {f"x{n}": 1}, "[]")] for n in range(20)],
    "a list that grows": [one("look", tags=["a"] * n) for n in range(20)],
    "a word, at a path that is spelled as another": [
        [("look", {"a": {"n": n}, "a.n": word}, "[]")] for n, word in enumerate(WORDS)
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
    assert stuck(history([one("look", tries=n) for n in range(6)]), N, tool) == (
        "look: called 6 times in a row with the same result while only tries changed"
    )
    assert stuck(history([one("rack.look", note=word) for word in "abc"]), N, tool) == (
        "rack.look: called 3 times in a row with the same result while only note changed"
    )
    both = [*one("look", n=1), *one("look", n=2)]
    assert stuck(history([both, both[::-1], both]), N, tool) == (
        "look: called 3 turns in a row with the same arguments and the same result"
    )
    missing = [[("look", {"tries": 1} if said else {}, "[]")] for said in (0, 1, 1, 0, 1, 0, 0, 1)]
    assert "only tries changed" in (stuck(history(missing), N + 1, tool) or "")
    kept = [*one("rack.look", note="a"), *one("rack.look", note="b")]
    assert "with the same arguments" in (stuck(history([kept] * N), N, tool) or "")
    assert "only note changed" in (stuck(history([kept, kept, kept[::-1][:1] * 2]), N, tool) or "")
    turns = itertools.chain.from_iterable(([*A, *one("look", tries=n)], B) for n in range(6))
    assert stuck(history(list(turns)), N, tool) == (
        "look, then look: called 6 times in a row with the same result while only tries changed"
    )


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
def test_what_was_stuck_stays_so_until_something_else_comes_of_a_turn(
    turns: list[list[Said]], repeats: int
) -> None:
    if stuck(history(turns), repeats, tool) is not None and turns[-1] != POLL:
        assert stuck(history([*turns, *[turns[-1]] * repeats]), repeats, tool) is not None


def readings(*said: dict[str, Any]) -> list[ContextCall]:
    calls = history([one("notes.read", f"digest-{n}", key="k") for n in range(len(said))])
    return [
        dataclasses.replace(call, result=json.dumps(text).encode())
        for call, text in zip(calls, said, strict=True)
    ]


def test_no_more_results_are_read_than_may_be_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are long, and looked at before each turn of a run that works."""
    read: list[str] = []

    def watched(text: str) -> Any:
        read.append(text)
        return json.loads(text)

    monkeypatch.setattr(progress, "load_result", watched)
    said = [{"key": "k", "version": n, "exists": True, "value": n} for n in range(40)]
    assert stuck(readings(*said), N, tool) is None
    assert len(read) == LONGEST + 1, "the last one, and one of each round that might be"


def test_when_a_reading_was_made_is_nothing_learnt() -> None:
    said = {"key": "k", "version": 3, "exists": True, "value": {"now": "kept"}}
    same = [said | {"as_of": f"2026-01-01T00:00:0{n}Z"} for n in range(N)]
    assert stuck(readings(*same), N, tool) is not None
    assert stuck(readings(*same[:-1], same[-1] | {"version": 4}), N, tool) is None
    assert stuck(readings(*same[:-1], same[-1] | {"stale": True}), N, tool) is None
