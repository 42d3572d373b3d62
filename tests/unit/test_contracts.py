import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from fencepost import canonical
from fencepost.contracts import (
    AfterTakeover,
    Contract,
    Dedupes,
    Effect,
    FirstFailure,
    Lookup,
    Mismatch,
    Natural,
    Never,
    ToolClass,
    promise,
    residual_risk,
    tool_class,
)

SECOND, HOUR = timedelta(seconds=1), timedelta(hours=1)
STRONG = Lookup(strong=True)
EVENTUAL = Lookup(lag=SECOND, horizon=HOUR)
DEDUPES = Dedupes(window=HOUR, first_failure=FirstFailure.REPLAYED)


@pytest.mark.parametrize(
    ("build", "complaint"),
    [
        (lambda: Dedupes(window=-SECOND), "window must not be negative"),
        (lambda: Dedupes(starts="last_send"), "starts= takes"),  # type: ignore[arg-type]
        (lambda: Dedupes(in_progress=frozenset({42})), "in_progress holds HTTP statuses"),
        (lambda: Dedupes(replay_marker=("Idempotent-Replayed", "true")), "lower case"),
        (lambda: Lookup(lag=-SECOND, horizon=HOUR), "lag must not be negative"),
        (lambda: Lookup(strong=True, horizon=-SECOND), "horizon must not be negative"),
        (lambda: Lookup(by="name"), "by= takes"),  # type: ignore[arg-type]
        (lambda: Lookup(strong=True, lag=SECOND), "a strong lookup has no lag"),
        (lambda: Lookup(lag=SECOND), "both lag and horizon"),
        (lambda: Lookup(horizon=HOUR), "both lag and horizon"),
        (lambda: Contract(settle=-SECOND), "settle must not be negative"),
        (lambda: Contract(not_applied=frozenset({200})), "not_applied holds HTTP statuses from 300"),
        (lambda: Contract(retryable=frozenset({429})), "retryable answers must also be in not_applied"),
        (
            lambda: Contract(repeat=Dedupes(in_progress=frozenset({409})), not_applied=frozenset({409})),
            "both in_progress and not_applied",
        ),
        (lambda: Contract(after_takeover=AfterTakeover.REPEAT_AFTER_SETTLE), "repeat_after_settle needs"),
    ],
)
def test_a_contract_that_contradicts_itself_is_refused(build: Any, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        build()


def test_the_default_contract_promises_nothing() -> None:
    contract = Contract()
    assert tool_class(Effect.IRREVERSIBLE, contract) is ToolClass.NEITHER
    assert not contract.absence_provable
    assert not contract.repeats_by_key
    assert contract.takeover is AfterTakeover.REPAIR


@pytest.mark.parametrize(
    ("repeat", "declared", "expected"),
    [
        (Never(), None, AfterTakeover.REPAIR),
        (DEDUPES, None, AfterTakeover.REPEAT_AFTER_SETTLE),
        (Natural(), None, AfterTakeover.REPEAT_AFTER_SETTLE),
        (DEDUPES, AfterTakeover.REPAIR, AfterTakeover.REPAIR),
        (Never(), AfterTakeover.REPEAT_AFTER_SETTLE, AfterTakeover.REPEAT_AFTER_SETTLE),
    ],
)
def test_a_lost_worker_means_repair_only_where_a_repeat_may_be_a_second_effect(
    repeat: Any, declared: AfterTakeover | None, expected: AfterTakeover
) -> None:
    assert Contract(repeat=repeat, lookup=STRONG, after_takeover=declared).takeover is expected


@pytest.mark.parametrize(
    ("lookup", "settle", "provable"),
    [
        (STRONG, SECOND, True),
        (EVENTUAL, SECOND, True),
        (STRONG, timedelta(0), True),
        (STRONG, None, False),
        (Lookup(), SECOND, False),
        (None, SECOND, False),
    ],
)
def test_an_absence_is_provable_only_with_a_documented_lag_and_settle_time(
    lookup: Lookup | None, settle: timedelta | None, provable: bool
) -> None:
    assert Contract(lookup=lookup, settle=settle).absence_provable is provable


@pytest.mark.parametrize(
    ("repeat", "safe"),
    [
        (DEDUPES, True),
        (Dedupes(first_failure=FirstFailure.REPLAYED), False),
        (Dedupes(window=HOUR, first_failure=FirstFailure.UNKNOWN), False),
        (Dedupes(window=HOUR, first_failure=FirstFailure.RELEASED, mismatch=Mismatch.IGNORED), False),
        (Never(), False),
        (Natural(), False),
    ],
)
def test_a_key_makes_a_repeat_safe_only_where_every_term_is_documented(repeat: Any, safe: bool) -> None:
    assert Contract(repeat=repeat).repeats_by_key is safe


@pytest.mark.parametrize(
    ("effect", "contract", "expected"),
    [
        (Effect.READ, Contract(), ToolClass.READ),
        (Effect.REVERSIBLE, Contract(repeat=DEDUPES), ToolClass.DEDUPES),
        (
            Effect.REVERSIBLE,
            Contract(repeat=Dedupes(window=HOUR, first_failure=FirstFailure.UNKNOWN)),
            ToolClass.DEDUPES,
        ),
        (Effect.REVERSIBLE, Contract(repeat=Dedupes()), ToolClass.NEITHER),
        (Effect.REVERSIBLE, Contract(repeat=Dedupes(), lookup=STRONG, settle=SECOND), ToolClass.LOOKUP_ONLY),
        (Effect.IRREVERSIBLE, Contract(lookup=EVENTUAL, settle=SECOND), ToolClass.LOOKUP_ONLY),
        (Effect.IRREVERSIBLE, Contract(lookup=STRONG), ToolClass.NEITHER),
        (Effect.IRREVERSIBLE, Contract(lookup=Lookup(), settle=SECOND), ToolClass.NEITHER),
        (Effect.REVERSIBLE, Contract(repeat=Natural(resource=str)), ToolClass.NEITHER),
    ],
)
def test_the_class_of_a_tool_claims_no_more_than_its_documented_terms(
    effect: Effect, contract: Contract, expected: ToolClass
) -> None:
    assert tool_class(effect, contract) is expected


def test_every_class_states_its_promise_and_its_risk_in_a_sentence_of_its_own() -> None:
    contracts = {
        ToolClass.READ: (Effect.READ, Contract()),
        ToolClass.DEDUPES: (Effect.REVERSIBLE, Contract(repeat=DEDUPES)),
        ToolClass.LOOKUP_ONLY: (Effect.REVERSIBLE, Contract(lookup=STRONG, settle=10 * SECOND)),
        ToolClass.NEITHER: (Effect.IRREVERSIBLE, Contract()),
    }
    assert set(contracts) == set(ToolClass)
    for sentences in (
        {promise(*terms) for terms in contracts.values()},
        {residual_risk(*terms) for terms in contracts.values()},
    ):
        assert len(sentences) == 4
        assert all(text.endswith(".") and text.count(".") == 1 for text in sentences)
    assert "for 1 h after" in residual_risk(*contracts[ToolClass.DEDUPES])
    assert "over 10 s late" in residual_risk(*contracts[ToolClass.LOOKUP_ONLY])


def test_a_window_without_a_documented_first_failure_is_said_to_need_a_person() -> None:
    risk = residual_risk(
        Effect.REVERSIBLE, Contract(repeat=Dedupes(window=HOUR, first_failure=FirstFailure.UNKNOWN))
    )
    assert "an unknown outcome takes a person: first_failure=UNKNOWN" in risk


def test_what_is_set_again_promises_and_risks_something_else() -> None:
    named = Contract(repeat=Natural(resource=str), settle=SECOND)
    told = promise(Effect.REVERSIBLE, named), residual_risk(Effect.REVERSIBLE, named)
    assert "set again when all is quiet" in told[0]
    assert "somebody else sets in between" in told[1]
    for lacking in (Contract(repeat=Natural(resource=str)), Contract(repeat=Natural(), settle=SECOND)):
        assert not lacking.sets_again
        assert "takes a person" in residual_risk(Effect.REVERSIBLE, lacking)


def test_an_answer_that_is_compared_lends_a_key_what_an_ignored_mismatch_takes_away() -> None:
    ignored = Dedupes(window=HOUR, mismatch=Mismatch.IGNORED, first_failure=FirstFailure.REPLAYED)
    for repeat, compared, alone in (
        (ignored, True, False),
        (DEDUPES, True, True),
        (replace(ignored, window=timedelta(0)), False, False),
        (replace(ignored, first_failure=FirstFailure.UNKNOWN), False, False),
        (Natural(resource=str), False, False),
    ):
        contract = Contract(repeat=repeat)
        assert contract.repeats_by_key_if(compares=True) is compared
        assert contract.repeats_by_key_if(compares=False) is contract.repeats_by_key is alone
    risk = residual_risk(Effect.REVERSIBLE, Contract(repeat=ignored), compares=True)
    assert risk == "Equal keys are recognised for 1 h after the first send; then it takes a person."


def test_a_contract_has_one_canonical_text() -> None:
    contract = Contract(
        repeat=Dedupes(
            window=HOUR,
            in_progress=frozenset({425, 409}),
            replay_marker=("replayed", "true"),
            first_failure=FirstFailure.UNKNOWN,
        ),
        lookup=EVENTUAL,
        settle=timedelta(milliseconds=1.5),
        not_applied=frozenset({429, 402, 422}),
        retryable=frozenset({429}),
    )
    assert json.loads(canonical.encode(contract.to_json())) == {
        "repeat": {
            "kind": "dedupes",
            "window_us": 3_600_000_000,
            "starts": "first_send",
            "mismatch": "rejected",
            "first_failure": "unknown",
            "in_progress": [409, 425],
            "replay_marker": ["replayed", "true"],
        },
        "lookup": {
            "by": "key",
            "strong": False,
            "lag_us": 1_000_000,
            "horizon_us": 3_600_000_000,
            "absent": [404, 410],
        },
        "settle_us": 1500,
        "applied": [200, 201, 204],
        "not_applied": [402, 422, 429],
        "retryable": [429],
        "after_takeover": "repeat_after_settle",
    }
    assert Contract(repeat=Natural(resource=str)).to_json()["repeat"] == {"kind": "natural", "resource": True}
    assert Contract().to_json()["repeat"] == {"kind": "never"}
