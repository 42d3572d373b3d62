"""What an agent of a framework may say for itself, where it is handed over as a planner.

What is known to be harmless is accepted, and all else is refused by its name: a setting may have the provider
act (its own tools, stored conversations), the framework ask again (R4), or another model answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

from fencepost.errors import UsageError

OPENAI_AGENTS: Final = frozenset(
    {
        "frequency_penalty",
        "include_usage",
        "max_tokens",
        "metadata",
        "parallel_tool_calls",
        "presence_penalty",
        "preserve_raw_usage",
        "prompt_cache_options",
        "prompt_cache_retention",
        "reasoning",
        "temperature",
        "timeout",
        "top_logprobs",
        "top_p",
        "verbosity",
    }
)
"""Fields of `agents.ModelSettings` that shape an answer and no more."""

PYDANTIC_AI: Final = frozenset(
    {
        "anthropic_cache",
        "anthropic_cache_instructions",
        "anthropic_cache_messages",
        "anthropic_cache_tool_definitions",
        "anthropic_effort",
        "anthropic_metadata",
        "anthropic_service_tier",
        "anthropic_thinking",
        "cache",
        "first_event_timeout",
        "frequency_penalty",
        "logit_bias",
        "max_tokens",
        "openai_cache_instructions",
        "openai_logprobs",
        "openai_prompt_cache_key",
        "openai_prompt_cache_options",
        "openai_prompt_cache_retention",
        "openai_reasoning_effort",
        "openai_reasoning_mode",
        "openai_reasoning_summary",
        "openai_service_tier",
        "openai_text_verbosity",
        "openai_top_logprobs",
        "openai_user",
        "parallel_tool_calls",
        "presence_penalty",
        "request_timeout",
        "seed",
        "service_tier",
        "stop_sequences",
        "temperature",
        "thinking",
        "timeout",
        "top_k",
        "top_p",
    }
)
"""Keys of pydantic-ai's `ModelSettings` that shape an answer and no more."""

_OFF: Final[Mapping[str, Any]] = {"store": False, "openai_store": False, "max_retries": 0}
"""What may be said only as this, which is what is sent anyway."""


def asks_once(client: Any) -> None:
    """UsageError for a client that asks again by itself."""
    if getattr(client, "max_retries", None) != 0:
        raise UsageError("the agent's client asks again by itself; make it with max_retries=0")


def check_openai_agent(agent: Any) -> None:
    """UsageError for an `agents.Agent` that could act, ask again, or be answered from elsewhere."""
    from agents import Agent, OpenAIResponsesModel

    if type(agent) is not Agent:
        raise UsageError(f"give an agents.Agent itself, not a {type(agent).__name__}")
    if agent.tools or agent.handoffs or agent.mcp_servers:
        raise UsageError(
            "the agent has tools, handoffs or servers of its own, which the framework would run; "
            "declare them as tools"
        )
    if agent.prompt is not None:
        raise UsageError(
            "the agent has a prompt that the provider keeps, which may bring tools; give instructions="
        )
    if type(agent.model) is not OpenAIResponsesModel:
        raise UsageError("give the agent an OpenAIResponsesModel, made with a client that has max_retries=0")
    said = {field.name: getattr(agent.model_settings, field.name) for field in fields(agent.model_settings)}
    _check(said, OPENAI_AGENTS)
    asks_once(getattr(agent.model, "_client", None))


def check_pydantic_agent(agent: Any) -> None:
    """UsageError for a `pydantic_ai.Agent` that could act, ask again, or be answered by another model."""
    from pydantic_ai import Agent, models
    from pydantic_ai.toolsets import FunctionToolset

    if type(agent) is not Agent:
        raise UsageError(f"give a pydantic_ai.Agent itself, not a {type(agent).__name__}")
    own = [one for one in agent.toolsets if not (isinstance(one, FunctionToolset) and not one.tools)]
    if own:
        raise UsageError(
            "the agent has tools of its own, which the framework would run; declare them as tools"
        )
    if not isinstance(agent.model, models.Model):
        raise UsageError("give the agent a model object, made with a client that has max_retries=0")
    if brought := sorted(name for name in _brought(agent) if name not in _brought(Agent())):
        raise UsageError(
            f"the agent has capabilities of its own ({', '.join(brought)}), which may bring tools or other "
            "models; declare tools, and give the agent none"
        )
    for said in (agent.model_settings, agent.model.settings):
        if callable(said):
            raise UsageError("the agent's model_settings are a function; give them as they are")
        _check(said or {}, PYDANTIC_AI)
    asks_once(getattr(agent.model, "client", None))


def _brought(agent: Any) -> set[str]:
    """The kinds of what an agent is made of beside its model; every agent has some of the framework's."""
    kinds: set[str] = set()
    agent.root_capability.apply(lambda one: kinds.add(type(one).__name__))
    return kinds


def _check(said: Mapping[str, Any], harmless: frozenset[str]) -> None:
    told = {name for name, value in said.items() if value is not None and name not in harmless}
    refused = sorted(name for name in told if not (name in _OFF and said[name] == _OFF[name]))
    if refused:
        raise UsageError(
            f"the agent's model settings say {', '.join(refused)}: what has a provider act or keep, or asks "
            "again, is not for a planner to say"
        )
