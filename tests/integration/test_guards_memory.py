"""What Postgres refuses of memory beside a ledger: what no attempt under way asks for."""

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest

from fencepost.canonical import encode
from fencepost.clock import uuid7
from fencepost.events import EventType
from tests.integration.guards_bench import OWNER, WORKER, CallTarget, attack
from tests.integration.ledger_bench import TENANT, Bench, Fields

VALUE = encode({"b": [1, None], "a": 'é\t"\u2028'}).decode()
INSERT = """
INSERT INTO fencepost.memory (tenant, space, key, version, value, absent, restores, untrusted, operation, run,
    call, written_at)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, '2026-01-01')
"""


class Writing:
    """A call whose attempt writes `VALUE` as the second version of a key."""

    def __init__(self, target: CallTarget, bench: Bench) -> None:
        self.attack, self.target = target.attack, target
        self.seq, _ = target.event("term", EventType.TOOL_ATTEMPT_STARTED, attempt=1)
        self.asks("write", f'{{"expected":1,"key":"k","value":{VALUE}}}')
        until = bench.now() + timedelta(minutes=1)
        target.put("DISPATCHING", attempts=1, version=self.seq, in_flight_until=until)
        operation = target.column("operation")
        self.attack.force(
            "UPDATE fencepost.operations SET status = 'open', run = %s, call = %s WHERE key = %s",
            target.run,
            target.call,
            operation,
        )
        self.row: dict[str, Any] = {
            "tenant": TENANT,
            "space": "notes",
            "key": "k",
            "version": 2,
            "value": VALUE,
        }
        self.row |= {"absent": False, "restores": None, "untrusted": False, "operation": operation}
        self.row |= {"run": target.run, "call": target.call}
        first = self.row | {"version": 1, "value": "1", "untrusted": True, "operation": "first"}
        self.attack.force(INSERT, *first.values())

    def asks(self, what: str, arguments: str) -> None:
        self.attack.put("calls", self.target.call, tool=f"notes.{what}", arguments=arguments)

    def refused(self, role: str | None = WORKER, **other: Any) -> str | None:
        return self.attack.attempt(INSERT, *(self.row | other).values(), role=role)


@pytest.fixture
def writing(module_bench: Bench, planned: tuple[UUID, UUID, UUID, int]) -> Iterator[Writing]:
    with attack(module_bench) as opened:
        yield Writing(CallTarget(planned, opened), module_bench)


OTHER: dict[str, Any] = {"tenant": "another", "space": "plans", "key": "other", "value": "2"}
OTHER |= {"operation": "forged", "run": uuid7(), "call": uuid7()}


def test_what_is_written_is_what_its_call_asks_for(writing: Writing) -> None:
    assert writing.refused() is None, writing.attack.said
    for name, other in OTHER.items():
        version = 1 if name in {"tenant", "space", "key"} else 2
        for role in (WORKER, OWNER):
            assert writing.refused(role, **{name: other, "version": version}) == "FP002", name


STATES: list[dict[str, Any]] = [
    {"state": "UNKNOWN"},
    {"state": "FAILED", "owner": None},
    {"state": "INTENT_RECORDED"},
    {"owner": None},
    {"in_flight_until": "2026-01-01T00:00:00Z"},
    {"in_flight_until": None},
    {"tool": "notes.read"},
    {"tool": "notes.restore"},
    {"arguments": '{"expected":0,"key":"k","value":' + VALUE + "}"},
]


@pytest.mark.parametrize("wrong", STATES)
def test_only_while_its_attempt_is_under_way(writing: Writing, wrong: dict[str, Any]) -> None:
    writing.attack.put("calls", writing.target.call, **wrong)
    assert writing.refused() == "FP002"


@pytest.mark.parametrize("change", ["status = 'failed'", "status = 'completed'", "call = gen_random_uuid()"])
def test_only_under_a_key_that_its_call_holds(writing: Writing, change: str) -> None:
    writing.attack.force(f"UPDATE fencepost.operations SET {change} WHERE key = %s", writing.row["operation"])
    assert writing.refused() == "FP002"


def test_what_a_run_had_learnt_before_it_asked_stays_untrusted(writing: Writing) -> None:
    put, run = writing.attack.put, writing.target.run
    put("runs", run, tainted=writing.seq - 1)
    assert writing.refused() == "FP002"
    assert writing.refused(untrusted=True) is None
    put("runs", run, tainted=writing.seq + 1)
    assert writing.refused() is None, "it was asked for before"


def test_a_restored_version_is_what_it_was(writing: Writing) -> None:
    restored: Fields = {"restores": 1, "value": "1", "untrusted": True}
    assert writing.refused(**restored) == "FP002", "its call writes"
    writing.asks("restore", '{"expected":1,"key":"k","to":1}')
    assert writing.refused(**restored) is None, writing.attack.said
    wrongs: list[Fields] = [{"value": "2"}, {"untrusted": False}, {"value": None, "absent": True}]
    for wrong in wrongs:
        assert writing.refused(**(restored | wrong)) == "FP001", wrong
    nothing: Fields = {"restores": 0, "value": None, "absent": True, "untrusted": True}
    assert writing.refused(**nothing) == "FP002"
    writing.asks("restore", '{"expected":1,"key":"k","to":0}')
    assert writing.refused(**nothing) is None, writing.attack.said
    nothing |= {"value": "1", "absent": False}
    assert writing.refused(**nothing) == "FP001"


def test_a_row_that_is_written_by_hand_takes_the_lock_of_its_slot(writing: Writing, bench: Bench) -> None:
    asked = "SELECT said FROM fencepost.written_memory(%s, 'notes', 'k', %s)"
    with psycopg.connect(bench.database.dsns["worker"], autocommit=True) as other:
        slot = (TENANT, writing.row["operation"])
        assert other.execute(asked, slot).fetchall() == [("known",)]
        writing.attack.connection.execute(INSERT, list(writing.row.values()))
        assert other.execute(asked, slot).fetchall() == [("busy",)]


def test_a_value_is_compared_as_it_stands(writing: Writing) -> None:
    loose = json.dumps(json.loads(VALUE), indent=1)
    assert writing.refused(value=loose) == "FP002"
