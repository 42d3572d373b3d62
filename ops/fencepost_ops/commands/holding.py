"""What is said of a ledger that was restored and is held, wherever runs are looked at. Pure."""

from __future__ import annotations

from typing import Final

from fencepost.clock import rfc3339
from fencepost.ledger.epochs import Epoch
from fencepost_ops.commands.sayings import cut

DO: Final = (
    "settle what is in fencepost unresolved, read fencepost audit DEPENDENCY --since that moment, then "
    "fencepost recover --release --reason TEXT"
)


def held(epoch: Epoch) -> str:
    """That nothing is planned, since when and why."""
    opened = f"{rfc3339(epoch.opened_at)[:19]}Z by {cut(epoch.opened_by)} ({cut(epoch.reason)})"
    since = f"the ledger was restored to {rfc3339(epoch.since)} and is held since {opened}"
    return f"{since}: what is in doubt is settled, and nothing new is planned or sent"
