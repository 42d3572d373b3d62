"""Tests of policies: a request each, and the decision that is expected of it.

    {"tests": [
      {"name": "small debits pass",
       "request": {"tenant": "shop", "principal": "svc:checkout", "tool": "wallet.debit",
                   "arguments": {"order_id": "o-1"},
                   "amount": {"currency": "EUR", "amount_minor": 1200, "scale": 2}},
       "expect": {"decision": "allow", "deciding": ["small debits"]}}
    ]}

With `"approver": {"principal": "ann", "roles": ["controller"]}` the question is whether Ann may approve it.
`fencepost policy` fills in what a real request would have: defaults of arguments, and what the tool's own
functions say it acts on and moves. What else is not said is the quiet case: no roles, not tainted, no
approvals, the tool's newest version, its declared effect, the first attempt.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from fencepost.authority.decisions import Approver, AuthorizationDecision, AuthorizationRequest
from fencepost.authority.statements import parse_span, span_text
from fencepost.canonical import arguments_hash
from fencepost.clock import parse_rfc3339, rfc3339
from fencepost.contracts import Effect
from fencepost.money import Money

if TYPE_CHECKING:
    from fencepost.authority.cedar import CedarEngine

_AT: Final = "2026-01-05T12:00:00.000000Z"
_STRICT: Final = ConfigDict(extra="forbid", strict=True, frozen=True)


def _moment(text: str) -> str:
    return rfc3339(parse_rfc3339(text))


def _span(text: str) -> str:
    return span_text(parse_span(text))


class TestedResource(BaseModel):
    """What the call acts on."""

    model_config = _STRICT

    type: str
    id: str


class TestedApprover(BaseModel):
    """Who wants to approve."""

    model_config = _STRICT

    principal: str
    roles: list[str] = []
    on_behalf_of: list[str] = []


class TestedRequest(BaseModel):
    """What is asked. `at` is RFC 3339; `version` 0 stands for the tool's newest."""

    model_config = _STRICT

    tenant: str
    principal: str
    tool: str
    version: int = Field(default=0, ge=0)
    roles: list[str] = []
    arguments: dict[str, Any] = {}
    resource: TestedResource | None = None
    amount: Money | None = None
    on_behalf_of: list[str] = []
    delegation: list[str] = []
    tainted: bool = False
    approvals: int = Field(default=0, ge=0)
    compensates: bool = False
    attempt: int = Field(default=1, ge=0)
    phase: Literal["recording", "claim"] = "claim"
    at: Annotated[str, AfterValidator(_moment)] = _AT
    approver: TestedApprover | None = None


class Expected(BaseModel):
    """What is expected; only what is said is compared. `approval`: persons could open it."""

    model_config = _STRICT

    decision: Literal["allow", "deny", "approval"]
    deciding: list[str] | None = None
    code: str | None = None
    persons: int | None = Field(default=None, ge=1)
    within: Annotated[str, AfterValidator(_span)] | None = None


class PolicyTest(BaseModel):
    """One request and the decision expected of it."""

    model_config = _STRICT

    name: str = Field(min_length=1, max_length=200)
    request: TestedRequest
    expect: Expected


class PolicyTestFile(BaseModel):
    """A file of tests; its JSON Schema is printed by `fencepost policy schema --tests`."""

    model_config = _STRICT

    tests: list[PolicyTest] = Field(min_length=1)


@dataclass(frozen=True)
class Outcome:
    """What became of one test; `differences` is empty if it passed."""

    file: str
    name: str
    differences: tuple[str, ...]
    decision: AuthorizationDecision

    @property
    def passed(self) -> bool:
        """Whether everything expected was so."""
        return not self.differences


def request_of(asked: TestedRequest, engine: CedarEngine) -> AuthorizationRequest:
    """The request of a test; a tool that the bundle does not know is asked for as a harmless one."""
    word = engine.compiled.bundle.vocabulary.words.get(asked.tool)
    version = asked.version or (max(word.effects) if word is not None else 1)
    effect = word.effects.get(version, word.effect) if word is not None else Effect.READ
    return AuthorizationRequest(
        tenant=asked.tenant,
        principal=asked.principal,
        tool=asked.tool,
        tool_version=version,
        effect=effect,
        arguments=asked.arguments,
        arguments_hash=arguments_hash(asked.arguments),
        operation=None,
        run="test",
        call="test",
        attempt=asked.attempt,
        phase=asked.phase,
        at=datetime.fromisoformat(asked.at).astimezone(UTC),
        resource=None if asked.resource is None else (asked.resource.type, asked.resource.id),
        amount=asked.amount,
        roles=tuple(asked.roles),
        on_behalf_of=tuple(asked.on_behalf_of),
        delegation=tuple(asked.delegation),
        tainted=asked.tainted,
        egress=word is not None and word.egress,
        approvals=asked.approvals,
        compensates=asked.compensates,
    )


def decided(test: PolicyTest, engine: CedarEngine) -> AuthorizationDecision:
    """The engine's decision on a test's request."""
    request, by = request_of(test.request, engine), test.request.approver
    if by is None:
        return engine.decide(request)
    return engine.may_approve(request, Approver(by.principal, tuple(by.roles), tuple(by.on_behalf_of)))


def run_tests(tests: Mapping[str, tuple[PolicyTest, ...]], engine: CedarEngine) -> Iterator[Outcome]:
    """Every test's outcome, by file."""
    for file, listed in sorted(tests.items()):
        for test in listed:
            decision = decided(test, engine)
            yield Outcome(file, test.name, tuple(_differences(test.expect, decision)), decision)


def _differences(expect: Expected, decision: AuthorizationDecision) -> Iterator[str]:
    got = "allow" if decision.allowed else "deny" if decision.approval is None else "approval"
    if got != expect.decision:
        yield f"decision {got}, expected {expect.decision} ({decision.reason})"
    if expect.deciding is not None and sorted(expect.deciding) != sorted(decision.deciding):
        yield f"decided by {_listed(decision.deciding)}, expected {_listed(expect.deciding)}"
    if expect.code is not None and expect.code != decision.code:
        yield f"code {decision.code or 'none'}, expected {expect.code}"
    need = decision.approval
    if expect.persons is not None and (need is None or need.count != expect.persons):
        yield f"persons {need.count if need else 0}, expected {expect.persons}"
    if expect.within is not None and (need is None or span_text(need.within) != expect.within):
        yield f"within {span_text(need.within) if need else 'none'}, expected {expect.within}"


def _listed(ids: Any) -> str:
    return ", ".join(sorted(ids)) or "no policy"
