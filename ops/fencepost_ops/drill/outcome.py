"""What came of one history: each fault with what it left behind, the end, and every verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fencepost_ops.checker import Report
from fencepost_ops.checker.chain import FIRST
from fencepost_ops.drill.because import held_by
from fencepost_ops.drill.protocol import Fault, Prediction, Protocol


@dataclass(frozen=True, slots=True)
class Left:
    """How the ledger stood right after a fault: what is durable, and who goes on from there.

    `record` names the last event of the struck subject, `owner` the queue of its outbox row, `generation`
    that row's own, `due_s` when it is due, in seconds of the history. `projection` is the one recorded with
    the run's last event, whose number is `seq`.
    """

    call: str | None = None
    label: str | None = None
    state: str | None = None
    doubt: bool | None = None
    run: str | None = None
    status: str | None = None
    record: str | None = None
    owner: str | None = None
    due_s: float | None = None
    generation: int | None = None
    seq: int | None = None
    projection: str | None = None


@dataclass(frozen=True, slots=True)
class Struck:
    """One fault that fired: when (seconds of the history), in which process, and what it left behind."""

    fault: Fault
    at_s: float
    process: str
    left: Left
    ended: str | None = None
    """How the struck call ended; None where no call was struck."""
    replayed: str | None = None
    """The projection that replaying the history up to this fault gives, once all is over (I6)."""
    followed: tuple[str, ...] = ()
    """What the ledger recorded of what it struck from then on, in sentences."""

    @property
    def unlike(self) -> str | None:
        """What is wrong if replay does not give the projection there was before the restart; else None."""
        if self.replayed is None or self.replayed == self.left.projection:
            return None
        return f"projection before the restart {self.left.projection}, after replay {self.replayed}"

    @property
    def holds(self) -> str | None:
        """What the last record before the fault holds: by it the others can go on."""
        return held_by(self.left.record)

    @property
    def missed(self) -> list[str]:
        """Where the prediction and the ledger differ; empty without a prediction."""
        said = self.fault.predict or Prediction()
        pairs = (
            ("call", said.call, self.left.state),
            ("run", said.run, self.left.status),
            ("doubt", said.doubt, self.left.doubt),
            ("owner", said.owner, self.left.owner),
            ("ends", said.ends, self.ended),
        )
        return [f"{name}: predicted {a}, it was {b}" for name, a, b in pairs if a is not None and a != b]


@dataclass(frozen=True, slots=True)
class CallEnd:
    """One call at the end."""

    id: str
    run: str
    label: str
    tool: str
    state: str
    doubt: bool
    attempts: int
    receipt: str | None
    owner: str | None
    kind: str = ""
    """The class of its tool; empty for a tool nobody knows."""
    requests: int = 0
    """How many effect requests of its key arrived."""
    effects: int = 0
    """How many effects its key has in the service's own book."""
    why: str = ""
    """Why that is so, in a sentence."""


@dataclass(frozen=True, slots=True)
class Owed:
    """What nobody knows yet, or was not offset: who is to settle it, and by which command."""

    call: str
    label: str
    state: str
    who: str
    why: str
    command: str


@dataclass(frozen=True, slots=True)
class RunEnd:
    """One run at the end; `head` is the hash of its last event, which stands for its whole history.

    `projection` is the one recorded with it, `replayed` what replaying its history gives (I6).
    """

    id: str
    key: str
    status: str
    reason: str | None
    head: str
    projection: str | None
    replayed: str | None = None

    @property
    def unlike(self) -> str | None:
        """What is wrong if replay does not give the recorded projection; else None, or if nothing is."""
        if self.replayed is None or self.replayed == self.projection or self.head == FIRST:
            return None
        return f"projection {self.projection}, after replay {self.replayed}"


@dataclass(frozen=True)
class Outcome:
    """Everything one history gave. The same protocol gives the same outcome, byte for byte (`to_json`)."""

    protocol: Protocol
    struck: tuple[Struck, ...]
    never: tuple[Fault, ...]
    """Faults whose point was not passed so often."""
    steps: int
    seconds: float
    runs: tuple[RunEnd, ...]
    calls: tuple[CallEnd, ...]
    effects: Mapping[str, int]
    dispatches: int
    timeline: tuple[str, ...]
    report: Report
    passages: Mapping[str, int] = field(default_factory=dict)
    before: Mapping[str, int] = field(default_factory=dict)
    """The passages until the first fault had struck; empty where none has."""
    settled: bool = True
    owed: tuple[Owed, ...] = ()

    @property
    def problems(self) -> list[str]:
        """Why it has failed, one sentence each; empty when it has not."""
        expect, found = self.protocol.expect, []
        if not self.settled:
            found.append("it did not come to an end")
        if sorted(self.report.violated) != sorted(expect.violated):
            wanted = f", expected were {', '.join(expect.violated)}" if expect.violated else ""
            found.append(f"violated: {', '.join(self.report.violated) or 'nothing'}{wanted}")
        found += [f"{one.fault.named}: {miss}" for one in self.struck for miss in one.missed]
        found += [f"{fault.named}: never reached" for fault in self.never if fault.predict is not None]
        if not {"I6", "I6.replay"} & set(expect.violated):
            found += [f"run {run.key}: {run.unlike}" for run in self.runs if run.unlike]
            found += [f"{one.fault.named}: {one.unlike}" for one in self.struck if one.unlike]
        found += self._unexpected()
        return found

    def _unexpected(self) -> list[str]:
        expect, found = self.protocol.expect, []
        for service, count in expect.effects.items():
            if (had := self.effects.get(service, 0)) != count:
                found.append(f"effects of {service}: expected {count}, its book has {had}")
        states = {call.label: call.state for call in self.calls}
        for label, state in expect.calls.items():
            if states.get(label) != state:
                found.append(f"call {label}: expected {state}, it is {states.get(label, 'not there')}")
        statuses = [run.status for run in self.runs]
        if expect.runs is not None and statuses != expect.runs:
            found.append(f"runs: expected {', '.join(expect.runs)}, they are {', '.join(statuses)}")
        reasons = [run.reason for run in self.runs]
        if expect.reasons is not None and reasons != expect.reasons:
            wanted, told = (", ".join(map(str, why)) for why in (expect.reasons, reasons))
            found.append(f"stop reasons: expected {wanted}, they are {told}")
        attempts = sum(call.attempts for call in self.calls)
        if expect.attempts_at_least is not None and attempts < expect.attempts_at_least:
            found.append(f"attempts: expected {expect.attempts_at_least} or more, there were {attempts}")
        if expect.dispatches is not None and self.dispatches != expect.dispatches:
            found.append(f"dispatches: expected {expect.dispatches}, there were {self.dispatches}")
        if expect.waiting is not None and len(self.report.waiting) != expect.waiting:
            found.append(f"waiting for a person: expected {expect.waiting}, it is {len(self.report.waiting)}")
        return found

    @property
    def ok(self) -> bool:
        """Whether everything is as it must be and as it was predicted."""
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        """Everything as JSON values; nothing in it depends on the machine or the hour."""
        said = self.report.to_json()
        return {
            "name": self.protocol.name,
            "seed": self.protocol.seed,
            "ok": self.ok,
            "problems": self.problems,
            "faults": [_struck_json(one) for one in self.struck],
            "never_reached": [fault.named for fault in self.never],
            "runs": [_plain(run) for run in self.runs],
            "calls": [_plain(call) for call in self.calls],
            "effects": dict(self.effects),
            "dispatches": self.dispatches,
            "owed": [_plain(one) for one in self.owed],
            "seconds": self.seconds,
            "steps": self.steps,
            "invariants": said["invariants"],
            "waiting": said["waiting"],
            "timeline": list(self.timeline),
        }


def _struck_json(one: Struck) -> dict[str, Any]:
    return {
        "fault": one.fault.named,
        "at_s": one.at_s,
        "process": one.process,
        "left": _plain(one.left),
        "holds": one.holds,
        "followed": list(one.followed),
        "replayed": one.replayed,
        "ended": one.ended,
        "predicted": None if one.fault.predict is None else one.fault.predict.model_dump(exclude_none=True),
        "missed": one.missed,
    }


def _plain(record: Any) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__slots__}
