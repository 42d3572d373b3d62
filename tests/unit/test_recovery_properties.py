from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.clock import NEVER
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
)
from fencepost.recovery import (
    Answer,
    Ask,
    Decision,
    Evidence,
    Facts,
    Fail,
    LookupAnswer,
    Repair,
    Repeat,
    Succeed,
    Wait,
    recover,
)
from fencepost.states import RunStatus

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
TICK, SECOND, MINUTE = timedelta(microseconds=1), timedelta(seconds=1), timedelta(minutes=1)

# Few, small, colliding durations: defects sit where two instants are equal or a microsecond apart.
short = st.integers(0, 4).map(lambda n: n * SECOND) | st.just(TICK)
long = st.integers(0, 90).map(lambda n: n * SECOND)
near = st.builds(
    lambda delta, tick: NOW + delta + tick,
    st.integers(-30, 5).map(lambda n: n * SECOND),
    st.sampled_from([timedelta(0), TICK, -TICK]),
)
extreme = st.sampled_from([NEVER, datetime(1, 1, 1, tzinfo=UTC), datetime.max.replace(tzinfo=UTC)])
endless = st.just(timedelta.max)


def contracts(lengths: st.SearchStrategy[timedelta]) -> st.SearchStrategy[Contract]:
    lookups = (
        st.builds(Lookup, strong=st.just(True), horizon=st.none() | lengths)
        | st.builds(Lookup, lag=short, horizon=lengths)
        | st.just(Lookup())
    )
    deduping = st.builds(
        Dedupes,
        window=lengths,
        mismatch=st.sampled_from([Mismatch.REJECTED, *Mismatch]),
        first_failure=st.sampled_from(FirstFailure),
        starts=st.sampled_from(["first_send", "completion"]),
    )
    return st.builds(
        Contract,
        repeat=deduping | st.builds(Natural, resource=st.none() | st.just(str)) | st.just(Never()),
        lookup=st.none() | lookups,
        settle=st.none() | short,
        after_takeover=st.sampled_from([None, AfterTakeover.REPAIR]),
    )


def facts(
    times: st.SearchStrategy[datetime], lengths: st.SearchStrategy[timedelta]
) -> st.SearchStrategy[Facts]:
    receipts = st.sampled_from([None, "r-1", "r-2"])
    said = st.sampled_from([False, False, True])
    evidence = st.builds(Evidence, st.integers(0, 4), said, receipts, retryable=st.booleans())
    return st.builds(
        Facts,
        now=times,
        effect=st.sampled_from([Effect.REVERSIBLE, *Effect]),
        contract=contracts(lengths),
        attempts=st.sampled_from([1, 1, 2, 0, 3]),
        max_attempts=st.integers(1, 4),
        per_attempt=short,
        margin=short,
        in_flight_until=times,
        first_sent_at=st.none() | times,
        reconcile_until=times.map(lambda at: min(at + MINUTE, NEVER) if at < NEVER else at),
        run=st.just(RunStatus.ACTING) | st.sampled_from(RunStatus),
        compensable=st.booleans(),
        is_compensation=st.sampled_from([False, False, True]),
        taken_over=st.booleans(),
        has_lookup=st.booleans(),
        asks=st.integers(0, 100),
        evidence=st.just(()) | st.lists(evidence, max_size=4).map(tuple),
        lookup=st.none()
        | st.builds(LookupAnswer, st.sampled_from([Answer.ABSENT, *Answer]), times, receipts),
        rand=st.floats(0, 1, exclude_max=True),
        resource_locked=st.booleans(),
    )


def repeatable(
    told: Facts, contract: Contract, run: RunStatus, sent_ago: timedelta, absent_after: timedelta | None
) -> Facts:
    """The same facts with no evidence, attempts and time left and a contract that may allow a repeat."""
    asked_at = None if absent_after is None else told.in_flight_until + absent_after
    return replace(
        told,
        now=max(NOW, told.now),
        effect=Effect.REVERSIBLE,
        contract=contract,
        run=run,
        attempts=1,
        max_attempts=3,
        first_sent_at=NOW - sent_ago,
        reconcile_until=NOW + MINUTE,
        has_lookup=asked_at is not None,
        evidence=(),
        lookup=None if asked_at is None else LookupAnswer(Answer.ABSENT, asked_at),
    )


rough_facts = facts(near, long)
repeatable_facts = st.builds(
    repeatable,
    rough_facts,
    contracts(st.integers(20, 60).map(lambda n: n * SECOND)),
    st.sampled_from([RunStatus.ACTING, RunStatus.STOPPING, RunStatus.COMPENSATING]),
    long,
    st.none() | st.integers(0, 9).map(lambda n: n * SECOND + TICK),
)
any_facts = rough_facts | repeatable_facts
extreme_facts = facts(near | extreme, long | endless)


def exceeds(total: list[timedelta], room: timedelta) -> bool:
    """Whether the durations add up to `room` or more, without overflowing."""
    return sum(item / SECOND for item in total) >= room / SECOND


def proved_absent(told: Facts) -> bool:
    """The rule for an absence, written down a second time and from the other side."""
    answer, lookup, settle = told.lookup, told.contract.lookup, told.contract.settle
    if answer is None or answer.answer is not Answer.ABSENT or lookup is None or settle is None:
        return False
    if not lookup.strong and (lookup.lag is None or lookup.horizon is None):
        return False
    if exceeds([settle, lookup.lag or timedelta(0)], answer.asked_at - told.in_flight_until):
        return False
    if lookup.horizon is None:
        return True
    if told.first_sent_at is None:
        return False
    return not exceeds([answer.asked_at - told.first_sent_at, told.margin], lookup.horizon)


def window_is_open(told: Facts) -> bool:
    repeat = told.contract.repeat
    if not isinstance(repeat, Dedupes) or told.first_sent_at is None:
        return False
    settle = told.contract.settle or timedelta(0)
    return all(
        not exceeds([until - told.first_sent_at, rest, settle, told.margin], repeat.window)
        for until, rest in ((told.now, told.per_attempt), (told.in_flight_until, timedelta(0)))
    )


@given(any_facts | extreme_facts)
def test_every_set_of_facts_has_exactly_one_decision(told: Facts) -> None:
    decision = recover(told)
    assert isinstance(decision, Decision)
    assert recover(told) == decision


@given(any_facts)
def test_nothing_ends_without_a_proof(told: Facts) -> None:
    decision = recover(told)
    real = [item for item in told.evidence if 1 <= item.attempt <= told.attempts]
    if isinstance(decision, Succeed):
        found = told.lookup is not None and told.lookup.answer is Answer.FOUND
        assert found or any(item.applied for item in real)
    if isinstance(decision, Fail):
        every_no = {item.attempt for item in real if not item.applied} == set(range(1, told.attempts + 1))
        assert told.effect is Effect.READ or (every_no and told.attempts) or proved_absent(told)
        assert not any(item.applied for item in real)


@given(any_facts)
def test_nothing_is_repeated_without_a_reason_that_makes_it_safe(told: Facts) -> None:
    if not isinstance(recover(told), Repeat):
        return
    natural = (
        isinstance(told.contract.repeat, Natural)
        and told.resource_locked
        and told.contract.settle is not None
    )
    real = [item for item in told.evidence if 1 <= item.attempt <= told.attempts]
    never_applied = {item.attempt for item in real if not item.applied} == set(range(1, told.attempts + 1))
    safe = proved_absent(told) or window_is_open(told) or natural
    assert told.effect is Effect.READ or safe or (never_applied and not any(i.applied for i in real))


@given(any_facts)
def test_nothing_is_repeated_beyond_its_attempts_its_deadline_or_its_run(told: Facts) -> None:
    if not isinstance(recover(told), Repeat):
        return
    assert told.attempts < told.max_attempts
    assert told.now < told.reconcile_until
    assert told.run in {RunStatus.ACTING, RunStatus.STOPPING, RunStatus.COMPENSATING}
    assert told.is_compensation is (told.run is RunStatus.COMPENSATING)
    if told.run is RunStatus.STOPPING:
        assert told.compensable
        assert window_is_open(told)


@given(any_facts)
def test_a_lost_attempt_is_never_repeated_where_the_contract_says_repair(told: Facts) -> None:
    if told.taken_over and told.contract.takeover is AfterTakeover.REPAIR and told.effect is not Effect.READ:
        # But where every attempt, the lost one too, has proved to have had no effect, it is no longer lost.
        proved = {e.attempt for e in told.evidence if not e.applied} >= set(range(1, told.attempts + 1))
        assert proved or not isinstance(recover(told), Repeat)


@given(any_facts)
def test_a_wait_ends_after_now_and_not_after_the_reconciliation_deadline(told: Facts) -> None:
    decision = recover(told)
    if isinstance(decision, Wait):
        assert told.now < decision.until <= told.reconcile_until


def repeated(told: Facts) -> Facts:
    """The facts after one more attempt that was sent and came to nothing known."""
    deadline = told.now + told.per_attempt
    return replace(
        told, now=deadline, in_flight_until=deadline, attempts=told.attempts + 1, lookup=None, evidence=()
    )


@given(told=any_facts, answers=st.lists(st.sampled_from(Answer), min_size=1, max_size=5), keep=st.booleans())
def test_followed_decisions_come_to_an_end_whatever_the_downstream_answers(
    told: Facts, answers: list[Answer], keep: bool
) -> None:
    # Bounded clocks: a downstream that stays unclear is asked until the deadline, three minutes away at most.
    told = replace(told, now=NOW, reconcile_until=NOW + 3 * MINUTE, max_attempts=3)
    for step in range(2000):
        match recover(told):
            case Succeed() | Fail() | Repair():
                return
            case Wait(until=until):
                told = replace(told, now=until, lookup=told.lookup if keep else None)
            case Ask():
                answer = LookupAnswer(answers[step % len(answers)], told.now)
                told = replace(told, lookup=answer, asks=told.asks + 1)
            case Repeat():
                told = repeated(told)
    pytest.fail(f"still undecided after 2000 steps: {told}")
