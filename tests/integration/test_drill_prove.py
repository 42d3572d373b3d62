"""Every defence that can be switched off is seen to be missing, and comes back exactly as it was."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from fencepost.decide import allow
from fencepost.errors import UsageError
from fencepost_ops.checker import PROMISES
from fencepost_ops.drill.command import drill as drill_command
from fencepost_ops.drill.drill import Drill
from fencepost_ops.drill.ledger import DrillLedger
from fencepost_ops.drill.protocol import Asked, Fault, Protocol
from fencepost_ops.drill.prove import Proof, Prover, to_json, uncovered
from fencepost_ops.drill.sabotage import SABOTAGES, Sabotage
from fencepost_ops.drill.sabotages import processes
from fencepost_ops.drill.sabotages.switch import code, every, without
from fencepost_workers.step import Step

CLEAN = Protocol(
    name="clean",
    runs=[Asked(planner="two", input={"contract": "lookup"})],
    faults=[Fault(at="dispatch.after_effect", do="crash"), Fault(at="planner.after_model", do="crash")],
)

_CATALOGUE = """
SELECT 'function ' || p.proname, p.prosrc || p.proowner || coalesce(p.proacl::text, '')
FROM pg_proc p WHERE p.pronamespace = 'fencepost'::regnamespace
UNION ALL SELECT 'trigger ' || tgrelid::regclass || '.' || tgname, tgenabled::text || pg_get_triggerdef(oid)
FROM pg_trigger WHERE NOT tgisinternal
UNION ALL SELECT 'index ' || indexname, indexdef FROM pg_indexes WHERE schemaname = 'fencepost'
UNION ALL SELECT 'grants of ' || table_name, string_agg(grantee || privilege_type, ',' ORDER BY 1)
FROM (SELECT DISTINCT table_name, grantee, privilege_type FROM information_schema.role_table_grants
      WHERE table_schema = 'fencepost' ORDER BY 1, 2, 3) g GROUP BY table_name
"""


NOT_SWITCHED_OFF = {
    "trigger fencepost.calls.guard_setter",
    "trigger fencepost.workers.guard_worker",
    "trigger fencepost.outbox.guard_outbox_api",
    "trigger fencepost.epochs.guard_epoch",
    "trigger fencepost.epochs.append_only",
    "trigger fencepost.evidence.append_only",
    *(
        f"trigger fencepost.{table}.no_truncate"
        for table in ("calls", "epochs", "events", "evidence", "operations", "runs")
    ),
    "trigger fencepost.policies.no_truncate",
    "trigger fencepost.authority_changes.no_truncate",
    "trigger fencepost.policies.append_only",
    "trigger fencepost.policies.guard_policy",
    "trigger fencepost.authority_changes.append_only",
    *(f"trigger fencepost.{table}.noted" for table in ("delegations", "principals", "withdrawn")),
    *(f"trigger fencepost.memory.{name}" for name in ("guard_memory", "no_truncate")),
    *(f"trigger fencepost.audits.{name}" for name in ("append_only", "no_truncate")),
    *(f"trigger fencepost.signals.{name}" for name in ("append_only", "no_truncate")),
    "trigger fencepost.api_tokens.guard_api_token",
}
"""Guards that no sabotage takes away: of these nothing shows that they would be missed."""


def catalogue(ledger: DrillLedger) -> dict[str, str]:
    return dict(ledger.owner.execute(_CATALOGUE).fetchall())


@pytest.fixture(scope="module")
def drill() -> Iterator[Drill]:
    with Drill.opened() as opened:
        yield opened


@pytest.fixture(scope="module")
def before(drill: Drill) -> tuple[dict[str, Any], dict[str, str]]:
    """A clean history, and the catalogue, before anything was ever switched off."""
    return drill.run(CLEAN).to_json(), catalogue(drill.ledger)


class Proofs(dict[str, Proof]):
    """Each made when it is first looked at."""

    def __init__(self, drill: Drill) -> None:
        super().__init__()
        self._prover = Prover(drill)

    def __missing__(self, name: str) -> Proof:
        self[name] = self._prover.proof(name)
        return self[name]

    def all(self) -> list[Proof]:
        return [self[name] for name in SABOTAGES]


@pytest.fixture(scope="module")
def proofs(drill: Drill, before: object) -> Proofs:
    return Proofs(drill)


@pytest.mark.parametrize("name", SABOTAGES)
def test_a_check_goes_red_without_the_defence(proofs: Proofs, name: str) -> None:
    assert proofs[name].wrong == []


def test_every_invariant_is_seen_to_break(proofs: Proofs) -> None:
    assert uncovered(proofs.all()) == []
    assert to_json(proofs.all())["ok"] is True
    caught = [one for one in proofs.all() if one.sabotage.held_by is None]
    assert {one.sabotage.invariant for one in caught} >= set(PROMISES)


def test_the_checker_names_the_culprit(proofs: Proofs) -> None:
    said = proofs["stale_record"].broken.said["I5"]
    assert "(ToolResultRecorded): recorded under fence 1 of " in said
    assert proofs["stale_record"].to_json()["said"] == said
    assert proofs["published_once"].to_json()["said"] == "it did not come to an end"


@pytest.mark.parametrize("name", ["stale_record", "key_freed"])
def test_a_history_without_a_defence_is_the_same_each_time(drill: Drill, name: str) -> None:
    protocol = SABOTAGES[name].shows.model_copy(update={"sabotage": [name]})
    assert drill.run(protocol).to_json() == drill.run(protocol).to_json()


def test_a_defence_that_nothing_misses_is_not_caught(drill: Drill, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = SABOTAGES["blind_retry"]
    intact = Sabotage("intact", "I1", "nothing is switched off here", every(), shown.shows)
    monkeypatch.setitem(SABOTAGES, "intact", intact)
    assert Prover(drill).proof("intact").verdict == "NOT CAUGHT"


def test_a_sabotage_that_only_raises_proves_nothing(drill: Drill, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_share: object, _used: object) -> None:
        raise TypeError("a mistake of the sabotage's own")

    shown = SABOTAGES["allowance_not_taken"]
    off = code(allow, "refused", lambda _refused: broken)
    monkeypatch.setitem(SABOTAGES, "slip", replace(shown, name="slip", off=off))
    proof = Prover(drill).proof("slip")
    assert proof.verdict == "NOT CAUGHT"
    assert "without the defence something raised: TypeError" in proof.wrong[0]


def test_an_error_that_is_no_refusal_is_not_taken_for_one(
    drill: Drill, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_DELETE", "DELETE FROM fencepost.nothing WHERE x = ANY (%(gone)s)")
    proof = Prover(drill).proof("row_dropped_at_publish.code")
    assert proof.verdict == "NOT CAUGHT"
    assert "Postgres is said to hold, and refused nothing" in proof.wrong


@pytest.fixture
def command(drill: Drill, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """`fencepost drill` on the drill that is open."""

    @contextmanager
    def opened(_cls: type[Drill]) -> Iterator[Drill]:
        yield drill

    monkeypatch.setattr(Drill, "opened", classmethod(opened))
    return lambda *words: CliRunner().invoke(drill_command, words)


def test_the_command_prints_what_broke(command: Callable[..., Result]) -> None:
    said = command("--prove", "--sabotage", "fence_lowered", "--sabotage", "stale_record.code")
    assert said.exit_code == 0
    lines = {line.split()[0]: line.split()[1:] for line in said.stdout.splitlines() if line}
    assert lines["fence_lowered"] == ["Postgres", "X", "x", "caught"]
    assert lines["stale_record.code"] == ["code", "=", "held", "by", "Postgres"]
    assert "2 switched off: 1 caught, 1 held by another defence" in said.stdout


def test_the_command_says_no_where_a_check_stays_green(
    command: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SABOTAGES, "intact", replace(SABOTAGES["blind_retry"], name="intact", off=every()))
    said = command("--prove", "--sabotage", "intact")
    assert said.exit_code == 1
    assert "intact: without the defence I1 still holds; what broke: nothing" in said.stdout
    told = json.loads(command("--prove", "--sabotage", "intact", "--json").stdout)
    assert (told["ok"], told["sabotages"][0]["verdict"]) == (False, "NOT CAUGHT")


def test_the_command_proves_by_its_own_protocols_only(command: Callable[..., Result]) -> None:
    assert command("--prove", "blind_retry").exit_code == 2
    alone = command("--sabotage", "blind_retry")
    assert alone.exit_code == 2
    assert "--sabotage needs a PROTOCOL; with --prove it has one of its own" in alone.stderr
    refused = command("--prove", "--sabotage", "trust_everyone").exception
    assert isinstance(refused, UsageError)
    assert "there is no sabotage 'trust_everyone'; there are absence_at_once, " in str(refused)


def test_all_is_as_it_was_afterwards(
    drill: Drill,
    before: tuple[dict[str, Any], dict[str, str]],
    proofs: Proofs,
) -> None:
    assert len(proofs.all()) == len(SABOTAGES)
    outcome = drill.run(CLEAN)
    assert outcome.ok
    assert (outcome.to_json(), catalogue(drill.ledger)) == before


def test_all_is_as_it_was_also_if_the_history_has_raised(
    drill: Drill, before: tuple[dict[str, Any], dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_given: Any) -> int:
        raise ZeroDivisionError

    off = every(without("guard_outbox", "outbox"), code(Step, "handle", lambda _handle: broken))
    monkeypatch.setitem(SABOTAGES, "raises", Sabotage("raises", "I12", "nothing works", off, CLEAN))
    handle = vars(Step)["handle"]
    with pytest.raises(ZeroDivisionError):
        drill.run(CLEAN.model_copy(update={"sabotage": ["raises"]}))
    assert vars(Step)["handle"] is handle
    assert (drill.run(CLEAN).to_json(), catalogue(drill.ledger)) == before


def test_every_guard_is_switched_off_by_some_sabotage(drill: Drill) -> None:
    """What each one changes in the catalogue, and that it changes it back."""
    whole, touched = catalogue(drill.ledger), set[str]()
    for one in SABOTAGES.values():
        with one.off(drill.ledger):
            now = catalogue(drill.ledger)
        touched |= {name for name in whole | now if whole.get(name) != now.get(name)}
        drill.ledger.empty()
        assert catalogue(drill.ledger) == whole
    guards = {
        name: f"function {definition.rpartition('EXECUTE FUNCTION fencepost.')[2].partition('(')[0]}"
        for name, definition in whole.items()
        if name.startswith("trigger ")
    }
    off = {name for name, function in guards.items() if {name, function} & touched}
    assert guards.keys() - off == NOT_SWITCHED_OFF
    assert "index calls_one_compensation" in touched
