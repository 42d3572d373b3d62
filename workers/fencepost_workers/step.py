"""The one pipeline every queue runs: claim, act, record.

    messages ──▶ prepare (1 read) ──▶ leases (1 Lua call) ──▶ claims (1 transaction) ──▶ orders
    order ──▶ act (no connection, no transaction, no lock held: R8) ──▶ record (group commit) ──▶ release

A role says which claim its queue makes and how it acts on an order; everything else is here. A task
claims no more items of its list than its process has free slots and starts them at once; leftovers wait
in the task for a slot.

Whatever fails between a recorded claim and a recorded outcome is settled by the claim's takeover: the
row is due again at the attempt's deadline and grace, at once if this process ends. Slots and leases are
given back always.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass

import psycopg

from fencepost import commands as c
from fencepost.clock import boottime, token
from fencepost.errors import FencepostError, Unreachable
from fencepost.leases import Want, lease_key
from fencepost.ledger import reads
from fencepost.ledger.outbox import publish_again
from fencepost.ledger.reads import Prepared
from fencepost_workers.patience import Patience
from fencepost_workers.role import Held, Message, Role
from fencepost_workers.worker import Worker

log = logging.getLogger(__name__)

BUSY_TRIES = 5
BUSY_PAUSE_S = 0.05  # at most; somebody is moving the row at this very instant
CLAIM_PATIENCE_S = 3.0  # for a Postgres that restarts; longer than that, its rows are published again anyway


@dataclass(frozen=True, slots=True)
class _Wish:
    """A claim about to be made, under a lease."""

    claim: c.Claim
    term: c.Term
    lease: str


class Step:
    """The pipeline of one role in one process."""

    def __init__(self, worker: Worker, role: Role) -> None:
        self._worker = worker
        self._role = role
        self._patience = Patience()

    def handle(self, messages: Sequence[Message]) -> int:
        """Claim and start everything a task names, as slots allow; how many were started.

        Returns once all are started or dropped, not once they are done. What a drain leaves is handed
        back; what could not be claimed because Redis or Postgres was away is published again by the
        relay.
        """
        started, waiting = 0, list(messages)
        while waiting:
            taken = self._worker.slots.take(len(waiting))
            if taken == 0:  # draining
                self._hand_back(waiting)
                break
            batch, waiting = waiting[:taken], waiting[taken:]
            started += self._begin(batch)
        return started

    def _hand_back(self, messages: Sequence[Message]) -> None:
        try:
            with self._worker.pool.connection() as connection:
                publish_again(connection, messages)
        except (FencepostError, psycopg.Error) as error:
            log.warning(
                "could not hand back %d items, they are published again later: %s", len(messages), error
            )

    def _begin(self, batch: Sequence[Message]) -> int:
        """Claim a batch, whose slots are taken, and start what was granted; how many.

        A due item whose lease is held is asked for again, a few times: whoever has just recorded it is about
        to let go.
        """
        started, tries = 0, BUSY_TRIES
        while batch:
            orders: list[tuple[c.Order, Held]] = []
            held: list[Message] = []
            try:
                orders, held = self._claim(batch)
            except Unreachable as error:
                log.warning("%s: %d items are published again later: %s", self._role.queue, len(batch), error)
            except Exception:
                log.exception("%s: %d items were not begun", self._role.queue, len(batch))
            finally:
                held = held if tries else []
                self._worker.slots.free(len(batch) - len(orders) - len(held))
            if orders:
                self._worker.start([self._run(order, holding) for order, holding in orders])
            started += len(orders)
            batch, tries = held, tries - 1
            if held:
                time.sleep(BUSY_PAUSE_S * random.random())
        return started

    def _claim(self, batch: Sequence[Message]) -> tuple[list[tuple[c.Order, Held]], list[Message]]:
        """What was granted, and the items of which somebody else holds the lease."""
        stamped = self._worker.pulse.token()
        with self._worker.pool.reading() as connection:
            prepared = reads.prepare(connection, [(tenant, subject) for tenant, subject, _ in batch])
        # A message of another generation is old news; the claim would say so, but why ask.
        known = [(m, p) for m in batch if (p := prepared.get(m[1])) is not None and p.generation == m[2]]
        wishes, refused = self._granted(known, stamped)
        return (self._claimed(wishes, stamped) if wishes else []), refused

    def _claimed(self, wishes: Sequence[_Wish], stamped: str) -> list[tuple[c.Order, Held]]:
        """The orders these claims were answered with, and all that is needed to act on them."""
        kept: list[tuple[c.Order, Held]] = []
        try:
            answers = self._apply([wish.claim for wish in wishes])
            kept = self._kept(wishes, answers)
            self._judge_pulse(stamped, [answer for answer, _ in answers])
            self._gather(kept)
        except BaseException:
            kept = []
            raise
        finally:
            self._let_go(wishes, kept)
        return kept

    def _granted(
        self, known: Sequence[tuple[Message, Prepared]], stamped: str
    ) -> tuple[list[_Wish], list[Message]]:
        """The claims to make, of what this process knows and was granted; and what others hold."""
        wants = [
            Want(lease_key(m[0], m[1]), token(), p.fence, p.owner, self._role.lease_ttl(p)) for m, p in known
        ]
        fences = self._worker.leases.grant(wants) if wants else []
        wishes: list[_Wish] = []
        refused: list[Message] = []
        unknown: list[tuple[str, str]] = []
        try:
            for (message, prepared), want, fence in zip(known, wants, fences, strict=True):
                if fence is None:
                    refused.append(message)
                    continue
                term = c.Term(want.owner, fence)
                claim = self._role.claim(prepared, message, term, stamped)
                if claim is None:
                    unknown.append((want.key, want.owner))
                else:
                    wishes.append(_Wish(claim, term, want.key))
        except BaseException:
            unknown = [(want.key, want.owner) for want in wants]
            raise
        finally:
            self._worker.leases.release(unknown)
        return wishes, refused

    def _apply(self, claims: Sequence[c.Claim]) -> list[tuple[c.Answer, float]]:
        """Each claim's answer, and the clock before it was sent. Busy ones again, a few times: their row
        is being
        moved at this instant. A claim whose COMMIT's reply was lost answers again with the time that is
        left.
        """
        answers = self._applied(claims)
        for _ in range(BUSY_TRIES):
            busy = [n for n, (answer, _) in enumerate(answers) if isinstance(answer, c.Busy)]
            if not busy:
                break
            time.sleep(BUSY_PAUSE_S * random.random())
            for n, answer in zip(busy, self._applied([claims[n] for n in busy]), strict=True):
                answers[n] = answer
        return answers

    def _applied(self, claims: Sequence[c.Claim]) -> list[tuple[c.Answer, float]]:
        def once() -> list[tuple[c.Answer, float]]:
            anchor = boottime()
            return [(answer, anchor) for answer in self._worker.ledger.apply(claims)]

        return self._patience.call(once, CLAIM_PATIENCE_S, f"{len(claims)} claims wait")

    def _kept(
        self, wishes: Sequence[_Wish], answers: Sequence[tuple[c.Answer, float]]
    ) -> list[tuple[c.Order, Held]]:
        kept: list[tuple[c.Order, Held]] = []
        for wish, (answer, anchor) in zip(wishes, answers, strict=True):
            if isinstance(answer, c.Plan | c.Send | c.Ask | c.Offset):
                kept.append((answer, Held(wish.term, wish.lease, anchor)))
            elif isinstance(answer, c.Broken | c.Unfamiliar):
                log.warning("%s: not claimed: %s", self._role.queue, answer)
        return kept

    def _judge_pulse(self, stamped: str, answers: Sequence[c.Answer]) -> None:
        if any(isinstance(answer, c.NotAlive) for answer in answers):
            self._worker.pulse.suspect(stamped)
        else:
            self._worker.pulse.trusted(stamped)

    def _gather(self, kept: Sequence[tuple[c.Order, Held]]) -> None:
        if not kept:
            return
        self._patience.call(
            lambda: self._role.gather(kept), CLAIM_PATIENCE_S, f"{len(kept)} claimed items wait"
        )

    def _let_go(self, wishes: Sequence[_Wish], kept: Sequence[tuple[c.Order, Held]]) -> None:
        """Give back the leases of claims that came to nothing: now, lest the next claimer finds them held."""
        holding = {held.lease for _, held in kept}
        self._worker.leases.release([(w.lease, w.term.owner) for w in wishes if w.lease not in holding])

    async def _run(self, order: c.Order, held: Held) -> None:
        """One order from act to record; its slot and lease are given back whatever happens.

        The lease is let go before the record: nobody can claim the row before that, and whoever is told of
        it afterwards must not find the lease still held.
        """
        let_go = False
        try:
            command = await self._role.act(order, held)
            self._worker.let_go(held.lease, held.term.owner)
            let_go = True
            if command is not None:
                await self._record(command)
        except Unreachable as error:
            log.error(  # noqa: TRY400 - an outage needs no traceback
                "%s: an outcome could not be recorded; its takeover will settle it: %s",
                self._role.queue,
                error,
            )
        except (Exception, SystemExit):  # SystemExit, from the application's code, would end the loop for all
            log.exception(
                "%s: an item failed inside the worker; its takeover will settle it", self._role.queue
            )
        finally:
            self._worker.slots.free(1)
            if not let_go:
                self._worker.let_go(held.lease, held.term.owner)

    async def _record(self, command: c.Command) -> None:
        answer = await self._worker.committer.submit(command)
        self._role.recorded()
        if isinstance(answer, c.Fenced) and (filed := self._role.evidence(command)) is not None:
            answer = await self._worker.committer.submit(filed)
            log.warning("%s: fenced out; its answer is filed as evidence: %s", self._role.queue, answer)
        elif isinstance(answer, c.Fenced | c.Broken):
            log.warning("%s: not recorded: %s", self._role.queue, answer)
