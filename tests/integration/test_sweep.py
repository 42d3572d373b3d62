"""The sweep: what lost its row gets it back, what was put off too long is published."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from fencepost.errors import Unreachable
from fencepost.telemetry import logs
from fencepost_ops.database import LedgerDatabase
from fencepost_ops.local import LocalValkey
from fencepost_workers.sweep import Sweeper, Swept, _tell, sweep
from tests.awaiting import until
from tests.integration.step_shop import WITHIN_S, Shop, opened, replaced


@pytest.fixture
def shop(database: LedgerDatabase, valkey: LocalValkey) -> Iterator[Shop]:
    with opened(database, valkey, slots=4) as one:
        yield one


ROW = "SELECT queue, generation FROM fencepost.outbox WHERE subject = %s"


def lose_rows(shop: Shop) -> None:
    shop.sql("SET session_replication_role = replica")  # no guard: the bug that this is for
    shop.sql("DELETE FROM fencepost.outbox")
    shop.sql("SET session_replication_role = origin")


def test_an_open_subject_without_a_row_is_found_and_gets_it_back(shop: Shop) -> None:
    call = shop.planned("b")[0][1]
    (run,) = shop.enqueue("a")
    assert sweep(shop.worker.pool, shop.worker.ledger) == Swept()
    before = [shop.sql(ROW, subject)[0][0] for subject in (run, call)]
    lose_rows(shop)
    found = sweep(shop.worker.pool, shop.worker.ledger)
    assert {run, call} < set(found.missing)
    assert len(found.missing) == 3, "the run of the call as well"
    assert [shop.sql(ROW, subject)[0][0] for subject in (run, call)] == before
    assert sweep(shop.worker.pool, shop.worker.ledger) == Swept()


def test_a_page_of_rows_that_cannot_be_mended_hides_none_behind_it(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.handler.setFormatter(logs.json_lines())
    runs = shop.enqueue(*"abcdefg")
    lose_rows(shop)
    listed = ",".join(map(str, runs[:4]))
    shop.sql(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS"
        " $$BEGIN RAISE EXCEPTION 'not this one' USING ERRCODE = 'FP001'; END$$"
    )
    shop.sql(
        "CREATE TRIGGER refuse BEFORE INSERT ON fencepost.outbox FOR EACH ROW"
        f" WHEN (NEW.subject = ANY ('{{{listed}}}'::uuid[])) EXECUTE FUNCTION refuse()"
    )
    real = shop.worker.ledger.apply

    def choosy(commands: Any) -> Any:
        if any(command.subject == runs[5] for command in commands):
            raise ValueError("its history cannot be read")
        return real(commands)

    with replaced(shop.worker.ledger, "apply", choosy):
        found = sweep(shop.worker.pool, shop.worker.ledger, page=2)
    assert found.missing == tuple(runs)
    assert [bool(shop.sql(ROW, run)) for run in runs] == [False] * 4 + [True, False, True]
    lines = [json.loads(line) for line in caplog.text.splitlines() if "cannot be made: " in line]
    assert [line["trace_id"] for line in lines] == [run.hex for run in (*runs[:4], runs[5])]


def test_whoever_got_its_row_while_the_sweep_looked_keeps_it(shop: Shop) -> None:
    (run,) = shop.enqueue("a")
    lose_rows(shop)
    real = shop.worker.ledger.apply

    def after_another(commands: Any) -> Any:
        real(commands)
        shop.sql("UPDATE fencepost.outbox SET generation = 7, queue = 'planner'")
        return real(commands)

    with replaced(shop.worker.ledger, "apply", after_another):
        sweep(shop.worker.pool, shop.worker.ledger)
    assert shop.sql(ROW, run) == [("planner", 7)]


def test_a_row_put_off_by_a_clock_that_was_set_back_is_published_when_due(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    lost, paused, dead, planned, late = shop.enqueue(*"abcde")
    to = "UPDATE fencepost.outbox SET publish_count = 3, publish_at = fencepost.now() + %s::interval"
    shop.sql(f"{to} WHERE subject = %s", "1 hour", lost)
    shop.sql(f"{to} WHERE subject = %s", "120 s", paused)  # the longest pause of republication
    shop.sql(f"{to}, dead_at = fencepost.now() WHERE subject = %s", "1 hour", dead)
    due = "due_at = fencepost.now() + interval '50 minutes', generation = generation + 1"
    shop.sql(f"{to}, {due} WHERE subject = %s", "50 minutes", planned)
    shop.sql(f"{to}, {due} WHERE subject = %s", "2 hours", late)

    found = sweep(shop.worker.pool, shop.worker.ledger)

    assert set(found.misplaced) == {lost, late}
    state = "SELECT publish_count, publish_at <= fencepost.now(), publish_at = due_at FROM fencepost.outbox"
    assert shop.sql(f"{state} WHERE subject = %s", lost) == [(0, True, False)]
    assert shop.sql(f"{state} WHERE subject = %s", late) == [(0, False, True)]
    assert sweep(shop.worker.pool, shop.worker.ledger) == Swept()
    _tell(found)
    assert "published 2 rows that were put off too long" in caplog.text


def test_the_sweeper_raises_an_alarm_and_outlives_outages(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    (run,) = shop.enqueue("a")
    lose_rows(shop)
    looks: list[int] = []
    real = shop.worker.ledger.apply

    def away(commands: Any) -> Any:
        looks.append(1)
        if len(looks) == 1:
            raise Unreachable("Postgres is away")
        return real(commands)

    with replaced(shop.worker.ledger, "apply", away):
        sweeper = Sweeper(shop.worker.pool, shop.worker.ledger, every_s=0.01)
        until("the row is back", lambda: shop.sql("SELECT 1 FROM fencepost.outbox"), WITHIN_S)
        sweeper.stop()
    assert "could not look for missing outbox rows: Postgres is away" in caplog.text
    assert f"re-created 1 missing outbox rows: {run}" in caplog.text
