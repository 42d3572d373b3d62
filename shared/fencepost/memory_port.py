"""The port behind which memory is kept: what a store is asked, and what it may answer. PURE."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Protocol

MAX_VALUE_BYTES: Final = 60 * 1024
"""Of one value's canonical text: a call's arguments hold no more."""
SETTLE: Final = timedelta(seconds=1)
"""After its attempt's deadline a store refuses a write; what it took before that is seen by every lookup.

Both by the store's clock: it must not be behind the ledger's by as much (`MemorySpec.settle`).
"""


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a value is kept: a key of one tenant's space."""

    tenant: str
    space: str
    key: str


@dataclass(frozen=True, slots=True)
class Change:
    """What is written: canonical JSON text, or with `restores` what an earlier version was (0: nothing).

    `expected` is the version it takes the place of; 0: there is none yet. What restored the expected version
    counts as that version for whoever restores, so that a run's writes of one key are offset one after the
    other, the last one first.
    """

    expected: int
    value: str | None = None
    restores: int | None = None


@dataclass(frozen=True, slots=True)
class Writer:
    """Who writes: the operation key, and the call it is of; `until`: no later, by the store's clock.

    `untrusted`: its run had learnt what nobody vouches for.
    """

    operation: str
    run: str
    call: str
    untrusted: bool
    until: datetime


@dataclass(frozen=True, slots=True)
class Wrote:
    """The operation wrote this version: now, or when it was first asked to."""

    version: int


@dataclass(frozen=True, slots=True)
class Conflicting:
    """Nothing was written: another version than the expected one is current."""

    current: int


@dataclass(frozen=True, slots=True)
class TooLate:
    """Nothing was written: the store was asked after `Writer.until`."""


@dataclass(frozen=True, slots=True)
class Erased:
    """Nothing was written: the version to restore was erased."""


@dataclass(frozen=True, slots=True)
class OtherRequest:
    """The operation has written something else before: this version."""

    version: int


@dataclass(frozen=True, slots=True)
class Stored:
    """The newest version of a slot as a store knows it at `as_of`; version 0: there is none.

    `exists` False: there is no value, never was or it was restored to none. `erased`: there was one, and
    persons have erased it. `value` is canonical JSON text.
    """

    version: int
    value: str | None = None
    exists: bool = False
    erased: bool = False
    untrusted: bool = False
    as_of: datetime | None = None


@dataclass(frozen=True, slots=True)
class Listed:
    """One key of a space, and its newest version."""

    key: str
    version: int
    untrusted: bool


WriteAnswer = Wrote | Conflicting | TooLate | Erased | OtherRequest


class MemoryStore(Protocol):
    """Where memory is kept. Called from threads, several at a time; what it raises makes an outcome unknown,
    but for NotApplied. `fencepost.memory_conformance.broken_promises` tries whether a store does.
    """

    def write(self, slot: Slot, change: Change, writer: Writer) -> WriteAnswer:
        """Write the next version, if the expected one is current: once per operation, whatever is repeated.

        Of concurrent writers of one version one is answered `Wrote`, as is every repeat of its operation. To
        restore a version, or to write in a run that is untrusted, keeps `untrusted`.
        """
        ...

    def written(self, slot: Slot, operation: str) -> int | None:
        """The version this operation wrote, None if it never did and nothing it has begun can still do so.

        Strong: not to be answered by a replica. Raises what it likes while that is not certain.
        """
        ...

    def read(self, slot: Slot) -> Stored:
        """The newest version that is known here; may lag behind."""
        ...

    def keys(self, tenant: str, space: str, prefix: str, after: str, limit: int) -> Sequence[Listed]:
        """Keys that exist, begin with `prefix` and come after `after`, in order. Not to lag behind."""
        ...
