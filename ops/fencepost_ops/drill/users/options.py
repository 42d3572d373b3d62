"""What else a test may say of a drill of its own tool or planner."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict

from pydantic import BaseModel

from fencepost_ops.drill.protocol import Protocol
from fencepost_ops.drill.users.downstream import Service
from fencepost_ops.drill.users.entries import Book


class Options(TypedDict, total=False):
    """What else a drill may be told; each has a default."""

    version: int | None
    """Of the tool; by default the newest."""

    planner: str | None
    """A planner of the app instead of a tool."""

    run: Mapping[str, Any] | None
    """The run that is asked for: fields of a protocol's run (`input`, `deadline_s`, `on_stop`, ...)."""

    principal: str
    """Whose run it is; by default `svc:drill`."""

    book: Book | None
    """Who says what really happened: it only grows, and two effects are two entries, however alike."""

    key: Callable[[Any], str | None] | None
    """Finds the operation key in an entry of the book."""

    service: Service | Mapping[str, Service] | object
    """Who answers, in this process: a callable for the tool's dependency, or one for each dependency by name.
    Without one requests really go out, to loopback only. For a Python tool the fake itself.
    """

    through: Sequence[str | tuple[object, str]]
    """The functions by which a Python tool reaches its service: names of methods of `service`, or (object,
    name); they are wires then, as by `UserDrill.line`, and raise `lost`.
    """

    lost: Callable[[str], BaseException]
    """Makes of a reason what a client raises that waits in vain; by default a TimeoutError."""

    fresh: Callable[[], object] | None
    """Makes the fake new before each history, or gives a new one, which is then the service, and whose `book`
    is the book. Without it `reset` or `clear` of the fake is called, if it has one.
    """

    env: Mapping[str, str] | None
    """What the app's `env:NAME` read in the test."""

    other: BaseModel | Mapping[str, Any] | None
    """Arguments of another intent, which must have an effect of its own."""

    again: bool
    """Whether two runs that ask for the same call must share one effect, as they must by default (not where
    each proposal is an intent).
    """

    pairs: bool
    """Also pairs of faults around the request and its reconciliation, a minute's work; not by default."""

    only: str | Sequence[str]
    """Patterns of fault points to sweep, by default all; () for none but what the contract and the network
    invite.
    """

    most: int
    """Stop after so many histories that fail; by default 3."""

    protocol: str | Protocol | None
    """One history only, as a failure tells it, or with the faults alone."""


def check_names(options: Options) -> None:
    """TypeError for an option there is not, as for any keyword that a function does not take."""
    for name in options:
        if name not in (known := Options.__annotations__):
            raise TypeError(f"fencepost_drill has no option {name!r}; it has {', '.join(known)}")
