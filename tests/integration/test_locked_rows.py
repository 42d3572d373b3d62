"""What was waited for is there: a lock that had to wait for another session loses no row."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg

from fencepost import commands as c
from fencepost.outcomes import Applied
from tests.awaiting import until
from tests.integration.ledger_bench import Bench

MANY = 5000  # operations; with few, Postgres chooses another plan


def blocked(bench: Bench) -> bool:
    found = bench.sql(
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE wait_event_type = 'Lock' AND datname = current_database()"
    )
    return bool(found[0][0])


def waits_for(bench: Bench, statement: str, row: Any, command: c.Command) -> c.Answer:
    """Apply while another session holds and changes a row; the answer once that session has committed."""
    with psycopg.connect(bench.database.owner) as other, ThreadPoolExecutor(1) as pool:
        other.execute("SET session_replication_role = replica")  # the change itself is not what is tested
        other.execute(statement, [row])
        answer = pool.submit(bench.one, command)
        until("the other waits for the row", lambda: blocked(bench))
        other.commit()
        found: c.Answer = answer.result(timeout=20)
        return found


def crowd(bench: Bench) -> None:
    bench.sql(
        "INSERT INTO fencepost.operations (tenant, key, scope, arguments_hash, status) SELECT 'shop',"
        " encode(sha256(n::text::bytea), 'hex'), 's', '', 'released' FROM generate_series(1, %s) n"
        " ON CONFLICT DO NOTHING",
        MANY,
    )
    bench.sql("ANALYZE fencepost.operations")
    bench.sql("ANALYZE fencepost.outbox")


def test_a_key_another_session_was_changing_is_not_lost(bench: Bench) -> None:
    crowd(bench)
    run = bench.start()
    call = bench.debit(run, bench.order())
    key = bench.call(call).operation
    changed = "UPDATE fencepost.operations SET reused = reused + 1 WHERE key = %s"
    term = bench.term()
    send = waits_for(bench, changed, key, bench.claim_call(run, call, term))
    assert isinstance(send, c.Send)
    done = waits_for(bench, changed, key, bench.outcome(send, term, Applied("{}", "d-1")))
    assert done == c.Done("SUCCEEDED")
    assert bench.operation(call).status == "completed"


def test_a_run_and_a_row_another_session_was_changing_are_not_lost(bench: Bench) -> None:
    crowd(bench)
    run = bench.start()
    call = bench.debit(run, bench.order())
    send, term = bench.dispatch(run, call)
    published = "UPDATE fencepost.outbox SET publish_count = publish_count + 1 WHERE subject = %s"
    done = waits_for(bench, published, call, bench.outcome(send, term, Applied("{}", "d-1")))
    assert done == c.Done("SUCCEEDED")
    claim = bench.claim_run(run)
    touched = "UPDATE fencepost.runs SET preview = preview WHERE id = %s"
    assert isinstance(waits_for(bench, touched, run, claim), c.Plan)


def test_a_key_is_not_lost_to_the_turn_that_names_it_again(bench: Bench) -> None:
    crowd(bench)
    order = bench.order()
    first = bench.debit(bench.start(), order)
    second = bench.start()
    claim = bench.claim_run(second)
    assert isinstance(bench.one(claim), c.Plan)
    changed = "UPDATE fencepost.operations SET reused = reused + 1 WHERE key = %s"
    turn = bench.turn(second, claim, ("wallet.debit", {"order": order}))
    answer = waits_for(bench, changed, bench.call(first).operation, turn)
    assert answer == c.Done("ACTING")
    assert bench.call(turn.call_ids[0]).waits
