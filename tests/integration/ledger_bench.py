"""A bench for ledger tests: real Postgres, the real `apply`, an app with HTTP tools, and no workers in
between.
"""

import itertools
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
from pydantic import BaseModel

from fencepost import App, Contract, Dedupes, Effect, Lookup, Proposal, Request
from fencepost import commands as c
from fencepost.clock import token, uuid7
from fencepost.contracts import FirstFailure
from fencepost.decide.fold import Known
from fencepost.ledger.apply import Ledger
from fencepost.ledger.connect import Pool
from fencepost.proposals import Rejected, Validated, validate
from fencepost_ops.database import LedgerDatabase

SECOND = timedelta(seconds=1)
TENANT = "shop"


class Debit(BaseModel):
    order: str
    minor: int = 100


class Debited(BaseModel):
    id: str


def bench_app() -> App:
    app = App("bench")
    wallet = app.dependency(
        "wallet",
        base_url="http://127.0.0.1:9",
        attempts=3,
        per_attempt=2 * SECOND,
        grace=SECOND,
        reserve=SECOND,
        margin=timedelta(0),
        backoff=timedelta(milliseconds=1),
        reconcile_for=30 * SECOND,
    )
    contract = Contract(
        repeat=Dedupes(window=timedelta(hours=1), first_failure=FirstFailure.RELEASED),
        lookup=Lookup(strong=True),
        settle=SECOND,
        not_applied=frozenset({402, 429}),
        retryable=frozenset({429}),
    )

    @wallet.http(
        "wallet.debit",
        effect=Effect.REVERSIBLE,
        returns=Debited,
        intent=lambda a: ("order", a.order),
        contract=contract,
    )
    def debit(args: Debit) -> Request:
        return Request.post("/debits", json={"order": args.order, "minor": args.minor})

    @debit.lookup
    def find(args: Debit, key: str) -> Request:
        return Request.get(f"/by-key/{key}")

    @wallet.http(
        "wallet.refund",
        effect=Effect.REVERSIBLE,
        returns=Debited,
        intent=lambda a: ("refund", a.order),
        contract=contract,
    )
    def refund(args: Debit) -> Request:
        return Request.post("/refunds", json={"order": args.order})

    @debit.compensate
    def undo(args: Debit, result: Any) -> Proposal:
        return Proposal("wallet.refund", {"order": args.order, "minor": args.minor})

    @wallet.http("wallet.note", effect=Effect.REVERSIBLE, intent=lambda a: ("note", a.order), required=False)
    def note(args: Debit) -> Request:
        return Request.post("/notes", json={"order": args.order})

    app.allow("svc:*", tools=["wallet.*"])
    return app


@dataclass
class Bench:
    """Drives `apply` the way workers do, with explicit terms; fences count up so that every claim is fresh."""

    database: LedgerDatabase
    app: App
    ledger: Ledger
    worker: str
    owner: psycopg.Connection[Any]
    fences: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    tools: dict[str, Any] = field(default_factory=dict)

    def term(self) -> c.Term:
        return c.Term(token(), next(self.fences))

    def enqueue(
        self, key: str = "o-1", *, deadline_s: float = 60, on_stop: str = "compensate", budget: str = "{}"
    ) -> UUID:
        with psycopg.connect(self.database.dsns["producer"]) as connection:
            row = connection.execute(
                "SELECT run FROM fencepost.enqueue_run(%s, %s, 'p', 1, 'svc:checkout', '{}', make_interval(secs => %s),"
                " %s::jsonb, %s)",
                [TENANT, key, deadline_s, budget, on_stop],
            ).fetchone()
        assert row is not None
        return UUID(str(row[0]))

    def generation(self, subject: UUID) -> int:
        row = self.sql("SELECT generation FROM fencepost.outbox WHERE subject = %s", subject)
        return int(row[0][0]) if row else 0

    def sql(self, statement: str, *args: Any) -> list[Any]:
        cursor = self.owner.execute(statement, args)
        return cursor.fetchall() if cursor.description else []

    def one(self, *commands: c.Command) -> Any:
        (answer,) = self.ledger.apply(commands)
        return answer

    def ahead(self, seconds: float) -> None:
        """Move the ledger's clock; the worker's pulse keeps up, as a living one does."""
        self.sql("UPDATE fencepost.clock SET ahead = ahead + make_interval(secs => %s)", seconds)
        self.sql("UPDATE fencepost.workers SET last_seen = fencepost.now()")

    def _claim(self, run: UUID, subject: UUID, term: c.Term, generation: int | None) -> dict[str, Any]:
        return {
            "id": uuid7(),
            "tenant": TENANT,
            "run": run,
            "rand": random.random(),
            "subject": subject,
            "generation": self.generation(subject) if generation is None else generation,
            "worker": self.worker,
            "term": term,
        }

    def claim_run(self, run: UUID, term: c.Term | None = None, generation: int | None = None) -> c.ClaimRun:
        term = term or self.term()
        return c.ClaimRun(**self._claim(run, run, term, generation), cap=2 * SECOND, grace=SECOND)

    def claim_stopped(self, run: UUID, term: c.Term | None = None) -> c.ClaimStopped:
        return c.ClaimStopped(
            **self._claim(run, run, term or self.term(), None), cap=2 * SECOND, grace=SECOND
        )

    def claim_call(
        self, run: UUID, call: UUID, term: c.Term | None = None, generation: int | None = None
    ) -> c.ClaimCall:
        request = Request.post("/debits", json={}).bind("http://127.0.0.1:9").to_text()
        return c.ClaimCall(**self._claim(run, call, term or self.term(), generation), request=request)

    def claim_doubt(self, run: UUID, call: UUID, term: c.Term | None = None) -> c.ClaimDoubt:
        return c.ClaimDoubt(**self._claim(run, call, term or self.term(), None))

    def validated(self, run: UUID, turn: int, ordinal: int, tool: str, **args: Any) -> Validated | Rejected:
        newest = {name: t for (name, _), t in sorted(self.app.registry.items())}
        proposal = Proposal(tool, args)
        return validate(proposal, tools=newest, tenant=TENANT, run_id=str(run), turn=turn, ordinal=ordinal)

    def plan(self, run: UUID, *proposals: tuple[str, dict[str, Any]]) -> list[UUID]:
        """Claim the run and record a turn with these proposals; the calls' ids."""
        claim = self.claim_run(run)
        order = self.one(claim)
        assert isinstance(order, c.Plan), order
        turn = order.run.turn + 1
        checked = tuple(
            self.validated(run, turn, n, tool, **args) for n, (tool, args) in enumerate(proposals)
        )
        ids = tuple(uuid7() for _ in proposals)
        record = c.RecordTurn(
            id=uuid7(), tenant=TENANT, run=run, term=claim.term, turn=turn, proposals=checked, call_ids=ids
        )
        answer = self.one(record)
        assert isinstance(answer, c.Done), answer
        return list(ids)

    def outcome(self, send: c.Send, term: c.Term, outcome: Any) -> c.RecordOutcome:
        return c.RecordOutcome(
            id=uuid7(),
            tenant=TENANT,
            run=send.call.run,
            rand=0.0,
            term=term,
            call=send.call.id,
            attempt=send.attempt,
            outcome=outcome,
        )

    def state(self, call: UUID) -> str:
        return str(self.sql("SELECT state FROM fencepost.calls WHERE id = %s", call)[0][0])

    def status(self, run: UUID) -> str:
        return str(self.sql("SELECT status FROM fencepost.runs WHERE id = %s", run)[0][0])


@contextmanager
def open_bench(database: LedgerDatabase) -> Iterator[Bench]:
    app = bench_app()
    known = Known(
        tool=lambda n, v: app.registry.get((n, v)), planner=lambda n, v: True, authority=app.authority
    )
    pool = Pool(database.dsns["worker"], "bench", 8)
    ledger = Ledger(pool, known)
    worker = token()
    with psycopg.connect(database.owner, autocommit=True) as owner:
        owner.execute(
            "INSERT INTO fencepost.workers VALUES (%s, 'dispatcher', 'h', 1, fencepost.now(), fencepost.now(), NULL)",
            [worker],
        )
        try:
            yield Bench(database, app, ledger, worker, owner)
        finally:
            pool.close()
