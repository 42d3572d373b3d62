"""Why a history came out as it did: every sentence is derived from its events and the services' books."""

from dataclasses import replace
from typing import Any

import pytest

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
