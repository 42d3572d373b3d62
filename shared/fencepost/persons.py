"""What persons decide, from Python: stop a run, approve a call, settle one, have another version plan it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING
from uuid import UUID

from fencepost.canonical import sanitize
from fencepost.errors import FencepostError, UsageError
from fencepost.ledger.approvals import Waiting, waiting
from fencepost.ledger.connect import Connection
from fencepost.ledger.listings import RunInfo

if TYPE_CHECKING:
    from fencepost.office import Office, Repair, Repaired


class Persons(ABC):
    """The offices of a client; deciding takes an operator's login."""

    @property
    @abstractmethod
    def _office(self) -> Office: ...

    @abstractmethod
    def _connection(self) -> AbstractContextManager[Connection]: ...

    @abstractmethod
    def run(self, run_id: UUID | str) -> RunInfo:
        """Where a run stands now; NotFound if there is none."""

    def cancel(self, run_id: UUID | str, by: str, reason: str) -> RunInfo:
        """Stop a run, with an operator's login; where it stands then. FencepostError if it has ended already.

        Nothing unsent is sent, what is in flight settles first; its effects are offset if it asks for that.
        """
        info = self.run(run_id)
        stopped = self._office.cancel(info.tenant, info.run_id, by, reason)
        info = self.run(info.run_id)
        if not stopped:
            raise FencepostError(f"run {info.run_id} has ended {info.status}: there is nothing to cancel")
        return info

    def repin(self, run_id: UUID | str, to: int, by: str, reason: str) -> RunInfo:
        """Have version `to` of its planner plan a run that goes on, from its next turn on; where it stands.

        Its calls, its budget and its deadline stay what they are. FencepostError, saying why, if that is
        refused; an operator's login.
        """
        info = self.run(run_id)
        self._office.repin(info.tenant, info.run_id, to, by, reason, seen=info.planner_version)
        return self.run(info.run_id)

    def approvals(
        self, *, tenant: str | None = None, run: UUID | str | None = None, limit: int = 100
    ) -> list[Waiting]:
        """The calls that wait for an approval, what expires first in front; takes a reader's login."""
        run_id = None if run is None else as_id(run)
        with self._connection() as connection:
            return waiting(connection, tenant=tenant, run=run_id, limit=limit)

    def approve(self, call_id: UUID | str, by: str, reason: str, *, seen: int | None = None) -> str:
        """Approve exactly what was asked about this call; the state it is in then, and nobody need wait.

        INTENT_RECORDED: it is due now, and its claim judges everything again; AWAITING_APPROVAL: another
        person has to approve it as well, under another login. `by` is a principal of the tenant; `seen` the
        call's version this was decided on, and refuses it if the call has changed since. The same word again
        changes nothing. FencepostError, saying why, where that is refused; an operator's login.
        """
        return self._office.decide(as_id(call_id), by, reason, approve=True, seen=seen)

    def deny(self, call_id: UUID | str, by: str, reason: str, *, seen: int | None = None) -> str:
        """Deny what was asked about this call, for good: it is REJECTED, and its planner told so.

        As `approve`; one person's denial is enough, and stops a run that requires the call.
        """
        return self._office.decide(as_id(call_id), by, reason, approve=False, seen=seen)

    def repair(
        self,
        call_id: UUID | str,
        decision: str,
        by: str,
        reason: str,
        receipt: str | None = None,
        *,
        seen: int | None = None,
    ) -> str:
        """Settle a call that waits for a person; the state it is in then.

        `decision` is SUCCEEDED (with the receipt that shows it), FAILED, UNKNOWN (ask again) or
        ACCEPTED_UNKNOWN; COMPENSATE is SUCCEEDED, and has the effect offset even if its run goes on (it is
        stopped) or was to leave its effects; of an effect that a stopped run did not offset, OFFSET (its
        compensation is made once more, under its own key) or LEAVE (it stays, and is not told as unresolved
        any more); of a call that FAILED, RELEASE: its key may be used again. `seen` is the call's version it
        was made on, and refuses it if the call has changed since.
        FencepostError, saying why, if that cannot be decided now, filed evidence against it included; an
        operator's login.

        Under FENCEPOST_REPAIR_BY_TWO, or the rule of the ledger's owner, the call stays NEEDS_REPAIR: the
        decision is asked for, and CONFIRM by another person under another login decides it. OFFSET and LEAVE,
        on an effect that is known, take one person all the same.
        """
        from fencepost.office import Repair, decided

        made = Repair(as_id(call_id), decision, by, reason, receipt, seen)
        (outcome,) = self._office.repair([made])
        return decided(outcome)

    def repair_many(self, repairs: Iterable[Repair]) -> Iterator[Repaired]:
        """Decide each of these, in transactions of at most 100; an outcome for each, in order.

        A refusal is that call's outcome and costs the others nothing. `Unreachable` leaves those whose
        outcomes were yielded decided; the same again, on the versions that were seen, is safe.
        """
        return self._office.repair(repairs)


def as_id(value: UUID | str) -> UUID:
    """An id as one; UsageError for what is none."""
    try:
        return value if isinstance(value, UUID) else UUID(value)
    except ValueError:
        raise UsageError(f"{sanitize(value, 60)} is no id of a run or call") from None
