"""The kernel's own replay, reported apart: the one place where the checker runs code of the writers.

The rest of the checker computes anew. This asks the kernel whether its replay gives the projection it
recorded at the end of every change, which an independent fold cannot: the projection is the kernel's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import psycopg

from fencepost.ledger.verify import verify_run
from fencepost_ops.checker.facts import Key
from fencepost_ops.checker.report import Violation


def replay_faults(connection: psycopg.Connection[Any], runs: Iterable[Key]) -> Iterator[Violation]:
    """What `fencepost verify` finds wrong with these runs, each in a snapshot of its own."""
    for tenant, run in runs:
        fault = verify_run(connection, tenant, run).fault
        if fault is not None:
            yield Violation(f"run {run}: {fault}", tenant, run)
