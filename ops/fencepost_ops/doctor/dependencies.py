"""The one retry owner (R4): dependencies that are left alone just now, and retries nobody asked for. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from fencepost_ops.commands.durations import spoken
from fencepost_ops.doctor.facts import Dependency, Retries
from fencepost_ops.doctor.findings import Area, Finding, Unread

_AREA = Area("dependencies")


def judge_dependencies(found: Retries | Unread) -> Iterator[Finding]:
    """What an operator has to know of dependencies: closed ones, and hidden retries as an alarm."""
    if isinstance(found, Unread):
        yield _AREA.unread("dependencies", found)
        return
    for one in found.dependencies:
        yield _AREA.warning(_left_alone(one), "it is tried again by itself; see whether the service is up")
    if not found.dependencies:
        yield _AREA.ok("none is closed")
    if found.hidden:
        attempts = "attempt" if found.hidden == 1 else "attempts"
        yield _AREA.problem(
            f"{found.hidden} {attempts} of the last day sent a request more than once: something retries "
            "behind our back, and may double an effect",
            "see which tools: fencepost stats; which clients: fencepost doctor --retries",
        )
    else:
        yield _AREA.ok("no attempt of the last day sent a request more than once")


def _left_alone(one: Dependency) -> str:
    """Why, since when and until when, and who waits."""
    since = f"for {spoken(timedelta(seconds=one.age_s))}"
    until = f", {spoken(timedelta(seconds=one.left_s))} more at least" if one.left_s else ""
    how = "is being tried again" if one.state == "half_open" else "is left alone"
    waits = f"{one.waiting} call{'' if one.waiting == 1 else 's'} may wait for it"
    return f"{one.scope} {how} {since}{until} ({one.reason}); {waits}"
