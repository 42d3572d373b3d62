"""What is said of a ledger that went back or was restored and is held, wherever runs are looked at."""

from __future__ import annotations

from typing import Final

import click

from fencepost.clock import rfc3339
from fencepost.ledger import epochs
from fencepost.ledger.connect import Connection
from fencepost.ledger.epochs import Epoch
from fencepost_ops.commands.sayings import cut

_AUDIT: Final = (
    "settle what is in fencepost unresolved, run fencepost audit DEPENDENCY --since that moment, then "
    "fencepost recover --release --reason TEXT"
)
_RECOVER: Final = (
    "run fencepost recover --since MOMENT --reason TEXT, with the moment from which on commits are lost; if "
    "none are, fencepost recover --release --without-audit --reason TEXT"
)


def held(epoch: Epoch) -> str:
    """That nothing is planned, since when and why."""
    opened = f"{rfc3339(epoch.opened_at)[:19]}Z by {cut(epoch.opened_by)} ({cut(epoch.reason)})"
    if not epoch.marked:
        return f"the ledger is held since {opened}: nothing new is planned or sent"
    since = f"the ledger was restored to {rfc3339(epoch.since)} and is held since {opened}"
    return f"{since}: what is in doubt is settled, and nothing new is planned or sent"


def do(epoch: Epoch) -> str:
    """What a person does about it."""
    return _AUDIT if epoch.marked else _RECOVER


def warn(connection: Connection) -> Epoch | None:
    """Say on stderr that the ledger is held; the epoch, if it is."""
    epoch = epochs.last(epochs.held(connection))
    if epoch is not None:
        click.echo(f"fencepost: {held(epoch)}; {do(epoch)}", err=True)
    return epoch
