"""Queue `planner`: rebuild the context from the ledger, ask the planner, record its turn (R5)."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

from fencepost import commands as c
from fencepost import markers
from fencepost.budgets import budget_of
from fencepost.canonical import sanitize
from fencepost.children import join_of
from fencepost.clock import uuid7
from fencepost.ledger import reads, signals, turns
from fencepost.ledger.reads import Prepared
from fencepost.models import AgentSpec, Spent
from fencepost.outcomes import result_text, told
from fencepost.planners import FUNCTION_TIMEOUT, PlannerSpec, pins
from fencepost.progress import stuck
from fencepost.proposals import WITHHELD, Rejected, Validated, validate
from fencepost.states import Queue, StopReason
from fencepost.subjects import Run
from fencepost.testing import fault
from fencepost.tools import Context, Tool, Turn
from fencepost.views import Signal
from fencepost_workers import models
from fencepost_workers.attempts import expect, payload
from fencepost_workers.contexts import Contexts, Known, views
from fencepost_workers.parts import Parts
from fencepost_workers.role import Held, Message, Role

log = logging.getLogger(__name__)

MESSAGE_CHARS = 500

_Told = tuple[str, int, tuple[tuple[str, int], ...]]
"""A planner, its version, and the versions of tools that a run of it keeps: a model is told of those."""


class Planner(Role):
    """Plans runs. The context holds exactly one entry per call and is the same on every rebuild."""

    queue = Queue.PLANNER

    def __init__(self, worker: Parts) -> None:
        super().__init__(worker)
        self._grace = timedelta(seconds=worker.settings.planner_grace_s)
        self._contexts: dict[str, Known] = {}  # by the owner of the term
        self._damaged: dict[str, str] = {}  # what of them is not what was recorded
        self._heard: dict[str, tuple[Signal, ...]] = {}  # messages to the run, where it has any
        self._calls = Contexts()
        self._planners: dict[_Told, models.Planner | models.ModelPlanner] = {}
        self._lock = threading.Lock()
        if asked := worker.app.models.values():
            models.prepare(model.wire for model in asked)

    def lease_ttl(self, prepared: Prepared) -> timedelta:
        """The longest answer of the planner and its grace."""
        spec = self._spec(prepared)
        return (spec.longest if spec is not None else FUNCTION_TIMEOUT) + self._grace

    def claim(self, prepared: Prepared, message: Message, term: c.Term, token: str) -> c.ClaimRun | None:
        """The claim of a run."""
        spec = self._spec(prepared)
        cap = spec.cap if spec is not None else FUNCTION_TIMEOUT
        return c.ClaimRun(**self.named(prepared, message, term, token), cap=cap, grace=self._grace)

    def _spec(self, prepared: Prepared) -> PlannerSpec | None:
        return self.worker.app.planner_of(prepared.planner or "", prepared.planner_version or 0)

    def scope_of(self, prepared: Prepared) -> str:
        """The dependency of the model that will be asked; none for a planner that is no model."""
        agent = self.worker.app.agent_of(prepared.planner or "", prepared.planner_version or 0)
        return agent.model(prepared.failures).scope if agent is not None else ""

    def gather(self, taken: Sequence[tuple[c.Order, Held]]) -> None:
        """The contexts of all claimed runs, in one statement, and in another what models have said in theirs;
        in none where no run has had a call or an answer.
        """
        fault("planner.after_claim")
        runs = {held.term.owner: order.run for order, held in taken if isinstance(order, c.Plan)}
        known = {owner: self._calls.known(run) for owner, run in runs.items()}
        damaged: dict[str, str] = {}
        called = [(run.tenant, run.id, known[owner].version) for owner, run in runs.items() if run.calls]
        spoken = [
            (run.tenant, run.id, known[owner].heard) for owner, run in runs.items() if self._has_said(run)
        ]
        sent = [(o.run.tenant, o.run.id, o.signals) for o, _ in taken if isinstance(o, c.Plan) and o.signals]
        heard: dict[tuple[str, UUID], tuple[Signal, ...]] = {}
        if called or spoken or sent:
            with self.worker.pool.reading() as connection:
                heard = signals.read_signals(connection, sent) if sent else {}
                read = reads.context_calls(connection, called) if called else {}
                said = turns.context_turns(connection, spoken) if spoken else {}
            for owner, run in runs.items():
                news, words = read.get((run.tenant, run.id), ()), said.get((run.tenant, run.id), ())
                known[owner] = known[owner].grown(news).told(words)
                if (damage := next((d for one in (*news, *words) if (d := one.damaged)), None)) is not None:
                    damaged[owner] = damage
                else:
                    self._calls.keep(run, known[owner])
        with self._lock:
            self._contexts.update(known)
            self._damaged.update(damaged)
            owners = {(run.tenant, run.id): owner for owner, run in runs.items()}
            self._heard.update({owners[key]: messages for key, messages in heard.items()})

    def _has_said(self, run: Run) -> bool:
        """Whether it was asked before, and its planner is a model: nobody else is told what was said."""
        if not run.turn and not run.failures:
            return False
        return self._agent(run) is not None

    def _agent(self, run: Run) -> AgentSpec | None:
        return self.worker.app.agent_of(run.planner, run.planner_version)

    async def act(self, order: c.Order, held: Held) -> c.Command | None:
        """Ask for the next turn, validate what it proposes, and say what to record."""
        plan = expect(order, c.Plan)
        run = plan.run
        with self._lock:
            known = self._contexts.pop(held.term.owner, None)
            damage = self._damaged.pop(held.term.owner, None)
            heard = self._heard.pop(held.term.owner, ())
        if known is None:
            raise LookupError(f"the context of run {run.id} was not gathered; its takeover plans it")
        agent = self._agent(run)
        scope = agent.model(run.failures).scope if agent is not None else ""
        fields = self.stamped(run.tenant, run.id) | {"term": held.term, "scope": scope}
        if damage is not None:  # no planner decides on what nobody recorded
            log.error("run %s is not planned: %s", run.id, damage)
            return c.RecordPlanLost(**fields, code="damaged_result", message=damage, spent=Spent())
        app = self.worker.app

        def known_tool(name: str, version: int) -> Tool | None:
            return app.registry.get((name, version))

        spec = app.find_planner(run.planner, run.planner_version)
        context = context_of(run, known, known_tool, heard)
        try:
            kept = pins(app.registry, ((call.tool, call.tool_version) for call in known.calls))
            planner = self._planner(spec, kept)
            if (still := await self._still(run, known, known_tool)) is not None:
                why = StopReason.NO_PROGRESS
                return c.RecordPlanLost(**fields, code=why, message=still, stop=why, spent=Spent())
            with self.worker.interruptible():
                turn, tools = await self._proposed(plan, held, planner, context, kept)
            fault("planner.after_model")
            # It was read after the claim, so all that had happened until then is in it.
            seen = {"seen": max(run.seq, known.version)}
            return self._recorded(plan, fields | seen, spec, context, turn, tools)
        except models.NoTurn as lost:
            log.info("run %s: a model gave no turn: %s", run.id, lost.code)
            return _no_turn(lost, fields)
        except asyncio.CancelledError:
            if not self.worker.slots.draining:
                raise
            code, message = c.DRAINED, "the worker was told to end before there was an answer"
        except TimeoutError:
            code, message = "timeout", f"no answer within {plan.timeout.total_seconds():g} s"
        except Exception as error:
            log.warning("planner %s failed on run %s", run.planner, run.id, exc_info=True)
            code, message = "planner_error", sanitize(told(error), MESSAGE_CHARS)
        return c.RecordPlanLost(**fields, code=code, message=message)

    async def _still(self, run: Run, known: Known, tool: Callable[[str, int], Tool | None]) -> str | None:
        """Why the run makes no progress, if it makes none; beside the loop: there may be much to compare."""
        repeats = budget_of(run.request).repeats
        if len(known.calls) < repeats:  # of fewer none is
            return None
        ask = partial(stuck, known.calls, repeats, tool)
        return await asyncio.get_running_loop().run_in_executor(self.worker.executor, ask)

    async def _proposed(
        self,
        plan: c.Plan,
        held: Held,
        planner: models.Planner | models.ModelPlanner,
        context: Context,
        kept: Mapping[str, int],
    ) -> tuple[Turn, Mapping[str, Tool]]:
        """The next turn, and the tools it may propose; TimeoutError, NoTurn, or what the planner raises."""
        left = held.remaining(plan.timeout)
        if isinstance(planner, models.ModelPlanner):
            # The ledger's time, counted on from the claim by a clock nobody sets (R6).
            now = plan.run.ready_at - self._grace - timedelta(seconds=left)
            asking = models.Asking(plan.run.failures, left, now)
            return await planner.ask(context, asking), planner.tools
        if left <= 0:
            raise TimeoutError
        async with asyncio.timeout(left):
            return await planner.propose(context), self._tools(kept)

    def _tools(self, kept: Mapping[str, int]) -> Mapping[str, Tool]:
        """The newest version of each tool, or the one that the run keeps."""
        app = self.worker.app
        return app.tools | {name: app.registry[name, version] for name, version in kept.items()}

    def _planner(self, spec: PlannerSpec, kept: Mapping[str, int]) -> models.Planner | models.ModelPlanner:
        told = tuple(sorted(kept.items())) if spec.asked is not None else ()
        key = (spec.name, spec.version, told)
        if key not in self._planners:
            worker = self.worker
            asked = models.model_planner_for(spec, self._tools(kept), worker.models)
            self._planners[key] = asked or models.planner_for(spec, worker.executor)
        return self._planners[key]

    def _recorded(
        self,
        order: c.Plan,
        fields: Mapping[str, Any],
        spec: PlannerSpec,
        context: Context,
        turn: Turn,
        tools: Mapping[str, Tool],
    ) -> c.RecordTurn:
        run, number = order.run, order.run.turn + 1
        proposals = tuple(
            validate(p, tools=tools, tenant=run.tenant, run_id=str(run.id), turn=number, ordinal=n)
            for n, p in enumerate(turn.proposals)
        )
        finish = payload(result_text(turn.finish)) if turn.finish is not None else None
        answer = payload(_transcript(turn, proposals))
        objection = _objection(spec, context) if finish is not None else None
        return c.RecordTurn(
            **fields,
            turn=number,
            proposals=proposals,
            call_ids=tuple(uuid7() for _ in proposals),
            finish=finish,
            objection=objection,
            answer=answer,
            payloads=(answer, finish) if finish is not None else (answer,),
            spent=turn.spent if isinstance(turn, models.ModelTurn) else None,
            said=turn.said if isinstance(turn, models.ModelTurn) else {},
            markers=tuple(sorted(context.met)),
            signals=len(context.signals),
            join=join_of(
                turn.join,
                spec.agent.join if spec.agent is not None else None,
                (tools.get(p.tool) for p in turn.proposals),
            ),
        )

    def recorded(self) -> None:
        """After the turn's COMMIT."""
        fault("planner.after_record")


def _no_turn(lost: models.NoTurn, fields: Mapping[str, Any]) -> c.RecordPlanLost:
    return c.RecordPlanLost(
        **fields,
        code=lost.code,
        message=sanitize(lost.message, MESSAGE_CHARS),
        spent=lost.spent,
        said=lost.said,
        stop=lost.stop,
        retry_after=lost.retry_after,
    )


def _transcript(turn: Turn, judged: Sequence[Validated | Rejected]) -> str:
    """What the planner said; but not what may be a secret, which its own words would repeat."""
    withheld = [isinstance(one, Rejected) and one.arguments == WITHHELD for one in judged]
    proposals = [
        {"tool": p.tool, "call_id": p.call_id, "arguments": WITHHELD if hidden else p.arguments}
        for p, hidden in zip(turn.proposals, withheld, strict=True)
    ]
    raw = WITHHELD if any(withheld) else turn.raw
    return result_text({"raw": raw, "usage": dict(turn.usage), "proposals": proposals, "finish": turn.finish})


def _objection(spec: PlannerSpec, context: Context) -> str | None:
    """What the verify function has against a claimed completion; a judge that breaks has not agreed."""
    if spec.verify is None:
        return None
    try:
        verdict = spec.verify(context)
    except Exception as error:  # noqa: BLE001 - the judge is the application's code
        return told(error)
    if verdict is True:
        return None
    said = verdict if isinstance(verdict, str) and verdict else "the run's verify function said no"
    return sanitize(said, MESSAGE_CHARS)


def context_of(
    run: Run, known: Known, tool: Callable[[str, int], Tool | None], heard: tuple[Signal, ...] = ()
) -> Context:
    """The planner's context, from the ledger alone: one entry per forward call, in the order proposed."""
    return Context(
        run_id=str(run.id),
        tenant=run.tenant,
        principal=run.principal,
        input=json.loads(run.request)["input"],
        turn=run.turn + 1,
        calls=views(known.calls, tool),
        deadline=run.deadline,
        tainted=run.tainted is not None,
        turns=known.turns,
        lost=known.lost,
        markers=markers.read(run.markers),
        signals=heard,
    )
