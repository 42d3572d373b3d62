"""What is said of runs that wait for the provider of their model, wherever they are looked at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from fencepost.canonical import sanitize
from fencepost.ledger import providers
from fencepost.ledger.connect import Connection
from fencepost.ledger.providers import Waiting
from fencepost_ops.commands.durations import spoken
from fencepost_ops.commands.output import when


def by_run(connection: Connection, runs: Sequence[UUID]) -> Mapping[UUID, Waiting]:
    """Those of these runs that wait; none for a login that may not look."""
    if not providers.may_look(connection):
        return {}
    return {one.run: one for one in providers.waiting(connection, runs)}


def told(one: Waiting, now: datetime) -> str:
    """For whom it waits, since when, why, and when it is asked for again."""
    whom = f"provider {one.provider}" if one.provider else "its model's provider"
    if one.person:
        whom = "a person"
    again = f"asked again {when(one.until, now)}" if one.until > now else "to be asked again now"
    told = f"waits for {whom} for {spoken(now - one.since)} ({sanitize(one.why, 300)}); {again}"
    if not one.person:
        return told
    return (
        f"{told}. Mend that, and have it asked at once: fencepost repin {one.run} --to {one.version} "
        f"--reason ...; at its deadline, {when(one.deadline, now)}, it stops and its effects are offset"
    )


def as_json(one: Waiting | None) -> dict[str, Any] | None:
    """The same for machines."""
    if one is None:
        return None
    return {name: getattr(one, name) for name in ("provider", "why", "since", "until", "person")}
