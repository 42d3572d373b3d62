"""What Postgres itself refuses, whoever asks (R7): triggers generated from the state tables of `states.py`.

A change of a run, a call or a key comes with the events that say so: histories have no gap, no fork and no
loose end, and a row moves only to what its newest events can have done to it. An UPDATE presents a term or an
office; the guards check the move against the table, that no fence falls, that an attempt is counted only with
the event that starts it, that nothing ends or leaves doubt without a proof written in the same change, that a
key agrees with the call that holds it, and that no run completes with an open or doubtful call.

They cannot check that Redis granted a fence, that a worker tells the truth about what it was answered, nor
reach outside: that is what leases, verification and drills are for.

Whoever changes a row has no say in what the names in a guard mean: each looks them up on a path of its own,
on which what is temporary comes last. So do the functions that run with their owner's rights.

Errors carry SQLSTATE `FP001` (refused move), `FP002` (stale or missing term), `FP003` (doubt), `FP004`
(history).
"""

from __future__ import annotations

from fencepost.ledger.guards.allowances import GUARD_ALLOWANCES
from fencepost.ledger.guards.api import GUARD_API
from fencepost.ledger.guards.authority import GUARD_AUTHORITY
from fencepost.ledger.guards.calls import GUARD_CALLS
from fencepost.ledger.guards.cancels import GUARD_CANCELS
from fencepost.ledger.guards.children import GUARD_CHILDREN, START_CHILDREN
from fencepost.ledger.guards.epochs import GUARD_EPOCHS
from fencepost.ledger.guards.history import GUARD_HISTORY
from fencepost.ledger.guards.keys import GUARD_KEYS
from fencepost.ledger.guards.memory import GUARD_MEMORY
from fencepost.ledger.guards.outbox import GUARD_OUTBOX, GUARD_WORKERS
from fencepost.ledger.guards.runs import GUARD_RUNS

CLOCK = """
CREATE FUNCTION fencepost.now() RETURNS timestamptz LANGUAGE sql VOLATILE PARALLEL SAFE
AS $$ SELECT clock_timestamp() $$;
"""

MOVABLE_CLOCK = """
CREATE TABLE fencepost.clock (one boolean PRIMARY KEY DEFAULT true CHECK (one), ahead interval NOT NULL);
INSERT INTO fencepost.clock VALUES (true, interval '0');
CREATE OR REPLACE FUNCTION fencepost.now() RETURNS timestamptz LANGUAGE sql VOLATILE
AS $$ SELECT clock_timestamp() + (SELECT ahead FROM fencepost.clock) $$;
GRANT SELECT ON fencepost.clock TO PUBLIC;
"""

GUARDS = (
    CLOCK,
    GUARD_CALLS,
    GUARD_RUNS,
    GUARD_KEYS,
    GUARD_OUTBOX,
    GUARD_CANCELS,
    GUARD_WORKERS,
    GUARD_HISTORY,
    GUARD_EPOCHS,
    GUARD_AUTHORITY,
    GUARD_ALLOWANCES,
    START_CHILDREN,
    GUARD_CHILDREN,
    GUARD_API,
    GUARD_MEMORY,
)
