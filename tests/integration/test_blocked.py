"""A run whose planner's or tool's version nobody alive knows is seen to be blocked, with what would help."""

from datetime import timedelta
from uuid import UUID

import pytest

from fencepost import commands as c
from fencepost.decide import fold
from fencepost.events import SCHEMA_VERSION
from fencepost.knowledge import knows
from fencepost.ledger import folding
from fencepost.ledger.blocked import blocked
from fencepost.ledger.connect import Pool
from fencepost.ledger.verify import verify_run
from tests.integration.ledger_bench import TENANT, Bench

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
            return [
                (b.subject, b.reason, b.known)
                for b in blocked(connection, TTL, runs=None if run is None else [run])
            ]
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


def test_a_history_that_a_newer_release_wrote_is_left_to_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = bench.start()
    with monkeypatch.context() as newer:
        newer.setattr(fold, "SCHEMA_VERSION", SCHEMA_VERSION + 1)
        call = bench.debit(run, bench.order())
    assert bench.run(run).written == SCHEMA_VERSION + 1
    what = f"a history of version {SCHEMA_VERSION + 1}"
    before = bench.events(run)
    assert bench.one(bench.claim_call(run, call)) == c.Unfamiliar(what)
    denied = bench.cancel(run)
    assert isinstance(denied, c.Denied)
    assert denied.why == f"the run has {what}, written by a newer release: decide it with that one"
    assert bench.events(run) == before
    stamp(bench, "old", "dispatcher", knows([], [("wallet.debit", 1)]))
    ((subject, reason, _),) = found(bench, run)
    assert subject == call
    assert reason.startswith(f"its history has events of version {SCHEMA_VERSION + 1}, and no living disp")
    bench.sql("UPDATE fencepost.workers SET ended_at = fencepost.now() WHERE token = 'old'")
    with bench.ledger._pool.reading() as connection:
        fault = verify_run(connection, TENANT, run).fault
    assert fault is not None
    assert fault.endswith("written by a newer release: replay it with that one")
    with monkeypatch.context() as newer:
        newer.setattr(folding, "SCHEMA_VERSION", SCHEMA_VERSION + 1)
        assert isinstance(bench.one(bench.claim_call(run, call)), c.Send)
    bench.started.remove(run)  # this release cannot verify it
