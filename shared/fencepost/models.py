"""Models as an application declares them: where one is asked, what it costs, how much it may be told. PURE.

No provider tells prices: a cost is computed from a table that the application keeps, by the day the answer
was recorded. Money here is whole millionths of one currency, the same for all models of an application, so
that budgets add up exactly. Token counts are the provider's own, normalised: `input` is what was neither read
from a cache nor written to one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from enum import StrEnum
from typing import Any, Final, Required, TypedDict

from fencepost.dependencies import DependencySpec
from fencepost.errors import UsageError
from fencepost.joins import Join
from fencepost.misspelt import check_fields

MILLION = 1_000_000


OURS: Final = frozenset(
    {
        # follows from the ledger
        "input",
        "instructions",
        "messages",
        "model",
        "system",
        "tools",
        # what is reserved, and read
        "max_completion_tokens",
        "max_output_tokens",
        "max_tokens",
        "n",
        "stream",
        "stream_options",
        # a provider keeps it, or leaves out of it, what only the ledger says
        "background",
        "context_management",
        "conversation",
        "previous_response_id",
        "prompt",
        "store",
        "truncation",
        # a provider acts, or is made to have the model propose
        "container",
        "function_call",
        "functions",
        "mcp_servers",
        "plugins",
        "tool_choice",
        "web_search_options",
        # another model answers
        "fallbacks",
        "models",
        "route",
    }
)
"""Parameters of a request that are no application's to say. `max_tokens` may stand for a Chat request's
`max_completion_tokens`, for servers that know no other name, as the very `max_output` that is reserved.
"""


class Wire(StrEnum):
    """The protocols models are asked by."""

    RESPONSES = "openai.responses"
    CHAT = "openai.chat"
    MESSAGES = "anthropic.messages"


@dataclass(frozen=True, slots=True)
class Price:
    """What a million tokens cost from the day `since` on, in millionths of `currency`.

    A long prompt may cost more: from `long_from` input tokens on, all of it costs `long_factor` percent.
    UsageError for negative numbers.
    """

    since: date
    input: int
    output: int
    cache_read: int | None = None
    cache_write: int | None = None
    currency: str = "USD"
    long_from: int | None = None
    long_factor: int = 100

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("input", "output", "cache_read", "cache_write", "long_from", "long_factor"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 0):
                raise UsageError(f"a price's {name} is a whole number from 0 on, not {value!r}")


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens of one answer, normalised over all providers. `reasoning` is part of `output`."""

    input: int = 0
    cache_read: int = 0
    cache_write: int = 0
    output: int = 0
    reasoning: int = 0

    @property
    def total(self) -> int:
        """All of them, each counted once."""
        return self.input + self.cache_read + self.cache_write + self.output

    def __add__(self, other: Tokens) -> Tokens:
        """Those of both."""
        return Tokens(*(getattr(self, name) + getattr(other, name) for name in self.__slots__))

    def to_json(self) -> dict[str, int]:
        """As recorded."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Spent:
    """What one model request used: `tokens`, and `cost` in millionths; `known` False: its reservation."""

    tokens: int = 0
    cost: int = 0
    known: bool = True

    def to_json(self) -> dict[str, Any]:
        """As events tell it."""
        return {"tokens": self.tokens, "cost": self.cost, **({} if self.known else {"known": False})}


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """One model at one provider, asked by one protocol; `dependency` owns its retries, breaker and limits.

    `model` is the provider's name of it; `max_output` bounds an answer's tokens, and is sent; `window` is how
    many input tokens it takes; `parameters` are sent as they are. `key` is the provider's secret, as
    `env:NAME`. `timeout` bounds a whole answer (hours are allowed), `idle` the silence in which not a byte of
    it comes; None: as long as `timeout`. The run's deadline binds all the same, and nothing else does: not
    the `per_attempt` of its dependency, which is its tools'. Without a price for the day nothing is asked
    under a budget that limits cost. UsageError for a key that stands in the code, and for parameters that are
    ours to say: `OURS`.
    """

    name: str
    wire: Wire
    model: str
    dependency: DependencySpec
    key: str = ""
    max_output: int = 4096
    window: int = 100_000
    prices: tuple[Price, ...] = ()
    parameters: Mapping[str, Any] = field(default_factory=dict)
    timeout: timedelta = timedelta(minutes=10)
    idle: timedelta | None = None

    def __post_init__(self) -> None:
        check_fields(self, f"model {self.name}")
        for name, span in (("timeout", self.timeout), ("idle", self.idle)):
            if span is not None and span <= timedelta(0):
                raise UsageError(f"model {self.name}: {name} lies above 0, not {span}")
        if self.key and not self.key.startswith("env:"):
            raise UsageError(f"model {self.name}: key names an environment variable, as env:NAME")
        older = self.wire is Wire.CHAT and self.parameters.get("max_tokens") == self.max_output
        if ours := sorted(OURS.intersection(self.parameters) - ({"max_tokens"} if older else set())):
            raise UsageError(f"model {self.name}: parameters may not say {', '.join(ours)}")
        if self.max_output < 1 or self.window < 1:
            raise UsageError(f"model {self.name}: max_output and window are whole numbers from 1 on")

    @property
    def scope(self) -> str:
        """Of its dependency: breaker and limits are shared by all models there."""
        return self.dependency.scope

    def price(self, day: date) -> Price | None:
        """The price in force on a day: the latest that is not of a later one."""
        past = [price for price in self.prices if price.since <= day]
        return max(past, key=lambda price: price.since) if past else None

    def cost(self, tokens: Tokens, day: date) -> int | None:
        """What these tokens cost that day, rounded up; None without a price."""
        price = self.price(day)
        if price is None:
            return None
        read = price.input if price.cache_read is None else price.cache_read
        write = price.input if price.cache_write is None else price.cache_write
        plain = tokens.input * price.input + tokens.output * price.output
        total = plain + tokens.cache_read * read + tokens.cache_write * write
        prompt = tokens.input + tokens.cache_read + tokens.cache_write
        percent = price.long_factor if price.long_from is not None and prompt >= price.long_from else 100
        return -(-total * percent // (100 * MILLION))

    def worst(self, window: int, day: date) -> Spent:
        """The most a request may use that tells `window` tokens at most: reserved before it is sent.

        `known` is False without a price for the day. A provider that counts more than it was told overshoots
        by the difference, which is charged.
        """
        told = min(window, self.window)
        price = self.price(day)
        dearest = 0
        if price is not None:
            rates = (price.input, price.cache_read or 0, price.cache_write or 0)
            total = told * max(rates) + self.max_output * price.output
            dearest = -(-total * max(100, price.long_factor) // (100 * MILLION))
        return Spent(told + self.max_output, dearest, known=price is not None)


@dataclass(frozen=True, kw_only=True)
class AgentSpec:
    """A planner that is a model: whom to ask, in order, with which instructions and which tools.

    After `failures_each` lost answers in a row the next of `models` is asked, with the same transcript; the
    last one keeps being asked. `tools` are names or patterns with `*` of the tools it is told about. `window`
    is how many tokens of context it is told at most: the oldest turns are left out first, the same ones in
    every rebuild.
    """

    models: tuple[ModelSpec, ...]
    instructions: str
    tools: Sequence[str] = ("*",)
    window: int = 32_000
    failures_each: int = 2
    join: Join | None = None
    """How long its turns wait for the runs they start; None: as their tools say, else for all."""

    def __post_init__(self) -> None:
        check_fields(self, "agent")

    def model(self, failures: int) -> ModelSpec:
        """Whom to ask after so many lost answers in a row."""
        return self.models[min(failures // self.failures_each, len(self.models) - 1)]

    def later(self, failures: int) -> list[tuple[int, ModelSpec]]:
        """Whom to ask after that one, each with the least number of lost answers that makes it its turn."""
        first = failures // self.failures_each + 1
        return [(n * self.failures_each, model) for n, model in enumerate(self.models) if n >= first]


class ModelOptions(TypedDict, total=False):
    """What a model may say; meanings and defaults are those of `ModelSpec`."""

    wire: Required[Wire]
    model: Required[str]
    key: str
    max_output: int
    window: int
    prices: tuple[Price, ...]
    parameters: Mapping[str, Any]
    timeout: timedelta
    idle: timedelta | None


class AgentOptions(TypedDict, total=False):
    """What else an agent may say; meanings and defaults are those of `AgentSpec`."""

    tools: Sequence[str]
    window: int
    failures_each: int
    join: Join | None


def check_agent(name: str, agent: AgentSpec) -> None:
    """UsageError for an agent that cannot be asked or paid for."""
    if not agent.models:
        raise UsageError(f"agent {name} needs one model at least")
    if agent.window < 1 or agent.failures_each < 1:
        raise UsageError(f"agent {name}: window and failures_each are whole numbers from 1 on")
    tools: object = agent.tools
    if isinstance(tools, str):
        raise UsageError(f"agent {name}: tools is a list of names or patterns, not one text")
    check_currencies(agent.models)


def check_currencies(models: Sequence[ModelSpec]) -> None:
    """UsageError for models priced in several currencies: their costs could not be added up."""
    if len(found := {price.currency for model in models for price in model.prices}) > 1:
        raise UsageError(f"models are priced in {', '.join(sorted(found))}; an application has one currency")
