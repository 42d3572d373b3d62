"""A tool of the acceptance application that persons approve, and a planner that never says the same twice."""

from datetime import timedelta
from pathlib import Path

from fencepost import App, Context, Proposal, Turn
from fencepost.authority import AllowList, Grant

PREFIX = "approved."
ENGINE = AllowList((Grant("svc:*", ("approved.debit",), approvals=1, approvers=("person:*",)),))
"""The usual engine, for these tools."""


def add(app: App, folder: Path) -> None:
    """Register the planner `fickle`, which wants a hundred times more whenever it is asked anew."""

    @app.planner("fickle", version=1, timeout=timedelta(seconds=2))
    def fickle(context: Context) -> Turn:
        if context.turn > 1:
            return Turn(finish={call.call_id: [call.state, call.error] for call in context.calls})
        asked = folder / f"fickle-{context.run_id}"
        with asked.open("a") as book:
            book.write("asked\n")
        minor = 10 * 100 ** (len(asked.read_text().split()) - 1)
        arguments = {"reference": context.input["reference"], "minor": minor}
        return Turn([Proposal("approved.debit", arguments, "pay")])
