"""Every error Fencepost raises on purpose.

One root, few leaves. The first line of a leaf's docstring is its message unless the raiser has a better one,
and `exit_code` is what the command line ends with.
"""

from datetime import timedelta
from typing import ClassVar
from uuid import UUID


class FencepostError(Exception):
    """Fencepost could not do what was asked."""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or first_line(type(self)))


class UsageError(FencepostError):
    """The request, the configuration or the application is not valid."""

    exit_code: ClassVar[int] = 2


class Mistyped(UsageError, ValueError):
    """A declaration holds a value of another type than it takes."""


class NotFound(UsageError):
    """There is no such run, call, tool or planner."""


class ScriptError(UsageError):
    """A planner's script cannot be read or refers to something that is not there."""


class Conflict(FencepostError):
    """The run key was already used for another request: that of the run `held_by`."""

    def __init__(self, message: str | None = None, held_by: UUID | None = None) -> None:
        super().__init__(message)
        self.held_by = held_by


class Unreachable(FencepostError):
    """Postgres, Redis or a downstream could not be reached."""

    exit_code: ClassVar[int] = 3


class FaultInjected(FencepostError):
    """A fault point was armed with `error`."""


class NotApplied(Exception):
    """Proof that THIS attempt had no effect; it says nothing about any other attempt of the same intent.

    A Python tool raises it; the `parse` of an HTTP tool returns or raises it. `retryable` allows another
    attempt within the call's limits, not before `retry_after` from now. Every other exception leaves the
    outcome unknown.
    """

    def __init__(
        self,
        code: str = "not_applied",
        message: str = "",
        *,
        retryable: bool = False,
        retry_after: timedelta | None = None,
    ) -> None:
        super().__init__(f"{code}: {message}" if message else code)
        self.code = code
        self.message = message
        self.retryable = retryable
        self.retry_after = retry_after

    def __reduce__(self) -> tuple[object, ...]:
        return _not_applied, (self.code, self.message, self.retryable, self.retry_after)


def _not_applied(code: str, message: str, retryable: bool, retry_after: timedelta | None) -> NotApplied:
    return NotApplied(code, message, retryable=retryable, retry_after=retry_after)


def first_line(kind: type) -> str:
    """The first line of a class's own docstring, or its name where it has none (as under `python -OO`)."""
    return (kind.__doc__ or kind.__name__).strip().splitlines()[0]
