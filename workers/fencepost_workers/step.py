"""The one pipeline every queue runs: claim, act, record.

    messages ──▶ prepare (1 read) ──▶ leases (1 Lua call) ──▶ claims (1 transaction) ──▶ orders
    order ──▶ act (no connection, no transaction, no lock held: R8) ──▶ record (group commit) ──▶ release

A role says which claim its queue makes and how it acts on an order; everything else is here. A task
claims no more items of its list than its process has free slots and starts them at once; leftovers wait
in the task for a slot. Items of a dependency that has all of its own slots taken stand in line in this
process, before they are claimed and without a slot (`lines.py`); a thread begins them when it is their turn.

Whatever fails between a recorded claim and a recorded outcome is settled by the claim's takeover: the
row is due again at the attempt's deadline and grace, at once if this process ends. Slots and leases are
given back always.

A subject that cannot be begun costs its neighbours a few milliseconds, not their turn: whatever fails for a
list is asked again in halves. Its failure is counted in the outbox, unless it is an outage's, and after the
last it is set aside for a person.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import psycopg

from fencepost import commands as c
from fencepost.clock import boottime, token
from fencepost.errors import FencepostError, Unreachable
from fencepost.leases import Want, lease_key
from fencepost.ledger import reads
from fencepost.ledger.outbox import Failed, Setback, fail, its_own, publish_again
from fencepost.ledger.reads import Prepared
from fencepost.outcomes import told
from fencepost.publication import apart
from fencepost.telemetry import correlation
from fencepost_workers import redaction, tracing
from fencepost_workers.lines import Lines
from fencepost_workers.parts import Parts
from fencepost_workers.patience import Patience
from fencepost_workers.role import Held, Message, Role

R = TypeVar("R")

log = logging.getLogger(__name__)

BUSY_TRIES = 5
BUSY_PAUSE_S = 0.05  # at most; somebody is moving the row at this very instant
CLAIM_PATIENCE_S = 3.0  # for a Postgres that restarts; longer than that, its rows are published again anyway


@dataclass(frozen=True, slots=True)
class _Wish:
    """A claim about to be made, under a lease."""

    message: Message
    claim: c.Claim
    term: c.Term
    lease: str
    prepared: Prepared

    def held(self, anchor: float) -> Held:
        """What is held once it is granted, by the clock before it was sent."""
        one = self.prepared
        return Held(self.term, self.lease, anchor, self.claim.scope, one.root, one.waited)


_Answered = tuple[c.Answer, float] | Exception


def _sound(
    messages: Sequence[Message], answers: Sequence[R | Exception], failed: list[Failed]
) -> list[tuple[Message, R]]:
    """The answers that are no errors. An item's own error is put down as its failure, an outage is raised."""
    sound: list[tuple[Message, R]] = []
    for message, answer in zip(messages, answers, strict=True):
        if not isinstance(answer, Exception):
            sound.append((message, answer))
        elif its_own(answer):
            failed.append(Failed(message, answer))
        else:
            raise answer
    return sound


class Step:
    """The pipeline of one role in one process."""

    def __init__(self, worker: Parts, role: Role) -> None:
        self._worker = worker
        self._role = role
        self._patience = Patience()
        self.cut_off = False
        """Whether the last claim met an outage: what is taken from the queue now would only be dropped."""
        self._republish = timedelta(seconds=worker.settings.republish_s)
        self._lines = Lines(worker.shares, self.handle, self._hand_back)
        worker.slots.tell(self._lines.close)

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
        started, tries, asked = 0, BUSY_TRIES, batch
        while batch:
            orders: list[tuple[c.Order, Held]] = []
            held: list[Message] = []
            try:
                orders, held = self._claim(batch)
                self.cut_off = False
            except Unreachable as error:
                self.cut_off = True
                log.warning("%s: %d items are published again later: %s", self._role.queue, len(batch), error)
            except (Exception, SystemExit):
                log.exception("%s: %d items were not begun", self._role.queue, len(batch))
            finally:
                held = held if tries else []
                self._worker.slots.free(len(batch) - len(orders) - len(held))
            if orders:
                self._worker.start([self._run(order, holding) for order, holding in orders])
            started += len(orders)
            batch, tries = held, tries - 1
            if held:
                self._worker.pause(BUSY_PAUSE_S * self._worker.rand())
        self._lines.done(asked)
        return started

    def _claim(self, batch: Sequence[Message]) -> tuple[list[tuple[c.Order, Held]], list[Message]]:
        """What was granted, and the items of which somebody else holds the lease."""
        stamped = self._worker.pulse.token()
        correlation.process(worker=stamped)
        failed: list[Failed] = []
        known: list[tuple[Message, Prepared]] = []
        orders: list[tuple[c.Order, Held]] = []
        refused: list[Message] = []
        try:
            known = self._admitted(self._prepared(batch, failed))
            wishes, refused = self._granted(known, stamped, failed)
            orders = self._claimed(wishes, stamped, failed) if wishes else []
            return orders, refused
        finally:
            self._leave(known, orders, refused)
            self._fail(failed)

    def _admitted(self, known: Sequence[tuple[Message, Prepared]]) -> list[tuple[Message, Prepared]]:
        """Those whose dependency has a slot for them in this process; the others stand in line."""
        scopes = [self._role.scope_of(prepared) for _, prepared in known]
        enter = self._lines.enter
        return [one for one, scope in zip(known, scopes, strict=True) if not scope or enter(scope, one[0])]

    def _leave(
        self,
        admitted: Sequence[tuple[Message, Prepared]],
        orders: Sequence[tuple[c.Order, Held]],
        refused: Sequence[Message],
    ) -> None:
        """Give back the dependencies' slots of all that was not begun; who asks again keeps its turn."""
        scopes = [(message, scope) for message, one in admitted if (scope := self._role.scope_of(one))]
        for message, scope in scopes:
            if message in refused:
                self._lines.call_again(scope, message)
        unused = Counter(scope for _, scope in scopes) - Counter(held.scope for _, held in orders)
        for scope, count in unused.items():
            self._lines.leave(scope, count)

    def _prepared(self, batch: Sequence[Message], failed: list[Failed]) -> list[tuple[Message, Prepared]]:
        def prepare(part: Sequence[Message]) -> list[Prepared | None]:
            with self._worker.pool.reading() as connection:
                found = reads.prepare(connection, [(tenant, subject) for tenant, subject, _ in part])
            return [found.get(subject) for _, subject, _ in part]

        read = _sound(batch, apart(batch, prepare, its_own), failed)
        # A message of another generation is old news; the claim would say so, but why ask.
        return [(m, p) for m, p in read if p is not None and p.generation == m[2]]

    def _claimed(
        self, wishes: Sequence[_Wish], stamped: str, failed: list[Failed]
    ) -> list[tuple[c.Order, Held]]:
        """The orders these claims were answered with, and all that is needed to act on them."""
        kept: list[tuple[c.Order, Held]] = []
        try:
            answers = self._apply([wish.claim for wish in wishes])
            taken = self._kept(wishes, answers, failed)
            self._judge_pulse(stamped, [answer[0] for answer in answers if isinstance(answer, tuple)])
            kept = self._gathered(taken)
        finally:
            self._let_go(wishes, kept)
        return kept

    def _granted(
        self, known: Sequence[tuple[Message, Prepared]], stamped: str, failed: list[Failed]
    ) -> tuple[list[_Wish], list[Message]]:
        """The claims to make, of what this process knows and was granted; and what others hold."""
        wanted: list[tuple[Message, Prepared, Want]] = []
        for message, prepared in known:
            try:
                ttl = self._role.lease_ttl(prepared)
                want = Want(lease_key(*message[:2]), token(), prepared.fence, prepared.owner, ttl)
                wanted.append((message, prepared, want))
            except Exception as error:  # noqa: BLE001 - counted below
                failed.append(Failed(message, error))
        fences = self._worker.leases.grant([want for _, _, want in wanted]) if wanted else []
        wishes: list[_Wish] = []
        refused: list[Message] = []
        try:
            for (message, prepared, want), fence in zip(wanted, fences, strict=True):
                if fence is None:
                    refused.append(message)
                    continue
                term = c.Term(want.owner, fence)
                try:
                    claim = self._role.claim(prepared, message, term, stamped)
                except Exception as error:  # noqa: BLE001 - counted below
                    failed.append(Failed(message, error))
                except SystemExit as error:  # the application's: it would end a thread that serves everybody
                    failed.append(Failed(message, told(error)))
                else:
                    if claim is not None:
                        wishes.append(_Wish(message, claim, term, want.key, prepared))
        except BaseException:
            wishes = []
            raise
        finally:
            holding = {wish.lease for wish in wishes}
            unused = [(want.key, want.owner) for _, _, want in wanted if want.key not in holding]
            self._worker.leases.release(unused)
        return wishes, refused

    def _apply(self, claims: Sequence[c.Claim]) -> list[_Answered]:
        """Each claim's answer, and the clock before it was sent; or the error of that claim alone.

        Busy ones again, a few times: their row is being moved at this instant. A claim whose COMMIT's reply
        was lost answers again with the time that is left.
        """
        answers = self._applied(claims)
        for _ in range(BUSY_TRIES):
            busy = [n for n, a in enumerate(answers) if isinstance(a, tuple) and isinstance(a[0], c.Busy)]
            if not busy:
                break
            self._worker.pause(BUSY_PAUSE_S * self._worker.rand())
            for n, answer in zip(busy, self._applied([claims[n] for n in busy]), strict=True):
                answers[n] = answer
        return answers

    def _applied(self, claims: Sequence[c.Claim]) -> list[_Answered]:
        def once(part: Sequence[c.Claim]) -> list[tuple[c.Answer, float]]:
            anchor = boottime()
            return [(answer, anchor) for answer in self._worker.ledger.apply(part)]

        def patiently(part: Sequence[c.Claim]) -> list[tuple[c.Answer, float]]:
            return self._patience.call(lambda: once(part), CLAIM_PATIENCE_S, f"{len(part)} claims wait")

        return apart(claims, patiently, its_own)

    def _kept(
        self, wishes: Sequence[_Wish], answers: Sequence[_Answered], failed: list[Failed]
    ) -> list[tuple[c.Order, Held]]:
        """Raises the outage if there was one for all: then nothing is known of any."""
        outages = [a for a in answers if isinstance(a, Exception) and not its_own(a)]
        if len(outages) == len(answers):
            raise outages[0]
        kept: list[tuple[c.Order, Held]] = []
        for wish, answered in zip(wishes, answers, strict=True):
            if isinstance(answered, Exception):
                failed.append(Failed(wish.message, answered))
                continue
            answer, anchor = answered
            if isinstance(answer, c.Order):
                kept.append((answer, wish.held(anchor)))
            elif isinstance(answer, c.Full):
                self._lines.full(wish.claim.scope, wish.message, answer)
            elif isinstance(answer, c.Broken):
                failed.append(Failed(wish.message, f"its claim was refused: {answer.why}"))
            elif isinstance(answer, c.Unfamiliar):
                log.warning("%s: not claimed: %s", self._role.queue, answer)
        return kept

    def _judge_pulse(self, stamped: str, answers: Sequence[c.Answer]) -> None:
        if any(isinstance(answer, c.NotAlive) for answer in answers):
            self._worker.pulse.suspect(stamped)
        else:
            self._worker.pulse.trusted(stamped)

    def _gathered(self, taken: Sequence[tuple[c.Order, Held]]) -> list[tuple[c.Order, Held]]:
        """Those of which all was read that acting on them needs; the others their takeover settles."""

        def gather(part: Sequence[tuple[c.Order, Held]]) -> list[None]:
            waiting = f"{len(part)} claimed items wait"
            self._patience.call(lambda: self._role.gather(part), CLAIM_PATIENCE_S, waiting)
            return [None] * len(part)

        kept = []
        for one, error in zip(taken, apart(taken, gather, its_own), strict=True):
            if error is None:
                kept.append(one)
            elif its_own(error):
                why = "%s: a claimed item could not be read; its takeover will settle it"
                log.error(why, self._role.queue, exc_info=error)
            else:
                raise error
        return kept

    def _fail(self, failed: Sequence[Failed]) -> None:
        """Count the failures that are their rows' own; whatever is not, is published again and no more."""
        counted = [one for one in failed if isinstance(one.error, str) or its_own(one.error)]
        own = [Failed(one.message, redaction.said(one.error)) for one in counted]
        found: list[Setback] = []
        try:
            if own:
                with self._worker.pool.connection() as connection:
                    found = fail(connection, own, self._republish)
        except (FencepostError, psycopg.Error) as outage:
            log.warning("%s: %d failures were not counted: %s", self._role.queue, len(own), outage)
        setbacks = {(one.tenant, one.subject): one for one in found}
        for message, error in failed:
            one = setbacks.get(message[:2])
            with correlation.bound(**(one.of if one is not None else {})):
                trace = error if isinstance(error, Exception) else None
                log.warning(
                    "%s: %s/%s could not be begun: %s", self._role.queue, *message[:2], error, exc_info=trace
                )
                if one is not None and one.dead:
                    log.error("%s/%s is set aside after %d failures", *message[:2], one.failures)

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
            with tracing.working(self._role, order, held) as item:
                command = item.ended = await self._role.act(order, held)
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
            if held.scope:
                self._lines.leave(held.scope, ended=True)
            if not let_go:
                self._worker.let_go(held.lease, held.term.owner)

    async def _record(self, command: c.Command) -> None:
        answer = await self._worker.committer.submit(command)
        log.debug("%s: %s is recorded", self._role.queue, type(command).__name__)
        self._role.recorded()
        if isinstance(answer, c.Fenced) and (filed := self._role.evidence(command)) is not None:
            answer = await self._worker.committer.submit(filed)
            log.warning("%s: fenced out; its answer is filed as evidence: %s", self._role.queue, answer)
        elif isinstance(answer, c.Fenced | c.Broken):
            log.warning("%s: not recorded: %s", self._role.queue, answer)
