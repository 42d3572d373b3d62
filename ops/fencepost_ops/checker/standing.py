"""I3: nothing is sent for a principal that is disabled, nor of a tool version that is withdrawn, and nobody
approves what is asked for by or for itself, under whatever spelling: a name has one.

Held against what Postgres itself noted of each such change. A claim reads what is committed, and a change is
noted a moment before it is: what was let go within `tolerance` after it may have been read before.
For whom a call is asked is told when persons are asked, and may be otherwise once somebody approves: where a
delegation of the tenant has ended, or a principal was disabled, in between, only the requester counts.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from fencepost_ops.checker.bodies import moment, told_names
from fencepost_ops.checker.facts import ChangeRow, EventRow
from fencepost_ops.checker.report import Violation, at
from fencepost_ops.checker.story import CallStory, RunStory

_NAME: Final = re.compile("[a-z0-9][a-z0-9._:@/+=|-]*")
"""What the ledger takes for a name; any other spelling of one is somebody nobody can tell from another."""


class _Span(NamedTuple):
    since: datetime
    until: datetime | None
    why: str


@dataclass(frozen=True, slots=True)
class Standings:
    """From when until when a principal was disabled, and a tool version withdrawn."""

    disabled: dict[tuple[str, str], list[_Span]] = field(default_factory=lambda: defaultdict(list))
    withdrawn: dict[tuple[str, int], list[_Span]] = field(default_factory=lambda: defaultdict(list))
    shaken: dict[str, list[datetime]] = field(default_factory=lambda: defaultdict(list))
    """By tenant, when delegations may have ceased to lead where they had led."""
    tolerance: timedelta = timedelta(0)

    @classmethod
    def of(cls, changes: Iterable[ChangeRow], tolerance: timedelta) -> Standings:
        """What the changes, in the order they were made, say."""
        made = cls(tolerance=tolerance)
        for change in changes:
            said = json.loads(change.said)
            if change.about == "principals":
                spans: list[_Span] = made.disabled[change.tenant, said["principal"]]
                _note(spans, change, said, shut=change.change != "delete" and said["disabled_at"] is not None)
            elif change.about == "withdrawn":
                spans = made.withdrawn[said["tool"], said["version"]]
                _note(spans, change, said, shut=change.change != "delete")
            made.shaken[change.tenant] += _ends(change, said)
        return made

    def sent(self, story: RunStory) -> Iterator[Violation]:
        """Attempts of a run that were started while they should not have been."""
        for call in story.calls.values():
            for number, attempt in call.attempts.items():
                event = attempt.started
                if _NAME.fullmatch(event.principal) is None:
                    odd = f"{event.principal!a} is no name: somebody disabled may run on under it"
                    yield self._found(call, number, odd, event)
                who = self.disabled.get((event.tenant, event.principal), [])
                if (why := self._shut(who, event.recorded_at)) is not None:
                    yield self._found(call, number, f"{event.principal} was disabled ({why})", event)
                tool = self.withdrawn.get((call.tool, call.tool_version), [])
                if (why := self._shut(tool, event.recorded_at)) is not None:
                    told = f"{call.tool} version {call.tool_version} was withdrawn ({why})"
                    yield self._found(call, number, told, event)

    def approved(self, story: RunStory, event: EventRow, body: dict[str, Any]) -> Iterator[Violation]:
        """An approval by whoever asked for it, or by one who acts for somebody for whom it was asked."""
        call = story.calls.get(event.call) if event.call is not None else None
        word = body.get("decision")
        if (
            call is None
            or call.asking is None
            or not isinstance(word, dict)
            or word.get("approve") is not True
        ):
            return
        who, asked_by = str(word.get("who")), {call.asking.requester}
        if call.asking.behind and self._leads_as_before(event.tenant, call.asking.at, event.recorded_at):
            asked_by |= call.asking.behind
        if _NAME.fullmatch(who) is None:
            told = f"{who!a} approved {call.named}, and is no name: whoever asked may have another spelling"
            yield at(event, told, key=call.operation)
        if own := asked_by & {who, *told_names(word)}:
            told = f"{who} approved {call.named}, which was asked for by or for {min(own)}"
            yield at(event, told, key=call.operation)

    def _leads_as_before(self, tenant: str, asked: datetime, said: datetime) -> bool:
        return not any(asked - self.tolerance <= when <= said for when in self.shaken.get(tenant, ()))

    def _shut(self, spans: Iterable[_Span], when: datetime) -> str | None:
        for one in spans:
            if one.since + self.tolerance < when and (one.until is None or when < one.until):
                return f"since {one.since.isoformat()}: {one.why}"
        return None

    @staticmethod
    def _found(call: CallStory, number: int, why: str, event: Any) -> Violation:
        return at(event, f"attempt {number} of {call.named} was started although {why}", key=call.operation)


def _ends(change: ChangeRow, said: dict[str, Any]) -> Iterator[datetime]:
    """When delegations ceased, by this change, to lead where they had led."""
    if change.about == "principals" and said["disabled_at"] is not None:
        yield change.at
    elif change.about == "delegations":
        if change.change != "insert":
            yield change.at
        if (until := moment(said["until"])) is not None:
            yield until


def _note(spans: list[_Span], change: ChangeRow, said: dict[str, Any], *, shut: bool) -> None:
    is_shut = bool(spans) and spans[-1].until is None
    if shut and not is_shut:
        spans.append(_Span(change.at, None, str(said.get("reason") or "no reason was given")))
    elif not shut and is_shut:
        spans[-1] = spans[-1]._replace(until=change.at)
