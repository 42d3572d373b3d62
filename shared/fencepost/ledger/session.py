"""A Postgres session that never waits for ever: a server that fell silent is given up."""

from __future__ import annotations

import time
from typing import Any

import psycopg


class Session(psycopg.Connection[Any]):
    """A session whose every wait for an answer ends after `answer_s` seconds, with OperationalError; then it
    is closed, and what it asked may have happened.

    A server whose host is gone, or a connection that something in between has forgotten, sends neither an
    answer nor an end. The server's own timeouts do not reach so far, and the kernel waits a quarter of an
    hour. `answer_s` must exceed the server's timeouts: a server that lives answers within those.
    """

    answer_s = 12.0

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        """As psycopg's, but for the bound."""
        limit = self.answer_s if timeout is None else timeout
        began = time.monotonic()
        try:
            return super().wait(gen, interval, limit)
        except psycopg.OperationalError as error:
            if error.sqlstate is None and time.monotonic() - began >= limit:
                self.pgconn.finish()
                raise psycopg.OperationalError(f"no answer within {limit:g} s") from error
            raise
