"""Defences in who may claim: generations, leases and fences, and what is left when one of them is gone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from fencepost import commands as c
from fencepost.decide.fold import Fold
from fencepost.leases import Want
from fencepost.ledger import folding
from fencepost.records import amended
from fencepost_ops.drill.protocol import Asked, Event, Expect, Fault, Limits, Protocol
from fencepost_ops.drill.redis import VirtualRedis
from fencepost_ops.drill.sabotages.decisions import calls, once
from fencepost_ops.drill.sabotages.switch import (
    EXPECTATION,
    POSTGRES,
    STAND_IN,
    Off,
    Sabotage,
    code,
    entry,
    every,
    in_depth,
    muted,
)
from fencepost_workers.role import Message
from fencepost_workers.step import Step

Made = Callable[..., Any]
_DECIDE = folding._DECIDE  # noqa: SLF001 - what is switched off
THE_CLAIM: Final = "the claim"


class _Any(int):
    """A generation that is every generation."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, int)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = int.__hash__


def _any_generation(handle: Made) -> Made:
    def handled(step: Any, messages: Sequence[Message]) -> Any:
        return handle(step, [(tenant, subject, _Any(number)) for tenant, subject, number in messages])

    return handled


def _due_already(judge: Made) -> Made:
    def judged(one: Any, command: c.Claim, tray: Any) -> Any:
        if tray.row is not None:
            tray.row = amended(tray.row, due_at=tray.now)
        return judge(one, command, tray)

    return judged


def _to_anybody(granted_: Made) -> Made:
    def grant(redis: Any, want: Want) -> int | None:
        redis._leases.pop(want.key, None)  # noqa: SLF001 - as its own code would
        return granted_(redis, want)  # type: ignore[no-any-return]

    return grant


def _for_anybody(release: Made) -> Made:
    def released(redis: Any, holds: Sequence[tuple[str, str]]) -> None:
        leases = redis._leases  # noqa: SLF001 - as its own code would
        release(redis, [(key, leases.get(key, (owner,))[0]) for key, owner in holds])

    return released


def _without_floor(granted_: Made) -> Made:
    return lambda redis, want: granted_(redis, replace(want, floor=0))


def _any_fence(claim: Made) -> Made:
    def claimed(tray: Any, command: c.Claim) -> Any:
        view, subject = tray.view, command.subject
        if subject in view.calls:
            below = amended(view.calls[subject], fence=command.term.fence - 1)
            tray.view = replace(view, calls={**view.calls, subject: below})
        else:
            tray.view = replace(view, run=amended(view.run, fence=command.term.fence - 1))
        return claim(tray, command)

    return claimed


_ANY_FENCE: Final = every(
    *(entry(_DECIDE, kind, _any_fence) for kind in (c.ClaimRun, c.ClaimCall, c.ClaimDoubt, c.ClaimStopped))
)
_FLOOR: Final = code(VirtualRedis, "_granted", _without_floor)
_FOLDING: Final = folding.Folding
_GENERATION: Final[Off] = every(code(Step, "handle", _any_generation), code(_FOLDING, "_judge", _due_already))
_LEASE: Final = code(VirtualRedis, "_granted", _to_anybody)
_OLD_MESSAGE: Final = (
    "an old or doubled message opens nothing: a claim moves the generation its message names, once due; "
    "without that a worker that is alive is taken for lost, and a person has to look"
)
_DOUBLED: Final = Protocol(
    name="sabotage.generation_ignored",
    runs=calls("dedupes"),
    limits=Limits(takeovers=1),
    faults=[
        Fault(at="dispatch.response_lost", do="lost"),
        Fault(at="dispatch.before_wire", do="pause", nth=2, for_s=1),
    ],
    events=[Event(at_s=0.0055, do="double_messages")],
    expect=once("dedupes"),
)
_WIPED: Final = [Event(at_s=0.0055, do="wipe_redis")]

CLAIMS: Final = (
    Sabotage(
        name="generation_ignored.claim",
        invariant=EXPECTATION,
        about=_OLD_MESSAGE,
        off=_GENERATION,
        shows=_DOUBLED,
        held_by="the lease",
    ),
    Sabotage(
        name="generation_ignored",
        invariant=EXPECTATION,
        about=_OLD_MESSAGE,
        off=every(_GENERATION, _LEASE),
        shows=_DOUBLED,
        layer="code + lease",
    ),
    Sabotage(
        name="lease_to_anybody",
        invariant="I5",
        about="Redis grants a lease to one holder at a time; that it does not, costs nothing but work",
        off=_LEASE,
        layer=STAND_IN,
        held_by=THE_CLAIM,
        shows=Protocol(
            name="sabotage.lease_to_anybody",
            runs=calls("lookup"),
            faults=[Fault(at="dispatch.after_lease", do="pause", for_s=1)],
            events=[Event(at_s=0.0035, do="double_messages")],
            expect=once("lookup"),
        ),
    ),
    Sabotage(
        name="lease_released_by_anybody",
        invariant="I5",
        about="a lease is given back by its holder alone; that a late one frees another's costs only work",
        off=code(VirtualRedis, "release", _for_anybody),
        layer=STAND_IN,
        held_by=THE_CLAIM,
        shows=Protocol(
            name="sabotage.lease_released_by_anybody",
            runs=calls("lookup"),
            faults=[Fault(at="dispatch.after_lease", do="pause", for_s=1)],
            events=[Event(at_s=0.0035, do="double_messages")],
            expect=once("lookup"),
        ),
    ),
    Sabotage(
        name="floor_ignored",
        invariant="I5",
        about="a wiped Redis goes on above the fence that Postgres has accepted",
        off=_FLOOR,
        layer=STAND_IN,
        held_by=THE_CLAIM,
        shows=Protocol(
            name="sabotage.floor_ignored",
            runs=[Asked(planner="two")],
            events=_WIPED,
            expect=Expect(effects={"dedupes": 2}, runs=["COMPLETED"]),
        ),
    ),
    Sabotage(
        name="term_not_presented",
        invariant="I5",
        about="every change says under which term or office it is made; what says none is refused",
        off=code(Fold, "present", lambda _present: lambda *_given: None),
        held_by=POSTGRES,
        shows=Protocol(name="sabotage.term_not_presented", runs=calls("dedupes"), expect=once("dedupes")),
    ),
    *in_depth(
        Sabotage(
            name="fence_ignored",
            invariant="I5",
            about="a claim is accepted only with a higher fence than the last one",
            off=every(_FLOOR, _ANY_FENCE),
            shows=Protocol(
                name="sabotage.fence_ignored",
                runs=[Asked(planner="two")],
                events=_WIPED,
                expect=Expect(effects={"dedupes": 2}, runs=["COMPLETED"]),
            ),
        ),
        every(
            muted("guard_run", "a fence never falls", "is not the accepted one"),
            muted("guard_call", "a fence never falls", "is not the accepted one"),
        ),
    ),
)
