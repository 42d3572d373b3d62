"""What persons were asked about one call and have said: the text of `calls.approval`. Pure.

An approval is of exactly what was asked: one operation, one definition of its tool, one set of arguments, the
request that will be sent where it is known, under one version of the policy, until it expires. It serves that
call with all its retries and never another one. What was asked anew takes the place of what was asked before;
the history keeps both.

    {"asked": {…}, "decisions": [{"who": "ann", "login": "op_ann", "approve": true, "at": …, …}, …]}
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from fencepost.clock import parse_rfc3339
from fencepost.events import body_text

BOUND = ("operation", "definition", "arguments_hash", "request_digest")
"""What an approval binds, beside the version of the policy, which only a decision tells."""

_CALLED = {
    "operation": "the operation is",
    "definition": "the definition of its tool is",
    "arguments_hash": "its arguments are",
    "request_digest": "the request that would be sent is",
}

_AUTHORITY = ("roles", "on_behalf_of", "links")


@dataclass(frozen=True, slots=True)
class Said:
    """One person's decision: under which login of Postgres, and what gave that person the word then."""

    who: str
    login: str
    approve: bool
    at: datetime
    reason: str
    roles: tuple[str, ...] = ()
    on_behalf_of: tuple[str, ...] = ()
    links: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Approval:
    """What was asked, as its event tells it, and what was said to that, in order."""

    asked: Mapping[str, Any]
    said: tuple[Said, ...] = ()

    @property
    def count(self) -> int:
        """How many different persons it takes."""
        return int(self.asked["count"])

    @property
    def expires_at(self) -> datetime:
        """From when on it opens nothing, whoever has approved it."""
        return parse_rfc3339(self.asked["expires_at"])

    @property
    def requested_at(self) -> datetime:
        """When it was asked for."""
        return parse_rfc3339(self.asked["requested_at"])

    @property
    def approved(self) -> tuple[Said, ...]:
        """Those who have approved it, in order."""
        return tuple(one for one in self.said if one.approve)

    @property
    def missing(self) -> int:
        """How many persons more it takes."""
        return max(0, self.count - len(self.approved))

    def said_by(self, who: str) -> Said | None:
        """The last word of this person."""
        return next((one for one in reversed(self.said) if one.who == who), None)

    def lapsed(self, bound: Mapping[str, str | None], now: datetime) -> str | None:
        """Why it counts for nothing, with things `bound` as they are now; None while it counts."""
        if now >= self.expires_at:
            return f"it expired at {self.asked['expires_at']}"
        for name in BOUND:
            if self.asked.get(name) != bound.get(name):
                return f"{_CALLED[name]} not what was approved"
        return None


def read(text: str | None) -> Approval | None:
    """The value of a stored text; None where nobody was ever asked. ValueError for anything else."""
    if text is None:
        return None
    try:
        value = json.loads(text)
        return Approval(value["asked"], tuple(map(_said, value["decisions"])))
    except (KeyError, TypeError) as error:
        raise ValueError("not what is kept of an approval") from error


def _said(value: Mapping[str, Any]) -> Said:
    return Said(
        who=value["who"],
        login=value["login"],
        approve=value["approve"] is True,
        at=parse_rfc3339(value["at"]),
        reason=value["reason"],
        **{name: tuple(value.get(name) or ()) for name in _AUTHORITY},
    )


def opened(asked: Mapping[str, Any]) -> str:
    """The text once it was asked for: nobody has said anything."""
    return body_text({"asked": asked, "decisions": []})


def answered(text: str | None, decision: Mapping[str, Any]) -> str:
    """The text with one decision more."""
    value = json.loads(text or '{"asked":{},"decisions":[]}')
    return body_text({"asked": value["asked"], "decisions": [*value["decisions"], decision]})
