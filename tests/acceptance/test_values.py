"""Values that Postgres refuses: a success is recorded whatever it says, bad arguments are no intent."""

import base64
import itertools
import json

import pytest

from tests.acceptance.stage import Stage, Step, step

_numbers = itertools.count(1)


def raw(text: str) -> str:
    return base64.b64encode(text.encode("utf-8", "surrogatepass")).decode()


@pytest.mark.parametrize("tool", ["local.do", "local.await"])
def test_a_success_is_recorded_whatever_it_says(stage: Stage, tool: str) -> None:
    reference = f"values-{next(_numbers)}"
    turn = [
        step(tool, then, reference=f"{reference}-{then}", then=then) for then in ("nul", "nan", "surrogate")
    ]
    run = stage.send(turn)
    assert stage.ended(run) == ["COMPLETED"]
    calls = stage.calls(run)
    assert [calls[then].state for then in ("nul", "nan", "surrogate")] == ["SUCCEEDED"] * 3
    assert calls["nul"].receipt == "r\\u0000r"
    with stage.reader() as connection:
        kept = connection.execute(
            "SELECT data FROM fencepost.payloads WHERE tenant = %s AND digest = %s",
            [stage.tenant, calls["nan"].result],
        ).fetchone()
    assert kept is not None
    assert json.loads(bytes(kept[0]))["high"] == float("inf")


def test_an_error_is_kept_whatever_it_says(stage: Stage) -> None:
    reference = f"values-{next(_numbers)}"
    raised = step("local.do", "raised", reference=reference, then="raise")
    run = stage.send([raised])
    call = stage.until_state(run, "raised", "NEEDS_REPAIR")
    (unknown,) = stage.events(run, "ToolOutcomeMarkedUnknown")
    assert "broke\\u0000" in unknown.data["message"]
    with stage.client("operator") as client:
        client.repair(call.id, "SUCCEEDED", by="person:tester", reason="it did", receipt="deed")
    assert stage.ended(run) == ["COMPLETED"]


def test_a_refusal_is_kept_whatever_it_says(stage: Stage) -> None:
    reference = f"values-{next(_numbers)}"
    run = stage.send([step("local.do", "refused", reference=reference, then="refuse")])
    assert stage.ended(run) == ["STOPPED"]
    assert stage.calls(run)["refused"].state == "FAILED"
    assert stage.deeds_of(stage.calls(run)["refused"]) == 0


BAD: dict[str, Step] = {
    "nul": {"tool": "bank.debit", "arguments_b64": raw('{"reference": "a\\u0000b"}')},
    "raw nul": {"tool": "bank.debit", "arguments_b64": raw('{"reference": "a\0b"}')},
    "nan": {"tool": "bank.debit", "arguments_b64": raw('{"reference": "x", "minor": NaN}')},
    "infinity": {"tool": "bank.debit", "arguments_b64": raw('{"reference": "x", "minor": -Infinity}')},
    "half": {"tool": "bank.debit", "arguments_b64": raw('{"reference": "\\ud83d"}')},
    "raw half": {"tool": "bank.debit", "arguments_b64": raw('{"reference": "\ud83d"}')},
    "twice": {"tool": "bank.debit", "arguments_b64": raw('{"reference": "x", "minor": 1, "minor": 1000}')},
    "huge": {"tool": "bank.debit", "arguments_b64": raw('{"reference": "x", "minor": 9007199254740993}')},
    "cut": {"tool": "bank.debit", "arguments_b64": raw('{"reference": "x", "mi')},
    "tool": {"tool_b64": raw("bank\0debit \ud83d"), "arguments": {"reference": "x"}},
}


def test_bad_arguments_and_names_are_refused_before_there_is_an_intent(stage: Stage) -> None:
    run = stage.send([{**bad, "call_id": label} for label, bad in BAD.items()])
    assert stage.ended(run) == ["COMPLETED"]
    assert {label: call.state for label, call in stage.calls(run).items()} == dict.fromkeys(BAD, "REJECTED")
    assert stage.events(run, "DispatchIntentRecorded", "ToolAttemptStarted") == []
    assert {event.data["step"] for event in stage.events(run, "ProposalRejected")} <= {1, 2, 3}
