"""Agents of other frameworks as planners: asked once per turn, and never let near a tool."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import agents
import httpx2
import openai
import pydantic_ai
import pytest
from pydantic_ai import WebSearchTool
from pydantic_ai.capabilities import NativeTool, Toolset, WebSearch
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.toolsets import FunctionToolset

from fencepost import App, Attempt, Effect
from fencepost.errors import UsageError
from fencepost_ops.database import LedgerDatabase
from fencepost_ops.local import LocalValkey
from fencepost_ops.sandbox.process import SandboxProcess
from fencepost_workers.models.hosted import Plan, openai_agents_planner, pydantic_ai_planner
from tests.integration.model_desk import NOTE, Desk, Note
from tests.integration.step_shop import opened

ROB = {"name": "bank_rob", "id": "same", "arguments": {"key": "k"}}
BURN = {"name": "note.burn", "id": "same", "arguments": {"key": "k"}}
TURNS = [{"text": "I note it.", "calls": [NOTE, ROB, BURN]}, {"text": "Done."}, {"text": "Noted."}]


@pytest.fixture(scope="module")
def valkey() -> Iterator[LocalValkey]:
    with LocalValkey.start() as server:
        yield server


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SandboxProcess]:
    with SandboxProcess(tmp_path_factory.mktemp("provider")) as process:
        process.post("/models/script", {"models": {name: {"turns": TURNS} for name in HOSTS}})
        yield process


def client(url: str, retries: int = 0) -> openai.AsyncOpenAI:
    # Nobody closes it: no connection of it outlives its request.
    http = httpx2.AsyncClient(limits=httpx2.Limits(max_keepalive_connections=0))
    return openai.AsyncOpenAI(api_key="none", base_url=f"{url}/v1", max_retries=retries, http_client=http)


def by_pydantic_ai(app: App, url: str) -> Plan:
    model = OpenAIResponsesModel("pydantic", provider=OpenAIProvider(openai_client=client(url)))
    return pydantic_ai_planner(pydantic_ai.Agent(model, instructions="Note."), app, tools=["note.do"])


def by_pydantic_ai_chat(app: App, url: str) -> Plan:
    model = OpenAIChatModel("chat", provider=OpenAIProvider(openai_client=client(url)))
    return pydantic_ai_planner(pydantic_ai.Agent(model, instructions="Note."), app, tools=["note.do"])


def by_openai_agents(app: App, url: str) -> Plan:
    model = agents.OpenAIResponsesModel("agents", client(url))
    agent = agents.Agent(name="desk", instructions="Note.", model=model)
    return openai_agents_planner(agent, app, tools=["note.do"])


HOSTS: dict[str, Callable[[App, str], Plan]] = {
    "pydantic": by_pydantic_ai,
    "chat": by_pydantic_ai_chat,
    "agents": by_openai_agents,
}


def hosting(url: str) -> App:
    app = App("hosting")
    place = app.dependency("place")

    @place.python("note.do", effect=Effect.READ)
    async def do(args: Note, attempt: Attempt) -> dict[str, str]:
        """Note something."""
        return {"noted": args.key}

    @place.python("note.burn", effect=Effect.READ)
    async def burn(args: Note, attempt: Attempt) -> None: ...

    for name, host in HOSTS.items():
        app.planner(name)(host(app, url))
        app.verify(name)(lambda context: len(context.turns) > 1 or "say it again")
    app.allow("svc:*", tools=["note.*"])
    return app


def test_hosted_agents_propose_and_end_and_what_goes_wrong_is_no_intent(
    database: LedgerDatabase, valkey: LocalValkey, process: SandboxProcess
) -> None:
    process.post("/models/faults", {"kind": "truncated_valid", "count": 3, "turn": 1, "contains": "cut"})
    with opened(database, valkey, slots=10, app=hosting(process.url)) as shop:
        desk = Desk(shop, process)
        runs = {name: desk.enqueue(name, name) for name in HOSTS}
        desk.go()
        for name, run in runs.items():
            assert desk.run(run, "status", "preview", "turn") == ("COMPLETED", '"Noted."', 3), name
            calls = shop.sql(
                "SELECT tool, state, label FROM fencepost.calls WHERE run = %s ORDER BY ordinal", run
            )
            told = ("note.do", "SUCCEEDED", "same")
            assert calls == [
                told,
                ("unknown:bank_rob", "REJECTED", "same"),
                (calls[2][0], "REJECTED", "same"),
            ]
        asked = desk.asked()
        assert len(asked) == 3 * len(HOSTS)
        assert {one["retries"] for one in asked} == {"0"}
        cut = {name: desk.enqueue(name, f"cut-{name}") for name in HOSTS}
        before = len(shop.states())
        desk.go()
        for name, run in cut.items():
            lost = [one["code"] for one in desk.events(run, "ModelOutcomeUnknown")]
            assert desk.run(run, "status") == "COMPLETED", (name, lost, desk.run(run, "stop_detail"))
            assert lost == ["planner_error" if name == "agents" else "truncated"], name
        assert len(shop.states()) == before + 3 * len(HOSTS)


SETTINGS: dict[str, Any] = {
    "extra_body": {"extra_body": {"tools": [{"type": "web_search"}]}},
    "extra_headers": {"extra_headers": {"x": "y"}},
    "max_retries": {"max_retries": 2},
    "openai_native_tools": {"openai_native_tools": [{"type": "web_search"}]},
    "openai_previous_response_id": {"openai_previous_response_id": "resp_1"},
    "openai_store": {"openai_store": True},
    "tool_choice": {"tool_choice": "required"},
}
MODEL_SETTINGS: dict[str, Any] = {
    "context_management": [{"type": "compaction"}],
    "extra_args": {"background": True},
    "extra_body": {"tools": [{"type": "web_search"}]},
    "retry": agents.ModelRetrySettings(max_retries=3),
    "store": True,
    "tool_choice": "required",
    "truncation": "auto",
}


def test_settings_that_shape_an_answer_are_accepted() -> None:
    app, http = App("accepted"), client("http://127.0.0.1:1")
    given = OpenAIProvider(openai_client=http)
    shaped: Any = {"temperature": 0.5, "max_tokens": 9, "openai_store": False}
    agent: Any = pydantic_ai.Agent(OpenAIChatModel("m", provider=given), model_settings=shaped)
    assert callable(pydantic_ai_planner(agent, app, tools=["*"]))
    settings = agents.ModelSettings(temperature=0.5, max_tokens=9, store=False)
    desk = agents.Agent(name="d", model=agents.OpenAIResponsesModel("m", http), model_settings=settings)
    assert callable(openai_agents_planner(desk, app, tools=["*"]))


def test_an_agent_that_could_act_or_ask_again_by_itself_is_refused() -> None:
    app, url = App("refused"), "http://127.0.0.1:1"

    def act(key: str) -> str:
        raise AssertionError(key)

    def pydantic(retries: int = 0, **how: Any) -> pydantic_ai.Agent[Any, Any]:
        given = OpenAIProvider(openai_client=client(url, retries))
        return pydantic_ai.Agent(OpenAIChatModel("m", provider=given), **how)

    def desk(retries: int = 0, **how: Any) -> agents.Agent[Any]:
        model = agents.OpenAIResponsesModel("m", client(url, retries))
        return agents.Agent(name="desk", **({"model": model} | how))

    chat = agents.OpenAIChatCompletionsModel("m", client(url))
    refused: list[tuple[Any, Any, str]] = [
        (pydantic_ai_planner, pydantic(tools=[act]), "tools of its own"),
        (pydantic_ai_planner, pydantic(retries=2), "max_retries=0"),
        (pydantic_ai_planner, pydantic_ai.Agent(), "a model object"),
        (openai_agents_planner, desk(tools=[agents.function_tool(act)]), "tools, handoffs"),
        (openai_agents_planner, desk(handoffs=[desk()]), "tools, handoffs"),
        (openai_agents_planner, desk(retries=2), "max_retries=0"),
        (openai_agents_planner, desk(model=chat), "OpenAIResponsesModel"),
        (openai_agents_planner, desk(model="gpt"), "OpenAIResponsesModel"),
        (pydantic_ai_planner, pydantic(capabilities=[NativeTool(WebSearchTool())]), "NativeTool"),
        (pydantic_ai_planner, pydantic(capabilities=[WebSearch()]), "capabilities of its own"),
        (pydantic_ai_planner, pydantic(capabilities=[Toolset(FunctionToolset([act]))]), "of its own"),
        (pydantic_ai_planner, pydantic(capabilities=[lambda _: NativeTool(WebSearchTool())]), "of its own"),
        (openai_agents_planner, desk(prompt={"id": "pmpt_1"}), "a prompt that the provider keeps"),
        *((pydantic_ai_planner, pydantic(model_settings=said), name) for name, said in SETTINGS.items()),
        (pydantic_ai_planner, pydantic(model_settings=lambda _: {}), "are a function"),
        *(
            (openai_agents_planner, desk(model_settings=agents.ModelSettings(**{name: value})), name)
            for name, value in MODEL_SETTINGS.items()
        ),
    ]
    for planner, agent, why in refused:
        with pytest.raises(UsageError, match=why):
            planner(agent, app, tools=["*"])
    with pytest.raises(UsageError, match="not one text"):
        pydantic_ai_planner(pydantic(), app, tools="*")
    assert json.dumps(sorted(HOSTS)) == '["agents", "chat", "pydantic"]'
