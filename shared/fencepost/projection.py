"""The projection's hash, and replay: the proof that the tables are what the events say (I6)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from fencepost.clock import rfc3339
from fencepost.events import GENESIS, Event, chain_fault
from fencepost.machine import evolve
from fencepost.subjects import Call, Run, View

_SUM_MODULUS = 1 << 256
_CALL_FIELDS = tuple(f.name for f in fields(Call))
_RUN_FIELDS = tuple(f.name for f in fields(Run) if f.name not in ("seq", "head_hash"))


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return rfc3339(value)
    return str(value) if isinstance(value, UUID) else value


def _fields_digest(subject: Run | Call, names: Iterable[str]) -> bytes:
    text = json.dumps([_plain(getattr(subject, n)) for n in names], ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).digest()


def _call_number(call: Call) -> int:
    return int.from_bytes(_fields_digest(call, _CALL_FIELDS), "big")


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
    return replace(view, run=replace(view.run, calls_sum=f"{total % _SUM_MODULUS:064x}"))


def projection_hash(run: Run) -> str:
    """The hash of a sealed run's projection: its own fields and, by `calls_sum`, those of all its calls."""
    return _fields_digest(run, _RUN_FIELDS).hex()


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
        view = replace(view, run=replace(view.run, head_hash=head))
    if view is None:
        raise ReplayError("the history is empty")
    return view
