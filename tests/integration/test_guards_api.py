"""The HTTP interface's login, in plain SQL: it cancels, and is no worker and no operator."""

import json
from typing import Any

from fencepost.clock import uuid7
from fencepost.events import EventType
from fencepost.ledger.guards.cancels import CANCEL_WRITES
from fencepost.states import CALL_HOPS, RUN_HOPS
from tests.integration.guards_bench import HELD, WORKER, CallTarget, presented
from tests.integration.ledger_bench import TENANT

API = "fencepost_api"
E = EventType
CALL_MOVES = [(via, s, t) for via in sorted(CALL_HOPS) for s, t in sorted(CALL_HOPS[via])]
RUN_MOVES = [(via, s, t) for via in sorted(RUN_HOPS) for s, t in sorted(RUN_HOPS[via])]


def test_of_all_moves_of_a_call_it_makes_those_of_a_cancel(target: CallTarget) -> None:
    for via, source, to in CALL_MOVES:
        target.put(source)
        said = target.move(via, to, role=API)
        assert said == (None if via == "cancel" else "FP002"), (via, source, to, target.attack.said)
        if via != "cancel":
            assert "may cancel it, and nothing else" in target.attack.said


def test_of_all_moves_of_a_run_it_makes_those_of_a_cancel(target: CallTarget) -> None:
    attack, run = target.attack, target.run
    attack.force("UPDATE fencepost.calls SET state = 'CANCELLED', doubt = false WHERE run = %s", run)
    for via, source, to in RUN_MOVES:
        seq, _, head = attack.event(run, target.call if via == "call" else None)
        attack.put("runs", run, **(HELD | {"status": source, "seq": seq - 1}))
        change = {"status": to, "seq": seq, "head_hash": head, **presented(via, seq - 1)}
        if via == "call":
            change |= {"presented_office": "call", "presented_call": target.call}
        said = attack.update("runs", run, change, API)
        assert said == (None if via == "cancel" else "FP002"), (via, source, to, attack.said)
        if via != "cancel":
            assert "may cancel it, and nothing else" in attack.said


def test_it_counts_nothing_in_a_run_without_a_word(target: CallTarget) -> None:
    seq, _, head = target.attack.event(target.run, target.call)
    counted = {"effects": 1, "seq": seq, "head_hash": head}
    assert target.attack.update("runs", target.run, counted, WORKER) is None
    assert target.attack.update("runs", target.run, counted, API) == "FP002"


def test_it_writes_the_events_of_a_cancel_and_no_others(target: CallTarget) -> None:
    ((seq, head),) = target.attack.force(
        "SELECT seq, head_hash FROM fencepost.runs WHERE id = %s", target.run
    )

    def insert(kind: EventType, role: str) -> str | None:
        values: dict[str, Any] = {"tenant": TENANT, "run": target.run, "seq": seq + 1, "id": uuid7()}
        values |= {"type": kind, "version": 1, "body": json.dumps({}), "digest": "", "principal": "p"}
        values |= {"causation": uuid7(), "recorded_at": "2026-01-01T00:00:00Z", "projection": "p"}
        values |= {"prev_hash": head, "hash": "h"}
        names, places = ", ".join(values), ", ".join(["%s"] * len(values))
        statement = f"INSERT INTO fencepost.events ({names}) VALUES ({places})"
        return target.attack.attempt(statement, *values.values(), role=role)

    assert {kind for kind in EventType if insert(kind, API) != "FP002"} == CANCEL_WRITES
    assert {insert(kind, role) for kind in EventType for role in (WORKER, API)} == {None, "FP002"}
    assert {insert(kind, WORKER) for kind in EventType} == {None}


def test_it_takes_no_key_for_a_call_and_lets_go_of_what_is_cancelled(target: CallTarget) -> None:
    ((key,),) = target.attack.force("SELECT operation FROM fencepost.calls WHERE id = %s", target.call)

    def update(change: str, role: str) -> str | None:
        statement = f"UPDATE fencepost.operations SET {change} WHERE key = %s AND tenant = %s"
        return target.attack.attempt(statement, key, TENANT, role=role)

    opened = "status = 'open', expires_at = NULL"
    assert (update(opened, WORKER), update(opened, API)) == (None, "FP002")
    target.put("CANCELLED")
    assert update("status = 'released'", API) is None
