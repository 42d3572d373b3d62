"""Durations and moments as people type and read them: `90s`, `5m`, `1h30m`, `2026-01-31`; `1.25 s`."""

import re
from datetime import UTC, date, datetime, time, timedelta
from typing import Final

import click

from fencepost.clock import parse_rfc3339

_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PART: Final = r"(\d+(?:\.\d+)?)(ms|s|m|h|d)"
_WHOLE: Final = re.compile(rf"(-?)((?:{_PART})+)", re.ASCII)
_ONE: Final = re.compile(_PART, re.ASCII)
_HOW: Final = "a duration is written like 90s, 5m, 2h or 1h30m"
_LONGEST: Final = 40  # characters; no duration that fits is longer


def parse_duration(text: str) -> timedelta:
    """The duration `text` spells, negative ones included. ValueError, in one sentence, for anything else."""
    match = _WHOLE.fullmatch(text.strip().lower()[: _LONGEST + 1])
    if match is None:
        raise ValueError(f"{text[:_LONGEST]!r}: {_HOW}")
    seconds = sum(float(number) * _UNITS[unit] for number, unit in _ONE.findall(match[2]))
    try:
        span = timedelta(seconds=seconds)
    except OverflowError:
        raise ValueError(f"{text[:_LONGEST]!r} is longer than any duration that can be kept") from None
    return -span if match[1] else span


def spoken(span: timedelta) -> str:
    """A duration for people: three digits or two units, whatever is shorter; negative ones with a minus."""
    if span < timedelta(0):
        return "-" + spoken(-span)
    seconds = span.total_seconds()
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.3g} s" if seconds < 59.95 else "1 m"
    whole = round(seconds)
    if whole < 3600:
        return _two(whole // 60, "m", whole % 60, "s")
    if whole < 86400:
        return _two(whole // 3600, "h", whole % 3600 // 60, "m")
    return _two(whole // 86400, "d", whole % 86400 // 3600, "h")


def _two(great: int, unit: str, small: int, part: str) -> str:
    return f"{great} {unit} {small:02} {part}" if small else f"{great} {unit}"


class Duration(click.ParamType[timedelta]):
    """A click parameter: a duration above zero."""

    name = "duration"

    def convert(
        self, value: str | timedelta, param: click.Parameter | None, ctx: click.Context | None
    ) -> timedelta:
        """The duration; fails, in one sentence, for one that is no duration or lies in the past."""
        try:
            span = value if isinstance(value, timedelta) else parse_duration(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if span <= timedelta(0):
            self.fail(f"{value} lies in the past; give a duration from now, such as 5m", param, ctx)
        return span


DURATION: Final = Duration()


class Moment(click.ParamType[datetime | timedelta]):
    """A click parameter: a span back from now (`24h`), a day (from its beginning, UTC), or RFC 3339."""

    name = "moment"

    def convert(
        self, value: str | datetime | timedelta, param: click.Parameter | None, ctx: click.Context | None
    ) -> datetime | timedelta:
        """The moment, or how far back it lies; fails, in one sentence, for anything else."""
        if not isinstance(value, str):
            return value
        for read in (parse_duration, _day, parse_rfc3339):
            try:
                found = read(value)
            except ValueError:
                continue
            if isinstance(found, datetime) or found > timedelta(0):
                return found
        how = "a moment is 24h (ago), 2026-01-31 or 2026-01-31T12:00:00Z"
        return self.fail(f"{value[:_LONGEST]!r}: {how}", param, ctx)


def _day(text: str) -> datetime:
    return datetime.combine(date.fromisoformat(text), time(), UTC)


def at(moment: datetime | timedelta, now: datetime) -> datetime:
    """The moment itself, or as long before `now` as it says; never before the year 1."""
    if isinstance(moment, datetime):
        return moment
    return (
        now - moment if moment < now - datetime.min.replace(tzinfo=UTC) else datetime.min.replace(tzinfo=UTC)
    )


MOMENT: Final = Moment()
