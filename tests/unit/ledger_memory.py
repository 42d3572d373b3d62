"""An in-memory ledger for property tests: the real decisions and the real folding, without Postgres.

`Memory.apply` does what `load`, `Folding` and `write` do to one command, checks what the guards would check,
and replays every event into a second projection that must always equal the first.
"""

import json
from collections import defaultdict
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from fencepost import commands as c
from fencepost import lineage
from fencepost.clock import parse_rfc3339
from fencepost.decide.fold import Child, Known, Presented, Row
from fencepost.events import PROOFS, Event
from fencepost.ledger.concerns import Key
from fencepost.ledger.folding import Folding
from fencepost.ledger.load import Loaded
from fencepost.machine import evolve, next_row
from fencepost.operations import Operation
from fencepost.projection import projection_hash, replay, seal
from fencepost.proposals import Rejected, Validated
from fencepost.states import CALL_BORN, CALL_ENDS, CALL_HOPS, CALL_OPEN, RUN_HOPS, CallState, Queue
from fencepost.subjects import Call, Run, View

TENANT = "shop"
WORKER = "worker-1"
START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@dataclass
class Memory:
    """The rows of a few runs, and their histories."""

    known: Known
    loaded: Loaded = field(default_factory=lambda: Loaded(now=START))
    histories: dict[UUID, list[Event]] = field(default_factory=lambda: defaultdict(list))
    replayed: dict[UUID, View] = field(default_factory=dict)

    def enqueue(
        self, run: UUID, *, deadline: timedelta, on_stop: str, request: str = '{"budget": {}}'
    ) -> None:
        now = self.loaded.now
        self.loaded.runs[TENANT, run] = Run(
            tenant=TENANT,
            id=run,
            run_key=str(run),
            planner="p",
            planner_version=1,
            principal="svc:checkout",
            request=request,
            on_stop=on_stop,
            created_at=now,
            deadline=now + deadline,
            ready_at=now,
        )
        self.loaded.rows[TENANT, run] = Row(TENANT, run, "run", run, 1, Queue.PLANNER, now)
        self.loaded.alive.add(WORKER)

    def run(self, run: UUID) -> Run:
        return self.loaded.runs[TENANT, run]

    def call(self, run: UUID, call: UUID) -> Call:
        return self.loaded.calls[TENANT, run][call]

    def calls(self) -> list[Call]:
        return [call for calls in self.loaded.calls.values() for call in calls.values()]

    def apply(self, command: c.Command) -> Any:
        for key, scope, resource in _new_keys(command):
            fresh = Operation(tenant=TENANT, key=key, scope=scope, arguments_hash="", resource=resource)
            self.loaded.operations.setdefault((TENANT, key), fresh)
        named = None
        if isinstance(command, c.DecideRepair):
            named = command.call
        elif isinstance(command, c.ClaimDoubt) and command.starts:
            named = command.subject
        if named is not None:
            started = self.loaded.calls[TENANT, command.run][named].child
            below = self.loaded.runs.get((TENANT, started)) if started is not None else None
            self.loaded.children = {below.id: self.child(below)} if below is not None else {}
        runs = dict(self.loaded.runs)
        calls = dict(self.loaded.calls[TENANT, command.run])
        keys = dict(self.loaded.operations)
        folding = Folding(self.loaded, self.known)
        answer = folding.command(command)
        assert not isinstance(answer, c.Broken), answer
        self._check_moves(folding, runs, calls)
        self._check_keys(keys, folding.writing.events)
        self._wake(folding.writing.woken | folding.writing.freed)
        self._kin(folding)
        self._replay(command.run, folding.writing.events)
        self._check_rows(command.run)
        return answer

    def _wake(self, woken: set[tuple[str, str]]) -> None:
        """Waiters of settled keys and of freed resources."""
        for call in self.calls():
            key = (TENANT, call.id)
            its = {(TENANT, call.operation), (TENANT, call.resource)}
            if call.waits and call.state == CallState.INTENT_RECORDED and its & woken:
                row = self.loaded.rows[key]
                if row.due_at > self.loaded.now:
                    self.loaded.rows[key] = replace(
                        row, due_at=self.loaded.now, generation=row.generation + 1
                    )

    def _kin(self, folding: Folding) -> None:
        """What Postgres makes of the events that start runs, and whom the end of one makes due."""
        for tenant, parent_id, call_id in folding.writing.starting:
            event = next(
                e for e in folding.writing.events if e.call == call_id and e.type == "ChildRunStarted"
            )
            parent, call, said = self.run(parent_id), self.call(parent_id, call_id), event.data
            child = UUID(said["child"])
            assert (tenant, child) not in self.loaded.runs
            above = [*sorted(map(str, lineage.above(parent.request))), str(parent_id)]
            request = {"input": json.loads(call.arguments), "budget": said["budget"], "above": above}
            self.enqueue(
                child,
                deadline=parse_rfc3339(said["deadline"]) - self.loaded.now,
                on_stop=said["on_stop"],
                request=json.dumps(request),
            )
            kin: dict[str, Any] = {
                "root": parent.root or parent_id,
                "parent": parent_id,
                "parent_call": call_id,
            }
            born = replace(self.run(child), **kin, depth=parent.depth + 1, run_key=f"child:{call_id}")
            self.loaded.runs[tenant, child] = born
        for key in folding.writing.told:
            row = self.loaded.rows.get(key)
            if row is not None and row.queue == Queue.RECONCILER and row.due_at > self.loaded.now:
                self.loaded.rows[key] = replace(row, due_at=self.loaded.now, generation=row.generation + 1)

    def child(self, run: Run) -> Child:
        """A run as its parent's reconciler reads it."""
        ends = [e.data for e in self.histories[run.id] if e.type == "RunStopped"]
        return Child(run, ends[-1] if ends and run.status == "STOPPED" else {})

    # -- what the guards of Postgres would refuse --------------------------------------------------------

    def _check_moves(self, folding: Folding, runs: dict[Key, Run], calls: dict[UUID, Call]) -> None:
        for key, (run, by) in folding.writing.runs.items():
            old = runs[key]
            if (old.status, old.owner, old.fence, old.result) != (
                run.status,
                run.owner,
                run.fence,
                run.result,
            ):
                _check_hop(RUN_HOPS, by, (old.status, run.status), old, run)
        for key, (call, by) in folding.writing.calls.items():
            before = calls[key[1]]
            if _protected(before) != _protected(call):
                _check_hop(CALL_HOPS, by, (before.state, call.state), before, call)
            if before.doubt and not call.doubt:
                proof = next(e for e in folding.writing.events if e.id == call.proof)
                assert proof.type in PROOFS
                assert proof.call == call.id
            assert not (call.doubt and call.state in CALL_ENDS), "ended in doubt"
        for call, _ in folding.writing.new_calls.values():
            assert call.state in CALL_BORN
            assert not call.doubt

    def _check_keys(self, before: dict[tuple[str, str], Operation], events: list[Event]) -> None:
        for key, old in before.items():
            new = self.loaded.operations[key]
            if old.doubt and not new.doubt and not old.resource:
                assert any(e.id == new.proof and e.type in PROOFS for e in events), (
                    "doubt cleared without a proof"
                )
            if old.doubt or old.status not in {"released", "failed"}:
                assert new.call == old.call, f"a key that is {old.status} was handed on"
            assert old.first_sent_at in {None, new.first_sent_at}

    def _check_rows(self, run: UUID) -> None:
        subjects: list[Run | Call] = [self.run(run), *self.loaded.calls[TENANT, run].values()]
        for subject in subjects:
            row, following = self.loaded.rows.get((TENANT, subject.id)), next_row(subject)
            assert (row is None) == (following is None), (
                f"an open subject without its row, or the reverse: {subject}"
            )
            if row is not None and following is not None:
                assert row.queue == following[0]
        state = self.run(run)
        own = list(self.loaded.calls[TENANT, run].values())
        assert state.open == sum(call.state in CALL_OPEN for call in own)
        assert state.status != "COMPLETED" or not any(
            call.attempts == 0 and call.state in CALL_OPEN for call in own
        )

    # -- replay ------------------------------------------------------------------------------------------

    def _replay(self, run: UUID, events: list[Event]) -> None:
        view = self.replayed.get(run)
        for event in events:
            self.loaded.applied.add((event.tenant, event.id))
            self.histories[run].append(event)
            before = view.calls if view is not None else {}
            view = evolve(view, event)
            if event.projection is not None:
                sealed = self.replayed[run].calls if run in self.replayed else {}
                view = seal(sealed, view)
                assert projection_hash(view.run) == event.projection
                view = replace(view, run=replace(view.run, head_hash=event.hash))
                self.replayed[run] = view
            assert before.keys() <= view.calls.keys()
        if run in self.replayed:
            assert self.replayed[run].run == self.run(run)
            assert dict(self.replayed[run].calls) == self.loaded.calls[TENANT, run]

    def check_histories(self) -> None:
        """The whole proof, from the first event of every run."""
        for run, history in self.histories.items():
            view = replay(history)
            assert view.run == self.run(run)
            assert dict(view.calls) == self.loaded.calls[TENANT, run]
            _check_pairs(history)


def _protected(call: Call) -> tuple[object, ...]:
    return (
        call.state,
        call.owner,
        call.fence,
        call.doubt,
        call.attempts,
        call.receipt,
        call.result,
        call.proof,
    )


def _check_hop(
    hops: Any, by: Presented | None, move: tuple[str, str], old: Run | Call, new: Run | Call
) -> None:
    assert by is not None, f"{move} without a presentation"
    assert (str(move[0]), str(move[1])) in hops[by.via], f"{by.via} may not move {move}"
    assert new.fence >= old.fence, "a fence fell"
    if by.via == "term":
        assert (by.owner, by.fence) == (old.owner, old.fence)
        assert new.fence == old.fence
    elif by.via == "claim":
        assert by.fence == new.fence
        assert new.fence > old.fence
    else:
        assert new.fence > old.fence
        assert new.owner is None


ASKED, ANSWERED = {"ModelRequestStarted"}, {"ModelResponseRecorded", "ModelOutcomeUnknown", "RunCompleted"}
BEGUN = {"ToolAttemptStarted"}
ENDED = {"ToolResultRecorded", "ToolAttemptFailed", "ToolOutcomeMarkedUnknown"}


def _check_pairs(history: list[Event]) -> None:
    """Every model request and every attempt has exactly one outcome, before the next begins (I4)."""
    for begins, ends in ((ASKED, ANSWERED), (BEGUN, ENDED)):
        open_: set[UUID | None] = set()
        for event in history:
            if event.type in begins:
                assert event.call not in open_, f"{event.type} while another is open"
                open_.add(event.call)
            elif event.type == "ChildRunSettled" and begins is BEGUN:
                open_.discard(event.call)  # of an attempt, or of one that had become UNKNOWN
            elif event.type in ends:
                assert event.call in open_, f"{event.type} of nothing that was begun"
                open_.discard(event.call)
        assert not open_, "begun and never ended"


def _new_keys(command: c.Command) -> list[tuple[str, str, bool]]:
    proposals: tuple[Validated | Rejected, ...] = ()
    if isinstance(command, c.RecordTurn):
        proposals = command.proposals
    if isinstance(command, c.RecordCompensation):
        proposals = (command.proposal,)
    valid = [p for p in proposals if isinstance(p, Validated)]
    keys = [(p.operation, p.scope, False) for p in valid if p.operation is not None]
    return keys + [(p.resource, p.scope, True) for p in valid if p.resource is not None]
