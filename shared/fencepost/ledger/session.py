"""A Postgres session that never waits for ever, is as we set it, reads instants in UTC, and takes no commit
for confirmed that may vanish.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from types import MappingProxyType
from typing import Any, Final, Self

import psycopg
from psycopg.abc import AdaptContext, Buffer
from psycopg.adapt import Loader
from psycopg.pq import Format

# Set after connecting, by SQL: poolers drop what a session asks for when it begins, and libpq's environment,
# a role or a database may say otherwise. `options` of a DSN stay, but for these.
PLAIN: Final[Mapping[str, str]] = MappingProxyType(
    {"TimeZone": "UTC", "DateStyle": "ISO, MDY", "IntervalStyle": "postgres", "client_encoding": "UTF8"}
)
_INSTANT: Final = psycopg.adapters.types["timestamptz"].oid
_WEAK: Final = ("off", "local")  # of synchronous_commit: such a commit may vanish
_SET: Final = """
SELECT name, set_config(name, value, false) FROM unnest(%s::text[], %s::text[]) AS s (name, value)
"""
_STRENGTHEN: Final = """
SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = ANY(%s)
"""
_READ: Final = "SELECT name, current_setting(name) FROM unnest(%s::text[]) AS s (name)"
# Of an unconfirmed commit. Postgres names its function whatever language it speaks; a fork may not.
_CANCELLED: Final = "SyncRepWaitForLSN"
_CANCELLED_WORDS: Final = "synchronous replication"


class UnconfirmedError(psycopg.OperationalError):
    """A commit is visible here, and may vanish in a switch-over: no standby has confirmed it."""


class SettingsLostError(psycopg.OperationalError):
    """Something between us and Postgres does not keep what this session has set."""


class Session(psycopg.Connection[Any]):
    """A session whose every wait for an answer ends after `answer_s` seconds, with OperationalError; then it
    is closed, and what it asked may have happened.

    A server whose host is gone, or a connection that something in between has forgotten, sends neither an
    answer nor an end. The server's own timeouts do not reach so far, and the kernel waits a quarter of an
    hour. `answer_s` must exceed the server's timeouts: a server that lives answers within those.

    A commit that Postgres did not let wait for its standbys raises UnconfirmedError: it may have happened.
    """

    answer_s = 12.0
    looks = False
    """Whether its user only looks, and decides nothing by what it finds."""
    _unconfirmed = False
    _expected: Mapping[str, str] = MappingProxyType({})

    @classmethod
    def connect(  # type: ignore[override]
        cls,
        conninfo: str = "",
        *,
        settings: Mapping[str, str] = MappingProxyType({}),
        autocommit: bool = False,
        **how: Any,
    ) -> Self:
        """A session with these settings, which are verified. Without `synchronous_commit` among them a server
        whose default is weaker than "on" is asked for that.
        """
        session = super().connect(conninfo, autocommit=True, client_encoding="UTF8", **how)
        session.add_notice_handler(session._heard)  # noqa: SLF001 - our own
        for code in (Format.TEXT, Format.BINARY):
            theirs = session.adapters.get_loader(_INSTANT, code)
            assert theirs is not None
            session.adapters.register_loader(_INSTANT, _utc(theirs, code))
        try:
            session._settle({**PLAIN, **settings})  # noqa: SLF001
            session.autocommit = autocommit
        except BaseException:
            session.close()
            raise
        return session

    def _settle(self, settings: Mapping[str, str]) -> None:
        set_to = self.execute(_SET, [list(settings), list(settings.values())]).fetchall()
        if "synchronous_commit" not in settings:
            self.execute(_STRENGTHEN, [list(_WEAK)])
        self._expected = dict(set_to)
        self.verify()

    def verify(self) -> None:
        """Raises SettingsLostError unless this session is as it was set; in a transaction of its own."""
        names = [*self._expected, "synchronous_commit"]
        was, self.autocommit = self.autocommit, True
        try:
            found = dict(self.execute(_READ, [names]).fetchall())
        finally:
            if not self.closed:
                self.autocommit = was
        durable = found["synchronous_commit"]
        wrong = [(name, found[name], value) for name, value in self._expected.items() if found[name] != value]
        if durable in _WEAK and "synchronous_commit" not in self._expected:
            wrong.append(("synchronous_commit", durable, "on"))
        if wrong:
            name, value, wanted = wrong[0]
            self.close()
            raise SettingsLostError(
                f"{name} is {value!r} again after this session has set it to {wanted!r}: a pooler stands "
                "between that does not keep a session's settings; use its session mode, or connect past it"
            )

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        """As psycopg's, but for the bound, and for what is not confirmed."""
        limit = self.answer_s if timeout is None else timeout
        began = time.monotonic()
        try:
            answer = super().wait(gen, interval, limit)
        except psycopg.OperationalError as error:
            if error.sqlstate is None and time.monotonic() - began >= limit:
                self.pgconn.finish()
                raise psycopg.OperationalError(f"no answer within {limit:g} s") from error
            raise
        if self._unconfirmed:
            self._unconfirmed = False
            raise UnconfirmedError(
                "a commit was not confirmed: its wait for synchronous replication was cancelled"
            )
        return answer

    def _heard(self, notice: psycopg.errors.Diagnostic) -> None:
        if notice.severity_nonlocalized == "WARNING" and (
            notice.source_function == _CANCELLED or _CANCELLED_WORDS in (notice.message_primary or "")
        ):
            self._unconfirmed = True


@cache
def _utc(theirs: type[Loader], code: Format) -> type[Loader]:
    """Reads instants as psycopg does, and makes them UTC: else sums of them would go by the wall clock."""

    class Instant(Loader):
        format = code

        def __init__(self, oid: int, context: AdaptContext | None = None) -> None:
            super().__init__(oid, context)
            self._load = theirs(oid, context).load

        def load(self, data: Buffer) -> datetime:
            found: datetime = self._load(data)
            return found.astimezone(UTC)

    return Instant
