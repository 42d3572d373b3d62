"""Many histories on real Postgres: a short sweep, a short exploration, and a planted bug found and shrunk."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fencepost import recovery
from fencepost_ops.drill.app import CONTRACTS
from fencepost_ops.drill.command import drill as command
from fencepost_ops.drill.drill import Drill
from fencepost_ops.drill.explore import Exploration, explored
from fencepost_ops.drill.jobs import HUNG, Alone, Crew, tell
from fencepost_ops.drill.many import keep, shortened
from fencepost_ops.drill.protocol import Fault, Protocol, read_protocol
from fencepost_ops.drill.shrink import size
from fencepost_ops.drill.sweep import Base, Sweep
from fencepost_ops.local import LocalPostgres
from tests.acceptance.weather import LONG, long_only

EXPLORED = 2000 if LONG else 12


@pytest.fixture(scope="module")
def drill(postgres: LocalPostgres) -> Iterator[Drill]:
    one = Drill(postgres, "drill_sweep")
    yield one
    one.close()


def test_a_quick_sweep_is_clean(drill: Drill) -> None:
    shapes = ("one", "stop", "one", "both", "one", "two")
    bases = [Base(contract, shape) for contract, shape in zip(CONTRACTS, shapes, strict=True)]
    sweep = Sweep(Alone(drill), budget=45, bases=bases)
    for told in sweep.events():
        assert told.ok, (told.protocol.to_text(), told.problems)
    result = sweep.result
    assert result.ok
    assert (result.bases, result.singles, result.pairs, result.never) == (6, 30, 15, 0)
    assert (len(result.contracts), len(result.shapes)) == (6, 4)
    assert result.left_out > 1000


def test_a_fleet_that_leaves_everything_to_people_is_found(
    drill: Drill, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = Fault(at="dispatch.response_lost", do="lost")
    asked = next(one for n in range(693, 999, 3) if lost in (one := explored(1, n)).faults)
    swept = Base("lookup", "one").protocol(lost)
    assert [tell(drill, 1, one).kinds for one in (swept, asked)] == [(), ()]
    monkeypatch.setattr(recovery, "recover", lambda *_given: recovery.Repair("planted"))
    assert [tell(drill, 1, one).kinds for one in (swept, asked)] == [("unexpected",), ("unexpected",)]


@pytest.mark.timeout(7200)
def test_random_histories_are_clean(drill: Drill) -> None:
    exploration = Exploration(Alone(drill), 11, range(1, EXPLORED + 1))
    for told in exploration.events():
        assert told.ok, (told.protocol.to_text(), told.problems)
    assert exploration.result.histories == EXPLORED
    assert exploration.result.struck > EXPLORED / 2


def test_a_random_history_is_the_same_again(drill: Drill) -> None:
    first, again = (tell(drill, 5, explored(11, 5)) for _ in range(2))
    assert first.digest == again.digest != ""


def test_a_planted_bug_is_found_and_shrunk(drill: Drill, tmp_path: Path) -> None:
    """A lost answer is taken for a failure. What fails first is far from the shortest that fails."""
    planted = {"sabotage": ["timeout_is_failed"]}
    runs = Alone(drill)
    histories = ((number, explored(5, number).model_copy(update=planted)) for number in range(1, 200))
    found = next(told for told in runs.run(histories) if not told.ok)
    assert found.kinds[0] == "I1"
    protocol, about = shortened(runs, found)
    assert size(protocol) <= (1, 2, 2)
    assert len(protocol.faults) <= 2
    assert size(protocol) < size(found.protocol)
    file = keep(tmp_path, protocol, about)
    outcome = drill.run(read_protocol(file))
    assert not outcome.ok, "the file fails as it is, for whoever runs it"
    assert "I1" in outcome.report.violated
    healed = drill.run(read_protocol(file).model_copy(update={"sabotage": []}))
    assert healed.report.ok, "and passes once the defence is there again"


def test_the_only_process_of_a_role_goes_on_when_nobody_can_take_over(drill: Drill) -> None:
    """Found by an exploration, and shrunk: its messages were published for ever, to a planner that stood."""
    shared = {"contract": "dedupes", "reference": "shared"}
    protocol = Protocol.model_validate(
        {
            "name": "the-only-planner",
            "runs": [
                {"calls": 0},
                {"deadline_s": 8.0, "at_s": 2.779},
                {"planner": "two", "input": shared, "deadline_s": 15.0, "at_s": 1.648, "on_stop": "leave"},
            ],
            "fleet": {"planner": 1, "dispatcher": 1, "reconciler": 1, "compensator": 1},
            "faults": [
                {"at": "dispatch.after_lease", "do": "error"},
                {"at": "planner.after_claim", "do": "pause", "nth": 3},
            ],
        }
    )
    told = tell(drill, 1, protocol)
    assert (told.kinds, told.missed) == ((), 0)


def raising(_self: object, *_given: object, **_named: object) -> Any:
    raise ZeroDivisionError("planted")


def test_a_history_that_raises_is_a_failure_of_its_own(drill: Drill, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as planted:
        planted.setattr("fencepost_ops.drill.process.Worker.work", raising)
        told = tell(drill, 1, Protocol(name="raises"))
    assert told.kinds == ("raised ZeroDivisionError",)
    assert "planted" in told.problems[0]
    assert tell(drill, 1, Protocol(name="raises")).ok, "and the next is not harmed by it"


@long_only
def test_a_crew_goes_on_when_a_history_hangs_or_its_process_is_killed() -> None:
    hangs = Protocol(name="hangs", app="tests.integration.drill_hanging_app:app")
    dies = Protocol(name="dies", app="tests.integration.drill_hanging_app:app", runs=[{"planner": "dies"}])  # type: ignore[list-item]
    good = [Protocol(name=f"good-{n}") for n in range(4)]
    with Crew(2, hung_s=5.0) as crew:
        found = {t.protocol.name: t.kinds for t in crew.run(enumerate([hangs, good[0], dies, *good[1:]]))}
    assert found == {"hangs": (HUNG,), "dies": (HUNG,), **{one.name: () for one in good}}


@long_only
def test_the_command_explores_in_processes_of_its_own(tmp_path: Path) -> None:
    found = CliRunner().invoke(
        command, ["--explore", "6", "--seed", "4", "--failures", str(tmp_path / "none"), "--json"]
    )
    assert found.exit_code == 0, found.output
    told = json.loads(found.stdout)
    assert (told["ok"], told["histories"], told["failures"]) == (True, 6, [])
    assert not (tmp_path / "none").exists()
