"""Models as an application declares them: what may be said of one, and what of a missing SDK."""

import asyncio
import sys
from datetime import UTC, datetime
from typing import Any

import pytest

from fencepost import App
from fencepost.errors import UsageError
from fencepost.models import OURS, AgentSpec, ModelSpec, Wire
from fencepost.views import Context
from fencepost_workers.models import AgentPlanner, Asking, NoTurn, Providers, prepare

VIA = App("declared").dependency("provider", "http://127.0.0.1:1")


def model(wire: Wire = Wire.CHAT, **said: Any) -> ModelSpec:
    return ModelSpec(name="m", wire=wire, model="m", dependency=VIA.spec, **said)


def test_a_key_is_named_and_never_written_into_the_code() -> None:
    with pytest.raises(UsageError, match="env:NAME"):
        model(key="sk-1234567890")
    assert model(key="env:PROVIDER_KEY").key == "env:PROVIDER_KEY"


@pytest.mark.parametrize("name", sorted(OURS))
def test_what_follows_from_the_ledger_is_no_parameter(name: str) -> None:
    with pytest.raises(UsageError, match=f"may not say {name}"):
        model(parameters={name: 1, "temperature": 0})


def test_an_older_name_of_the_limit_says_the_limit_that_is_reserved() -> None:
    assert model(max_output=9, parameters={"max_tokens": 9}).max_output == 9
    refused: list[tuple[Wire, dict[str, Any]]] = [
        (Wire.CHAT, {"max_tokens": 10}),
        (Wire.CHAT, {"max_completion_tokens": 9}),
        (Wire.RESPONSES, {"max_tokens": 9}),
        (Wire.RESPONSES, {"max_output_tokens": 9}),
        (Wire.MESSAGES, {"max_tokens": 9}),
    ]
    for wire, said in refused:
        with pytest.raises(UsageError, match="may not say max_"):
            model(wire, max_output=9, parameters=said)


@pytest.mark.parametrize("said", [{"max_output": 0}, {"window": 0}])
def test_an_answer_and_a_window_have_room(said: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="from 1 on"):
        model(**said)


@pytest.mark.parametrize(
    ("wire", "sdk"), [(Wire.RESPONSES, "openai"), (Wire.CHAT, "openai"), (Wire.MESSAGES, "anthropic")]
)
def test_without_the_sdk_a_model_says_which_extra_to_install(
    wire: Wire, sdk: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name == sdk or name.startswith(f"{sdk}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, sdk, None)  # as where it is not installed
    prepare([wire])  # a worker starts all the same
    planner = AgentPlanner(AgentSpec(models=(model(wire),), instructions="Help."), {}, Providers())
    asking = Asking(0, 5, datetime(2026, 1, 1, tzinfo=UTC))
    with pytest.raises(NoTurn, match=rf"pip install 'fencepost\[{sdk}\]'") as lost:
        asyncio.run(planner.ask(Context("r", "t", "p", {}, 1), asking))
    assert lost.value.code == "not_started"
    assert lost.value.spent is not None
    assert lost.value.spent.tokens == 0
