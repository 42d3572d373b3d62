"""A person's decisions on the ledger: the write path of `cancel`, `repair` and approvals."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from typing import Final
from uuid import UUID

import psycopg

from fencepost import commands
from fencepost.app import App
from fencepost.authority import AuthorizationDecision, AuthorizationRequest
from fencepost.authority.decisions import UNKNOWN_POLICY, Approver
from fencepost.authority.inforce import Engines
from fencepost.canonical import sanitize
from fencepost.clock import uuid7
from fencepost.decide.fold import Known
from fencepost.errors import FencepostError, NotFound, UsageError
from fencepost.ledger.apply import Ledger
from fencepost.ledger.connect import Connection, Pool
from fencepost.ledger.explain import explained
from fencepost.names import named

BATCH: Final = 100
"""Decisions per transaction at most."""

DECISIONS: Final = (
    "SUCCEEDED",
    "FAILED",
    "UNKNOWN",
    "ACCEPTED_UNKNOWN",
    commands.OFFSET,
    commands.LEAVE,
    commands.COMPENSATE,
    commands.CONFIRM,
    commands.RELEASE,
)

_CALLS: Final = "SELECT id, tenant, run, state FROM fencepost.calls WHERE id = ANY(%s)"

_SHARED: Final = """
SELECT c.id, min(k.run::text) FROM fencepost.calls c
JOIN fencepost.calls k ON k.operation = c.operation AND k.tenant IS NOT DISTINCT FROM c.tenant
WHERE c.id = ANY(%s) AND k.waits AND k.state = 'INTENT_RECORDED' AND k.run <> c.run GROUP BY c.id
"""


@dataclass(frozen=True, slots=True)
class Repair:
    """One decision on one call: what `Client.repair` takes. `seen` is the version it was made on."""

    call: UUID
    decision: str
    by: str
    reason: str
    receipt: str | None = None
    seen: int | None = None

    def __post_init__(self) -> None:
        if self.decision not in DECISIONS:
            raise UsageError(f"a repair decides {', '.join(DECISIONS)}, not {sanitize(self.decision, 40)}")


@dataclass(frozen=True, slots=True)
class Repaired:
    """What became of one decision: the call's state now, or in `why` the sentence that refused it."""

    call: UUID
    state: str | None
    why: str | None = None


class Nobody:
    """The authority of an office that was told of no application: it lets nobody do or approve anything."""

    def decide(self, request: AuthorizationRequest) -> AuthorizationDecision:
        """A denial."""
        return self._no(request)

    def may_approve(
        self,
        request: AuthorizationRequest,
        approver: Approver,  # noqa: ARG002 - the port's
    ) -> AuthorizationDecision:
        """A denial."""
        return self._no(request)

    @staticmethod
    def _no(request: AuthorizationRequest) -> AuthorizationDecision:
        where = sanitize(request.tenant, 80)
        why = f"no policy is published for tenant {where}, so the application says who may"
        how = "name it: --app, FENCEPOST_APP or Client(app=...)"
        return AuthorizationDecision(False, f"{why}; {how}", UNKNOWN_POLICY, (), "policy_error")


class Office:
    """Decides with an operator's login. Who may approve, the policy in force says, or else `app`.

    `by_two`, or the ledger's own rule, has it only ask for decisions on calls that need repair: another login
    confirms them, within `confirm_within`.
    """

    def __init__(
        self,
        pool: Pool,
        dsn: str,
        ring: Callable[[], object],
        *,
        by_two: bool = False,
        confirm_within: timedelta = timedelta(hours=1),
        app: App | None = None,
    ) -> None:
        self._pool = pool
        self._by_two = by_two
        self._confirm_within = confirm_within
        self._dsn = dsn
        known = Known(
            tool=lambda name, version: app.registry.get((name, version)) if app is not None else None,
            planner=lambda _name, _version: False,
            authority=app.authority if app is not None else Nobody(),
            engines=Engines() if app is None or app.governed else None,
        )
        self._ledger = Ledger(pool, known, ring=ring)
        self._login: str | None = None

    def apply(self, batch: Sequence[commands.Command]) -> list[commands.Answer]:
        """The ledger's answers, in order; errors of Postgres as errors of ours."""
        try:
            return self._ledger.apply(batch)
        except psycopg.Error as error:
            raise explained(error, self._dsn) from error

    def cancel(self, tenant: str, run: UUID, by: str, reason: str) -> bool:
        """Stop the run; False if it had ended already. FencepostError if that is refused."""
        by, reason = named("by", by), words("reason", reason)
        command = commands.RequestCancel(id=uuid7(), tenant=tenant, run=run, by=by, reason=reason)
        (answer,) = self.apply([command])
        if isinstance(answer, commands.Denied | commands.Broken):
            raise FencepostError(answer.why)
        return not isinstance(answer, commands.Gone)

    def repin(self, tenant: str, run: UUID, to: int, by: str, reason: str, *, seen: int) -> str:
        """Have another version of its planner plan a run; its status then. FencepostError: refused."""
        by, reason = named("by", by), words("reason", reason)
        try:
            with self._pool.reading() as connection:
                login, _ = _login(connection)
        except psycopg.Error as error:
            raise explained(error, self._dsn) from error
        command = commands.Repin(
            id=uuid7(), tenant=tenant, run=run, to=to, by=by, login=login, reason=reason, seen=seen
        )
        (answer,) = self.apply([command])
        if isinstance(answer, commands.Done):
            return answer.state
        why = answer.why if isinstance(answer, commands.Denied | commands.Broken) else "it has ended"
        raise FencepostError(f"run {run}: {why}")

    def decide(self, call: UUID, by: str, reason: str, *, approve: bool, seen: int | None = None) -> str:
        """Approve what was asked about a call, or deny it; the state it is in then.

        NotFound for no such call, FencepostError, saying why, where this person cannot decide it now.
        """
        by, reason = named("by", by), words("reason", reason)
        try:
            with self._pool.reading() as connection:
                login, _ = _login(connection)
                found = connection.execute(_CALLS, [[call]]).fetchone()
        except psycopg.Error as error:
            raise explained(error, self._dsn) from error
        if found is None:
            raise NotFound(f"there is no call {call}")
        command = commands.DecideApproval(
            id=uuid7(),
            tenant=found[1],
            run=found[2],
            call=call,
            approve=approve,
            by=by,
            login=login,
            reason=reason,
            seen=seen,
        )
        (answer,) = self.apply([command])
        if isinstance(answer, commands.Done):
            return answer.state
        why = answer.why if isinstance(answer, commands.Denied | commands.Broken) else f"it is {found[3]}"
        raise FencepostError(f"call {call}: {why}")

    def repair(self, repairs: Iterable[Repair]) -> Iterator[Repaired]:
        """Decide each, by compare-and-set; an outcome for each, in order.

        In transactions of at most `BATCH`: a refusal is that call's outcome and costs the others nothing. An
        error (`Unreachable`) leaves whole batches decided, those whose outcomes were yielded; of the batch it
        hit nothing is known, and deciding the same again under the version that was seen is safe.
        """
        rest = iter(repairs)
        while batch := list(islice(rest, BATCH)):
            yield from self._repair(batch)

    def _repair(self, batch: Sequence[Repair]) -> Iterator[Repaired]:
        wanted = [one.call for one in batch]
        try:
            with self._pool.reading() as connection:
                self._login, ruled = _login(connection)
                found = {row[0]: row[1:] for row in connection.execute(_CALLS, [wanted])}
                offset = [one.call for one in batch if one.decision == commands.COMPENSATE]
                shared = dict(connection.execute(_SHARED, [offset]).fetchall()) if offset else {}
        except psycopg.Error as error:
            raise explained(error, self._dsn) from error
        within = self._confirm_within if self._by_two or ruled else None
        refused: dict[UUID | None, str] = {
            one.call: f"run {shared[one.call]} waits to take its result, and what is shared is not offset: "
            "cancel that run first, or say only that it happened"
            for one in batch
            if one.decision == commands.COMPENSATE and one.call in shared
        }
        known = [(one, *found[one.call]) for one in batch if one.call in found and _asks(one) not in refused]
        made = [self._command(one, tenant, run, within) for one, tenant, run, _ in known]
        answers = iter(self.apply(made))
        for one in batch:  # by place: the same call may be among them twice
            if (why := refused.get(_asks(one))) is not None:
                yield Repaired(one.call, None, why)
                continue
            there = one.call in found
            yield _outcome(one, next(answers) if there else None, found[one.call][2] if there else None)

    def _command(
        self, one: Repair, tenant: str, run: UUID, within: timedelta | None
    ) -> commands.DecideRepair:
        return commands.DecideRepair(
            id=uuid7(),
            tenant=tenant,
            run=run,
            call=one.call,
            decision=one.decision,
            by=named("by", one.by),
            reason=words("reason", one.reason),
            receipt=one.receipt,
            seen=one.seen,
            login=self._login,
            confirm_within=within,
        )


def _asks(one: Repair) -> UUID | None:
    """The call whose effect it has offset; None for any other decision."""
    return one.call if one.decision == commands.COMPENSATE else None


def _login(connection: Connection) -> tuple[str, bool]:
    """Who is logged in, and whether the ledger's owner has laid down that a decision takes two."""
    row = connection.execute(
        "SELECT session_user, EXISTS (SELECT 1 FROM fencepost.rules WHERE name = 'repair_by_two')"
    ).fetchone()
    assert row is not None
    return str(row[0]), bool(row[1])


def _outcome(one: Repair, answer: commands.Answer | None, state: str | None) -> Repaired:
    if answer is None or isinstance(answer, commands.Gone):
        return Repaired(one.call, None, f"there is no call {one.call}")
    if isinstance(answer, commands.Done):
        return Repaired(one.call, answer.state)
    why = answer.why if isinstance(answer, commands.Denied | commands.Broken) else f"the call is {state}"
    return Repaired(one.call, None, why)


def decided(outcome: Repaired) -> str:
    """The state a single decision led to. FencepostError, saying why, if it was refused."""
    if outcome.state is None:
        missing = outcome.why == f"there is no call {outcome.call}"
        raise (NotFound if missing else FencepostError)(outcome.why or "it was refused")
    return outcome.state


def words(name: str, text: str) -> str:
    """What a person says, as it is kept: on one line, lest it forge lines of ours. UsageError for nothing."""
    if not text.strip():
        raise UsageError(f"say {name}: it goes into the history")
    return sanitize(" ".join(text.split()), 1000)
