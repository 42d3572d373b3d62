"""Between the ledger's rows and the kernel's values: field for field, nothing interpreted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

from fencepost.breaker import Health
from fencepost.clock import rfc3339
from fencepost.decide.fold import Presented, Row
from fencepost.events import Event
from fencepost.jsontext import encoder
from fencepost.operations import Operation
from fencepost.records import reader
from fencepost.states import CALL_OPEN
from fencepost.subjects import Call, Run

R = TypeVar("R")

_encode = encoder()

OPEN_SQL = ", ".join(f"'{s}'" for s in sorted(CALL_OPEN))
"""The states of a call that has not ended, as a list in SQL."""


def _columns(kind: type) -> tuple[str, ...]:
    return tuple(f.name for f in fields(kind))


RUN_COLUMNS = _columns(Run)
CALL_COLUMNS = _columns(Call)
OPERATION_COLUMNS = _columns(Operation)
ROW_COLUMNS = _columns(Row)
EVENT_COLUMNS = _columns(Event)
HEALTH_COLUMNS = _columns(Health)

_SQL_TYPES = {"str": "text", "int": "bigint", "bool": "boolean", "UUID": "uuid", "datetime": "timestamptz"}


def types(kind: type) -> dict[str, str]:
    """What a record's fields are in SQL: as wide as the column of the same name, or wider."""
    return {f.name: _SQL_TYPES[str(f.type).removesuffix(" | None")] for f in fields(kind)}


def select(table: str, columns: Sequence[str]) -> str:
    """The column list that reads `columns` of `table` as the kernel's values want them."""
    cast = {"request": "request::text" if table == "runs" else "request", "body": "body::text"}
    return ", ".join(f"{table}.{cast.get(c, _quoted(c))}" for c in columns)


def _quoted(column: str) -> str:
    return f'"{column}"' if column in ("call", "open") else column


def columns(names: Sequence[str]) -> str:
    """A quoted column list."""
    return ", ".join(_quoted(n) for n in names)


def plain(value: Any) -> Any:
    """A value as JSON carries it to Postgres."""
    if isinstance(value, datetime):
        return rfc3339(value)
    return str(value) if isinstance(value, UUID) else value


def values(kind: type[R], names: Sequence[str]) -> Callable[[R], dict[str, Any]]:
    """What reads the named fields of a record, ready for JSON."""
    read = reader(kind, names)
    return lambda record: dict(zip(names, read(record), strict=True))


def text_array(values: Iterable[str | None]) -> str:
    """Texts as one array in Postgres's own spelling."""
    return "{" + ",".join([_NULL if value is None else _quote(value) for value in values]) + "}"


def _quote(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def plain_array(values: Iterable[object]) -> str:
    """An array of what needs no quotes: ids, numbers, instants."""
    return "{" + ",".join([_NULL if value is None else str(value) for value in values]) + "}"


_NULL = "NULL"


def arrays(kind: type, names: Sequence[str]) -> Callable[[Sequence[Sequence[Any]]], list[str]]:
    """What turns records, each the JSON values of these fields of `kind`, into one array per field."""
    found = types(kind)
    spell = [text_array if found[name] == "text" else plain_array for name in names]
    return lambda records: [write(c) for write, c in zip(spell, zip(*records, strict=True), strict=True)]


def presented(by: Presented, version: int) -> dict[str, Any]:
    """How a row's UPDATE presents its term or its office to the guards."""
    if by.via in ("term", "claim"):
        return {
            "presented_owner": by.owner,
            "presented_fence": by.fence,
            "presented_version": None,
            "presented_office": None,
        }
    return {
        "presented_owner": by.owner,
        "presented_fence": by.fence,
        "presented_version": version,
        "presented_office": by.via,
    }


def to_json(records: Sequence[dict[str, Any]]) -> str:
    """Records as one JSON parameter: N rows travel in one statement."""
    return _encode(records)
