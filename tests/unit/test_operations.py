"""One key: the four rules, who holds it, and what becomes of it when its holder ends."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from fencepost import operations
from fencepost.contracts import Contract, Dedupes, FirstFailure
from fencepost.operations import Operation, Rule
from fencepost.states import CallState, OperationStatus
from fencepost.subjects import Call

NOW = datetime(2026, 1, 1, tzinfo=UTC)
RELEASED = Contract(repeat=Dedupes(window=timedelta(hours=1), first_failure=FirstFailure.RELEASED))
REPLAYED = Contract(repeat=Dedupes(window=timedelta(hours=1), first_failure=FirstFailure.REPLAYED))
NOTHING = Contract()


def call(number: int = 1, state: str = "INTENT_RECORDED", **changes: object) -> Call:
    made = Call(
        tenant="shop",
        id=UUID(int=number),
        run=UUID(int=100 + number),
        turn=1,
        ordinal=0,
        label="1.0",
        tool="wallet.debit",
        tool_version=1,
        effect="reversible",
        operation="k",
        scope="wallet/default",
        compensates=None,
        arguments="{}",
        arguments_hash="1:a",
        required=True,
        state=state,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def key(status: str, *, doubt: bool = False, holder: int | None = 1, arguments: str = "1:a") -> Operation:
    return Operation(
        tenant="shop",
        key="k",
        scope="wallet/default",
        arguments_hash=arguments,
        status=status,
        doubt=doubt,
        call=UUID(int=holder) if holder else None,
        run=UUID(int=100 + holder) if holder else None,
    )


def rule(operation: Operation, contract: Contract = NOTHING, number: int = 2) -> tuple[Rule, str]:
    return operations.admit(operation, call(number), contract)


def test_a_free_key_belongs_to_whoever_asks_even_with_other_arguments() -> None:
    assert rule(key("released", holder=None, arguments="")) == (Rule.OWN, "")
    assert rule(key("released", arguments="1:other")) == (Rule.OWN, "")


@pytest.mark.parametrize("status", sorted(OperationStatus))
@pytest.mark.parametrize("doubt", [True, False])
def test_its_holder_keeps_a_key_whatever_its_status(status: str, doubt: bool) -> None:
    assert rule(key(status, doubt=doubt), number=1) == (Rule.OWN, "")


@pytest.mark.parametrize("status", sorted(OperationStatus))
@pytest.mark.parametrize("contract", [NOTHING, RELEASED, REPLAYED])
def test_a_key_in_doubt_is_waited_for_and_never_handed_on(status: str, contract: Contract) -> None:
    assert rule(key(status, doubt=True), contract) == (Rule.WAIT, "")


def test_a_held_key_is_waited_for() -> None:
    assert rule(key("open")) == (Rule.WAIT, "")


def test_a_completed_key_with_the_same_arguments_gives_its_result() -> None:
    assert rule(key("completed")) == (Rule.REUSE, "")


HOLDER = str(UUID(int=1))
DIFFERS, LOST = f"key_request_differs: {HOLDER}", f"key_request_lost: {HOLDER}"


@pytest.mark.parametrize(
    ("status", "doubt", "was", "would_be", "expected"),
    [
        ("completed", False, "m", "m", (Rule.REUSE, "")),
        ("completed", False, "m", "other", (Rule.REJECT, DIFFERS)),
        ("completed", False, None, "m", (Rule.REJECT, LOST)),
        ("completed", False, "m", None, (Rule.REUSE, "")),  # not built yet: the claim asks again
        ("open", False, "m", "other", (Rule.WAIT, "")),  # it may end without an effect
        ("completed", True, "m", "other", (Rule.WAIT, "")),
        ("failed", False, "m", "other", (Rule.OWN, "")),
        ("released", False, "m", "other", (Rule.OWN, "")),
        ("unknown", False, "m", "m", (Rule.REJECT, "key_unknown")),
        ("compensated", False, "m", "m", (Rule.REJECT, "key_compensated")),
    ],
)
def test_a_result_is_taken_only_by_what_would_ask_for_the_same(
    status: str, doubt: bool, was: str | None, would_be: str | None, expected: tuple[Rule, str]
) -> None:
    held = replace(key(status, doubt=doubt), meaning=was)
    assert operations.admit(held, call(2), RELEASED, would_be) == expected


def test_whoever_takes_a_key_has_not_asked_for_anything_yet() -> None:
    taken = operations.take(replace(key("failed"), meaning="m"), call(2))
    assert taken.meaning is None
    assert operations.sent(taken, NOW, RELEASED, "n").meaning == "n"


@pytest.mark.parametrize("status", sorted(set(OperationStatus) - {OperationStatus.RELEASED}))
def test_other_arguments_are_rejected(status: str) -> None:
    assert rule(key(status, arguments="1:other"), RELEASED) == (Rule.REJECT, "key_arguments_differ")


@pytest.mark.parametrize(
    ("contract", "expected"),
    [
        (RELEASED, (Rule.OWN, "")),
        (REPLAYED, (Rule.REJECT, f"key_failed_before: {UUID(int=1)}")),
        (NOTHING, (Rule.REJECT, f"key_failed_before: {UUID(int=1)}")),
    ],
)
def test_a_failed_key_is_free_again_only_if_the_contract_says_so(
    contract: Contract, expected: tuple[Rule, str]
) -> None:
    assert rule(key("failed"), contract) == expected


@pytest.mark.parametrize("status", ["unknown", "compensating", "compensated"])
def test_what_can_never_be_known_or_was_offset_is_not_done_again(status: str) -> None:
    assert rule(key(status), RELEASED) == (Rule.REJECT, f"key_{status}")


def test_taking_a_key_keeps_its_first_send() -> None:
    sent = replace(key("failed"), first_sent_at=NOW, expires_at=NOW + timedelta(hours=1))
    taken = operations.take(sent, call(2))
    assert (taken.status, taken.call, taken.run) == ("open", UUID(int=2), UUID(int=102))
    assert (taken.first_sent_at, taken.expires_at) == (sent.first_sent_at, sent.expires_at)


def test_the_window_counts_from_the_first_send_of_all() -> None:
    first = operations.sent(key("open"), NOW, RELEASED, "m")
    assert (first.first_sent_at, first.expires_at) == (NOW, NOW + timedelta(hours=1))
    assert operations.sent(first, NOW + timedelta(minutes=5), RELEASED, "m") == first
    assert operations.sent(key("open"), NOW, NOTHING, "m").expires_at is None


@pytest.mark.parametrize(
    ("state", "status"),
    [
        ("SUCCEEDED", "completed"),
        ("FAILED", "failed"),
        ("REJECTED", "released"),
        ("CANCELLED", "released"),
        ("ACCEPTED_UNKNOWN", "unknown"),
        ("DISPATCHING", "open"),
        ("UNKNOWN", "open"),
        ("NEEDS_REPAIR", "open"),
        ("INTENT_RECORDED", "open"),
    ],
)
def test_a_key_follows_its_holder(state: str, status: str) -> None:
    in_doubt = state in {"UNKNOWN", "NEEDS_REPAIR"}
    moved = operations.follow(key("open"), call(1, state, doubt=in_doubt, receipt="r", proof=UUID(int=7)))
    assert (moved.status, moved.doubt) == (status, in_doubt)
    assert operations.held(moved) == (status == "open")


def test_every_state_of_a_call_says_what_becomes_of_its_key() -> None:
    assert all(operations.follow(key("open"), call(1, state)).call == UUID(int=1) for state in CallState)


def test_another_call_does_not_move_a_key() -> None:
    assert operations.follow(key("open"), call(2, "FAILED")) == key("open")


def test_a_completed_key_keeps_the_result_for_others() -> None:
    done = call(1, "SUCCEEDED", receipt="r", result="d", preview="p", proof=UUID(int=7))
    kept = operations.follow(key("open"), done)
    assert (kept.receipt, kept.result, kept.preview, kept.proof) == ("r", "d", "p", UUID(int=7))


@pytest.mark.parametrize("status", ["compensating", "compensated"])
def test_an_effect_that_comes_back_into_doubt_stays_offset(status: str) -> None:
    doubtful = operations.follow(key(status), call(1, "NEEDS_REPAIR", doubt=True))
    assert (doubtful.status, doubtful.doubt) == (status, True)
    assert operations.follow(doubtful, call(1, "SUCCEEDED")).status == status


@pytest.mark.parametrize(
    ("state", "status"),
    [
        ("INTENT_RECORDED", "completed"),
        ("DISPATCHING", "compensating"),
        ("UNKNOWN", "compensating"),
        ("NEEDS_REPAIR", "compensating"),
        ("SUCCEEDED", "compensated"),
        ("FAILED", "completed"),
        ("REJECTED", "completed"),
        ("CANCELLED", "completed"),
    ],
)
def test_a_compensation_moves_the_key_of_what_it_offsets(state: str, status: str) -> None:
    assert operations.offset(key("completed"), call(2, state)).status == status


@pytest.mark.parametrize(("state", "status"), [("FAILED", "failed"), ("ACCEPTED_UNKNOWN", "unknown")])
def test_what_is_being_offset_and_never_happened_is_not_completed_by_the_failure_of_its_compensation(
    state: str, status: str
) -> None:
    found = operations.follow(key("compensating", doubt=True), call(1, state))
    assert (found.status, found.doubt) == (status, False)
    for undo in CallState:
        assert operations.offset(found, call(2, undo)).status == status


def test_what_was_offset_stays_offset_whatever_it_was() -> None:
    for state in ("SUCCEEDED", "FAILED", "ACCEPTED_UNKNOWN", "NEEDS_REPAIR"):
        assert operations.follow(key("compensated"), call(1, state)).status == "compensated"


@pytest.mark.parametrize("status", ["open", "compensating", "completed"])
def test_an_effect_in_doubt_is_not_completed_by_the_failure_of_its_compensation(status: str) -> None:
    left = operations.offset(key(status, doubt=True), call(2, "FAILED"))
    assert (left.status, left.doubt) == ("open", True)
