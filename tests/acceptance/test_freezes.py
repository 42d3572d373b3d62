"""A worker is frozen, taken over and woken: the zombie is fenced out, what it knows becomes evidence."""

import itertools
import os
import signal
from typing import Any

from tests.acceptance.stage import Stage, Step, step

_numbers = itertools.count(1)

PRICE = {"currency": "EUR", "amount_minor": 100, "scale": 2}


def debit(reference: str) -> Step:
    """A debit whose attempt takes a second at most, and a second of grace."""
    return step("wallet.debit", "debit", order_id=reference, account="acc", amount=PRICE)


def frozen_at(
    stage: Stage, point: str, steps: Step, role: str = "dispatcher", **more: Any
) -> tuple[Any, int]:
    stage.arm(role, f"{point}=pause")
    run = stage.send([steps], **more)
    return run, stage.frozen(role)


def test_a_dispatcher_frozen_before_the_wire_sends_nothing_when_it_wakes(stage: Stage) -> None:
    reference = f"freeze-{next(_numbers)}"
    run, pid = frozen_at(stage, "dispatch.before_wire", debit(reference))
    assert stage.ended(run) == ["COMPLETED"]
    os.kill(pid, signal.SIGCONT)
    filed = stage.until_event(run, "EvidenceFiled")
    assert (filed.attempt, filed.data["applied"], filed.data["code"]) == (1, False, "deadline_passed")
    assert stage.attempts_sent(reference) == ["2"]
    assert stage.effects(reference) == ["debit"]
    assert stage.status(run) == "COMPLETED"


def test_a_frozen_dispatcher_is_taken_over_at_its_deadline_and_grace_and_not_before(stage: Stage) -> None:
    reference = f"freeze-{next(_numbers)}"
    run, _ = frozen_at(stage, "dispatch.after_effect", debit(reference))
    assert stage.ended(run) == ["COMPLETED"]
    (started,) = stage.events(run, "ToolAttemptStarted")
    (taken,) = stage.events(run, "ToolOutcomeMarkedUnknown")
    waited = (taken.recorded_at - started.recorded_at).total_seconds()
    assert 2 <= waited <= 4  # a second for the attempt, one of grace, and one look of the relay


def test_a_frozen_dispatcher_that_holds_the_answer_files_it_when_it_wakes(stage: Stage) -> None:
    reference = f"freeze-{next(_numbers)}"
    run, pid = frozen_at(stage, "dispatch.after_effect", debit(reference))
    assert stage.ended(run) == ["COMPLETED"]
    os.kill(pid, signal.SIGCONT)
    filed = stage.until_event(run, "EvidenceFiled")
    assert filed.data["applied"]
    assert filed.data["receipt"] == stage.calls(run)["debit"].receipt
    assert stage.requests(reference) == 1
    assert stage.status(run) == "COMPLETED"


def test_evidence_of_a_zombie_settles_what_nobody_else_can_know(stage: Stage) -> None:
    """Nobody can be asked about a letter: the person who decides has the zombie's receipt before them."""
    reference = f"freeze-{next(_numbers)}"
    run, pid = frozen_at(stage, "dispatch.after_effect", step("mail.send", "letter", reference=reference))
    call = stage.until_state(run, "letter", "NEEDS_REPAIR")
    os.kill(pid, signal.SIGCONT)
    filed = stage.until_event(run, "EvidenceFiled", applied=True)
    assert stage.requests(reference) == 1
    with stage.client("operator") as client:
        receipt = filed.data["receipt"]
        client.repair(call.id, "SUCCEEDED", by="person:tester", reason="it says so", receipt=receipt)
    assert stage.ended(run) == ["COMPLETED"]
    assert stage.requests(reference) == 1


def test_a_dispatcher_frozen_inside_its_claim_does_not_freeze_the_fleet(stage: Stage) -> None:
    reference = f"freeze-{next(_numbers)}"
    run, pid = frozen_at(stage, "ledger.in_transaction", debit(reference))
    assert stage.ended(run) == ["COMPLETED"]  # Postgres ends its transaction; nobody else would for a minute
    os.kill(pid, signal.SIGCONT)
    assert stage.requests(reference) == 1


def test_a_dispatcher_frozen_while_it_records_files_its_answer_when_it_wakes(stage: Stage) -> None:
    reference = f"freeze-{next(_numbers)}"
    stage.arm("dispatcher", "ledger.in_transaction=pause@2")  # the claim is the first
    run = stage.send([debit(reference)])
    pid = stage.frozen("dispatcher")
    assert stage.ended(run) == ["COMPLETED"]
    os.kill(pid, signal.SIGCONT)
    filed = stage.until_event(run, "EvidenceFiled")
    assert filed.data["applied"]
    assert stage.requests(reference) == 1


def test_a_dispatcher_frozen_before_its_claim_is_too_late_when_it_wakes(stage: Stage) -> None:
    reference = f"freeze-{next(_numbers)}"
    run, pid = frozen_at(stage, "dispatch.after_lease", debit(reference))
    assert stage.ended(run) == ["COMPLETED"]
    os.kill(pid, signal.SIGCONT)
    assert stage.requests(reference) == 1


def test_a_frozen_planner_loses_its_turn_to_another(stage: Stage) -> None:
    reference = f"freeze-{next(_numbers)}"
    run, pid = frozen_at(stage, "planner.after_model", debit(reference), role="planner")
    assert stage.ended(run) == ["COMPLETED"]
    os.kill(pid, signal.SIGCONT)
    assert stage.effects(reference) == ["debit"]


def test_a_frozen_reconciler_loses_its_question_to_another(stage: Stage) -> None:
    reference = f"freeze-{next(_numbers)}"
    stage.sandbox.fault("drop_after_commit", reference=reference, nth=1)
    run, pid = frozen_at(stage, "reconcile.after_lookup", debit(reference), role="reconciler")
    assert stage.ended(run) == ["COMPLETED"]
    os.kill(pid, signal.SIGCONT)
    assert stage.requests(reference) == 1
