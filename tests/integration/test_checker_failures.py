"""The checker counts a planner's failures as the ledger does."""

from fencepost import commands as c
from fencepost.models import Spent
from tests.integration.family import wrong
from tests.integration.ledger_bench import Bench


def test_what_was_drained_is_nobodys_failure(bench: Bench) -> None:
    run = bench.start()
    claim = bench.claim_run(run)
    bench.one(claim)
    bench.one(c.RecordPlanLost(**bench.base(run), term=claim.term, code=c.DRAINED, message="told to end"))
    assert (bench.run(run).failures, wrong(bench)) == (0, [])


def test_who_moves_to_another_version_begins_anew(bench: Bench) -> None:
    run = bench.start()
    claim = bench.claim_run(run)
    bench.one(claim)
    lost = c.RecordPlanLost(**bench.base(run), term=claim.term, code="timeout", message="m", spent=Spent())
    bench.one(lost)
    assert (bench.run(run).failures, wrong(bench)) == (1, [])
    login = bench.database.dsns["operator"].split("//")[1].split(":")[0]
    bench.operator.apply([c.Repin(**bench.base(run), to=2, by="ann", login=login, reason="x")])
    assert (bench.run(run).failures, wrong(bench)) == (0, [])
