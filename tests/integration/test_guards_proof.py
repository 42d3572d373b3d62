"""Doubt, ends and attempts attacked in plain SQL: each needs an event of its own, in the same change."""

from typing import Any
from uuid import UUID

import pytest

from fencepost.clock import uuid7
from fencepost.events import EventType
from fencepost.states import CALL_ENDS, CALL_HOPS
from tests.integration.guards_bench import CallTarget, honest
from tests.integration.ledger_bench import Bench

E = EventType
SENT = {"attempts": 1, "in_flight_until": "2026-01-01T00:00:00Z", "quiet_at": "2026-01-01T00:00:01Z"}
SETTLED = ("SUCCEEDED", "FAILED", "ACCEPTED_UNKNOWN")
ENDS = sorted(
    (via, source, to)
    for via, hops in CALL_HOPS.items()
    for source, to in hops
    if to in SETTLED and source not in {"INTENT_RECORDED", to}
)


def end(target: CallTarget, via: str, to: str, proof: UUID | None, version: int | None = None) -> str | None:
    """Attempt to end the call with this proof, at an event that says nothing."""
    silent = E.REPAIR_DECIDED if via == "repair" else E.REPAIR_REQUESTED
    seq = version if version is not None else target.event(via, silent)[0]
    return target.update(via, {"state": to, "doubt": False, "proof": proof, "version": seq})


# -- ends ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("via", "source", "to"), ENDS)
def test_every_end_is_proved_by_its_own_kind_of_event_and_no_other(
    target: CallTarget, via: str, source: str, to: str
) -> None:
    target.put(source, **SENT)
    right, _ = honest(via, source, to)
    accepted = set()
    for kind in EventType:
        said = {"to": to, "final": True, "stored": True}
        _, proof = target.event(via, kind, attempt=1, body=said)
        if end(target, via, to, proof) is None:
            accepted.add(kind)
    assert accepted == {right}


@pytest.mark.parametrize(("via", "source", "to"), ENDS)
def test_no_end_without_a_proof_or_with_one_that_is_not_there(
    target: CallTarget, via: str, source: str, to: str
) -> None:
    target.put(source, **SENT)
    assert target.move(via, to) is None
    assert end(target, via, to, None) == "FP003"
    assert end(target, via, to, uuid7()) == "FP003"


@pytest.mark.parametrize(("via", "source", "to"), ENDS)
def test_what_was_proved_before_proves_nothing_now(
    target: CallTarget, via: str, source: str, to: str
) -> None:
    kind, header = honest(via, source, to)
    seq, old = target.event(via, kind, attempt=1, **header)
    target.put(source, **SENT, version=seq)
    target.version = seq
    assert target.move(via, to) is None
    assert end(target, via, to, old) == "FP003"
    target.put(source, **SENT, version=seq - 1)
    target.version = seq - 1
    assert end(target, via, to, old) is None, "the very same event, had it been new"


@pytest.mark.parametrize(("via", "source", "to"), ENDS)
def test_another_calls_and_another_runs_proof_proves_nothing(
    module_bench: Bench, target: CallTarget, via: str, source: str, to: str
) -> None:
    target.put(source, **SENT)
    kind, header = honest(via, source, to)
    worker, fence = {"term": ("holder", 5), "claim": ("next", 6)}.get(via, (None, None))
    said: dict[str, Any] = {"attempt": 1, "worker": worker, "fence": fence, **header}
    _, theirs, _ = target.attack.event(target.run, target.other, kind, **said)
    assert end(target, via, to, theirs) == "FP003"
    _, elsewhere, _ = target.attack.event(module_bench.start(), target.call, kind, **said)
    assert end(target, via, to, elsewhere) == "FP003"
    _, foreign, _ = target.attack.event(target.run, target.call, kind, tenant="other", **said)
    assert end(target, via, to, foreign) == "FP003"
    _, mine, _ = target.attack.event(target.run, target.call, kind, **said)
    assert end(target, via, to, mine) is None


@pytest.mark.parametrize("to", ["SUCCEEDED", "FAILED"])
@pytest.mark.parametrize("said", [{"attempt": 2}, {"worker": "somebody"}, {"fence": 4}, {"attempt": None}])
def test_an_outcome_is_of_this_attempt_and_under_the_presented_term(
    target: CallTarget, to: str, said: dict[str, Any]
) -> None:
    target.put("DISPATCHING", **SENT)
    kind, header = honest("term", "DISPATCHING", to)
    _, proof = target.event("term", kind, **({"attempt": 1} | header | said))
    assert end(target, "term", to, proof) == "FP003"


@pytest.mark.parametrize(
    ("via", "source"), [("claim", "UNKNOWN"), ("claim", "DISPATCHING"), ("term", "UNKNOWN")]
)
@pytest.mark.parametrize("said", [{"worker": "somebody"}, {"fence": 99}])
def test_a_reconciliation_is_under_the_presented_term(
    target: CallTarget, via: str, source: str, said: dict[str, Any]
) -> None:
    target.put(source, **SENT)
    _, proof = target.event(via, E.TOOL_EFFECT_RECONCILED, **({"body": {"to": "FAILED"}} | said))
    assert end(target, via, "FAILED", proof) == "FP003"


@pytest.mark.parametrize(
    ("via", "source", "to"), [x for x in ENDS if honest(*x)[1].get("body", {}).get("to")]
)
def test_a_decision_ends_a_call_as_it_says(target: CallTarget, via: str, source: str, to: str) -> None:
    target.put(source, **SENT)
    kind, _ = honest(via, source, to)
    for said in {*SETTLED, "UNKNOWN"} - {to}:
        _, proof = target.event(via, kind, body={"to": said})
        assert end(target, via, to, proof) == "FP003"


@pytest.mark.parametrize("said", [{"final": False}, {}])
def test_a_failure_that_is_not_final_ends_nothing(target: CallTarget, said: dict[str, Any]) -> None:
    target.put("DISPATCHING", **SENT)
    _, proof = target.event("term", E.TOOL_ATTEMPT_FAILED, attempt=1, body=said)
    assert end(target, "term", "FAILED", proof) == "FP003"


def test_only_an_operators_decision_is_a_persons(target: CallTarget) -> None:
    target.put("UNKNOWN", **SENT)
    for via in ("term", "claim"):
        _, proof = target.event(via, E.REPAIR_DECIDED, body={"to": "FAILED"})
        assert end(target, via, "FAILED", proof) == "FP003"


@pytest.mark.parametrize("column", ["receipt", "result"])
def test_a_result_comes_with_its_end_and_never_before_or_after(target: CallTarget, column: str) -> None:
    target.put("UNKNOWN", **SENT)
    assert target.move("term", "UNKNOWN") is None
    assert target.move("term", "UNKNOWN", **{column: "x"}) == "FP001"
    target.put("SUCCEEDED", **SENT)
    assert target.move("evidence", "NEEDS_REPAIR") is None
    assert target.move("evidence", "NEEDS_REPAIR", **{column: "x"}) == "FP001"


# -- doubt -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", sorted(CALL_ENDS))
def test_no_call_ends_in_doubt(target: CallTarget, state: str) -> None:
    via = "repair" if state == "ACCEPTED_UNKNOWN" else "claim"
    target.put("NEEDS_REPAIR" if via == "repair" else "UNKNOWN", **SENT)
    if state in SETTLED:
        assert target.move(via, state) is None
        assert target.move(via, state, doubt=True) == "FP003"


def test_an_unsent_call_in_doubt_cannot_be_cancelled_or_rejected(target: CallTarget) -> None:
    target.put("INTENT_RECORDED", doubt=True)
    for doubt in (True, False):
        assert target.move("cancel", "CANCELLED", doubt=doubt) == "FP003"
        assert target.move("claim", "REJECTED", doubt=doubt) == "FP003"


@pytest.mark.parametrize(
    ("via", "source", "to"),
    [
        ("term", "DISPATCHING", "UNKNOWN"),
        ("claim", "DISPATCHING", "UNKNOWN"),
        ("term", "DISPATCHING", "NEEDS_REPAIR"),
        ("claim", "DISPATCHING", "DISPATCHING"),
        ("claim", "UNKNOWN", "DISPATCHING"),
        ("claim", "UNKNOWN", "UNKNOWN"),
        ("repair", "NEEDS_REPAIR", "UNKNOWN"),
        ("evidence", "FAILED", "NEEDS_REPAIR"),
    ],
)
def test_what_nobody_knows_is_in_doubt(target: CallTarget, via: str, source: str, to: str) -> None:
    target.put(source, **SENT)
    assert target.move(via, to) is None
    assert target.move(via, to, doubt=False) == "FP003"


@pytest.mark.parametrize("stored", [True, False, None])
@pytest.mark.parametrize("doubt", [True, False])
def test_a_failed_repeat_clears_doubt_only_if_its_answer_is_stored_for_the_key(
    target: CallTarget, doubt: bool, stored: bool | None
) -> None:
    target.put("DISPATCHING", **SENT, doubt=doubt)
    body = {"final": True} | ({} if stored is None else {"stored": stored})
    _, proof = target.event("term", E.TOOL_ATTEMPT_FAILED, attempt=1, body=body)
    assert end(target, "term", "FAILED", proof) == ("FP003" if doubt and not stored else None)


@pytest.mark.parametrize("via", ["term", "claim"])
def test_what_is_in_doubt_is_never_sent_as_if_it_were_new(target: CallTarget, via: str) -> None:
    target.put("DISPATCHING", **SENT, effect="read")
    assert target.move(via, "INTENT_RECORDED") is None
    assert target.move(via, "INTENT_RECORDED", doubt=True) == "FP003"
    target.put("DISPATCHING", **SENT, effect="read", doubt=True)
    for doubt in (True, False):
        assert target.move(via, "INTENT_RECORDED", doubt=doubt) == "FP003"


@pytest.mark.parametrize("to", ["INTENT_RECORDED", "FAILED"])
def test_a_lost_attempt_has_failed_only_if_it_was_a_read(target: CallTarget, to: str) -> None:
    body = {"final": to == "FAILED"}
    for effect in ("read", "reversible", "irreversible"):
        target.put("DISPATCHING", **SENT, effect=effect)
        seq, proof = target.event("claim", E.TOOL_ATTEMPT_FAILED, attempt=1, body=body)
        change = {"state": to, "version": seq} | ({"proof": proof} if to == "FAILED" else {})
        assert target.update("claim", change) == (None if effect == "read" else "FP003")


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (E.TOOL_OUTCOME_MARKED_UNKNOWN, {}),
        (E.TOOL_ATTEMPT_FAILED, {"attempt": 2}),
        (E.TOOL_ATTEMPT_FAILED, {"worker": "somebody"}),
        (E.TOOL_ATTEMPT_FAILED, {"fence": 4}),
    ],
)
def test_an_attempt_is_made_again_only_after_one_that_failed(
    target: CallTarget, kind: EventType, said: dict[str, Any]
) -> None:
    target.put("DISPATCHING", **SENT)
    seq, _ = target.event("term", kind, **({"attempt": 1} | said))
    assert target.update("term", {"state": "INTENT_RECORDED", "version": seq}) == "FP003"
    assert target.move("term", "INTENT_RECORDED") is None


# -- attempts --------------------------------------------------------------------------------------------

STARTS = [("INTENT_RECORDED", False), ("UNKNOWN", True), ("DISPATCHING", True)]


@pytest.mark.parametrize(("source", "doubt"), STARTS)
def test_an_attempt_is_counted_with_the_event_that_starts_it(
    target: CallTarget, source: str, doubt: bool
) -> None:
    target.put(source, **SENT)
    change = {"state": "DISPATCHING", "doubt": doubt, "attempts": 2}
    assert target.update("claim", change) == "FP004"
    other = target.event("claim", E.LEASE_ACQUIRED, attempt=2)[0]
    assert target.update("claim", change | {"version": other}) == "FP004"
    for said in ({"attempt": 1}, {"attempt": 3}, {"worker": "holder"}, {"fence": 5}, {"attempt": None}):
        seq, _ = target.event("claim", E.TOOL_ATTEMPT_STARTED, **({"attempt": 2} | said))
        assert target.update("claim", change | {"version": seq}) == "FP004"
    target.attack.event(target.run, target.other, E.TOOL_ATTEMPT_STARTED, attempt=2, worker="next", fence=6)
    later, _ = target.event("claim", E.LEASE_ACQUIRED)
    assert target.update("claim", change | {"version": later}) == "FP004", "another call's attempt"
    assert target.move("claim", "DISPATCHING") is None


@pytest.mark.parametrize(("source", "doubt"), STARTS)
@pytest.mark.parametrize("attempts", [1, 3])
def test_a_claim_that_sends_counts_exactly_one_attempt(
    target: CallTarget, source: str, doubt: bool, attempts: int
) -> None:
    target.put(source, **SENT)
    seq, _ = target.event("claim", E.TOOL_ATTEMPT_STARTED, attempt=attempts)
    change = {"state": "DISPATCHING", "doubt": doubt, "attempts": attempts, "version": seq}
    assert target.update("claim", change) == "FP004"


def test_an_attempt_started_before_is_not_started_again(target: CallTarget) -> None:
    seq, _ = target.event("claim", E.TOOL_ATTEMPT_STARTED, attempt=2)
    target.put("UNKNOWN", **SENT, version=seq)
    change = {"state": "DISPATCHING", "doubt": True, "attempts": 2}
    later, _ = target.event("claim", E.LEASE_ACQUIRED)
    assert target.update("claim", change | {"version": later}) == "FP004"
    target.put("UNKNOWN", **SENT, version=seq - 1)
    assert target.update("claim", change | {"version": later}) is None, "had it been new"


def test_only_a_claim_starts_an_attempt(target: CallTarget) -> None:
    target.put("DISPATCHING", **SENT)
    seq, _ = target.event("term", E.TOOL_ATTEMPT_STARTED, attempt=2)
    assert target.update("term", {"state": "UNKNOWN", "doubt": True, "version": seq}) is None
    change = {"state": "UNKNOWN", "doubt": True, "attempts": 2, "version": seq}
    assert target.update("term", change) == "FP004"


@pytest.mark.parametrize(
    "columns",
    [
        {"in_flight_until": "2026-01-02T00:00:00Z"},
        {"quiet_at": "2026-01-02T00:00:00Z"},
        {"quiet_at": None},
        {"request": "{}"},
    ],
)
def test_what_is_sent_and_until_when_changes_only_with_an_attempt(
    target: CallTarget, columns: dict[str, Any]
) -> None:
    target.put("UNKNOWN", **SENT)
    assert target.move("claim", "UNKNOWN", **columns) == "FP001"
    assert target.move("claim", "DISPATCHING", **columns) is None


# -- results taken from another call --------------------------------------------------------------------


def completed(target: CallTarget, **columns: Any) -> None:
    """Make the call's key the completed one of somebody, with the call's own arguments."""
    values = {
        "status": "completed",
        "doubt": False,
        "receipt": "r-1",
        "result": "d-1",
        "meaning": "m",
    } | columns
    values = {"arguments_hash": target.column("arguments_hash")} | values
    names = ", ".join(f"{name} = %s" for name in values)
    key = target.column("operation")
    target.attack.force(f"UPDATE fencepost.operations SET {names} WHERE key = %s", *values.values(), key)


REUSED = {"receipt": "r-1", "result": "d-1"}


def test_a_result_is_reused_only_where_there_is_one(target: CallTarget) -> None:
    target.put("INTENT_RECORDED")
    completed(target)
    seq, _ = target.event("claim", E.LEASE_ACQUIRED)
    change = {"state": "SUCCEEDED", "reused": True, "version": seq}
    assert target.update("claim", REUSED | change) == "FP003", "no event says so"
    wrong: list[dict[str, Any]] = [{"receipt": "r-2"}, {"result": "d-2"}, {"reused": False}]
    wrong.append({"proof": uuid7()})
    assert {target.move("claim", "SUCCEEDED", **(REUSED | columns)) for columns in wrong} == {"FP003"}
    assert target.move("claim", "SUCCEEDED", **REUSED) is None


@pytest.mark.parametrize(
    "columns",
    [
        {"status": "open"},
        {"status": "compensated"},
        {"doubt": True},
        {"arguments_hash": "1:x"},
        {"meaning": "another request"},
        {"meaning": None},
    ],
)
def test_only_a_completed_key_of_equal_arguments_and_meaning_has_a_result(
    target: CallTarget, columns: dict[str, Any]
) -> None:
    target.put("INTENT_RECORDED")
    completed(target, **columns)
    assert target.move("claim", "SUCCEEDED", **REUSED) == "FP003"


def test_a_result_of_its_own_is_not_called_reused(target: CallTarget) -> None:
    target.put("DISPATCHING", **SENT)
    assert target.move("term", "SUCCEEDED", reused=True) == "FP003"
    target.put("UNKNOWN", **SENT)
    assert target.move("claim", "UNKNOWN", reused=True) == "FP001"
