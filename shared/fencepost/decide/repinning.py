"""A person moves a run to another version of its planner, where nobody knows the one it began by; or has the
same asked once more, where the run waits for that.
"""

from __future__ import annotations

from fencepost.clock import rfc3339
from fencepost.commands import Answer, Denied, Done, Gone, Repin
from fencepost.decide.fold import Fold, Presented
from fencepost.decide.stopping import asking, settled
from fencepost.events import EventType
from fencepost.states import RUN_ENDS

E = EventType


def repin(fold: Fold, command: Repin) -> Answer:
    """From its next turn on another version plans it; whoever plans it now has planned in vain."""
    run = fold.run
    if run.status in RUN_ENDS:
        return Gone()
    if not fold.forward:
        return Denied(f"the run is {run.status}: nothing plans it any more")
    if command.seen is not None and command.seen != run.planner_version:
        return Denied(f"it is planned by version {run.planner_version} meanwhile; look again, then decide")
    failed = run.failures > 0 and run.owner is None
    if command.to == run.planner_version and not failed:
        return Denied(f"version {run.planner_version} of {run.planner} plans it already")
    fold.by = command.by
    fold.presented[run.id] = Presented("repair")
    if asking(run):
        why = {"code": "repinned", "message": "another version of the planner takes its place"}
        fold.emit(E.MODEL_OUTCOME_UNKNOWN, why | {"ready_at": rfc3339(fold.now)} | settled(run, None))
    said = {"from": run.planner_version, "to": command.to, "reason": command.reason, "login": command.login}
    fold.emit(E.RUN_REPINNED, said | {"fence": fold.run_fence()})
    return Done(fold.run.status)
