"""How things stand with a principal and a tool at one instant, read in the claim and never kept (R6).

A principal has the roles it was given, and for tools that a delegation covers also those of whoever delegated
to it, and whoever delegated to them, each link valid now and from somebody who is not disabled. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from fencepost.authority.allowlist import matches
from fencepost.authority.decisions import Authority

MAX_LINKS: Final = 4
"""Delegations in a chain at most: longer ones are not looked for."""


@dataclass(frozen=True, slots=True)
class Principal:
    """What the ledger says of one principal of a tenant."""

    roles: tuple[str, ...] = ()
    disabled: bool = False
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Delegation:
    """`delegate` may act with the authority of `principal`, for tools that fit the pattern, until then."""

    tenant: str
    principal: str
    delegate: str
    tools: str
    since: datetime
    until: datetime

    def valid(self, now: datetime, tool: str) -> bool:
        """Whether it holds now, for this tool."""
        return self.since <= now < self.until and matches(self.tools, tool)


@dataclass(frozen=True, slots=True)
class Who:
    """A principal as it stands: its roles by its own right or by delegation, and the links that gave them."""

    roles: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    on_behalf_of: tuple[str, ...] = ()
    """Everybody whose authority it may use, the nearest first; not itself."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What was read: policies in force by tenant, principals, delegations, withdrawn tool versions.

    `engines` are those of these policies, by version, held for as long as they decide: what this process
    forgets meanwhile is not forgotten here. One that is missing could not be loaded, and nothing is allowed.
    """

    policies: Mapping[str, int] = field(default_factory=dict)
    principals: Mapping[tuple[str, str], Principal] = field(default_factory=dict)
    delegations: tuple[Delegation, ...] = ()
    withdrawn: Mapping[tuple[str, int], str] = field(default_factory=dict)
    """By tool and version, why."""
    engines: Mapping[int, Authority] = field(default_factory=dict)

    def disabled(self, tenant: str, principal: str) -> str | None:
        """Why the principal may have nothing done; None if it may."""
        known = self.principals.get((tenant, principal))
        return known.reason or "no reason was given" if known is not None and known.disabled else None

    def who(
        self, tenant: str, principal: str, tool: str, now: datetime, *, without: frozenset[str] = frozenset()
    ) -> Who:
        """The principal as it stands for this tool; delegations are followed from it, nearest first, but none
        of those `without`.
        """
        own = self.principals.get((tenant, principal), Principal())
        roles, links, behind = dict.fromkeys(own.roles), list[str](), [principal]
        reached = [principal]
        for _ in range(MAX_LINKS):
            further: list[str] = []
            for one in self.delegations:
                known = one.tenant == tenant and one.delegate in reached and one.principal not in behind
                if not known or one.principal in without or not one.valid(now, tool):
                    continue
                if self.disabled(tenant, one.principal) is not None:
                    continue
                further.append(one.principal)
                behind.append(one.principal)
                links.append(f"{one.principal}>{one.delegate}")
                roles |= dict.fromkeys(self.principals.get((tenant, one.principal), Principal()).roles)
            reached = further
        return Who(tuple(roles), tuple(links), tuple(behind[1:]))


EVERYBODY: Final = Standing()
"""Nobody is disabled, nothing withdrawn or published."""
