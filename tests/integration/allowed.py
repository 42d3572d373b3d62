"""The ledger bench with allowances: the wallet's debit says what it acts on and moves."""

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from fencepost import commands as c
from fencepost.allowances import Allowance, taken
from fencepost.authority.allowlist import matches
from fencepost.ledger.apply import Ledger
from fencepost.ledger.connect import Pool
from fencepost.money import Money
from fencepost.outcomes import Applied, Refused, Unsure
from fencepost.tools import Tool
from tests.integration.ledger_bench import WORKER_TTL, Bench

DONE = Applied('{"id":"r-1"}', "r-1")
NOT_DONE = Refused("http_402", "no money", retryable=False)
NOT_YET = Refused("http_429", "later", retryable=True)
NOBODY_KNOWS = Unsure("timeout", "no answer")
_names = itertools.count(1)


def name() -> str:
    """An allowance nobody has used: counters are by id."""
    return f"few-{next(_names)}"


def euros(minor: int) -> Money:
    return Money(currency="EUR", amount_minor=minor, scale=2)


def _moves(args: Any) -> Money:
    return euros(args.minor)


def _acts_on(args: Any) -> tuple[str, str]:
    return "account", args.order


@dataclass
class Allowed:
    """The bench under some allowances."""

    bench: Bench
    changes: dict[str, Any]

    def ledger(self) -> Ledger:
        """A ledger of another session, as another worker's."""
        return self.bench.ledger_as("worker", **self.changes)

    def planned(self, orders: Sequence[str], tool: str = "wallet.debit", minor: int = 100) -> list[UUID]:
        """A run per order with one call; the calls' ids."""
        return [self.planned_in(self.bench.start(), order, tool, minor) for order in orders]

    def planned_in(self, run: UUID, order: str, tool: str = "wallet.debit", minor: int = 100) -> UUID:
        return self.bench.plan(run, (tool, {"order": order, "minor": minor}))[0]

    def calls(self, count: int, **how: Any) -> list[UUID]:
        return self.planned([self.bench.order() for _ in range(count)], **how)

    def claim(self, call: UUID) -> c.ClaimCall:
        return self.bench.claim_call(self.bench.call(call).run, call)

    def claimed(self, call: UUID) -> c.Answer:
        answer: c.Answer = self.bench.one(self.claim(call))
        return answer

    def sent(self, call: UUID) -> tuple[c.Send, c.Term]:
        return self.bench.dispatch(self.bench.call(call).run, call)

    def refused(self, call: UUID) -> str:
        """Claim a call that must not be sent; why it was not, as the planner is told."""
        assert self.claimed(call) == c.Done("REJECTED")
        assert "ToolAttemptStarted" not in self.bench.kinds(self.bench.call(call).run, call)
        return str(self.bench.call(call).error)

    def code(self, call: UUID) -> str:
        denied = [e for e in self.bench.events(self.bench.call(call).run) if e.type == "AuthorizationDenied"]
        return str(denied[-1].data["code"])

    def used(self, allowance: str) -> list[tuple[int, int]]:
        """What the counters of an allowance say, the oldest window first."""
        return list(
            self.bench.sql(
                "SELECT used_count, used_minor FROM fencepost.allowances WHERE allowance = %s"
                " ORDER BY since, key",
                allowance,
            )
        )

    def held(self, call: UUID) -> list[str]:
        """The allowances of which a call has taken its share."""
        return [share.allowance for share in taken(self.bench.call(call).reserved)]


def tool_of(bench: Bench, **changes: Any) -> dict[str, Any]:
    """What a process knows whose debits say what they act on and move, or as `changes` say."""
    said = {"amount": _moves, "acts_on": _acts_on} | changes

    def tool(name: str, version: int) -> Tool | None:
        found = bench.app.registry.get((name, version))
        return replace(found, **said) if found is not None and matches("wallet.*", name) else found

    return {"tool": tool}


@contextmanager
def under(bench: Bench, *allowances: Allowance, **changes: Any) -> Iterator[Allowed]:
    """The bench whose process, and others like it, know these allowances; `changes` are of its tools."""
    knows = tool_of(bench, **changes) | {"allowances": tuple(allowances)}
    before = bench.ledger
    pool = Pool(bench.database.dsns["worker"], "bench-allowed", 2)
    bench.ledger = Ledger(pool, replace(bench.known, **knows), worker_ttl=WORKER_TTL)
    try:
        yield Allowed(bench, knows)
    finally:
        bench.ledger = before
        pool.close()
