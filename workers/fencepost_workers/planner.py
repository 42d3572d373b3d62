"""Queue `planner`: rebuild the context from the ledger, ask the planner, record its turn. The model proposes (R5)."""

from __future__ import annotations

import asyncio
import inspect
import json
import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from fencepost import commands as c
from fencepost.app import PlannerSpec
from fencepost.canonical import sanitize
from fencepost.clock import uuid7
from fencepost.ledger import reads
from fencepost.ledger.reads import ContextData, Prepared
from fencepost.outcomes import result_text, told
from fencepost.proposals import validate
from fencepost.states import Queue
from fencepost.testing import fault
from fencepost.tools import CallView, Context, Turn, load_result
from fencepost_workers.attempts import payload
from fencepost_workers.models.scripted import ScriptedPlanner
from fencepost_workers.step import Held, Message
from fencepost_workers.worker import Worker


class Planner:
    """Plans runs. The context holds exactly one result per call and is the same on every rebuild."""

    queue = Queue.PLANNER

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._cap = timedelta(seconds=worker.settings.planner_cap_s)
        self._grace = timedelta(seconds=worker.settings.planner_grace_s)
        self._contexts: dict[UUID, ContextData] = {}
        self._lock = threading.Lock()
        self._scripted: dict[tuple[str, int], ScriptedPlanner] = {}

    def lease_ttl(self, prepared: Prepared) -> timedelta:
        return self._cap + self._grace

    def claim(self, prepared: Prepared, message: Message, term: c.Term) -> c.ClaimRun | None:
        tenant, subject, generation = message
        return c.ClaimRun(
            id=uuid7(),
            tenant=tenant,
            run=subject,
            rand=self._worker.rand(),
            subject=subject,
            generation=generation,
            worker=self._worker.token,
            term=term,
            cap=self._cap,
            grace=self._grace,
        )

    def gather(self, orders: Sequence[c.Order]) -> None:
        fault("planner.after_claim")
        wanted = [(order.run.tenant, order.run.id) for order in orders if isinstance(order, c.Plan)]
        with self._worker.pool.connection() as connection:
            found = reads.plan_contexts(connection, wanted)
        with self._lock:
            self._contexts.update(found)

    async def act(self, order: c.Order, held: Held) -> c.Command | None:
        assert isinstance(order, c.Plan)
        run = order.run
        with self._lock:
            data = self._contexts.pop(run.id)
        spec = self._worker.app.find_planner(run.planner, run.planner_version)
        try:
            turn = await asyncio.wait_for(self._propose(spec, context_of(data)), held.remaining(order.timeout))
            fault("planner.after_model")
            return self._recorded_turn(order, held, spec, data, turn)
        except TimeoutError:
            code, message = "timeout", f"no answer within {order.timeout.total_seconds():g} s"
        except Exception as error:  # noqa: BLE001 - a planner is the application's code, or a model's mood
            code, message = "planner_error", told(error)
        return c.RecordPlanLost(
            id=uuid7(),
            tenant=run.tenant,
            run=run.id,
            rand=self._worker.rand(),
            term=held.term,
            code=code,
            message=sanitize(message, 500),
        )

    async def _propose(self, spec: PlannerSpec, context: Context) -> Turn:
        if spec.script is not None:
            key = (spec.name, spec.version)
            planner = self._scripted.get(key) or ScriptedPlanner.load(spec.name, spec.script)
            self._scripted[key] = planner
            return await planner.propose(context)
        assert spec.plan is not None
        if inspect.iscoroutinefunction(spec.plan):
            answer: Any = await spec.plan(context)
        else:
            answer = await asyncio.get_running_loop().run_in_executor(self._worker.executor, spec.plan, context)
        if not isinstance(answer, Turn):
            raise TypeError(f"planner {spec.name} gave a {type(answer).__name__}, not a Turn")
        return answer

    def _recorded_turn(
        self, order: c.Plan, held: Held, spec: PlannerSpec, data: ContextData, turn: Turn
    ) -> c.RecordTurn:
        run, number = order.run, order.run.turn + 1
        tools = self._worker.app.tools
        proposals = tuple(
            validate(p, tools=tools, tenant=run.tenant, run_id=str(run.id), turn=number, ordinal=n)
            for n, p in enumerate(turn.proposals)
        )
        finish = payload(result_text(turn.finish)) if turn.finish is not None else None
        answer = payload(_transcript(turn))
        return c.RecordTurn(
            id=uuid7(),
            tenant=run.tenant,
            run=run.id,
            rand=self._worker.rand(),
            term=held.term,
            turn=number,
            proposals=proposals,
            call_ids=tuple(uuid7() for _ in proposals),
            finish=finish,
            objection=_objection(spec, context_of(data)) if finish is not None else None,
            answer=answer,
            payloads=(answer, finish) if finish is not None else (answer,),
        )

    def evidence(self, command: c.Command) -> c.Command | None:
        return None  # a late answer of a planner is only a lost cost; whoever took over has asked anew

    def recorded(self) -> None:
        fault("planner.after_record")


def _transcript(turn: Turn) -> str:
    proposals = [{"tool": p.tool, "call_id": p.call_id, "arguments": p.arguments} for p in turn.proposals]
    kept = {"raw": turn.raw, "usage": dict(turn.usage), "proposals": proposals, "finish": turn.finish}
    return result_text(kept)


def _objection(spec: PlannerSpec, context: Context) -> str | None:
    """What the run's verify function has against a claimed completion; a judge that breaks has not agreed."""
    if spec.verify is None:
        return None
    try:
        verdict = spec.verify(context)
    except Exception as error:  # noqa: BLE001 - the judge is the application's code
        return told(error)
    if verdict is True:
        return None
    return sanitize(verdict, 500) if isinstance(verdict, str) and verdict else "the run's verify function said no"


def context_of(data: ContextData) -> Context:
    """The planner's context, from the ledger alone: one entry per call, in the order proposed."""
    run = data.run
    calls = tuple(
        CallView(
            call_id=call.label,
            tool=call.tool,
            arguments=load_result(arguments),
            state=str(call.state),
            result=load_result(result.decode("utf-8", "surrogatepass")) if result is not None else None,
            error=call.error,
            receipt=call.receipt,
        )
        for call, arguments, result in data.calls
        if call.compensates is None
    )
    return Context(
        run_id=str(run.id),
        tenant=run.tenant,
        principal=run.principal,
        input=json.loads(run.request)["input"],
        turn=run.turn + 1,
        calls=calls,
        deadline=run.deadline,
    )
