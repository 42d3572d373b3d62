"""Group commit: whoever writes in the same turn of the event loop shares one commit."""

from __future__ import annotations

import asyncio
import sqlite3

from fencepost_ops.sandbox.store import Store


class Commits:
    """Commits what was written to a store in the turn after it was written. Used on one event loop."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._batch: asyncio.Future[None] | None = None

    def due(self) -> asyncio.Future[None] | None:
        """See to it that what was written is committed; None if nothing is uncommitted."""
        if self._store.dirty and self._batch is None:
            loop = asyncio.get_running_loop()
            self._batch = loop.create_future()
            loop.call_soon(self._commit, self._batch)
        return self._batch

    async def settled(self) -> None:
        """Wait until everything written so far is committed. Raises sqlite3.Error if it is lost instead."""
        batch = self.due()
        if batch is not None:
            await asyncio.shield(batch)  # others wait for the same future

    def _commit(self, batch: asyncio.Future[None]) -> None:
        self._batch = None
        try:
            self._store.commit()
        except sqlite3.Error as error:
            batch.set_exception(error)
            batch.exception()  # looked at here, since nobody may be waiting
        else:
            batch.set_result(None)
