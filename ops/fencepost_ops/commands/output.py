"""How answers look: tables for people, JSON for programs; what was stored never reaches the terminal raw."""

import dataclasses
import json
import sys
from collections.abc import Iterable, Mapping, Sequence, Sized
from datetime import datetime, timedelta
from typing import Any, Final, NoReturn
from uuid import UUID

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fencepost.canonical import reveal, revealed, sanitize
from fencepost.clock import NEVER, rfc3339
from fencepost_ops.commands.durations import spoken

_CELL: Final = 400  # characters of one stored text at most
_MARKS: Final = ">!?"
_GAP: Final = 2  # columns between two columns of a table
_NARROW: Final = 12  # columns that a text is broken to at least
_UNBOUNDED: Final = 2000  # columns where nobody looks: lines are never broken in a pipe

STYLES: Final = {
    "COMPLETED": "green",
    "SUCCEEDED": "green",
    "STOPPED": "yellow",
    "STOPPING": "yellow",
    "COMPENSATING": "yellow",
    "CANCELLED": "yellow",
    "REJECTED": "yellow",
    "FAILED": "red",
    "UNKNOWN": "bold red",
    "NEEDS_REPAIR": "bold red",
    "ACCEPTED_UNKNOWN": "red",
}


class _Output(Console):
    def on_broken_pipe(self) -> NoReturn:
        raise BrokenPipeError


def console(*, err: bool = False) -> Console:
    """The terminal; NO_COLOR and pipes get plain text. Text is never read as markup."""
    stream = sys.stderr if err else sys.stdout
    width = None if stream.isatty() else _UNBOUNDED
    return _Output(file=stream, width=width, markup=False, highlight=False, emoji=False)


def print_json(value: object) -> None:
    """One JSON document on stdout: dataclasses as objects, times as RFC 3339, durations in seconds."""
    click.echo(_escaped(json.dumps(plain(value), indent=2, ensure_ascii=not _utf8(sys.stdout))))


def print_json_line(value: object) -> None:
    """One JSON document on one line of stdout, for a program that reads as we write."""
    click.echo(_escaped(json.dumps(plain(value), ensure_ascii=not _utf8(sys.stdout))))


def _escaped(text: str) -> str:
    """The same JSON, with characters that a terminal acts upon or nobody sees as escapes of JSON."""
    return revealed(text, lambda letter: json.dumps(letter)[1:-1])


def _utf8(stream: Any) -> bool:
    return str(getattr(stream, "encoding", "")).lower().replace("-", "") == "utf8"


def plain(value: object) -> Any:
    """The value as JSON has it: dataclasses as objects, times as RFC 3339, durations in seconds."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, datetime):
        return None if value >= NEVER else rfc3339(value)
    if isinstance(value, timedelta):
        return value.total_seconds()
    return str(value) if isinstance(value, UUID) else value


def seen(value: object, limit: int) -> str:
    """A stored text as part of one line, at most about `limit` characters of it."""
    return one_line(sanitize(value, limit))


def unbroken(text: str) -> str:
    """`text` as part of a line, whose line ends are spelled out: an exact text that forges no line."""
    return reveal(text.replace("\n", "\\n").replace("\r", "\\r"))


def one_line(text: str) -> str:
    """`text` as part of a line: what would move the cursor, or be seen by nobody, is spelled out."""
    return reveal(text.replace("\n", " ").replace("\r", "\\r"))


def shown(value: object, style: str = "") -> Text:
    """A cell: None is empty, controls become visible, states have their colour."""
    if isinstance(value, Text):
        return value
    text = "" if value is None else one_line(sanitize(value, _CELL).replace("\n", " ⏎ ").replace("\t", " "))
    return Text(text, style=style or STYLES.get(text, ""))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str = "") -> None:
    """A table, or `empty` without rows.

    A column whose name ends in `>` is set right, in `!` never broken, in `?` left out where the terminal is
    too narrow for all, the last one first; what is left out is said. Where even the others do not fit, each
    row stands in lines of its own.
    """
    cells = [[shown(cell) for cell in row] for row in rows]
    if not cells:
        click.echo(empty)
        return
    out = console()
    kept = _fitting(columns, cells, out.width)
    if out.width < _UNBOUNDED and not _fits(columns, cells, kept, out.width):
        _print_rows(out, columns, cells)
        return
    table = Table(box=None, pad_edge=False)
    for index in kept:
        column = columns[index]
        right, whole = ">" in column, ">" in column or "!" in column
        name = column.rstrip(_MARKS)
        table.add_column(name, justify="right" if right else "left", no_wrap=whole, overflow="fold")
    for row in cells:
        table.add_row(*(row[index] for index in kept))
    out.print(table)
    if left_out := [one.rstrip(_MARKS) for n, one in enumerate(columns) if n not in kept]:
        click.echo(f"left out: {', '.join(left_out)}; a wider terminal or --json shows all", err=True)


def _fits(columns: Sequence[str], cells: Sequence[Sequence[Text]], kept: Sequence[int], width: int) -> bool:
    """Whether these columns can be set without cutting what is never broken."""
    least = 0
    for index in kept:
        widest = max(len(columns[index].rstrip(_MARKS)), *(row[index].cell_len for row in cells))
        whole = ">" in columns[index] or "!" in columns[index]
        least += (widest if whole else min(widest, _NARROW)) + _GAP
    return least - _GAP <= width


def _print_rows(out: Console, columns: Sequence[str], cells: Sequence[Sequence[Text]]) -> None:
    names = [column.rstrip(_MARKS) for column in columns]
    longest = max(map(len, names))
    for row in cells:
        for place, (name, cell) in enumerate(zip(names, row, strict=True)):
            if cell.plain or place == 0:
                label = name.ljust(longest) if place == 0 else f"  {name.ljust(longest - 2)}"
                out.print(
                    Text(f"{label} ", "bold" if place == 0 else "dim").append_text(cell), soft_wrap=True
                )


def _fitting(columns: Sequence[str], cells: Sequence[Sequence[Text]], width: int) -> list[int]:
    widths = [
        max(len(column.rstrip(_MARKS)), *(row[index].cell_len for row in cells)) + _GAP
        for index, column in enumerate(columns)
    ]
    kept = list(range(len(columns)))
    for index in reversed(range(len(columns))):
        if sum(widths[n] for n in kept) - _GAP > width and "?" in columns[index]:
            kept.remove(index)
    return kept


def cut_short(limit: int, *lists: Sized) -> None:
    """Say so, beside the answer, where one of these lists is as long as it may be."""
    if any(len(one) >= limit for one in lists):
        click.echo(f"fencepost: of a kind {limit} are listed at most; --limit shows more", err=True)


def when(moment: datetime | None, now: datetime) -> str:
    """How far `moment` lies ahead of `now` or behind it."""
    if moment is None:
        return ""
    if moment >= NEVER:
        return "when a person acts"
    return f"in {spoken(moment - now)}" if moment > now else f"{spoken(now - moment)} ago"
