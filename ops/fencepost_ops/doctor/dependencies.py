"""The one retry owner (R4): dependencies that are left alone just now, and retries nobody asked for. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from fencepost_ops.commands.durations import spoken
from fencepost_ops.doctor.facts import Dependency, Provider, Retries
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
    yield from _waited_for(found.providers)
    if found.held:
        what = f"{found.held} call{' is' if found.held == 1 else 's are'} held, and nothing was sent"
        yield _AREA.warning(
            f"{what}: an MCP server offers something else than was pinned",
            "see what: fencepost mcp check; which: fencepost unresolved; pin it anew, or cancel the runs",
        )
    if found.hidden:
        attempts = "attempt" if found.hidden == 1 else "attempts"
        yield _AREA.problem(
            f"{found.hidden} {attempts} of the last day sent a request more than once: something retries "
            "behind our back, and may double an effect",
            "see which tools: fencepost stats; which clients: fencepost doctor --retries",
        )
    else:
        yield _AREA.ok("no attempt of the last day sent a request more than once")


def _waited_for(found: tuple[Provider, ...] | Unread) -> Iterator[Finding]:
    """The providers of models that runs wait for."""
    if isinstance(found, Unread):
        yield _AREA.unread("runs that wait for the provider of their model", found)
        return
    for one in found:
        runs = f"{one.runs} run waits" if one.runs == 1 else f"{one.runs} runs wait"
        whom = f"provider {one.scope}" if one.scope else "the provider of their model"
        if one.person:
            yield _AREA.warning(
                f"{runs} for a person, the first for {spoken(timedelta(seconds=one.age_s))} ({one.why})",
                "mend that before they stop at their deadlines; how each goes on: fencepost runs --waiting",
            )
            continue
        left = f"asked again in {spoken(timedelta(seconds=one.left_s))}" if one.left_s else "asked again now"
        yield _AREA.warning(
            f"{runs} for {whom}, the first for {spoken(timedelta(seconds=one.age_s))} ({one.why}); {left}",
            "they go on by themselves, or end at their deadlines; see whether it is up and what it allows; "
            "which runs: fencepost runs --waiting",
        )


def _left_alone(one: Dependency) -> str:
    """Why, since when and until when, and who waits."""
    since = f"for {spoken(timedelta(seconds=one.age_s))}"
    until = f", {spoken(timedelta(seconds=one.left_s))} more at least" if one.left_s else ""
    how = "is being tried again" if one.state == "half_open" else "is left alone"
    waits = f"; {one.waiting} call{'' if one.waiting == 1 else 's'} may wait for it" if one.waiting else ""
    return f"{one.scope} {how} {since}{until} ({one.reason}){waits}"
