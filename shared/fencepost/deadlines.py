"""When things may start, must end and are tried again: arithmetic over instants that are given, never read.

Instants are aware UTC datetimes. Sums never overflow: what would lie beyond `NEVER` is `NEVER`.
"""

from datetime import datetime, timedelta

from fencepost.clock import NEVER

MAX_RETRY_AFTER = timedelta(hours=1)
"""No downstream may park a call for longer than this by its Retry-After."""

_MICROSECOND = timedelta(microseconds=1)
_MILLISECOND = timedelta(milliseconds=1)


def millis(span: timedelta) -> int:
    """Whole milliseconds, as events tell how long."""
    return span // _MILLISECOND


def plus(at: datetime, delta: timedelta) -> datetime:
    """`at + delta`, at most `NEVER`."""
    try:
        return min(at + delta, NEVER)
    except OverflowError:
        return NEVER


def attempt_timeout(
    per_attempt_cap: timedelta, run_deadline: datetime, now: datetime, reserve: timedelta
) -> timedelta:
    """How long an attempt that starts now may take; zero or negative: it must not be dispatched.

    `reserve` is kept back before the run's deadline so that an unknown outcome can still be settled.
    """
    return min(per_attempt_cap, run_deadline - now - reserve)


def answer_timeout(declared: timedelta | None, of_model: timedelta | None, left: timedelta) -> timedelta:
    """How long a planner's answer that is asked for now may take: as its planner declares, else as its model
    does, and no longer than is `left` of the run. Nothing else shortens it.
    """
    return min(one for one in (declared or of_model, left) if one is not None)


def takeover_at(attempt_deadline: datetime, grace: timedelta) -> datetime:
    """When an attempt without a recorded answer falls to another worker."""
    return plus(attempt_deadline, grace)


def quiet_at(in_flight_until: datetime, settle: timedelta | None) -> datetime:
    """From when on nothing already sent can still take effect; `NEVER` where settling is undocumented."""
    return NEVER if settle is None else plus(in_flight_until, settle)


def backoff(attempt: int, base: timedelta, cap: timedelta, rand: float) -> timedelta:
    """The pause after attempt number `attempt` (1-based), full jitter: `rand`, in [0, 1), of its ceiling.

    The ceiling is `base`, doubled for every attempt before this one, and never above `cap`.
    """
    doublings = min(max(attempt, 1) - 1, 64)  # 2**64 µs exceed every cap; the limit keeps the integers small
    ceiling = min(cap // _MICROSECOND, (base // _MICROSECOND) << doublings)
    return timedelta(microseconds=int(ceiling * rand))


def retry_at(
    now: datetime,
    attempt: int,
    base: timedelta,
    cap: timedelta,
    rand: float,
    retry_after: timedelta | None = None,
) -> datetime:
    """When to try again after `attempt`. The downstream's `retry_after` is a floor, at most one hour."""
    pause = backoff(attempt, base, cap, rand)
    if retry_after is not None:
        pause = max(pause, min(retry_after, MAX_RETRY_AFTER))
    return plus(now, pause)
