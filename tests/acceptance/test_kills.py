"""A worker is killed: another takes over as soon as its pulse says so. All fault points: `test_faults`."""

import itertools

from tests.acceptance.stage import Stage, step
from tests.awaiting import until

_numbers = itertools.count(1)


def test_a_takeover_follows_a_kill_at_once(stage: Stage) -> None:
    reference = f"kill-{next(_numbers)}"
    until("two dispatchers", lambda: len(stage.pids("dispatcher")) == 2)
    stage.sandbox.fault("delay_after_commit", reference=reference, delay_s=3)
    run = stage.send([step("patient.debit", "debit", reference=reference)])
    stage.until_event(run, "ToolAttemptStarted")
    killed_at = stage.kill_holder(run, "debit")
    taken = stage.until_event(run, "ToolOutcomeMarkedUnknown")
    # Only its pulse ends the row of a worker: nobody waited for the silence of its stamp. Nor for the end of
    # its attempt, ten seconds after the beginning.
    call = stage.calls(run)["debit"].id
    token = next(e.data["worker"] for e in stage.events(run, "LeaseAcquired") if e.call == call)
    ended_at = stage.value("SELECT ended_at FROM fencepost.workers WHERE token = %s", token)
    assert ended_at is not None
    assert killed_at <= ended_at <= taken.recorded_at
    assert (taken.recorded_at - killed_at).total_seconds() < 5
    assert stage.ended(run) == ["COMPLETED"]
    assert stage.requests(reference) == 1
