"""A process of each role is killed at each of its fault points; the order settles with one effect per intent."""

import itertools

import pytest

from tests.acceptance.stage import Armed, Stage

_numbers = itertools.count(1)

ORDER = ["debit", "reservation", "shipment"]
UNDONE = ["debit", "refund", "release", "reservation"]


def one_order_survives(stage: Stage, role: str, point: str, **fault: object) -> Armed:
    reference = f"kill-{next(_numbers)}"
    if fault:
        stage.sandbox.fault(reference=reference, **fault)
    armed = stage.arm(role, f"{point}=crash")
    run = stage.order(reference)
    assert stage.ended(run) == ["COMPLETED"]
    assert armed.fired
    assert sorted(stage.effects(reference)) == ORDER
    return armed


@pytest.mark.parametrize(
    "point",
    [
        "dispatch.after_lease",
        "dispatch.after_claim",
        "dispatch.before_wire",
        "dispatch.response_lost",
        "dispatch.after_effect",
        "dispatch.after_record",
        "ledger.in_transaction",
    ],
)
def test_an_order_survives_the_death_of_its_dispatcher_at(stage: Stage, point: str) -> None:
    one_order_survives(stage, "dispatcher", point)


@pytest.mark.parametrize(
    "point", ["planner.after_claim", "planner.after_model", "planner.after_record", "ledger.in_transaction"]
)
def test_an_order_survives_the_death_of_its_planner_at(stage: Stage, point: str) -> None:
    one_order_survives(stage, "planner", point)


@pytest.mark.parametrize("point", ["reconcile.after_lookup", "reconcile.after_record", "ledger.in_transaction"])
def test_an_order_survives_the_death_of_its_reconciler_at(stage: Stage, point: str) -> None:
    one_order_survives(stage, "reconciler", point, kind="drop_after_commit", service="wallet", count=1)


@pytest.mark.parametrize("point", ["dispatch.before_wire", "dispatch.after_effect"])
def test_a_repeat_survives_the_death_of_its_reconciler_at(stage: Stage, point: str) -> None:
    """The lookup proves that the first attempt had no effect, so the reconciler itself sends the second."""
    one_order_survives(stage, "reconciler", point, kind="drop_before", service="wallet", count=1)


@pytest.mark.parametrize("point", ["compensate.after_plan", "ledger.in_transaction"])
def test_a_stopped_order_is_offset_despite_the_death_of_its_compensator_at(stage: Stage, point: str) -> None:
    reference = f"kill-{next(_numbers)}"
    stage.sandbox.fault("refuse", service="shipping", reference=reference)
    armed = stage.arm("compensator", f"{point}=crash")
    run = stage.order(reference)
    assert stage.ended(run) == ["STOPPED"]
    assert armed.fired
    assert sorted(stage.effects(reference)) == UNDONE
