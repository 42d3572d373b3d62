"""Whether a store of memory keeps what the port promises: for the shipped one, and for yours.

    def test_my_store() -> None:
        assert broken_promises(MyStore(...), tenant="conformance") == []

It writes keys of its own in the tenants `tenant` and `tenant-other`, and leaves them there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from threading import Barrier
from typing import Final
from uuid import uuid4

from fencepost.memory_port import (
    Change,
    Conflicting,
    MemoryStore,
    OtherRequest,
    Slot,
    TooLate,
    WriteAnswer,
    Writer,
    Wrote,
)
from fencepost.outcomes import told

SPACE: Final = "conformance"
WRITERS: Final = 8
_LONG: Final = timedelta(days=400)  # the store's clock may be a moved one


@dataclass
class _Trial:
    store: MemoryStore
    tenant: str
    key: str = field(default_factory=lambda: uuid4().hex)

    @property
    def slot(self) -> Slot:
        return Slot(self.tenant, SPACE, self.key)

    def write(
        self,
        expected: int,
        value: str | None = '"v"',
        *,
        restores: int | None = None,
        operation: str = "",
        untrusted: bool = False,
        until: datetime | None = None,
    ) -> WriteAnswer:
        writer = Writer(
            operation or uuid4().hex,
            str(uuid4()),
            str(uuid4()),
            untrusted,
            until or datetime.now(UTC) + _LONG,
        )
        return self.store.write(self.slot, Change(expected, value, restores), writer)


def broken_promises(store: MemoryStore, tenant: str = "conformance") -> list[str]:
    """What the store does not do, one sentence each; empty for one that may be declared."""
    broken: list[str] = []
    for trial in _TRIALS:
        try:
            broken += trial(_Trial(store, tenant))
        except Exception as error:  # noqa: BLE001 - a store may break in any way
            broken.append(f"{trial.__name__.strip('_').replace('_', ' ')}: it raised {told(error)}")
    return broken


def _expect(what: str, found: object, wanted: object) -> Iterator[str]:
    if found != wanted:
        yield f"{what}: {found!r}, not {wanted!r}"


def _versions_follow_each_other(trial: _Trial) -> Iterator[str]:
    empty = trial.store.read(trial.slot)
    yield from _expect("a key that is not there has version 0", (empty.version, empty.exists), (0, False))
    yield from _expect("a first write", trial.write(0, '"a"'), Wrote(1))
    yield from _expect("a second write", trial.write(1, '"b"'), Wrote(2))
    read = trial.store.read(trial.slot)
    yield from _expect("what was written last", (read.version, read.value, read.exists), (2, '"b"', True))
    if read.as_of is None or read.as_of.tzinfo is None:
        yield f"a read says as of when it is, with a time zone: {read.as_of!r}"
    yield from _expect("a write of an older version", trial.write(1), Conflicting(2))
    yield from _expect("a write of a version to come", trial.write(7), Conflicting(2))
    yield from _expect("what was not written", trial.store.read(trial.slot).version, 2)


def _an_operation_writes_once(trial: _Trial) -> Iterator[str]:
    key = uuid4().hex
    yield from _expect("before it is written", trial.store.written(trial.slot, key), None)
    yield from _expect("a write", trial.write(0, '"a"', operation=key), Wrote(1))
    yield from _expect("its repeat", trial.write(0, '"a"', operation=key), Wrote(1))
    yield from _expect("the write after it", trial.write(1, '"b"'), Wrote(2))
    yield from _expect("a repeat after that", trial.write(0, '"a"', operation=key), Wrote(1))
    past = datetime.now(UTC) - _LONG
    repeat = trial.write(0, '"a"', operation=key, until=past)
    yield from _expect("a repeat after its time is known all the same", repeat, Wrote(1))
    yield from _expect("what it wrote", trial.store.written(trial.slot, key), 1)
    other = trial.write(0, '"other"', operation=key)
    yield from _expect("the same operation with another value", other, OtherRequest(1))
    yield from _expect("what is current", trial.store.read(trial.slot).version, 2)


def _what_comes_late_is_refused(trial: _Trial) -> Iterator[str]:
    key = uuid4().hex
    late = trial.write(0, operation=key, until=datetime.now(UTC) - _LONG)
    yield from _expect("a write after its time", late, TooLate())
    yield from _expect("what it wrote", trial.store.written(trial.slot, key), None)
    yield from _expect("what is there", trial.store.read(trial.slot).version, 0)


def _one_of_many_writers_wins(trial: _Trial) -> Iterator[str]:
    start = Barrier(WRITERS)

    def race(number: int) -> WriteAnswer:
        start.wait(10)
        return trial.write(0, f'"{number}"')

    with ThreadPoolExecutor(WRITERS) as threads:
        answers = list(threads.map(race, range(WRITERS)))
    yield from _expect("how many of concurrent writers won", answers.count(Wrote(1)), 1)
    yield from _expect("how many were told the version", answers.count(Conflicting(1)), WRITERS - 1)
    yield from _expect("what is there", trial.store.read(trial.slot).version, 1)


def _one_operation_at_once_writes_once(trial: _Trial) -> Iterator[str]:
    start, key = Barrier(WRITERS), uuid4().hex

    def race(_number: int) -> WriteAnswer:
        start.wait(10)
        return trial.write(0, '"same"', operation=key)

    with ThreadPoolExecutor(WRITERS) as threads:
        answers = list(threads.map(race, range(WRITERS)))
    yield from _expect("one operation sent many times at once", answers, [Wrote(1)] * WRITERS)
    yield from _expect("what is there", trial.store.read(trial.slot).version, 1)


def _tenants_are_apart(trial: _Trial) -> Iterator[str]:
    other = _Trial(trial.store, f"{trial.tenant}-other", trial.key)
    trial.write(0, '"mine"')
    yield from _expect("another tenant's key of the same name", other.store.read(other.slot).version, 0)
    yield from _expect("its first write", other.write(0, '"theirs"'), Wrote(1))
    yield from _expect("what is mine", trial.store.read(trial.slot).value, '"mine"')
    listed = other.store.keys(other.tenant, SPACE, trial.key, "", 10)
    yield from _expect("its keys", [(one.key, one.version) for one in listed], [(trial.key, 1)])


def _what_was_is_restored(trial: _Trial) -> Iterator[str]:
    trial.write(0, '"a"')
    trial.write(1, '"b"')
    yield from _expect("to restore", trial.write(2, None, restores=1), Wrote(3))
    yield from _expect("what is restored", trial.store.read(trial.slot).value, '"a"')
    yield from _expect(
        "to restore when somebody has written", trial.write(2, None, restores=1), Conflicting(3)
    )
    yield from _expect("to restore nothing", trial.write(3, None, restores=0), Wrote(4))
    read = trial.store.read(trial.slot)
    yield from _expect("what is there then", (read.version, read.exists, read.value), (4, False, None))
    listed = trial.store.keys(trial.tenant, SPACE, trial.key, "", 10)
    yield from _expect("the keys there are then", list(listed), [])
    yield from _expect("to write again", trial.write(4, '"c"'), Wrote(5))


def _writes_are_offset_one_after_the_other(trial: _Trial) -> Iterator[str]:
    for expected, value in enumerate(('"a"', '"b"', '"c"')):
        trial.write(expected, value)
    yield from _expect("to restore what the last write replaced", trial.write(3, restores=2), Wrote(4))
    yield from _expect("what the write before it replaced", trial.write(2, restores=1), Wrote(5))
    key = uuid4().hex
    last = trial.write(1, restores=0, operation=key)
    yield from _expect("what the first write replaced", last, Wrote(6))
    yield from _expect("its repeat", trial.write(1, restores=0, operation=key), Wrote(6))
    yield from _expect("what is there then", trial.store.read(trial.slot).exists, False)
    yield from _expect("a write is no restoring", trial.write(1, '"d"'), Conflicting(6))
    trial.write(6, '"another"')
    yield from _expect("to restore when another has written", trial.write(1, restores=0), Conflicting(7))


def _taint_stays(trial: _Trial) -> Iterator[str]:
    trial.write(0, '"said by a page"', untrusted=True)
    yield from _expect("what an untrusted run wrote", trial.store.read(trial.slot).untrusted, True)
    listed = trial.store.keys(trial.tenant, SPACE, trial.key, "", 10)
    yield from _expect("its key in a list", [one.untrusted for one in listed], [True])
    trial.write(1, '"ours"')
    yield from _expect("what is ours", trial.store.read(trial.slot).untrusted, False)
    trial.write(2, None, restores=1)
    yield from _expect("what is restored of it", trial.store.read(trial.slot).untrusted, True)


def _keys_are_listed_in_order(trial: _Trial) -> Iterator[str]:
    names = [f"{trial.key}-{n}" for n in range(3)]
    for name in names:
        _Trial(trial.store, trial.tenant, name).write(0)
    found = trial.store.keys(trial.tenant, SPACE, f"{trial.key}-", "", 2)
    yield from _expect("the first two", [one.key for one in found], names[:2])
    found = trial.store.keys(trial.tenant, SPACE, f"{trial.key}-", names[1], 2)
    yield from _expect("what comes after them", [one.key for one in found], names[2:])


_TRIALS: Final[tuple[Callable[[_Trial], Iterator[str]], ...]] = (
    _versions_follow_each_other,
    _an_operation_writes_once,
    _what_comes_late_is_refused,
    _one_of_many_writers_wins,
    _one_operation_at_once_writes_once,
    _tenants_are_apart,
    _what_was_is_restored,
    _writes_are_offset_one_after_the_other,
    _taint_stays,
    _keys_are_listed_in_order,
)
