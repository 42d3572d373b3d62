"""Every protocol that comes along: it comes out as it says, and each thing it says could have been wrong."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from fencepost.errors import UsageError
from fencepost_ops.drill.drill import Drill
from fencepost_ops.drill.outcome import Outcome
from fencepost_ops.drill.protocol import Asked, Expect, Prediction, Protocol, Service
from fencepost_ops.drill.shipped import shipped_names, shipped_protocol
from fencepost_ops.local import LocalPostgres


@pytest.fixture(scope="module")
def drill(postgres: LocalPostgres) -> Iterator[Drill]:
    one = Drill(postgres, "drill_shipped")
    yield one
    one.close()


def other(value: Any) -> Any:
    """Something else of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, str):
        return f"NOT_{value}"
    if isinstance(value, dict):
        return {name: other(inner) for name, inner in value.items()}
    return [other(inner) for inner in value]


def predictions_one_wrong(outcome: Outcome) -> Iterator[tuple[str, Outcome]]:
    """The same history under each protocol in which one prediction is another."""
    for number, one in enumerate(outcome.struck):
        assert one.fault.predict is not None
        for name, value in one.fault.predict.model_dump(exclude_none=True).items():
            predict = Prediction.model_construct(**{**dict(one.fault.predict), name: other(value)})
            wrong = replace(one, fault=one.fault.model_copy(update={"predict": predict}))
            struck = (*outcome.struck[:number], wrong, *outcome.struck[number + 1 :])
            yield f"{one.fault.named}: {name}", replace(outcome, struck=struck)


def expectations_one_wrong(outcome: Outcome) -> Iterator[tuple[str, Outcome]]:
    """The same history under each protocol in which one expectation is another."""
    expect = outcome.protocol.expect
    for name, value in expect.model_dump(exclude_none=True, exclude_defaults=True).items():
        wrong = [*value, "I13"] if name == "violated" else other(value)
        if name == "attempts_at_least":
            wrong = sum(call.attempts for call in outcome.calls) + 1
        changed = Expect.model_construct(**{**dict(expect), name: wrong})
        yield name, replace(outcome, protocol=outcome.protocol.model_copy(update={"expect": changed}))


@pytest.mark.parametrize("name", shipped_names())
def test_it_comes_out_as_it_says_and_could_have_come_out_otherwise(drill: Drill, name: str) -> None:
    protocol = shipped_protocol(name)
    outcome = drill.run(protocol)
    assert outcome.ok, outcome.problems
    assert outcome.settled
    assert [(one.at, one.nth) for one in outcome.never] == []
    assert len(outcome.struck) == len(protocol.faults)
    for run in outcome.runs:
        assert run.replayed == run.projection
    for one in outcome.struck:  # of a relay or a producer no run or call is known
        assert one.left.run is None or one.replayed == one.left.projection is not None
    assert [one.call for one in outcome.owed if one.who == "person"] == [
        call.id for call in outcome.calls if call.state == "NEEDS_REPAIR"
    ]
    for owed in outcome.owed:
        assert owed.command.startswith(f"fencepost repair {owed.call} --happened --receipt ")
    wrong = [*predictions_one_wrong(outcome), *expectations_one_wrong(outcome)]
    assert wrong
    assert [what for what, one in wrong if one.ok] == []


def test_what_is_no_request_is_said_to_be_none(drill: Drill) -> None:
    with pytest.raises(UsageError, match="run_key holds a NUL"):
        drill.run(Protocol(name="no_request", runs=[Asked(run_key="a\0b")]))
    with pytest.raises(UsageError, match=r"services\.mail: there is no such service"):
        drill.run(Protocol(name="no_service", services={"mail": Service(lag_s=1)}))
