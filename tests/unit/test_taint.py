"""What taints a run, as rules over values."""

import json
from dataclasses import replace

import pytest
from pydantic import BaseModel

from fencepost import App, Effect, UsageError
from fencepost.events import EventType as E
from fencepost.machine import evolve
from fencepost.subjects import View
from fencepost.taint import asked, born, brought, first
from fencepost.tools import Attempt
from tests.unit.test_machine import CALL, call, event, run
from tests.unit.test_runrequest import request


class Args(BaseModel):
    pass


class Row(BaseModel):
    id: str


@pytest.mark.parametrize(
    ("effect", "returns", "untrusted", "taints"),
    [
        (Effect.READ, None, None, True),
        (Effect.READ, None, False, False),
        (Effect.READ, Row, None, False),
        (Effect.READ, Row, True, True),
        (Effect.REVERSIBLE, None, None, False),
        (Effect.REVERSIBLE, None, True, True),
        (Effect.IRREVERSIBLE, Row, True, True),
    ],
)
def test_which_tools_taint(
    effect: Effect, returns: type[BaseModel] | None, untrusted: bool | None, taints: bool
) -> None:
    app = App("t")

    @app.python("a.tool", effect=effect, intent=lambda _: ("x",))
    def function(args: Args, attempt: Attempt) -> None: ...

    tool = replace(app.registry["a.tool", 1], returns=returns, untrusted=untrusted)
    assert brought(tool) == ({"untrusted": True} if taints else {})


def test_of_a_tool_that_is_not_known_nothing_is_said() -> None:
    assert brought(None) == {}


@pytest.mark.parametrize(
    ("known", "body", "then"),
    [
        (None, {}, None),
        (None, {"untrusted": True}, 9),
        (None, {"untrusted": False}, None),
        (None, {"untrusted": "true"}, None),
        (4, {"untrusted": True}, 4),
        (4, {}, 4),
        (4, {"untrusted": False}, 4),
    ],
)
def test_the_first_event_taints_and_none_clears(
    known: int | None, body: dict[str, object], then: int | None
) -> None:
    assert first(known, 9, body) == then


def test_an_event_that_leaves_its_call_where_it_is_taints_as_well() -> None:
    view = View(run(open=1), {CALL: call(state="SUCCEEDED")})
    told = evolve(view, event(E.HIDDEN_RETRY_SEEN, {"requests": 2, "untrusted": True}, of=CALL, seq=7))
    assert told.run.tainted == 7


@pytest.mark.parametrize(
    ("stored", "tainted"),
    [
        ({"budget": {"tainted": True}}, True),
        ({"budget": {"tainted": "true"}}, False),
        ({"budget": {}}, False),
        ({"input": {"budget": {"tainted": True}}}, False),
        ({"input": {"tainted": True}, "budget": None}, False),
    ],
)
def test_only_the_request_itself_says_that_its_input_came_from_outside(
    stored: dict[str, object], tainted: bool
) -> None:
    assert asked(json.dumps(stored)) is tainted
    assert born(json.dumps(stored)) == ({"untrusted": True} if tainted else {})


def test_a_request_says_so_beside_its_limits_and_is_another_request_by_it() -> None:
    assert json.loads(request(tainted=True).budget_text) == {"tainted": True}
    assert request().budget_text == "{}"
    assert request(tainted=True).means() != request().means()
    with pytest.raises(UsageError, match="tainted is True or False, not 1"):
        request(tainted=1)
