"""What the tests of approvals share: an engine whose grants can be exchanged, two operators, a call each."""

from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any
from uuid import UUID

from fencepost import commands as c
from fencepost.authority import (
    AllowList,
    Approver,
    AuthorizationDecision,
    AuthorizationRequest,
    Grant,
)
from fencepost.clock import uuid7
from fencepost.ledger.apply import Ledger
from tests.integration.ledger_bench import TENANT, Bench

DAY = timedelta(days=1)
REFUND = Grant("svc:*", ("wallet.refund",))
"""What offsets a debit needs nobody, unless a test says so."""


def asking(*tools: str, count: int = 1, within: timedelta = DAY, **more: Any) -> Grant:
    """A grant for these tools that asks for approvals of ann, bob or whoever has the role `boss`."""
    return Grant(
        "svc:*", tools, approvals=count, approvers=("ann", "bob", "role:boss"), within=within, **more
    )


USUAL = (asking("wallet.debit", "wallet.note", "mail.send"), REFUND)


@dataclass
class Policy:
    """An engine of which the grants, and with them its version, change under a running fleet."""

    grants: tuple[Grant, ...] = USUAL
    seen: list[AuthorizationRequest] = field(default_factory=list)

    @property
    def now(self) -> AllowList:
        return AllowList(self.grants)

    def decide(self, request: AuthorizationRequest) -> AuthorizationDecision:
        self.seen.append(request)
        return self.now.decide(request)

    def may_approve(self, request: AuthorizationRequest, approver: Approver) -> AuthorizationDecision:
        return self.now.may_approve(request, approver)


def login(dsn: str) -> str:
    return dsn.partition("//")[2].partition(":")[0]


@dataclass
class Desk:
    """The bench under a policy that asks, and the ledger as two operators see it."""

    bench: Bench
    policy: Policy
    ledgers: dict[str, Ledger]
    logins: dict[str, str]

    def run(self, **how: Any) -> UUID:
        return self.bench.start(**{"deadline_s": 36_000, **how})

    def asked(self, tool: str = "wallet.debit", **how: Any) -> tuple[UUID, UUID]:
        """A run with one call that waits for an approval."""
        run = self.run(**how)
        call = self.bench.debit(run, self.bench.order(), tool)
        assert self.bench.state(call) == "AWAITING_APPROVAL"
        return run, call

    def command(self, call: UUID, who: str = "ann", *, approve: bool = True, **more: Any) -> c.DecideApproval:
        base = self.bench.base(self.bench.call(call).run)
        said = {"by": who, "login": self.logins.get(who, self.logins["ann"]), "reason": f"{who} looked"}
        return c.DecideApproval(**base, call=call, approve=approve, **{**said, **more})

    def say(self, call: UUID, who: str = "ann", *, approve: bool = True, **more: Any) -> Any:
        through = self.ledgers[more.pop("through", who if who in self.ledgers else "ann")]
        (answer,) = through.apply([self.command(call, who, approve=approve, **more)])
        return answer

    def refused(self, call: UUID, who: str = "ann", **more: Any) -> str:
        """Why this person cannot decide; nothing has changed."""
        before = self.bench.call(call)
        answer = self.say(call, who, **more)
        assert isinstance(answer, c.Denied), answer
        assert self.bench.call(call) == before
        return answer.why

    def approved(self, tool: str = "wallet.debit", **how: Any) -> tuple[UUID, UUID]:
        """A run with one call that ann has approved."""
        run, call = self.asked(tool, **how)
        assert self.say(call) == c.Done("INTENT_RECORDED")
        return run, call

    def claim(self, run: UUID, call: UUID) -> Any:
        return self.bench.one(self.bench.claim_call(run, call))

    def honest_claim(self, run: UUID, call: UUID) -> Any:
        """A claim with the request as the dispatcher builds it."""
        return self.bench.one(replace(self.bench.claim_call(run, call), request=self.request(call)))

    def request(self, call: UUID) -> str:
        kept = self.bench.call(call)
        tool = self.bench.app.registry[kept.tool, kept.tool_version]
        return tool.stored_request(tool.read_arguments(kept.arguments), kept.operation).to_text()

    def attempts(self, run: UUID) -> int:
        return self.bench.kinds(run).count("ToolAttemptStarted")

    def principal(self, name: str, roles: str = "[]", *, disabled: bool = False) -> None:
        self.bench.sql(
            "INSERT INTO fencepost.principals (tenant, principal, roles, disabled_at, reason, changed_at,"
            " changed_by) VALUES (%s, %s, %s, CASE WHEN %s THEN fencepost.now() END, 'left', fencepost.now(),"
            " 'test') ON CONFLICT (principal, tenant) DO UPDATE SET roles = excluded.roles,"
            " disabled_at = excluded.disabled_at, reason = excluded.reason",
            TENANT,
            name,
            roles,
            disabled,
        )

    def delegate(self, principal: str, to: str, tools: str = "*") -> UUID:
        made = uuid7()
        self.bench.sql(
            "INSERT INTO fencepost.delegations (tenant, id, principal, delegate, tools, since, until,"
            " made_by, reason) VALUES (%s, %s, %s, %s, %s, fencepost.now(),"
            " fencepost.now() + interval '1 day', 'test', 'away')",
            TENANT,
            made,
            principal,
            to,
            tools,
        )
        return made

    def clean(self) -> None:
        for table in ("principals", "delegations", "withdrawn"):
            self.bench.sql(f"DELETE FROM fencepost.{table}")
