"""Planners that are agents of a framework, as far as a framework may decide: what is proposed, never done.

    app.planner("support")(pydantic_ai_planner(agent, app, tools=["mail.*"]))
    app.planner("desk")(openai_agents_planner(agent, app, tools=["desk.*"]))

The framework asks its model once per turn, with our tools in the place of its own, and is handed the
transcript that the ledger makes; it keeps nothing between turns. It never runs a tool: what it would call is
proposed, validated and dispatched like any other planner's proposal. An agent that has tools of its own, or
or settings that let anybody act, or whose client asks again by itself (R4), is refused where it is declared.

Each framework is an extra, imported where an agent of it is handed over.

Not covered: budgets of tokens and cost, breaker and limits of the model's provider. The framework's own
client asks, so nobody reserves, and what it reports is kept with the turn and no more. `app.agent` has these.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from copy import copy
from functools import cached_property
from typing import Any, Final

from fencepost.app import App
from fencepost.errors import UsageError
from fencepost.outcomes import told
from fencepost.tools import Context, Proposal, Turn
from fencepost_workers import redaction
from fencepost_workers.models.agent import STOPS, NoTurn
from fencepost_workers.models.answers import TURNS, Answer, Ending, Facts, Means, Piece, settle
from fencepost_workers.models.at_once import of_completion, of_response, unfinished
from fencepost_workers.models.declared import Declared, declare
from fencepost_workers.models.handed import check_openai_agent, check_pydantic_agent
from fencepost_workers.models.hiding import hidden, hidden_value, secrets_of
from fencepost_workers.models.prompt import response_items
from fencepost_workers.models.transcript import Transcript, transcript
from fencepost_workers.tools.credentials import Credentials

Plan = Callable[[Context], Awaitable[Turn]]
WINDOW: Final = 32_000


class Hosted:
    """What both frameworks need: the tools as they are told, the transcript, and the turn."""

    reads_turns = True
    """Its context holds what was said in earlier turns."""

    def __init__(self, app: App, tools: Sequence[str], window: int, client: Any = None) -> None:
        if isinstance(tools, str):
            raise UsageError("tools= is a list of names or patterns, not one text")
        self._app = app
        self._patterns = tuple(tools)
        self._window = window
        self._client = client

    @cached_property
    def declared(self) -> Declared:
        """The tools it is told about; read when it is first asked, since all are declared by then."""
        return declare(self._app.tools, self._patterns)

    def told(self, context: Context) -> Transcript:
        """The transcript, without any opaque part."""
        return transcript(context, self.declared, window=self._window, fixed=0, asked="")

    @property
    def credentials(self) -> Credentials:
        """What the framework's client signs its requests with, read now and kept out of logs from now on."""
        found = Credentials(secrets_of(self._client))
        redaction.learn(found)
        return found

    @asynccontextmanager
    async def hiding(self) -> AsyncIterator[None]:
        """What the framework says in an error is said without credentials. NoTurn in its place."""
        credentials = self.credentials
        try:
            yield
        except NoTurn:
            raise
        except Exception as error:
            found: list[bool] = []

            def hide(text: str) -> str:
                without = credentials.hide(text)
                found.append(without != text)
                return without

            message = told(error, hide=hide)
            if not any(found):
                raise
            raise NoTurn("planner_error", message, spent=None, said={}) from None

    def turn(self, facts: Facts, finish: Any, usage: Mapping[str, Any]) -> Turn:
        """The turn these facts make. NoTurn where they make none."""
        credentials = self.credentials
        answer: Answer = hidden(settle(facts), credentials)
        finish = hidden_value(finish, credentials.hide)
        if answer.ending not in TURNS:
            why = f"{answer.ending}: {answer.why}"
            raise NoTurn(str(answer.ending), why, spent=None, said={}, stop=STOPS.get(answer.ending))
        known = self.declared
        named = [(known.tool(call.name), call) for call in answer.calls]
        calls = [
            # One that it was not told of is none for it, also where another planner has a tool of that name.
            Proposal(name if name in known.known else f"unknown:{name}", call.arguments, call.label)
            for name, call in named
        ]
        ended = finish if answer.ending is Ending.CLAIMED else None
        if answer.ending is Ending.CLAIMED and ended is None:
            raise NoTurn("malformed_turn", "its words are not what it is to end with", spent=None, said={})
        return Turn(calls, ended, usage, json.dumps({"text": answer.text}))


class _Asked(ABC):
    """A planner that is an agent of a framework."""

    reads_turns = True

    def __init__(self, agent: Any, hosted: Hosted) -> None:
        self._agent = agent
        self._hosted = hosted

    async def __call__(self, context: Context) -> Turn:
        async with self._hosted.hiding():
            return await self._asked(context)

    @abstractmethod
    async def _asked(self, context: Context) -> Turn: ...


# -- pydantic-ai ---------------------------------------------------------------------------------------------


def pydantic_ai_planner(agent: Any, app: App, *, tools: Sequence[str], window: int = WINDOW) -> Plan:
    """A planner from a `pydantic_ai.Agent`; its `instructions` are sent, its `system_prompt` is not.

    UsageError for an agent with tools or capabilities, for a model given by name, for settings that are not
    known to be harmless (`handed.PYDANTIC_AI`), and for a client that retries.
    """
    check_pydantic_agent(agent)
    return _PydanticAi(agent, Hosted(app, tools, window, getattr(agent.model, "client", None)))


class _PydanticAi(_Asked):
    async def _asked(self, context: Context) -> Turn:
        from pydantic_ai import (
            DeferredToolRequests,
            ToolDefinition,
            UnexpectedModelBehavior,
            UsageLimitExceeded,
            UsageLimits,
            capture_run_messages,
        )
        from pydantic_ai.toolsets import ExternalToolset

        tools = [
            ToolDefinition(
                name=tool.name,
                parameters_json_schema=dict(tool.schema),
                description=tool.description,
                strict=False,
            )
            for tool in self._hosted.declared.tools
        ]
        history = _history(self._hosted.told(context))
        heard: list[Any] = []
        with capture_run_messages() as seen:
            try:
                result = await self._agent.run(
                    model=_overheard(self._agent.model, heard),
                    message_history=history,
                    output_type=[self._agent.output_type, DeferredToolRequests],
                    toolsets=[ExternalToolset(tools)],
                    usage_limits=UsageLimits(request_limit=1),
                    model_settings=self._kept_nowhere(),
                )
                output = None if isinstance(result.output, DeferredToolRequests) else result.output
            except (UsageLimitExceeded, UnexpectedModelBehavior):
                output = None  # it wanted to ask again, by itself; what was answered is judged here
        had = sum(one.kind == "response" for one in history)
        answers = [one for one in seen if one.kind == "response"][had:]
        if not answers:
            raise NoTurn("malformed_turn", "the framework had no answer", spent=None, said={})
        usage = answers[0].usage
        counts = {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens}
        facts = _raw_facts(heard[0]) if heard else _facts(answers[0])
        return self._hosted.turn(facts, output, counts)

    def _kept_nowhere(self) -> Any:
        """The settings by which the provider keeps nothing, where it would if it were told nothing."""
        kinds = {kind.__name__ for kind in type(self._agent.model).__mro__}
        return {"openai_store": False} if "OpenAIResponsesModel" in kinds else None


def _history(told: Transcript) -> list[Any]:
    from pydantic_ai import messages as m

    history: list[Any] = [m.ModelRequest([m.UserPromptPart(told.first)])]
    for exchange in told.exchanges:
        said: list[Any] = [m.TextPart(exchange.text)] if exchange.text else []
        said += [m.ToolCallPart(call.name, call.arguments, call.id) for call in exchange.calls]
        if said:
            history.append(m.ModelResponse(said))
        answered: list[Any] = [m.ToolReturnPart(call.name, call.result, call.id) for call in exchange.calls]
        answered += [m.UserPromptPart(exchange.note)] if exchange.note else []
        history.append(m.ModelRequest(answered))
    if told.last:
        history.append(m.ModelRequest([m.UserPromptPart(told.last)]))
    return history


_FINISHED: Final[Mapping[str, Means | Ending]] = {
    "stop": Means.NORMAL,
    "tool_call": Means.CALLS,
    "length": Ending.TRUNCATED,
    "content_filter": Ending.CONTENT_FILTER,
}


def _facts(response: Any) -> Facts:
    """What the framework has kept of an answer: its stop reason, and arguments as the model wrote them."""
    details = response.provider_details or {}
    stop = str(response.finish_reason or "")
    facts = Facts(ended=True, stop=stop, means=_FINISHED.get(stop))
    if "finish_reason" not in details and facts.means in {Means.NORMAL, Means.CALLS}:
        unfinished(facts, "")  # the framework takes a missing reason for a normal stop
    elif facts.means is Means.NORMAL and details.get("finish_reason") == "completed":
        facts.means = Means.EITHER  # OpenAI Responses has one word for both
    for part in response.parts:
        match part.part_kind:
            case "tool-call":
                arguments = part.args if isinstance(part.args, str) else json.dumps(part.args or {})
                facts.calls.append(
                    Piece(part.tool_name, part.tool_call_id, facts.grow(arguments), whole=True)
                )
            case "text":
                facts.text.append(facts.grow(part.content))
            case "thinking":
                pass
            case kind:
                facts.hosted.append(f"a part of kind {kind}")
    return facts


# -- openai-agents -------------------------------------------------------------------------------------------


def openai_agents_planner(agent: Any, app: App, *, tools: Sequence[str], window: int = WINDOW) -> Plan:
    """A planner from an `agents.Agent` that is asked by OpenAI Responses.

    UsageError for an agent with tools, handoffs, MCP servers or a stored prompt of its own, for any model but
    an `OpenAIResponsesModel` (of the others the framework drops why an answer ended), for settings that are
    not known to be harmless (`handed.OPENAI_AGENTS`), and for a client that retries.
    """
    check_openai_agent(agent)
    return _OpenAiAgents(agent, Hosted(app, tools, window, getattr(agent.model, "_client", None)))


class _OpenAiAgents(_Asked):
    async def _asked(self, context: Context) -> Turn:
        from agents import AgentsException, FunctionTool, ModelSettings, RunConfig, Runner

        tools = [
            FunctionTool(
                name=tool.name,
                description=tool.description,
                params_json_schema=dict(tool.schema),
                on_invoke_tool=_never,
                strict_json_schema=False,
                needs_approval=True,
            )
            for tool in self._hosted.declared.tools
        ]
        heard: list[Any] = []
        items: Any = response_items(self._hosted.told(context))
        output = None
        try:
            result = await Runner.run(
                self._agent.clone(
                    tools=tools,
                    model=_overheard(self._agent.model, heard),
                    model_settings=self._agent.model_settings.resolve(ModelSettings(store=False)),
                ),
                items,
                max_turns=1,
                run_config=RunConfig(tracing_disabled=True),
            )
            output = result.final_output
        except AgentsException:  # a call of no tool, say: what was answered is judged here
            if not heard:
                raise
        facts = _raw_facts(heard[0])
        used = {name: facts.usage.get(name) for name in ("input_tokens", "output_tokens")}
        return self._hosted.turn(facts, output, used)


async def _never(*_: object) -> Any:
    raise RuntimeError("a framework was about to run a tool; nothing of it is run there")


# -- what a provider itself said -----------------------------------------------------------------------------

_ASKING: Final[Mapping[str, Callable[[Mapping[str, Any]], Facts]]] = {
    "_fetch_response": of_response,
    "_responses_create": of_response,
    "_completions_create": of_completion,
}
"""Where the frameworks' models ask OpenAI's SDK, and how what they get is read: they keep a part of it."""


def _overheard(model: Any, heard: list[Any]) -> Any:
    """The model, each of whose raw answers is put down before the framework makes anything of it.

    As it is for a model of another provider, whose answers are judged by what the framework keeps of them.
    """
    for name, read in _ASKING.items():
        if (asks := getattr(type(model), name, None)) is not None:
            model = copy(model)
            setattr(model, name, _listening(asks.__get__(model), read, heard))
            break
    return model


def _listening(asks: Callable[..., Awaitable[Any]], read: Any, heard: list[Any]) -> Any:
    async def listening(*args: Any, **how: Any) -> Any:
        answer = await asks(*args, **how)
        if hasattr(answer, "to_dict"):  # and not the framework's own, of a refusal it knows
            heard.append((read, answer.to_dict(warnings=False)))
        return answer

    return listening


def _raw_facts(heard: Any) -> Facts:
    read, answer = heard
    facts: Facts = read(answer)
    return facts
