"""Many histories: in this process, or in several, each with a Postgres of its own.

A history that raises is a failure of its own kind, and so is one that hangs in real time: whoever runs it is
killed and replaced, and the others go on.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import signal
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any, Final, Self
from typing import Protocol as Port

from fencepost.errors import Unreachable
from fencepost_ops.drill.drill import Drill
from fencepost_ops.drill.outcome import Outcome
from fencepost_ops.drill.protocol import Protocol
from fencepost_ops.processes import LocalServerError

HUNG_S: Final = 180.0
"""How long a history may take in real time; most take a tenth of a second, on a quiet machine."""
_OPENED_S: Final = 300.0
UNSETTLED: Final = "unsettled"
UNEXPECTED: Final = "unexpected"
HUNG: Final = "hung"
RAISED: Final = "raised"


@dataclass(frozen=True, slots=True)
class Told:
    """What is kept of one history among many.

    `kinds` says in which ways it failed: violated invariants by name, `unsettled`, `unexpected` (another
    result than the protocol expects), `hung`, or `raised` with the exception's name; empty where it is fine.
    `missed` is how many of its faults never struck. `digest` stands for its whole outcome.
    """

    number: int
    protocol: Protocol
    kinds: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    passages: Mapping[str, int] = field(default_factory=dict)
    before: Mapping[str, int] = field(default_factory=dict)
    missed: int = 0
    attempts: int = 0
    effects: int = 0
    waiting: int = 0
    noted: tuple[str, ...] = ()
    steps: int = 0
    took_s: float = 0.0
    digest: str = ""

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong with it."""
        return not self.kinds


class Runs(Port):
    """Whoever runs many histories."""

    def run(self, histories: Iterable[tuple[int, Protocol]]) -> Iterator[Told]:
        """Each of them, in whichever order they end."""
        ...


def kinds(outcome: Outcome) -> tuple[str, ...]:
    """In which ways a history failed."""
    found = [] if outcome.settled else [UNSETTLED]
    found += [name for name in outcome.report.violated if name not in outcome.protocol.expect.violated]
    return tuple(found or ([] if outcome.ok else [UNEXPECTED]))


def _problems(outcome: Outcome) -> tuple[str, ...]:
    told = [
        f"{verdict.invariant}: {violation.message}"
        for verdict in outcome.report.verdicts
        for violation in verdict.violations
    ]
    return (*outcome.problems, *told)


def tell(drill: Drill, number: int, protocol: Protocol) -> Told:
    """Run one history and keep what matters."""
    began = time.monotonic()
    try:
        outcome = drill.run(protocol)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is this history's failure
        name = type(error).__name__
        return Told(
            number, protocol, (f"{RAISED} {name}",), (f"it raised {name}: {error}",),
            took_s=time.monotonic() - began,
        )  # fmt: skip
    text = json.dumps(outcome.to_json(), sort_keys=True)
    return Told(
        number,
        protocol,
        kinds(outcome),
        _problems(outcome),
        dict(outcome.passages),
        dict(outcome.before),
        len(outcome.never),
        sum(call.attempts for call in outcome.calls),
        sum(outcome.effects.values()),
        len(outcome.report.waiting),
        tuple(v.invariant for v in outcome.report.verdicts if v.notes),
        outcome.steps,
        time.monotonic() - began,
        hashlib.sha256(text.encode()).hexdigest(),
    )


class Alone:
    """One after the other, in this process. A history that hangs hangs it."""

    def __init__(self, drill: Drill) -> None:
        self._drill = drill

    def run(self, histories: Iterable[tuple[int, Protocol]]) -> Iterator[Told]:
        """See `Runs`."""
        for number, protocol in histories:
            yield tell(self._drill, number, protocol)


@dataclass
class _Hand:
    process: Any
    line: Connection
    ready: bool = False
    doing: tuple[int, Protocol] | None = None
    since: float = 0.0

    def give(self, what: tuple[int, Protocol]) -> None:
        self.line.send((what[0], what[1].model_dump_json()))
        self.doing, self.since = what, time.monotonic()

    def late(self, within_s: float) -> bool:
        limit = within_s if self.ready else _OPENED_S
        return (self.doing is not None or not self.ready) and time.monotonic() - self.since > limit

    def end(self) -> None:
        self.line.close()
        self.process.join(1.0)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


class Crew:
    """Several processes side by side, each with a drill of its own. They end with the block, and with us."""

    def __init__(self, size: int, hung_s: float = HUNG_S) -> None:
        self._size = size
        self._hung_s = hung_s
        self._spawn = multiprocessing.get_context("spawn")
        self._hands: list[_Hand] = []

    def __enter__(self) -> Self:
        self._hands = [self._hire() for _ in range(self._size)]
        return self

    def __exit__(self, *_: object) -> None:
        for hand in self._hands:
            hand.end()

    def run(self, histories: Iterable[tuple[int, Protocol]]) -> Iterator[Told]:
        """See `Runs`. Raises Unreachable where no Postgres can be started."""
        left = deque(histories)
        while left or any(hand.doing for hand in self._hands):
            for hand in self._hands:
                if hand.ready and hand.doing is None and left:
                    hand.give(left.popleft())
            heard = wait([hand.line for hand in self._hands], timeout=1.0)
            for hand in list(self._hands):
                told = self._heard(hand) if hand.line in heard else self._overdue(hand)
                if told is not None:
                    yield told

    def _heard(self, hand: _Hand) -> Told | None:
        try:
            said = hand.line.recv()
        except (EOFError, OSError):
            return self._lost(hand, "the process that ran it died")
        if isinstance(said, str):
            raise Unreachable(said)
        hand.ready, hand.doing = True, None
        return said if isinstance(said, Told) else None

    def _overdue(self, hand: _Hand) -> Told | None:
        if not hand.late(self._hung_s):
            return None
        hand.process.kill()
        limit_s = self._hung_s if hand.ready else _OPENED_S
        return self._lost(hand, f"it took more than {limit_s:g} s and was ended")

    def _lost(self, hand: _Hand, why: str) -> Told:
        if hand.doing is None:
            raise Unreachable(f"a process for drills did not come up: {why}")
        number, protocol = hand.doing
        hand.end()
        self._hands[self._hands.index(hand)] = self._hire()
        return Told(number, protocol, (HUNG,), (why,), took_s=time.monotonic() - hand.since)

    def _hire(self) -> _Hand:
        ours, theirs = self._spawn.Pipe()
        process = self._spawn.Process(target=_work, args=(theirs,), daemon=True)
        process.start()
        theirs.close()
        return _Hand(process, ours, since=time.monotonic())


def _work(line: Connection) -> None:
    """A process of a crew: until its line is closed. Ctrl-C is for whoever started it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(EOFError, OSError):
        try:
            with Drill.opened() as drill:
                line.send(True)
                while True:
                    number, text = line.recv()
                    line.send(tell(drill, number, Protocol.model_validate_json(text)))
        except LocalServerError as error:
            line.send(str(error))
