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
    # Its pulse says so. The silence of its stamp would be noticed after 1.3 s at the earliest.
    assert (taken.recorded_at - killed_at).total_seconds() < 1.3
    assert stage.ended(run) == ["COMPLETED"]
    assert stage.requests(reference) == 1
