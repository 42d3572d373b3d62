"""What is told of one item while it is worked on: its log fields, its span, its figures.

All of it is read from the order and from what is recorded of it. Arguments, results and prompts are not.
"""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Final, Self

from fencepost import commands as c
from fencepost.clock import boottime
from fencepost.outcomes import Applied, Refused
from fencepost.telemetry import correlation, metrics, names, spans
from fencepost.tools import Tool
from fencepost_workers.parts import Parts
from fencepost_workers.role import Held, Role

log = logging.getLogger(__name__)

_TYPES: Final = {"python": "function", "http": "extension", "mcp": "extension", "run": "extension"}
"""What the convention calls a tool of our kinds: run by the agent's own side, or by somebody else's."""


class Item:
    """One order as it is carried out: inside, and to the end of its task, what is logged and sent
    belongs to it. Whoever works on it says in `ended` what is recorded of it.
    """

    __slots__ = ("_began", "_held", "_open", "_order", "_worker", "ended")

    def __init__(self, worker: Parts, order: c.Order, held: Held) -> None:
        self._worker = worker
        self._order = order
        self._held = held
        self._began = 0.0
        self._open: tuple[AbstractContextManager[spans.Span], spans.Span] | None = None
        self.ended: c.Command | None = None
        """What is recorded of it; None while it is not known, and for what came to nothing."""

    def __enter__(self) -> Self:
        correlation.bind(**_fields(self._order, self._held))
        if spans.recording() or metrics.on():  # every item of the fleet comes by here
            try:
                self._begin()
            except Exception:  # what is told of an item never harms it
                log.exception("the span of an item could not be begun")
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if self._open is None:
            return
        around, span = self._open
        try:
            outcome = self._counted(boottime() - self._began)
            span.ended(outcome, failed=outcome in _FAILED)
            around.__exit__(None, None, None)
        except Exception:
            log.exception("the span of an item could not be ended")

    def _begin(self) -> None:
        metrics.hop("queue", self._held.waited.total_seconds())
        if isinstance(self._order, c.Send):
            metrics.attempt(self._order.call.tool, first=self._order.attempt == 1)
        self._began = boottime()
        around = self._span()
        self._open = around, around.__enter__()

    @property
    def tool(self) -> Tool | None:
        """The tool an attempt or a question is of."""
        if not isinstance(self._order, c.Send | c.Ask):
            return None
        call = self._order.call
        return self._worker.app.registry.get((call.tool, call.tool_version))

    def _span(self) -> AbstractContextManager[spans.Span]:
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

    def _counted(self, seconds: float) -> str:
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


def working(role: Role, order: c.Order, held: Held) -> Item:
    """What is worked on; see `Item`."""
    return Item(role.worker, order, held)


_FAILED: Final = frozenset({"lost", "refused", "unknown", "nothing"})


def _fields(order: c.Order, held: Held) -> dict[str, object]:
    fence = held.term.fence
    if isinstance(order, c.Plan | c.Offset):
        run = order.run
        root = held.root or run.root or run.id
        told: dict[str, object] = {"tenant": run.tenant, "root": root, "run": run.id, "fence": fence}
        if isinstance(order, c.Offset):
            return told | {"call": order.forward.id, "tool": order.forward.tool}
        told["turn"] = run.turn + 1
        return told
    call = order.call
    return {
        "tenant": call.tenant,
        "root": held.root or call.run,
        "run": call.run,
        "turn": call.turn,
        "call": call.id,
        "tool": call.tool,
        "attempt": order.attempt if isinstance(order, c.Send) else call.attempts,
        "fence": fence,
    }


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
