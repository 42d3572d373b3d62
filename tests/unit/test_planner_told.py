"""What a model was told beside the results of its calls: whoever looks through that gets on."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Literal

import agents
import openai
import pytest
from pydantic import BaseModel

from fencepost import App, Effect, Request
from fencepost.ledger.reads import ContextCall
from fencepost.models import AgentSpec, ModelSpec, Wire
from fencepost.progress import stuck
from fencepost.views import Context, Signal, TurnView
from fencepost_workers.models import AgentPlanner, ModelPlanner, Providers
from fencepost_workers.models.hosted import openai_agents_planner
from fencepost_workers.planner import _given

IDS = [f"k{n}f3q9x00dz{9 - n}" for n in range(10)]
NOW = datetime(2026, 1, 1, tzinfo=UTC)
LIST = ", ".join(IDS)


class Look(BaseModel):
    id: str


class Choose(BaseModel):
    id: Literal[tuple(IDS)]  # type: ignore[valid-type]


def plain(describe: str = "Look.") -> App:
    app = App("told")
    shop = app.dependency("shop", base_url="http://127.0.0.1:9")

    @shop.http("look", effect=Effect.READ, describe=describe)
    def look(_args: Look) -> Request:
        return Request.get("/look")

    return app


def choosing() -> App:
    app = App("told")
    shop = app.dependency("shop", base_url="http://127.0.0.1:9")

    @shop.http("look", effect=Effect.READ)
    def look(_args: Choose) -> Request:
        return Request.get("/look")

    return app


def reads() -> list[ContextCall]:
    return [
        ContextCall(
            tenant="t", run=None, id=None, turn=n + 1, ordinal=0, version=1, label="",  # type: ignore[arg-type]
            tool="look", arguments=json.dumps({"id": one}), result=None, receipt=None, state="SUCCEEDED",
            error=None, tool_version=1, digest="absent", code=None,
        )
        for n, one in enumerate(IDS)
    ]  # fmt: skip


def asked(app: App, instructions: str, *, hosted: bool) -> tuple[AgentSpec, ModelPlanner]:
    if hosted:
        client = openai.AsyncOpenAI(api_key="none", max_retries=0)
        agent = agents.Agent(
            name="d", instructions=instructions, model=agents.OpenAIResponsesModel("m", client)
        )
        planner = openai_agents_planner(agent, app, tools=["look"])
        return planner.asks, planner
    via = app.dependency("provider", "http://127.0.0.1:9").spec
    model = ModelSpec(name="m", wire=Wire.CHAT, model="m", dependency=via)
    spec = AgentSpec(models=(model,), instructions=instructions)
    return spec, AgentPlanner(spec, app.tools, Providers())


TOLD: dict[str, tuple[App, str, dict[str, Any]]] = {
    "in its input": (plain(), "", {"input": [LIST]}),
    "in a signal": (plain(), "", {"signals": (Signal(1, "list", IDS, "svc:x", NOW),)}),
    "in what was held against its end": (plain(), "", {"turns": (TurnView(1, "", f"open: {LIST}"),)}),
    "in its instructions": (plain(), f"There are {LIST}.", {}),
    "in a tool's description": (plain(f"Looks for {LIST}."), "", {}),
    "in a tool's schema": (choosing(), "", {}),
}


def still(app: App, instructions: str, told: dict[str, Any], *, hosted: bool) -> str | None:
    context = replace(Context("r", "t", "p", "Look.", len(IDS) + 1), **told)
    given = partial(_given, context, *asked(app, instructions, hosted=hosted))
    return stuck(reads(), 5, lambda name, version: app.registry.get((name, version)), given)


@pytest.mark.parametrize("hosted", [False, True])
@pytest.mark.parametrize(("app", "instructions", "told"), TOLD.values(), ids=TOLD)
def test_a_list_that_a_model_was_told_is_walked_through(
    app: App, instructions: str, told: dict[str, Any], hosted: bool
) -> None:
    assert still(plain(), "", {}, hosted=hosted) is not None
    assert still(app, instructions, told, hosted=hosted) is None
