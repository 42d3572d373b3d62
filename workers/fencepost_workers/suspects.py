"""Suspects: which item's code is being run before any claim counts it, in memory that outlives this process.

A call's request function runs before its claim, so that the request is in the claim (R2). If it kills its
process, no attempt has been counted, nobody has written anything, and the item would go from worker to worker
for ever. So it is named here first, in a page shared with the pulse; the pulse, which sees the worker die,
counts a failure against the rows that were named, and after some of those they are set aside.
"""

from __future__ import annotations

import json
import mmap
import os
import tempfile
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

from fencepost_workers.pulse_program import PLACE_BYTES, PLACES


class Suspects:
    """A page with a few places, one for each thread that names an item. Costs microseconds; never raises."""

    def __init__(self) -> None:
        self.descriptor, name = tempfile.mkstemp(prefix="fencepost-")
        """The page's, for the process that reads it."""
        Path(name).unlink()
        weakref.finalize(self, os.close, self.descriptor)
        os.truncate(self.descriptor, PLACES * PLACE_BYTES)
        self._page = mmap.mmap(self.descriptor, PLACES * PLACE_BYTES)
        self._free = list(range(PLACES))
        self._lock = threading.Lock()

    @contextmanager
    def named(self, tenant: str, subject: UUID, generation: int) -> Iterator[None]:
        """Within it, whatever ends this process is held against this item."""
        entry = json.dumps([tenant, str(subject), generation]).encode()
        with self._lock:
            place = self._free.pop() if self._free and len(entry) < PLACE_BYTES else None
        if place is None:
            yield
            return
        pid = os.getpid()
        at = place * PLACE_BYTES
        self._page[at : at + len(entry) + 1] = entry + b"\0"
        try:
            yield
        finally:
            if os.getpid() == pid:  # a forked child shares the page
                self._page[at] = 0
            with self._lock:
                self._free.append(place)
