"""What the ledger and a downstream's book say of one intent, and where they differ. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from fencepost.books import BookedEffect
from fencepost.states import CallState

C = CallState


class Kind(StrEnum):
    """What an audit finds. Names are data: extend, never rename."""

    MATCHED = "matched"
    MISSING = "missing"
    DUPLICATE = "duplicate"
    ORPHAN = "effect_without_intent"
    IN_DOUBT_FOUND = "in_doubt_yet_found"
    DENIED_FOUND = "denied_yet_found"
    DIFFERENT = "different"
    IN_DOUBT = "in_doubt"
    MOVING = "moving"
    NO_EFFECT = "no_effect"


DIFFERENCES: Final = frozenset(
    {
        Kind.MISSING,
        Kind.DUPLICATE,
        Kind.ORPHAN,
        Kind.IN_DOUBT_FOUND,
        Kind.DENIED_FOUND,
        Kind.DIFFERENT,
    }
)
"""What makes an audit say no. IN_DOUBT is open in both books; MOVING was changing while they were read."""

SAYINGS: Final[Mapping[Kind, str]] = {
    Kind.MATCHED: "the ledger says it happened, and so does the downstream",
    Kind.MISSING: "the ledger says it happened; the downstream does not know it",
    Kind.DUPLICATE: "it happened more than once under one intent",
    Kind.ORPHAN: "it happened, and no intent of the ledger asked for it",
    Kind.IN_DOUBT_FOUND: "the ledger does not know whether it happened; the downstream says it did",
    Kind.DENIED_FOUND: "the ledger says it did not happen; the downstream says it did",
    Kind.DIFFERENT: "what happened is not what was asked for",
    Kind.IN_DOUBT: "the ledger does not know whether it happened; the downstream does not know it",
    Kind.MOVING: "it was in flight while the books were read",
    Kind.NO_EFFECT: "the ledger says it did not happen, and so does the downstream",
}


@dataclass(frozen=True, slots=True)
class Intent:
    """One business intent as the ledger has it: the call that owns its key.

    `key` is spelled as the downstream knows it. `sent` is the JSON body that was sent (None: a Python tool,
    or no JSON), `digest` the SHA-256 of its bytes. `first_at` is when it was first sent. `moving`: an attempt
    may still be on its way, or the call changed while it was read. `set_semantics`: it may be repeated
    freely, so the book may list it any number of times, or not at all where nothing had to change.
    """

    tenant: str
    call: str
    run: str
    run_key: str
    tool: str
    label: str
    state: str
    key: str
    receipt: str | None
    first_at: datetime
    arguments: Mapping[str, Any]
    sent: Mapping[str, Any] | None
    digest: str | None
    version: int
    in_flight_until: datetime | None = None
    moving: bool = False
    set_semantics: bool = False

    @property
    def happened(self) -> bool:
        """Whether the ledger says so."""
        return self.state == C.SUCCEEDED

    @property
    def doubtful(self) -> bool:
        """Whether the ledger does not know."""
        return self.state in {C.DISPATCHING, C.UNKNOWN, C.NEEDS_REPAIR, C.ACCEPTED_UNKNOWN}


@dataclass(frozen=True, slots=True)
class Difference:
    """One field in which what happened is not what was asked for."""

    field: str
    ledger: Any
    downstream: Any


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing an audit found; `effects` are those it speaks of."""

    kind: Kind
    intent: Intent | None
    effects: tuple[BookedEffect, ...] = ()
    differences: tuple[Difference, ...] = ()


def judge(intent: Intent, effects: Sequence[BookedEffect]) -> Iterator[Finding]:
    """What there is to say of an intent and all effects that belong to it; at least one finding."""
    found = tuple(effects)
    waits = bool(found) and intent.state == C.NEEDS_REPAIR  # nothing but a person will move it
    if intent.moving and not waits and (not found or not intent.happened) and len(found) < 2:
        yield Finding(Kind.MOVING, intent, found)
        return
    if len(found) > 1 and not intent.set_semantics:
        yield Finding(Kind.DUPLICATE, intent, found)
    if found and intent.doubtful:
        yield Finding(Kind.IN_DOUBT_FOUND, intent, found)
    elif found and not intent.happened:
        yield Finding(Kind.DENIED_FOUND, intent, found)
    elif intent.happened and not found and not intent.set_semantics:
        yield Finding(Kind.MISSING, intent)
    elif not found and intent.doubtful:
        yield Finding(Kind.IN_DOUBT, intent)
    elif not found and not intent.happened:
        yield Finding(Kind.NO_EFFECT, intent)
    known = any(effect.receipt == intent.receipt for effect in found)  # of duplicates only one can have it
    differing = [(effect, differences(intent, effect, receipt=not known)) for effect in found]
    for effect, differ in differing:
        if differ:
            yield Finding(Kind.DIFFERENT, intent, (effect,), differ)
    if intent.happened and not any(differ for _, differ in differing):
        single = len(found) == 1 or intent.set_semantics
        if single:
            yield Finding(Kind.MATCHED, intent, found)


def orphan(effect: BookedEffect) -> Finding:
    """An effect that belongs to no intent of this dependency."""
    return Finding(Kind.ORPHAN, None, (effect,))


def differences(intent: Intent, effect: BookedEffect, *, receipt: bool = True) -> tuple[Difference, ...]:
    """Every field of the effect that is not as the ledger has it; with `receipt`, that one too."""
    found = []
    if effect.key is not None and effect.key != intent.key:
        found.append(Difference("key", intent.key, effect.key))
    receipt = receipt and not intent.set_semantics  # each repetition may have one of its own
    if receipt and intent.receipt and effect.receipt and intent.receipt != effect.receipt:
        found.append(Difference("receipt", intent.receipt, effect.receipt))
    for name, value in effect.arguments.items():
        asked = _asked(intent, name)
        if not same(asked, value):
            found.append(Difference(name, None if asked is _ABSENT else asked, value))
    told = any(difference.field in effect.arguments for difference in found)
    if not told and effect.digest and intent.digest and effect.digest != intent.digest:
        found.append(Difference("body", intent.digest, effect.digest))
    return tuple(found)


_ABSENT: Final = object()


def _asked(intent: Intent, name: str) -> Any:
    if intent.sent is not None and name in intent.sent:
        return intent.sent[name]
    return intent.arguments.get(name, _ABSENT)


def same(one: Any, other: Any) -> bool:
    """Whether two JSON values are equal: 1 is 1.0 but not true, objects whatever their order."""
    if isinstance(one, bool) or isinstance(other, bool):
        return isinstance(one, bool) and isinstance(other, bool) and one is other
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def body_digest(body: bytes) -> str:
    """How a book may name the exact bytes it was sent."""
    return hashlib.sha256(body).hexdigest()
