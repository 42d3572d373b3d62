"""What turns wait for, and what children may use: tables of values."""

import gc
import json
import weakref
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from click.testing import CliRunner
from pydantic import BaseModel

from fencepost import App, Budget, Effect, Turn, UsageError, joins, lineage, slices
from fencepost.budgets import Usage
from fencepost.children import USUAL, ChildSpec, join_of
from fencepost.joins import ALL, Join
from fencepost_ops.cli import main
from tests.integration.ledger_app import bench_app

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
SECOND = timedelta(seconds=1)
ONE, TWO = UUID(int=1), UUID(int=2)


class Request(str):  # noqa: SLOT000 - a text that can be watched has no slots
    """A text that can be watched."""


@pytest.mark.parametrize(
    ("join", "told"),
    [
        (Join(), None),
        (Join.first(), {"need": 1, "rest": "cancel"}),
        (Join.quorum(3, by=SECOND), {"need": 3, "by": "2026-01-02T03:04:06Z", "rest": "cancel"}),
        (Join.within(SECOND, rest="leave"), {"by": "2026-01-02T03:04:06Z", "rest": "leave"}),
    ],
)
def test_what_a_turn_says_of_its_join(join: Join, told: dict[str, Any] | None) -> None:
    said = join.told(NOW)
    if told is None:
        assert said is None
        return
    assert said is not None
    assert {name: said[name] for name in said if name != "by"} == {n: told[n] for n in told if n != "by"}
    assert joins.until(said) == (NOW + SECOND if "by" in told else None)


@pytest.mark.parametrize(
    ("join", "answered", "after_s", "on"),
    [
        ({"need": 2}, 1, 99, False),
        ({"need": 2}, 2, 0, True),
        ({"by": "2026-01-02T03:04:06.000000Z"}, 9, 0, False),
        ({"by": "2026-01-02T03:04:06.000000Z"}, 0, 1, True),
        ({"need": 2, "by": "2026-01-02T03:04:06.000000Z"}, 1, 1, True),
        ({"need": 2, "by": "2026-01-02T03:04:06.000000Z"}, 2, 0, True),
    ],
)
def test_when_a_turn_goes_on(join: dict[str, Any], answered: int, after_s: int, on: bool) -> None:
    assert joins.met(join, answered=answered, now=NOW + after_s * SECOND) is on


@pytest.mark.parametrize("wrong", [{"need": 0}, {"by": timedelta(0)}, {"rest": "forget"}])
def test_a_join_that_cannot_be_waited_for_is_none(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"a join|rest= takes"):
        Join(**wrong)


def test_the_turns_word_goes_before_the_agents_and_that_before_its_tools() -> None:
    app = bench_app()
    debit = app.registry["wallet.debit", 1]
    quorum, first = Join.quorum(2), Join.first()
    asks = [ChildSpec("p", join=join) for join in (quorum, first)]
    tools = [replace(debit, child=spec) for spec in asks]
    assert join_of(first, quorum, tools) == first
    assert join_of(None, first, tools) == first
    assert join_of(None, None, [tools[0], debit, None]) == quorum
    assert join_of(None, None, tools) == ALL  # they do not agree
    assert join_of(None, None, [debit]) == ALL


SMALL = Budget(turns=3, calls=4, attempts=5, depth=0, children=0)


@pytest.mark.parametrize(
    ("has", "used", "wanted", "given"),
    [
        (Budget(), Usage(), SMALL, {"turns": 3, "depth": 0, "tokens": None}),
        (Budget(tokens=100), Usage(tokens=60), SMALL, {"tokens": 20}),  # as much stays with the run
        (Budget(depth=1), Usage(), Budget(turns=1, calls=0, attempts=0, children=0), {"depth": 0}),
        (Budget(), Usage(turns=14), SMALL, "turns: the child may use 3, and 2 are left of 16"),
        (Budget(calls=4), Usage(calls=1), SMALL, "calls: the child may use 4, and 3 are left of 4"),
        (Budget(depth=0), Usage(), SMALL, "depth: the run's budget allows no run below it"),
        (Budget(cost=5), Usage(), Budget(turns=1, cost=6), "cost: the child may use 6, and 5 are left of 5"),
        (Budget(children=0), Usage(), SMALL, "children: the child may use 1, and 0 are left of 0"),
        (Budget(), Usage(turns=1), Budget(turns=16), {"turns": 7, "calls": 32}),
        (Budget(turns=40), Usage(turns=1), Budget(turns=16), {"turns": 16, "calls": 32}),
        (Budget(), Usage(), Budget(children=16), {"children": 7}),
        (Budget(), Usage(turns=1), replace(USUAL), {"turns": 4, "calls": 8}),
    ],
)
def test_a_slice_is_given_whole_or_refused_by_name(
    has: Budget, used: Usage, wanted: Budget, given: dict[str, Any] | str
) -> None:
    piece = slices.carve(has, used, None, wanted, whole=slices.named(wanted))
    if isinstance(piece, str):
        assert piece == given
    else:
        assert isinstance(given, dict)
        assert {name: getattr(piece, name) for name in given} == given


FIRM: list[tuple[ChildSpec, set[str]]] = [
    (ChildSpec("p"), {"children"}),
    (ChildSpec("p", whole=("turns",)), {"children", "turns"}),
    (ChildSpec("p", budget=USUAL), {"children", "turns", "calls", "attempts"}),
    (ChildSpec("p", budget=Budget()), set()),
    (ChildSpec("p", budget=Budget(turns=16, tokens=5)), {"tokens"}),
    (ChildSpec("p", budget=Budget(turns=16, tokens=5), whole=("turns",)), {"turns", "tokens"}),
]


@pytest.mark.parametrize(("spec", "firm"), FIRM)
def test_what_differs_or_is_said_to_be_whole_is_given_whole_or_refused(
    spec: ChildSpec, firm: set[str]
) -> None:
    assert spec.firm == firm
    for name in firm:
        has = Budget.from_json({name: 0})
        need = getattr(spec.wanted, name) + (name == "children")
        why = f"{name}: the child may use {need}, and 0 are left of 0"
        assert slices.carve(has, Usage(), None, spec.wanted, whole=spec.firm) == why
    said = spec.to_json()
    assert (Budget.from_json(said["budget"]), said.get("whole", [])) == (spec.wanted, [*spec.whole])
    piece = slices.carve(Budget(), Usage(turns=1), None, spec.wanted, whole=spec.firm)
    if spec.wanted.turns == 16:
        full = "turns: the child may use 16, and 15 are left of 16"
        assert piece == full if "turns" in firm else getattr(piece, "turns", 0) == 7


@pytest.mark.parametrize("whole", [("turn",), ("depth",), ("tokens",), "turns"])
def test_only_what_is_shared_and_has_a_limit_can_be_whole(whole: Any) -> None:
    with pytest.raises(
        UsageError,
        match=r"^child c: whole(= takes a tuple| names limits that its budget has: turns, .*; not [dt])",
    ):
        App("c").child("c", planner="p", arguments=BaseModel, effect=Effect.READ, whole=whole)


class Topic(BaseModel):
    about: str


app = App("asking")
app.planner("p")(lambda _: Turn([]))
app.allow("*", tools=["ask.*"])
app.child("ask.usual", planner="p", arguments=Topic, effect=Effect.READ)
app.child("ask.whole", planner="p", arguments=Topic, effect=Effect.READ, budget=Budget(), whole=("turns",))


def test_tools_tells_what_a_child_is_given_whole() -> None:
    told = CliRunner().invoke(main, ["tools", "--app", f"{__name__}:app"]).stdout
    assert "  whole   children; of all else at most a share\n" in told
    assert "  whole   turns; of all else at most a share\n" in told
    listed = json.loads(CliRunner().invoke(main, ["tools", "--app", f"{__name__}:app", "--json"]).stdout)
    assert [one["starts"]["whole"] for one in listed] == [["children"], ["turns"]]


@pytest.mark.parametrize("wanted", [SMALL, None])
@pytest.mark.parametrize("count", [1, 2, 5, 7])
def test_the_runs_of_one_turn_share_what_they_leave_open_and_none_starts_with_nothing(
    wanted: Budget | None, count: int
) -> None:
    has, own, below = Budget(tokens=100_000, turns=40), {"turns": 1, "calls": count, "tokens": 2000}, None
    pieces = []
    for n in range(count):
        beneath = slices.amounts(below)
        turns, calls, tokens = (own[name] + beneath[name] for name in ("turns", "calls", "tokens"))
        used = Usage(turns=turns, calls=calls, attempts=beneath["attempts"], tokens=tokens)
        spec = ChildSpec("p", budget=wanted)
        piece = slices.carve(has, used, below, spec.wanted, starting=count - n, whole=spec.firm)
        assert isinstance(piece, Budget), piece
        pieces.append(piece)
        below = slices.hold(below, UUID(int=n), slices.held_for(piece))
    share = 98_000 // (count + 1)
    assert all(piece.tokens is not None and 0 <= piece.tokens - share <= 1 for piece in pieces)
    assert 98_000 - slices.amounts(below)["tokens"] >= share, "the run can read what they answer"


def test_children_that_say_nothing_of_their_own_share_the_usual_budget() -> None:
    below: str | None = None
    turns = []
    for n in range(5):
        used = Usage(turns=1 + slices.amounts(below)["turns"], calls=5 + slices.amounts(below)["calls"])
        piece = slices.carve(Budget(), used, below, USUAL, starting=5 - n, whole=ChildSpec("p").firm)
        assert isinstance(piece, Budget), piece
        turns.append(piece.turns)
        below = slices.hold(below, UUID(int=n), slices.held_for(piece))
    assert turns == [2, 2, 2, 3, 3]
    assert slices.amounts(below)["children"] == 5


def test_limits_that_nobody_named_are_shares_beside_one_that_was() -> None:
    below: str | None = None
    for n in range(5):
        beneath = slices.amounts(below)
        used = Usage(turns=1 + beneath["turns"], calls=5 + beneath["calls"], attempts=beneath["attempts"])
        piece = slices.carve(Budget(), used, below, Budget(turns=2), starting=5 - n, whole={"turns"})
        assert isinstance(piece, Budget), piece
        assert (piece.turns, piece.children < 3) == (2, True)
        below = slices.hold(below, UUID(int=n), slices.held_for(piece))
    assert all(held <= getattr(Budget(), name) for name, held in slices.amounts(below).items() if held)


@pytest.mark.parametrize(
    ("has", "used", "why"),
    [
        (Budget(tokens=100), Usage(tokens=100), "tokens: the child may use a share, and 0 are left of 100"),
        (Budget(cost=7), Usage(cost=9), "cost: the child may use a share, and 0 are left of 7"),
        (Budget(), Usage(turns=16), "turns: the child may use a share, and 0 are left of 16"),
        (Budget(), Usage(calls=64), "calls: the child may use a share, and 0 are left of 64"),
        (Budget(), Usage(attempts=256), "attempts: the child may use a share, and 0 are left of 256"),
        (Budget(children=0), Usage(), "children: the child may use 1, and 0 are left of 0"),
    ],
)
def test_a_share_of_nothing_starts_nothing(has: Budget, used: Usage, why: str) -> None:
    assert slices.carve(has, used, None, USUAL, whole=ChildSpec("p").firm) == why


def test_no_more_runs_are_open_at_once_than_each_change_can_read() -> None:
    """Each start and end writes what all of them hold: without a bound a run of thousands is quadratic."""
    has, below, written = Budget(turns=10**6, calls=10**6, attempts=10**6, children=10**6), None, 0
    for n in range(slices.MAX_OPEN):
        assert isinstance(slices.carve(has, Usage(), below, SMALL, whole=slices.named(SMALL)), Budget)
        below = slices.hold(below, UUID(int=n), slices.held_for(SMALL))
        written += len(below or "")
    full = f"children: {slices.MAX_OPEN} runs are open, and no more are started beside them"
    assert slices.carve(has, Usage(), below, SMALL, whole=slices.named(SMALL)) == full
    assert len(below or "") < 40_000
    assert written < 5_000_000
    below = slices.give_back(below, UUID(int=0), None)
    assert isinstance(slices.carve(has, Usage(), below, SMALL, whole=slices.named(SMALL)), Budget)


def test_all_of_a_slice_counts_as_used_where_nobody_knows_what_was() -> None:
    text = slices.hold(None, ONE, {"turns": 3, "tokens": 40, "children": 1})
    text = slices.give_back(text, ONE, None)
    assert slices.read(text).held == {}
    said = slices.amounts(text)
    assert (said["turns"], said["tokens"], said["children"], said["calls"]) == (3, 40, 1, 0)


def test_what_a_child_did_not_use_comes_back_and_no_step_beyond_its_slice_is_charged() -> None:
    text = slices.hold(slices.hold(None, ONE, slices.held_for(SMALL)), TWO, slices.held_for(SMALL))
    assert slices.amounts(text)["turns"] == 6
    used = dict.fromkeys(slices.SHARED, 0) | {"turns": 2, "calls": 9, "tokens": 7, "children": 1}
    text = slices.give_back(text, ONE, used)
    both = slices.amounts(text)
    assert (both["turns"], both["calls"], both["tokens"], both["children"]) == (5, 8, 7, 2)
    assert slices.give_back(text, ONE, used) == text  # once
    assert slices.hold(text, TWO, {}) != text


def test_a_join_counts_answers_and_forgets_what_it_waits_for_no_longer() -> None:
    text = slices.joining(None, {"need": 2, "rest": "cancel", "calls": [str(ONE), str(TWO)]})
    text = slices.ended(text, ONE, answered=True)
    join = slices.read(text).join
    assert join is not None
    assert (join["got"], join["calls"]) == (1, [str(TWO)])
    text = slices.left(text, TWO, stop=True)
    assert (slices.read(text).join, slices.read(text).stop) == (None, (str(TWO),))
    assert slices.ended(text, TWO, answered=False) is None


def test_authority_narrows_on_the_way_down() -> None:
    app = bench_app()
    balance, debit = app.registry["wallet.balance", 1], app.registry["wallet.debit", 1]
    handed = {"above": [str(ONE)], "within": [["wallet.*"], ["wallet.b*", "mail.*"]]}
    assert lineage.above(json.dumps(handed)) == {ONE}
    assert lineage.outside(json.dumps(handed), balance) is None
    assert (
        lineage.outside(json.dumps(handed), debit)
        == "this run was handed wallet.b*, mail.*, not wallet.debit"
    )
    reads = json.dumps({"above": [], "within": [], "reads": True})
    assert lineage.outside(reads, balance) is None
    assert "was started to read" in (lineage.outside(reads, debit) or "")
    assert lineage.outside("{}", debit) is None
    assert debit.effect is Effect.REVERSIBLE


def test_what_a_large_request_says_is_read_and_not_kept() -> None:
    """A thousand remembered requests of a mebibyte would be a gibibyte in every worker."""
    large = {"above": [str(ONE)], "input": "x" * 2**20}
    requests = [Request(json.dumps(large | {"n": n})) for n in range(3)]
    marks = [weakref.ref(one) for one in requests]
    for n in range(3):
        assert lineage.above(requests[n]) == {ONE}
    del requests
    gc.collect()
    assert [mark() for mark in marks] == [None, None, None]
