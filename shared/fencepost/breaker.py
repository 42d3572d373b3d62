"""One retry owner per dependency (R4): when a dependency is left alone, how long, and who tries it again.

Pure: a `Health` is one row of the ledger, read under its lock or in a new statement after the run's; every
rule takes values and gives values, and the same object back where nothing has changed.

    closed ── failures in a row, or a Retry-After ──▶ open ── its time is over ──▶ half_open
       ▲                                                                            │   │
       └────────────── a probe was answered ────────────────────────────────────────┘   └─▶ open, for longer

A failure is one of the dependency: no connection, no answer in time, a 5xx, a 429. A refusal of one call (any
other 4xx, whatever a tool's own NotApplied names) is an answer: the dependency works; but an account that a
provider of models takes no more fails for all who have it. What went wrong on our side says nothing. A
Retry-After of a 429 or 503 (RFC 9110, section 10.2.3; RFC 6585, section 4) closes the dependency for
everybody until then, at most `MAX_RETRY_AFTER`; whoever waits comes back at a time of its own.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final
from uuid import UUID

from fencepost.clock import NEVER, parse_rfc3339, rfc3339
from fencepost.deadlines import MAX_RETRY_AFTER, plus
from fencepost.dependencies import DependencySpec
from fencepost.outcomes import Applied, Outcome, Refused

FORGET: Final = timedelta(minutes=1)
"""Failures further apart than this are not in a row, however little was asked between them."""
_LEAST_SPREAD: Final = timedelta(milliseconds=200)
_MOST_SPREAD: Final = timedelta(seconds=30)
_PROBE_SPREAD: Final = timedelta(seconds=5)
_SECOND: Final = timedelta(seconds=1)
_SETTLES: Final = 0.1  # seconds' worth of a rate that may start at once, so that lists are claimed as lists
_MOST_DOUBLINGS: Final = 16


class State(StrEnum):
    """Of a breaker."""

    CLOSED = "closed"
    """The dependency is used."""
    OPEN = "open"
    """It is left alone until `closed_until`."""
    HALF_OPEN = "half_open"
    """A few attempts at a time find out whether it works again."""


class FailureClass(StrEnum):
    """What kept an attempt from an ordinary success; stored in histories."""

    CONNECT = "connect"
    """No connection: nothing was sent."""
    TIMEOUT = "timeout"
    """No answer within the attempt's time."""
    LOST = "lost"
    """The connection broke before the answer was complete."""
    THROTTLED = "throttled"
    """429: too many requests; or a 403 that says the same (`outcomes.throttled`)."""
    SERVER = "server"
    """A 5xx."""
    REFUSED = "refused"
    """An answer: this call is not wanted, or not yet. The dependency works."""
    UNCLEAR = "unclear"
    """An answer that settles nothing: not understood, accepted for later, in progress, a stored failure."""
    OURS = "ours"
    """Our own side: a lost worker, no time left, an error in the application's code."""


DEPENDENCY_FAILED: Final = frozenset(
    {
        FailureClass.CONNECT,
        FailureClass.TIMEOUT,
        FailureClass.LOST,
        FailureClass.THROTTLED,
        FailureClass.SERVER,
    }
)
"""The classes that count against a dependency."""

_CLASSES: Final = {
    "connect_failed": FailureClass.CONNECT,
    "connect_timeout": FailureClass.CONNECT,
    "timeout": FailureClass.TIMEOUT,
    "connection_lost": FailureClass.LOST,
    "transport_failed": FailureClass.LOST,
    "response_lost": FailureClass.LOST,
    "http_429": FailureClass.THROTTLED,
    "throttled_403": FailureClass.THROTTLED,
    "accepted": FailureClass.UNCLEAR,
    "unreadable_answer": FailureClass.UNCLEAR,
    "in_progress": FailureClass.UNCLEAR,
    "oversize": FailureClass.UNCLEAR,
    "cancelled": FailureClass.OURS,
    "damaged_result": FailureClass.OURS,
    "planner_error": FailureClass.OURS,
    "deadline_passed": FailureClass.OURS,
    "exception": FailureClass.OURS,
    "invalid_request": FailureClass.OURS,
    "late": FailureClass.OURS,
    "not_awaited": FailureClass.OURS,
    "not_started": FailureClass.OURS,
    "secret_unavailable": FailureClass.OURS,
    "unheard": FailureClass.OURS,
    "outbound_refused": FailureClass.OURS,
    "worker_error": FailureClass.OURS,
    "worker_lost": FailureClass.OURS,
}
_ACCOUNT: Final = frozenset({"http_401", "http_402", "http_407"})
_MOVED: Final = frozenset(f"http_{status}" for status in range(300, 309) if status != 304)  # none is followed
_NOT_THERE: Final = frozenset({"http_403", "http_404", "http_405", "http_410", "secret_unavailable"})
_SET_UP: Final = _ACCOUNT | _MOVED | _NOT_THERE
_CLOSING: Final = frozenset({"http_429", "throttled_403", "http_503", "http_529"})
"""The last one is what a provider of models answers when it is overloaded."""


@dataclass(frozen=True, slots=True)
class Health:
    """One row of `dependencies`: how a dependency has been, for the whole fleet. Field for field its columns.

    `failures`: in a row, while closed; `opens`: openings in a row, each with a longer pause; `opened_at`: of
    the first of them. `probes` and `flights` are the calls being tried in a half-open breaker, and those in
    flight where concurrency is limited, each with the time from which it no longer counts. `paced_at`: where
    the rate stands.
    """

    scope: str
    state: str = State.CLOSED
    closed_until: datetime | None = None
    reason: str | None = None
    failures: int = 0
    failed_at: datetime | None = None
    opens: int = 0
    opened_at: datetime | None = None
    probes: str = "{}"
    flights: str = "{}"
    paced_at: datetime | None = None
    version: int = 0
    updated_at: datetime | None = None

    @property
    def well(self) -> bool:
        """Whether nothing but its limits has to be looked at, and nothing an answer says changes the row."""
        return self.state == State.CLOSED and self.failures == 0 and self.flights == "{}"


@dataclass(frozen=True, slots=True)
class Blocked:
    """The dependency is left alone: nothing may be sent, and no attempt is spent. `from_` is the earliest
    instant at which that can change.
    """

    from_: datetime
    state: str
    reason: str


@dataclass(frozen=True, slots=True)
class Full:
    """A limit of the dependency is reached for the moment; `until` is when asking again makes sense."""

    until: datetime
    limit: str


@dataclass(frozen=True, slots=True)
class Learnt:
    """What one attempt or question says of its dependency: failed, answered, or (neither) nothing."""

    failed: bool = False
    answered: bool = False
    code: str = ""
    retry_after: timedelta | None = None


def failure_class(code: str) -> FailureClass:
    """The class of an outcome's code; total. An unknown code is a tool's own word for a refusal."""
    if (found := _CLASSES.get(code)) is not None:
        return found
    if re.fullmatch(r"http_5\d\d", code):
        return FailureClass.SERVER
    if re.fullmatch(r"http_[123]\d\d|replayed_\d+", code):
        return FailureClass.UNCLEAR
    return FailureClass.REFUSED


def learnt(outcome: Outcome) -> Learnt:
    """What an attempt's outcome says of its dependency.

    A stored answer that is given again tells how it was when it was stored; now the dependency answers.
    """
    if isinstance(outcome, Applied):
        return Learnt(answered=True)
    if isinstance(outcome, Refused) and outcome.final_answer_stored:
        return Learnt(answered=True, code=outcome.code)
    return _said(outcome.code, outcome.retry_after)


def throttled(outcome: Outcome) -> bool:
    """Whether an attempt was answered only that it came too soon: that is no answer about its call.

    Too many requests, or any other refusal that closes the dependency and says until when. A stored answer
    that is given again is one about the call.
    """
    if isinstance(outcome, Applied) or (isinstance(outcome, Refused) and outcome.final_answer_stored):
        return False
    closes = outcome.code in _CLOSING and outcome.retry_after is not None
    return closes or failure_class(outcome.code) is FailureClass.THROTTLED


def learnt_of_question(code: str, retry_after: timedelta | None) -> Learnt:
    """What a question says of its dependency, by how it fared; nothing where it was never put."""
    return _said(code, retry_after) if code else Learnt()


def learnt_of_model(code: str, retry_after: timedelta | None) -> Learnt:
    """What an answer that is no turn says of a model's provider. An account it no longer takes fails for
    everybody who has it; other models may well be there where this one is not. One that is slow is not ill:
    how long its models may take is declared for each, and others may answer meanwhile.
    """
    if failure_class(code) is FailureClass.TIMEOUT:
        return Learnt(code=code)
    return Learnt(failed=True, code=code) if code in _ACCOUNT else learnt_of_question(code, retry_after)


def set_up_wrong(code: str) -> bool:
    """Whether an answer that is no turn comes of how the deployment is set up: a key that is missing or was
    revoked, an account that is not paid for, a model or an address there is not. Every run meets it, until
    somebody has mended that.
    """
    return code in _SET_UP


def _said(code: str, retry_after: timedelta | None) -> Learnt:
    kind = failure_class(code)
    if kind is FailureClass.OURS:
        return Learnt(code=code)
    failed = kind in DEPENDENCY_FAILED
    wait = retry_after if code in _CLOSING else None
    return Learnt(failed=failed, answered=not failed, code=code, retry_after=wait)


# -- before anything is sent ---------------------------------------------------------------------------------


def admit(
    held: Health, spec: DependencySpec, *, call: UUID, now: datetime, until: datetime
) -> Health | Blocked | Full:
    """Whether a call may be sent, or asked about, now; if so the row as it then is, `held` itself if equal.

    `until` is when the attempt counts no more, should nobody ever say what became of it. In a half-open
    breaker at most `spec.breaker.probes` are on their way at once.
    """
    fresh = held
    if held.state != State.CLOSED:
        if held.closed_until is not None and now < held.closed_until:
            return Blocked(held.closed_until, held.state, held.reason or "")
        probes = _living(held.probes, now) if held.state == State.HALF_OPEN else {}
        if len(probes) >= spec.breaker.probes and str(call) not in probes:
            return Blocked(now, State.HALF_OPEN, held.reason or "")
        fresh = replace(fresh, state=State.HALF_OPEN, probes=_text(probes | {str(call): until}))
    return _within_limits(fresh, spec, call, now, until)


def _within_limits(
    fresh: Health, spec: DependencySpec, call: UUID, now: datetime, until: datetime
) -> Health | Full:
    if spec.concurrency is not None:
        flights = _living(fresh.flights, now)
        if len(flights) >= spec.concurrency and str(call) not in flights:
            return Full(min(flights.values()), "concurrency")
        fresh = replace(fresh, flights=_text(flights | {str(call): until}))
    if spec.rate is not None:
        step = _SECOND / spec.rate
        at = max(fresh.paced_at or now, now)
        ahead = max(step, _SETTLES * _SECOND) - step
        if at - now > ahead:
            return Full(at - ahead, "rate")
        fresh = replace(fresh, paced_at=at + step)
    return fresh


def wake_at(blocked: Blocked, held: Health, *, now: datetime, last: datetime, rand: float) -> datetime | None:
    """When a blocked call is looked at again: a while after the dependency may be tried, each its own.

    The while grows with the age of the trouble, from a fifth of a second to half a minute, so that a call
    writes some ten lines in the first minutes of an outage and two a minute from then on. While others find
    out whether it works again that is no longer than a probe takes, as a rule, so that who meets that moment
    is not left waiting once it does. Before `last`, the last instant at which it makes sense; None where the
    dependency stays closed until then.
    """
    base = max(now, blocked.from_)
    if base >= last:
        return None
    age = now - held.opened_at if held.opened_at is not None else timedelta(0)
    most = _PROBE_SPREAD if blocked.state == State.HALF_OPEN else _MOST_SPREAD
    spread = min(max(age / 2, _LEAST_SPREAD), most)
    due = plus(base, spread * (0.5 + rand / 2))
    return due if due < last else base + (last - base) * (rand / 2)


# -- after an answer, or none --------------------------------------------------------------------------------


def learn(
    held: Health, spec: DependencySpec, said: Learnt, *, call: UUID, now: datetime, rand: float
) -> Health:
    """The row once an attempt or a question has told something; `held` itself where it stays as it was.

    While open, what was sent before tells nothing new, but for a longer Retry-After. In a half-open breaker
    only the probes speak: the first one that is answered closes it, a failure opens it for longer.
    """
    probing = held.state == State.HALF_OPEN and str(call) in _living(held.probes, now)
    fresh = left(held, call=call, now=now)
    if said.failed:
        return _failed(fresh, spec, said, now, rand, probing=probing)
    if said.answered and probing:
        return Health(held.scope, flights=fresh.flights, paced_at=held.paced_at, version=held.version)
    if said.answered and held.state == State.CLOSED and held.failures:
        return replace(fresh, failures=0, failed_at=None)
    return fresh


def left(held: Health, *, call: UUID, now: datetime) -> Health:
    """The row once nothing of a call is under way: its places are free. `held` itself where it has none."""
    flights, probes = _living(held.flights, now), _living(held.probes, now)
    fresh = held
    if str(call) in flights or flights.keys() != json.loads(held.flights).keys():
        fresh = replace(fresh, flights=_text({k: v for k, v in flights.items() if k != str(call)}))
    if held.state == State.HALF_OPEN and str(call) in probes:
        fresh = replace(fresh, probes=_text({k: v for k, v in probes.items() if k != str(call)}))
    return fresh


def _failed(
    fresh: Health, spec: DependencySpec, said: Learnt, now: datetime, rand: float, *, probing: bool
) -> Health:
    recent = fresh.failed_at is not None and now - fresh.failed_at <= FORGET
    failures = fresh.failures + 1 if recent else 1
    counted = replace(fresh, failures=failures, failed_at=now)
    if said.retry_after is not None:
        asked = plus(now, min(said.retry_after, MAX_RETRY_AFTER))
        why = f"{said.code}, Retry-After {said.retry_after.total_seconds():g} s"
        if fresh.state == State.CLOSED or probing:
            return _opened(counted, spec, now, rand, why, asked)
        return replace(counted, closed_until=max(fresh.closed_until or asked, asked), state=State.OPEN)
    if probing:
        return _opened(counted, spec, now, rand, f"{said.code}, tried again", now)
    if fresh.state != State.CLOSED:
        return fresh
    if failures >= spec.breaker.failures:
        return _opened(counted, spec, now, rand, f"{failures} failures in a row, the last {said.code}", now)
    return counted


def _opened(
    counted: Health, spec: DependencySpec, now: datetime, rand: float, why: str, asked: datetime
) -> Health:
    """Open until what the downstream asks for, and at least a pause that doubles with each opening in a row.

    The pause is jittered by a quarter, so that several dependencies lost in one moment are not tried in one.
    """
    doublings = min(counted.opens, _MOST_DOUBLINGS)
    pause = min(spec.breaker.pause * 2**doublings, spec.breaker.pause_cap)
    return replace(
        counted,
        state=State.OPEN,
        closed_until=max(asked, plus(now, pause * (1 + rand / 4))),
        reason=why[:200],
        opens=counted.opens + 1,
        opened_at=counted.opened_at or now,
        probes="{}",
    )


def _living(text: str, now: datetime) -> dict[str, datetime]:
    held = {call: parse_rfc3339(until) for call, until in json.loads(text).items()}
    return {call: until for call, until in held.items() if until > now}


def _text(held: dict[str, datetime]) -> str:
    return json.dumps({call: rfc3339(min(until, NEVER)) for call, until in held.items()})
