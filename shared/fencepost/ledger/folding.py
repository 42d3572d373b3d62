"""Steps 3 and 4 of `apply`: fold commands over the state under the locks, number and hash the rest. Pure.

Nothing here reads or writes Postgres: a `Folding` turns what `load` read into what `write` writes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from fencepost import commands as c
from fencepost.decide import approvals, compensate, dispatch, offices, planning, reconcile, recover, repinning
from fencepost.decide.again import again
from fencepost.decide.fold import Fold, Known, Presented, Row
from fencepost.events import SCHEMA_VERSION, Event, EventType, chain
from fencepost.ledger.allowances import follow
from fencepost.ledger.load import Loaded
from fencepost.ledger.write import Writing
from fencepost.machine import next_row
from fencepost.operations import Operation
from fencepost.projection import projection_hash, seal
from fencepost.records import amended
from fencepost.recovery import Evidence
from fencepost.states import RUN_ENDS, Queue
from fencepost.subjects import Call, Run, View

log = logging.getLogger(__name__)

Decide = Callable[[Fold, Any], c.Answer]
_DECIDE: dict[type[c.Command], Decide] = {
    c.ClaimRun: planning.claim_run,
    c.RecordTurn: planning.record_turn,
    c.RecordPlanLost: planning.record_plan_lost,
    c.ClaimCall: dispatch.claim_call,
    c.RecordOutcome: dispatch.record_outcome,
    c.ClaimDoubt: reconcile.claim_doubt,
    c.RecordLookup: reconcile.record_lookup,
    c.ClaimStopped: compensate.claim_stopped,
    c.RecordCompensation: compensate.record_compensation,
    c.RequestCancel: offices.request_cancel,
    c.DecideApproval: approvals.decide_approval,
    c.DecideRepair: offices.decide_repair,
    c.Repin: repinning.repin,
    c.FileEvidence: offices.file_evidence,
    c.Sweep: offices.sweep,
    c.Restore: recover.restore,
}
_QUEUE_OF: dict[type[c.Command], Queue] = {
    c.ClaimRun: Queue.PLANNER,
    c.ClaimCall: Queue.DISPATCHER,
    c.ClaimDoubt: Queue.RECONCILER,
    c.ClaimStopped: Queue.COMPENSATOR,
}


class _Keys(dict[str, Operation]):
    """A tenant's operation keys, fetched from what was loaded as they are asked for; KeyError for others."""

    def __init__(self, loaded: dict[tuple[str, str], Operation], tenant: str) -> None:
        super().__init__()
        self._loaded = loaded
        self._tenant = tenant

    def __missing__(self, key: str) -> Operation:
        found = self[key] = self._loaded[self._tenant, key]
        return found

    def get(self, key: str, default: Any = None) -> Any:
        """As of a dict that held all of them."""
        return self[key] if key in self or (self._tenant, key) in self._loaded else default


class Folding:
    """Steps 3 and 4 of a batch: fold each command over the state the ones before it left."""

    def __init__(self, loaded: Loaded, known: Known) -> None:
        self.loaded = loaded
        self.known = known
        self.writing = Writing()
        self.writing.counters = loaded.allowances
        self.healths = {scope: held.version for scope, held in loaded.dependencies.items()}
        for key, run in loaded.runs.items():
            self.writing.versions[key] = run.seq
        for (tenant, _), calls in loaded.calls.items():
            for call in calls.values():
                self.writing.versions[tenant, call.id] = call.version

    def command(self, command: c.Command) -> c.Answer:
        """Decide one command and keep what it writes, if anything."""
        key = (command.tenant, command.run)
        run = self.loaded.runs.get(key)
        if run is None:
            return c.Gone()
        fold = self._fold(command, run)
        if (command.tenant, command.id) in self.loaded.applied:
            fold.signals = self.loaded.pinned.get((command.tenant, command.id), 0)
            return again(fold, command)
        if isinstance(command, c.Claim) and (refusal := self._judge(command, fold)) is not None:
            return refusal
        if run.written > SCHEMA_VERSION and (strange := _newer(command, run)) is not None:
            return strange
        if run.seq == 0:
            fold.create()
        try:
            answer = _DECIDE[type(command)](fold, command)
        except Exception as error:  # one command's bad data must not take its neighbours down
            log.exception("%s could not be decided", type(command).__name__)
            return c.Broken(f"{type(error).__name__}: {error}")
        self.loaded.circles.begun += fold.begun
        if isinstance(command, c.Sweep):
            self._sweep(fold, command)
        elif any(e.type != EventType.RUN_CREATED for e in fold.events):
            self._keep(fold, run)
        elif isinstance(answer, c.Fenced):
            self._keep_healths(fold)
        elif isinstance(answer, c.Moved) and isinstance(command, c.Claim):
            self._rearm(fold, command)
        return answer

    def _fold(self, command: c.Command, run: Run) -> Fold:
        key = (command.tenant, command.run)
        fold = Fold(
            command=command,
            view=View(run, dict(self.loaded.calls.get(key, {}))),
            operations=_Keys(self.loaded.operations, command.tenant),
            evidence=self.loaded.evidence,
            known=self.known,
            now=self.loaded.now,
            fence_before=run.fence,
            dependencies=dict(self.loaded.dependencies),
            standing=self.loaded.standing,
            counters=self.loaded.allowances,
            children=self.loaded.children,
            signals=self.loaded.signals.get(key, 0),
            drains=self.loaded.drains.get(key, 0),
            circles=self.loaded.circles,
            term=getattr(command, "term", None),
        )
        if isinstance(command, c.Claim):
            fold.row = self.loaded.rows.get((command.tenant, command.subject))
            fold.takeovers = fold.row.takeovers if fold.row else 0
            fold.worker = command.worker
        return fold

    def _judge(self, command: c.Claim, fold: Fold) -> c.Answer | None:
        """Whether the message still is the permission it was: this generation, this queue, due, a living
        worker.
        """
        row = fold.row
        if row is None:
            subject = fold.run if command.subject == fold.run.id else fold.view.calls.get(command.subject)
            return c.Gone() if subject is None or next_row(subject) is None else c.Busy()
        if fold.run.id in self.loaded.half_locked:
            return c.Busy()
        if (row.generation, row.queue) != (
            command.generation,
            _QUEUE_OF[type(command)],
        ) or row.due_at > fold.now:
            return c.Moved()
        if command.worker not in self.loaded.alive:
            return c.NotAlive()
        if self.loaded.epoch is not None and isinstance(command, c.ClaimRun | c.ClaimStopped | c.ClaimCall):
            return c.OnHold(self.loaded.epoch)  # what was planned in the time that was lost is not known yet
        return None

    def _keep(self, fold: Fold, before: Run) -> None:
        """Number, hash and keep the survivor's events, rows and keys; the next command sees them."""
        key = (before.tenant, before.id)
        old_calls = self.loaded.calls[key]
        view = seal(old_calls, fold.view)
        linked = chain(fold.events, before.head_hash, projection_hash(view.run))
        events = [event for event, _ in linked]
        run = amended(view.run, head_hash=events[-1].hash)
        self.writing.events += events
        self.writing.records += [record for _, record in linked]
        self.loaded.runs[key] = run
        _, by = self.writing.runs.get(key, (run, None))
        self.writing.runs[key] = (run, fold.presented.get(run.id) or by)
        for payload in (*fold.command.payloads, *fold.kept):
            self.writing.payloads[before.tenant, payload.digest] = payload.data
        if isinstance(fold.command, c.FileEvidence):
            self._file(fold.command, events)
        for call in view.calls.values():
            if old_calls.get(call.id) is not call:
                self._keep_call(fold, call, new=call.id not in old_calls)
        for k, operation in fold.operations.items():
            if self.loaded.operations[before.tenant, k] is not operation:
                self.loaded.operations[before.tenant, k] = operation
                self.writing.operations[before.tenant, k] = operation
        self._keep_healths(fold)
        for k in fold.woken:
            resource = self.loaded.operations[before.tenant, k].resource
            (self.writing.freed if resource else self.writing.woken).add((before.tenant, k))
        self._place(fold, run)
        self._kin(fold, run, before)

    def _keep_healths(self, fold: Fold) -> None:
        for scope, held in fold.dependencies.items():
            if self.loaded.dependencies.get(scope) is not held:
                # A batch is one change of a row, however many of its commands have made it.
                changed = replace(held, version=self.healths.get(scope, 0) + 1)
                self.loaded.dependencies[scope] = self.writing.dependencies[scope] = changed

    def _kin(self, fold: Fold, run: Run, before: Run) -> None:
        """What a change means for the runs above and below this one: never more than a row that is due."""
        self.writing.starting += [(run.tenant, run.id, call) for call in fold.starting]
        if run.parent_call is not None and run.status in RUN_ENDS and not run.open:
            self.writing.told.add((run.tenant, run.parent_call))
        if run.parent_call is not None and before.status in RUN_ENDS:  # its call may have been settled by it
            self.writing.told.add((run.tenant, run.parent_call))
            self.writing.changed.add((run.tenant, run.parent_call))
        for call in fold.hurried:
            row = self.loaded.rows.get((run.tenant, call))
            if row is not None and row.due_at > fold.now:
                now = amended(row, generation=row.generation + 1, due_at=fold.now)
                self.loaded.rows[run.tenant, call] = self.writing.rows[run.tenant, call] = now

    def _file(self, command: c.FileEvidence, events: Sequence[Event]) -> None:
        """Keep a piece of evidence, for the commands that follow in this batch as well."""
        said = next(e.data for e in events if e.id == command.id)
        self.writing.evidence.append((command, said))
        self.loaded.evidence[command.call] = (
            *self.loaded.evidence.get(command.call, ()),
            Evidence(**said),
        )

    def _keep_call(self, fold: Fold, call: Call, *, new: bool) -> None:
        key = (call.tenant, call.id)
        old = self.loaded.calls[call.tenant, call.run].get(call.id)
        follow(old, call, fold.events, self.loaded.allowances, self.writing.allowances)
        self.loaded.calls[call.tenant, call.run][call.id] = call
        if new or key in self.writing.new_calls:
            term = fold.term
            by = Presented("term", term.owner if term else None, term.fence if term else None)
            _, first = self.writing.new_calls.get(key, (call, by))
            self.writing.new_calls[key] = (call, first)
        else:
            _, earlier = self.writing.calls.get(key, (call, None))
            self.writing.calls[key] = (call, fold.presented.get(call.id) or earlier)
        self._place(fold, call)

    def _place(self, fold: Fold, subject: Run | Call) -> None:
        """Give the subject the outbox row its state asks for: what happens next, and when."""
        key = (subject.tenant, subject.id)
        old = self.loaded.rows.get(key)
        row = place(subject, old, fold)
        if row is None and old is not None:
            self.writing.ended.add(key)
            self.writing.rows.pop(key, None)
            del self.loaded.rows[key]
        elif row is not None and row is not old:
            self.writing.ended.discard(key)
            self.writing.rows[key] = row
            self.loaded.rows[key] = row

    def _sweep(self, fold: Fold, command: c.Sweep) -> None:
        """A missing row comes back; one that is there may have been made due early, and stays."""
        key = (command.tenant, command.subject)
        if key in self.loaded.rows:
            return
        call = fold.view.calls.get(command.subject)
        subject: Run | Call | None = fold.run if command.subject == command.run else call
        if subject is None:
            return
        self._place(fold, subject)
        row = self.loaded.rows.get(key)
        unheard = call is not None and (call.waits or call.child is not None)
        if row is not None and unheard:  # its key, or the run it waits for, may have been settled meanwhile
            self.loaded.rows[key] = self.writing.rows[key] = amended(row, due_at=fold.now)

    def _rearm(self, fold: Fold, command: c.Claim) -> None:
        """A claim that found nothing to do puts the row where the state says, unless it stands there."""
        subject = fold.run if command.subject == fold.run.id else fold.view.calls.get(command.subject)
        following = next_row(subject) if subject is not None else None
        if following is None and fold.row is not None:  # it has ended, and was only to be looked at again
            self.writing.ended.add((command.tenant, command.subject))
            del self.loaded.rows[command.tenant, command.subject]
        if following is not None and fold.again is not None:
            following = (following[0], max(following[1], fold.again))
        if following is not None and fold.row is not None and following != (fold.row.queue, fold.row.due_at):
            queue, due = following
            row = amended(fold.row, generation=fold.row.generation + 1, queue=queue, due_at=due, worker=None)
            self.writing.rows[command.tenant, command.subject] = row
            self.loaded.rows[command.tenant, command.subject] = row


def _newer(command: c.Command, run: Run) -> c.Answer | None:
    """Nothing is begun of a history that a newer release has written: what it says there is not known here.

    What has been begun is recorded all the same, and so is evidence.
    """
    what = f"a history of version {run.written}"
    if isinstance(command, c.Claim):
        return c.Unfamiliar(what)
    if isinstance(command, c.RequestCancel | c.DecideApproval | c.DecideRepair | c.Repin | c.Restore):
        return c.Denied(f"the run has {what}, written by a newer release: decide it with that one")
    return None


def place(subject: Run | Call, old: Row | None, fold: Fold) -> Row | None:
    """The row of a subject after a change; `old` itself when it may stay. Pure.

    A claimer's row carries its worker, so that a death makes it due at once, and the takeovers in a row.
    """
    following = next_row(subject)
    if following is None:
        return None
    queue, due = following
    touched = fold.presented.get(subject.id) is not None
    if old is not None and old.queue == queue and not touched:
        # A dead worker's row was made due early, and so is that of a call whose run has ended: a change
        # beside it does not put it off again.
        held = subject.owner is not None and old.fence == subject.fence
        early = old.due_at < due and (held or (isinstance(subject, Call) and subject.child is not None))
        if old.due_at == due or early:
            return old
    is_run = isinstance(subject, Run)
    version = subject.seq if isinstance(subject, Run) else subject.version
    kept = old.takeovers if old is not None and not touched else fold.takeovers
    return Row(
        tenant=subject.tenant,
        subject=subject.id,
        kind="run" if is_run else "call",
        run=subject.id if isinstance(subject, Run) else subject.run,
        generation=old.generation + 1 if old is not None else max(1, version),
        queue=queue,
        due_at=due,
        takeovers=kept,
        worker=_holder(subject, old, fold),
        fence=subject.fence,
        root=fold.run.root,
    )


def _holder(subject: Run | Call, old: Row | None, fold: Fold) -> str | None:
    """The process under whose term the subject is, so that its death makes the row due."""
    if subject.owner is None:
        return None
    mine = fold.worker is not None and fold.term is not None and subject.owner == fold.term.owner
    return fold.worker if mine else old.worker if old is not None else None
