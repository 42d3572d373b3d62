"""Every defence that can be switched off is seen to be missing, and comes back exactly as it was."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from fencepost_ops.checker import PROMISES
from fencepost_ops.drill.drill import Drill
from fencepost_ops.drill.ledger import DrillLedger
from fencepost_ops.drill.protocol import Asked, Fault, Protocol
from fencepost_ops.drill.prove import Proof, prove, to_json, uncovered
from fencepost_ops.drill.sabotage import SABOTAGES, Sabotage
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


@pytest.fixture(scope="module")
def proofs(drill: Drill, before: object) -> dict[str, Proof]:
    return {proof.sabotage.name: proof for proof in prove(drill)}


@pytest.mark.parametrize("name", SABOTAGES)
def test_a_check_goes_red_without_the_defence(proofs: dict[str, Proof], name: str) -> None:
    assert proofs[name].wrong == []


def test_every_invariant_is_seen_to_break(proofs: dict[str, Proof]) -> None:
    assert uncovered(proofs.values()) == []
    assert to_json(list(proofs.values()))["ok"] is True
    caught = [one for one in proofs.values() if one.sabotage.held_by is None]
    assert {one.sabotage.invariant for one in caught} >= set(PROMISES)


def test_a_defence_that_nothing_misses_is_not_caught(drill: Drill, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = SABOTAGES["blind_retry"]
    intact = Sabotage("intact", "I1", "nothing is switched off here", every(), shown.shows)
    monkeypatch.setitem(SABOTAGES, "intact", intact)
    (proof,) = prove(drill, ["intact"])
    assert proof.verdict == "NOT CAUGHT"


def test_all_is_as_it_was_afterwards(
    drill: Drill,
    before: tuple[dict[str, Any], dict[str, str]],
    proofs: dict[str, Proof],
) -> None:
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
    assert touched >= {
        "function guard_call",
        "function guard_run",
        "trigger fencepost.runs.guard_stopped",
        "trigger fencepost.operations.guard_operation",
        "trigger fencepost.outbox.guard_outbox",
        "trigger fencepost.outbox.guard_outbox_end",
        "trigger fencepost.events.append_only",
        "trigger fencepost.events.guard_events",
        "trigger fencepost.events.guard_head",
        "trigger fencepost.evidence.guard_evidence",
        "index calls_one_compensation",
    }
