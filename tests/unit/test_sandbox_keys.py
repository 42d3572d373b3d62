"""What a service does with an idempotency key, as a decision over memory, time and request."""

import dataclasses
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost_ops.sandbox import keys
from fencepost_ops.sandbox.keys import Decision, FirstFailure, InFlight, Memory, Mismatch, Policy

POLICY = Policy(window_s=100.0)
DONE = Memory("same", first_at=0.0, status=201, answer="{}")
FAILED = Memory("same", first_at=0.0)


def test_a_new_key_executes() -> None:
    assert keys.decide(POLICY, None, None, "same", now=0.0) is Decision.EXECUTE


def test_a_remembered_key_is_replayed_until_the_moment_its_window_ends() -> None:
    assert keys.decide(POLICY, DONE, None, "same", now=99.9) is Decision.REPLAY
    assert keys.decide(POLICY, DONE, None, "same", now=100.0) is Decision.EXECUTE


def test_a_window_of_none_never_ends() -> None:
    forever = dataclasses.replace(POLICY, window_s=None)
    assert keys.decide(forever, DONE, None, "same", now=1e12) is Decision.REPLAY


def test_a_remembered_key_with_another_body_conflicts_or_is_ignored_as_the_policy_says() -> None:
    ignoring = dataclasses.replace(POLICY, mismatch=Mismatch.IGNORED)
    assert keys.decide(POLICY, DONE, None, "other", now=1.0) is Decision.CONFLICT
    assert keys.decide(ignoring, DONE, None, "other", now=1.0) is Decision.REPLAY


def test_another_body_after_the_window_is_a_new_request() -> None:
    assert keys.decide(POLICY, DONE, None, "other", now=100.0) is Decision.EXECUTE


def test_an_equal_request_in_progress_is_waited_for_or_answered_as_the_policy_says() -> None:
    impatient = dataclasses.replace(POLICY, in_flight=InFlight.CONFLICT)
    assert keys.decide(POLICY, None, "same", "same", now=0.0) is Decision.WAIT
    assert keys.decide(impatient, None, "same", "same", now=0.0) is Decision.IN_PROGRESS


def test_another_body_does_not_wait_for_a_key_in_progress() -> None:
    assert keys.decide(POLICY, None, "same", "other", now=0.0) is Decision.CONFLICT


def test_a_service_that_does_not_deduplicate_always_executes() -> None:
    careless = dataclasses.replace(POLICY, dedupes=False)
    for memory, executing in itertools.product((None, DONE, FAILED), (None, "same", "other")):
        assert keys.decide(careless, memory, executing, "same", now=0.0) is Decision.EXECUTE


def test_a_first_failure_is_forgotten_when_released() -> None:
    assert keys.after_failure(POLICY, None, "same", 5.0, 500, "{}") is None


def test_a_first_failure_is_the_answer_of_the_key_when_replayed() -> None:
    replaying = dataclasses.replace(POLICY, first_failure=FirstFailure.REPLAYED)
    memory = keys.after_failure(replaying, None, "same", 5.0, 500, "no")
    assert memory == Memory("same", 5.0, 500, "no")
    assert keys.decide(replaying, memory, None, "same", now=6.0) is Decision.REPLAY


def test_a_first_failure_keeps_the_key_bound_to_its_body_when_reexecuted() -> None:
    repeating = dataclasses.replace(POLICY, first_failure=FirstFailure.REEXECUTED)
    memory = keys.after_failure(repeating, None, "same", 5.0, 500, "no")
    assert keys.decide(repeating, memory, None, "same", now=6.0) is Decision.EXECUTE
    assert keys.decide(repeating, memory, None, "other", now=6.0) is Decision.CONFLICT


def test_the_window_counts_from_the_first_execution_and_starts_anew_after_it() -> None:
    assert keys.after_success(POLICY, FAILED, "same", 50.0, 201, "{}").first_at == 0.0
    assert keys.after_success(POLICY, FAILED, "same", 150.0, 201, "{}").first_at == 150.0


@given(
    memory=st.sampled_from([None, DONE, FAILED]),
    executing=st.sampled_from([None, "same", "other"]),
    fingerprint=st.sampled_from(["same", "other"]),
    now=st.floats(0, 200),
    mismatch=st.sampled_from(Mismatch),
    in_flight=st.sampled_from(InFlight),
)
def test_a_key_never_executes_beside_itself_nor_twice_in_its_window(
    memory: Memory | None,
    executing: str | None,
    fingerprint: str,
    now: float,
    mismatch: Mismatch,
    in_flight: InFlight,
) -> None:
    policy = dataclasses.replace(POLICY, mismatch=mismatch, in_flight=in_flight)
    if keys.decide(policy, memory, executing, fingerprint, now) is Decision.EXECUTE:
        assert executing is None
        assert memory is None or memory.answer is None or now >= 100.0


@pytest.mark.parametrize("header", ['"abc"', "abc"])
def test_a_key_header_may_be_quoted_or_raw(header: str) -> None:
    assert keys.checked(keys.unquoted(header)) == "abc"


@pytest.mark.parametrize("key", ["", "x" * 256, "a\tb"])
def test_a_key_that_is_empty_too_long_or_not_printable_is_refused(key: str) -> None:
    with pytest.raises(ValueError, match="Idempotency-Key"):
        keys.checked(key)


def test_a_policy_says_which_setting_it_does_not_have() -> None:
    with pytest.raises(ValueError, match="window_s='soon'"):
        POLICY.changed({"window_s": "soon"})
    with pytest.raises(ValueError, match="colour"):
        POLICY.changed({"colour": "red"})


def test_a_policy_survives_its_own_wire_form() -> None:
    assert Policy().changed(POLICY.wire()) == POLICY
