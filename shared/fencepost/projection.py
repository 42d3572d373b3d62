"""The projection's hash, and replay: the proof that the tables are what the events say (I6)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any
from uuid import UUID

from fencepost.events import GENESIS, SCHEMA_VERSION, Event, chain_fault
from fencepost.jsontext import encoder
from fencepost.machine import evolve
from fencepost.records import amended, reader
from fencepost.subjects import Call, Replayed, Run, View

_SUM_MODULUS = 1 << 256
_NEWEST_OF_FIRST = "version"
"""The last field calls had when the first projections were recorded."""
_NEWEST_OF_RUN = "calls_sum"
"""As that of calls, of runs."""
_names = [f.name for f in fields(Call)]
_first = _names[: _names.index(_NEWEST_OF_FIRST) + 1]
_later = {f.name: f.default for f in fields(Call) if f.name not in _first}
_call_values = reader(Call, _first)
_later_values = reader(Call, list(_later))
_names_of_run = [f.name for f in fields(Run) if f.name not in {"seq", "head_hash"}]
_first_of_run = _names_of_run[: _names_of_run.index(_NEWEST_OF_RUN) + 1]
_later_of_run = {f.name: f.default for f in fields(Run) if f.name in _names_of_run[len(_first_of_run) :]}
_run_values = reader(Run, _first_of_run)
_later_values_of_run = reader(Run, list(_later_of_run))
_encode = encoder()


def _digest(values: list[Any]) -> bytes:
    return hashlib.sha256(_encode(values).encode()).digest()


def _call_number(call: Call) -> int:
    """Of a call's fields; one that came later counts where it says something, so that what was recorded
    before replays as it did.
    """
    values = _call_values(call)
    return int.from_bytes(_digest(values + _told(_later, _later_values(call))), "big")


def _told(later: Mapping[str, Any], values: Sequence[Any]) -> list[list[Any]]:
    told = zip(later.items(), values, strict=True)
    return [[name, value] for (name, default), value in told if value != default]


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
    # What came later counts where it says something: what was recorded before replays as it did.
    return _digest(_run_values(run) + _told(_later_of_run, _later_values_of_run(run))).hex()


def _sealed(view: View, calls: Replayed) -> View:
    """As `seal`, for calls that know which of them have changed."""
    before = {key: old for key, old in calls.before.items() if old is not None}
    changed = View(view.run, {key: calls[key] for key in calls.before})
    calls.before.clear()
    return View(seal(before, changed).run, calls)


class ReplayError(Exception):
    """A history does not replay: an edited event, a gap, or another projection than was recorded."""


def replay(events: Iterable[Event]) -> View:
    """Fold a whole history, checking the chain and the projection recorded after every change (I6)."""
    view: View | None = None
    calls = Replayed()
    head = GENESIS
    for seq, event in enumerate(events, start=1):
        if fault := chain_fault(event, head, seq):
            raise ReplayError(fault)
        if event.version > SCHEMA_VERSION:
            newer = f"of version {event.version}, written by a newer release: replay it with that one"
            raise ReplayError(f"event {seq} ({event.type}) is {newer}")
        view = View(evolve(None, event).run, calls) if view is None else evolve(view, event)
        head = event.hash
        if event.projection is not None:
            view = _sealed(view, calls)
            if projection_hash(view.run) != event.projection:
                raise ReplayError(
                    f"event {seq} ({event.type}): replay differs from the projection recorded then"
                )
        view = View(amended(view.run, head_hash=head), view.calls)
    if view is None:
        raise ReplayError("the history is empty")
    return view
