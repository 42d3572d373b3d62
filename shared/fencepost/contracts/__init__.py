"""What a downstream promises about repeats, lookups and refusals, as values.

A contract is what the downstream's documentation says, not what we hope. What it does not say counts as zero:
an undocumented window protects nothing, an undocumented lag or settle time makes an absence prove nothing, an
undocumented refusal is an unknown outcome. `fencepost.recovery` turns a contract into decisions.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any, Literal

from fencepost.misspelt import check_fields

ZERO = timedelta(0)
APPLIED = frozenset({200, 201, 204})
"""The statuses that say "done" where a contract names no others: not accepted (202) nor in parts (207)."""
ABSENT = frozenset({404, 410})
"""The statuses of a lookup that say "there is none" where a contract names no others."""
WHILE_IT_EXISTS = timedelta(days=36_500)
"""The window of a name: it is taken as long as what bears it exists, and deleting that ends it at once."""


class Effect(StrEnum):
    """What one execution of a tool does to the world outside."""

    READ = "read"
    """Changes nothing anybody can see; may be repeated at will."""
    REVERSIBLE = "reversible"
    """Changes something that a compensation, a new effect of its own, can offset."""
    IRREVERSIBLE = "irreversible"
    """Changes something nothing can offset."""


class Mismatch(StrEnum):
    """What the downstream does with a known key and another request."""

    REJECTED = "rejected"
    """It refuses. A repeat that is not refused is thereby a repeat of the same request."""
    IGNORED = "ignored"
    """It answers as for the first request, so its answer has to be compared with what was sent."""


class FirstFailure(StrEnum):
    """What a repeat of a key meets when the first request under that key failed."""

    REPLAYED = "replayed"
    """The stored failure, even a 5xx: an answer, not a new failure."""
    RELEASED = "released"
    """A key that is free again: the repeat is executed as if it were the first."""
    REEXECUTED = "reexecuted"
    """The execution, taken up again until it is complete."""
    UNKNOWN = "unknown"
    """Undocumented: nothing may be concluded and nothing repeated on the strength of the key."""


class AfterTakeover(StrEnum):
    """What may follow when the worker that made the last attempt was lost and never answered."""

    REPAIR = "repair"
    """No automatic repeat: proof of the effect, proof of its absence, or a person."""
    REPEAT_AFTER_SETTLE = "repeat_after_settle"
    """A repeat as after any unknown outcome, but not before the lost request can no longer land."""


class ToolClass(StrEnum):
    """How far "at most one effect per intent" carries for a tool; see `promise` and `residual_risk`."""

    DEDUPES = "dedupes"
    LOOKUP_ONLY = "lookup_only"
    NEITHER = "neither"
    READ = "read"


def _not_negative(name: str, value: timedelta | None) -> None:
    if value is not None and value < ZERO:
        raise ValueError(f"{name} must not be negative, not {value}")


def _statuses(name: str, values: frozenset[int], lowest: int) -> None:
    wrong = sorted(v for v in values if not lowest <= v <= 599)
    if wrong:
        raise ValueError(f"{name} holds HTTP statuses from {lowest} to 599, not {wrong}")


@dataclass(frozen=True, slots=True)
class Dedupes:
    """The downstream executes equal keys once, also when equals arrive at the same moment.

    `window` is how long it remembers a key, `starts` from when; while an outcome is unknown both are counted
    from the first send, the earlier of the two. `in_progress` are the statuses that mean "the first is still
    running": never a failure. `replay_marker` is the header (name in lower case, value) that tells a stored
    answer from a fresh one. With a window `first_failure` has to be said, be it UNKNOWN: by that an unknown
    outcome is repeated or goes to a person.
    """

    window: timedelta = ZERO
    starts: Literal["first_send", "completion"] = "first_send"
    mismatch: Mismatch = Mismatch.REJECTED
    first_failure: FirstFailure | None = None
    in_progress: frozenset[int] = frozenset()
    replay_marker: tuple[str, str] | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        _not_negative("window", self.window)
        _statuses("in_progress", self.in_progress, 100)
        if self.first_failure is None and self.window > ZERO:
            raise ValueError(
                "Dedupes(window=...) needs first_failure=: FirstFailure.RELEASED, REPLAYED or REEXECUTED, as "
                "the downstream documents; or UNKNOWN, and then every unknown outcome goes to a person"
            )
        if self.first_failure is None:
            object.__setattr__(self, "first_failure", FirstFailure.UNKNOWN)
        if self.replay_marker is not None and self.replay_marker[0] != self.replay_marker[0].lower():
            raise ValueError(f"replay_marker names its header in lower case, not {self.replay_marker[0]!r}")


@dataclass(frozen=True, slots=True)
class Natural:
    """Setting the same thing twice changes nothing more, as long as nothing else sets it in between.

    `resource` names what is set from the arguments. A repeat without a proved absence needs it, and needs
    claims to exclude each other on it; without both an unknown outcome goes to a person.
    """

    resource: Callable[[Any], object] | None = None

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, slots=True)
class Never:
    """A repeat may be a second effect. Only a proved absence allows one."""


@dataclass(frozen=True, slots=True)
class Lookup:
    """How the downstream can be asked whether an effect happened.

    A strong lookup sees every finished effect; an eventual one sees it `lag` later. `horizon` is how long an
    effect can be found at all; None with a strong lookup means for ever. An eventual lookup states both, or
    neither: then only a found answer counts, an absent one never proves anything. `absent` are the statuses
    that say "there is none"; any other answer without the effect in it is unclear.
    """

    by: Literal["key", "receipt", "reference"] = "key"
    strong: bool = False
    lag: timedelta | None = None
    horizon: timedelta | None = None
    absent: frozenset[int] = ABSENT

    def __post_init__(self) -> None:
        check_fields(self)
        _statuses("absent", self.absent, 200)
        if 200 in self.absent:
            raise ValueError("200 is no absence by itself; have @tool.lookup_parse read the answer")
        _not_negative("lag", self.lag)
        _not_negative("horizon", self.horizon)
        if self.strong and self.lag:
            raise ValueError("a strong lookup has no lag; leave out one of the two")
        if not self.strong and (self.lag is None) != (self.horizon is None):
            raise ValueError("an eventual lookup states both lag and horizon, or neither of them")

    @property
    def delay(self) -> timedelta | None:
        """How long after an effect its absence can still be reported; None: no absence can be believed."""
        return ZERO if self.strong else self.lag


@dataclass(frozen=True, slots=True)
class Contract:
    """Everything a downstream promises about one tool. The default promises nothing.

    `applied`: the 2xx statuses that say the effect happened, where the answer is one the tool understands.
    `settle`: how long after its attempt's deadline a request may still take effect; None: undocumented, no
    absence is ever a proof. `not_applied`: the statuses that prove this attempt had no effect. `retryable`:
    those of them after which the same request may be tried again. Contradictory terms raise ValueError.
    """

    repeat: Dedupes | Natural | Never = Never()
    lookup: Lookup | None = None
    settle: timedelta | None = None
    applied: frozenset[int] = APPLIED
    not_applied: frozenset[int] = frozenset()
    retryable: frozenset[int] = frozenset()
    after_takeover: AfterTakeover | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        _not_negative("settle", self.settle)
        _statuses("applied", self.applied, 200)
        _statuses("not_applied", self.not_applied, 300)
        if strange := sorted(status for status in self.applied if status >= 300):
            raise ValueError(f"applied holds 2xx statuses, not {strange}")
        if stray := sorted(self.retryable - self.not_applied):
            raise ValueError(f"retryable answers must also be in not_applied: {stray}")
        if isinstance(self.repeat, Dedupes) and (both := sorted(self.repeat.in_progress & self.not_applied)):
            raise ValueError(f"an answer cannot mean both in_progress and not_applied: {both}")
        if self.after_takeover is AfterTakeover.REPEAT_AFTER_SETTLE and not self._may_repeat:
            raise ValueError("repeat_after_settle needs a tool that dedupes, is natural or has a lookup")

    @property
    def _may_repeat(self) -> bool:
        return not isinstance(self.repeat, Never) or self.lookup is not None

    @property
    def takeover(self) -> AfterTakeover:
        """`after_takeover`, or its default: repair for `Never`, otherwise repeat_after_settle."""
        if self.after_takeover is not None:
            return self.after_takeover
        return AfterTakeover.REPAIR if isinstance(self.repeat, Never) else AfterTakeover.REPEAT_AFTER_SETTLE

    @property
    def absence_provable(self) -> bool:
        """Whether an absent answer can ever prove that the key had no effect."""
        return self.lookup is not None and self.lookup.delay is not None and self.settle is not None

    @property
    def repeats_by_key(self) -> bool:
        """Whether the key alone makes a repeat safe and its answer readable, while the window lasts."""
        return (
            isinstance(self.repeat, Dedupes)
            and self.repeat.window > ZERO
            and self.repeat.mismatch is Mismatch.REJECTED
            and self.repeat.first_failure is not FirstFailure.UNKNOWN
        )

    def repeats_by_key_if(self, *, compares: bool) -> bool:
        """As `repeats_by_key`, for a tool that can tell whether an answer is for what was sent, or cannot.

        Where another request under a known key is answered as the first was, only a compared answer is proof.
        """
        if not compares or not isinstance(self.repeat, Dedupes):
            return self.repeats_by_key
        return self.repeat.window > ZERO and self.repeat.first_failure is not FirstFailure.UNKNOWN

    def unrepeated(self, *, compares: bool) -> str | None:
        """Why a downstream that deduplicates is sent no repeat under its key; None where it is."""
        repeat = self.repeat
        if not isinstance(repeat, Dedupes) or not repeat.window or self.repeats_by_key_if(compares=compares):
            return None
        if repeat.first_failure is FirstFailure.UNKNOWN:
            return "first_failure=UNKNOWN: what a repeat meets after a first failure is not known"
        return "mismatch=IGNORED, and no @tool.same tells whether an answer is for what was sent"

    @property
    def sets_again(self) -> bool:
        """Whether an unknown outcome is settled by setting the same again, when what was sent is quiet."""
        natural = isinstance(self.repeat, Natural) and self.repeat.resource is not None
        return natural and self.settle is not None

    def to_json(self) -> Mapping[str, Any]:
        """The contract as JSON fit for hashing: durations in whole microseconds, sets sorted, no floats."""
        return {
            "repeat": _repeat_json(self.repeat),
            "lookup": None if self.lookup is None else _lookup_json(self.lookup),
            "settle_us": _us(self.settle),
            "applied": sorted(self.applied),
            "not_applied": sorted(self.not_applied),
            "retryable": sorted(self.retryable),
            "after_takeover": self.takeover.value,
        }


def _us(value: timedelta | None) -> int | None:
    return None if value is None else value // timedelta(microseconds=1)


def _repeat_json(repeat: Dedupes | Natural | Never) -> dict[str, Any]:
    match repeat:
        case Dedupes():
            return {
                "kind": "dedupes",
                "window_us": _us(repeat.window),
                "starts": repeat.starts,
                "mismatch": repeat.mismatch.value,
                "first_failure": (repeat.first_failure or FirstFailure.UNKNOWN).value,
                "in_progress": sorted(repeat.in_progress),
                "replay_marker": None if repeat.replay_marker is None else list(repeat.replay_marker),
            }
        case Natural():
            return {"kind": "natural", "resource": repeat.resource is not None}
        case Never():
            return {"kind": "never"}


def _lookup_json(lookup: Lookup) -> dict[str, Any]:
    return {
        "by": lookup.by,
        "strong": lookup.strong,
        "lag_us": _us(lookup.lag),
        "horizon_us": _us(lookup.horizon),
        "absent": sorted(lookup.absent),
    }


def tool_class(effect: Effect, contract: Contract) -> ToolClass:
    """The class whose promise a tool may claim.

    A window of zero is no deduplication; a lookup whose absence can prove nothing is no lookup.
    """
    if effect is Effect.READ:
        return ToolClass.READ
    if isinstance(contract.repeat, Dedupes) and contract.repeat.window > ZERO:
        return ToolClass.DEDUPES
    return ToolClass.LOOKUP_ONLY if contract.absence_provable else ToolClass.NEITHER


def promise(effect: Effect, contract: Contract) -> str:
    """What holds for a tool of this class, in one sentence."""
    match tool_class(effect, contract):
        case ToolClass.READ:
            return "No effect: repeated freely, never in doubt."
        case ToolClass.DEDUPES:
            return "At most one effect per intent while equal keys are recognised, whatever happens here."
        case ToolClass.LOOKUP_ONLY:
            return "At most one effect per intent: repeated only after a lookup has proved the absence."
        case ToolClass.NEITHER if contract.sets_again:
            return "Setting it twice is setting it once: set again when all is quiet, one call at a time."
        case ToolClass.NEITHER:
            return "At most one effect per intent: one automatic attempt; a person after an unknown outcome."


def _said(span: timedelta | None) -> str:
    """A duration in its largest whole unit."""
    if span is None:
        return "an unknown time"
    for unit, name in ((timedelta(days=1), "d"), (timedelta(hours=1), "h"), (timedelta(minutes=1), "min")):
        if span >= unit and not span % unit:
            return f"{span // unit} {name}"
    return f"{span.total_seconds():g} s"


def residual_risk(effect: Effect, contract: Contract, *, compares: bool = False) -> str:
    """What this class cannot promise, in one sentence, for an operator to read beside `promise`.

    `compares`: the tool can tell whether an answer is for what was sent.
    """
    repeat = contract.repeat
    match tool_class(effect, contract):
        case ToolClass.READ:
            return "None for effects; an answer may be stale."
        case ToolClass.DEDUPES:
            window = repeat.window if isinstance(repeat, Dedupes) else ZERO
            if window >= WHILE_IT_EXISTS:
                return "A name is taken while what bears it exists; once deleted, a repeat makes another."
            if contract.repeats_by_key_if(compares=compares) or contract.absence_provable:
                known = f"Equal keys are recognised for {_said(window)} after the first send"
                return f"{known}; then it takes a person."
            why = contract.unrepeated(compares=compares)
            known = f"Equal keys are recognised for {_said(window)}"
            return f"{known}, yet an unknown outcome takes a person: {why}."
        case ToolClass.LOOKUP_ONLY:
            return (
                f"A request landing over {_said(contract.settle)} late (a paused worker) is a second effect."
            )
        case ToolClass.NEITHER if contract.sets_again:
            return "A value that somebody else sets in between is overwritten by the repeat."
        case ToolClass.NEITHER:
            return "Every unknown outcome takes a person; a paused worker's late request cannot be told."
