"""What a contract's class cannot promise: why a difference between ledger and book is noted, not asserted.

| class | asserted | noted |
|---|---|---|
| dedupes | at most one effect while the downstream remembers the key; none sent after that | a further one |
| lookup_only | at most one, if nothing lands later than the contract's `settle` | one that landed later |
| neither | one automatic attempt | what a person decided after that |
| read | no effect | |

Of any class whose contract tells a `settle` time, an effect that landed later than that is noted where its
call FAILED because a lookup found nothing, or because a person said so: that rests on it. Of a tool that sets
what is there, that it was set once by each of several attempts is noted, and that its book has nothing of it.
No attempt may have two effects, whatever the class. Of a tool whose class is not known all is asserted.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from itertools import pairwise

from fencepost.states import CallState
from fencepost_ops.checker.books import BookEffect
from fencepost_ops.checker.facts import CallRow
from fencepost_ops.checker.ledgered import Ledgered
from fencepost_ops.checker.terms import ToolTerms

_LATE = "a request landed later than the contract says one can"
_SETS = "setting the same again changes nothing, so its book may list each attempt, or none"


def several(ledger: Ledgered, key: str, found: Sequence[BookEffect], known: ToolTerms | None) -> str | None:
    """Why more than one effect of this key is not against the class; None where it is. Of no class may there
    be more effects than attempts, or two of one attempt.
    """
    if known is None or _more_than_attempts(ledger, key, found):
        return None
    if known.sets:
        return _SETS
    if known.kind == "dedupes":
        return _forgotten(ledger, key, found, known.window)
    if known.kind == "lookup_only":
        return _LATE if _late_after_absence(ledger, key, found, known.settle) else None
    if known.kind == "neither":
        return _person_s_word(ledger, key, found)
    return None


def _more_than_attempts(ledger: Ledgered, key: str, found: Sequence[BookEffect]) -> bool:
    """Whether some attempt must have had two of them."""
    told = [(e.origin.call, e.origin.attempt) for e in found if e.origin.call and e.origin.attempt]
    if len(set(told)) < len(told):
        return True
    return ledger.alone(key) and len(found) > len(ledger.started_for(key))


def undue(
    ledger: Ledgered, call: CallRow, found: Sequence[BookEffect], known: ToolTerms | None
) -> str | None:
    """Why effects of a call that ended without one are not against the class; None where they are."""
    if known is None or call.state != CallState.FAILED:
        return None
    if known.kind == "neither" and (who := ledger.people.get(call.id)) is not None:
        return f"whether it happened was for {who} to judge"
    settle = known.settle
    believed = call.id in ledger.absent or call.id in ledger.people  # not where its own worker said so
    if believed and settle is not None and all(_late(ledger, call.operation or "", e, settle) for e in found):
        return _LATE
    return None


def missing(ledger: Ledgered, call: CallRow, known: ToolTerms | None) -> str | None:
    """Why a succeeded call without an effect is not against the class; None where it is."""
    if known is None:
        return None
    if known.sets:
        return _SETS
    who = ledger.people.get(call.id)
    if known.kind == "neither" and who is not None:
        return f"whether it happened was for {who} to judge"
    return None


def _forgotten(
    ledger: Ledgered, key: str, found: Sequence[BookEffect], window: timedelta | None
) -> str | None:
    """Each further effect came after the downstream could have forgotten the one before it, and by an attempt
    that was let go before that, or after a proof of absence, or by a person.

    Of effects that do not say whose they are, every attempt under the key must have been such a one.
    """
    times = sorted(e.at for e in found)
    if window is None or any(later - earlier < window for earlier, later in pairwise(times)):
        return None
    started = ledger.started_for(key)
    until = min((s.at for s in started), default=times[0]) + window
    told = [ledger.made(e) for e in found]
    anothers = any(e.origin.call is not None and e.origin.call not in ledger.calls for e in found)
    known = [s for s in told if s is not None]
    made = started if len(known) < len(told) and not anothers else known
    for one in made:
        if ledger.after_success(key, one):
            return None
        excused = one.decided or one.proved_absent or ledger.after_absence(key, one)
        if one.at >= until and not excused:
            return None
    return f"the downstream remembers a key for {window}"


def _late(ledger: Ledgered, key: str, effect: BookEffect, settle: timedelta) -> bool:
    """Whether it landed after all of its attempts' time; of its own, where it says which that is."""
    made = ledger.made(effect)
    attempts = [made] if made is not None else ledger.started_for(key)
    until = [s.deadline for s in attempts if s.deadline is not None]
    return bool(until) and effect.at > max(until) + settle


def _late_after_absence(
    ledger: Ledgered, key: str, found: Sequence[BookEffect], settle: timedelta | None
) -> bool:
    """Each attempt had one effect at most, none but the first was blind, and all but one landed late."""
    made = sorted(ledger.started_for(key), key=lambda s: s.at)
    if settle is None or not made or made[0].deadline is None:
        return False
    # A retry follows a refusal, which is an answer; whatever else is sent again follows a proof of absence.
    blind = any(not (after.proved_absent or before.answered) for before, after in pairwise(made))
    if blind or len(found) > len(made):
        return False
    told = [ledger.made(e) for e in found]
    if None in told:
        # Whose they are is not known; all landed after the first attempt's time, so its own did too.
        return all(e.at > made[0].deadline + settle for e in found)
    distinct = len({(s.call, s.attempt) for s in told if s is not None}) == len(told)
    return distinct and sum(not _late(ledger, key, e, settle) for e in found) <= 1


def _person_s_word(ledger: Ledgered, key: str, found: Sequence[BookEffect]) -> str | None:
    made = sorted(ledger.started_for(key), key=lambda s: s.at)
    if len(made) >= len(found) and made[1:] and all(s.decided for s in made[1:]):
        return "it was sent again only after a person had decided so"
    return None
