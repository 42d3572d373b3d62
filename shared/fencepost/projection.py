"""The projection's hash, and replay: the proof that the tables are what the events say (I6)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import fields
from operator import attrgetter
from typing import Any
from uuid import UUID

from fencepost.events import GENESIS, Event, chain_fault
from fencepost.jsontext import encoder
from fencepost.machine import evolve
from fencepost.records import amended, reader
from fencepost.subjects import Call, Run, View

_SUM_MODULUS = 1 << 256
_NEWEST_OF_FIRST = "version"
"""The last field calls had when the first projections were recorded."""
_names = [f.name for f in fields(Call)]
_first = _names[: _names.index(_NEWEST_OF_FIRST) + 1]
_later = {f.name: f.default for f in fields(Call) if f.name not in _first}
_call_values = reader(Call, _first)
_later_values = attrgetter(*_later)
_LATER_OF_RUN = {"tainted", "awaiting"}
_run_values = reader(Run, [f.name for f in fields(Run) if f.name not in {"seq", "head_hash"} | _LATER_OF_RUN])
_encode = encoder()


def _digest(values: list[Any]) -> bytes:
    return hashlib.sha256(_encode(values).encode()).digest()


def _call_number(call: Call) -> int:
    """Of a call's fields; one that came later counts where it says something, so that what was recorded
    before replays as it did.
    """
    values = _call_values(call)
    told = zip(_later.items(), _later_values(call), strict=True)
    values += [[name, value] for (name, default), value in told if value != default]
    return int.from_bytes(_digest(values), "big")


def seal(before: Mapping[UUID, Call], view: View) -> View:
    """Bring `run.calls_sum` up to date with the calls that changed since `before`.

    The projection's hash covers all calls as the sum of their digests modulo 2^256, so that a change costs
    what it touches and not what the run has grown to. It tells honest states apart; against an author who may
    choose call contents freely the chain, not this sum, is the evidence.
    """
    total = int(view.run.calls_sum, 16)
    for call in view.calls.values():
        old = before.get(call.id)
        if old is call:
            continue
        total += _call_number(call) - (_call_number(old) if old is not None else 0)
    return View(amended(view.run, calls_sum=f"{total % _SUM_MODULUS:064x}"), view.calls)


def projection_hash(run: Run) -> str:
    """The hash of a sealed run's projection: its own fields and, by `calls_sum`, those of all its calls."""
    values = _run_values(run)
    # What came later counts where it says something: what was recorded before replays as it did.
    if run.tainted is not None:
        values += [["tainted", run.tainted]]
    if run.awaiting:
        values += [["awaiting", run.awaiting]]
    return _digest(values).hex()


class ReplayError(Exception):
    """A history does not replay: an edited event, a gap, or another projection than was recorded."""


def replay(events: Iterable[Event]) -> View:
    """Fold a whole history, checking the chain and the projection recorded after every change (I6)."""
    view: View | None = None
    sealed: Mapping[UUID, Call] = {}
    head = GENESIS
    for seq, event in enumerate(events, start=1):
        if fault := chain_fault(event, head, seq):
            raise ReplayError(fault)
        view = evolve(view, event)
        head = event.hash
        if event.projection is not None:
            view = seal(sealed, view)
            sealed = view.calls
            if projection_hash(view.run) != event.projection:
                raise ReplayError(
                    f"event {seq} ({event.type}): replay differs from the projection recorded then"
                )
        view = View(amended(view.run, head_hash=head), view.calls)
    if view is None:
        raise ReplayError("the history is empty")
    return view
