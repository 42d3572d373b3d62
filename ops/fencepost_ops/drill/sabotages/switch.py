"""What a sabotage is, and how one is switched on for a while: in this process and in the drill's database."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final, LiteralString, cast

from fencepost_ops.drill.ledger import DrillLedger
from fencepost_ops.drill.protocol import Protocol

Off = Callable[[DrillLedger], AbstractContextManager[None]]
EXPECTATION: Final = "expected"
"""Instead of an invariant: what the protocol expects besides them, and is not so any more."""
CODE: Final = "code"
POSTGRES: Final = "Postgres"
BOTH: Final = "code + Postgres"
STAND_IN: Final = "stand-in"
"""The drill's own Redis or services: what is switched off is no code of the fleet."""


@dataclass(frozen=True, slots=True)
class Sabotage:
    """One defence. `off` switches it off while its context is open, and on again after it.

    `shows` is a protocol that is clean with the defence, and without it breaks `invariant` (or what the
    protocol expects besides: `EXPECTATION`). `layer` says what is switched off. `held_by`: which defence
    still holds although this one is off; then nothing is broken, and `invariant` is what both defend.
    `refusal`: words that Postgres then must have said.
    """

    name: str
    invariant: str
    about: str
    off: Off
    shows: Protocol
    layer: str = CODE
    held_by: str | None = None
    refusal: str | None = None


# -- in this process -------------------------------------------------------------------------------------


@contextmanager
def instead(owner: Any, name: str, other: Callable[..., Any]) -> Iterator[None]:
    """Have `owner.name` be `other(original)` for a while. Exactly what was there comes back."""
    kept = vars(owner)[name] if isinstance(owner, type) else getattr(owner, name)
    setattr(owner, name, other(kept))
    try:
        yield
    finally:
        setattr(owner, name, kept)


def code(owner: Any, name: str, other: Callable[..., Any]) -> Off:
    """Switches off what is looked up as `owner.name` each time it is used."""
    return lambda _ledger: instead(owner, name, other)


def entry(table: MutableMapping[Any, Any], key: Any, other: Callable[..., Any]) -> Off:
    """Switches off what is looked up in a table each time it is used."""

    @contextmanager
    def off(_ledger: DrillLedger) -> Iterator[None]:
        kept = table[key]
        table[key] = other(kept)
        try:
            yield
        finally:
            table[key] = kept

    return off


def every(*offs: Off) -> Off:
    """Switches off all of these."""

    @contextmanager
    def off(ledger: DrillLedger) -> Iterator[None]:
        with ExitStack() as stack:
            for one in offs:
                stack.enter_context(one(ledger))
            yield

    return off


# -- in the drill's database -------------------------------------------------------------------------------


def muted(function: str, *messages: str) -> Off:
    """Takes from a guard's function the refusals that say one of these, and no other."""

    @contextmanager
    def off(ledger: DrillLedger) -> Iterator[None]:
        row = ledger.owner.execute(
            "SELECT pg_get_functiondef(to_regproc(%s))", [f"fencepost.{function}"]
        ).fetchone()
        assert row is not None
        kept = str(row[0])
        ledger.owner.execute(silenced(kept, messages).encode())
        try:
            yield
        finally:
            ledger.owner.execute(kept.encode())

    return off


def silenced(function: str, messages: tuple[str, ...]) -> str:
    """The function without its refusals that say one of `messages`. LookupError for one it never says."""
    for message in messages:
        pattern = rf"RAISE EXCEPTION\s+'(?:[^']|'')*{re.escape(message)}(?:[^']|'')*'[^;]*;"
        function, found = re.subn(pattern, "NULL;", function)
        if not found:
            raise LookupError(f"no guard says {message!r}")
    return function


def without(trigger: str, table: str) -> Off:
    """Disables one trigger."""
    return _statements(
        f"ALTER TABLE fencepost.{table} DISABLE TRIGGER {trigger}",
        f"ALTER TABLE fencepost.{table} ENABLE TRIGGER {trigger}",
    )


def granted(what: str, table: str, role: str = "fencepost_worker") -> Off:
    """Lets a role do more with a table than it may."""
    return _statements(
        f"GRANT {what} ON fencepost.{table} TO {role}", f"REVOKE {what} ON fencepost.{table} FROM {role}"
    )


def without_check(table: str, name: str) -> Off:
    """Drops a CHECK of a table."""

    @contextmanager
    def off(ledger: DrillLedger) -> Iterator[None]:
        row = ledger.owner.execute(
            "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conname = %s", [name]
        ).fetchone()
        assert row is not None
        ledger.owner.execute(f"ALTER TABLE fencepost.{table} DROP CONSTRAINT {name}".encode())
        try:
            yield
        finally:
            # As with an index: what it let in is judged first.
            again = f"ALTER TABLE fencepost.{table} ADD CONSTRAINT {name} {row[0]}"
            ledger.once_empty.append(again)

    return off


def without_index(index: str) -> Off:
    """Drops a unique index."""

    @contextmanager
    def off(ledger: DrillLedger) -> Iterator[None]:
        row = ledger.owner.execute(
            "SELECT pg_get_indexdef(to_regclass(%s))", [f"fencepost.{index}"]
        ).fetchone()
        assert row is not None
        ledger.owner.execute(f"DROP INDEX fencepost.{index}".encode())
        try:
            yield
        finally:
            # What it let in has no place under the index, and is judged first.
            ledger.once_empty.append(cast("LiteralString", row[0]))

    return off


def _statements(before: str, after: str) -> Off:
    @contextmanager
    def off(ledger: DrillLedger) -> Iterator[None]:
        ledger.owner.execute(before.encode())
        try:
            yield
        finally:
            ledger.owner.execute(after.encode())

    return off


# -- the table ---------------------------------------------------------------------------------------------


def in_depth(one: Sabotage, postgres: Off) -> tuple[Sabotage, Sabotage]:
    """The same defence twice: switched off in the code alone, which Postgres holds, and in both."""
    alone = replace(one, name=f"{one.name}.code", held_by=POSTGRES)
    return alone, replace(one, off=every(one.off, postgres), layer=BOTH)
