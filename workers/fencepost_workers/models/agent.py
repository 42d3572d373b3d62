"""A planner that is a model: what it is told, what it is asked, and what its answer comes to.

It holds no state between turns and decides nothing: its turn is validated like any other's, its claim that
all is done is judged by the run's verify function and by what is open. An answer that is no turn is lost, and
what it cost is told where the provider said so; where nobody knows, its reservation is charged.
"""

from __future__ import annotations

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from typing import Any, Final

from fencepost.canonical import sanitize
from fencepost.errors import UsageError
from fencepost.models import AgentSpec, ModelSpec, Spent, Tokens, Wire
from fencepost.outcomes import told
from fencepost.states import StopReason
from fencepost.telemetry import names, spans
from fencepost.tools import Context, Proposal, Tool, Turn
from fencepost_workers.models.answers import TURNS, Answer, Ending, word
from fencepost_workers.models.declared import Declared, declare
from fencepost_workers.models.prompt import Prompt, going_on, prompt, repaired
from fencepost_workers.models.providers import Heard, KeyUnavailable, Providers

STOPS: Final[Mapping[Ending, StopReason]] = {
    Ending.REFUSED: StopReason.REFUSED,
    Ending.CONTENT_FILTER: StopReason.REFUSED,
    Ending.HOSTED: StopReason.PLANNER_FAILED,
    Ending.CONTEXT_EXCEEDED: StopReason.PLANNER_FAILED,
}
"""Endings after which nobody is asked again: the answer would be the same, or asking would act again."""
PAUSES: Final = 8
"""How often in one turn a paused answer is gone on with."""
AGAIN: Final = 64
"""Tokens that telling an answer again takes beside what it took to make it, at most."""
UNFIT: Final = frozenset({"http_400", "http_422"})
"""What a provider answers to a request that it does not take, however often the same bytes are sent."""


@dataclass(frozen=True, slots=True)
class Asking:
    """The circumstances of one request: how many answers in a row were lost before it, how many seconds it
    may take, and the ledger's time.
    """

    failures: int
    seconds: float
    now: datetime


@dataclass(frozen=True, kw_only=True)
class ModelTurn(Turn):
    """A model's turn, and what is recorded beside it."""

    spent: Spent
    said: Mapping[str, Any]


class NoTurn(Exception):
    """A model gave no turn. The fields are those of RecordPlanLost."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        spent: Spent | None,
        said: Mapping[str, Any],
        stop: StopReason | None = None,
        retry_after: timedelta | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.spent = spent
        self.said = said
        self.stop = stop
        self.retry_after = retry_after


class ModelPlanner(ABC):
    """A planner that asks a model: what that may use is held before, and its turn tells what it used."""

    @property
    @abstractmethod
    def tools(self) -> Mapping[str, Tool]:
        """The tools it is told about: the only ones it can propose."""

    @abstractmethod
    async def ask(self, context: Context, asking: Asking) -> ModelTurn:
        """Its next turn. Raises NoTurn where there is none."""


class AgentPlanner(ModelPlanner):
    """Asks the models of one agent."""

    def __init__(self, agent: AgentSpec, tools: Mapping[str, Tool], providers: Providers) -> None:
        self.agent = agent
        self.declared: Declared = declare(tools, agent.tools)
        self._providers = providers

    @property
    def tools(self) -> Mapping[str, Tool]:
        """See ModelPlanner."""
        return self.declared.known

    async def ask(self, context: Context, asking: Asking) -> ModelTurn:
        """See ModelPlanner."""
        model = self.agent.model(asking.failures)
        made = prompt(model, self.agent, self.declared, context)
        if (long := too_long(self.agent, model, made, said_of(model, made, None), asking)) is not None:
            raise long
        try:
            provider = "anthropic" if model.wire is Wire.MESSAGES else "openai"
            with spans.span(names.CHAT, model.model, asked_of(model, provider), kind="client") as span:
                heard = await self._answered(model, made, asking)
                told_of(span, heard)
        except KeyUnavailable as error:
            raise _unsent("secret_unavailable", error, model, made) from None
        except UsageError as error:
            raise _unsent("not_started", error, model, made) from None
        return self._turn(model, made, heard, asking)

    async def _answered(self, model: ModelSpec, made: Prompt, asking: Asking) -> Heard:
        """Its answer, gone on with where its provider paused: as far as time and what is held for it go.

        A request of Chat that is refused for its form, which costs nothing, is asked in the form that it
        should have had.
        """
        clock = asyncio.get_running_loop().time
        until = clock() + asking.seconds
        heard = await self._providers.ask(model, made.body, asking.seconds, asking.now)
        if model.wire is Wire.CHAT and heard.answer.code in UNFIT and heard.free and until > clock():
            form = repaired(made.body, heard.answer.why)
            if form is not None:
                again = await self._providers.ask(model, form, until - clock(), asking.now)
                heard = replace(again, repaired=True)
        latest = heard.answer.tokens
        for _ in range(PAUSES):
            room = min(self.agent.window, model.window)
            body = resumed(model, made.body, heard.answer, latest, room)
            if body is None or until <= clock():
                break
            more = await self._providers.ask(model, body, until - clock(), asking.now)
            if more.answer.code in UNFIT:  # asked for the whole once more, it may do
                break
            heard, latest = joined(heard, more), more.answer.tokens
        return heard

    def _turn(self, model: ModelSpec, made: Prompt, heard: Heard, asking: Asking) -> ModelTurn:
        answer, said = heard.answer, said_of(model, made, heard)
        if answer.ending not in TURNS:
            raise lost_of(self.agent, model, heard, said, asking)
        known = self.declared
        proposals = [
            Proposal(known.tool(c.name), known.arguments(c.name, c.arguments), c.label) for c in answer.calls
        ]
        return ModelTurn(
            proposals,
            answer.text if answer.ending is Ending.CLAIMED else None,
            dict(answer.usage),
            raw_of(model, answer),
            spent=used_of(model, self.agent, answer, asking.now.date()),
            said=said,
        )


def resumed(
    model: ModelSpec, body: Mapping[str, Any], answer: Answer, latest: Tokens | None, room: int
) -> Mapping[str, Any] | None:
    """The request that has a paused answer go on where it stands; None where there is no such request, or it
    might use more than is left of what is held for the turn: `room` tokens of input and the longest answer.

    `latest` is what the last request used; the next tells that again, and what came of it.
    """
    used, left = answer.tokens, model.max_output - (answer.tokens.output if answer.tokens else 0)
    if answer.ending is not Ending.PAUSED or not answer.parts or used is None or latest is None:
        return None
    if left < 1 or (used.total - used.output) + latest.total + AGAIN > room:
        return None
    return going_on(body, answer.parts, left)


def joined(before: Heard, more: Heard) -> Heard:
    """A paused answer and what it went on with, as one: what both used together, and all that was said."""
    first, then = before.answer, more.answer
    tokens = None
    if first.tokens is not None and (then.tokens is not None or more.free):
        tokens = first.tokens + (then.tokens or Tokens())
    text, parts = then.text, then.parts
    if then.ending in TURNS:
        text = "".join(word(part.get("text")) for part in first.parts) + then.text
        parts = (*first.parts, *(then.parts or ({"text": then.text},)))
    elif then.ending is Ending.PAUSED and then.parts:
        parts = (*first.parts, *then.parts)
    ending = then.ending
    if ending is Ending.EMPTY and text.strip():
        ending = Ending.CLAIMED
    answer = replace(then, ending=ending, text=text, parts=parts, tokens=tokens)
    return replace(more, answer=answer, free=before.free and more.free, resumed=before.resumed + 1)


def too_long(
    agent: AgentSpec, model: ModelSpec, made: Prompt, said: Mapping[str, Any], asking: Asking
) -> NoTurn | None:
    """Why nobody is asked at all: what was reserved is for a request within the window, and in time."""
    window = min(agent.window, model.window)
    if made.tokens > window:
        return NoTurn(
            str(Ending.CONTEXT_EXCEEDED),
            f"model {model.name}: what it has to be told takes about {made.tokens} tokens, and its window is "
            f"{window}; give the run a shorter input, or the agent a wider window",
            spent=Spent(),
            said=said,
            stop=_stop(agent, Ending.CONTEXT_EXCEEDED, asking.failures),
        )
    if asking.seconds <= 0:
        return NoTurn("late", "no time was left to ask", spent=Spent(), said=said)
    return None


def lost_of(
    agent: AgentSpec, model: ModelSpec, heard: Heard, said: Mapping[str, Any], asking: Asking
) -> NoTurn:
    """What is recorded of an answer that is no turn."""
    answer = heard.answer
    code = answer.code if answer.ending is Ending.FAILED else str(answer.ending)
    unfit = f" its provider does not take the request ({code}):" if code in UNFIT else ""
    return NoTurn(
        code,
        f"model {model.name}:{unfit} {answer.why or answer.ending}",
        spent=_lost(model, heard, asking.now.date()),
        said=said,
        stop=_stop(agent, answer.ending, asking.failures, code),
        retry_after=heard.retry_after,
    )


def _stop(agent: AgentSpec, ending: Ending, failures: int, code: str = "") -> StopReason | None:
    """Why nobody is asked again; None where somebody is. Another model may take what one does not."""
    if code in UNFIT and not agent.later(failures):
        return StopReason.PLANNER_FAILED
    if ending is Ending.CONTEXT_EXCEEDED:
        window = agent.model(failures).window
        if any(model.window > window for _, model in agent.later(failures)):
            return None
    return STOPS.get(ending)


def asked_of(model: ModelSpec, provider: str) -> Mapping[str, object]:
    """What a span says of a request."""
    return {names.OPERATION: names.CHAT, names.REQUEST_MODEL: model.model, names.PROVIDER: provider}


def told_of(span: spans.Span, heard: Heard) -> None:
    """What a span says of its answer: no word of it."""
    answer, tokens = heard.answer, heard.answer.tokens
    # As the convention counts: what was read from a cache was input all the same.
    read = None if tokens is None else tokens.input + tokens.cache_read + tokens.cache_write
    span.convention(
        {
            names.RESPONSE_ID: answer.response or None,
            names.FINISH_REASONS: (answer.stop,) if answer.stop else None,
            names.INPUT_TOKENS: read,
            names.OUTPUT_TOKENS: None if tokens is None else tokens.output,
        }
    )
    span.ended(answer.code or str(answer.ending), failed=answer.ending not in TURNS)


def _unsent(code: str, error: Exception, model: ModelSpec, made: Prompt) -> NoTurn:
    return NoTurn(code, sanitize(told(error), 500), spent=Spent(), said=said_of(model, made, None))


def used_of(model: ModelSpec, agent: AgentSpec, answer: Answer, day: date) -> Spent:
    """What a turn used; where the provider did not say, the worst that was held for it."""
    if answer.tokens is None:
        return replace(model.worst(agent.window, day), known=False)
    return Spent(answer.tokens.total, model.cost(answer.tokens, day) or 0)


def _lost(model: ModelSpec, heard: Heard, day: date) -> Spent | None:
    """What an answer that is no turn used: None where nobody knows."""
    if (tokens := heard.answer.tokens) is not None:
        return Spent(tokens.total, model.cost(tokens, day) or 0)
    return Spent() if heard.free else None


def said_of(model: ModelSpec, made: Prompt, heard: Heard | None) -> dict[str, Any]:
    """What is kept in the event: whom was asked what, how it ended, and under which ids to find it there."""
    kept: dict[str, Any] = {
        "model": model.name,
        "wire": str(model.wire),
        "asked": model.model,
        "prompt": made.digest,
        "estimated": made.tokens,
        "left_out": made.left_out,
        "cut": made.cut,
    }
    if heard is None:
        return kept
    answer = heard.answer
    ids = {"request": heard.request, "response": answer.response, "stop": answer.stop}
    kept |= {name: text for name, text in ids.items() if text}
    if answer.tokens is not None:
        kept["tokens"] = answer.tokens.to_json()
    kept |= {"resumed": heard.resumed} if heard.resumed else {}
    return kept | ({"repaired": True} if heard.repaired else {})


def raw_of(model: ModelSpec, answer: Answer, wire: str = "") -> str:
    """What the model said beside its calls: told again to whoever is asked for the next turn."""
    said = {
        "wire": wire or str(model.wire),
        "model": model.model,
        "response": answer.response,
        "stop": answer.stop,
        "text": answer.text,
        "parts": [dict(part) for part in answer.parts],
    }
    return json.dumps(said, ensure_ascii=True)
