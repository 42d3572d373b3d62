"""Settings that only make sense in an order: what waits for what. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from fencepost.ledger.connect import SILENCE
from fencepost.settings import Settings
from fencepost_ops.doctor.findings import Area, Finding

_AREA = Area("settings")
LEAVE_S = 20.0  # what a drained process may take to leave
_LEAST_TTL_S = 2.0  # a stamp's statement may take as long
_LEAST_STALL_S = 5.0  # a collection, a swap or a crowded machine stops a process for seconds


def judge_settings(settings: Settings) -> list[Finding]:
    """What is wrong between the settings of this environment; of other processes it knows nothing."""
    redelivery = (
        f"the broker delivers anew after {settings.visibility_timeout_s} s, to all of this Redis alike"
    )
    return list(_orders(settings)) or [_AREA.ok(f"the timeouts are in order; {redelivery}")]


def _orders(s: Settings) -> Iterator[Finding]:
    yield from _relaying(s)
    yield from _draining(s)
    yield from _liveness(s)
    yield from _drills(s)


def _relaying(s: Settings) -> Iterator[Finding]:
    poll_s = s.poll_ms / 1000
    if poll_s > s.worker_ttl_s / 3:
        yield _AREA.problem(
            f"FENCEPOST_POLL_MS ({s.poll_ms}) is more than a third of FENCEPOST_WORKER_TTL_S "
            f"({s.worker_ttl_s:g} s): an idle relay looks too rarely to find a host that died",
            "keep the poll below a third of the worker's time to live",
        )
    if s.worker_ttl_s < _LEAST_TTL_S:
        yield _AREA.warning(
            f"FENCEPOST_WORKER_TTL_S ({s.worker_ttl_s:g} s) is shorter than one slow stamp: workers that "
            "live are declared dead, and their attempts become UNKNOWN",
            f"set it to {_LEAST_TTL_S:g} s at least, 10 s where nothing hurries",
        )
    if s.republish_s < 2 * poll_s:
        yield _AREA.warning(
            f"FENCEPOST_REPUBLISH_S ({s.republish_s:g} s) is not twice FENCEPOST_POLL_MS ({s.poll_ms}): rows "
            "are published again before anybody can have claimed them",
            "set it to some seconds; it only matters when a message is lost",
        )
    if s.planner_grace_s == 0:
        yield _AREA.warning(
            "FENCEPOST_PLANNER_GRACE_S is 0: an answer that comes just in time loses to a takeover",
            "give it as long as a commit may take, 2 s by default",
        )


def _draining(s: Settings) -> Iterator[Finding]:
    if s.drain_s + LEAVE_S >= s.visibility_timeout_s and not s.hostile:
        yield _AREA.warning(
            f"FENCEPOST_DRAIN_S ({s.drain_s:g} s) comes near the {s.visibility_timeout_s} s after which the "
            "broker delivers anew what an intake still holds",
            "keep a drain well below; a message delivered twice costs time only",
        )


def _liveness(s: Settings) -> Iterator[Finding]:
    if 0 < s.deaf_s <= s.broker_timeout_s:
        yield _AREA.warning(
            f"FENCEPOST_DEAF_S ({s.deaf_s:g} s) is not longer than FENCEPOST_BROKER_TIMEOUT_S "
            f"({s.broker_timeout_s:g} s): a worker ends before it has tried a new connection",
            "keep deafness at twice the broker's timeout at least",
        )
    if 0 < s.deaf_s < 2 * SILENCE * s.transaction_s:
        yield _AREA.warning(
            f"FENCEPOST_DEAF_S ({s.deaf_s:g} s) is shorter than two transactions that nobody answers "
            f"(FENCEPOST_TRANSACTION_S: {s.transaction_s:g} s): a silent Postgres makes workers look deaf",
            "keep deafness at two and a half transactions at least",
        )
    if 0 < s.stall_s < _LEAST_STALL_S:
        yield _AREA.warning(
            f"FENCEPOST_STALL_S ({s.stall_s:g} s) kills workers that a crowded machine holds up",
            f"set it to {_LEAST_STALL_S:g} s at least, 60 s where nothing hurries; 0 turns it off",
        )


def _drills(s: Settings) -> Iterator[Finding]:
    if s.hostile:
        yield _AREA.warning(
            "FENCEPOST_HOSTILE is on: late acks and a visibility timeout of 2 s, which every consumer of "
            "this Redis suffers",
            "unset it; it is for tests",
        )
    if s.fault or s.fault_follow:
        yield _AREA.warning(
            "fault points are armed: processes of this environment crash, freeze or fail on purpose",
            "unset FENCEPOST_FAULT and FENCEPOST_FAULT_FOLLOW; they are for drills",
        )
