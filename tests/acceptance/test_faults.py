"""Every fault point of every role, on real processes: crash, pause and error; the checker after each round.

A round arms faults in every role at once, on orders that lead each role through its points. All of them
settle while whoever was paused still sleeps: it wakes to find that others have taken over. `make chaos` runs
it: in every run of the tests drills pass the same points in one process, and the soak arms some on a fleet.
"""

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from uuid import UUID

import pytest

from fencepost.commands import OFFSET
from fencepost.ledger.abandoned import abandoned
from fencepost.testing import FAULTS, POINTS, FaultInjected
from tests.acceptance.conftest import checked
from tests.acceptance.stage import Armed, Stage, is_frozen, staged, step
from tests.acceptance.weather import long_only
from tests.awaiting import until

pytestmark = long_only
_numbers = itertools.count(1)

ACTIONS = ("crash", "pause", "error")
ORDER = ["debit", "reservation", "shipment"]
SCALE = {"relay": 2, "planner": 2, "dispatcher": 2, "reconciler": 2, "compensator": 2}
DISPATCH = ("before_wire", "response_lost", "after_effect")
DISPATCHER = (*(f"dispatch.{at}" for at in ("after_lease", "after_claim", *DISPATCH, "after_record")),)
RECONCILER = (
    "reconcile.after_lease",
    "reconcile.before_lookup",
    "reconcile.after_lookup",
    *(f"dispatch.{at}" for at in DISPATCH),
    "reconcile.after_record",
)
INSIDE = "ledger.in_transaction"
FORWARD = {
    "planner": ("planner.after_claim", "planner.after_model", "planner.after_record", INSIDE),
    "dispatcher": (*DISPATCHER, INSIDE),
    "reconciler": (*RECONCILER, INSIDE),
    "relay": ("relay.after_judge", "relay.after_take", "relay.after_publish"),
}
BACKWARD = {
    "compensator": ("compensate.after_plan", INSIDE),
    "dispatcher": (*DISPATCHER, INSIDE),
    "reconciler": (*RECONCILER, INSIDE, "sweep.after_look"),
}
PRODUCER = ("enqueue.before_commit", "enqueue.after_commit")
PRODUCE = """
import sys
from datetime import timedelta
from fencepost import Client

with Client() as client:
    client.enqueue("steps", {"turns": []}, run_key=sys.argv[1], tenant=sys.argv[2],
                   principal="svc:test", deadline=timedelta(minutes=1))
"""


@dataclass(frozen=True)
class Struck:
    """A fault for one role in one round."""

    role: str
    point: str
    action: str

    @property
    def spec(self) -> str:
        return f"{self.point}={self.action}"


def rounds(points: dict[str, tuple[str, ...]]) -> list[tuple[Struck, ...]]:
    """Each point of each role in each way, one at a time, all roles at once, each in another way."""
    return [
        tuple(
            Struck(role, at[n % len(at)], ACTIONS[(n + other + shift) % len(ACTIONS)])
            for other, (role, at) in enumerate(points.items())
        )
        for shift in range(len(ACTIONS))
        for n in range(max(map(len, points.values())))
    ]


def named(faults: tuple[Struck, ...]) -> str:
    return "-".join(f"{one.role}:{one.spec}" for one in faults)


@pytest.fixture(scope="module")
def struck(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("faults")
    with staged(folder, scale=SCALE, env={"FENCEPOST_SWEEP_S": "0.5"}) as stage:
        yield stage
        assert stage.verdict(whole=True) == []


@pytest.fixture
def stage(struck: Stage) -> Iterator[Stage]:
    yield from checked(struck)


def reference(kind: str) -> str:
    return f"{kind}-{next(_numbers)}"


def strike(stage: Stage, faults: tuple[Struck, ...]) -> list[Armed]:
    roles = dict.fromkeys(one.role for one in faults)
    specs = {role: ",".join(one.spec for one in faults if one.role == role) for role in roles}
    return [stage.arm(role, spec) for role, spec in specs.items()]


def forward(stage: Stage) -> dict[UUID, tuple[str, list[str]]]:
    """Runs that go well, whose answer is lost and can be asked for, or only be repeated; their effects."""
    expected = {}
    for kind in ("plain", "plain", "lost", "lost"):
        name = reference(kind)
        if kind == "lost":
            stage.sandbox.fault("drop_after_commit", service="wallet", reference=name, nth=1)
        expected[stage.order(name)] = name, ORDER
    for name in (reference("repeat"), reference("repeat")):
        stage.sandbox.fault("drop_after_commit", reference=name, nth=1)
        expected[stage.send([step("blind.pay", "pay", reference=name)])] = name, ["debit"]
    return expected


def backward(stage: Stage) -> dict[UUID, tuple[str, list[str]]]:
    """Runs with an effect, held up; once cancelled they offset it, and some of those answers are lost."""
    expected = {}
    for kind, lost in (("plain", 0), ("plain-asked", 0), ("lost-asked", 1), ("lost-asked", 1), ("lost", 1)):
        name = f"{next(_numbers)}-{kind}"
        if lost:
            stage.sandbox.fault("drop_after_commit", path="/wallet/refunds", reference=name, nth=1)
        later = f"{name}-later"
        stage.sandbox.fault("throttle_429", reference=later, retry_after_s=100)
        turns = [step("blind.pay", "pay", reference=name)], [step("bank.debit", "later", reference=later)]
        expected[stage.send(*turns, deadline_s=300)] = name, ["debit", "refund"]
    for run in expected:
        stage.until_held_up(run)
    return expected


def settle(stage: Stage, status: str, expected: dict[UUID, tuple[str, list[str]]]) -> None:
    assert stage.ended(*expected, within_s=60) == [status] * len(expected)
    found = {name: sorted(stage.effects(name)) for name, _ in expected.values()}
    assert found == dict(expected.values())


def judge(stage: Stage, faults: tuple[Struck, ...], armed: list[Armed], before: dict[str, int]) -> None:
    """Every fault has struck; the paused still sleep, and wake now; an error has ended no process."""
    for fault in armed:
        until(f"all of {fault.markers} struck", lambda fault=fault: fault.fired)  # type: ignore[misc]
        actions = {one.action for one in faults if one.role == fault.role}
        pids = stage.fleet.pids(fault.role)
        assert any(map(is_frozen, pids.values())) == ("pause" in actions), f"{fault}: who sleeps?"
        assert "crash" in actions or pids.items() <= before.items(), f"{fault}: somebody has ended"
    stage.wake_all()


@pytest.mark.parametrize("faults", rounds(FORWARD), ids=named)
def test_orders_survive(stage: Stage, faults: tuple[Struck, ...]) -> None:
    until("a whole fleet", stage.whole)
    before, armed = stage.fleet.pids(), strike(stage, faults)
    expected = forward(stage)
    settle(stage, "COMPLETED", expected)
    judge(stage, faults, armed, before)


@pytest.mark.parametrize("faults", rounds(BACKWARD), ids=named)
def test_offsets_survive(stage: Stage, faults: tuple[Struck, ...]) -> None:
    expected = backward(stage)
    until("a whole fleet", stage.whole)
    before, armed = stage.fleet.pids(), strike(stage, faults)
    for run in expected:
        stage.cancel(run)
    settle(stage, "STOPPED", expected)
    judge(stage, faults, armed, before)


def test_an_effect_whose_offset_kills_every_compensator_is_flagged_until_a_person_has_it_offset(
    stage: Stage,
) -> None:
    name, deadly = f"{next(_numbers)}-deadly", stage.folder / "deadly"
    deadly.touch()
    stage.sandbox.fault("throttle_429", reference=f"{name}-later", retry_after_s=100)
    later = step("bank.debit", "later", reference=f"{name}-later")
    run = stage.send([step("blind.pay", "pay", reference=name)], [later], deadline_s=300)
    stage.until_held_up(run)
    stage.cancel(run)
    assert stage.ended(run, within_s=60) == ["STOPPED"]
    (end,) = stage.events(run, "RunStopped")
    assert end.data["not_offset"][0]["why"] == "its planning was given up after 3 lost workers in a row"
    with stage.reader() as connection:
        (left,) = [one for one in abandoned(connection, tenant=stage.tenant) if one.run == run]
    assert left.again
    deadly.unlink()
    with stage.client("operator") as client:
        assert client.repair(left.call, OFFSET, by="person:tester", reason="mended") == "SUCCEEDED"
    until("a second end", lambda: len(stage.events(run, "RunStopped")) == 2)
    assert stage.effects(name) == ["debit", "refund"]
    with stage.reader() as connection:
        assert run not in {one.run for one in abandoned(connection, tenant=stage.tenant)}


@contextmanager
def producers(stage: Stage) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """One that is killed and one that is frozen at each of their points, by run key."""
    with ExitStack() as stack:
        started = {}
        for point, action in itertools.product(PRODUCER, ("crash", "pause")):
            fault = f"{point}={action}"
            env = {**os.environ, **stage.fleet.env("producer"), "FENCEPOST_FAULT": fault}
            command = [sys.executable, "-c", PRODUCE, fault, stage.tenant]
            started[fault] = subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL)
            stack.enter_context(started[fault])
            stack.callback(started[fault].kill)
        yield started


def run_of(stage: Stage, key: str) -> UUID | None:
    found: UUID | None = stage.value(
        "SELECT id FROM fencepost.runs WHERE tenant = %s AND run_key = %s", stage.tenant, key
    )
    return found


def test_a_producer_may_be_lost_before_and_after_its_commit(stage: Stage) -> None:
    """No run before the COMMIT, exactly one after it; the same request again is that run."""
    with producers(stage) as lost:
        for point in PRODUCER:
            FAULTS.arm(f"{point}=error")
            try:
                with pytest.raises(FaultInjected):
                    stage.send(key=f"{point}=error")
            finally:
                FAULTS.disarm()
        assert [lost[f"{point}=crash"].wait(30) for point in PRODUCER] == [-signal.SIGKILL] * 2
        frozen = [lost[f"{point}=pause"] for point in PRODUCER]
        for one in frozen:
            until("a frozen producer", lambda pid=one.pid: is_frozen(pid))  # type: ignore[misc]
        for point, action in itertools.product(PRODUCER, ACTIONS):
            key = f"{point}={action}"
            before = run_of(stage, key)
            assert (before is None) == (point == "enqueue.before_commit"), key
            sent = stage.send(key=key)  # waits for a frozen one, until Postgres ends its transaction
            assert before in {None, sent}
        for one in frozen:
            one.send_signal(signal.SIGCONT)
        assert [one.wait(30) for one in frozen] == [1, 0]  # the first finds its transaction gone
    assert stage.ended() == ["COMPLETED"] * len(PRODUCER) * len(ACTIONS)


def test_every_point_has_been_struck(stage: Stage, request: pytest.FixtureRequest) -> None:
    ours = [item for item in request.session.items if item.path == request.path]
    if len(ours) < len(rounds(FORWARD)) + len(rounds(BACKWARD)) + 3:
        pytest.skip("not all rounds were asked for")
    seen = {path.name.split("=")[0] for path in (stage.folder / "once").glob("*/*.*.1")}
    points = {name.rpartition(".")[0].rpartition(".")[0] for name in seen}
    assert points | set(PRODUCER) == POINTS
