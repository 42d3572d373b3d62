"""How a history is told: every sentence is derived from what came of it, and from its verdicts."""

from typing import Any
from uuid import UUID

import pytest

from fencepost_ops.checker import PROMISES, Report, Totals, Verdict, Violation
from fencepost_ops.drill.outcome import CallEnd, Left, Outcome, Owed, RunEnd, Struck
from fencepost_ops.drill.protocol import Expect, Fault, Prediction, Protocol
from fencepost_ops.drill.writeup import print_outcome, write_up

RUN = "01b8dac5-b401-7bac-9948-8dec4f65d4d9"
CALL = "01b8dac5-b403-78d7-b773-83c13458a748"


def outcome(
    *,
    predict: Prediction | None = None,
    verdicts: tuple[Verdict, ...] = (),
    violated: tuple[str, ...] = (),
    replayed: str = "ab12",
    **fields: Any,
) -> Outcome:
    """A planted history: one call whose worker was killed after the effect."""
    fault = Fault(at="dispatch.after_effect", do="crash", predict=predict)
    left = Left(
        CALL, "first", "DISPATCHING", False, RUN, "ACTING", "ToolAttemptStarted (event 11)", "reconciler",
        0.5, 3, 11, "ab12",
    )  # fmt: skip
    struck = Struck(fault, 0.005, "dispatcher/3", left, "SUCCEEDED", replayed, ("it was found [event 14]",))
    call = CallEnd(
        CALL,
        RUN,
        "first",
        "wallet.debit",
        "SUCCEEDED",
        False,
        1,
        "r-1",
        None,
        "lookup_only",
        1,
        1,
        "one | only",
    )
    held = {v.invariant for v in verdicts}
    whole = (*(Verdict(name, 1) for name in PROMISES if name not in held), *verdicts)
    given: dict[str, Any] = {
        "protocol": Protocol(
            name="planted", about="A planted history.", faults=[fault], expect=Expect(violated=list(violated))
        ),
        "struck": (struck,),
        "never": (),
        "steps": 13,
        "seconds": 6.0,
        "runs": (RunEnd(RUN, "run-1", "COMPLETED", None, "head", "cd34", "cd34"),),
        "calls": (call,),
        "effects": {"wallet": 1},
        "dispatches": 1,
        "timeline": ("    0.005  ToolAttemptStarted · run-1 first",),
        "report": Report(whole, Totals(1, 1, 0, 1, 1, 20, 0, 1)),
        **fields,
    }
    return Outcome(**given)


RIGHT = Prediction(call="DISPATCHING", run="ACTING", doubt=False, owner="reconciler", ends="SUCCEEDED")


def test_a_history_as_predicted_is_written_up_with_its_record_its_owner_and_its_replay() -> None:
    text = write_up(outcome(predict=RIGHT))
    assert text.startswith("# Drill `planted`: as predicted\n\nA planted history.\n")
    assert "### crash at dispatch.after_effect, passage 1: dispatcher/3, at 0.005 s" in text
    assert "| owner of recovery | reconciler | reconciler | as predicted |" in text
    assert (
        "- Durable record: ToolAttemptStarted (event 11), which holds the exact request, its key and its "
        "deadline; and the outbox row of the reconciler, generation 3, due at 0.500 s."
    ) in text
    assert "- Recovery was for the reconciler." in text
    assert "- Then: it was found [event 14]." in text
    assert "- Replay: projection before the restart ab12 = after replay ab12." in text
    assert "- first (wallet.debit, lookup_only): one | only" in text
    assert "attempts: 1; dispatches: 1; effects: 1 of wallet." in text
    assert "| run-1 | COMPLETED |  | cd34 | yes |" in text
    assert "Nothing: all is known" in text
    assert "| I1 | holds | 1 | at most one effect per intent" in text
    assert '"name": "planted"' in text
    assert "did not hold" not in text


@pytest.mark.parametrize(
    ("name", "wrong"),
    [("call", "UNKNOWN"), ("run", "STOPPED"), ("doubt", True), ("owner", "person"), ("ends", "FAILED")],
)
def test_each_prediction_that_fails_is_told(name: str, wrong: object) -> None:
    one = outcome(predict=RIGHT.model_copy(update={name: wrong}))
    assert not one.ok
    (problem,) = one.problems
    assert problem.startswith(
        f"crash at dispatch.after_effect, passage 1: {name}: predicted {wrong}, it was "
    )
    text = write_up(one)
    assert text.startswith("# Drill `planted`: NOT as predicted")
    assert text.count("DIFFERS") == 1
    assert f"- {problem}" in text


def test_a_violated_invariant_is_told_with_run_call_attempt_and_event(
    capsys: pytest.CaptureFixture[str],
) -> None:
    broken = Violation(
        "2 effects of one intent", "drill", UUID(RUN), UUID(CALL), attempt=2, event=17, key="k"
    )
    one = outcome(predict=RIGHT, verdicts=(Verdict("I1", 1, (broken,)),))
    assert one.problems == ["violated: I1"]
    text = write_up(one)
    assert (
        f"- **I1 did not hold: 2 effects of one intent (run {RUN}, call {CALL}, attempt 2, event 17)**"
        in text
    )
    assert "| I1 | violated | 1 | at most one effect" in text
    print_outcome(one)
    shown = capsys.readouterr().out
    assert "I1 is violated: 2 effects of one intent" in shown
    assert "not as it should be: violated: I1" in shown


def test_a_violation_that_was_expected_is_no_problem_and_its_absence_is_one() -> None:
    broken = Violation("2 effects of one intent")
    assert outcome(verdicts=(Verdict("I1", 1, (broken,)),), violated=("I1",)).ok
    assert outcome(violated=("I1",)).problems == ["violated: nothing, expected were I1"]


def test_a_replay_that_gives_something_else_is_told() -> None:
    one = outcome(replayed="ff00")
    assert one.problems == [
        "crash at dispatch.after_effect, passage 1: projection before the restart ab12, after replay ff00"
    ]
    assert "projection before the restart ab12 DIFFERS FROM after replay ff00" in write_up(one)
    ended = outcome(runs=(RunEnd(RUN, "run-1", "COMPLETED", None, "head", "cd34", "ee55"),))
    assert ended.problems == ["run run-1: projection cd34, after replay ee55"]
    assert "| run-1 | COMPLETED |  | cd34 | no |" in write_up(ended)


def test_what_nobody_knows_is_told_with_its_owner_and_its_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    way = f"fencepost repair {CALL} --did-not-happen --reason TEXT"
    one = outcome(owed=(Owed(CALL, "first", "NEEDS_REPAIR", "person", "nobody can tell", way),))
    sentence = f"first is NEEDS_REPAIR, and it is for a person (nobody can tell): {way}"
    assert f"- {sentence}" in write_up(one)
    print_outcome(one)
    assert f"owed: {sentence}" in capsys.readouterr().out


def test_a_fault_that_struck_nothing_says_so_and_one_that_never_came_is_a_problem() -> None:
    nothing = Struck(Fault(at="relay.after_publish", do="crash"), 0.002, "relay/9", Left())
    late = Fault(at="relay.after_take", do="crash", nth=9, predict=Prediction())
    one = outcome(struck=(nothing,), never=(late,))
    assert one.problems == ["crash at relay.after_take, passage 9: never reached"]
    text = write_up(one)
    assert "it struck no run or call" in text
    assert "crash at relay.after_take, passage 9: never reached" in text


def test_what_was_stored_never_breaks_a_table_or_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    call = CallEnd(CALL, RUN, "a|b\x1b[2J\nc", "wallet.debit", "FAILED", False, 1, None, None)
    one = outcome(calls=(call,))
    assert "| a\\|b\\u001b[2J c | wallet.debit |" in write_up(one)
    print_outcome(one)
    assert "\x1b" not in capsys.readouterr().out
