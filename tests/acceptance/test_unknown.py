"""A lost answer is UNKNOWN, never FAILED, and only proof ends it: one effect, whatever the repeat meets."""

import itertools
from typing import Any
from uuid import UUID

import pytest

from tests.acceptance.stage import Stage, step
from tests.awaiting import until

_numbers = itertools.count(1)


def blind_debit(stage: Stage, *faults: tuple[str, dict[str, Any]]) -> tuple[UUID, str]:
    """A debit that deduplicates but cannot be asked for; its nth request meets the nth fault."""
    reference = f"unknown-{next(_numbers)}"
    for nth, (kind, more) in enumerate(faults, 1):
        stage.sandbox.fault(kind, reference=reference, nth=nth, **more)
    return stage.send([step("blind.debit", "debit", reference=reference)]), reference


@pytest.mark.parametrize(
    "meets",
    [
        ("throttle_429", {"retry_after_s": 1}),
        ("refuse", {"status": 402}),
        ("error_503", {}),
        ("in_progress_409", {}),
        ("error_500_before", {}),
    ],
    ids=lambda fault: fault[0],
)
def test_committed_and_lost_then_a_repeat_that_meets_a_refusal_stays_unknown(
    stage: Stage, meets: tuple[str, dict[str, Any]]
) -> None:
    run, reference = blind_debit(stage, ("drop_after_commit", {}), meets)
    assert stage.ended(run) == ["COMPLETED"]
    assert stage.events(run, "ToolAttemptFailed") == []
    assert len(stage.events(run, "ToolOutcomeMarkedUnknown")) == 2
    assert stage.effects(reference) == ["debit"]
    assert stage.requests(reference) == 3


def test_committed_and_lost_then_a_repeat_that_policy_denies_stays_unknown(stage: Stage) -> None:
    run, reference = blind_debit(stage, ("drop_after_commit", {"delay_s": 0.5}))
    stage.until_event(run, "ToolAttemptStarted")
    stage.deny("blind.debit")
    stage.until_event(run, "AuthorizationDenied")
    call = stage.calls(run)["debit"]
    assert (call.state, call.doubt) == ("UNKNOWN", True)
    stage.deny()
    assert stage.ended(run) == ["COMPLETED"]
    assert stage.effects(reference) == ["debit"]
    assert stage.requests(reference) == 2


def test_a_lost_letter_waits_for_a_person_and_is_never_sent_again(stage: Stage) -> None:
    """Neither deduplicated nor to be asked about: one automatic attempt."""
    reference = f"unknown-{next(_numbers)}"
    stage.sandbox.fault("drop_after_commit", reference=reference)
    run = stage.send([step("mail.send", "letter", reference=reference)], deadline_s=4)
    call = stage.until_state(run, "letter", "NEEDS_REPAIR")
    until(
        "the run's deadline", lambda: stage.status(run) == "STOPPING" or stage.status(run) == "COMPENSATING"
    )
    (letter,) = stage.book.effects("mail", key=call.operation)
    with stage.client("operator") as client:
        client.repair(call.id, "SUCCEEDED", by="person:tester", reason="it arrived", receipt=letter.id)
    assert stage.ended(run) == ["STOPPED"]
    assert (stage.requests(reference), stage.effects(reference)) == (1, ["message"])


def test_a_lost_answer_is_asked_for_where_it_must_not_be_repeated(stage: Stage) -> None:
    reference = f"unknown-{next(_numbers)}"
    stage.sandbox.fault("drop_after_commit", reference=reference)
    run = stage.send([step("bank.once", "debit", reference=reference)])
    assert stage.ended(run) == ["COMPLETED"]
    assert (stage.requests(reference), stage.effects(reference)) == (1, ["debit"])


def test_policy_that_tightens_while_an_unsent_call_waits_refuses_it(stage: Stage) -> None:
    """Refused without an effect and waiting to be tried again, a call is not in doubt."""
    reference = f"unknown-{next(_numbers)}"
    stage.sandbox.fault("throttle_429", reference=reference, retry_after_s=1)
    run = stage.send([step("bank.debit", "debit", reference=reference)])
    stage.until_event(run, "ToolAttemptFailed")
    stage.deny("bank.debit")
    assert stage.ended(run) == ["STOPPED"]
    assert stage.calls(run)["debit"].state == "REJECTED"
    assert stage.history(run).run.stop_reason == "authorization_denied"
    assert (stage.requests(reference), stage.effects(reference)) == (1, [])


FAULTS: dict[str, tuple[dict[str, Any], int]] = {
    "delay_after_commit": ({"delay_s": 2.5}, 1),
    "delay_before": ({"delay_s": 1.5}, 1),
    "delay_arrival": ({"delay_s": 1.5}, 1),
    "drop_before": ({}, 2),
    "drop_after_commit": ({"reset": True}, 1),
    "half_response": ({}, 1),
    "error_500_before": ({}, 2),
    "error_500_after_commit": ({}, 1),
    "error_503": ({}, 2),
    "throttle_429": ({"retry_after_s": 1}, 2),
    "in_progress_409": ({}, 2),
    "garbage_200": ({}, 1),
    "oversize_200": ({}, 1),
}
"""What the wallet does to the first debit of an order, and how many requests it then takes to be sure.

An effect that was committed is found by asking; only what is proved not to be there is sent again.
"""


def test_whatever_happens_to_an_answer_the_money_is_taken_once(stage: Stage) -> None:
    runs = {}
    for kind, (more, _) in FAULTS.items():
        stage.sandbox.fault(kind, service="wallet", reference=f"answer-{kind}", count=1, **more)
        runs[kind] = stage.order(f"answer-{kind}")
    assert stage.ended(*runs.values()) == ["COMPLETED"] * len(runs)
    debits = [request.reference for request in stage.book.requests("wallet")]
    assert {kind: debits.count(f"answer-{kind}") for kind in FAULTS} == {k: n for k, (_, n) in FAULTS.items()}
    failed = {e.data["code"] for run in runs.values() for e in stage.events(run, "ToolAttemptFailed")}
    assert failed == {"http_503", "http_429"}
