"""A truthful world for property tests: downstreams with books, workers that die, freeze and wake, a person.

Whatever is done here keeps to the contracts of `ledger_app`, so that I1 must hold: at most one effect per
key, exactly one for SUCCEEDED, none for FAILED, REJECTED and CANCELLED.
"""

import hashlib
import random
from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from fencepost import Proposal, Request
from fencepost import commands as c
from fencepost.clock import NEVER
from fencepost.contracts import Dedupes
from fencepost.decide.fold import Known, Row
from fencepost.outcomes import Applied, Outcome, Refused, Unsure
from fencepost.proposals import Rejected, Validated, validate
from fencepost.recovery import Answer, LookupAnswer
from fencepost.states import RUN_ENDS, CallState, Queue
from fencepost.subjects import Call
from fencepost.tools import Tool, compensation_key
from tests.integration.ledger_app import SECOND, Gate, bench_app
from tests.unit.ledger_memory import TENANT, WORKER, Memory

APP = bench_app()
TOOLS = {name: tool for (name, _), tool in APP.registry.items()}
REQUEST = Request.post("/x", json={}).bind("http://127.0.0.1:9").to_text()
PROPOSED = (
    "wallet.debit",
    "wallet.hold",
    "wallet.note",
    "wallet.balance",
    "mail.send",
    "shelf.price",
    "wallet.nothing",
)

Fields = dict[str, Any]


@dataclass
class Downstream:
    """What really happened: effects by key and by call, and requests that are still on their way."""

    done: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    effects: Counter[str] = field(default_factory=Counter)
    of_call: Counter[UUID] = field(default_factory=Counter)
    flying: list[tuple[datetime, UUID, str]] = field(default_factory=list)
    setters: dict[str, UUID] = field(default_factory=dict)
    """By natural resource, the call that was sent last to set it."""

    def land(self, call: Call) -> bool:
        """A request of this call arrives; whether its effect exists afterwards."""
        if call.effect == "read" or call.operation is None:
            return True
        tool, key = TOOLS[call.tool], call.operation
        if call.resource is not None:
            assert self.setters[call.resource] == call.id, "an older call overwrites what a later one set"
            self.done.add(key)
            self.effects[key] = self.of_call[call.id] = 1  # the same again is the same
            return True
        dedupes = isinstance(tool.contract.repeat, Dedupes)
        if dedupes and key in self.failed:
            return False
        if not (dedupes and key in self.done):
            self.done.add(key)
            self.effects[key] += 1
            self.of_call[call.id] += 1
        return True


@dataclass
class World:
    """Drives a `Memory` at random, as a fleet under faults would."""

    seed: int
    runs: int = 3
    faults: bool = True
    tools: tuple[str, ...] = PROPOSED
    things: str = "abc"
    """What intents are about: the fewer, the more of them meet."""

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.tools_of = TOOLS
        known = Known(
            tool=lambda name, version: APP.registry.get((name, version)),
            planner=lambda _name, _version: True,
            authority=Gate(APP.authority),
        )
        self.memory = Memory(known)
        self.downstream = Downstream()
        self.frozen: list[tuple[c.Command, c.Command | None]] = []
        self.fence = 0
        self.ids = 0
        for number in range(self.runs):
            budget = self.rng.choice(['{"budget": {}}', '{"budget": {"attempts": 4, "turns": 3}}'])
            deadline = timedelta(seconds=self.rng.choice([5, 30, 300]))
            stop = self.rng.choice(["compensate", "compensate", "leave"])
            self.memory.enqueue(UUID(int=number + 1), deadline=deadline, on_stop=stop, request=budget)

    # -- making commands -------------------------------------------------------------------------------

    def base(self, run: UUID) -> Fields:
        self.ids += 1
        # Far apart: a change's events take the ids that follow its own.
        return {"id": UUID(int=self.ids << 64), "tenant": TENANT, "run": run, "rand": self.rng.random()}

    def apply(self, command: c.Command) -> Any:
        answer = self.memory.apply(command)
        if self.rng.random() < 0.1:  # the reply of the COMMIT was lost
            before = len(self.memory.histories[command.run])
            if (command.tenant, command.id) in self.memory.loaded.applied:
                self.memory.apply(command)
                assert len(self.memory.histories[command.run]) == before, "a change was applied twice"
        return answer

    def step(self) -> bool:
        """One thing that happens; False if nothing can."""
        chance = self.rng.random()
        if self.faults and chance < 0.03:
            run = self.memory.run(UUID(int=self.rng.randint(1, self.runs)))
            self.apply(c.RequestCancel(**self.base(run.id), by="ann"))
        elif self.faults and chance < 0.15 and self.frozen:
            self._wake(self.frozen.pop(self.rng.randrange(len(self.frozen))))
        elif self.faults and chance < 0.2:
            self._pulse()
        elif chance < 0.3 and self._person():
            pass
        else:
            return self._work() or self._person()
        return True

    def _pulse(self) -> None:
        """A pulse process ends: what its worker held is due at once."""
        now = self.memory.loaded.now
        for key, row in self.memory.loaded.rows.items():
            if row.worker == WORKER and row.due_at > now and self.rng.random() < 0.5:
                self.memory.loaded.rows[key] = replace(row, due_at=now)

    def _work(self) -> bool:
        due = [row for row in self.memory.loaded.rows.values() if row.due_at < NEVER]
        if not due:
            return False
        soonest = min(row.due_at for row in due)
        row = self.rng.choice([r for r in due if r.due_at <= max(soonest, self.memory.loaded.now)])
        self._at(max(self.memory.loaded.now, row.due_at) + timedelta(milliseconds=self.rng.randint(0, 300)))
        self.fence = max(self.fence, row.fence, self._floor(row)) + 1
        term = c.Term(f"owner-{self.fence}", self.fence)
        stale = self.faults and self.rng.random() < 0.05
        claim: Fields = {
            **self.base(row.run),
            "subject": row.subject,
            "generation": row.generation - stale,
            "worker": WORKER,
            "term": term,
        }
        times: Fields = {"cap": 2 * SECOND, "grace": SECOND}
        if row.queue == Queue.PLANNER:
            answer = self.apply(c.ClaimRun(**claim, **times))
        elif row.queue == Queue.COMPENSATOR:
            answer = self.apply(c.ClaimStopped(**claim, **times))
        elif row.queue == Queue.DISPATCHER:
            sent: Fields = {"child": self.base(row.run)["id"]} if self._starts(row) else {"request": REQUEST}
            answer = self.apply(c.ClaimCall(**claim, **sent))
        else:
            answer = self.apply(c.ClaimDoubt(**claim, starts=self._starts(row)))
        if stale:
            assert isinstance(answer, c.Moved | c.Gone), answer
        else:
            assert not isinstance(answer, c.Fenced | c.Busy | c.NotAlive | c.Unfamiliar), answer
        self._act(answer, term)
        return True

    def _starts(self, row: Row) -> bool:
        tool = self.tools_of.get(self.memory.call(row.run, row.subject).tool)
        return tool is not None and tool.child is not None

    def _floor(self, row: Row) -> int:
        """The fence a lease is granted above; an office may have raised it since the row was written."""
        if row.kind == "run":
            return self.memory.run(row.run).fence
        return self.memory.call(row.run, row.subject).fence

    def _at(self, now: datetime) -> None:
        self.memory.loaded.now = now
        landing = [f for f in self.downstream.flying if f[0] <= now]
        self.downstream.flying = [f for f in self.downstream.flying if f[0] > now]
        for _, run_call, run in landing:
            self.downstream.land(self.memory.call(UUID(run), run_call))

    # -- acting on orders ------------------------------------------------------------------------------

    def _act(self, order: Any, term: c.Term) -> None:
        if isinstance(order, c.Plan):
            self._hand_in(self._turn(order, term))
        elif isinstance(order, c.Offset):
            self._hand_in(self._compensation(order, term))
        elif isinstance(order, c.Send):
            outcome = self._send(order)
            base: Fields = {"call": order.call.id, "attempt": order.attempt, "outcome": outcome, "term": term}
            record = c.RecordOutcome(**self.base(order.call.run), **base)
            evidence = c.FileEvidence(**self.base(order.call.run), **base)
            self._hand_in(record, None if isinstance(outcome, Unsure) else evidence)
        elif isinstance(order, c.Ask):
            base = {"call": order.call.id, "term": term, "answer": self._look(order)}
            self._hand_in(c.RecordLookup(**self.base(order.call.run), **base))

    def _hand_in(self, record: c.Command, evidence: c.Command | None = None) -> None:
        chance = self.rng.random()
        if self.faults and chance < 0.12:
            return  # killed: nothing is ever said
        if self.faults and chance < 0.24:
            self.frozen.append((record, evidence))  # frozen: it speaks when it wakes
            return
        answer = self.apply(record)
        assert isinstance(answer, c.Done), answer

    def _wake(self, frozen: tuple[c.Command, c.Command | None]) -> None:
        record, evidence = frozen
        answer = self.apply(record)
        if isinstance(answer, c.Fenced) and evidence is not None:
            filed = self.apply(evidence)
            assert isinstance(filed, c.Done), filed

    def _turn(self, order: c.Plan, term: c.Term) -> c.Command:
        run, number = order.run, order.run.turn + 1
        base = self.base(run.id)
        if self.faults and self.rng.random() < 0.1:
            return c.RecordPlanLost(**base, term=term, code="timeout", message="no answer")
        if not self.faults or self.rng.random() < 0.3:
            done = c.Payload(hashlib.sha256(b"ok").hexdigest(), b"ok", "ok")
            return c.RecordTurn(**base, term=term, turn=number, seen=run.seq, finish=done, payloads=(done,))
        choose = self.rng.choice
        wanted = [(choose(self.tools), choose(self.things)) for _ in range(self.rng.randint(0, 3))]
        amounts = [100, 100, 100, 200]
        proposals = tuple(
            validate(
                Proposal(tool, {_named(tool): order_, "minor": self.rng.choice(amounts)}),
                tools=TOOLS,
                tenant=TENANT,
                run_id=str(run.id),
                turn=number,
                ordinal=n,
            )
            for n, (tool, order_) in enumerate(wanted)
        )
        ids = tuple(self.base(run.id)["id"] for _ in proposals)
        return c.RecordTurn(**base, term=term, turn=number, seen=run.seq, proposals=proposals, call_ids=ids)

    def _compensation(self, order: c.Offset, term: c.Term) -> c.Command:
        forward, tool = order.forward, TOOLS[order.forward.tool]
        back = tool.compensation(tool.read_arguments(forward.arguments), None, forward.receipt or "r")
        place: Fields = {"run_id": str(order.run.id), "turn": order.run.turn + 1, "ordinal": order.run.calls}
        proposal = validate(back, tools=TOOLS, tenant=TENANT, **place)
        if self.faults and self.rng.random() < 0.1:
            proposal = Rejected(5, "compensation_failed", "boom", tool.name, "x", "{}")
        if isinstance(proposal, Validated):
            key = compensation_key(forward.operation or "")
            proposal = replace(proposal, operation=key, required=False)
        made: Fields = {"forward": forward.id, "proposal": proposal, "call_id": self.base(order.run.id)["id"]}
        return c.RecordCompensation(**self.base(order.run.id), term=term, **made)

    def _send(self, order: c.Send) -> Outcome:
        call, tool, books = order.call, TOOLS[order.call.tool], self.downstream
        chance = self.rng.random() if self.faults else 0.0
        key = call.operation or ""
        if call.resource is not None:
            books.setters[call.resource] = call.id
        stores = tool.name == "wallet.hold"
        if stores and key in books.failed:
            return Refused("http_409", "failed before", retryable=False, final_answer_stored=True)
        if chance < 0.45:
            return Applied("{}", f"r-{key[:8]}") if books.land(call) else Unsure("lost", "?")
        if chance < 0.55:
            books.land(call)
            return Unsure("timeout", "the answer was lost")
        if chance < 0.65:
            return Unsure("timeout", "nothing arrived")
        if chance < 0.75:
            books.flying.append((self._lands_at(order, tool), call.id, str(call.run)))
            return Unsure("timeout", "still on its way")
        if stores and key not in books.done and chance < 0.85:
            books.failed.add(key)
            return Refused("http_409", "no", retryable=False, final_answer_stored=True)
        return Refused("http_429", "not now", retryable=self.rng.random() < 0.7)

    def _lands_at(self, order: c.Send, tool: Tool) -> datetime:
        until = order.timeout + (tool.contract.settle or timedelta(0))
        return self.memory.loaded.now + until * self.rng.random()

    def _look(self, order: c.Ask) -> LookupAnswer:
        key = order.call.operation or ""
        if self.faults and self.rng.random() < 0.2:
            return LookupAnswer(Answer.UNCLEAR, order.asked_at)
        if key in self.downstream.done:
            return LookupAnswer(Answer.FOUND, order.asked_at, f"r-{key[:8]}")
        return LookupAnswer(Answer.ABSENT, order.asked_at)

    def _person(self) -> bool:
        """Somebody looks at a call that needs repair, and says what really happened."""
        waiting = [call for call in self.memory.calls() if call.state == CallState.NEEDS_REPAIR]
        if not waiting:
            return False
        call = self.rng.choice(waiting)
        if self.rng.random() < 0.5 and call.in_flight_until is not None:
            self._at(max(self.memory.loaded.now, call.in_flight_until + 2 * SECOND))
        below = self.memory.loaded.runs.get((call.tenant, call.child)) if call.child is not None else None
        left = below is not None and bool(below.effects or below.unknowns or below.status == "COMPLETED")
        happened = left or (call.operation or "") in self.downstream.done
        decision = CallState.SUCCEEDED if happened else CallState.FAILED
        if self.faults and self.rng.random() < 0.2:
            decision = self.rng.choice([CallState.UNKNOWN, CallState.ACCEPTED_UNKNOWN])
        base: Fields = {"call": call.id, "by": "ann", "reason": "looked", "decision": decision}
        receipt = f"r-{(call.operation or '')[:8]}"
        answer = self.apply(c.DecideRepair(**self.base(call.run), **base, receipt=receipt))
        assert isinstance(answer, c.Done | c.Denied), answer
        return True

    # -- what must be true -----------------------------------------------------------------------------

    def check(self) -> None:
        """I1, and one unsettled call per key."""
        books = self.downstream
        assert all(count <= 1 for count in books.effects.values()), "two effects of one key"
        moving: Counter[str] = Counter()
        for call in self.memory.calls():
            if call.effect == "read" or call.operation is None or self.tools_of[call.tool].child is not None:
                continue
            if call.state == CallState.SUCCEEDED:
                assert books.effects[call.operation] == 1, f"{call.tool} SUCCEEDED without its effect"
            if call.state in {CallState.FAILED, CallState.REJECTED, CallState.CANCELLED}:
                assert books.of_call[call.id] == 0, f"{call.tool} is {call.state}, yet it had an effect"
            if call.state in {CallState.DISPATCHING, CallState.UNKNOWN, CallState.NEEDS_REPAIR}:
                moving[call.operation] += 1
        assert all(count <= 1 for count in moving.values()), "two unsettled calls of one key"

    def drain(self, steps: int = 500) -> None:
        """Faults cease: everything ends, within a bound (I12)."""
        self.faults = False
        for _ in range(steps):
            if all(run.status in RUN_ENDS for run in self.memory.loaded.runs.values()):
                if not self._person():
                    break
                continue
            assert self.step(), "something is open and nothing is due"
            self.check()
        else:
            raise AssertionError("the runs did not end")
        assert all(row.kind == "call" for row in self.memory.loaded.rows.values())


def _named(tool: str) -> str:
    return "sku" if tool == "shelf.price" else "order"
