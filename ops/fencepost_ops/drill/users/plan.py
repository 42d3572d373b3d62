"""Which histories a user's tool is put through. PURE.

After one without faults: whatever its contract invites (a slow network, a gateway that answers in the
service's place, the fleet away until just before the window's end, the same intent asked for twice, a lookup
that is lost, late or answered by a gateway), then every fault point × everything that can befall it × every
passage of this tool's own run; those around the request first.
"""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from fencepost.contracts import WHILE_IT_EXISTS, Dedupes
from fencepost.errors import UsageError
from fencepost.testing import POINTS
from fencepost.tools import PER_PROPOSAL, Tool
from fencepost_ops.drill.protocol import LOSES, WIRES, Asked, Event, Fault, Fleet, Protocol

PLANNER: Final = "fencepost.drill"
"""Proposes the one call its run's input tells."""
GATEWAY: Final = (502, 504)
AGAIN: Final = "again"
OTHER: Final = "other"
"""Run keys of a second run, by which a history is known for what it is, whatever its name."""
PAGE: Final = 200
"""A captive portal's or a maintenance page's status."""
_QUESTIONS: Final = 40  # a protocol has at most fifty faults
_NAME_CHARS: Final = 100
_TAIL_CHARS: Final = 80
_FLEET: Final = Fleet(compensator=1)
_NEAR: Final = ("dispatch.", "reconcile.", "ledger.", "compensate.")
_MOST_S: Final = 86_400.0  # a fault lasts no longer
_AWAY_FROM_S: Final = 1.0  # by then the first attempt has been made, and nobody has taken over
_YEAR_S: Final = 365 * 86_400.0


@dataclass(frozen=True)
class Case:
    """What is swept: the tool, if one is named, and the run that is asked for."""

    name: str
    tool: Tool | None
    run: Asked
    other: Asked | None = None
    again: bool = True

    def protocol(self, name: str, about: str = "", **fields: Any) -> Protocol:
        """A history of it."""
        cut = name[-_TAIL_CHARS:]
        told = f"{self.name[: _NAME_CHARS - 1 - len(cut)]}.{cut}".replace(" ", "-")
        given: dict[str, Any] = {"runs": [self.run], "fleet": _FLEET, "app": f"test:{self.name}"} | fields
        return Protocol(name=told, about=about, **given)

    def completed(self, given: Protocol) -> Protocol:
        """A protocol for this case: one that says nothing of its runs has the run of this call."""
        missing = {"runs": [self.run], "fleet": _FLEET, "app": f"test:{self.name}"}
        return given.model_copy(update={n: v for n, v in missing.items() if n not in given.model_fields_set})

    def struck(self, *faults: Fault) -> Protocol:
        """One with these faults."""
        return self.protocol(
            "+".join(f"{f.do}.{f.at}.{f.nth}" for f in faults).replace("+", ":"), faults=list(faults)
        )


def wanted(tool: Tool | None, given: Mapping[str, Any]) -> Asked:
    """The run to ask for. Its deadline leaves time for all that a sweep lets pass."""
    spec = None if tool is None else tool.dependency
    least = 120.0
    if tool is not None and spec is not None:
        settle = 0.0 if tool.contract.settle is None else tool.contract.settle.total_seconds()
        attempt = (spec.per_attempt + spec.grace + spec.backoff_cap).total_seconds() + settle
        least = max(least, spec.attempts * attempt + spec.reserve.total_seconds())
    return Asked(**{"deadline_s": least, "on_stop": "leave", "planner": PLANNER, **given})


LOST: Final = {
    "dispatch.before_wire": "the request is lost on its way",
    "dispatch.response_lost": "the answer is lost on its way",
}


def invited(case: Case, passages: Mapping[str, int]) -> Iterator[Protocol]:
    """What the network and the tool's own contract invite."""
    tool = case.tool
    for point, about in LOST.items():
        if passages.get(point):
            yield case.protocol(f"lost.{point}", about, faults=[Fault(at=point, do="lost")])
    if tool is not None:
        yield from _window(case, tool)
    if case.again and not (tool is not None and tool.intent is PER_PROPOSAL):
        twin = case.run.model_copy(update={"run_key": AGAIN, "at_s": 1.0})
        yield case.protocol(AGAIN, "two runs ask for the same intent", runs=[case.run, twin])
    if case.other is not None:
        yield case.protocol(OTHER, "another run asks for another intent", runs=[case.run, case.other])
    if tool is not None:
        yield from _delays(case, tool)
    if tool is not None and tool.kind == "http":
        yield from _gateways(case)


def asks(protocol: Protocol, passages: Mapping[str, int]) -> bool:
    """Whether a history has a lookup worth striking: after one fault that leaves the outcome unknown."""
    doubts = {(point, "lost") for point in LOST}
    if not passages.get("dispatch.response_lost"):
        doubts.add(("dispatch.after_effect", "crash"))
    if len(protocol.faults) != 1 or not passages.get(WIRES[1]):
        return False
    (fault,) = protocol.faults
    return (fault.at, fault.do) in doubts and fault.nth == 1 and fault.answers is None


def questions(case: Case, doubt: Protocol, times: int) -> Iterator[Protocol]:
    """What the network does to the lookups of a history that `asks`: to so many of them, until one would be
    believed that says absent.
    """
    (first,), attempt = doubt.faults, 0.0
    if case.tool is not None:
        attempt = case.tool.dependency.per_attempt.total_seconds()
    befalls: dict[str, tuple[str, dict[str, Any]]] = {
        str(status): (f"a gateway answers each lookup {status}", {"do": "lost", "answers": status})
        for status in (*GATEWAY, PAGE)
    }
    befalls["lost"] = "each lookup is lost on its way", {"do": "lost"}
    befalls["late"] = "each lookup comes too late", {"do": "delay", "for_s": min(2 * attempt, _MOST_S) or 1.0}
    for name, (about, what) in befalls.items():
        asked = [Fault.model_validate({"at": WIRES[1], "nth": nth} | what) for nth in range(1, times + 1)]
        told = f"lookup.{name}.{first.do}.{first.at}"
        yield case.protocol(told, f"{about}, {times} in all", faults=[first, *asked[:_QUESTIONS]])


def _gateways(case: Case) -> Iterator[Protocol]:
    wire = "dispatch.before_wire"
    for status in (PAGE, *GATEWAY):
        what = f"a gateway answers {status}"
        lost = Fault(at=wire, do="lost", answers=status)
        yield case.protocol(f"gateway.{status}", f"{what}; the service got nothing", faults=[lost])
    for status in GATEWAY:
        late = Fault(at=wire, do="delay", for_s=0.5, answers=status)
        what = f"a gateway answers {status}, and the service does it all the same"
        yield case.protocol(f"gateway.{status}.late", what, faults=[late])


def _delays(case: Case, tool: Tool) -> Iterator[Protocol]:
    attempt = tool.dependency.per_attempt.total_seconds()
    settle = 0.0 if tool.contract.settle is None else tool.contract.settle.total_seconds()
    spans = {
        "slow": (attempt / 2, "the request takes half the attempt's time"),
        "late": (attempt + max(settle - 0.1, 0.0), "the request lands as late as the contract allows"),
    }
    for name, (span, about) in spans.items():
        if 0 < span <= _MOST_S:
            fault = Fault(at="dispatch.before_wire", do="delay", for_s=span)
            yield case.protocol(f"network.{name}", about, faults=[fault])


def _window(case: Case, tool: Tool) -> Iterator[Protocol]:
    """The fleet is away, from after the effect until the last moment at which a repeat is allowed."""
    repeat = tool.contract.repeat
    if not isinstance(repeat, Dedupes) or repeat.window >= WHILE_IT_EXISTS:
        return
    spec, settle = tool.dependency, tool.contract.settle
    room = (repeat.window - spec.margin - spec.per_attempt).total_seconds()
    until = room - (0.0 if settle is None else settle.total_seconds()) - 1.0
    if not _AWAY_FROM_S + 1 < until < _YEAR_S:
        return
    run = case.run.model_copy(update={"deadline_s": until + case.run.deadline_s + 3600.0})
    yield case.protocol(
        "window",
        "after the effect everything stands still until just before the end of the contract's window",
        runs=[run],
        faults=[Fault(at="dispatch.after_effect", do="pause")],
        events=[Event(at_s=_AWAY_FROM_S, do="redis_away"), Event(at_s=until, do="redis_back")],
    )


def singles(passages: Mapping[str, int], only: Sequence[str]) -> list[Fault]:
    """Every single fault at the points this history passed, those around the request first."""
    points = sorted(
        (point for point in passages if matched(point, only)),
        key=lambda point: (next((n for n, p in enumerate(_NEAR) if point.startswith(p)), len(_NEAR)), point),
    )
    return [
        Fault.model_validate({"at": point, "do": do, "nth": nth})
        for point in points
        for nth in range(1, passages[point] + 1)
        for do in ("crash", "pause", "error", *(("lost",) if point in LOSES else ()))
        if not (point in LOST and nth == 1 and do == "lost")
        if not (point == "dispatch.response_lost" and do == "error")  # which is the same as lost there
    ]


def seconds(before: Mapping[str, int], passages: Mapping[str, int], only: Sequence[str]) -> list[Fault]:
    """The second faults of a pair: at the first passage of each point that comes after the first fault."""
    return [
        Fault.model_validate({"at": point, "do": do, "nth": before.get(point, 0) + 1})
        for point in sorted(passages)
        if passages[point] > before.get(point, 0) and matched(point, only) and paired(point)
        for do in ("crash", "pause", *(("lost",) if point in LOSES else ()))
    ]


def paired(point: str) -> bool:
    """Whether a point is one of those whose pairs are swept: around the request and its reconciliation."""
    return point.startswith(("dispatch.", "reconcile."))


def check_patterns(only: Sequence[str]) -> None:
    """UsageError for a pattern that no fault point there is could ever match."""
    for pattern in only:
        if not any(matched(point, [pattern]) for point in POINTS):
            near = difflib.get_close_matches(pattern, sorted(POINTS), 1, 0.4)
            meant = f"; did you mean {near[0]!r}?" if near else ""
            raise UsageError(f"only={pattern!r} matches no fault point{meant}")


def matched(point: str, only: Sequence[str]) -> bool:
    """Whether a point is asked for."""
    return any(fnmatch.fnmatchcase(point, pattern) for pattern in only)
