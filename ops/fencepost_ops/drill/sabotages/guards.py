"""The guards inside Postgres, each against a statement that a worker's login gives straight at the tables.

With the guard the statement is refused and the history is clean; without it the checker names what is broken.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from fencepost.decide import prints, reconcile
from fencepost_ops.drill.protocol import Asked, Event, Expect, Fault, Protocol
from fencepost_ops.drill.sabotages.decisions import calls, once
from fencepost_ops.drill.sabotages.runs import SWEEP_OFF
from fencepost_ops.drill.sabotages.switch import (
    BOTH,
    CODE,
    POSTGRES,
    Off,
    Sabotage,
    code,
    every,
    granted,
    muted,
    without,
)

_TOLD: Final = muted("guard_call", "changed without an event")
_PROPOSED: Final = muted(
    "guard_call", "changed without an event", "what was proposed and sent does not change"
)
_EVENT: Final = """
INSERT INTO fencepost.events
SELECT tenant, run, seq + 1, '00000000-0000-4000-8000-000000000001', 'EvidenceFiled', version, call, attempt,
    body, digest, principal, worker, fence, policy, causation, recorded_at, {projection}, hash, hash
FROM fencepost.events ORDER BY seq DESC LIMIT 1
"""
_EVIDENCE: Final = """
INSERT INTO fencepost.evidence (tenant, id, run, call, attempt, owner, fence, applied, code, recorded_at)
SELECT tenant, '00000000-0000-4000-8000-000000000001', run, id, 1, owner, fence, false, 'forged',
    fencepost.now() FROM fencepost.calls
"""


def _after_end(name: str, invariant: str, about: str, off: Off, statement: str) -> Sabotage:
    """Against a statement given once the run has completed."""
    shows = Protocol(
        name=f"sabotage.{name}",
        runs=calls("dedupes"),
        events=[Event(at_s=1, do="sql", statement=statement)],
        expect=once("dedupes"),
    )
    return Sabotage(name, invariant, about, off, shows, POSTGRES)


_TABLES: Final = (
    _after_end(
        "call_rewritten",
        "I6",
        "a call's row changes only with the events that say so",
        _TOLD,
        "UPDATE fencepost.calls SET state = 'CANCELLED'",
    ),
    _after_end(
        "run_rewritten",
        "I6",
        "a run's row changes only with the events that say so",
        muted("guard_run", "changed without an event"),
        "UPDATE fencepost.runs SET status = 'STOPPED'",
    ),
    _after_end(
        "counters_rewritten",
        "I13",
        "what a run has used does not come back",
        muted("guard_run", "changed without an event"),
        "UPDATE fencepost.runs SET attempts = 0, requests = 0",
    ),
    _after_end(
        "fence_lowered",
        "I5",
        "a fence never falls",
        _TOLD,
        "UPDATE fencepost.calls SET fence = 0",
    ),
    _after_end(
        "arguments_rewritten",
        "I3",
        "what was proposed and authorised does not change",
        _PROPOSED,
        "UPDATE fencepost.calls SET arguments = '{}'",
    ),
    Sabotage(
        "key_freed",
        "I1",
        "a key is let go only by what became of the call that holds it",
        without("guard_operation", "operations"),
        Protocol(
            name="sabotage.key_freed",
            runs=[
                Asked(input={"contract": "lookup", "reference": "shared"}),
                Asked(input={"contract": "lookup", "reference": "shared"}, run_key="another", at_s=2),
            ],
            faults=[Fault(at="dispatch.after_effect", do="pause", for_s=4)],
            events=[
                Event(
                    at_s=1,
                    do="sql",
                    statement="UPDATE fencepost.operations SET status = 'released', call = NULL, run = NULL",
                )
            ],
            expect=Expect(effects={"lookup": 1}, runs=["COMPLETED", "COMPLETED"]),
        ),
        POSTGRES,
    ),
)

_HISTORY: Final = (
    _after_end(
        "event_forged",
        "I6",
        "events go on where the history of their run ends, and say where it stands then",
        without("guard_events", "events"),
        _EVENT.format(projection="NULL"),
    ),
    _after_end(
        "head_left_behind",
        "I6",
        "a run moves to its newest event in the same change",
        without("guard_head", "events"),
        _EVENT.format(projection="hash"),
    ),
    _after_end(
        "history_edited",
        "I6",
        "what has been recorded is never edited: nobody has the privilege, and a trigger refuses it besides",
        every(granted("UPDATE", "events"), without("append_only", "events")),
        "UPDATE fencepost.events SET body = '{}' WHERE type = 'ToolResultRecorded'",
    ),
    replace(
        _after_end(
            "history_edited.granted",
            "I6",
            "what has been recorded is never edited, whoever has been given the privilege",
            granted("UPDATE", "events"),
            "UPDATE fencepost.events SET body = '{}' WHERE type = 'ToolResultRecorded'",
        ),
        layer="privilege",
        held_by=POSTGRES,
    ),
    _after_end(
        "history_deleted",
        "I6",
        "what has been recorded is never deleted: nobody has the privilege, and a trigger refuses it besides",
        every(granted("DELETE", "events"), without("append_only", "events")),
        "DELETE FROM fencepost.events WHERE type = 'ToolResultRecorded'",
    ),
    Sabotage(
        "evidence_forged",
        "I1",
        "evidence is of an attempt that was made, under the term that made it, and an event says so",
        without("guard_evidence", "evidence"),
        Protocol(
            name="sabotage.evidence_forged",
            runs=calls("lookup"),
            faults=[Fault(at="dispatch.after_effect", do="crash")],
            events=[Event(at_s=0.0055, do="sql", statement=_EVIDENCE)],
            expect=once("lookup"),
        ),
        POSTGRES,
    ),
)

# -- in depth: a guard, and what the code does without it ---------------------------------------------------


def _of_both(
    name: str, invariant: str, about: str, postgres: Off, more: Off, shows: Protocol
) -> list[Sabotage]:
    return [
        Sabotage(f"{name}.postgres", invariant, about, postgres, shows, POSTGRES, CODE),
        Sabotage(name, invariant, about, every(postgres, more), shows, BOTH),
    ]


_WAITS: Final = [Fault(at="dispatch.response_lost", do="lost")]
_UNDRIFTED: Final = every(
    code(prints, "drifted", lambda _drifted: lambda _call: None),
    code(reconcile, "drifted", lambda _drifted: lambda _call: None),
)

_DEPTH: Final = (
    *_of_both(
        "row_deleted",
        "I12",
        "what is open keeps its outbox row, and the sweep gives back one that went missing all the same",
        without("guard_outbox_end", "outbox"),
        SWEEP_OFF,
        Protocol(
            name="sabotage.row_deleted",
            runs=calls("eventual"),
            faults=_WAITS,
            events=[
                Event(at_s=1, do="sql", statement="DELETE FROM fencepost.outbox"),
                Event(at_s=20, do="sweep"),
            ],
            expect=once("eventual"),
        ),
    ),
    Sabotage(
        "row_put_off",
        "I12",
        "within a generation an outbox row only falls due earlier",
        without("guard_outbox", "outbox"),
        Protocol(
            name="sabotage.row_put_off",
            runs=calls("eventual"),
            faults=_WAITS,
            events=[
                Event(
                    at_s=1,
                    do="sql",
                    statement="UPDATE fencepost.outbox SET due_at = '9999-12-31', publish_at = '9999-12-31'",
                )
            ],
            expect=once("eventual"),
        ),
        POSTGRES,
    ),
    *_of_both(
        "request_rewritten",
        "I3",
        "what is sent again is what was sent first: its row does not change, and its fingerprint is compared",
        _PROPOSED,
        _UNDRIFTED,
        Protocol(
            name="sabotage.request_rewritten",
            runs=calls("dedupes"),
            faults=[Fault(at="dispatch.before_wire", do="lost")],
            events=[
                Event(
                    at_s=0.0055,
                    do="sql",
                    statement="UPDATE fencepost.calls SET request = replace(request, '/effects', '/undone')",
                )
            ],
            expect=once("dedupes"),
        ),
    ),
)

GUARDS: Final = (*_TABLES, *_HISTORY, *_DEPTH)
