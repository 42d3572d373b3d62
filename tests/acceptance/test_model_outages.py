"""A provider of models throttles under many runs: few requests, no run lost; those without a model go on."""

from pathlib import Path

from fencepost.models import Wire
from fencepost_ops.bench_models_measures import started, throttled, waiting
from tests.acceptance.weather import long_only

RUNS = 40


@long_only
def test_a_provider_that_throttles_meets_few_requests_and_ends_no_run(tmp_path: Path) -> None:
    with (tmp_path / "fleet.log").open("w") as log, started(10.0, str(Wire.MESSAGES), 2, log) as bench:
        waited = waiting(bench, RUNS, 1.0)
        found = throttled(bench, RUNS, 2.0, 60.0)
    assert waited.open == RUNS
    assert waited.transaction_s < 2
    assert (found.completed, found.turns, found.beside.left) == (RUNS, 2 * RUNS, 0)
    assert found.requests == found.turns + found.refused
    assert found.amplification <= 1.1
    assert found.meanwhile == 0, "nothing is answered while the provider throttles"
    assert found.beside.meanwhile > 0
