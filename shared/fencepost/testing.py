"""Fault points: named places where a drill or a chaos run may crash, freeze or fail this process.

`FENCEPOST_FAULT="dispatch.after_effect=crash@1,relay.after_take=pause@2"` arms the nth passage of each named
point in this process: `crash` is SIGKILL, `pause` is SIGSTOP (whoever wants it to go on sends SIGCONT),
`error` raises FaultInjected. With `FENCEPOST_FAULT_ONCE_DIR` each entry fires once among all processes that
share the folder, restarts included. With `FENCEPOST_FAULT_FOLLOW` a process arms what that file holds
(`{"spec": ..., "once": folder}`) whenever it changes, so that faults can be armed in a fleet that runs.
Unarmed, a point costs one attribute check.
"""

import json
import os
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Lock, get_ident
from typing import Final

from fencepost.errors import FaultInjected, UsageError

__all__ = [
    "FAULTS",
    "POINTS",
    "FaultInjected",
    "FaultSpec",
    "Faults",
    "arm_by_file",
    "fault",
    "parse_faults",
]

POINTS: Final = frozenset(
    {
        "enqueue.before_commit",
        "enqueue.after_commit",
        "relay.after_judge",
        "relay.after_take",
        "relay.after_publish",
        "planner.after_claim",
        "planner.after_model",
        "planner.after_record",
        "dispatch.after_lease",
        "dispatch.after_claim",
        "dispatch.before_wire",
        "dispatch.response_lost",
        "dispatch.after_effect",
        "dispatch.after_record",
        "reconcile.after_lease",
        "reconcile.before_lookup",
        "reconcile.after_lookup",
        "reconcile.after_record",
        "compensate.after_plan",
        "sweep.after_look",
        "ledger.in_transaction",
    }
)
"""The closed set of names."""

_ENTRY = re.compile(r"(?P<point>[a-z._]+)=(?P<action>crash|pause|error)(?:@(?P<nth>[1-9]\d{0,8}))?")
_SIGNALS = {"crash": signal.SIGKILL, "pause": signal.SIGSTOP}
_LOOK_EVERY_S: Final = 0.03


@dataclass(frozen=True)
class FaultSpec:
    """One armed fault: what happens at the nth passage of a point."""

    point: str
    action: str
    nth: int = 1

    @property
    def marker(self) -> str:
        """The name of the file that says it has fired."""
        return f"{self.point}.{self.action}.{self.nth}"


def parse_faults(text: str) -> tuple[FaultSpec, ...]:
    """The faults a specification names; UsageError for an unknown point or a malformed entry."""
    faults = []
    for entry in filter(None, (part.strip() for part in text.split(","))):
        match = _ENTRY.fullmatch(entry)
        if match is None:
            raise UsageError(f"fault {entry!r} is not of the form point=crash|pause|error[@n]")
        if match["point"] not in POINTS:
            raise UsageError(f"unknown fault point {match['point']!r}; known are {', '.join(sorted(POINTS))}")
        faults.append(FaultSpec(match["point"], match["action"], int(match["nth"] or 1)))
    return tuple(faults)


def _signal_self(number: int) -> None:
    # To this very thread: another would take one sent to the process, while this one ran on past the point.
    signal.pthread_kill(get_ident(), number)


class Faults:
    """The armed faults of one process; safe to pass from several threads."""

    def __init__(self, send: Callable[[int], None] = _signal_self) -> None:
        self.armed = False
        self._send = send
        self._lock = Lock()
        self._faults: tuple[FaultSpec, ...] = ()
        self._once_dir: Path | None = None
        self._passed: Counter[str] = Counter()
        self._driver: Callable[[str], None] | None = None

    def drive(self, driver: Callable[[str], None] | None) -> None:
        """Tell `driver` of every passage, in its own thread, instead of anything armed; None: no more.

        A drill is one: it may raise FaultInjected, end the thread's work, or hold it up.
        """
        self._driver = driver
        self.armed = driver is not None or bool(self._faults)

    def arm(self, spec: str, once_dir: str | Path | None = None) -> None:
        """Replace what is armed, count from zero; an empty spec disarms. UsageError as `parse_faults`."""
        faults = parse_faults(spec)
        with self._lock:
            self._faults, self._passed = faults, Counter()
            self._once_dir = Path(once_dir) if once_dir else None
            self.armed = bool(faults) or self._driver is not None

    def disarm(self) -> None:
        """Nothing fires any more."""
        self.arm("")

    def arm_from(self, environment: Mapping[str, str]) -> None:
        """Arm what FENCEPOST_FAULT and FENCEPOST_FAULT_ONCE_DIR say."""
        self.arm(environment.get("FENCEPOST_FAULT", ""), environment.get("FENCEPOST_FAULT_ONCE_DIR"))

    def passed(self, point: str) -> None:
        """Count a passage and do what is armed for it; UsageError for a name outside the closed set."""
        if point not in POINTS:
            raise UsageError(f"unknown fault point {point!r}")
        if self._driver is not None:
            self._driver(point)
            return
        with self._lock:
            self._passed[point] += 1
            nth = self._passed[point]
            due = [f for f in self._faults if f.point == point and f.nth == nth and self._claim(f)]
        for one in due:
            if one.action == "error":
                raise FaultInjected(f"fault point {point}, passage {nth}")
            self._send(_SIGNALS[one.action])

    def _claim(self, spec: FaultSpec) -> bool:
        if self._once_dir is None:
            return True
        self._once_dir.mkdir(parents=True, exist_ok=True)
        try:
            os.close(os.open(self._once_dir / spec.marker, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            return False
        return True


def arm_by_file(path: Path, spec: str, once_dir: Path) -> None:
    """Have every process that follows `path` arm this; each then leaves a file `armed.PID` in the folder."""
    once_dir.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}.new")
    fresh.write_text(json.dumps({"spec": spec, "once": str(once_dir)}))
    fresh.rename(path)


def _follow(faults: Faults, path: Path) -> None:
    seen = ""
    while True:
        try:
            text = path.read_text()
        except FileNotFoundError:
            text = ""
        if text != seen:
            seen = text
            order = json.loads(text or '{"spec": "", "once": null}')
            faults.arm(order["spec"], order["once"])
            if order["once"]:
                (Path(order["once"]) / f"armed.{os.getpid()}").touch()
        time.sleep(_LOOK_EVERY_S)


FAULTS: Final = Faults()
FAULTS.arm_from(os.environ)
if _followed := os.environ.get("FENCEPOST_FAULT_FOLLOW"):
    threading.Thread(target=_follow, args=(FAULTS, Path(_followed)), daemon=True).start()


def fault(point: str) -> None:
    """A place where a fault may strike; nothing at all unless one is armed in this process."""
    if FAULTS.armed:
        FAULTS.passed(point)
