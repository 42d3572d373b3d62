"""A run whose planner's or tool's version nobody alive knows is seen to be blocked, with what would help."""

from datetime import timedelta
from uuid import UUID

import pytest

from fencepost.knowledge import knows
from fencepost.ledger.blocked import blocked
from fencepost.ledger.connect import Pool
from tests.integration.ledger_bench import Bench

TTL = timedelta(hours=1)


def stamp(bench: Bench, token: str, role: str, known: str | None) -> None:
    bench.sql(
        "INSERT INTO fencepost.workers (token, role, host, pid, knows, started_at, last_seen)"
        " VALUES (%s, %s, 'h', 1, %s, fencepost.now(), fencepost.now())",
        token,
        role,
        known,
    )


def found(bench: Bench, run: UUID | None = None) -> list[tuple[UUID, str, tuple[int, ...]]]:
    pool = Pool(bench.database.dsns["operator"], "look", 1)
    try:
        with pool.reading() as connection:
            return [(b.subject, b.reason, b.known) for b in blocked(connection, TTL, run=run)]
    finally:
        pool.close()


@pytest.mark.parametrize(
    ("planners", "versions"),
    [([("p", 2), ("p", 3)], (2, 3)), ([("p2", 1)], ()), ([("px", 1), ("p_", 1)], ()), ([], ())],
)
def test_a_planner_nobody_knows_blocks_its_run(
    bench: Bench, planners: list[tuple[str, int]], versions: tuple[int, ...]
) -> None:
    run = bench.start()
    assert found(bench, run) == []  # nobody has said what he knows
    stamp(bench, f"w-{len(planners)}-{planners[:1]}", "planner", knows(planners, ()))
    ((subject, reason, known),) = found(bench, run)
    assert (subject, known) == (run, versions)
    assert reason.startswith("no living planner knows planner p version 1; ")
    stamp(bench, f"knows-{planners[:1]}", "planner", knows([("p", 1)], ()))
    assert found(bench, run) == []
    bench.sql(
        "UPDATE fencepost.workers SET ended_at = fencepost.now() WHERE knows IS NOT NULL AND ended_at IS NULL"
    )


def test_a_tool_nobody_of_its_queue_knows_blocks_its_call(bench: Bench) -> None:
    run = bench.start()
    call = bench.debit(run, bench.order())
    stamp(bench, "planner-knows", "planner", knows([("p", 1)], [("wallet.debit", 1)]))
    stamp(bench, "d-1", "dispatcher", knows([], [("wallet.debit", 2)]))
    ((subject, reason, _),) = found(bench, run)
    assert subject == call
    assert reason == "no living dispatcher knows tool wallet.debit version 1; they know version 2"
    bench.sql("UPDATE fencepost.workers SET ended_at = fencepost.now() WHERE token = 'd-1'")
    assert found(bench, run) == []  # there is no dispatcher: that is another trouble
