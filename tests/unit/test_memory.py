"""Memory's pure parts: what is declared, what answers mean, when a read is stale, what is a ground."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from fencepost import App, NotApplied, Proposal, UsageError
from fencepost.contracts import Effect, ToolClass, tool_class
from fencepost.memory import (
    Listing,
    Reading,
    Restore,
    Write,
    Written,
    change_of,
    listing,
    looked_up,
    memory_grounds,
    reading,
    stale_reading,
    wrote,
)
from fencepost.memory_port import (
    SETTLE,
    Change,
    Conflicting,
    Erased,
    Listed,
    OtherRequest,
    Stored,
    TooLate,
    WriteAnswer,
    Wrote,
)
from fencepost.outcomes import doubtful
from fencepost.proposals import Rejected, Validated, validate
from fencepost.tools import Absent, Found, Tool

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
WRITE = Write(key="plan", value={"b": 1, "a": 2}, expected=5)


def tools(**said: Any) -> dict[str, Tool]:
    app = App("remembering")
    app.memory("notes", **said)
    app.allow("svc:*", ["notes.*"])
    assert app.check() == []
    return app.tools


def test_a_space_is_four_tools_that_promise_what_their_store_does() -> None:
    found = tools()
    assert {name: tool.effect for name, tool in found.items()} == {
        "notes.list": Effect.READ,
        "notes.read": Effect.READ,
        "notes.restore": Effect.REVERSIBLE,
        "notes.write": Effect.REVERSIBLE,
    }
    assert {tool.scope for tool in found.values()} == {"memory/notes"}
    assert tool_class(found["notes.write"].effect, found["notes.write"].contract) is ToolClass.DEDUPES
    assert not any(tool.required for tool in found.values())
    assert all(tool.required for tool in tools(required=True).values())
    assert [name for name, tool in found.items() if tool.has_lookup] == ["notes.restore", "notes.write"]
    assert all(tool.describe for tool in found.values())  # what a model is told of them
    acts_on = found["notes.write"].acts_on
    assert acts_on is not None
    assert acts_on(WRITE) == ("memory", "notes/plan")


def test_an_absence_is_believed_after_as_long_as_was_said_of_the_clocks() -> None:
    def settles(**said: Any) -> list[timedelta | None]:
        space = App("shop").memory("notes", **said)
        return [one.tool.contract.settle for one in (space.write, space.restore)]

    assert settles() == [SETTLE] * 2
    assert settles(dsn="env:X", settle=timedelta(seconds=30)) == [timedelta(seconds=30)] * 2


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"max_bytes": 61 * 1024}, "max_bytes is 1 to 61440"),
        ({"max_bytes": 0}, "max_bytes is 1 to 61440"),
        ({"wait": timedelta(seconds=-1)}, "wait must not be negative"),
        ({"settle": timedelta(0)}, "settle must be positive"),
        ({"store": object(), "dsn": "env:X"}, "has a store of its own"),
        ({"store": object(), "replica": "env:X"}, "has a store of its own"),
    ],
)
def test_a_memory_that_cannot_be_is_refused(said: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        tools(**said)


@pytest.mark.parametrize(
    ("arguments", "step", "code"),
    [
        ({"key": "plan", "value": {"x": [1, None, "y"]}, "expected": 0}, None, ""),
        ({"key": "plan", "value": None, "expected": 0}, None, ""),
        ({"key": "plan", "value": 1.5, "expected": 0}, 3, "float"),
        ({"key": "plan", "value": "x" * 99, "expected": 0}, 5, "business_rule"),
        ({"key": "", "value": 1, "expected": 0}, 1, "schema"),
        ({"key": "a\nb", "value": 1, "expected": 0}, 1, "schema"),
        ({"key": "plan", "value": 1, "expected": -1}, 1, "schema"),
        ({"key": "plan", "value": 1}, 1, "schema"),
        ({"key": "plan", "value": 1, "expected": 0, "more": 1}, 1, "schema"),
    ],
)
def test_what_may_be_written(arguments: dict[str, Any], step: int | None, code: str) -> None:
    proposal = Proposal("notes.write", arguments)
    judged = validate(proposal, tools=tools(max_bytes=100), tenant="t", run_id="r", turn=1, ordinal=0)
    if step is None:
        assert isinstance(judged, Validated), judged
    else:
        assert isinstance(judged, Rejected)
        assert (judged.step, judged.code) == (step, code)


def test_a_change_is_canonical() -> None:
    assert change_of(WRITE) == Change(5, '{"a":2,"b":1}')
    assert change_of(Restore(key="plan", to=2, expected=5)) == Change(5, restores=2)


def test_a_write_is_offset_by_what_was_before() -> None:
    write, restore = tools()["notes.write"], tools()["notes.restore"]
    back = write.compensation(WRITE, '{"version": 6}', "6")
    assert (back.tool, back.arguments) == ("notes.restore", {"key": "plan", "to": 5, "expected": 6})
    assert write.compensation(WRITE, None, "6") == back  # from its receipt alone
    again = restore.compensation(Restore(key="plan", to=5, expected=6), '{"version": 7}', "7")
    assert again.arguments == {"key": "plan", "to": 6, "expected": 7}


@pytest.mark.parametrize(
    ("answer", "code", "retryable", "told"),
    [
        (Conflicting(6), "version_conflict", False, "version 6 is current"),
        (Conflicting(0), "version_conflict", False, "there is none yet (version 0)"),
        (TooLate(), "late", True, "after the attempt's time"),
        (Erased(), "erased", False, "was erased"),
    ],
)
def test_an_answer_that_nothing_was_written_says_what_to_do(
    answer: WriteAnswer, code: str, retryable: bool, told: str
) -> None:
    with pytest.raises(NotApplied) as refused:
        wrote(WRITE, answer)
    assert (refused.value.code, refused.value.retryable) == (code, retryable)
    assert told in refused.value.message


def test_an_operation_that_wrote_something_else_is_no_proof_of_anything() -> None:
    assert wrote(WRITE, Wrote(6)) == Written(version=6)
    with pytest.raises(UsageError, match="something else before: version 3"):
        wrote(WRITE, OtherRequest(3))
    assert looked_up(None) == Absent()
    assert looked_up(6) == Found("6", {"version": 6})


@pytest.mark.parametrize(
    ("have", "need", "stale"),
    [(0, 0, False), (3, 0, False), (5, 5, False), (7, 5, False), (4, 5, True), (0, 1, True)],
)
def test_a_read_answers_from_the_version_that_its_run_wrote(have: int, need: int, stale: bool) -> None:
    stored = Stored(have, '"v"' if have else None, exists=have > 0, as_of=NOW)
    answer = reading("plan", stored, need, "v" if have else None)
    assert (answer is None) == stale
    if answer is not None:
        assert (answer.get("version", 0), answer["exists"]) == (have, have > 0)
        assert Reading.model_validate(answer).as_of == "2026-05-01T12:00:00.000000Z"


def test_a_stale_answer_holds_no_value_and_taints_nobody() -> None:
    stored = Stored(3, '"secret"', exists=True, untrusted=True, as_of=NOW)
    answer = stale_reading("plan", stored, 5)
    assert {name: answer[name] for name in ("stale", "have", "need", "untrusted")} == {
        "stale": True,
        "have": 3,
        "need": 5,
        "untrusted": False,
    }
    assert "value" not in answer
    assert memory_grounds("notes", answer) == []


@pytest.mark.parametrize(
    ("text", "taints"),
    [
        ('{"key":"k","untrusted":true,"value":"x"}', True),
        ('{"key":"k","untrusted":false,"value":"x"}', False),
        ('{"truncated":true,"bytes":9,"start":"..."}', True),
        ('{"key":"k","value":"x"}', True),
        ("no JSON", True),
    ],
)
def test_what_is_read_taints_unless_it_says_that_somebody_vouches(text: str, taints: bool) -> None:
    assert doubtful(tools()["notes.read"], text) is taints
    assert doubtful(tools()["notes.write"], text) is False


def test_a_list_is_as_untrusted_as_one_of_its_keys() -> None:
    found = [Listed("a", 1, False), Listed("b", 2, True), Listed("c", 1, False)]
    first = listing(found, 1)
    assert (first["untrusted"], first["more"], [one["key"] for one in first["keys"]]) == (False, True, ["a"])
    both = listing(found[:2], 2)
    assert (both["untrusted"], both["more"]) == (True, False)
    Listing.model_validate(both)


def test_a_read_that_gave_a_value_rests_on_its_version() -> None:
    answer = reading("plan", Stored(6, '"v"', exists=True, as_of=NOW), 0, "v")
    assert memory_grounds("notes", answer) == [
        {"source": "notes", "id": "plan", "version": "6", "as_of": "2026-05-01T12:00:00.000000Z"}
    ]
    assert memory_grounds("notes", reading("plan", Stored(0, as_of=NOW), 0, None)) == []
