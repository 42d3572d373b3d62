"""Runs are made by commits, not by messages; equal keys make one run, equal intents one effect."""

import itertools
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

import psycopg
import pytest

from fencepost.errors import Conflict
from tests.acceptance.stage import Stage, Step, step

_numbers = itertools.count(1)


def enqueue(connection: psycopg.Connection[Any], stage: Stage, key: str, *turns: list[Step]) -> UUID:
    """As a producer with a transaction of its own does it: no doorbell is rung."""
    row = connection.execute(
        "SELECT run FROM fencepost.enqueue_run(%s, %s, 'steps', 1, 'svc:test', %s::jsonb, interval '60 s')",
        [stage.tenant, key, json.dumps({"turns": turns})],
    ).fetchone()
    assert row is not None
    stage.sent.append(row[0])
    found: UUID = row[0]
    return found


def test_a_run_committed_late_is_carried_out_without_a_doorbell(stage: Stage) -> None:
    reference = f"enqueue-{next(_numbers)}"
    with psycopg.connect(stage.fleet.database.dsns["producer"]) as producer:
        run = enqueue(producer, stage, reference, [step("bank.debit", "debit", reference=reference)])
        other = stage.send([step("bank.debit", "debit", reference=f"{reference}-other")])
        assert stage.ended(other) == ["COMPLETED"]  # what came after it is long read and done
        assert stage.value("SELECT count(*) FROM fencepost.runs WHERE id = %s", run) == 0
    assert stage.ended(run) == ["COMPLETED"]
    assert stage.effects(reference) == ["debit"]


def test_a_run_rolled_back_leaves_nothing(stage: Stage) -> None:
    reference = f"enqueue-{next(_numbers)}"
    with psycopg.connect(stage.fleet.database.dsns["producer"]) as producer:
        run = enqueue(producer, stage, reference, [step("bank.debit", "debit", reference=reference)])
        stage.sent.remove(run)
        producer.rollback()
    after = stage.send([step("bank.debit", "debit", reference=f"{reference}-after")])
    assert stage.ended(after) == ["COMPLETED"]
    assert stage.value("SELECT count(*) FROM fencepost.outbox WHERE run = %s", run) == 0
    assert stage.effects(reference) == []


def test_a_lower_id_that_commits_after_a_higher_one_is_not_overlooked(stage: Stage) -> None:
    reference = f"enqueue-{next(_numbers)}"
    dsn = stage.fleet.database.dsns["producer"]
    with psycopg.connect(dsn) as first, psycopg.connect(dsn) as gap, psycopg.connect(dsn) as second:
        low = enqueue(
            first, stage, f"{reference}-low", [step("bank.debit", "d", reference=f"{reference}-low")]
        )
        lost = enqueue(
            gap, stage, f"{reference}-gap", [step("bank.debit", "d", reference=f"{reference}-gap")]
        )
        high = enqueue(
            second, stage, f"{reference}-high", [step("bank.debit", "d", reference=f"{reference}-high")]
        )
        stage.sent.remove(lost)
        second.commit()
        gap.rollback()
        assert stage.ended(high) == ["COMPLETED"]
        first.commit()
    assert stage.ended(low) == ["COMPLETED"]
    assert stage.effects(f"{reference}-low") == ["debit"]


def test_eight_threads_with_one_run_key_make_one_run(stage: Stage) -> None:
    reference = f"enqueue-{next(_numbers)}"
    turn = [step("bank.debit", "debit", reference=reference)]
    start = threading.Barrier(8)

    def send(_: int) -> UUID:
        start.wait()
        return stage.send(turn, key=reference)

    with ThreadPoolExecutor(8) as threads:
        runs = set(threads.map(send, range(8)))
    assert len(runs) == 1
    stage.sent = list(runs)
    assert stage.ended() == ["COMPLETED"]
    assert (stage.effects(reference), stage.requests(reference)) == (["debit"], 1)


def test_another_request_under_a_key_in_flight_is_a_conflict(stage: Stage) -> None:
    reference = f"enqueue-{next(_numbers)}"
    stage.sandbox.fault("delay_before", reference=reference, delay_s=0.5)
    run = stage.send([step("bank.debit", "debit", reference=reference)], key=reference)
    stage.until_event(run, "ToolAttemptStarted")
    with pytest.raises(Conflict):
        stage.send([step("bank.debit", "debit", reference=reference, minor=999)], key=reference)
    assert stage.ended(run) == ["COMPLETED"]


def test_two_runs_with_one_intent_have_one_effect_though_its_holder_dies_after_it(stage: Stage) -> None:
    reference = f"enqueue-{next(_numbers)}"
    turn = [step("bank.debit", "debit", reference=reference)]
    stage.sandbox.fault("delay_before", reference=reference, delay_s=0.3)
    armed = stage.arm("dispatcher", "dispatch.after_effect=crash")
    first = stage.send(turn)
    stage.until_event(first, "ToolAttemptStarted")
    second = stage.send(turn)
    assert stage.ended(first, second) == ["COMPLETED", "COMPLETED"]
    assert armed.fired
    one, other = stage.calls(first)["debit"], stage.calls(second)["debit"]
    assert (one.operation, one.receipt, one.reused) == (other.operation, other.receipt, False)
    assert other.reused
    assert (stage.effects(reference), stage.requests(reference)) == (["debit"], 1)


def test_the_same_intent_with_other_arguments_is_refused(stage: Stage) -> None:
    reference = f"enqueue-{next(_numbers)}"
    first = stage.send([step("bank.debit", "debit", reference=reference)])
    assert stage.ended(first) == ["COMPLETED"]
    second = stage.send([step("bank.debit", "debit", reference=reference, minor=999)])
    assert stage.ended(second) == ["STOPPED"]
    assert stage.calls(second)["debit"].state == "REJECTED"
    assert (stage.effects(reference), stage.requests(reference)) == (["debit"], 1)
