"""The answers of the sandbox: true ones, repeated ones, and those a fault puts in their place.

Pure: nothing here reads a socket, a clock or the book.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fencepost_ops.sandbox.faults import Kind, Rule
from fencepost_ops.sandbox.keys import Memory

_ASKED_FOR = "a fault was asked for"


class Sent(enum.Enum):
    """How much of an answer leaves."""

    WHOLE = enum.auto()
    HALF = enum.auto()  # the full Content-Length, half of the body, then the end
    NOTHING = enum.auto()  # the connection closes without a byte
    RESET = enum.auto()  # the connection is reset without a byte


@dataclass(frozen=True, slots=True)
class Answer:
    """What a request is answered. `effect` is the receipt of the effect this very request committed."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    sent: Sent = Sent.WHOLE
    replayed: bool = False
    effect: str | None = None

    @property
    def visible_status(self) -> int | None:
        """The status the caller gets to see, if any."""
        return None if self.sent in (Sent.NOTHING, Sent.RESET) else self.status


def success(status: int, value: Any, headers: Mapping[str, str] | None = None) -> Answer:
    """An answer with a JSON body."""
    body = json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
    return Answer(status, body, {"Content-Type": "application/json", **(headers or {})})


def problem(status: int, code: str, detail: str, headers: Mapping[str, str] | None = None) -> Answer:
    """An answer that says no: `code` for programs, `detail` for people."""
    value = {"status": status, "code": code, "detail": detail}
    return success(status, value, {"Content-Type": "application/problem+json", **(headers or {})})


def in_progress() -> Answer:
    """What an equal request meets while the first one executes."""
    return problem(409, "in_progress", "an equal request is in progress", {"Retry-After": "1"})


def conflict() -> Answer:
    """What a remembered key answers to another request."""
    return problem(422, "idempotency_conflict", "this key was used with another request")


def replay(memory: Memory) -> Answer:
    """The remembered answer of a key, marked as such."""
    status, value = memory.status or 200, json.loads(memory.answer or "{}")
    marker = {"Idempotent-Replayed": "true"}
    if status < 300:
        return replace(success(status, value | {"replayed": True}, marker), replayed=True)
    return replace(problem(status, value["code"], value["detail"], marker), replayed=True)


def at_the_gate(fault: Rule | None) -> Answer | None:
    """What is answered before anything is looked at, if the fault is of that sort."""
    match fault and fault.kind:
        case Kind.DROP_BEFORE:
            return _unsent(Answer(0, b""), fault)
        case Kind.ERROR_503:
            return problem(503, "unavailable", _ASKED_FOR)
        case Kind.THROTTLE_429 if fault is not None:
            return problem(429, "throttled", _ASKED_FOR, {"Retry-After": str(fault.retry_after_s)})
        case Kind.IN_PROGRESS_409:
            return in_progress()
    return None


def instead_of_executing(fault: Rule | None, service: str) -> Answer | None:
    """What is answered without doing anything, if the fault is of that sort."""
    if fault is not None and fault.kind is Kind.ERROR_500_BEFORE:
        return problem(500, "failed", _ASKED_FOR)
    if fault is not None and fault.kind is Kind.REFUSE:
        return problem(fault.status or (402 if service == "wallet" else 412), fault.code, _ASKED_FOR)
    return None


def spoiled(answer: Answer, fault: Rule | None) -> Answer:
    """What leaves instead of a true answer. One that is no success is dropped or halved, never replaced."""
    match fault and fault.kind:
        case Kind.DROP_AFTER_COMMIT:
            return _unsent(answer, fault)
        case Kind.HALF_RESPONSE:
            return replace(answer, sent=Sent.HALF)
        case Kind.ERROR_500_AFTER_COMMIT if answer.status < 300:
            return problem(500, "failed", _ASKED_FOR)
        case Kind.GARBAGE_200 if answer.status < 300:
            return Answer(200, b"<html>It works!</html>", {"Content-Type": "application/json"})
        case Kind.OVERSIZE_200 if answer.status < 300 and fault is not None:
            return success(200, json.loads(answer.body) | {"padding": "x" * fault.bytes})
    return answer


def _unsent(answer: Answer, fault: Rule | None) -> Answer:
    return replace(answer, sent=Sent.RESET if fault is not None and fault.reset else Sent.NOTHING)
