"""What one attempt may do, as far as anybody but us is told: one narrow, expiring capability. PURE.

It is made in the claim of what was authorised there, and says nothing that was not. A Python tool is handed
it; a downstream that asks for capabilities gets it signed (`fencepost.capabilities`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Self

from fencepost.authority.decisions import AuthorizationRequest
from fencepost.canonical import digest
from fencepost.clock import rfc3339
from fencepost.money import Money

ISSUER: Final = "fencepost"


@dataclass(frozen=True, slots=True)
class Capability:
    """This attempt, and nothing else: `action` is tool@version, `resource` a type and an id.

    `arguments_hash` names the canonical arguments, `limit` the amount they move, `operation` the business
    intent (None for READ). It holds from `issued_at` to `expires_at`, the attempt's deadline, by the ledger's
    clock. `id` is the same whenever the same attempt's is made.
    """

    id: str
    tenant: str
    principal: str
    action: str
    resource: tuple[str, str] | None
    operation: str | None
    arguments_hash: str
    limit: Money | None
    run: str
    call: str
    attempt: int
    fence: int
    issued_at: datetime
    expires_at: datetime
    issuer: str = ISSUER

    def to_json(self) -> dict[str, Any]:
        """As a Python tool is handed it: JSON values, times as RFC 3339."""
        return {
            "id": self.id,
            "issuer": self.issuer,
            "tenant": self.tenant,
            "principal": self.principal,
            "action": self.action,
            "resource": None if self.resource is None else list(self.resource),
            "operation": self.operation,
            "arguments_hash": self.arguments_hash,
            "limit": None if self.limit is None else self.limit.model_dump(),
            "run": self.run,
            "call": self.call,
            "attempt": self.attempt,
            "fence": self.fence,
            "issued_at": rfc3339(self.issued_at),
            "expires_at": rfc3339(self.expires_at),
        }

    def claims(self) -> dict[str, Any]:
        """As a signed token says it (RFC 7519); whole seconds, which never cut its time short."""
        told = self.to_json()
        named = {"jti": told.pop("id"), "iss": told.pop("issuer"), "sub": told.pop("principal")}
        del told["issued_at"], told["expires_at"]
        times = {
            "iat": math.floor(self.issued_at.timestamp()),
            "exp": math.ceil(self.expires_at.timestamp()),
        }
        return named | times | told

    @classmethod
    def from_claims(cls, claims: Mapping[str, Any]) -> Self:
        """The capability of `claims`; ValueError for anything else."""
        try:
            resource, limit = claims["resource"], claims["limit"]
            made = cls(
                id=_text(claims["jti"]),
                issuer=_text(claims["iss"]),
                tenant=_text(claims["tenant"]),
                principal=_text(claims["sub"]),
                action=_text(claims["action"]),
                resource=None if resource is None else _pair(resource),
                operation=None if claims["operation"] is None else _text(claims["operation"]),
                arguments_hash=_text(claims["arguments_hash"]),
                limit=None if limit is None else Money.model_validate(limit),
                run=_text(claims["run"]),
                call=_text(claims["call"]),
                attempt=_whole(claims["attempt"]),
                fence=_whole(claims["fence"]),
                issued_at=_instant(claims["iat"]),
                expires_at=_instant(claims["exp"]),
            )
        except (KeyError, TypeError, OverflowError, OSError) as error:
            raise ValueError(f"not the claims of a capability: {type(error).__name__}") from None
        return made


def capability_of(
    asked: AuthorizationRequest, *, fence: int, issued_at: datetime, expires_at: datetime
) -> Capability:
    """The capability of what was just authorised in a claim, under the fence that claim was granted."""
    return Capability(
        id=digest("fencepost.capability.v1", [asked.call, asked.attempt, fence])[:32],
        tenant=asked.tenant,
        principal=asked.principal,
        action=f"{asked.tool}@{asked.tool_version}",
        resource=asked.resource,
        operation=asked.operation,
        arguments_hash=asked.arguments_hash,
        limit=asked.amount,
        run=asked.run,
        call=asked.call,
        attempt=asked.attempt,
        fence=fence,
        issued_at=issued_at,
        expires_at=expires_at,
    )


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError("no text")
    return value


def _pair(value: object) -> tuple[str, str]:
    if not isinstance(value, list) or len(value) != 2:
        raise TypeError("no type and id")
    return _text(value[0]), _text(value[1])


def _whole(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError("no whole number")
    return value


def _instant(value: object) -> datetime:
    return datetime.fromtimestamp(_whole(value), UTC)
