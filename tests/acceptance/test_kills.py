"""A process of each role is killed at each of its fault points; the order settles with one effect per intent.

Roles take turns, so that the one that was killed is back when it is its turn again.
"""

import itertools

import pytest

from tests.acceptance.stage import Stage, step, until

_numbers = itertools.count(1)

ORDER = ["debit", "reservation", "shipment"]
UNDONE = ["debit", "refund", "release", "reservation"]


@pytest.mark.parametrize(
    ("role", "point", "fault"),
    [
        ("dispatcher", "dispatch.after_lease", None),
        ("planner", "planner.after_claim", None),
        ("reconciler", "reconcile.after_lookup", "drop_after_commit"),
        ("dispatcher", "dispatch.after_claim", None),
        ("planner", "planner.after_model", None),
        ("reconciler", "reconcile.after_record", "drop_after_commit"),
        ("dispatcher", "dispatch.before_wire", None),
        ("planner", "planner.after_record", None),
        ("reconciler", "ledger.in_transaction", "drop_after_commit"),
        ("dispatcher", "dispatch.response_lost", None),
        ("planner", "ledger.in_transaction", None),
        # The lookup proves that the first attempt had no effect: the reconciler itself sends the second.
        ("reconciler", "dispatch.before_wire", "drop_before"),
        ("dispatcher", "dispatch.after_effect", None),
        ("dispatcher", "dispatch.after_record", None),
        ("reconciler", "dispatch.after_effect", "drop_before"),
        ("dispatcher", "ledger.in_transaction", None),
    ],
)
def test_an_order_survives_the_death_of_a_worker_at(
    stage: Stage, role: str, point: str, fault: str | None
) -> None:
    reference = f"kill-{next(_numbers)}"
    if fault is not None:
        stage.sandbox.fault(fault, service="wallet", reference=reference, count=1)
    armed = stage.arm(role, f"{point}=crash")
    run = stage.order(reference)
    assert stage.ended(run) == ["COMPLETED"]
    assert armed.fired
    assert sorted(stage.effects(reference)) == ORDER


@pytest.mark.parametrize("point", ["compensate.after_plan", "ledger.in_transaction"])
def test_a_stopped_order_is_offset_despite_the_death_of_its_compensator_at(stage: Stage, point: str) -> None:
    reference = f"kill-{next(_numbers)}"
    stage.sandbox.fault("refuse", service="shipping", reference=reference)
    armed = stage.arm("compensator", f"{point}=crash")
    run = stage.order(reference)
    assert stage.ended(run) == ["STOPPED"]
    assert armed.fired
    assert sorted(stage.effects(reference)) == UNDONE


def test_a_compensation_survives_the_death_of_its_dispatcher_after_the_effect(stage: Stage) -> None:
    reference = f"kill-{next(_numbers)}"
    stage.sandbox.fault("throttle_429", reference=f"{reference}-later", retry_after_s=60)
    run = stage.send(
        [step("bank.debit", "first", reference=reference)],
        [step("bank.debit", "later", reference=f"{reference}-later")],
    )
    stage.until_event(run, "ToolAttemptFailed")
    armed = stage.arm("dispatcher", "dispatch.after_effect=crash")
    stage.cancel(run)
    assert stage.ended(run) == ["STOPPED"]
    assert armed.fired
    assert stage.effects(reference) == ["debit", "refund"]


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
