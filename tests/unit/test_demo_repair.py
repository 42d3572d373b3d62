"""What waits for a person in a trial: the person looks into the service's own book and says so."""

from types import SimpleNamespace
from typing import Any, Self
from uuid import uuid4

import pytest

from fencepost.errors import FencepostError
from fencepost.ledger import abandoned
from fencepost_ops import trial

CALL, LEFT = uuid4(), uuid4()


class Rows(list[Any]):
    def fetchall(self) -> list[Any]:
        return self

    def fetchone(self) -> Any:
        return self[0] if self else None


class FakeLedger:
    left = False
    again = True

    def execute(self, statement: str, *_: object) -> Rows:
        if statement == trial._TO_REPAIR:
            return Rows([(CALL, "key-1")])
        row = (
            "shop",
            uuid4(),
            "o-1",
            LEFT,
            "debit",
            "wallet.debit",
            1,
            "r",
            "given up",
            None,
            self.again,
            1,
            True,
        )
        return Rows([row] if statement == abandoned._ABANDONED and self.left else [])

    def close(self) -> None:
        pass


class FakeClient:
    """Remembers what a person decides; `refusals` says how often that is too early."""

    decided: list[tuple[Any, ...]]
    refusals = 0

    def __init__(self, *_: str) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def repair(self, *decision: Any) -> None:
        if FakeClient.refusals:
            FakeClient.refusals -= 1
            raise FencepostError("its last request may still take effect")
        FakeClient.decided.append(decision)


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch, said: list[str]) -> Any:
    FakeClient.decided, FakeClient.refusals = [], 0
    monkeypatch.setattr(trial, "Client", FakeClient)
    book: dict[str, list[Any]] = {"key-1": []}
    ledger = FakeLedger()
    fleet: Any = SimpleNamespace(
        connect=lambda _role: ledger,
        database=SimpleNamespace(dsns={"producer": "p", "operator": "o"}),
        valkey=SimpleNamespace(url=lambda: "redis://"),
        sandbox=SimpleNamespace(book=SimpleNamespace(effects=lambda key: book[key])),
    )
    screen: Any = SimpleNamespace(say=said.append, ended=lambda _count: None)
    return SimpleNamespace(trial=trial.Trial(fleet, screen), book=book, ledger=ledger)


def test_an_effect_in_the_book_settles_the_call_as_happened(running: Any, said: list[str]) -> None:
    running.book["key-1"].append(SimpleNamespace(id="debit_7"))
    running.trial._repair()
    ((call, decision, by, _, receipt),) = FakeClient.decided
    assert (call, decision, by, receipt) == (CALL, "SUCCEEDED", "trial", "debit_7")
    assert running.trial.repaired == 1
    assert f"call {CALL} waited for a person" in said[0]


def test_no_effect_in_the_book_settles_it_as_not_happened_once_that_can_be_said(running: Any) -> None:
    FakeClient.refusals = 1
    running.trial._repair()
    assert running.trial.repaired == 0
    running.trial._repair()
    assert [decision[1] for decision in FakeClient.decided] == ["FAILED"]
    assert running.trial.repaired == 1


def test_the_person_does_not_wait_until_all_is_calm(running: Any) -> None:
    running.trial.settle_within_s = 0.05
    running.trial.enqueued = 1  # a run that ends once somebody has decided
    running.trial.settle()
    assert not running.trial.settled
    assert (CALL, "FAILED") in [decision[:2] for decision in FakeClient.decided]


@pytest.mark.parametrize(("again", "decision"), [(True, "OFFSET"), (False, "LEAVE")])
def test_an_effect_that_was_not_offset_is_asked_for_again_or_left(
    running: Any, again: bool, decision: str
) -> None:
    running.ledger.left, running.ledger.again = True, again
    assert running.trial._repair() == 2
    assert [(decided[0], decided[1]) for decided in FakeClient.decided] == [
        (CALL, "FAILED"),
        (LEFT, decision),
    ]
