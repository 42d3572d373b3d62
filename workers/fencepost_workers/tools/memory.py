"""Reads and writes of memory, as attempts make them; and the lookup that settles a write in doubt.

A read first asks the ledger which version its run has written, then the store, again and again with short
pauses while that lags. No connection is held in a pause (R8). Everything blocking runs in a thread.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import threading
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import replace
from typing import Any, Final, TypeVar

from fencepost import commands as c
from fencepost.errors import NotApplied, UsageError
from fencepost.ledger.connect import Pool
from fencepost.ledger.memories import PostgresMemory, written_by_run
from fencepost.memory import (
    List,
    MemorySpec,
    Read,
    Restore,
    Write,
    change_of,
    listing,
    reading,
    stale_reading,
    unclear,
    wrote,
)
from fencepost.memory import looked_up as found_by
from fencepost.memory_port import MemoryStore, Slot, Writer
from fencepost.outcomes import told
from fencepost.settings import variable
from fencepost.subjects import Call
from fencepost.tools import Attempt, LookupResult, Tool
from fencepost_workers.parts import Parts

T = TypeVar("T")

POOL_SIZE: Final = 4
PAUSE_S: Final = 0.02
PAUSE_CAP_S: Final = 0.25
SPARE_S: Final = 0.25  # left of an attempt, for the answer that a replica stayed stale

_pools: dict[tuple[int, str], Pool] = {}
_lock = threading.Lock()


def served(worker: Parts, tool: Tool, order: c.Send) -> Tool:
    """The tool with the function that works on its memory for this attempt; any other tool as it is."""
    if tool.memory is None:
        return tool
    call, spec = order.call, tool.memory

    def write(args: Write | Restore, attempt: Attempt) -> Any:
        writer = Writer(attempt.operation_key, attempt.run, attempt.call, order.tainted, attempt.deadline)
        slot = Slot(call.tenant, spec.space, args.key)
        try:
            store = _writable(worker, spec)
        except UsageError as error:  # nothing has been sent
            raise NotApplied("memory_unavailable", str(error)) from None
        return wrote(args, store.write(slot, change_of(args), writer))

    async def read(args: Read | List, attempt: Attempt) -> Any:
        if isinstance(args, List):
            asked = _writable(worker, spec).keys
            return await _within(
                worker.executor,
                lambda: listing(
                    asked(call.tenant, spec.space, args.prefix, args.after, args.limit + 1), args.limit
                ),
            )
        return await _read(worker, spec, call, args, attempt)

    writes = tool.name in spec.writing_tools
    return replace(tool, function=write if writes else read)


async def _read(worker: Parts, spec: MemorySpec, call: Call, args: Read, attempt: Attempt) -> Any:
    slot = Slot(call.tenant, spec.space, args.key)

    def needed() -> int:
        with worker.pool.reading() as connection:
            return written_by_run(connection, call.tenant, call.run, spec.writing_tools, args.key)

    need = await _within(worker.executor, needed)
    store, pause = _readable(worker, spec), PAUSE_S
    last = attempt.remaining() - spec.wait.total_seconds()
    while True:
        stored = await _within(worker.executor, lambda: store.read(slot))
        value = None if stored.value is None else json.loads(stored.value)
        if (answer := reading(args.key, stored, need, value)) is not None:
            return answer
        left = attempt.remaining()
        if left <= max(last, SPARE_S):
            return stale_reading(args.key, stored, need)
        await asyncio.sleep(min(pause, left - max(last, SPARE_S)))
        pause = min(2 * pause, PAUSE_CAP_S)


async def looked_up(worker: Parts, tool: Tool, call: Call, seconds: float) -> LookupResult:
    """Whether the write of a call happened, asked for so many seconds at most; raises nothing."""
    spec = tool.memory
    if spec is None or call.operation is None:
        return unclear("it is no write of a memory")
    operation = call.operation
    try:
        args = tool.read_arguments(call.arguments)
        slot = Slot(call.tenant, spec.space, str(getattr(args, "key", "")))
        asking = _within(worker.executor, lambda: _writable(worker, spec).written(slot, operation))
        async with asyncio.timeout(max(0.0, seconds)):
            return found_by(await asking)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is no answer
        return unclear(told(error))


def _within(executor: Executor, function: Callable[[], T]) -> asyncio.Future[T]:
    return asyncio.get_running_loop().run_in_executor(executor, function)


def _writable(worker: Parts, spec: MemorySpec) -> MemoryStore:
    """Where a space is written, and known without a lag."""
    if spec.store is not None:
        return spec.store
    return PostgresMemory(worker.pool if spec.dsn is None else _pool(spec.space, spec.dsn))


def _readable(worker: Parts, spec: MemorySpec) -> MemoryStore:
    """Where a space is read."""
    if spec.replica is None:
        return _writable(worker, spec)
    return PostgresMemory(_pool(spec.space, spec.replica))


def _pool(space: str, dsn: str) -> Pool:
    """This process's pool of a database; one for all spaces in it."""
    name = dsn.removeprefix("env:")
    known = variable(name) if name != dsn else dsn
    if not known:
        raise UsageError(f"memory {space}: set {name}")
    key = os.getpid(), known
    with _lock:
        if key not in _pools:
            _pools[key] = Pool(known, "fencepost-memory", POOL_SIZE)
        return _pools[key]


def close_pools() -> None:
    """Close this process's sessions with databases of memories other than the ledger's."""
    with _lock:
        mine = [key for key in _pools if key[0] == os.getpid()]
        for key in mine:
            _pools.pop(key).close()


atexit.register(close_pools)
