"""A call that waits for a person in a demo: the person looks into the service's own book and says so."""

from types import SimpleNamespace
from typing import Any, Self
from uuid import uuid4

import pytest

from fencepost.errors import FencepostError
from fencepost_ops import demo
from fencepost_ops.demo_plan import make_plan

CALL = uuid4()


class FakeLedger:
    def execute(self, statement: str, *_: object) -> Any:
        rows = [(CALL, "key-1")] if statement == demo._TO_REPAIR else [(0,)]
        return SimpleNamespace(fetchall=lambda: rows, fetchone=lambda: rows[0])

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
    monkeypatch.setattr(demo, "Client", FakeClient)
    book: dict[str, list[Any]] = {"key-1": []}
    fleet: Any = SimpleNamespace(
        connect=lambda _role: FakeLedger(),
        database=SimpleNamespace(dsns={"producer": "p", "operator": "o"}),
        valkey=SimpleNamespace(url=lambda: "redis://"),
        sandbox=SimpleNamespace(book=SimpleNamespace(effects=lambda key: book[key])),
    )
    screen: Any = SimpleNamespace(say=said.append, ended=lambda _count: None)
    made = demo.Demo(fleet, make_plan(1, 10), screen)
    return SimpleNamespace(demo=made, book=book)


def test_an_effect_in_the_book_settles_the_call_as_happened(running: Any, said: list[str]) -> None:
    running.book["key-1"].append(SimpleNamespace(id="debit_7"))
    running.demo._repair()
    ((call, decision, by, _, receipt),) = FakeClient.decided
    assert (call, decision, by, receipt) == (CALL, "SUCCEEDED", "demo", "debit_7")
    assert running.demo.repaired == 1
    assert f"call {CALL} waited for a person" in said[0]


def test_no_effect_in_the_book_settles_it_as_not_happened_once_that_can_be_said(running: Any) -> None:
    FakeClient.refusals = 1
    running.demo._repair()
    assert running.demo.repaired == 0
    running.demo._repair()
    assert [decision[1] for decision in FakeClient.decided] == ["FAILED"]
    assert running.demo.repaired == 1
