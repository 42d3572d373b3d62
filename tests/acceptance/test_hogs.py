"""Tools and planners that starve or kill the process they run in."""

import itertools

from tests.acceptance.stage import Stage, step

_numbers = itertools.count(1)


def test_a_tool_that_hogs_the_interpreter_for_three_ttls_fakes_no_death(stage: Stage) -> None:
    reference = f"hog-{next(_numbers)}"
    run = stage.send([step("patient.hog", "hog", reference=reference, hundredths=600)])
    stage.until_event(run, "ToolAttemptStarted")
    pid = stage.holder(run, "hog")
    assert stage.ended(run) == ["COMPLETED"]
    call = stage.calls(run)["hog"]
    assert (call.attempts, call.fence, stage.deeds_of(call)) == (1, 1, 1)
    assert stage.events(run, "ToolOutcomeMarkedUnknown") == []
    assert pid in stage.pids("dispatcher")


def test_a_tool_that_hogs_beyond_its_attempt_is_fenced_out_and_heard(stage: Stage) -> None:
    reference = f"hog-{next(_numbers)}"
    run = stage.send([step("hasty.hog", "hog", reference=reference, hundredths=350)])
    assert stage.ended(run) == ["COMPLETED"]
    filed = stage.until_event(run, "EvidenceFiled")
    assert (filed.attempt, filed.data["applied"]) == (1, True)
    call = stage.calls(run)["hog"]
    assert (call.attempts, stage.deeds_of(call)) == (2, 1)


def test_a_tool_that_kills_its_process_every_time_ends_with_a_person(stage: Stage) -> None:
    reference = f"hog-{next(_numbers)}"
    run = stage.send([step("deadly.do", "deadly", reference=reference)])
    call = stage.until_state(run, "deadly", "NEEDS_REPAIR")
    assert stage.deeds_of(call) == 1
    started = stage.events(run, "ToolAttemptStarted")
    assert [event.attempt for event in started] == [1, 2]  # as many as its dependency allows
    stage.cancel(run)
    with stage.client("operator") as client:
        client.repair(call.id, "SUCCEEDED", by="person:tester", reason="it did", receipt="deed")
    assert stage.ended(run) == ["STOPPED"]


def test_a_planner_that_kills_its_process_every_time_stops_its_run(stage: Stage) -> None:
    run = stage.send([], then="kill")
    assert stage.ended(run) == ["STOPPED"]
    assert stage.history(run).run.stop_reason == "planner_failed"
