"""Why runs stop: for the business, or because who plans cannot be asked; and which of them wait instead."""

from datetime import UTC, datetime
from itertools import product
from uuid import UUID, uuid4

import pytest

from fencepost.decide.stopping import waits
from fencepost.states import GROUNDS, Ground, StopReason
from fencepost.subjects import Run
from fencepost.tools import OnStop

PLUMBING = {StopReason.PLANNER_FAILED}
AT = datetime(2026, 1, 1, tzinfo=UTC)


def run(on_stop: str, effects: int = 0, calls: int = 0, parent: UUID | None = None) -> Run:
    said = {"run_key": "k", "planner": "p", "principal": "svc:a", "request": "{}", "on_stop": on_stop}
    at = {"created_at": AT, "deadline": AT}
    return Run("t", uuid4(), planner_version=1, effects=effects, open=calls, parent=parent, **said, **at)  # type: ignore[arg-type]


def test_every_reason_is_of_one_kind() -> None:
    assert set(GROUNDS) == set(StopReason)
    assert {reason for reason, ground in GROUNDS.items() if ground is Ground.PLUMBING} == PLUMBING


@pytest.mark.parametrize("reason", StopReason)
@pytest.mark.parametrize("on_stop", OnStop)
def test_a_run_waits_only_for_the_plumbing_and_only_where_something_would_be_undone(
    on_stop: OnStop, reason: StopReason
) -> None:
    for effects, calls, parent in product((0, 2), (0, 1), (None, uuid4())):
        at_stake = bool(effects or calls or parent)
        expected = reason in PLUMBING and on_stop is OnStop.COMPENSATE and at_stake
        assert waits(run(on_stop, effects, calls, parent), reason) is expected
