"""The example that a model plans: when its case is done, and what its models are told to be."""

import pytest

from fencepost import App
from fencepost.errors import UsageError
from fencepost.models import Wire
from fencepost.tools import CallView, Context
from fencepost_ops.examples.support import app, is_done
from fencepost_ops.up import check_environment


def call(tool: str, state: str) -> CallView:
    return CallView(tool, tool, {}, state)


@pytest.mark.parametrize(
    ("calls", "verdict"),
    [
        ([], "not done: wallet.refund, mail.send"),
        ([("wallet.refund", "SUCCEEDED")], "not done: mail.send"),
        ([("wallet.refund", "FAILED"), ("mail.send", "SUCCEEDED")], "not done: wallet.refund"),
        ([("wallet.refund", "UNKNOWN"), ("mail.send", "NEEDS_REPAIR")], "not done: wallet.refund, mail.send"),
        ([("wallet.refund", "FAILED"), ("wallet.refund", "SUCCEEDED"), ("mail.send", "SUCCEEDED")], True),
    ],
)
def test_a_case_is_done_by_its_effects_alone(calls: list[tuple[str, str]], verdict: bool | str) -> None:
    context = Context("r", "t", "svc:x", {}, 9, tuple(call(*one) for one in calls))
    assert is_done(context) == verdict


def test_each_wire_has_an_agent_and_one_falls_back_to_another() -> None:
    agents = {name: app.agent_of(name, 1) for name in ("support", "support-chat", "support-messages")}
    wires = {name: [m.wire for m in agent.models] for name, agent in agents.items() if agent is not None}
    assert wires == {
        "support": [Wire.RESPONSES, Wire.MESSAGES],
        "support-chat": [Wire.CHAT],
        "support-messages": [Wire.MESSAGES],
    }


@pytest.mark.parametrize(
    ("url", "key", "why"),
    [
        ("env:NO_SUCH_URL", "", "the application's dependency there: environment variable NO_SUCH_URL"),
        (
            "https://a.example",
            "env:NO_SUCH_KEY",
            "the key of the application's model m: environment variable",
        ),
    ],
)
def test_no_fleet_comes_up_whose_models_cannot_be_asked(url: str, key: str, why: str) -> None:
    check_environment(app, {"FENCEPOST_SANDBOX_URL"})
    lost = App("lost")
    lost.model("m", via=lost.dependency("there", url), wire=Wire.CHAT, model="m", key=key)
    with pytest.raises(UsageError, match=why):
        check_environment(lost, set())
