"""The kernel's own replay, reported apart: the one place where the checker runs code of the writers.

The rest of the checker computes anew. This asks the kernel whether its replay gives the projection it
recorded at the end of every change, which an independent fold cannot: the projection is the kernel's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import psycopg

from fencepost.ledger.verify import verify_all, verify_run
from fencepost_ops.checker.facts import Key
from fencepost_ops.checker.report import Violation


def replay_faults(connection: psycopg.Connection[Any], runs: Iterable[Key] | None) -> Iterator[Violation]:
    """What `fencepost verify` finds wrong with these runs, or with all, each in a snapshot of its own."""
    each = verify_all(connection) if runs is None else (verify_run(connection, *key) for key in runs)
    for one in each:
        if one.fault is not None:
            yield Violation(f"run {one.run}: {one.fault}", one.tenant, one.run)
