"""Allowances: so many calls, or so much money, per subject and window; what a call takes of them. Pure.

A counter belongs to one allowance, one tenant, one window, and one principal, tool or resource where the
allowance says `per`. A call takes its share of every counter that concerns it in the claim that sends it for
the first time, under the counters' locks, or it is not sent; it keeps the share through retries and while its
outcome is not known. What has become of a share the call's state says, and nothing else:

    SUCCEEDED, ACCEPTED_UNKNOWN      used
    FAILED, REJECTED, CANCELLED      given back
    anything else                    held

So a counter is, at any time, the sum of the shares of its calls that were not given back (I13). Evidence that
reopens a call whose share was given back takes it again, whatever the limit says: what may have happened
counts. So does what a restored ledger marks as perhaps sent, in the window of that moment. The limit is then
exceeded by what came to light, and nothing more is let go in that window.

Compensations take nothing, and give nothing back: an allowance says what may be let out of the door, not how
much of it came home. A reused result takes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Annotated, Any, Final, Literal, NamedTuple, Self, TypedDict

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from fencepost.authority.allowlist import matches
from fencepost.authority.decisions import AuthorizationRequest
from fencepost.authority.statements import parse_span
from fencepost.canonical import MAX_INT, digest, encode, sanitize
from fencepost.clock import parse_rfc3339, rfc3339
from fencepost.errors import UsageError
from fencepost.misfits import misfits
from fencepost.money import Money
from fencepost.names import patterns
from fencepost.states import CallState

C = CallState

Part = Literal["tenant", "principal", "tool", "resource"]
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
"""Windows are counted from here: a window of a day is a day in UTC, one of a week begins on a Thursday."""
GIVEN_BACK: Final = frozenset({C.FAILED, C.REJECTED, C.CANCELLED})
"""Ends at which what a call took counts no more."""
_Pattern = Annotated[str, Field(min_length=1, max_length=200)]
_ROLE: Final = "role:"


class Allowance(BaseModel):
    """How much may be done: at most `count` calls, at most `spend`, or both, in each `window`.

    It concerns calls whose tenant, principal, tool and type of resource fit the patterns (`*` matches any
    text; a principal may be a role, as `role:NAME`; a principal that acts for somebody fits as that somebody
    too). Without `resource` calls that name none are concerned as well. Each tenant has a counter of its own,
    and each principal, tool or resource where `per` says so. `window` is None for ever, or fixed windows that
    begin at multiples of it since 1970 in UTC; in a bundle it is written `60s`, `1h`, `1d`.

    An allowance whose window, `per` or currency is changed counts anew, from nothing: what was used under the
    old ones is not carried over. Limits and patterns can be changed without that.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    id: str = Field(pattern=r"^[A-Za-z0-9_.-]{1,100}$")
    tenant: _Pattern = "*"
    principal: _Pattern = "*"
    tool: _Pattern = "*"
    resource: _Pattern | None = None
    per: Annotated[tuple[Part, ...], Field(strict=False)] = ()
    window: timedelta | None = None
    count: Annotated[int, Field(ge=0, le=MAX_INT)] | None = None
    spend: Money | None = None

    @field_validator("window", mode="before")
    @classmethod
    def _spelled(cls, value: object) -> object:
        return parse_span(value) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _sound(self) -> Self:
        if self.count is None and self.spend is None:
            raise ValueError("it limits nothing; give it a count, a spend or both")
        if self.spend is not None and self.spend.amount_minor < 0:
            raise ValueError("what may be spent is not negative")
        whole = self.window is None or (self.window.microseconds == 0 and self.window >= timedelta(seconds=1))
        if not whole or (self.window or timedelta(0)) > timedelta(days=3650):
            raise ValueError("a window is of whole seconds, from one second to 3650 days")
        try:
            patterns("principal", [self.principal])
            patterns("tenant", [self.tenant])
        except UsageError as error:
            raise ValueError(str(error)) from None
        if len(set(self.per)) != len(self.per):
            raise ValueError("`per` names each part once")
        return self

    def window_at(self, now: datetime) -> tuple[datetime | None, datetime | None]:
        """Begin and end of the window that `now` is in; None and None for ever."""
        if self.window is None:
            return None, None
        since = EPOCH + (now - EPOCH) // self.window * self.window
        return since, since + self.window


class AllowanceOptions(TypedDict, total=False):
    """What an application says of an allowance beside its id; meanings and defaults as in `Allowance`."""

    tenant: str
    principal: str
    tool: str
    resource: str | None
    per: Sequence[Part]
    window: timedelta | None
    count: int | None
    spend: Money | None


def read(declared: Iterable[Mapping[str, Any] | Allowance]) -> tuple[Allowance, ...]:
    """Allowances as a bundle or an application declares them; UsageError if one cannot be used."""
    found: dict[str, Allowance] = {}
    for number, one in enumerate(declared, start=1):
        try:
            allowance = one if isinstance(one, Allowance) else Allowance.model_validate(dict(one))
        except (ValidationError, TypeError, ValueError) as error:
            raise UsageError(f"allowance {_named(one, number)} cannot be used: {_why(error)}") from None
        if allowance.id in found:
            raise UsageError(f"allowance {allowance.id} is declared twice; each has an id of its own")
        found[allowance.id] = allowance
    return tuple(found.values())


def _named(one: object, number: int) -> str:
    name = one.get("id") if isinstance(one, Mapping) else None
    return sanitize(name, 80) if isinstance(name, str) and name else f"number {number}"


def _why(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return sanitize(error, 200)
    return sanitize(misfits(error)[0].told(""), 200)


@dataclass(frozen=True, slots=True)
class Share:
    """What one call takes of one counter. Limits and `subject` are for whoever reads the history: the key is
    a digest of the subject, and the table of counters holds nothing else of it.
    """

    allowance: str
    key: str
    count: int
    minor: int
    since: str | None
    until: str | None
    limit_count: int | None
    limit_minor: int | None
    currency: str | None
    subject: Mapping[str, str]


class Used(NamedTuple):
    """What is used and held of a counter."""

    calls: int = 0
    minor: int = 0


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a call takes no share, and so is not sent."""

    code: str
    allowance: str
    reason: str


def concerns(allowance: Allowance, asked: AuthorizationRequest) -> bool:
    """Whether the allowance speaks of this call."""
    if not (matches(allowance.tenant, asked.tenant) and matches(allowance.tool, asked.tool)):
        return False
    if allowance.resource is not None and (
        asked.resource is None or not matches(allowance.resource, asked.resource[0])
    ):
        return False
    kind, role, wanted = allowance.principal.partition(_ROLE)
    if not kind and role:
        return any(matches(wanted, one) for one in asked.roles)
    return any(matches(allowance.principal, one) for one in (asked.principal, *asked.on_behalf_of))


def shares(
    allowances: Sequence[Allowance], asked: AuthorizationRequest, held: frozenset[str] = frozenset()
) -> tuple[Share, ...] | Refusal:
    """What a call would take, but for allowances of which it has its share already (`held`, by id).

    A Refusal where that cannot be told: no amount, another currency, a negative amount, no resource.
    CanonicalError for a subject that has no canonical text.
    """
    found: list[Share] = []
    for allowance in allowances:
        if allowance.id in held or not concerns(allowance, asked):
            continue
        if (problem := _problem(allowance, asked)) is not None:
            return Refusal(problem[0], allowance.id, f"allowance {allowance.id}: {problem[1]}")
        found.append(_share(allowance, asked))
    return tuple(found)


def owed(
    allowances: Sequence[Allowance], asked: AuthorizationRequest, held: frozenset[str] = frozenset()
) -> tuple[tuple[Share, ...], tuple[str, ...]]:
    """What a call that may have been sent has to hold, whatever the limits say, beside what it has (`held`);
    and the allowances of which its share cannot be told. CanonicalError as in `shares`.
    """
    mine = [one for one in allowances if one.id not in held and concerns(one, asked)]
    told_of = [one for one in mine if _problem(one, asked) is None]
    unclear = tuple(one.id for one in mine if one not in told_of)
    return tuple(_share(one, asked) for one in told_of), unclear


def counting_anew(before: Iterable[Allowance], after: Iterable[Allowance]) -> list[str]:
    """Allowances that are in both, and of which the second counts from nothing; a sentence for each."""
    old, found = {one.id: one for one in before}, []
    for new in after:
        if (was := old.get(new.id)) is None:
            continue
        pairs = {
            "window": (was.window, new.window),
            "per": (frozenset(was.per) - {"tenant"}, frozenset(new.per) - {"tenant"}),
            "currency": (was.spend and was.spend.currency, new.spend and new.spend.currency),
        }
        if names := [name for name, (one, other) in pairs.items() if one != other]:
            what = " and ".join(names)
            found.append(
                f"allowance {new.id}: another {what}: it counts anew, what was used is not carried over"
            )
    return found


def _problem(allowance: Allowance, asked: AuthorizationRequest) -> tuple[str, str] | None:
    if "resource" in allowance.per and asked.resource is None:
        return "allowance_no_resource", f"{asked.tool} does not say what it acts on, and each has its own"
    if (limit := allowance.spend) is None:
        return None
    amount = asked.amount
    if amount is None:
        return "allowance_no_amount", f"{asked.tool} does not say how much it moves, and that is limited"
    if amount.currency != limit.currency:
        return "allowance_currency", f"it is in {limit.currency}, and this moves {amount.currency}"
    if amount.amount_minor < 0:
        return "allowance_negative", f"this moves {amount.amount} {amount.currency}, less than nothing"
    return None


def _share(allowance: Allowance, asked: AuthorizationRequest) -> Share:
    since, until = allowance.window_at(asked.at)
    values: dict[str, str] = {
        "tenant": asked.tenant,
        "principal": asked.principal,
        "tool": asked.tool,
        "resource": ":".join(asked.resource or ("", "")),
    }
    subject: dict[str, str] = {part: values[part] for part in sorted({"tenant", *allowance.per})}
    spend, window = allowance.spend, allowance.window
    begins = rfc3339(since) if since is not None else None
    length = None if window is None else window // timedelta(seconds=1)
    parts = [allowance.id, length, begins, spend.currency if spend else None]
    whose: list[Any] = [subject, list(asked.resource or ())] if "resource" in allowance.per else [subject]
    return Share(
        allowance=allowance.id,
        key=digest("fencepost.allowance.v1", [*parts, *whose]),
        count=1,
        minor=asked.amount.amount_minor if spend and asked.amount else 0,
        since=begins,
        until=rfc3339(until) if until is not None else None,
        limit_count=allowance.count,
        limit_minor=spend.amount_minor if spend else None,
        currency=spend.currency if spend else None,
        subject=subject,
    )


def refused(share: Share, used: Used) -> Refusal | None:
    """Why the counter has no room for this share; None when it has."""
    name, ends = f"allowance {share.allowance}", _ends(share)
    if share.limit_count is not None and used.calls + share.count > share.limit_count:
        what = f"{name} is used up: {used.calls} of {share.limit_count} calls; {ends}"
        return Refusal("allowance_exceeded", share.allowance, what)
    if share.limit_minor is not None and used.minor + share.minor > share.limit_minor:
        wanted, spent, limit = (_money(n, share) for n in (share.minor, used.minor, share.limit_minor))
        what = f"{name} has no room for {wanted}: {spent} of {limit} are spent; {ends}"
        return Refusal("allowance_exceeded", share.allowance, what)
    return None


def _ends(share: Share) -> str:
    return "it has no window that ends" if share.until is None else f"its window ends at {share.until}"


def _money(minor: int, share: Share) -> str:
    return spelled(minor, share.currency or "")


def spelled(minor: int, currency: str) -> str:
    """An amount in major units, `12.50 EUR`; also one that is too much for a `Money`."""
    scale = Money.of(currency, Decimal(0)).scale
    return f"{Decimal(minor).scaleb(-scale):f} {currency}"


# -- what a call holds, as its row and its history tell it --------------------------------------------------


def told(taken: Sequence[Share]) -> list[dict[str, Any]]:
    """Shares as JSON values, for the event that begins an attempt."""
    return [asdict(one) | {"subject": dict(one.subject)} for one in taken]


def kept(said: object) -> str:
    """The text a call's row keeps of what `told` gave."""
    return encode(said).decode()


@lru_cache(maxsize=1024)
def taken(reserved: str | None) -> tuple[Share, ...]:
    """The shares that a call has ever taken, from its row's text."""
    return () if reserved is None else tuple(Share(**one) for one in json.loads(reserved))


def counted(reserved: str | None, state: str) -> tuple[Share, ...]:
    """Those of them that count in this state: held or used, not given back."""
    return () if reserved is None or state in GIVEN_BACK else taken(reserved)


def until(share: Share) -> datetime | None:
    """When the share's window ends."""
    return None if share.until is None else parse_rfc3339(share.until)
