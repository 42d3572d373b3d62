"""The one pipeline every queue runs: claim, act, record.

    messages ──▶ prepare (1 read) ──▶ leases (1 Lua call) ──▶ claims (1 transaction) ──▶ orders
    order ──▶ act (no connection, no transaction, no lock held: R8) ──▶ record (group commit) ──▶ release

A role says which claim its queue makes and how it acts on an order; everything else is here. A task claims no more
items of its list than its process has free slots and starts them at once; leftovers wait in the task for a slot.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol
from uuid import UUID

from fencepost import commands as c
from fencepost.clock import boottime, token
from fencepost.errors import FencepostError, Unreachable
from fencepost.leases import Want, lease_key
from fencepost.ledger import reads
from fencepost.ledger.outbox import publish_again
from fencepost.ledger.reads import Prepared
from fencepost.states import Queue
from fencepost_workers.worker import Worker

log = logging.getLogger(__name__)

BUSY_TRIES = 5
BUSY_PAUSE_S = 0.05  # at most; somebody is moving the row at this very instant

Message = tuple[str, UUID, int]


@dataclass(frozen=True, slots=True)
class Held:
    """What one execution holds: its term, its lease, and the local clock (CLOCK_BOOTTIME) before the claim was
    sent, from which its timeout counts (R6)."""

    term: c.Term
    lease: str
    anchor: float

    def remaining(self, timeout: timedelta) -> float:
        """Seconds left of `timeout`, by a clock that also counts while the machine is suspended."""
        return self.anchor + timeout.total_seconds() - boottime()


class Role(Protocol):
    """What distinguishes a queue's worker from the others."""

    queue: Queue

    def lease_ttl(self, prepared: Prepared) -> timedelta:
        """At least as long as the claim may last: attempt and grace."""
        ...

    def claim(self, prepared: Prepared, message: Message, term: c.Term) -> c.Claim | None:
        """The claim for one message; None to leave it to another process (its row is published again)."""
        ...

    def gather(self, orders: Sequence[c.Order]) -> None:
        """Read, in a constant number of statements, what acting on these orders needs."""
        ...

    async def act(self, order: c.Order, held: Held) -> c.Command | None:
        """Do it, and say what to record. Never raises for what the outside does."""
        ...

    def evidence(self, command: c.Command) -> c.Command | None:
        """What a fenced-out execution files instead (R9), if it holds a real answer."""
        ...

    def recorded(self) -> None:
        """Called after a record was committed (a fault point)."""
        ...


class Step:
    """The pipeline of one role in one process."""

    def __init__(self, worker: Worker, role: Role) -> None:
        self._worker = worker
        self._role = role

    def handle(self, messages: Sequence[Message]) -> int:
        """Claim and start everything a task names, as slots allow; how many were started.

        Returns once all are started or dropped, not once they are done. What a drain leaves is handed back.
        """
        started, waiting = 0, list(messages)
        while waiting:
            taken = self._worker.slots.take(len(waiting))
            if taken == 0:  # draining
                self._hand_back(waiting)
                break
            batch, waiting = waiting[:taken], waiting[taken:]
            orders: list[tuple[c.Order, Held]] = []
            try:
                orders = self._claim(batch)
            except Unreachable as error:
                log.warning("%s: %d items wait to be published again: %s", self._role.queue, len(batch), error)
            finally:
                self._worker.slots.free(taken - len(orders))
            for order, held in orders:
                self._worker.start(self._run(order, held))
            started += len(orders)
        return started

    def _hand_back(self, messages: Sequence[Message]) -> None:
        try:
            with self._worker.pool.connection() as connection:
                publish_again(connection, messages)
        except FencepostError as error:
            log.warning("could not hand back %d items, they are published again later: %s", len(messages), error)

    def _claim(self, batch: Sequence[Message]) -> list[tuple[c.Order, Held]]:
        stamped = self._worker.pulse_token()
        with self._worker.pool.connection() as connection:
            prepared = reads.prepare(connection, [(tenant, subject) for tenant, subject, _ in batch])
        known = [(m, p) for m in batch if (p := prepared.get(m[1])) is not None]
        anchor = boottime()
        claims = self._granted(known, anchor)
        answers = self._apply([claim for claim, _ in claims])
        orders, dropped = [], []
        for (_, held), answer in zip(claims, answers, strict=True):
            if isinstance(answer, c.Plan | c.Send | c.Ask | c.Offset):
                orders.append((answer, held))
            else:
                self._note(answer)
                dropped.append((held.lease, held.term.owner))
        if dropped:
            self._worker.leases.release(dropped)
        if orders:
            self._role.gather([order for order, _ in orders])
        if any(isinstance(a, c.NotAlive) for a in answers):
            self._worker.suspect(stamped)
        return orders

    def _granted(self, known: Sequence[tuple[Message, Prepared]], anchor: float) -> list[tuple[c.Claim, Held]]:
        wants = [
            Want(lease_key(m[0], m[1]), token(), p.fence, p.owner, self._role.lease_ttl(p)) for m, p in known
        ]
        fences = self._worker.leases.grant(wants) if wants else []
        claims = []
        for (message, prepared), want, fence in zip(known, wants, fences, strict=True):
            if fence is None:
                continue
            term = c.Term(want.owner, fence)
            claim = self._role.claim(prepared, message, term)
            if claim is None:
                self._worker.leases.release([(want.key, want.owner)])
            else:
                claims.append((claim, Held(term, want.key, anchor)))
        return claims

    def _apply(self, claims: list[c.Claim]) -> list[c.Answer]:
        """Apply the claims; Busy ones again, a few times: their row is being moved at this instant."""
        answers = list(self._worker.ledger.apply(claims)) if claims else []
        for _ in range(BUSY_TRIES):
            busy = [n for n, answer in enumerate(answers) if isinstance(answer, c.Busy)]
            if not busy:
                break
            time.sleep(BUSY_PAUSE_S * random.random())
            for n, answer in zip(busy, self._worker.ledger.apply([claims[n] for n in busy]), strict=True):
                answers[n] = answer
        return answers

    def _note(self, answer: c.Answer) -> None:
        if isinstance(answer, c.Broken | c.Unfamiliar):
            log.warning("%s: not claimed: %s", self._role.queue, answer)

    async def _run(self, order: c.Order, held: Held) -> None:
        """One order from act to record; its slot and lease are given back whatever happens."""
        try:
            command = await self._role.act(order, held)
            if command is not None:
                await self._record(command)
        except Unreachable as error:
            log.error("%s: an outcome could not be recorded; its takeover will settle it: %s", self._role.queue, error)
        except Exception:
            log.exception("%s: an item failed inside the worker; its takeover will settle it", self._role.queue)
        finally:
            self._worker.slots.free(1)
            self._worker.let_go(held.lease, held.term.owner)

    async def _record(self, command: c.Command) -> None:
        answer = await asyncio.wrap_future(self._worker.committer.submit(command))
        self._role.recorded()
        if isinstance(answer, c.Fenced) and (filed := self._role.evidence(command)) is not None:
            answer = await asyncio.wrap_future(self._worker.committer.submit(filed))
            log.warning("%s: fenced out; its answer is filed as evidence: %s", self._role.queue, answer)
        elif isinstance(answer, c.Fenced | c.Broken):
            log.warning("%s: not recorded: %s", self._role.queue, answer)
