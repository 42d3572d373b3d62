"""Strikes on a live fleet: kills, freezes, deaths of hosts, fault points, lost servers, weather, clocks,
and of authority.

No strike waits for what it needs: one that finds nobody to strike, or its wire foul already, is tried again.
"""

from __future__ import annotations

import itertools
import math
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

import psycopg

from fencepost.testing import FAULTS, arm_by_file, parse_faults
from fencepost_ops.chaos_plan import (
    PRODUCER,
    Arm,
    Doze,
    Foul,
    HostDeath,
    Jump,
    Loss,
    Shut,
    Strike,
    fault_of,
)
from fencepost_ops.chaos_processes import children, send, stopped, wake
from fencepost_ops.chaos_takeovers import Takeovers
from fencepost_ops.demo_plan import Kill
from fencepost_ops.fleet import ROLES
from fencepost_ops.weather import Proxy

PATIENCE_S: Final = 1.5  # how long a strike waits for a process of the role that has something in hand
COMPANY_WITHIN_S: Final = (
    10.0  # and until another of the role is at work: on a slow machine starting takes long
)
PAUSED_S: Final = 4.0  # how long a process sleeps that was paused by a fault point: longer than its takeover

BUSY: Final = """
SELECT w.pid FROM fencepost.outbox o JOIN fencepost.workers w ON w.token = o.worker
WHERE w.role = %s AND w.ended_at IS NULL GROUP BY w.pid ORDER BY count(*) DESC, w.pid
"""
AT_WORK: Final = "SELECT pid FROM fencepost.workers WHERE role = %s AND ended_at IS NULL"


class Struck(Protocol):
    """A fleet that can be struck."""

    @property
    def wires(self) -> Mapping[str, Proxy]:
        """The wires its processes go through; none where they go straight."""
        ...

    def pids(self, role: str | None = None) -> dict[str, int]:
        """Its processes by name, those of a role or all."""
        ...

    def lose(self, fault: str) -> None:
        """Wipe Redis or kill a server, and return when it is there again."""
        ...

    def move_clock(self, ahead_s: float) -> None:
        """Put the ledger's clock ahead of the machine's."""
        ...

    def shut(self, *, principal: bool) -> Callable[[], object]:
        """Disable the principal of its orders, or withdraw a tool of theirs; what lets them in again."""
        ...


@dataclass(slots=True)
class _Passing:
    """What is over after a while, and how."""

    what: str
    until: float
    undo: Callable[[], object]
    pids: tuple[int, ...] = ()


@dataclass(slots=True)
class Strikes:
    """Strikes a fleet; `look` ends what has lasted long enough, `say` is told of everything.

    `done` counts the strikes of each fault, `armed` the fault points, `in_hand` the strikes at a process that
    held work at that moment.
    """

    fleet: Struck
    takeovers: Takeovers
    folder: Path
    say: Callable[[str], object]
    done: Counter[str] = field(default_factory=Counter)
    armed: int = 0
    in_hand: Counter[str] = field(default_factory=Counter)
    _passing: list[_Passing] = field(default_factory=list)
    _most: dict[str, int] = field(default_factory=dict)  # processes of a role that were there at once
    _armed: dict[str, list[str]] = field(default_factory=dict)

    def strike(self, one: Strike, *, waited_s: float = math.inf) -> bool:
        """Do it; False if it cannot be done now, or is better done soon, the more so the less it has waited:
        to a process with work in hand, and of a role of which another one is at work.
        """
        if isinstance(one, Arm):
            done = self._arm(one)
        elif isinstance(one, Loss):
            done = self._lose(one)
        elif isinstance(one, Foul):
            done = self._foul(one)
        elif isinstance(one, Jump):
            done = self._jump(one)
        elif isinstance(one, Shut):
            done = self._shut(one)
        else:
            done = self._hit(one, waited_s)
        if isinstance(one, Arm):
            self.armed += done
        elif done:
            self.done[fault_of(one)] += 1
        return done

    def look(self) -> bool:
        """End what has lasted long enough, wake who was paused by a fault point; whether nothing lasts."""
        known = {pid for one in self._passing for pid in one.pids}
        for name, pid in self.fleet.pids().items():
            if pid not in known and stopped(pid):
                self._last(f"a pause of {name}", PAUSED_S, lambda: None, (pid,))
        for one in list(self._passing):
            if time.monotonic() >= one.until:
                self._end(one)
        return not self._passing

    def calm(self) -> None:
        """Wake everybody, which needs no server; then disarm everything and end whatever lasts."""
        for one in self._passing:
            wake(one.pids)
        for role in ROLES:
            (self.folder / f"faults.{role}").unlink(missing_ok=True)
        FAULTS.disarm()
        for one in list(self._passing):
            with suppress(psycopg.Error, ProcessLookupError):  # a server that has ended for good
                self._end(one)

    def _last(
        self, what: str, for_s: float, undo: Callable[[], object], pids: tuple[int, ...] = ()
    ) -> _Passing:
        self._passing.append(one := _Passing(what, time.monotonic() + for_s, undo, pids))
        return one

    def _end(self, one: _Passing) -> None:
        wake(one.pids)  # before anything that may fail, or wait for a server
        self._passing.remove(one)
        one.undo()
        self.say(f"over: {one.what}")

    def _lasts(self, what: str) -> bool:
        return any(one.what == what for one in self._passing)

    def _hit(self, one: Kill | Doze | HostDeath, waited_s: float) -> bool:
        found = self._victim(one.role, waited_s)
        if found is None:
            return False
        name, pid = found
        fault, dozes = fault_of(one), isinstance(one, Doze)
        host = isinstance(one, HostDeath) or (isinstance(one, Doze) and one.host)
        pids = (*children(pid), pid) if host else (pid,)
        held = self.takeovers.held(pid)
        passing: _Passing | None = None
        if isinstance(one, Doze):  # noted first: however this is cut short, whoever sleeps is woken
            passing = self._last(f"a freeze of {name}", one.for_s, lambda: None, pids)
        number = signal.SIGSTOP if dozes else signal.SIGKILL
        signalled = send(
            pids,
            number,
            lambda each: each in (self.fleet.pids(one.role).values() if each == pid else children(pid)),
        )
        if pid not in signalled:  # it had just died of something else
            if passing is not None:
                self._passing.remove(passing)
                wake(pids)
            return False
        self.in_hand[fault] += bool(held)
        place = self.takeovers.struck(fault, held)
        if passing is not None:
            passing.undo = lambda: self.takeovers.woken(place)
        with_pulse = " and its pulse" if host else ""
        self.say(f"{fault}: {name} (pid {pid}){with_pulse}, with {len(held)} items in hand")
        return True

    def _victim(self, role: str, waited_s: float) -> tuple[str, int] | None:
        """An awake process of the role, the busiest; after a while, or of the relay, any."""
        sleeping = {pid for one in self._passing for pid in one.pids}
        alive = self.fleet.pids(role)
        awake = {pid: name for name, pid in alive.items() if pid not in sleeping}
        if waited_s < COMPANY_WITHIN_S and self._alone(role, len(alive), awake):
            return None
        busy = [pid for (pid,) in self.takeovers.reader.execute(BUSY, [role]) if pid in awake]
        if busy:
            return awake[busy[0]], busy[0]
        if waited_s < PATIENCE_S and role != "relay":
            return None
        return next(((awake[pid], pid) for pid in sorted(awake)), None)

    def _alone(self, role: str, alive: int, awake: Mapping[int, str]) -> bool:
        """Whether at most one of several workers of a role is at work."""
        self._most[role] = most = max(alive, self._most.get(role, 0))
        if most == 1 or role == "relay":
            return False
        at_work = {pid for (pid,) in self.takeovers.reader.execute(AT_WORK, [role])}
        return len(at_work & awake.keys()) < 2

    def _arm(self, one: Arm) -> bool:
        # What has not fired yet stays armed, and what has fired may fire again.
        once = self.folder / "once" / one.role
        rounds = len(list(once.glob("*"))) if once.exists() else 0
        fired = {path.name for path in once.glob(f"{rounds}/*")}
        left = [spec for spec in self._armed.get(one.role, []) if _marker(spec) not in fired]
        passages = (one.spec if nth == 1 else f"{one.spec}@{nth}" for nth in itertools.count(1))
        self._armed[one.role] = [*left, next(spec for spec in passages if spec not in left)]
        spec, folder = ",".join(self._armed[one.role]), once / str(rounds + 1)
        if one.role == PRODUCER:
            folder.mkdir(parents=True)
            FAULTS.arm(spec, folder)
        else:
            arm_by_file(self.folder / f"faults.{one.role}", spec, folder)
        self.say(f"fault-point: {self._armed[one.role][-1]} armed in every {one.role}")
        return True

    @property
    def fired(self) -> list[str]:
        """The fault points that have struck by now, in the fleet's processes and in this one."""
        return sorted(
            f"{path.parent.parent.name}: {path.name}"
            for path in self.folder.glob("once/*/*/*")
            if not path.name.startswith("armed.")
        )

    @property
    def injected(self) -> dict[str, int]:
        """How often each fault has struck; of the fault points only those that have fired."""
        fired = {"fault-point": len(self.fired)} if self.armed else {}
        return {**self.done, **fired}

    def _lose(self, one: Loss) -> bool:
        with self.takeovers.outage():
            self.fleet.lose(one.fault)
        self.say(f"{one.fault}: done, and back")
        return True

    def _foul(self, one: Foul) -> bool:
        what = f"foul weather between the fleet and {one.wire}"
        if self._lasts(what):
            return False
        wire, over = self.fleet.wires[one.wire], self.takeovers.begin_outage()
        begin(wire, one)

        def clear() -> None:
            if one.fault == "drop-response":
                wire.swallowing = False
                wire.reset()  # an answer that was lost stays lost, and what comes after it belongs to nobody
            wire.clear()
            over()

        self._last(what, one.for_s, clear)
        self.say(f"{one.fault}: between the fleet and {one.wire}, for {one.for_s:.1f} s{_how(one)}")
        return True

    def _jump(self, one: Jump) -> bool:
        what = "a clock that is ahead"
        if self._lasts(what):
            return False
        self.fleet.move_clock(one.ahead_s)
        over = self.takeovers.begin_outage(trail_s=one.ahead_s)  # what was due meanwhile is as late now

        def set_back() -> None:
            self.fleet.move_clock(0)
            over()

        self._last(what, one.for_s, set_back)
        self.say(f"clock: {one.ahead_s:g} s ahead, set back after {one.for_s:.1f} s")
        return True

    def _shut(self, one: Shut) -> bool:
        what = "a principal that is disabled" if one.principal else "a tool that is withdrawn"
        if self._lasts(what):
            return False
        self._last(what, one.for_s, self.fleet.shut(principal=one.principal))
        self.say(f"authority: {what}, for {one.for_s:.1f} s")
        return True


def begin(wire: Proxy, one: Foul) -> None:
    """Have a wire meet this weather."""
    if one.fault == "slow":
        wire.latency_s = one.latency_s
    elif one.fault == "drop-response":
        wire.swallowing = True
    elif one.silent:
        wire.hanging = True
        wire.black_hole()
    else:
        wire.refusing = True
        wire.reset()


def _how(one: Foul) -> str:
    if one.fault == "slow":
        return f", {one.latency_s * 1000:.0f} ms each way"
    if one.fault == "partition":
        return ", in silence" if one.silent else ", connections are cut"
    return ""


def _marker(spec: str) -> str:
    """The name of the file by which a fault point says that it has fired."""
    (one,) = parse_faults(spec)
    return one.marker
