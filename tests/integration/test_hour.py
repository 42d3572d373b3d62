"""A dependency that is away for an hour, by the ledger's clock: every deadline holds, and everything ends."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from fencepost import commands as c
from fencepost.clock import NEVER
from fencepost.outcomes import Applied, Outcome, Refused, Unsure
from fencepost.recovery import Answer
from fencepost.states import CALL_ENDS
from fencepost.subjects import Call
from tests.integration.ledger_app import SECOND
from tests.integration.ledger_bench import Bench

HOUR = timedelta(hours=1)
RESERVE = SECOND
"""What is kept before a run's deadline, at the wallet."""
DEADLINE_S = 120
LOST = Unsure("timeout", "no answer")


@dataclass
class Service:
    """A downstream that dedupes and can be asked, and that nobody reaches from `away` to `back`.

    Of the requests that were sent while it was away every other one had its effect all the same.
    """

    away: datetime
    back: datetime
    effects: dict[str, list[str]] = field(default_factory=dict)
    sent: int = 0

    def take(self, call: Call, now: datetime) -> Outcome:
        self.sent += 1
        key, out = str(call.operation), self.away <= now < self.back
        if key not in self.effects and (not out or self.sent % 2):
            self.effects[key] = [f"r-{len(self.effects)}"]
        receipt = self.effects.get(key, [""])[0]
        return LOST if out else Applied(f'{{"id":"{receipt}"}}', receipt)

    def ask(self, call: Call, now: datetime) -> tuple[Answer, str | None]:
        if self.away <= now < self.back:
            return Answer.UNCLEAR, None
        found = self.effects.get(str(call.operation))
        return (Answer.FOUND, found[0]) if found else (Answer.ABSENT, None)


@dataclass
class Fleet:
    """Takes each step that is due, as workers would, and moves the clock to the next."""

    bench: Bench
    service: Service
    runs: dict[UUID, str]
    """Each run's order."""
    first_sent: dict[UUID, datetime] = field(default_factory=dict)

    def due(self) -> list[tuple[UUID, UUID, str, datetime]]:
        """Subject, run, queue and due time of every step that anybody is to take."""
        return self.bench.sql(
            "SELECT subject, run, queue, due_at FROM fencepost.outbox WHERE run = ANY(%s) AND due_at < %s"
            " ORDER BY due_at, subject",
            list(self.runs),
            NEVER,
        )

    def is_left_alone(self) -> bool:
        return bool(self.bench.sql("SELECT 1 FROM fencepost.dependencies WHERE state = 'open'"))

    def go_on(self, done: Callable[[], bool], within: timedelta = 2 * HOUR) -> None:
        """Take what is due until `done`."""
        end = self.bench.now() + within
        while not done():
            steps, now = self.due(), self.bench.now()
            assert now < end, f"not done after {within}: {steps}"
            assert steps, "nothing is due any more"
            ready = [step for step in steps if step[3] <= now]
            for subject, run, queue, _ in ready:
                self.step(subject, run, queue)
                if done():
                    return
            if not ready:
                self.bench.ahead((steps[0][3] - now).total_seconds() + 0.001)

    def step(self, subject: UUID, run: UUID, queue: str) -> None:
        if queue == "planner":
            self.plan(run)
        elif queue == "compensator":
            self.offset(run)
        else:
            self.call(subject, run, queue)

    def plan(self, run: UUID) -> None:
        claim = self.bench.claim_run(run)
        if not isinstance(self.bench.one(claim), c.Plan):
            return
        if self.bench.run(run).turn == 0:
            self.bench.one(self.bench.turn(run, claim, ("wallet.debit", {"order": self.runs[run]})))
        else:
            self.bench.one(self.bench.finish_with(self.bench.turn(run, claim)))

    def offset(self, run: UUID) -> None:
        claim = self.bench.claim_stopped(run)
        order = self.bench.one(claim)
        if isinstance(order, c.Offset):
            self.bench.one(self.bench.compensation(claim, order))

    def call(self, call: UUID, run: UUID, queue: str) -> None:
        term = self.bench.term()
        claims: Any = self.bench.claim_call if queue == "dispatcher" else self.bench.claim_doubt
        order = self.bench.one(claims(run, call, term))
        now = self.bench.now()
        if isinstance(order, c.Send):
            self.judge_send(order, now)
            self.bench.record(order, term, self.service.take(order.call, now))
        elif isinstance(order, c.Ask):
            self.bench.one(self.bench.looked_up(order, term, *self.service.ask(order.call, now)))

    def judge_send(self, send: c.Send, now: datetime) -> None:
        call, deadline = send.call, self.bench.run(send.call.run).deadline
        self.first_sent.setdefault(call.id, now)
        assert send.timeout > timedelta(0)
        if not (call.compensates or send.repeat):
            assert send.deadline <= deadline - RESERVE, "nothing is dispatched below the reserve"
        elif call.reconcile_until is not None:
            assert send.deadline <= call.reconcile_until, "a repeat or an offset keeps its own deadline"


@pytest.fixture
def fleet(bench: Bench) -> Fleet:
    now = bench.now()
    return Fleet(bench, Service(now, now + HOUR), {})


def put(fleet: Fleet, count: int, deadline_s: float = DEADLINE_S) -> list[UUID]:
    runs = [fleet.bench.start(deadline_s=deadline_s) for _ in range(count)]
    fleet.runs |= {run: fleet.bench.order() for run in runs}
    return runs


def stopped(fleet: Fleet, count: int) -> list[UUID]:
    """Runs with an effect that is to be offset as the hour begins."""
    runs = put(fleet, count)
    for run in runs:
        fleet.bench.succeed(run, call := fleet.bench.debit(run, fleet.runs[run]))
        fleet.service.effects[str(fleet.bench.call(call).operation)] = [f"before-{run}"]
        fleet.bench.cancel(run)
    return runs


def sent(fleet: Fleet, runs: list[UUID]) -> bool:
    firsts = [calls(fleet.bench, run)[:1] for run in runs]
    return all(call and call[0].id in fleet.first_sent for call in firsts)


def calls(bench: Bench, run: UUID) -> list[Call]:
    found = bench.sql("SELECT id FROM fencepost.calls WHERE run = %s ORDER BY turn, ordinal", run)
    return [bench.call(call) for (call,) in found]


@pytest.mark.parametrize("told", [True, False], ids=["told so by a Retry-After", "in silence"])
def test_an_hour_without_the_service_ends_every_run_in_time_or_leaves_it_to_a_person(
    bench: Bench, fleet: Fleet, told: bool
) -> None:
    back, offset, lost = fleet.service.back, stopped(fleet, 1), put(fleet, 2)
    (brief,) = put(fleet, 1, deadline_s=20)
    bench.ahead(17.5)  # it has less left than an attempt may take
    over = bench.run(brief).deadline
    fleet.go_on(lambda: sent(fleet, lost) and (sent(fleet, [brief]) or bench.now() >= over))
    says = Refused("http_429", "not now", retryable=True, retry_after=HOUR) if told else LOST
    while not fleet.is_left_alone():  # by what it says once, or after many failures in a row of other runs
        run = bench.start()
        bench.record(*bench.dispatch(run, bench.debit(run, bench.order())), says)
    short, late = put(fleet, 3), put(fleet, 1, deadline_s=2 * HOUR.total_seconds())
    before = fleet.service.sent
    fleet.go_on(lambda: bench.now() >= back)
    assert fleet.service.sent - before <= (0 if told else 30), "a service that is away is left alone"

    # Deadlines of runs passed meanwhile: each stopped at its own, with nothing sent.
    for run in short:
        details, (call,) = bench.run(run), calls(bench, run)
        assert details.stop_reason == "deadline_exceeded"
        if call.id in fleet.first_sent:
            assert not told, "only a probe is sent"
            continue
        assert (details.status, call.state, call.attempts) == ("STOPPED", "CANCELLED", 0)
        stopping = next(e for e in bench.events(run) if e.type == "RunStopping")
        assert timedelta(0) <= stopping.recorded_at - details.deadline < 30 * SECOND
    # What is in doubt or to be offset is bound by deadlines of its own, which wait with the service.
    for run in (*lost, *offset):
        assert bench.status(run) not in {"COMPLETED", "QUEUED", "PLANNING"}
        for call in calls(bench, run):
            if call.state == "UNKNOWN":
                assert (call.reconcile_until or NEVER) > bench.now()

    fleet.go_on(lambda: not fleet.due(), within=2 * HOUR)
    for run in (*lost, *offset, *short, *late, brief):
        left = [call for call in calls(bench, run) if call.state not in CALL_ENDS]
        assert {call.state for call in left} <= {"NEEDS_REPAIR"}, "whatever is open waits for a person"
        assert left or bench.status(run) == ("COMPLETED" if run in late else "STOPPED")
        # One that says until when leaves nobody with a question, but for a key it has forgotten by then.
        assert not told or {call.error for call in left} <= {"the downstream may no longer know the key"}
        own = [call for call in calls(bench, run) if call.state == "SUCCEEDED" and not call.compensates]
        offsets = [call for call in calls(bench, run) if call.compensates]
        assert len(offsets) == (0 if run in late else len(own)), "what had its effect after all is offset"
    for run in late:
        assert not told or fleet.first_sent[calls(bench, run)[0].id] >= back
