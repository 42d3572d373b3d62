import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from fencepost.errors import ScriptError, UsageError
from fencepost.planners import PlannerSpec
from fencepost.tools import CallView, Context, Proposal, Turn
from fencepost_workers.models import planner_for
from fencepost_workers.models.scripted import ScriptedPlanner
from tests.typing.user_code import app

DEBIT = {"tool": "wallet.debit", "call_id": "debit", "arguments": {"order": {"$input": "order.id"}, "n": 1}}
SHIP = {"tool": "ship", "arguments": {"ids": [{"$result": "debit", "path": "items.0.id"}]}, "version": 2}
SCRIPT: list[dict[str, Any]] = [
    {"proposals": [DEBIT], "usage": {"tokens": 5}, "raw": "think"},
    {"proposals": [SHIP]},
    {"finish": {"all": {"$result": "debit"}, "input": {"$input": ""}}},
]
INPUT = {"order": {"id": "o-1"}}
DEBITED = CallView("debit", "wallet.debit", {}, "SUCCEEDED", {"items": [{"id": "d-1"}]}, None, "d-1")


def context(turn: int, *calls: CallView) -> Context:
    return Context("r", "shop", "svc", INPUT, turn, calls)


def propose(planner: ScriptedPlanner, turn: int, *calls: CallView) -> Turn:
    return asyncio.run(planner.propose(context(turn, *calls)))


def test_a_turn_is_filled_from_the_input_and_earlier_results() -> None:
    planner = ScriptedPlanner.load("s", SCRIPT)
    assert propose(planner, 1) == Turn(
        [Proposal("wallet.debit", {"order": "o-1", "n": 1}, "debit")], None, {"tokens": 5}, "think"
    )
    assert propose(planner, 2, DEBITED) == Turn([Proposal("ship", {"ids": ["d-1"]}, "", 2)])
    assert propose(planner, 3, DEBITED).finish == {"all": DEBITED.result, "input": INPUT}


def test_the_same_context_gives_the_same_turn() -> None:
    planner = ScriptedPlanner.load("s", SCRIPT)
    assert propose(planner, 2, DEBITED) == propose(planner, 2, DEBITED)
    assert propose(planner, 2, DEBITED) == propose(ScriptedPlanner.load("s", SCRIPT), 2, DEBITED)


@pytest.mark.parametrize("name", ["script.json", "script.jsonl"])
def test_a_script_is_a_json_list_or_json_lines(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    lines = "\n\n".join(json.dumps(turn) for turn in SCRIPT)
    path.write_text(json.dumps(SCRIPT, indent=1) if name == "script.json" else lines + "\n")
    for source in (path, str(path)):
        assert propose(ScriptedPlanner.load("s", source), 2, DEBITED).proposals[0].tool == "ship"


def test_a_script_may_be_a_function() -> None:
    rows = ScriptedPlanner.load("s", lambda context: SCRIPT[context.turn - 1])
    assert propose(rows, 2, DEBITED) == Turn([Proposal("ship", {"ids": ["d-1"]}, "", 2)])
    turns = ScriptedPlanner.load("s", lambda context: Turn(finish=context.turn))
    assert propose(turns, 4) == Turn(finish=4)
    with pytest.raises(ScriptError, match="script s, turn 1: "):
        propose(ScriptedPlanner.load("s", lambda _context: {"nonsense": 1}), 1)


@pytest.mark.parametrize(
    ("script", "complaint"),
    [
        ([], "script s has no turns"),
        ([5], "script s, turn 1: Input should be a valid dictionary"),
        ([{}, {"proposal": []}], "script s, turn 2: proposal: Extra inputs are not permitted"),
        ([{"proposals": [{}]}], r"turn 1: proposals\.0\.tool: Field required"),
        ([{"proposals": [{"tool": 5}]}], r"proposals\.0\.tool: "),
        ([{"proposals": [{"tool": "t", "arguments": []}]}], r"proposals\.0\.arguments: "),
        ([{"proposals": [{"tool": "t"}], "finish": 1}], "either proposes calls or finishes the run"),
        ([{"finish": {"$input": 5}}], r'turn 1: \{"\$input": 5\} is neither'),
        ([{"finish": {"$input": "a", "b": 1}}], "is neither"),
        ([{"finish": {"$result": "a", "default": "b"}}], "is neither"),
        ([{"finish": {"$result": "a"}}], "no earlier turn has a call labelled 'a'"),
        (
            [{"proposals": [{"tool": "t", "call_id": "a", "arguments": {"x": {"$result": "a"}}}]}],
            "turn 1: no earlier turn has a call labelled 'a'",
        ),
    ],
)
def test_a_malformed_script_says_where_and_what(script: Any, complaint: str) -> None:
    with pytest.raises(ScriptError, match=complaint):
        ScriptedPlanner.load("s", script)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"{", "is not JSON: line 1: "),
        (b"{}\n\n{", "is not JSON: line 3: "),
        (b"[{}", "is not JSON: "),
        (b"\xff", "cannot be read from"),
        (None, "cannot be read from"),
        (b"", "has no turns"),
    ],
)
def test_a_file_that_cannot_be_read_says_so(tmp_path: Path, content: bytes | None, complaint: str) -> None:
    path = tmp_path / "script.jsonl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ScriptError, match=complaint):
        ScriptedPlanner.load("s", path)


def test_a_script_that_has_ended_says_so() -> None:
    planner = ScriptedPlanner.load("s", SCRIPT)
    for turn in (0, 4):
        with pytest.raises(ScriptError, match=f"has 3 turns, none for turn {turn}; end it with a finish"):
            propose(planner, turn)


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (None, "call 'debit' has no result, it is not there"),
        (CallView("debit", "t", {}, "FAILED"), "call 'debit' has no result, it is FAILED"),
        (CallView("debit", "t", {}, "SUCCEEDED", {}), "the result of 'debit' has nothing at 'items.0.id'"),
        (CallView("debit", "t", {}, "SUCCEEDED", {"items": []}), "nothing at"),
        (CallView("debit", "t", {}, "SUCCEEDED", "text"), "nothing at"),
    ],
)
def test_a_reference_that_leads_nowhere_says_so(call: CallView | None, complaint: str) -> None:
    with pytest.raises(ScriptError, match=f"script s, turn 2: .*{complaint}"):
        propose(ScriptedPlanner.load("s", SCRIPT), 2, *([] if call is None else [call]))


# Registered planners


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


def test_registered_planners_propose_however_they_are_written(executor: ThreadPoolExecutor) -> None:
    def turn(name: str, given: Any) -> Turn:
        planner = planner_for(app.find_planner(name), executor)
        return asyncio.run(planner.propose(Context("r", "shop", "p", given, 1)))

    assert turn("think", "x").proposals[0].arguments == {"sku": "x"}
    assert turn("fulfil", {"order_id": "o", "amount": 2}).proposals[0].call_id == "debit"
    assert turn("close", None).proposals[0].tool == "ledger.close_day"


def test_a_planner_that_gives_no_turn_is_an_error(executor: ThreadPoolExecutor) -> None:
    async def nothing(_context: Context) -> Any:
        return None

    plans: list[Any] = [nothing, lambda _context: []]
    for plan in plans:
        planner = planner_for(PlannerSpec("p", 1, plan=plan), executor)
        with pytest.raises(UsageError, match=r"planner p gave .*, not a Turn"):
            asyncio.run(planner.propose(context(1)))
    with pytest.raises(UsageError, match="neither a function nor a script"):
        planner_for(PlannerSpec("p", 1), executor)


def test_a_call_that_a_person_settled_is_referred_to_by_its_receipt() -> None:
    def reference(path: str) -> ScriptedPlanner:
        return ScriptedPlanner.load("s", [SCRIPT[0], {"finish": {"$result": "debit", "path": path}}])

    repaired = CallView("debit", "wallet.debit", {}, "SUCCEEDED", None, None, "d-1")
    for path in ("id", "receipt"):
        assert propose(reference(path), 2, repaired).finish == "d-1"
    assert propose(reference(""), 2, repaired).finish is None
    with pytest.raises(ScriptError, match=r"is empty, so there is nothing at 'items\.0'; a receipt"):
        propose(reference("items.0"), 2, repaired)
    without = CallView("debit", "wallet.debit", {}, "SUCCEEDED")
    with pytest.raises(ScriptError, match="nothing at 'id'"):
        propose(reference("id"), 2, without)


def test_a_result_speaks_before_the_receipt() -> None:
    def at(path: str, result: object) -> object:
        planner = ScriptedPlanner.load("s", [SCRIPT[0], {"finish": {"$result": "debit", "path": path}}])
        return propose(
            planner, 2, CallView("debit", "wallet.debit", {}, "SUCCEEDED", result, None, "r")
        ).finish

    assert at("receipt", {"receipt": "of the result"}) == "of the result"
    assert at("receipt", {"id": "d-1"}) == "r"
    assert at("id", {"id": "d-1"}) == "d-1"
    with pytest.raises(ScriptError, match="has nothing at 'id'"):
        at("id", {"number": "d-1"})
