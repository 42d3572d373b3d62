"""Memory: versioned values that runs write by compare-and-set and read no older than they wrote them. PURE.

    notes = app.memory("notes")

registers four tools on the space `notes`, each tenant's own: `notes.write` and `notes.restore` (a call with
the version it expects, 0: there is none yet), `notes.read` and `notes.list`. Of concurrent writers that
expect the same version exactly one wins; the others' calls FAIL with the code `version_conflict` and the
version that is current, and their runs go on unless the memory is declared `required`.

A write has one effect per operation key, for ever: the key is kept with the version it wrote, so a repeat is
answered what the first was, and a lookup by key sees every write that has begun. A stopped run's writes are
offset by restoring what was before, unless somebody has written since.

A read honours read-your-writes: it gives no version below the newest this run, or one it descends from, has
written. A replica that lags is waited for, up to `wait` and the attempt's time; then the answer is a typed
one, `{"stale": true, "have": 3, "need": 5}`, and no value. What others wrote may be missing from a replica.

Who wrote a value in a run that had learnt what nobody vouches for taints whoever reads it: memory launders
nothing. Values are JSON in canonical form, without floats.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final, TypedDict

from pydantic import AfterValidator, BaseModel, Field, JsonValue

from fencepost.canonical import encode
from fencepost.clock import rfc3339
from fencepost.contracts import Contract, Dedupes, Effect, FirstFailure, Lookup, Mismatch
from fencepost.declarations import PythonTool, ToolOptions
from fencepost.errors import NotApplied, UsageError
from fencepost.memory_port import (
    MAX_VALUE_BYTES,
    SETTLE,
    Change,
    Conflicting,
    Erased,
    Listed,
    MemoryStore,
    OtherRequest,
    Stored,
    TooLate,
    WriteAnswer,
    Wrote,
)
from fencepost.misspelt import check_fields
from fencepost.tools import PER_PROPOSAL, Absent, Attempt, Found, LookupResult, Proposal, Unclear

if TYPE_CHECKING:
    from fencepost.services import Dependency, DependencyOptions

MOST_KEYS: Final = 100
"""Of one list."""

_WRITE: Final = (
    "Remember a JSON value (without floats) under a key. `expected` is the version you have read, 0 if there "
    "is none yet; if another version is current nothing is written, and the error says which one is."
)
_RESTORE: Final = "Write again what version `to` of a key was (0: nothing). `expected` as for a write."
_READ: Final = (
    "Read what is remembered under a key, and its version. `stale` says that what you wrote is not known "
    "there yet: read again."
)
_LIST: Final = (
    "List the keys that are remembered and begin with `prefix`, in order; `after` goes on from one."
)
_FOR_EVER: Final = timedelta(days=36_000)
PROMISED: Final = Contract(
    repeat=Dedupes(window=_FOR_EVER, mismatch=Mismatch.REJECTED, first_failure=FirstFailure.RELEASED),
    lookup=Lookup(by="key", strong=True),
    settle=SETTLE,
)
"""What every store of memory promises of its writes; `memory_conformance` tries it."""


# -- what is declared --


@dataclass(frozen=True)
class MemorySpec:
    """One space of memory as declared. Without a `store` it is in Postgres: at `dsn`, or in the ledger's.

    `replica` is where reads go; both may be `env:NAME`. Another database is prepared by `fencepost migrate`.

    `settle`: from a write's deadline, by the ledger's clock, until a lookup that finds nothing is believed.
    The store refuses what comes later by its own clock; so that clock must not be behind the ledger's by as
    much as `settle`, or a write may come after its absence was proved. In the ledger's own database the two
    are one clock; for a `dsn` or a `store` elsewhere give more than their clocks may differ.
    """

    space: str
    dsn: str | None = None
    replica: str | None = None
    store: MemoryStore | None = None
    wait: timedelta = timedelta(seconds=2)
    max_bytes: int = 32 * 1024
    settle: timedelta = SETTLE

    def __post_init__(self) -> None:
        check_fields(self, f"memory {self.space}")
        if not 1 <= self.max_bytes <= MAX_VALUE_BYTES:
            raise UsageError(
                f"memory {self.space}: max_bytes is 1 to {MAX_VALUE_BYTES}, not {self.max_bytes}"
            )
        if self.wait < timedelta(0):
            raise UsageError(f"memory {self.space}: wait must not be negative, not {self.wait}")
        if self.settle <= timedelta(0):
            raise UsageError(f"memory {self.space}: settle must be positive, not {self.settle}")
        if self.store is not None and (self.dsn or self.replica):
            raise UsageError(f"memory {self.space} has a store of its own; dsn and replica are Postgres's")

    @property
    def writing_tools(self) -> tuple[str, str]:
        """The tools whose calls write it."""
        return f"{self.space}.write", f"{self.space}.restore"


class MemoryPart(TypedDict, total=False):
    """What a memory may say; meanings and defaults as in `MemorySpec`."""

    dsn: str | None
    replica: str | None
    store: MemoryStore | None
    wait: timedelta
    max_bytes: int
    settle: timedelta


class MemoryOptions(MemoryPart, total=False):
    """Also `required` (a write that fails, or a read, stops its run), and how long an attempt may take."""

    required: bool
    per_attempt: timedelta
    attempts: int


def _key(text: str) -> str:
    if not text.isprintable():
        raise ValueError("a key has no line breaks, controls or characters that nobody sees")
    return text


Key = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_key)]
_VERSION = Field(ge=0, le=2**53 - 1)


class Write(BaseModel):
    """Arguments of `SPACE.write`. `expected` is the version as read; 0: the key must not exist yet."""

    key: Key
    value: JsonValue
    expected: int = _VERSION


class Restore(BaseModel):
    """Arguments of `SPACE.restore`: write again what version `to` was (0: nothing)."""

    key: Key
    to: int = _VERSION
    expected: int = _VERSION


class Read(BaseModel):
    """Arguments of `SPACE.read`."""

    key: Key


class List(BaseModel):
    """Arguments of `SPACE.list`: keys that begin with `prefix`, after `after`."""

    prefix: str = Field("", max_length=200)
    after: str = Field("", max_length=200)
    limit: int = Field(MOST_KEYS, ge=1, le=MOST_KEYS)


class Written(BaseModel):
    """Result of a write: the version that holds it."""

    version: int


class Reading(BaseModel):
    """Result of a read. With `stale` no value: `have` is what is known there, `need` what was written."""

    key: str
    version: int | None = None
    exists: bool = False
    value: JsonValue = None
    erased: bool = False
    untrusted: bool = False
    as_of: str | None = None
    stale: bool = False
    have: int | None = None
    need: int | None = None


class Listing(BaseModel):
    """Result of a list; `more`: ask again with `after` the last key."""

    keys: list[dict[str, Any]]
    more: bool = False
    untrusted: bool = False


@dataclass(frozen=True)
class Memory:
    """A declared space; its tools, for planners written in Python: `notes.write.propose(Write(...))`."""

    spec: MemorySpec
    read: PythonTool[Read, Reading]
    write: PythonTool[Write, Written]
    restore: PythonTool[Restore, Written]
    list: PythonTool[List, Listing]


def dependency_of(space: str, said: MemoryOptions) -> tuple[str, DependencyOptions]:
    """The name and the options of the dependency a space is kept at."""
    options: DependencyOptions = {"account": space}
    if "per_attempt" in said:
        options["per_attempt"] = said["per_attempt"]
    if "attempts" in said:
        options["attempts"] = said["attempts"]
    return "memory", options


def declare_memory(space: str, home: Dependency, said: MemoryOptions) -> Memory:
    """Register the tools of a space at its dependency. UsageError for what cannot be."""
    part: MemoryPart = {}
    for name in MemoryPart.__annotations__:
        if name in said:
            part[name] = said[name]  # type: ignore[literal-required]
    spec = MemorySpec(space, **part)
    usual: ToolOptions = {
        "memory": spec,
        "required": said.get("required", False),
        "acts_on": lambda args: ("memory", f"{space}/{getattr(args, 'key', '')}"),
    }
    writes: ToolOptions = {
        **usual,
        "intent": PER_PROPOSAL,
        "contract": replace(PROMISED, settle=spec.settle),
        "receipt": "version",
    }
    reads: ToolOptions = {**usual, "doubtful": lambda result: result["untrusted"] is True}

    def check(args: Write) -> None:
        size = len(encode(args.value))
        if size > spec.max_bytes:
            raise ValueError(f"a value of {space} has at most {spec.max_bytes} bytes as JSON, not {size}")

    restored: ToolOptions = {**writes, "describe": _RESTORE}
    checked: ToolOptions = {**writes, "check": check, "describe": _WRITE}
    named: ToolOptions = {**reads, "inline_bytes": 64 * 1024, "describe": _LIST}
    shown: ToolOptions = {
        **reads,
        "describe": _READ,
        "inline_bytes": 2 * MAX_VALUE_BYTES,
        "grounds": lambda result: memory_grounds(space, result),
    }
    return _registered(spec, home, restored, checked, shown, named)


def _registered(
    spec: MemorySpec,
    home: Dependency,
    restored: ToolOptions,
    checked: ToolOptions,
    shown: ToolOptions,
    named: ToolOptions,
) -> Memory:
    """The tools themselves; workers serve them."""
    space = spec.space

    @home.python(f"{space}.restore", effect=Effect.REVERSIBLE, returns=Written, **restored)
    def restore(args: Restore, attempt: Attempt) -> Any:  # noqa: ARG001
        raise _served(space)

    @home.python(f"{space}.write", effect=Effect.REVERSIBLE, returns=Written, **checked)
    def write(args: Write, attempt: Attempt) -> Any:  # noqa: ARG001
        raise _served(space)

    @home.python(f"{space}.read", effect=Effect.READ, returns=Reading, **shown)
    def read(args: Read, attempt: Attempt) -> Any:  # noqa: ARG001
        raise _served(space)

    @home.python(f"{space}.list", effect=Effect.READ, returns=Listing, **named)
    def keys(args: List, attempt: Attempt) -> Any:  # noqa: ARG001
        raise _served(space)

    offset = _offset(f"{space}.restore")
    write.compensate(offset)
    restore.compensate(offset)
    return Memory(spec, read, write, restore, keys)


def _served(space: str) -> UsageError:
    return UsageError(f"memory {space} is read and written by a fleet's workers; have a run propose it")


def _offset(tool: str) -> Callable[[Any, Written], Proposal]:
    """What offsets a write: the version before it is written again, if nobody has written since."""

    def back(args: Write | Restore, wrote: Written) -> Proposal:
        return Proposal(tool, Restore(key=args.key, to=args.expected, expected=wrote.version))

    return back


# -- what is said of answers --


def change_of(args: Write | Restore) -> Change:
    """What a call's arguments ask for."""
    if isinstance(args, Restore):
        return Change(args.expected, restores=args.to)
    return Change(args.expected, value=encode(args.value).decode())


def wrote(args: Write | Restore, answer: WriteAnswer) -> Written:
    """The result of a write. NotApplied where nothing was written, saying why and what to do."""
    match answer:
        case Wrote(version):
            return Written(version=version)
        case Conflicting(current):
            named = f"version {current} is current" if current else "there is none yet (version 0)"
            raise NotApplied(
                "version_conflict",
                f"version_conflict: {args.key!r} was expected at version {args.expected}, but {named}; "
                "read it and decide anew",
            )
        case TooLate():
            raise NotApplied("late", "the store was asked after the attempt's time", retryable=True)
        case Erased():
            raise NotApplied("erased", f"the version of {args.key!r} to restore was erased")
        case OtherRequest(version):
            raise UsageError(f"the operation has written something else before: version {version}")


def looked_up(version: int | None) -> LookupResult:
    """What a store's word about an operation proves."""
    if version is None:
        return Absent()
    return Found(str(version), Written(version=version).model_dump())


def unclear(error: object) -> LookupResult:
    """A store that gave no certain answer is asked again."""
    return Unclear(str(error))


def reading(key: str, stored: Stored, need: int, value: JsonValue) -> dict[str, Any] | None:
    """The result of a read of a slot of which the run has written version `need`; None while it lags."""
    if stored.version < need:
        return None
    said = Reading(
        key=key,
        version=stored.version,
        exists=stored.exists,
        value=value,
        erased=stored.erased,
        untrusted=stored.untrusted,
        as_of=_told(stored.as_of),
    )
    return said.model_dump(mode="json", exclude_defaults=True) | {
        "exists": stored.exists,
        "value": value,
        "untrusted": stored.untrusted,
    }


def stale_reading(key: str, stored: Stored, need: int) -> dict[str, Any]:
    """The result of a read that waited in vain: what is known there, and what the run has written."""
    told = {"key": key, "stale": True, "have": stored.version, "need": need, "untrusted": False}
    return told | {"as_of": _told(stored.as_of)}


def listing(found: Sequence[Listed], limit: int) -> dict[str, Any]:
    """The result of a list, for which one key more than the limit was asked.

    Keys are words of whoever wrote them.
    """
    kept = [{"key": one.key, "version": one.version, "untrusted": one.untrusted} for one in found[:limit]]
    tainted = any(one.untrusted for one in found[:limit])
    return {"keys": kept, "more": len(found) > limit, "untrusted": tainted}


def memory_grounds(space: str, result: Any) -> list[Mapping[str, Any]]:
    """The grounds of a read: the version it gave, if it gave a value."""
    if result.get("stale") or not result.get("exists"):
        return []
    named = {"source": space, "id": result["key"], "version": str(result["version"])}
    return [named | {"as_of": result.get("as_of") or ""}]


def _told(moment: datetime | None) -> str | None:
    return None if moment is None else rfc3339(moment)
