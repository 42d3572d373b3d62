"""Every published contract on a live fleet: its answer is lost after the effect, or its worker dies then.

By the imitation's own book there is one effect per intent, whatever follows; the call succeeds by itself
where the contract gives a proof, and waits for a person where it does not.
"""

import os
import signal
from collections.abc import Iterator
from functools import partial
from typing import Any
from uuid import UUID

import pytest

from fencepost.contracts.catalogue import ENTRIES
from fencepost.contracts.entries import Entry
from tests.acceptance.conftest import HOSTILE, checked
from tests.acceptance.stage import Stage, staged, step
from tests.acceptance.weather import long_only
from tests.awaiting import until

ENV = {"FENCEPOST_APP": "tests.acceptance.catalogue_app:app", **HOSTILE}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with staged(tmp_path_factory.mktemp("published"), env=ENV, scale={"dispatcher": 2}) as stage:
        yield stage


@pytest.fixture
def stage(fleet: Stage) -> Iterator[Stage]:
    yield from checked(fleet)


def proves_itself(entry: Entry) -> bool:
    """Whether an unknown outcome of this contract can be known again without a person."""
    lookup = entry.contract.lookup
    return entry.contract.repeats_by_key or (lookup is not None and lookup.strong)


def rows(stage: Stage, entry: Entry, what: str, reference: str) -> list[dict[str, Any]]:
    """What the imitation's own book holds of an order: its effects, or the requests for one."""
    kept = stage.sandbox.get(f"/imitations/{entry.name}/book")[what]
    mine = [row for row in kept if row["reference"] == reference]
    return [row for row in mine if row.get("purpose", "effect") == "effect"]


def order(stage: Stage, entry: Entry, reference: str) -> UUID:
    return stage.send([step(f"published.{entry.name}", "make", reference=reference)])


def settle_by_hand(stage: Stage, entry: Entry, run: UUID, reference: str) -> None:
    """What a person does who has looked into the provider's own pages."""
    call = stage.until_state(run, "make", "NEEDS_REPAIR")
    (effect,) = rows(stage, entry, "effects", reference)
    with stage.client("operator") as client:
        client.repair(call.id, "SUCCEEDED", by="person:tester", reason="it is there", receipt=effect["id"])


def judge(stage: Stage, runs: dict[str, UUID], prefix: str) -> None:
    """One effect per intent, and the end that each contract allows."""
    for name, run in runs.items():
        if proves_itself(ENTRIES[name]):
            stage.until_state(run, "make", "SUCCEEDED")
        else:
            settle_by_hand(stage, ENTRIES[name], run, f"{prefix}-{name}")
    assert stage.ended(*runs.values()) == ["COMPLETED"] * len(runs)
    for name in runs:
        entry, reference = ENTRIES[name], f"{prefix}-{name}"
        assert len(rows(stage, entry, "effects", reference)) == 1, name
        asked = rows(stage, entry, "requests", reference)
        assert len({(row["key"], row["digest"]) for row in asked}) == 1, (
            f"{name}: a repeat is the same request"
        )
        if not entry.contract.repeats_by_key:
            assert len(asked) == 1, f"{name} was sent again without a promise"


@long_only
def test_an_answer_lost_after_the_effect_leaves_one_effect_under_every_contract(stage: Stage) -> None:
    runs = {}
    for name, entry in ENTRIES.items():
        stage.sandbox.fault("drop_after_commit", service=name, reference=f"lost-{name}", count=1)
        runs[name] = order(stage, entry, f"lost-{name}")
    judge(stage, runs, "lost")
    asked = rows(stage, ENTRIES["stripe.v1"], "requests", "lost-stripe.v1")
    assert len(asked) == 2, "the stored request again, under the same key"


@long_only
def test_workers_killed_after_the_effect_leave_one_effect(stage: Stage) -> None:
    names = ("stripe.v1", "s3.put-if-absent", "square.payments", "smtp")
    for name in names:
        held = {"service": name, "reference": f"killed-{name}", "count": 1, "delay_s": 60}
        stage.sandbox.fault("delay_after_commit", **held)
    runs = {name: order(stage, ENTRIES[name], f"killed-{name}") for name in names}
    for name in names:
        until("the effect", partial(rows, stage, ENTRIES[name], "effects", f"killed-{name}"))
    for pid in {stage.holder(run, "make") for run in runs.values()}:
        os.kill(pid, signal.SIGKILL)
    judge(stage, runs, "killed")
