"""What is told of one item while it is worked on: its log fields, its span, its figures.

All of it is read from the order and from what is recorded of it. Arguments, results and prompts are not.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final

from fencepost import commands as c
from fencepost.clock import boottime
from fencepost.outcomes import Applied, Refused
from fencepost.subjects import Call, Run
from fencepost.telemetry import correlation, metrics, names, spans
from fencepost.tools import Tool
from fencepost_workers.parts import Parts
from fencepost_workers.role import Held, Role

_TYPES: Final = {"python": "function", "http": "extension", "mcp": "extension", "run": "extension"}
"""What the convention calls a tool of our kinds: run by the agent's own side, or by somebody else's."""


class Item:
    """One order as it is carried out."""

    def __init__(self, worker: Parts, order: c.Order, held: Held) -> None:
        self._worker = worker
        self._order = order
        self._held = held
        self.fields = _fields(order, held)
        self.ended: c.Command | None = None
        """What is recorded of it; None while it is not known, and for what came to nothing."""

    @property
    def tool(self) -> Tool | None:
        """The tool an attempt or a question is of."""
        if not isinstance(self._order, c.Send | c.Ask):
            return None
        call = self._order.call
        return self._worker.app.registry.get((call.tool, call.tool_version))

    def span(self) -> Any:
        """The span around it; a run's first is linked to the trace of whoever asked for it."""
        order = self._order
        if isinstance(order, c.Plan):
            asked = {
                names.OPERATION: names.INVOKE_AGENT,
                names.AGENT_NAME: order.run.planner,
                names.AGENT_VERSION: str(order.run.planner_version),
                names.CONVERSATION: str(order.run.id),
            }
            first = order.run.turn == 0 and order.run.failures == 0
            link = order.run.traceparent if first and order.run.root is None else None
            return spans.span(names.INVOKE_AGENT, order.run.planner, asked, link=link)
        if isinstance(order, c.Offset):
            return spans.span(names.COMPENSATE, order.forward.tool, {})
        name = names.EXECUTE_TOOL if isinstance(order, c.Send) else names.LOOKUP
        tool = self.tool
        told: dict[str, object] = {
            names.OPERATION: names.EXECUTE_TOOL,
            names.TOOL_NAME: order.call.tool,
            names.TOOL_CALL: str(order.call.id),
            names.TOOL_TYPE: _TYPES.get(tool.kind) if tool is not None else None,
        }
        return spans.span(name, order.call.tool, told, kind="client")

    def began(self) -> None:
        """Count its beginning."""
        metrics.hop("queue", self._held.waited.total_seconds())
        if isinstance(self._order, c.Send):
            metrics.attempt(self._order.call.tool, first=self._order.attempt == 1)

    def counted(self, seconds: float) -> str:
        """Count how it came out, which took so long; in a word."""
        order, command = self._order, self.ended
        outcome = outcome_of(command)
        if isinstance(order, c.Plan):
            metrics.hop("model", seconds)
            self._asked(command, outcome)
            if isinstance(command, c.RecordTurn) and outcome == "finished":
                metrics.finished(order.run.planner)
                self._child(order)
        elif isinstance(order, c.Send):
            metrics.hop(hop_of(self.tool), seconds)
            metrics.effect(order.call.tool, outcome)
        elif isinstance(order, c.Ask):
            metrics.hop("lookup", seconds)
            metrics.lookup(order.call.tool, outcome)
        return outcome

    def _asked(self, command: c.Command | None, outcome: str) -> None:
        if isinstance(command, c.RecordTurn | c.RecordPlanLost) and (model := command.said.get("model")):
            cost = command.spent.cost if command.spent is not None else None
            metrics.asked(str(model), outcome, command.said.get("tokens") or {}, cost)

    def _child(self, order: c.Plan) -> None:
        if order.run.parent is not None:
            # The ledger's time, counted on from the claim by a clock nobody sets (R6).
            grace = timedelta(seconds=self._worker.settings.planner_grace_s)
            now = order.run.ready_at - grace - timedelta(seconds=self._held.remaining(order.timeout))
            metrics.hop("child", (now - order.run.created_at).total_seconds())


@contextmanager
def working(role: Role, order: c.Order, held: Held) -> Iterator[Item]:
    """Inside, what is logged and sent belongs to this order; for a task of its own, to whose end it does.

    Whoever works on it says in `ended` what is recorded of it.
    """
    item = Item(role.worker, order, held)
    correlation.bind(**item.fields)
    item.began()
    began = boottime()
    with item.span() as span:
        try:
            yield item
        finally:
            outcome = item.counted(boottime() - began)
            span.ended(outcome, failed=outcome in _FAILED)


_FAILED: Final = frozenset({"lost", "refused", "unknown", "nothing"})


def _fields(order: c.Order, held: Held) -> dict[str, object]:
    if isinstance(order, c.Plan | c.Offset):
        return _run_fields(order.run, held) | (
            {"call": order.forward.id, "tool": order.forward.tool}
            if isinstance(order, c.Offset)
            else {"turn": order.run.turn + 1}
        )
    attempt = order.attempt if isinstance(order, c.Send) else order.call.attempts
    return _call_fields(order.call, held) | {"attempt": attempt}


def _run_fields(run: Run, held: Held) -> dict[str, object]:
    return {"tenant": run.tenant, "root": held.root or run.root or run.id, "run": run.id, **_fence(held)}


def _call_fields(call: Call, held: Held) -> dict[str, object]:
    named: dict[str, object] = {"call": call.id, "tool": call.tool, "turn": call.turn}
    return {"tenant": call.tenant, "root": held.root or call.run, "run": call.run, **named, **_fence(held)}


def _fence(held: Held) -> dict[str, object]:
    return {"fence": held.term.fence}


def outcome_of(command: c.Command | None) -> str:
    """How an item came out, in a word of a closed set."""
    match command:
        case c.RecordOutcome(outcome=Applied()):
            return "applied"
        case c.RecordOutcome(outcome=Refused()):
            return "refused"
        case c.RecordOutcome():
            return "unknown"
        case c.RecordLookup():
            return str(command.answer.answer).lower()
        case c.RecordTurn():
            return "finished" if command.finish is not None and command.objection is None else "turn"
        case c.RecordPlanLost():
            return "lost"
        case c.RecordCompensation():
            return "offset"
        case c.RequestCancel():
            return "told"
    return "nothing"


def hop_of(tool: Tool | None) -> metrics.Hop:
    """Which hop an attempt of a tool is."""
    if tool is not None and tool.memory is not None:
        return "memory"
    return "retrieval" if tool is not None and tool.grounds is not None else "tool"
