"""Strikes on a live fleet: kills, freezes, deaths of hosts, armed fault points, servers that go away."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import redis

from fencepost.testing import FAULTS, arm_by_file
from fencepost_ops.chaos_plan import PRODUCER, SCALE, Arm, Doze, HostDeath, Strike, Weather
from fencepost_ops.chaos_takeovers import Struck, Takeovers, now
from fencepost_ops.demo_plan import Kill
from fencepost_ops.fleet import Fleet, FleetOptions

PATIENCE_S: Final = 1.5  # how long to wait until a process of the role has something in hand
LOOK_EVERY_S: Final = 0.02
AWAY_S: Final = 0.5  # how long a killed server stays away
PAUSED_S: Final = 4.0  # how long a process sleeps that was paused by a fault point: longer than its takeover

_BUSY: Final = """
SELECT w.pid FROM fencepost.outbox o JOIN fencepost.workers w ON w.token = o.worker
WHERE w.role = %s AND w.ended_at IS NULL GROUP BY w.pid ORDER BY count(*) DESC, w.pid
"""


def fault_files(folder: Path, scale: dict[str, int]) -> dict[str, dict[str, str]]:
    """By process name, the environment by which it is armed: it follows the file `faults.ROLE`."""
    fleet = Fleet(FleetOptions(scale=scale))
    return {
        name: {"FENCEPOST_FAULT_FOLLOW": str(folder / f"faults.{role}")}
        for role in SCALE
        for name in fleet.names(role)
    }


@dataclass(slots=True)
class _Asleep:
    name: str
    pids: tuple[int, ...]
    until: float
    struck: int | None  # its place among what is measured


@dataclass(slots=True)
class Strikes:
    """Strikes a fleet; `look` wakes who has slept long enough, `say` is told of everything."""

    fleet: Fleet
    takeovers: Takeovers
    folder: Path
    say: Callable[[str], object]
    done: dict[str, int] = field(default_factory=dict)
    _asleep: list[_Asleep] = field(default_factory=list)
    _armed: dict[str, list[str]] = field(default_factory=dict)

    def strike(self, one: Strike) -> None:
        """Do it, and return when it is done; sleepers sleep on."""
        if isinstance(one, Arm):
            self._arm(one)
        elif isinstance(one, Weather):
            self._weather(one.server)
        else:
            self._hit(one)

    def look(self) -> bool:
        """Wake who has slept long enough, whoever sent them to sleep; whether nobody sleeps."""
        known = {pid for one in self._asleep for pid in one.pids}
        for name, pid in self.fleet.pids().items():
            if pid not in known and stopped(pid):
                self._asleep.append(_Asleep(name, (pid,), time.monotonic() + PAUSED_S, None))
                self._count("paused")
        for one in list(self._asleep):
            if time.monotonic() >= one.until:
                self._wake(one)
        return not self._asleep

    def calm(self) -> None:
        """Disarm everything, wake everybody, start what is down."""
        for role in SCALE:
            (self.folder / f"faults.{role}").unlink(missing_ok=True)
        FAULTS.disarm()
        for one in list(self._asleep):
            self._wake(one)
        self.fleet.mend()

    def _hit(self, one: Kill | Doze | HostDeath) -> None:
        found = self._victim(one.role)
        if found is None:
            self.say(f"no {one.role} was awake to be struck")
            return
        name, pid = found
        host = isinstance(one, HostDeath) or (isinstance(one, Doze) and one.host)
        pids = (*children(pid), pid) if host else (pid,)
        held = self.takeovers.held(pid)
        how = "host death" if host else "freeze" if isinstance(one, Doze) else "kill"
        number = signal.SIGSTOP if isinstance(one, Doze) else signal.SIGKILL
        self.takeovers.struck.append(Struck(how, now(), held))
        for each in pids:
            with suppress(ProcessLookupError):
                os.kill(each, number)
        if isinstance(one, Doze):
            place = len(self.takeovers.struck) - 1
            self._asleep.append(_Asleep(name, pids, time.monotonic() + one.for_s, place))
        done = "froze" if isinstance(one, Doze) else "killed"
        self._count(("host " if host else "") + ("freezes" if isinstance(one, Doze) else "kills"))
        self.say(
            f"{done} {name} (pid {pid}){' and its pulse' if host else ''}, with {len(held)} items in hand"
        )

    def _victim(self, role: str) -> tuple[str, int] | None:
        """An awake process of the role, the busiest; some other once nothing has been in hand for a while."""
        until = time.monotonic() + PATIENCE_S
        while True:
            sleeping = {pid for one in self._asleep for pid in one.pids}
            awake = {pid: name for name, pid in self.fleet.pids(role).items() if pid not in sleeping}
            busy = [pid for (pid,) in self.takeovers.reader.execute(_BUSY, [role]) if pid in awake]
            if busy:
                return awake[busy[0]], busy[0]
            if role == "relay" or time.monotonic() > until:
                return next(((awake[pid], pid) for pid in sorted(awake)), None)
            self.look()
            time.sleep(LOOK_EVERY_S)

    def _arm(self, one: Arm) -> None:
        if one.role == PRODUCER:
            FAULTS.arm(one.spec)
        else:
            # What has not fired yet stays armed.
            armed = self._armed.setdefault(one.role, [])
            armed.append(one.spec)
            once = self.folder / "once" / one.role
            arm_by_file(self.folder / f"faults.{one.role}", ",".join(armed), once)
        self._count("armed")
        self.say(f"armed {one.spec} in every {one.role}")

    @property
    def fired(self) -> list[str]:
        """The faults that have struck by now, in the fleet's processes."""
        return sorted(f"{path.parent.name}: {path.name}" for path in self.folder.glob("once/*/*.*.1"))

    def _weather(self, server: str) -> None:
        self._count("weather")
        self.takeovers.outages.append(now())
        if server == "flush":
            with redis.Redis.from_url(self.fleet.valkey.url()) as client:
                client.flushall()
            self.say("wiped Redis")
            return
        down = {"valkey": self._kill_valkey, "postgres": self._kill_postgres, "sandbox": self._kill_sandbox}
        down[server]()
        time.sleep(AWAY_S)
        self.say(f"took down and started again: {', '.join(self.fleet.mend())}")
        self.takeovers.outages.append(now())

    def _kill_valkey(self) -> None:
        os.kill(self.fleet.valkey.pid, signal.SIGKILL)

    def _kill_postgres(self) -> None:
        os.kill(self.fleet.postgres.pid, signal.SIGQUIT)

    def _kill_sandbox(self) -> None:
        assert self.fleet.sandbox is not None  # chaos has one
        self.fleet.sandbox.kill()

    def _wake(self, one: _Asleep) -> None:
        self._asleep.remove(one)
        if one.struck is not None:
            before = self.takeovers.struck[one.struck]
            self.takeovers.struck[one.struck] = replace(before, until=now())
        for pid in one.pids:
            if stopped(pid):
                os.kill(pid, signal.SIGCONT)
        self.say(f"woke {one.name}")

    def _count(self, what: str) -> None:
        self.done[what] = self.done.get(what, 0) + 1


def _stat(pid: int) -> list[str]:
    """What /proc says of a process after its name: state, parent and so on; nothing of one that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def stopped(pid: int) -> bool:
    """Whether a process is stopped by a signal."""
    return _stat(pid)[:1] == ["T"]


def children(pid: int) -> tuple[int, ...]:
    """The processes that this one has started."""
    everybody: Iterable[int] = (int(entry.name) for entry in Path("/proc").glob("[0-9]*"))
    return tuple(other for other in everybody if _stat(other)[1:2] == [str(pid)])
