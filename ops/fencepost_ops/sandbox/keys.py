"""What a service promises about idempotency keys, and what it does with one that arrives.

Pure: the memory of a key, the time and the request are inputs; the decision is the output.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

DAY_S = 86_400.0
MAX_KEY_LENGTH = 255  # the longest key that published payment interfaces accept


class FirstFailure(enum.StrEnum):
    """What becomes of a key whose first execution failed without an effect."""

    RELEASED = "released"  # forgotten: the key is new again, for any body
    REPLAYED = "replayed"  # the failure is the key's answer until the window ends
    REEXECUTED = "reexecuted"  # still bound to its body; executed again


class Mismatch(enum.StrEnum):
    """What a remembered key answers to another body."""

    REJECTED = "rejected"  # 422 idempotency_conflict
    IGNORED = "ignored"  # the remembered answer, whatever was sent


class InFlight(enum.StrEnum):
    """What an equal request meets while the first one still executes."""

    WAIT = "wait"  # held until the first one ends, then decided again
    CONFLICT = "conflict"  # 409 in_progress


@dataclass(frozen=True, slots=True)
class Policy:
    """The promise of one service. `window_s` counts from the first execution; None never ends."""

    dedupes: bool = True
    key_required: bool = True
    window_s: float | None = DAY_S
    first_failure: FirstFailure = FirstFailure.RELEASED
    mismatch: Mismatch = Mismatch.REJECTED
    in_flight: InFlight = InFlight.WAIT
    lookup: bool = True
    lookup_lag_s: float = 0.0

    def changed(self, wire: Mapping[str, Any]) -> Policy:
        """The policy with the named fields replaced. Raises ValueError for an unknown field or value."""
        return replace(self, **{name: _policy_value(name, value) for name, value in wire.items()})

    def wire(self) -> dict[str, Any]:
        """The policy as JSON values."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def _policy_value(name: str, value: Any) -> Any:
    match name:
        case "dedupes" | "key_required" | "lookup" if isinstance(value, bool):
            return value
        case "window_s" if value is None:
            return None
        case "window_s" | "lookup_lag_s" if _is_duration(value):
            return float(value)
        case "first_failure":
            return FirstFailure(value)
        case "mismatch":
            return Mismatch(value)
        case "in_flight":
            return InFlight(value)
    raise ValueError(f"a service has no setting {name}={value!r}")


def _is_duration(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0


@dataclass(frozen=True, slots=True)
class Memory:
    """What a service remembers of a key. No `answer` means: it failed and is to be executed again."""

    fingerprint: str
    first_at: float
    status: int | None = None
    answer: str | None = None


class Decision(enum.Enum):
    """What to do with a request, given its key."""

    EXECUTE = enum.auto()
    REPLAY = enum.auto()
    WAIT = enum.auto()
    IN_PROGRESS = enum.auto()
    CONFLICT = enum.auto()


def decide(
    policy: Policy, memory: Memory | None, executing: str | None, fingerprint: str, now: float
) -> Decision:
    """Judge a keyed request; `executing` is the fingerprint of the key's request in progress, if any."""
    if not policy.dedupes:
        return Decision.EXECUTE
    if executing is not None:
        return _decide_in_flight(policy, executing == fingerprint)
    if memory is None or expired(policy, memory, now):
        return Decision.EXECUTE
    if memory.fingerprint != fingerprint and policy.mismatch is Mismatch.REJECTED:
        return Decision.CONFLICT
    return Decision.EXECUTE if memory.answer is None else Decision.REPLAY


def _decide_in_flight(policy: Policy, same: bool) -> Decision:
    if not same and policy.mismatch is Mismatch.REJECTED:
        return Decision.CONFLICT
    return Decision.WAIT if policy.in_flight is InFlight.WAIT else Decision.IN_PROGRESS


def expired(policy: Policy, memory: Memory, now: float) -> bool:
    """Whether the key's window has ended: from then on it is a new key."""
    return policy.window_s is not None and now >= memory.first_at + policy.window_s


def after_success(
    policy: Policy, earlier: Memory | None, fingerprint: str, now: float, status: int, answer: str
) -> Memory:
    """What to remember of a key whose effect is committed. It is written in the effect's own transaction."""
    return Memory(fingerprint, _first_at(policy, earlier, now), status, answer)


def after_failure(
    policy: Policy, earlier: Memory | None, fingerprint: str, now: float, status: int, answer: str
) -> Memory | None:
    """What to remember of a key whose execution had no effect; None: forget it."""
    match policy.first_failure:
        case FirstFailure.RELEASED:
            return None
        case FirstFailure.REPLAYED:
            return Memory(fingerprint, _first_at(policy, earlier, now), status, answer)
        case FirstFailure.REEXECUTED:
            return Memory(fingerprint, _first_at(policy, earlier, now))


def _first_at(policy: Policy, earlier: Memory | None, now: float) -> float:
    return now if earlier is None or expired(policy, earlier, now) else earlier.first_at


def checked(key: str | None) -> str | None:
    """The key, if it is one. Raises ValueError for one that is empty, too long or not printable."""
    if key is not None and (not 0 < len(key) <= MAX_KEY_LENGTH or not key.isprintable()):
        raise ValueError(f"an Idempotency-Key has 1 to {MAX_KEY_LENGTH} printable characters")
    return key


def unquoted(header: str | None) -> str | None:
    """The key of an Idempotency-Key header, which may carry it quoted or raw."""
    if header is not None and len(header) >= 2 and header[0] == header[-1] == '"':
        return header[1:-1]
    return header
