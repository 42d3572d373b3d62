"""Instants, identifiers and the worker's own clock.

Instants are aware UTC datetimes with microseconds. What time it *is* only Postgres says; a worker's clock
measures how much of an interval is left, and nothing else.
"""

import os
import random
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta, timezone
from functools import lru_cache
from typing import Protocol
from uuid import UUID

NEVER = datetime(9999, 1, 1, tzinfo=UTC)
"""Stands for "not before a person acts"; the driver cannot load Postgres's own infinity."""

_RFC3339 = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt](\d\d):(\d\d):(\d\d)(?:\.(\d+))?(?:[Zz]|([+-])(\d\d):(\d\d))", re.ASCII
)
# Ids must differ, not be secret. A generator of our own, which no application can seed, asks the system once
# and not for each of thousands, giving up the interpreter every time. A fork begins one of its own.
_random = random.Random()
os.register_at_fork(after_in_child=_random.seed)
ID_BITS = 74
"""Random bits of a version 7 UUID."""
_CLOCK = getattr(time, "CLOCK_BOOTTIME", None) or time.CLOCK_MONOTONIC


@lru_cache(maxsize=1024)  # a batch says the same few instants over and over
def rfc3339(instant: datetime) -> str:
    """`2026-01-02T03:04:05.000006Z`: UTC and six decimals always, so that text sorts as time does.

    ValueError for a datetime without a zone.
    """
    if instant.tzinfo is None:
        raise ValueError(f"{instant!r} has no time zone")
    return instant.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


@lru_cache(maxsize=1024)
def parse_rfc3339(text: str) -> datetime:
    """The instant of an RFC 3339 timestamp, in UTC; decimals past the sixth are cut off, not rounded.

    ValueError for anything else, leap seconds included.
    """
    match = _RFC3339.fullmatch(text)
    if match is None:
        raise ValueError(f"{text[:80]!r} is not an RFC 3339 timestamp such as 2026-01-02T03:04:05Z")
    *date, fraction, sign, hours, minutes = match.groups()
    microsecond = int((fraction or "0")[:6].ljust(6, "0"))
    zone = UTC
    if sign is not None:
        offset = timedelta(hours=int(hours), minutes=int(minutes))
        zone = timezone(-offset if sign == "-" else offset)
    year, month, day, hour, minute, second = map(int, date)
    try:
        return datetime(year, month, day, hour, minute, second, microsecond, zone).astimezone(UTC)
    except OverflowError as error:
        raise ValueError(f"{text!r} is outside the years 1 to 9999") from error


class Source(Protocol):
    """Where a process takes its time and its randomness from."""

    def boottime(self) -> float:
        """Seconds on a clock nobody sets."""
        ...

    def wall_ms(self) -> int:
        """Milliseconds since 1970."""
        ...

    def bits(self, count: int) -> int:
        """A number of so many random bits."""
        ...


class _System:
    """The machine's own."""

    def boottime(self) -> float:
        return time.clock_gettime(_CLOCK)

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def bits(self, count: int) -> int:
        # An id must differ; an owner's token must also not be guessed.
        return secrets.randbits(count) if count > ID_BITS else _random.getrandbits(count)


_source: Source = _System()


@contextmanager
def driven(source: Source) -> Iterator[None]:
    """Within it this whole process takes time and randomness from `source`: drills repeat a history by it."""
    global _source  # noqa: PLW0603 - one clock for all threads is the point
    before, _source = _source, source
    try:
        yield
    finally:
        _source = before


def boottime() -> float:
    """Seconds since boot, suspended time included where the system counts it (Linux), else monotonic."""
    return _source.boottime()


def new_id(now_ms: int, rand: int) -> UUID:
    """A version 7 UUID: ordered by millisecond, within one by `rand` (74 bits)."""
    if not 0 <= now_ms < 1 << 48:
        raise ValueError(f"{now_ms} ms do not fit the 48 bits of a version 7 UUID")
    high, low = rand >> 62 & 0xFFF, rand & (1 << 62) - 1
    return UUID(int=now_ms << 80 | 0x7 << 76 | high << 64 | 0b10 << 62 | low)


def uuid7() -> UUID:
    """`new_id` from this machine's wall clock; the order is a convenience for indexes, never an argument."""
    return new_id(_source.wall_ms(), _source.bits(ID_BITS))


def token() -> str:
    """128 random bits in hex: an owner no other execution has."""
    return f"{_source.bits(128):032x}"
