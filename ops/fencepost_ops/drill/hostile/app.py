"""The application of hostile proposals: `fencepost_ops.drill.hostile.app:app`.

Its planner proposes those of `table.py` whose numbers its input says, at once, and then says it is done. Its
principals may use all tools: whatever refuses a proposal is not a missing grant.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from fencepost import App, Context, Proposal, Turn
from fencepost.services import DependencyOptions
from fencepost_ops.drill import script
from fencepost_ops.drill.hostile import tools
from fencepost_ops.drill.hostile.table import BENIGN, HOSTILE
from fencepost_ops.drill.services import SUFFIX

AT_ONCE: Final = 50
"""Proposals of one turn; a run's usual budget has room for them."""

app = App("hostile")
_options: DependencyOptions = {**script.TIMES, "hosts": tools.HOSTS}
tools.add(app.dependency("dedupes", f"http://dedupes{SUFFIX}", **_options))
app.allow("*", ["hostile.order", "hostile.pay", "hostile.fetch"])


@app.planner("hostile", version=1, timeout=timedelta(seconds=10))
def hostile(context: Context) -> Turn:
    """Everything it was told to try."""
    if context.turn > 1:
        return Turn(finish={"done": True})
    given: dict[str, Any] = context.input
    wanted = range(given["first"], min(given["first"] + AT_ONCE, len(HOSTILE)))
    tried = [HOSTILE[number] for number in wanted]
    return Turn(
        [
            Proposal(row.tool, row.text(context.tenant), f"{number}", row.version)
            for number, row in zip(wanted, tried, strict=True)
        ]
    )


@app.planner("benign", version=1, timeout=timedelta(seconds=10))
def benign(context: Context) -> Turn:
    """The same tools, used well."""
    if context.turn > 1:
        return Turn(finish={"done": True})
    used = BENIGN[:3]  # the fourth is of the third's order
    return Turn([Proposal(tool, text.replace("TENANT", context.tenant)) for tool, text in used])
