"""Planners that are agents of a framework, as far as a framework may decide: what is proposed, never done.

    app.planner("support")(pydantic_ai_planner(agent, app, tools=["mail.*"], model=gpt))
    app.planner("desk")(openai_agents_planner(agent, app, tools=["desk.*"]))

The framework asks its model once per turn, with our tools in the place of its own, and is handed the
transcript that the ledger makes; it keeps nothing between turns. It never runs a tool: what it would call is
proposed, validated and dispatched like any other planner's proposal. An agent that has tools of its own, or
settings that let anybody act, or whose client asks again by itself (R4), is refused where it is declared.

What a request may use is held before it, and what it used is charged, as for `app.agent`: `model` is the
declared model that the agent's client asks, with its prices, its breaker and its limits. Without one only
tokens are counted: it has no price, so nothing is asked under a limit of cost. An answer is as long as the
agent's `max_tokens`, else the model's `max_output`, says. Each framework is an extra, imported where an agent
of it is handed over.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final, Self

from fencepost.app import App
from fencepost.dependencies import DependencySpec
from fencepost.errors import UsageError
from fencepost.models import AgentSpec, ModelSpec, Wire
from fencepost.redaction import own
from fencepost.telemetry import names, spans
from fencepost.tools import Context, Proposal, Tool
from fencepost_workers import redaction
from fencepost_workers.models.agent import (
    Asking,
    ModelPlanner,
    ModelTurn,
    NoTurn,
    asked_of,
    lost_of,
    raw_of,
    said_of,
    told_of,
    too_long,
    used_of,
)
from fencepost_workers.models.answers import TURNS, Answer, Ending
from fencepost_workers.models.declared import Declared, declare
from fencepost_workers.models.handed import check_openai_agent, check_pydantic_agent
from fencepost_workers.models.hiding import hidden, hidden_value, secrets_of
from fencepost_workers.models.overheard import Line, listen, overhearing
from fencepost_workers.models.prompt import Prompt, response_items
from fencepost_workers.models.providers import Heard, late, limits
from fencepost_workers.models.pydantic import history
from fencepost_workers.models.transcript import BYTES_PER_TOKEN, Transcript, estimate, transcript
from fencepost_workers.tools.credentials import Credentials

log = logging.getLogger(__name__)

WINDOW: Final = 32_000
MAX_OUTPUT: Final = 4096
FRAME: Final = 2048
"""Bytes of a request beside its instructions, tools and transcript, at most."""
SUPPORTED: Final = "pydantic-ai-slim>=2.68,<3"
"""The versions of pydantic-ai whose agents are known here."""
_LONGEST_S: Final = 86_400.0
_FOREIGN: Final = re.compile(r"[^A-Za-z0-9_.:-]")


class Hosted(ModelPlanner):
    """A planner that is an agent of a framework, and the plan that an application registers for it."""

    framework: str
    provider: str
    """Of its model, by the name that the conventions of OpenTelemetry have for it."""

    def __init__(
        self, agent: Any, app: App, tools: Sequence[str], window: int, model: ModelSpec, client: Any
    ) -> None:
        if isinstance(tools, str):
            raise UsageError("tools= is a list of names or patterns, not one text")
        listen(client)
        self._agent = agent
        said = self._instructions()  # they take their room of its window
        self.asks = AgentSpec(models=(model,), instructions=said, tools=tuple(tools), window=window)
        self._app = app
        self._client = client
        self._declared: Declared | None = None

    def among(self, tools: Mapping[str, Tool]) -> Self:
        """The same for runs that keep these versions of tools."""
        mine = copy(self)
        mine._declared = declare(tools, self.asks.tools)  # noqa: SLF001 - of its own kind
        return mine

    @property
    def declared(self) -> Declared:
        """The tools it is told about; read when it is first asked, since all are declared by then."""
        if self._declared is None:
            self._declared = declare(self._app.tools, self.asks.tools)
        return self._declared

    @property
    def tools(self) -> Mapping[str, Tool]:
        """See ModelPlanner."""
        return self.declared.known

    @property
    def credentials(self) -> Credentials:
        """What the framework's client signs its requests with, read now and kept out of logs from now on."""
        found = Credentials(secrets_of(self._client))
        redaction.learn(found)
        own(*found.values)
        return found

    async def __call__(self, context: Context) -> ModelTurn:
        """As `ask`, for whoever asks it outside of a worker: priced by this machine's day."""
        return await self.ask(context, Asking(0, _LONGEST_S, datetime.now(UTC)))

    async def ask(self, context: Context, asking: Asking) -> ModelTurn:
        """See ModelPlanner."""
        model = self.asks.model(0)
        told = self._told(context, model)
        digest = hashlib.sha256(json.dumps(response_items(told)).encode()).hexdigest()
        made = Prompt({}, digest, estimate(told.size), told.left_out, told.cut)
        if (long := too_long(self.asks, model, made, self._said(model, made, None), asking)) is not None:
            raise long
        line, credentials = (
            Line(
                BYTES_PER_TOKEN * min(self.asks.window, model.window) * 4 // 3, limits(model, asking.seconds)
            ),
            self.credentials,
        )
        with spans.span(names.CHAT, model.model, asked_of(model, self.provider), kind="client") as span:
            heard, finish = await self._heard(told, asking, line, credentials)
            heard = replace(heard, answer=hidden(heard.answer, credentials))
            told_of(span, heard)
        said = self._said(model, made, heard)
        if heard.answer.ending not in TURNS:
            raise lost_of(self.asks, model, heard, said, asking)
        return self._turn(model, heard.answer, hidden_value(finish, credentials.hide), said, asking)

    def _told(self, context: Context, model: ModelSpec) -> Transcript:
        tools = [(tool.name, tool.description, tool.schema) for tool in self.declared.tools]
        fixed = FRAME + len(json.dumps(tools)) + len(self.asks.instructions.encode())
        asked = f"{self.framework} {model.model}"
        window = min(self.asks.window, model.window)
        return transcript(context, self.declared, window=window, fixed=fixed, asked=asked)

    def _said(self, model: ModelSpec, made: Prompt, heard: Heard | None) -> dict[str, Any]:
        return said_of(model, made, heard) | {"wire": self.framework}

    async def _heard(
        self, told: Transcript, asking: Asking, line: Line, credentials: Credentials
    ) -> tuple[Heard, Any]:
        """What was answered, and what the framework would end with."""
        finish: Any = None
        try:
            with overhearing(line):
                async with asyncio.timeout(asking.seconds):
                    finish = await self._asked(told)
        except TimeoutError:
            if line.facts is None:
                return Heard(late(asking.seconds)), None
        except Exception as error:  # what was answered, if anything was, is judged here
            if line.kept is None and (line.facts is None or line.status >= 300):
                log.info("an agent of %s failed", self.framework, exc_info=True)
                return line.broken(error, asking.now, credentials.hide), None
        return line.judged(credentials.hide), finish

    def _turn(
        self, model: ModelSpec, answer: Answer, finish: Any, said: Mapping[str, Any], asking: Asking
    ) -> ModelTurn:
        spent = used_of(model, self.asks, answer, asking.now.date())
        claimed = answer.ending is Ending.CLAIMED
        if claimed and finish is None:
            why = "its words are not what it is to end with"
            raise NoTurn("malformed_turn", why, spent=spent if spent.known else None, said=said)
        known = self.declared
        calls = [
            # One that it was not told of is none for it, also where another planner has a tool of that name.
            Proposal(
                name if name in known.known else f"unknown:{name}",
                known.arguments(call.name, call.arguments),
                call.label,
            )
            for name, call in ((known.tool(call.name), call) for call in answer.calls)
        ]
        raw = raw_of(model, answer, self.framework)
        return ModelTurn(calls, finish if claimed else None, dict(answer.usage), raw, spent=spent, said=said)

    @abstractmethod
    def _instructions(self) -> str:
        """What the agent is told beside the transcript, as far as that is known before it is asked."""

    @abstractmethod
    async def _asked(self, told: Transcript) -> Any:
        """What it would end with."""


def _model(declared: ModelSpec | None, name: str, provider: str, most: int | None, window: int) -> ModelSpec:
    """The model that is asked: the declared one, or one of which nothing but its name is known."""
    if declared is None:
        via = DependencySpec(_FOREIGN.sub("_", f"hosted:{provider}")[:100])
        # No wire of ours: the framework's client has its own.
        return ModelSpec(
            name=name,
            wire=Wire.CHAT,
            model=name,
            dependency=via,
            max_output=most or MAX_OUTPUT,
            window=window,
        )
    if declared.model != name:
        raise UsageError(f"the agent asks {name}, and model={declared.name} is {declared.model}")
    return replace(declared, max_output=min(declared.max_output, most or declared.max_output))


# -- pydantic-ai ---------------------------------------------------------------------------------------------


def pydantic_ai_planner(
    agent: Any, app: App, *, tools: Sequence[str], window: int = WINDOW, model: ModelSpec | None = None
) -> Hosted:
    """A planner from a `pydantic_ai.Agent`; its `instructions` are sent, its `system_prompt` is not.

    UsageError for an agent with tools or capabilities, for a model given by name, for settings that are not
    known to be harmless (`handed.PYDANTIC_AI`), and for a client that retries.
    """
    check_pydantic_agent(agent)
    settings = {**(agent.model.settings or {}), **(agent.model_settings or {})}
    asked = _model(model, agent.model.model_name, agent.model.system, settings.get("max_tokens"), window)
    return _PydanticAi(agent, app, tools, window, asked, agent.model.client)


class _PydanticAi(Hosted):
    framework = "pydantic-ai"

    @property
    def provider(self) -> str:  # type: ignore[override]
        return str(self._agent.model.system)

    def _instructions(self) -> str:
        try:
            kept = [one.instruction for one in self._agent._instructions]  # noqa: SLF001 - nothing else has them
        except AttributeError as error:
            raise UsageError(
                f"what this pydantic-ai tells its agents cannot be read ({error}); install {SUPPORTED}"
            ) from None
        return "\n\n".join(one for one in kept if isinstance(one, str))

    async def _asked(self, told: Transcript) -> Any:
        from pydantic_ai import (
            DeferredToolRequests,
            ToolDefinition,
            UnexpectedModelBehavior,
            UsageLimitExceeded,
            UsageLimits,
        )
        from pydantic_ai.toolsets import ExternalToolset

        tools = [
            ToolDefinition(
                name=tool.name,
                parameters_json_schema=dict(tool.schema),
                description=tool.description,
                strict=False,
            )
            for tool in self.declared.tools
        ]
        try:
            result = await self._agent.run(
                message_history=history(told, self.provider),
                output_type=[self._agent.output_type, DeferredToolRequests],
                toolsets=[ExternalToolset(tools)],
                usage_limits=UsageLimits(request_limit=1),
                model_settings=self._settings(),
            )
        except (UsageLimitExceeded, UnexpectedModelBehavior):
            return None  # it wanted to ask again, by itself; what was answered is judged here
        return None if isinstance(result.output, DeferredToolRequests) else result.output

    def _settings(self) -> dict[str, Any]:
        """As many tokens as are held; and the provider keeps nothing, where it would if nothing was said."""
        kinds = {kind.__name__ for kind in type(self._agent.model).__mro__}
        kept = {"openai_store": False} if "OpenAIResponsesModel" in kinds else {}
        return {"max_tokens": self.asks.model(0).max_output, **kept}


# -- openai-agents -------------------------------------------------------------------------------------------


def openai_agents_planner(
    agent: Any, app: App, *, tools: Sequence[str], window: int = WINDOW, model: ModelSpec | None = None
) -> Hosted:
    """A planner from an `agents.Agent` that is asked by OpenAI Responses.

    UsageError for an agent with tools, handoffs, MCP servers or a stored prompt of its own, for any model but
    an `OpenAIResponsesModel` (of the others the framework drops why an answer ended), for settings that are
    not known to be harmless (`handed.OPENAI_AGENTS`), and for a client that retries.
    """
    check_openai_agent(agent)
    asked = _model(model, str(agent.model.model), "openai", agent.model_settings.max_tokens, window)
    return _OpenAiAgents(agent, app, tools, window, asked, agent.model._client)  # noqa: SLF001 - it has no other


class _OpenAiAgents(Hosted):
    framework = "openai-agents"
    provider = "openai"

    def _instructions(self) -> str:
        return self._agent.instructions if isinstance(self._agent.instructions, str) else ""

    async def _asked(self, told: Transcript) -> Any:
        from agents import FunctionTool, ModelSettings, RunConfig, Runner

        tools = [
            FunctionTool(
                name=tool.name,
                description=tool.description,
                params_json_schema=dict(tool.schema),
                on_invoke_tool=_never,
                strict_json_schema=False,
                needs_approval=True,
            )
            for tool in self.declared.tools
        ]
        bounds = ModelSettings(store=False, max_tokens=self.asks.model(0).max_output)
        items: Any = response_items(told)
        result = await Runner.run(
            self._agent.clone(tools=tools, model_settings=self._agent.model_settings.resolve(bounds)),
            items,
            max_turns=1,
            run_config=RunConfig(tracing_disabled=True),
        )
        return result.final_output


async def _never(*_: object) -> Any:
    raise RuntimeError("a framework was about to run a tool; nothing of it is run there")
