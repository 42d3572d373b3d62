"""Each tool of `fencepost_ops.examples.wrong_tools`: the drill finds it, and says what is wrong with it."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from fencepost_ops.drill.protocol import WIRES
from fencepost_ops.drill.users.engine import UserDrill
from fencepost_ops.drill.users.result import Result
from fencepost_ops.examples import wrong_tools as tools

HOUR = timedelta(hours=1)
ARGS = {"order": "o-1"}
ENV = {"TILL_TOKEN": "a-secret"}


def sweep_http(drill: UserDrill, tool: str, till: tools.Till, **more: Any) -> Result:
    given: dict[str, Any] = {"only": (), "most": 1} | more
    return drill(tools.app, tool, ARGS, service=till, env=ENV, **given)


def sweep_python(drill: UserDrill, tool: str, **more: Any) -> Result:
    given: dict[str, Any] = {"only": (), "most": 1, "through": ["pay"], "service": tools.bank} | more
    return drill(tools.app, tool, ARGS, **given)


def failure(result: Result) -> str:
    with pytest.raises(AssertionError) as failed:
        result.assert_one_effect()
    return str(failed.value)


def test_a_key_made_of_the_time_is_found_and_so_is_what_it_does(fencepost_drill: UserDrill) -> None:
    said = failure(sweep_http(fencepost_drill, "wrong.clock", tools.Till(fencepost_drill.now)))
    assert "two effects for one intent" in said
    assert "the request, built twice, differs (body reference: o-1-" in said
    assert "1. receipt t-1" in said
    assert "2. receipt t-2" in said
    assert "the bodies are equal" in said  # what is stored is sent again, byte for byte


def test_a_window_longer_than_the_service_remembers_is_found(fencepost_drill: UserDrill) -> None:
    till = tools.Till(fencepost_drill.now, remembers=HOUR)
    said = failure(sweep_http(fencepost_drill, "wrong.window", till))
    assert "two effects for one intent" in said
    assert "executed the same key again 24 h after the first time" in said
    assert "the keys are equal; the bodies are equal" in said


def test_a_lookup_that_says_absent_too_early_is_found(fencepost_drill: UserDrill) -> None:
    till = tools.Till(fencepost_drill.now, lag=timedelta(seconds=5))
    said = failure(sweep_http(fencepost_drill, "wrong.lookup", till))
    assert "two effects for one intent" in said
    assert "the lookup said absent 0.10" in said
    assert "Lookup(lag=..., horizon=...)" in said


def test_a_lookup_that_takes_a_gateways_error_for_absence_is_found(fencepost_drill: UserDrill) -> None:
    said = failure(sweep_http(fencepost_drill, "wrong.absent", tools.Till(fencepost_drill.now)))
    assert "two effects for one intent" in said
    assert "a gateway's 502 in answer to the lookup was taken for the service's own: lookup_parse=" in said


def test_a_refusal_after_which_it_did_happen_is_found(fencepost_drill: UserDrill) -> None:
    till = tools.Till(fencepost_drill.now, stumbles=True)
    result = sweep_http(fencepost_drill, "wrong.refused", till)
    said = failure(result)
    assert "a call ended as if nothing had happened, yet its effect is in the book" in said
    assert "answered 500 after it had done it" in said
    assert "take it out of not_applied" in said
    result.assert_never_twice()  # there is one effect, and nobody knows of it


def test_an_intent_that_leaves_something_out_is_found(fencepost_drill: UserDrill) -> None:
    till = tools.Till(fencepost_drill.now, remembers=tools.DAY)
    said = failure(sweep_http(fencepost_drill, "wrong.narrow", till, other={"order": "o-2"}, again=False))
    assert "two intents are taken for one" in said
    assert "intent= leaves out what tells the two apart; their arguments differ in order" in said


def test_an_intent_that_has_the_time_in_it_is_found(fencepost_drill: UserDrill) -> None:
    till = tools.Till(fencepost_drill.now, remembers=tools.DAY)
    said = failure(sweep_http(fencepost_drill, "wrong.wide", till))
    assert "two runs asked for the same intent, and it has two names" in said
    assert "the keys: " in said
    assert "also: what has to be a function of the arguments gives another answer each time" in said


def test_a_parse_that_takes_any_page_for_success_is_found(fencepost_drill: UserDrill) -> None:
    till = tools.Till(fencepost_drill.now, remembers=tools.DAY)
    said = failure(sweep_http(fencepost_drill, "wrong.page", till, again=False))
    assert "a call ended SUCCEEDED, and its effect is not in the book" in said
    assert "a gateway's page (200, text/html) was taken for success" in said


def test_a_python_tool_that_swallows_a_timeout_is_found(fencepost_drill: UserDrill) -> None:
    said = failure(sweep_python(fencepost_drill, "wrong.swallowed"))
    assert "a call ended SUCCEEDED, and its effect is not in the book" in said
    assert "a timeout or a broken connection was swallowed" in said


def test_a_python_tool_that_refuses_after_it_has_sent_is_found(fencepost_drill: UserDrill) -> None:
    said = failure(sweep_python(fencepost_drill, "wrong.refusing"))
    assert "a call ended as if nothing had happened, yet its effect is in the book" in said
    assert "it raised NotApplied after it had sent" in said
    assert "nothing: its answer was lost; EFFECT receipt b-1" in said


def test_a_key_with_the_attempt_in_it_is_found_and_its_history_can_be_run_again(
    fencepost_drill: UserDrill,
) -> None:
    said = failure(sweep_python(fencepost_drill, "wrong.attempt"))
    assert "each attempt hands down a key of its own (o-1-1 ≠ o-1-2)" in said
    assert "the keys: o-1-1 ≠ o-1-2; the bodies: " in said
    protocol = said.partition("protocol=r'''")[2].partition("'''")[0]
    again = sweep_python(fencepost_drill, "wrong.attempt", protocol=protocol)
    assert len(again.played) == 1
    assert "each attempt hands down a key of its own (o-1-1 ≠ o-1-2)" in failure(again)


@pytest.mark.parametrize("tool", ["right.dedupes", "right.lookup"])
def test_a_right_http_tool_has_one_effect_in_every_history(fencepost_drill: UserDrill, tool: str) -> None:
    remembers = tools.DAY if tool == "right.dedupes" else None
    till = tools.Till(fencepost_drill.now, remembers=remembers)
    only = "dispatch.after_effect" if tool == "right.dedupes" else ()
    result = sweep_http(fencepost_drill, tool, till, only=only)
    result.assert_one_effect().assert_never_twice()
    assert len([one for one in result.outcomes if one.struck]) > 8
    asked = [one.fault for out in result.outcomes for one in out.struck if one.fault.at == WIRES[1]]
    befell = {(one.do, one.answers) for one in asked}
    page = {("lost", 502), ("lost", 504), ("lost", 200), ("lost", None), ("delay", None)}
    assert befell == (page if tool == "right.lookup" else set())
    assert not [one.never for one in result.outcomes if one.never], "each struck"
    assert json.loads(json.dumps(result.to_json()))["ok"]
    assert ENV["TILL_TOKEN"] not in json.dumps(result.to_json())


def test_a_right_python_tool_has_one_effect_in_every_history(fencepost_drill: UserDrill) -> None:
    result = sweep_python(fencepost_drill, "right.python")
    result.assert_one_effect()
    assert {one.what for played in result.played for one in played.log} == {"Bank.pay"}
    assert result.notes == []
