"""How things stand with a principal and a tool at one instant, read in the claim and never kept (R6).

A principal has the roles it was given, and for tools that a delegation covers also those of whoever delegated
to it, and whoever delegated to them, each link valid now and from somebody who is not disabled. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from fencepost.authority.allowlist import matches
from fencepost.authority.decisions import Authority

MAX_LINKS: Final = 4
"""Delegations in a chain at most: longer ones are not looked for."""
MAX_DELEGATIONS: Final = 100
"""Living delegations to one principal at most; also principals at the end of its chains of one length."""
TOO_MANY: Final = f"more than {MAX_DELEGATIONS} delegations lead to it; revoke some (fencepost revoke)"
MOST_TOLD: Final = 50
"""Roles and links that an event names."""


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
    crowded: frozenset[tuple[str, str]] = frozenset()
    """To whom more delegations lead than are read: their authority is not known, and they get nothing."""
    _to: Mapping[tuple[str, str], Sequence[tuple[int, Delegation]]] = field(
        init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        to: dict[tuple[str, str], list[tuple[int, Delegation]]] = {}
        for place, one in enumerate(self.delegations):
            to.setdefault((one.tenant, one.delegate), []).append((place, one))
        object.__setattr__(self, "_to", to)

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
        roles, links, behind = dict.fromkeys(own.roles), list[str](), {principal: None}
        reached = [principal]
        for _ in range(MAX_LINKS):
            further: list[str] = []
            for _, one in sorted(
                (found for name in reached for found in self._to.get((tenant, name), ())),
                key=lambda found: found[0],
            ):
                if one.principal in behind or one.principal in without or not one.valid(now, tool):
                    continue
                if self.disabled(tenant, one.principal) is not None:
                    continue
                further.append(one.principal)
                behind[one.principal] = None
                links.append(f"{one.principal}>{one.delegate}")
                roles |= dict.fromkeys(self.principals.get((tenant, one.principal), Principal()).roles)
            reached = further
        return Who(tuple(roles), tuple(links), tuple(behind)[1:])


def few(names: Sequence[str]) -> list[str]:
    """The first of them, as an event tells them, and how many there are more."""
    more = len(names) - MOST_TOLD
    return [*names[:MOST_TOLD], f"and {more} more"] if more > 0 else list(names)


EVERYBODY: Final = Standing()
"""Nobody is disabled, nothing withdrawn or published."""
