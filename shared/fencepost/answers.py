"""What the ledger may answer to a command: orders, refusals, what was done. Frozen values only."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from fencepost.authority.capabilities import Capability
from fencepost.subjects import Call, Run


@dataclass(frozen=True, slots=True)
class Fenced:
    """The presented term is not the accepted one: somebody else holds the subject, or has held it since."""


@dataclass(frozen=True, slots=True)
class Moved:
    """The message is old news: another generation, another queue, not due yet, or nothing to do."""


@dataclass(frozen=True, slots=True)
class Gone:
    """There is no such subject, or it has ended."""


@dataclass(frozen=True, slots=True)
class Busy:
    """Somebody is moving the subject at this instant; ask again in a moment."""


@dataclass(frozen=True, slots=True)
class Late:
    """No time is left for an attempt; nothing was dispatched."""


@dataclass(frozen=True, slots=True)
class Full:
    """A limit of the call's dependency, its rate or its concurrency, leaves no room for `wait` or so; nothing
    was recorded, and the same message may be tried again.
    """

    scope: str
    limit: str
    wait: timedelta


@dataclass(frozen=True, slots=True)
class NotAlive:
    """The claiming process's stamp is stale: it may be presumed dead, so it may not claim."""


@dataclass(frozen=True, slots=True)
class Unfamiliar:
    """This process does not know the planner or tool version; the row stays for one that does, uncounted."""

    what: str


@dataclass(frozen=True, slots=True)
class Denied:
    """An office's request is refused as things stand; `why` says what to do instead."""

    why: str


@dataclass(frozen=True, slots=True)
class Done:
    """Recorded; nothing is left for the caller to do. `state` is where the subject stands now."""

    state: str


@dataclass(frozen=True, slots=True)
class Plan:
    """Ask the planner for the run's next turn within `timeout`. It is told the first `signals` of the run's
    signals: those that were there when it was taken.
    """

    run: Run
    timeout: timedelta
    signals: int


@dataclass(frozen=True, slots=True)
class Send:
    """Execute one attempt within `timeout` (to be counted from before the claim was sent, R6).

    `key` is the operation key; `deadline` the attempt's, by the ledger's clock; `capability` what it may do;
    `tainted` whether its run has learnt what nobody vouches for.
    """

    call: Call
    principal: str
    attempt: int
    key: str | None
    deadline: datetime
    timeout: timedelta
    repeat: bool
    capability: Capability | None
    tainted: bool


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask the downstream whether the call's effect happened. `asked_at` is the ledger's time of the claim:
    the answer is at least that young.
    """

    call: Call
    principal: str
    asked_at: datetime
    timeout: timedelta


@dataclass(frozen=True, slots=True)
class Offset:
    """Propose the compensation of `forward`, within `timeout`."""

    run: Run
    forward: Call
    timeout: timedelta


@dataclass(frozen=True, slots=True)
class Tell:
    """Have the run that `call` has started stop, for this reason."""

    call: Call
    child: UUID
    reason: str


@dataclass(frozen=True, slots=True)
class OnHold:
    """The ledger was restored and is held: no run is claimed until its epoch is released. Nothing moved."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Restored:
    """What a restore changed of one run: how many of its calls may have been sent, and of how many of those
    nobody here knows the tool.
    """

    calls: int
    unfamiliar: int


@dataclass(frozen=True, slots=True)
class Broken:
    """The change was refused (a guard, a constraint, bad data) and nothing written: a bug, or an attack."""

    why: str


Order = Plan | Send | Ask | Offset | Tell
Refusal = Fenced | Moved | Gone | Busy | Late | Full | NotAlive | Unfamiliar | OnHold | Denied | Broken
Answer = Order | Done | Restored | Refusal
