"""An UPDATE that does not find what was locked undoes its change; its neighbours are made all the same."""

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest

from fencepost import commands as c
from fencepost.ledger import apply, write
from fencepost.records import amended
from tests.integration.ledger_bench import Bench


@pytest.fixture
def astray() -> Iterator[list[str]]:
    """Keys of operations whose UPDATE is sent somewhere else."""
    keys: list[str] = []

    def misled(connection: Any, batch: write.Writing, now: Any) -> None:
        for place, operation in batch.operations.items():
            if operation.key in keys:
                batch.operations[place] = amended(operation, key="nowhere")
        write.write(connection, batch, now)

    with patch.object(apply, "write", misled):
        yield keys


def test_a_row_that_is_not_found_undoes_its_change_alone(bench: Bench, astray: list[str]) -> None:
    runs = [bench.start(), bench.start()]
    claims = [bench.claim_run(run) for run in runs]
    bench.ledger.apply(claims)
    orders = [bench.order(), bench.order()]
    turns = [
        bench.turn(run, claim, ("wallet.debit", {"order": order}))
        for run, claim, order in zip(runs, claims, orders, strict=True)
    ]
    lost = turns[0].proposals[0].operation  # type: ignore[union-attr]
    assert lost is not None
    astray.append(lost)
    broken, done = bench.ledger.apply(turns)
    assert broken == c.Broken("fewer rows were there to be written than were locked")
    assert done == c.Done("ACTING")
    assert [bench.status(run) for run in runs] == ["PLANNING", "ACTING"]
    assert bench.sql("SELECT count(*) FROM fencepost.calls WHERE run = %s", runs[0]) == [(0,)]
    astray.clear()
    assert bench.one(turns[0]) == c.Done("ACTING")
