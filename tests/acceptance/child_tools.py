"""A planner of the acceptance application that asks others: they answer, err, keep silent, or debit."""

import asyncio
from datetime import timedelta
from typing import Any

from pydantic import BaseModel

from fencepost import App, Budget, Context, Contract, Effect, NotApplied, Proposal, Turn
from fencepost.joins import Join
from fencepost.tools import PER_PROPOSAL, Attempt

SECOND = timedelta(seconds=1)


class Topic(BaseModel):
    topic: str


class Seen(BaseModel):
    calls: dict[str, str]


def add(app: App) -> None:
    """Register the planners `lead` and `member`, and the tools they use."""
    app.child(
        "team.ask",
        planner="member",
        arguments=Topic,
        effect=Effect.IRREVERSIBLE,
        intent=PER_PROPOSAL,
        budget=Budget(turns=6, calls=2, attempts=8, depth=0, children=0),
        deadline=15 * SECOND,
        grace=SECOND,
        reserve=SECOND,
        reconcile_for=10 * SECOND,
        required=False,
    )

    @app.python("team.note", effect=Effect.READ, untrusted=False)
    async def note(args: Seen, attempt: Attempt) -> dict[str, Any]:
        return {"noted": len(args.calls)}

    @app.python("team.err", effect=Effect.READ, contract=Contract(), untrusted=False)
    async def err(args: Topic, attempt: Attempt) -> None:
        raise NotApplied("nobody knows")

    @app.planner("member", version=1, timeout=timedelta(seconds=2))
    async def member(context: Context) -> Turn:
        topic = context.input["topic"]
        if topic.startswith("silence"):
            await asyncio.Event().wait()
        if topic.startswith("error") and context.turn == 1:
            return Turn([Proposal("team.err", {"topic": topic}, "err")])
        if topic.startswith("debit") and context.turn == 1:
            return Turn([Proposal("bank.debit", {"reference": topic}, "debit")])
        return Turn(finish={"topic": topic})

    @app.planner("lead", version=1, timeout=timedelta(seconds=2))
    def lead(context: Context) -> Turn:
        """Ask all; note what is there once the join lets it go on; done once nothing is open."""
        asked = context.by_tool("team.ask")
        if not asked:
            given = context.input
            by = timedelta(seconds=given["by_s"]) if "by_s" in given else None
            join = Join(given.get("need"), by, given.get("rest", "cancel"))
            return Turn([Proposal("team.ask", {"topic": one}, one) for one in given["topics"]], join=join)
        if not context.by_tool("team.note"):
            seen = {call.call_id: f"{call.state}{' detached' if call.detached else ''}" for call in asked}
            return Turn([Proposal("team.note", {"calls": seen}, "note")])
        return Turn(finish={call.call_id: call.state for call in asked})
