"""Kills and freezes: the right process, at the right moment, and nobody is left asleep."""

import signal
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID, uuid4

import pytest

from fencepost_ops import demo_havoc
from fencepost_ops.demo_havoc import Havoc
from fencepost_ops.demo_plan import Freeze, Kill, Order

CALL = uuid4()
BAIT = tuple(Order(f"held.{n:03d}", {}) for n in range(8))


class Rows(list[Any]):
    def fetchone(self) -> Any:
        return self[0]


class FakeLedger:
    """Says who holds what. `in_flight` are (pid, call, fence, key); `taken_over` counts those taken since."""

    def __init__(self) -> None:
        self.busy: list[int] = []
        self.in_flight: list[tuple[int, UUID, int, str]] = []
        self.taken_over = 0
        self.brought: list[Order] = []

    def bring(self, orders: Sequence[Order]) -> None:
        self.brought += orders

    def execute(self, statement: str, _values: object = None) -> Rows:
        if statement == demo_havoc._BUSY:
            return Rows((pid,) for pid in self.busy)
        if statement == demo_havoc._IN_FLIGHT:
            return Rows(self.in_flight)
        if statement == demo_havoc._AT_WORK:
            return Rows((pid,) for pid in (11, 12, 21))
        return Rows([(self.taken_over,)])


class FakeFleet:
    def __init__(self) -> None:
        self.running = {"relay": 1, "dispatcher-1": 11, "dispatcher-2": 12, "planner": 21}
        self.sent: list[tuple[str, int]] = []

    def count(self, role: str) -> int:
        return 2 if role == "dispatcher" else 1

    def pids(self, role: str | None = None) -> dict[str, int]:
        return {n: p for n, p in self.running.items() if role is None or n.startswith(role)}

    def signal(self, name: str, number: int) -> int:
        self.sent.append((name, number))
        return self.running[name]


Made = tuple[Havoc, FakeFleet, FakeLedger, list[str]]


@pytest.fixture
def made() -> Made:
    fleet, ledger, said = FakeFleet(), FakeLedger(), list[str]()
    say: Callable[[str], None] = said.append
    return Havoc(fleet, ledger, say, ledger.bring, bool), fleet, ledger, said  # type: ignore[arg-type]


def test_the_process_with_work_in_hand_is_killed(made: Made) -> None:
    havoc, fleet, ledger, said = made
    ledger.busy = [12]
    havoc.act(Kill("dispatcher"))
    assert fleet.sent == [("dispatcher-2", signal.SIGKILL)]
    assert havoc.killed == 1
    assert said == ["killed dispatcher-2 (pid 12), which had work in hand"]


def test_without_work_in_hand_somebody_alive_is_killed_after_a_while(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo_havoc, "PATIENCE_S", 0.0)
    havoc, fleet, _, _ = made
    havoc.act(Kill("planner"))
    assert fleet.sent == [("planner", signal.SIGKILL)]


def test_where_nobody_is_alive_no_kill_is_counted(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_havoc, "ALIVE_WITHIN_S", 0.0)
    havoc, fleet, _, said = made
    fleet.running = {}
    havoc.act(Kill("relay"))
    assert (havoc.killed, fleet.sent) == (0, [])
    assert said == ["no relay was alive to be killed"]


def test_a_dispatcher_is_frozen_with_an_attempt_in_flight_and_woken_once_it_was_taken_over(
    made: Made,
) -> None:
    havoc, fleet, ledger, _ = made
    ledger.in_flight = [(12, CALL, 3, "key")]
    havoc.act(Freeze(BAIT))
    assert fleet.sent == [("dispatcher-2", signal.SIGSTOP)]
    havoc.look()
    assert havoc.asleep == 1
    ledger.taken_over = 1
    havoc.look()
    assert fleet.sent == [("dispatcher-2", signal.SIGSTOP), ("dispatcher-2", signal.SIGCONT)]
    assert (havoc.frozen, havoc.asleep) == (1, 0)
    assert sorted(order.id for order in ledger.brought) == [order.id for order in BAIT]


def test_an_attempt_whose_request_has_not_arrived_is_no_reason_to_freeze(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo_havoc, "BITES_WITHIN_S", 0.01)
    havoc, _, ledger, _ = made
    ledger.in_flight = [(12, CALL, 3, "")]
    havoc.act(Freeze(BAIT))
    assert havoc.frozen == 0


def test_where_nothing_is_caught_in_flight_no_freeze_is_counted(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo_havoc, "BITES_WITHIN_S", 0.0)
    havoc, fleet, ledger, said = made
    havoc.act(Freeze(BAIT))
    assert (havoc.frozen, fleet.sent, len(ledger.brought)) == (0, [], len(BAIT))
    assert said == ["no dispatcher had an attempt in flight to be frozen with"]


def test_who_sleeps_or_has_just_been_woken_is_not_killed(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_havoc, "COMPANY_WITHIN_S", 0.0)
    havoc, fleet, ledger, _ = made
    ledger.in_flight, ledger.busy = [(12, CALL, 3, "key")], [12, 11]
    havoc.act(Freeze(BAIT))
    havoc.act(Kill("dispatcher"))
    havoc.thaw()
    havoc.act(Kill("dispatcher"))
    assert [name for name, number in fleet.sent if number == signal.SIGKILL] == ["dispatcher-1"] * 2


def test_a_sleeper_is_woken_at_the_latest_when_the_demo_ends(made: Made) -> None:
    havoc, fleet, ledger, _ = made
    ledger.in_flight = [(11, CALL, 3, "key")]
    havoc.act(Freeze(BAIT))
    havoc.thaw()
    havoc.thaw()
    assert fleet.sent[1:] == [("dispatcher-1", signal.SIGCONT)]


def test_a_pid_that_belongs_to_another_by_now_gets_no_signal(made: Made) -> None:
    havoc, fleet, ledger, _ = made
    ledger.in_flight = [(11, CALL, 3, "key")]
    havoc.act(Freeze(BAIT))
    fleet.running["dispatcher-1"] = 99
    havoc.thaw()
    assert len(fleet.sent) == 1
