"""Agents of other frameworks as planners: asked once per turn, and never let near a tool."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import httpx2
import pytest

from fencepost import App, Attempt, Effect
from fencepost.errors import UsageError
from fencepost.models import Wire
from fencepost.states import Queue
from fencepost_ops.database import LedgerDatabase
from fencepost_ops.local import LocalValkey
from fencepost_ops.sandbox.process import SandboxProcess
from fencepost_workers.models.hosted import Hosted, openai_agents_planner, pydantic_ai_planner
from tests.integration.model_desk import COST, NOTE, PRICE, SCRIPT, Desk, Note, seated
from tests.integration.step_shop import SECOND
from tests.sdks import (
    AnthropicModel,
    AnthropicProvider,
    FunctionToolset,
    NativeTool,
    OpenAIChatModel,
    OpenAIProvider,
    OpenAIResponsesModel,
    Toolset,
    WebSearch,
    WebSearchTool,
    agents,
    anthropic,
    openai,
    pydantic_ai,
)

ROB = {"name": "bank_rob", "id": "same", "arguments": {"key": "k"}}
BURN = {"name": "note.burn", "id": "same", "arguments": {"key": "k"}}
THOUGHTS = ["Hm.", "And yet."]
TURNS: list[dict[str, Any]] = [
    {"text": "I note it.", "calls": [NOTE, ROB, BURN], "thoughts": THOUGHTS},
    {"text": "Done."},
    {"text": "Noted."},
]
USED = 109
"""Tokens of one answer."""
WINDOW, MAX_OUTPUT = 8000, 300


@pytest.fixture(scope="module")
def scripted(provider: SandboxProcess) -> SandboxProcess:
    script = {**SCRIPT, "turns": TURNS}
    scripts: dict[str, Any] = dict.fromkeys([*HOSTS, "plain"], script)
    # Of the ways that Chat has for thoughts its framework knows two.
    unthinking = [{name: one for name, one in turn.items() if name != "thoughts"} for turn in TURNS]
    scripts["chat"] = {**SCRIPT, "turns": unthinking}
    provider.post("/models/script", {"models": scripts})
    return provider


def client(url: str, retries: int = 0) -> openai.AsyncOpenAI:
    # Nobody closes it: no connection of it outlives its request.
    http = httpx2.AsyncClient(limits=httpx2.Limits(max_keepalive_connections=0))
    return openai.AsyncOpenAI(api_key="none", base_url=f"{url}/v1", max_retries=retries, http_client=http)


def noting(model: Any) -> pydantic_ai.Agent[Any, Any]:
    return pydantic_ai.Agent(model, instructions="Note.")


def by_pydantic_ai(app: App, url: str, **how: Any) -> Hosted:
    model = OpenAIResponsesModel("pydantic", provider=OpenAIProvider(openai_client=client(url)))
    return pydantic_ai_planner(noting(model), app, tools=["note.do"], **how)


def by_pydantic_ai_chat(app: App, url: str, **how: Any) -> Hosted:
    model = OpenAIChatModel("chat", provider=OpenAIProvider(openai_client=client(url)))
    return pydantic_ai_planner(noting(model), app, tools=["note.do"], **how)


def by_pydantic_ai_messages(app: App, url: str, **how: Any) -> Hosted:
    http = httpx2.AsyncClient(limits=httpx2.Limits(max_keepalive_connections=0))
    asks = anthropic.AsyncAnthropic(api_key="none", base_url=url, max_retries=0, http_client=http)
    model = AnthropicModel("messages", provider=AnthropicProvider(anthropic_client=asks))
    return pydantic_ai_planner(noting(model), app, tools=["note.do"], **how)


def by_openai_agents(app: App, url: str, name: str = "agents", **how: Any) -> Hosted:
    model = agents.OpenAIResponsesModel(name, client(url))
    agent = agents.Agent(name="desk", instructions="Note.", model=model)
    return openai_agents_planner(agent, app, tools=["note.do"], **how)


HOSTS: dict[str, Callable[..., Hosted]] = {
    "pydantic": by_pydantic_ai,
    "chat": by_pydantic_ai_chat,
    "messages": by_pydantic_ai_messages,
    "agents": by_openai_agents,
}


def hosting(url: str) -> App:
    app = App("hosting")
    place, provider = app.dependency("place"), app.dependency("provider", url)

    @place.python("note.do", effect=Effect.READ)
    async def do(args: Note, attempt: Attempt) -> dict[str, str]:
        """Note something."""
        return {"noted": args.key}

    @place.python("note.burn", effect=Effect.READ)
    async def burn(args: Note, attempt: Attempt) -> None: ...

    for name, host in HOSTS.items():
        said: Any = {"wire": Wire.CHAT, "model": name, "prices": (PRICE,), "max_output": MAX_OUTPUT}
        model = app.model(name, via=provider, **said)
        app.planner(name)(host(app, url, window=WINDOW, model=model))
        app.verify(name)(lambda context: len(context.turns) > 1 or "say it again")
    app.planner("plain")(by_openai_agents(app, url, "plain"))
    app.allow("svc:*", tools=["note.*"])
    return app


@pytest.fixture
def desk(database: LedgerDatabase, valkey: LocalValkey, scripted: SandboxProcess) -> Iterator[Desk]:
    with seated(database, valkey, scripted, hosting(scripted.url)) as desk:
        yield desk


def test_hosted_agents_propose_and_end_and_what_goes_wrong_is_no_intent(desk: Desk) -> None:
    desk.spoil("truncated_valid", count=len(HOSTS), turn=1, contains="cut")
    runs = {name: desk.enqueue(name, name) for name in HOSTS}
    desk.go()
    for name, run in runs.items():
        lost = desk.events(run, "ModelOutcomeUnknown")
        assert (desk.run(run, "status", "preview", "turn"), lost) == (("COMPLETED", '"Noted."', 3), []), name
        calls = desk.shop.sql(
            "SELECT tool, state, label FROM fencepost.calls WHERE run = %s ORDER BY ordinal", run
        )
        told = ("note.do", "SUCCEEDED", "same")
        assert calls == [
            told,
            ("unknown:bank_rob", "REJECTED", "same"),
            (calls[2][0], "REJECTED", "same"),
        ]
        # What they use is held and charged as that of any other model.
        held = desk.events(run, "ModelRequestStarted")
        assert {(one["model"], one["held"]["tokens"]) for one in held} == {(name, WINDOW + MAX_OUTPUT)}
        assert desk.run(run, "tokens", "cost", "held_tokens", "held_cost") == (3 * USED, 3 * COST, 0, 0)
        (said,) = {one["said"]["request"][:4] for one in desk.events(run, "ModelResponseRecorded")}
        assert said == "req_"
    asked = desk.asked()
    assert len(asked) == 3 * len(HOSTS)
    assert {one["retries"] for one in asked} == {"0"}
    assert {one["headers"].get("traceparent", "")[3:35] for one in asked} == {
        one.hex for one in runs.values()
    }
    cut = {name: desk.enqueue(name, f"cut-{name}") for name in HOSTS}
    before = len(desk.shop.states())
    desk.go()
    for name, run in cut.items():
        (spoilt,) = desk.events(run, "ModelOutcomeUnknown")
        assert (spoilt["code"], spoilt["spent"]["tokens"]) == ("truncated", USED), name
        assert desk.run(run, "status", "tokens") == ("COMPLETED", 4 * USED)
    assert len(desk.shop.states()) == before + 3 * len(HOSTS)


LOST: dict[str, tuple[dict[str, Any], str, bool]] = {
    "busy": ({"kind": "status", "status": 503}, "http_503", False),
    "cut": ({"kind": "reset_before_headers"}, "connection_lost", True),
    "silent": ({"kind": "silent_before_headers"}, "timeout", True),
    "uncounted": ({"kind": "usage_missing"}, "", True),
}


def test_what_is_lost_is_told_as_what_it_is_and_charged_as_held(desk: Desk) -> None:
    desk.planner = desk.another(timeout=2 * SECOND)
    runs: dict[tuple[str, str], UUID] = {}
    for name in HOSTS:
        for key, (fault, _, _) in LOST.items():
            desk.spoil(**fault, contains=f"{key}-{name}", turn=1, count=1)
            runs[name, key] = desk.enqueue(name, f"{key}-{name}")
    while any(not desk.run(run, "requests") for run in runs.values()):
        desk.planner.handle(desk.shop.due(Queue.PLANNER))
        assert desk.shop.idle()
    for (name, key), run in runs.items():
        _, code, charged = LOST[key]
        told = desk.events(run, "ModelOutcomeUnknown" if code else "ModelResponseRecorded")[0]
        assert told.get("code", "") == code, (name, key)
        assert told["spent"]["tokens"] == (WINDOW + MAX_OUTPUT if charged else 0)
        assert told["spent"]["cost"] > COST if charged else told["spent"]["cost"] == 0


def test_what_a_budget_leaves_no_room_for_is_not_asked(desk: Desk) -> None:
    worst = WINDOW + MAX_OUTPUT
    short = {name: desk.enqueue(name, f"short-{name}", {"tokens": worst + USED - 1}) for name in HOSTS}
    dear = desk.enqueue("plain", "dear", {"cost": 10**9})
    free = desk.enqueue("plain", "free", {"tokens": 10**6})
    desk.go()
    for name, run in short.items():
        assert desk.run(run, "status", "stop_reason", "tokens") == ("STOPPED", "budget_exhausted", USED), name
        assert desk.run(run, "stop_detail").startswith("tokens: 109 used")
    assert desk.run(dear, "stop_reason", "tokens") == ("planner_failed", 0)
    assert "has no price" in desk.run(dear, "stop_detail")
    # Of a model nobody has declared, tokens are counted all the same.
    assert desk.run(free, "status", "tokens", "cost") == ("COMPLETED", 2 * USED, 0)
    assert desk.events(free, "ModelRequestStarted")[0]["held"] == {"tokens": 32_000 + 4096, "cost": 0}


ENDS = [
    ("refusal", "refused", "model_refused", list(HOSTS)),
    ("content_filter", "refused", "content_filter", ["pydantic", "chat", "agents"]),
    ("hosted_item", "planner_failed", "hosted_tool", ["pydantic", "messages", "agents"]),
    ("context_exceeded", "planner_failed", "context_exceeded", list(HOSTS)),
]


def test_what_asking_again_cannot_mend_stops_the_run(desk: Desk) -> None:
    runs: dict[tuple[str, str], UUID] = {}
    for kind, _, _, names in ENDS:
        for name in names:
            desk.spoil(kind, model=name, contains=f"{kind}-{name}")
            runs[kind, name] = desk.enqueue(name, f"{kind}-{name}")
    desk.go()
    for kind, reason, code, names in ENDS:
        for name in names:
            run = runs[kind, name]
            (lost,) = desk.events(run, "ModelOutcomeUnknown")
            assert (lost["code"], desk.run(run, "stop_reason")) == (code, reason), (kind, name, lost)
    assert desk.shop.states() == []


def test_a_framework_that_would_ask_again_in_its_turn_is_not_let(desk: Desk) -> None:
    """What Anthropic pauses, pydantic-ai asks to go on with, at once and as often as that takes."""
    desk.spoil("pause_turn", model="messages", turn=1, count=1)
    run = desk.enqueue("messages")
    desk.go()
    (lost,) = desk.events(run, "ModelOutcomeUnknown")
    assert (lost["code"], lost["spent"]["tokens"]) == ("paused", USED)
    assert desk.run(run, "status", "requests", "tokens") == ("COMPLETED", 4, 4 * USED)
    assert len(desk.asked()) == 4


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
            for name, value in (MODEL_SETTINGS | {"retry": agents.ModelRetrySettings(max_retries=3)}).items()
        ),
    ]
    for planner, agent, why in refused:
        with pytest.raises(UsageError, match=why):
            planner(agent, app, tools=["*"])
    with pytest.raises(UsageError, match="not one text"):
        pydantic_ai_planner(pydantic(), app, tools="*")
