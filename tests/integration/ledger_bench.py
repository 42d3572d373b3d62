"""A bench for ledger tests: real Postgres, the real `apply`, an app with HTTP tools, and no workers."""

import hashlib
import itertools
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any
from uuid import UUID

import psycopg

from fencepost import App, Proposal, Request
from fencepost import commands as c
from fencepost.clock import token, uuid7
from fencepost.decide.fold import Known, Row
from fencepost.events import Event
from fencepost.ledger import rows, tokens
from fencepost.ledger.apply import Ledger
from fencepost.ledger.connect import Pool, connect
from fencepost.operations import Operation
from fencepost.outcomes import Applied, Outcome
from fencepost.proposals import Rejected, Validated, validate
from fencepost.recovery import Answer, LookupAnswer
from fencepost.subjects import Call, Run
from fencepost.tools import compensation_key
from fencepost_ops.database import LedgerDatabase
from tests.databases import Kept
from tests.integration.ledger_app import SECOND, Gate, bench_app

TENANT = "shop"
WORKER_TTL = timedelta(hours=1)
"""The bench stamps its worker once: a slow machine must not make it look dead."""
Fields = dict[str, Any]


def kept(text: str) -> c.Payload:
    data = text.encode()
    return c.Payload(hashlib.sha256(data).hexdigest(), data, text[:100])


@dataclass
class Bench:
    """Drives `apply` the way workers do, with explicit terms; fences count up so that every claim is new."""

    database: LedgerDatabase
    app: App
    ledger: Ledger
    worker: str
    owner: psycopg.Connection[Any]
    gate: Gate
    known: Known
    # In steps, because an office raises a fence by one: a lease is granted above what Postgres holds.
    fences: Iterator[int] = field(default_factory=lambda: itertools.count(10, 10))
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    started: list[UUID] = field(default_factory=list)
    pools: list[Pool] = field(default_factory=list)

    def term(self) -> c.Term:
        return c.Term(token(), next(self.fences))

    @cached_property
    def attacker(self) -> Kept:
        return Kept(lambda: psycopg.connect(self.database.owner))

    @cached_property
    def verifier(self) -> Kept:
        return Kept(lambda: connect(self.database.dsns["reader"], "verify"))

    @cached_property
    def producer(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self.database.dsns["producer"], autocommit=True)

    @cached_property
    def token(self) -> str:
        """One of the tenant's, as the HTTP interface's sessions present it."""
        with psycopg.connect(self.database.dsns["operator"], autocommit=True) as connection:
            _, text = tokens.make(connection, TENANT, ["svc:x"], by="tester")
        return str(tokens.presented(text))

    @cached_property
    def operator(self) -> Ledger:
        return self.ledger_as("operator")

    def ledger_as(self, role: str, **changes: Any) -> Ledger:
        """A ledger of another process: another login, other knowledge."""
        token = self.token if role == "api" else ""
        pool = Pool(self.database.dsns[role], f"bench-{role}", 8, presents=lambda: token)
        self.pools.append(pool)
        return Ledger(pool, replace(self.known, **changes), worker_ttl=WORKER_TTL)

    def close(self) -> None:
        for pool in self.pools:
            pool.close()
        self.attacker.close()
        self.verifier.close()
        if "producer" in self.__dict__:
            self.producer.close()

    # -- enqueueing and reading --------------------------------------------------------------------------

    def enqueue(
        self,
        key: str = "o-1",
        *,
        deadline_s: float = 60,
        on_stop: str = "compensate",
        budget: str = "{}",
    ) -> UUID:
        row = self.producer.execute(
            "SELECT run FROM fencepost.enqueue_run(%s, %s, 'p', 1, 'svc:checkout', '{}',"
            " make_interval(secs => %s), %s::jsonb, %s)",
            [TENANT, key, deadline_s, budget, on_stop],
        ).fetchone()
        assert row is not None
        self.started.append(row[0])
        return UUID(str(row[0]))

    def start(self, **how: Any) -> UUID:
        """A run under a key of its own."""
        return self.enqueue(f"run-{next(self.numbers)}", **how)

    def order(self) -> str:
        """An order number nobody has used."""
        return f"order-{next(self.numbers)}"

    def sql(self, statement: str, *args: Any) -> list[Any]:
        cursor = self.owner.execute(statement, args)
        return cursor.fetchall() if cursor.description else []

    def generation(self, subject: UUID) -> int:
        row = self.sql("SELECT generation FROM fencepost.outbox WHERE subject = %s", subject)
        return int(row[0][0]) if row else 0

    def row(self, subject: UUID) -> Row | None:
        columns = rows.select("outbox", rows.ROW_COLUMNS)
        found = self.sql(f"SELECT {columns} FROM fencepost.outbox WHERE subject = %s", subject)
        return Row(*found[0]) if found else None

    def run(self, run: UUID) -> Run:
        columns = rows.select("runs", rows.RUN_COLUMNS)
        return Run(*self.sql(f"SELECT {columns} FROM fencepost.runs WHERE id = %s", run)[0])

    def call(self, call: UUID) -> Call:
        columns = rows.select("calls", rows.CALL_COLUMNS)
        return Call(*self.sql(f"SELECT {columns} FROM fencepost.calls WHERE id = %s", call)[0])

    def operation(self, call: UUID) -> Operation:
        columns = rows.select("operations", rows.OPERATION_COLUMNS)
        key = self.call(call).operation
        return Operation(*self.sql(f"SELECT {columns} FROM fencepost.operations WHERE key = %s", key)[0])

    def events(self, run: UUID) -> list[Event]:
        columns = rows.select("events", rows.EVENT_COLUMNS)
        found = self.sql(f"SELECT {columns} FROM fencepost.events WHERE run = %s ORDER BY seq", run)
        return [Event(*values) for values in found]

    def kinds(self, run: UUID, call: UUID | None = None) -> list[str]:
        return [e.type for e in self.events(run) if call is None or e.call == call]

    def state(self, call: UUID) -> str:
        return str(self.sql("SELECT state FROM fencepost.calls WHERE id = %s", call)[0][0])

    def status(self, run: UUID) -> str:
        return str(self.sql("SELECT status FROM fencepost.runs WHERE id = %s", run)[0][0])

    def now(self) -> datetime:
        at: datetime = self.sql("SELECT fencepost.now()")[0][0]
        return at

    def ahead(self, seconds: float) -> None:
        """Move the ledger's clock; the worker's pulse keeps up, as a living one does."""
        self.sql("UPDATE fencepost.clock SET ahead = ahead + make_interval(secs => %s)", seconds)
        self.sql("UPDATE fencepost.workers SET last_seen = fencepost.now()")

    # -- commands ----------------------------------------------------------------------------------------

    def one(self, *commands: c.Command) -> Any:
        (answer,) = self.ledger.apply(commands)
        return answer

    def base(self, run: UUID) -> dict[str, Any]:
        return {"id": uuid7(), "tenant": TENANT, "run": run, "rand": random.random()}

    def _claim(self, run: UUID, subject: UUID, term: c.Term, generation: int | None) -> dict[str, Any]:
        message = self.generation(subject) if generation is None else generation
        return {
            **self.base(run),
            "subject": subject,
            "generation": message,
            "worker": self.worker,
            "term": term,
        }

    def claim_run(self, run: UUID, term: c.Term | None = None, generation: int | None = None) -> c.ClaimRun:
        claim = self._claim(run, run, term or self.term(), generation)
        return c.ClaimRun(**claim, cap=2 * SECOND, grace=SECOND)

    def claim_stopped(self, run: UUID, term: c.Term | None = None) -> c.ClaimStopped:
        claim = self._claim(run, run, term or self.term(), None)
        return c.ClaimStopped(**claim, cap=2 * SECOND, grace=SECOND)

    def claim_call(
        self, run: UUID, call: UUID, term: c.Term | None = None, generation: int | None = None
    ) -> c.ClaimCall:
        request = Request.post("/debits", json={}).bind("http://127.0.0.1:9").to_text()
        return c.ClaimCall(**self._claim(run, call, term or self.term(), generation), request=request)

    def claim_doubt(self, run: UUID, call: UUID, term: c.Term | None = None) -> c.ClaimDoubt:
        return c.ClaimDoubt(**self._claim(run, call, term or self.term(), None))

    def validated(self, run: UUID, turn: int, ordinal: int, tool: str, **args: Any) -> Validated | Rejected:
        newest = {name: t for (name, _), t in sorted(self.app.registry.items())}
        place: Fields = {"turn": turn, "ordinal": ordinal}
        return validate(Proposal(tool, args), tools=newest, tenant=TENANT, run_id=str(run), **place)

    def turn(self, run: UUID, claim: c.ClaimRun, *proposals: tuple[str, dict[str, Any]]) -> c.RecordTurn:
        number = self.run(run).turn + 1
        checked = [self.validated(run, number, n, tool, **args) for n, (tool, args) in enumerate(proposals)]
        ids = tuple(uuid7() for _ in proposals)
        seen = self.run(run).seq
        answer: Fields = {"term": claim.term, "turn": number, "seen": seen, "proposals": tuple(checked)}
        return c.RecordTurn(**self.base(run), **answer, call_ids=ids)

    def plan(self, run: UUID, *proposals: tuple[str, dict[str, Any]]) -> list[UUID]:
        """Claim the run and record a turn with these proposals; the calls' ids."""
        claim = self.claim_run(run)
        order = self.one(claim)
        assert isinstance(order, c.Plan), order
        record = self.turn(run, claim, *proposals)
        answer = self.one(record)
        assert isinstance(answer, c.Done), answer
        return list(record.call_ids)

    def debit(self, run: UUID, order: str, tool: str = "wallet.debit") -> UUID:
        """One turn with one call."""
        return self.plan(run, (tool, {"order": order}))[0]

    def finish_with(self, turn: c.RecordTurn) -> c.RecordTurn:
        """The same answer of the planner, claiming that the run is done."""
        done = kept('"ok"')
        return replace(turn, finish=done, payloads=(done,))

    def finish(self, run: UUID) -> c.Answer:
        claim = self.claim_run(run)
        order = self.one(claim)
        assert isinstance(order, c.Plan), order
        answer: c.Answer = self.one(self.finish_with(self.turn(run, claim)))
        return answer

    def dispatch(self, run: UUID, call: UUID) -> tuple[c.Send, c.Term]:
        term = self.term()
        send = self.one(self.claim_call(run, call, term))
        assert isinstance(send, c.Send), send
        return send, term

    def reconcile(self, run: UUID, call: UUID) -> tuple[Any, c.Term]:
        term = self.term()
        return self.one(self.claim_doubt(run, call, term)), term

    def outcome(self, send: c.Send, term: c.Term, outcome: Outcome) -> c.RecordOutcome:
        result = kept(outcome.result_json_text) if isinstance(outcome, Applied) else None
        base: Fields = self.base(send.call.run) | {"rand": 0.0, "payloads": (result,) if result else ()}
        made: Fields = {"call": send.call.id, "attempt": send.attempt, "outcome": outcome, "result": result}
        return c.RecordOutcome(**base, term=term, **made)

    def record(self, send: c.Send, term: c.Term, outcome: Outcome) -> Any:
        return self.one(self.outcome(send, term, outcome))

    def succeed(self, run: UUID, call: UUID, receipt: str = "r-1") -> None:
        send, term = self.dispatch(run, call)
        assert self.record(send, term, Applied(f'{{"id":"{receipt}"}}', receipt)) == c.Done("SUCCEEDED")

    def succeed_by_reuse(self, run: UUID, order: str) -> UUID:
        call = self.debit(run, order)
        assert self.one(self.claim_call(run, call)) == c.Done("SUCCEEDED")
        assert self.call(call).reused
        return call

    def evidence(self, send: c.Send, term: c.Term, outcome: Outcome) -> c.FileEvidence:
        seen = self.outcome(send, term, outcome)
        base: Fields = self.base(seen.run) | {"payloads": seen.payloads}
        made: Fields = {"call": seen.call, "attempt": seen.attempt, "outcome": outcome, "result": seen.result}
        return c.FileEvidence(**base, term=term, **made)

    def looked_up(
        self, ask: c.Ask, term: c.Term, answer: Answer, receipt: str | None = None
    ) -> c.RecordLookup:
        result = kept(f'{{"id":"{receipt}"}}') if receipt else None
        said = LookupAnswer(answer, ask.asked_at, receipt, result.digest if result else None)
        base: Fields = self.base(ask.call.run) | {"payloads": (result,) if result else ()}
        return c.RecordLookup(**base, term=term, call=ask.call.id, answer=said, result=result)

    def cancel(self, run: UUID) -> Any:
        return self.one(c.RequestCancel(**self.base(run), by="ann", reason="no longer wanted"))

    def repair(self, call: UUID, decision: str, receipt: str | None = None) -> Any:
        base: Fields = self.base(self.call(call).run)
        why: Fields = {"decision": decision, "by": "ann", "reason": "looked", "receipt": receipt}
        (answer,) = self.operator.apply([c.DecideRepair(**base, call=call, **why)])
        return answer

    def offset(self, run: UUID) -> tuple[UUID, UUID]:
        """Claim a compensating run, record the compensation it asks for: (forward call, compensation)."""
        claim = self.claim_stopped(run)
        order = self.one(claim)
        assert isinstance(order, c.Offset), order
        record = self.compensation(claim, order)
        answer = self.one(record)
        assert isinstance(answer, c.Done), answer
        return order.forward.id, record.call_id

    def compensation(self, claim: c.ClaimStopped, order: c.Offset) -> c.RecordCompensation:
        tool = self.app.registry[order.forward.tool, order.forward.tool_version]
        back = tool.compensation(
            tool.read_arguments(order.forward.arguments), None, order.forward.receipt or "r"
        )
        assert isinstance(back.arguments, dict)
        checked = self.validated(claim.run, order.run.turn + 1, order.run.calls, back.tool, **back.arguments)
        assert isinstance(checked, Validated)
        proposal = replace(checked, operation=compensation_key(order.forward.operation or ""), required=False)
        made: Fields = {"forward": order.forward.id, "proposal": proposal, "call_id": uuid7()}
        return c.RecordCompensation(**self.base(claim.run), term=claim.term, **made)


@contextmanager
def open_bench(database: LedgerDatabase) -> Iterator[Bench]:
    app = bench_app()
    gate = Gate(app.authority)
    known = Known(
        tool=lambda name, version: app.registry.get((name, version)),
        planner=lambda _name, _version: True,
        authority=gate,
        limited=frozenset(spec.scope for spec in app.dependencies if spec.limited),
    )
    pool = Pool(database.dsns["worker"], "bench", 8)
    worker = token()
    with psycopg.connect(database.owner, autocommit=True) as owner:
        owner.execute(
            "INSERT INTO fencepost.workers"
            " VALUES (%s, 'dispatcher', 'h', 1, fencepost.now(), fencepost.now(), NULL)",
            [worker],
        )
        bench = Bench(
            database,
            app,
            Ledger(pool, known, worker_ttl=WORKER_TTL),
            worker,
            owner,
            gate,
            known,
            pools=[pool],
        )
        try:
            yield bench
        finally:
            bench.close()
