"""Allowances in a fleet: of runs that race for what is left of one, those that find nothing send nothing."""

import itertools
from uuid import UUID

from tests.acceptance.stage import Stage, step
from tests.acceptance.weather import long_only
from tests.awaiting import until

_numbers = itertools.count(1)
RATION = 3


def sent(stage: Stage, count: int) -> dict[UUID, str]:
    """So many runs that want one debit each; the references of their effects."""
    references = [f"rationed-{next(_numbers)}" for _ in range(count)]
    return {stage.send([step("rationed.debit", "pay", reference=one)]): one for one in references}


def _ended(stage: Stage, runs: dict[UUID, str]) -> tuple[int, int]:
    """How many of the runs had their effect, and how many were refused before anything was sent."""
    stage.ended(*runs)
    done = [stage.call(run, "pay").state == "SUCCEEDED" for run in runs]
    for run, reference in runs.items():
        call = stage.call(run, "pay")
        if call.state == "SUCCEEDED":
            assert stage.effects(reference) == ["debit"]
            continue
        assert (call.state, call.attempts, stage.requests(reference)) == ("REJECTED", 0, 0)
        assert f"allowance ration is used up: {RATION} of {RATION} calls" in str(call.error)
    return done.count(True), done.count(False)


def test_of_runs_that_race_for_an_allowance_as_many_are_sent_as_it_has_room_for(stage: Stage) -> None:
    runs = sent(stage, 8)
    assert _ended(stage, runs) == (RATION, 8 - RATION)


@long_only  # a short form in virtual time is a drill
def test_a_dispatcher_that_is_killed_with_a_share_takes_nothing_from_the_others_and_gives_them_nothing(
    stage: Stage,
) -> None:
    dying = stage.arm("dispatcher", "dispatch.after_claim=crash")
    first = sent(stage, 1)
    until("a dispatcher has died with its claim", lambda: dying.fired)
    others = sent(stage, 4)
    assert _ended(stage, others) == (RATION - 1, 4 - (RATION - 1))
    assert _ended(stage, first) == (1, 0)
    used = "SELECT used_count FROM fencepost.allowances WHERE tenant = %s"
    assert stage.value(used, stage.tenant) == RATION
