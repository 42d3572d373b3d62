"""How a history is told: every sentence is derived from its events, its books and its verdicts."""

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from fencepost_ops.checker import PROMISES, Report, Totals, Verdict, Violation
from fencepost_ops.drill.because import (
    Booked,
    Key,
    Noted,
    command,
    followed,
    held_by,
    settled_by,
    told,
    why_one,
)
from fencepost_ops.drill.outcome import CallEnd, Left, Outcome, Owed, RunEnd, Struck
from fencepost_ops.drill.protocol import Expect, Fault, Prediction, Protocol
from fencepost_ops.drill.writeup import print_outcome, write_up

RUN = "01b8dac5-b401-7bac-9948-8dec4f65d4d9"
CALL = "01b8dac5-b403-78d7-b773-83c13458a748"


def noted(
    kind: str, seq: int = 11, *, call: str | None = CALL, attempt: int | None = 1, **data: Any
) -> Noted:
    return Noted(RUN, seq, 1.0, kind, call, attempt, 2, "reconciler/5", data)


@pytest.mark.parametrize(
    ("event", "sentence"),
    [
        (
            noted("ToolLookupRecorded", lookup='{"answer": "found", "receipt": "r-1"}'),
            "the lookup by key found receipt r-1 [event 11]",
        ),
        (
            noted("ToolLookupRecorded", lookup='{"answer": "absent", "receipt": null}'),
            "the lookup by key found nothing [event 11]",
        ),
        (
            noted("ToolLookupRecorded", lookup='{"answer": "unclear", "detail": "http 500"}'),
            "the lookup by key gave no clear answer: http 500 [event 11]",
        ),
        (
            noted("ToolAttemptStarted", attempt=2, repeat=True),
            "the stored request was repeated under the same key, as attempt 2 [event 11]",
        ),
        (
            noted("ToolAttemptStarted", repeat=False),
            "attempt 1 was committed before anything was sent [event 11]",
        ),
        (
            noted("EvidenceFiled", receipt="r-1", applied=True, code="applied"),
            "the late answer of attempt 1, receipt r-1, was filed as evidence: its term was over [event 11]",
        ),
        (
            noted("ToolOutcomeMarkedUnknown", lost=True, message="lost"),
            "attempt 1 became UNKNOWN: its worker was lost, which proves nothing [event 11]",
        ),
        (
            noted("ToolOutcomeMarkedUnknown", lost=False, message="no answer within 5 s"),
            "attempt 1 became UNKNOWN, not failed: no answer within 5 s [event 11]",
        ),
        (
            noted("ToolEffectReconciled", to="FAILED", proof="the lookup proved the key absent"),
            "it was settled as FAILED: the lookup proved the key absent [event 11]",
        ),
        (
            noted("CallCancelled", attempt=None),
            "it was cancelled before it was ever sent [event 11]",
        ),
        (noted("LeaseAcquired"), "reconciler/5 took it over under fence 2 [event 11]"),
        (noted("ToolLookupRecorded", lookup="{"), "ToolLookupRecorded [event 11]"),
        (noted("OfALaterVersion"), "OfALaterVersion [event 11]"),
    ],
)
def test_an_event_is_told_by_what_it_says(event: Noted, sentence: str) -> None:
    assert told(event) == sentence


def test_what_followed_is_of_the_struck_subject_and_of_what_came_after() -> None:
    events = [
        noted("ToolAttemptStarted", 11),
        noted("LeaseAcquired", 12),
        noted("ToolOutcomeMarkedUnknown", 13, lost=True),
        noted("LeaseAcquired", 14),
        noted("AuthorizationAllowed", 15),
        noted("ToolResultRecorded", 16, call="another", receipt="x"),
        noted("ToolResultRecorded", 17, receipt="r-1"),
        noted("RunCompleted", 18, call=None),
    ]
    assert list(followed(events, RUN, CALL, 11)) == [
        "reconciler/5 took it over under fence 2 [event 12]",
        "attempt 1 became UNKNOWN: its worker was lost, which proves nothing [event 13]",
        "attempt 1 was answered with receipt r-1 [event 17]",
    ]
    assert list(followed(events, RUN, None, 11)) == ["the run completed [event 18]"]


def effect(receipt: str, attempt: int) -> Booked:
    return Booked("wallet", 1.0, "k", receipt, None, CALL, attempt)


def committed(receipt: str, attempt: int, event: int) -> Booked:
    return replace(effect(receipt, attempt), event=event)


def request(attempt: int, status: int = 201) -> Booked:
    return Booked("wallet", 1.0, "k", None, status, CALL, attempt)


@pytest.mark.parametrize(
    ("state", "kind", "attempts", "effects", "requests", "sentence"),
    [
        (
            "REJECTED",
            "dedupes",
            0,
            [],
            [],
            "it is REJECTED: no attempt was begun, so that nothing was ever sent",
        ),
        ("FAILED", "lookup_only", 1, [], [], "1 attempt begun, and no request reached the service"),
        ("FAILED", "dedupes", 1, [], [request(1, 400)], "1 request arrived and had no effect (answered 400)"),
        (
            "SUCCEEDED",
            "lookup_only",
            2,
            [effect("r-1", 2)],
            [request(2)],
            "1 request arrived, and had one effect: receipt r-1 (attempt 2)",
        ),
        (
            "SUCCEEDED",
            "dedupes",
            2,
            [Booked("wallet", 1.0, "k", "r-1")],
            [request(1), request(2, 200)],
            "2 requests arrived under one key, which the service knew again: one effect, receipt r-1",
        ),
        (
            "SUCCEEDED",
            "lookup_only",
            2,
            [effect("r-1", 2)],
            [request(1, 429), request(2)],
            "2 requests arrived under one key, all but one refused: one effect, receipt r-1 (attempt 2)",
        ),
        (
            "SUCCEEDED",
            "neither",
            2,
            [Booked("wallet", 1.0, "k", "r-1")],
            [request(1), request(2, 200)],
            "2 requests arrived under one key, and the same again changed nothing: one effect, receipt r-1",
        ),
        (
            "SUCCEEDED",
            "lookup_only",
            2,
            [committed("r-1", 1, 11), committed("r-2", 2, 16)],
            [request(1), request(2)],
            "2 effects under one key: receipt r-1 (attempt 1, event 11), receipt r-2 (attempt 2, event 16)",
        ),
    ],
)
def test_why_a_key_had_its_effects(
    state: str, kind: str, attempts: int, effects: list[Booked], requests: list[Booked], sentence: str
) -> None:
    assert why_one(Key("first", state, kind, attempts, tuple(effects), tuple(requests))) == sentence


@pytest.mark.parametrize(
    ("events", "attempt_of_the_effect", "sentence"),
    [
        (
            [
                noted("ToolLookupRecorded", lookup='{"answer": "found", "receipt": "r-1"}'),
                noted(
                    "ToolEffectReconciled",
                    to="SUCCEEDED",
                    proof="the lookup found it with the same arguments",
                    receipt="r-1",
                ),
            ],
            1,
            "it was not sent again, for the lookup by key found receipt r-1",
        ),
        (
            [noted("ToolEffectReconciled", to="SUCCEEDED", proof="evidence of attempt 1", receipt="r-1")],
            1,
            "it was not sent again, for evidence of attempt 1 brought receipt r-1",
        ),
        (
            [noted("ToolEffectReconciled", to="FAILED", proof="the lookup proved the key absent")],
            1,
            "that nothing happened is proved: the lookup proved the key absent",
        ),
        (
            [
                noted("ToolAttemptStarted", 11, attempt=2, repeat=True),
                noted("ToolResultRecorded", 12, attempt=2, receipt="r-1"),
            ],
            1,
            "the stored request was repeated, and the answer was the receipt of attempt 1",
        ),
        (
            [
                noted("ToolAttemptStarted", 11, attempt=2, repeat=True),
                noted("ToolResultRecorded", 12, attempt=2, receipt="r-1"),
            ],
            2,
            "the stored request was repeated under the same key",
        ),
        (
            [
                noted("ToolLookupRecorded", 10, lookup='{"answer":"absent","receipt":null}'),
                noted("ToolAttemptStarted", 11, attempt=2, repeat=True),
                noted("ToolResultRecorded", 12, attempt=2, receipt="r-1"),
            ],
            2,
            "it was sent again only when the lookup by key had proved the first absent",
        ),
        (
            [noted("RepairRequested", reason="the contract offers neither")],
            1,
            "it was not sent again, and a person is asked: the contract offers neither",
        ),
        (
            [
                noted("ToolAttemptStarted", 11, repeat=False),
                noted("ToolResultRecorded", 12, receipt="r-1"),
            ],
            1,
            None,
        ),
        ([noted("RepairRequested")], 1, None),
        ([], 1, None),
    ],
)
def test_a_call_is_said_to_be_settled_by_what_its_events_say(
    events: list[Noted], attempt_of_the_effect: int, sentence: str | None
) -> None:
    effects = (effect("r-1", attempt_of_the_effect),)
    key = Key("first", "SUCCEEDED", "dedupes", 2, effects, (request(1),), tuple(events))
    assert settled_by(key) == sentence
    assert why_one(key).endswith(sentence or "receipt r-1 (attempt 1)")


def test_the_record_before_a_fault_says_what_it_holds() -> None:
    assert held_by("ToolAttemptStarted (event 11)") == "the exact request, its key and its deadline"
    assert held_by("OfALaterVersion (event 11)") is None
    assert held_by(None) is None


@pytest.mark.parametrize(
    ("state", "receipt", "way"),
    [
        ("NEEDS_REPAIR", "r-1", f"fencepost repair {CALL} --happened --receipt r-1 --reason TEXT"),
        ("NEEDS_REPAIR", None, f"fencepost repair {CALL} --did-not-happen --reason TEXT"),
        ("UNKNOWN", "r-1", f"fencepost unresolved {CALL}"),
    ],
)
def test_what_is_left_comes_with_the_command_that_settles_it(
    state: str, receipt: str | None, way: str
) -> None:
    assert command(CALL, state, receipt) == way


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
