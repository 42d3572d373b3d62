"""The fault protocol: one file that says what happens to which runs, what is predicted, and what must hold.

Anyone can read it, run it again, change one line and see what that does. `protocol.schema.json` beside this
module is its JSON Schema; `tests/unit/test_drill_protocol.py` keeps the two equal.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fencepost.errors import UsageError
from fencepost.misfits import misfits
from fencepost.testing import POINTS

Doing = Literal["crash", "pause", "error", "lost", "delay"]
Role = Literal["planner", "dispatcher", "reconciler", "compensator", "relay", "producer", "person"]

WIRES = ("dispatch.before_wire", "reconcile.before_lookup")
"""Where a request is about to leave: a fault there may be the network's."""
LOSES = {
    "dispatch.before_wire": "the request never arrives, and its sender cannot know",
    "reconcile.before_lookup": "the question never arrives, and whoever asked cannot know",
    "dispatch.response_lost": "the answer never comes back",
    "ledger.in_transaction": "the transaction is committed, and the answer to COMMIT is lost",
    "relay.after_publish": "the broker loses every message it holds, those just published among them",
}
"""What `lost` means, by point; elsewhere there is nothing to lose."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class Prediction(_Strict):
    """What whoever writes the protocol expects right after a fault: write it down before you run it."""

    call: str | None = Field(None, description="state of the call it strikes")
    run: str | None = Field(None, description="status of the run it strikes")
    doubt: bool | None = Field(None, description="whether the call is in doubt")
    owner: Role | None = Field(None, description="who owns recovery: the queue of the subject's outbox row")
    ends: str | None = Field(None, description="state of that call at the end of the history")


class Fault(_Strict):
    """One injected fault: what happens at the nth passage of a point, counted over all processes."""

    at: str = Field(description="a fault point")
    do: Doing
    nth: int = Field(1, ge=1, le=10_000, description="at which passage")
    for_s: float | None = Field(
        None,
        gt=0,
        le=86_400,
        description="seconds a pause or delay lasts; a pause without it lasts until somebody has taken over, "
        "or can no more. "
        "At dispatch.before_wire and reconcile.before_lookup a delay is the network's: the request lands so "
        "much later",
    )
    host: bool = Field(False, description="the whole host: its pulse is struck as well, and says nothing")
    answers: int | None = Field(
        None,
        ge=200,
        le=599,
        description="with lost or delay at dispatch.before_wire and reconcile.before_lookup: a gateway "
        "answers this status and a page of its own, at once and in the service's place",
    )
    predict: Prediction | None = None

    @model_validator(mode="after")
    def _possible(self) -> Fault:
        if self.at not in POINTS:
            raise ValueError(f"unknown fault point {self.at!r}; known are {', '.join(sorted(POINTS))}")
        if self.do == "lost" and self.at not in LOSES:
            raise ValueError(f"nothing can be lost at {self.at}; only at {', '.join(LOSES)}")
        if self.do == "delay" and self.for_s is None:
            raise ValueError("a delay says for how many seconds: for_s")
        if self.answers is not None and not (self.at in WIRES and self.do in ("lost", "delay")):
            raise ValueError(f"answers goes with lost or delay at {' and '.join(WIRES)}")
        return self

    @property
    def named(self) -> str:
        """`crash at dispatch.after_effect, passage 1`."""
        return f"{self.do} at {self.at}, passage {self.nth}"


class Event(_Strict):
    """Something that happens at a time of the history, or as soon as the next step after it."""

    at_s: float = Field(ge=0, le=366 * 86_400)
    do: Literal["wipe_redis", "redis_away", "redis_back", "jump_clock", "double_messages", "lose_messages",
                "turn_messages", "cancel", "sweep", "sql", "approve", "deny", "disable", "enable", "roles",
                "delegate", "revoke", "withdraw"]  # fmt: skip
    seconds: float | None = Field(None, description="how far jump_clock moves the ledger's clock")
    run: int | None = Field(None, ge=0, description="which run is cancelled, by its place in `runs`")
    statement: str | None = Field(None, description="sql: straight at the tables, with a worker's login")
    who: str | None = Field(
        None, description="who approves or denies, whom the rest is about; each decides under its own login"
    )
    call: str | None = Field(None, description="approve, deny: which call, by its label")
    roles: list[str] = Field(default_factory=list, description="roles: exactly those it has from now on")
    to: str | None = Field(None, description="delegate: who may act for `who`, for so many `seconds`")
    tool: str | None = Field(None, description="withdraw: version 1 of this tool; delegate: a pattern")
    tenant: str = "drill"


class Asked(_Strict):
    """One run a producer asks for."""

    planner: str = "one"
    input: dict[str, Any] = Field(default_factory=dict)
    run_key: str | None = None
    tenant: str = "drill"
    principal: str = "svc:drill"
    deadline_s: float = Field(120.0, gt=0)
    at_s: float = Field(0.0, ge=0)
    on_stop: Literal["compensate", "compensate_at_once", "leave"] = "compensate"
    turns: int | None = Field(None, ge=0)
    calls: int | None = Field(None, ge=0)
    attempts: int | None = Field(None, ge=0)
    tokens: int | None = Field(None, ge=0)
    cost: int | None = Field(None, ge=0)


class Limits(_Strict):
    """What every dependency of the drilled application is given instead of its own."""

    attempts: int | None = Field(None, ge=1)
    per_attempt_s: float | None = Field(None, gt=0)
    grace_s: float | None = Field(None, ge=0)
    reserve_s: float | None = Field(None, ge=0)
    reconcile_for_s: float | None = Field(None, gt=0)
    takeovers: int | None = Field(None, ge=1)


class Expect(_Strict):
    """What must be so at the end. All invariants must hold besides, but for those named in `violated`."""

    effects: dict[str, int] = Field(default_factory=dict, description="effects in each service's own book")
    runs: list[str] | None = Field(None, description="status of each run, in their order")
    reasons: list[str | None] | None = Field(None, description="why each run stopped, in their order")
    calls: dict[str, str] = Field(default_factory=dict, description="state of each call, by its label")
    attempts_at_least: int | None = Field(None, ge=0, description="of all calls together")
    dispatches: int | None = Field(None, ge=0, description="effect requests that reached a service")
    waiting: int | None = Field(None, ge=0, description="what waits for a person")
    violated: list[str] = Field(default_factory=list, description="invariants a sabotage makes fail")


class Service(_Strict):
    """How one service behaves instead of as it usually does; what is left out stays as it is."""

    dedupes_for_s: float | None = Field(
        None, ge=0, le=366 * 86_400, description="how long it remembers a key; 0: it never looks at keys"
    )
    lag_s: float | None = Field(None, ge=0, le=86_400, description="after which its lookup sees an effect")
    refuses: list[Annotated[int, Field(ge=400, le=599)]] = Field(
        default_factory=list, description="what it answers its first requests, without any effect"
    )
    receipts: str | None = Field(None, max_length=100, description="how its receipts begin")


Count = Annotated[int, Field(ge=0, le=8)]


class Fleet(_Strict):
    """How many processes of each role there are."""

    relay: Annotated[int, Field(ge=1, le=8)] = 1
    planner: Count = 2
    dispatcher: Count = 2
    reconciler: Count = 2
    compensator: Count = 2


class Protocol(_Strict):
    """One drill."""

    version: Literal[1] = 1
    name: str = Field(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9_.:-]+$")
    about: str = Field("", description="what it shows, in words")
    seed: int = Field(0, ge=0, lt=2**63)
    app: str = Field("fencepost_ops.drill.app:app", description="the application, as module:attribute")
    runs: list[Asked] = Field(default_factory=lambda: [Asked()], min_length=1, max_length=50)
    fleet: Fleet = Fleet()
    limits: Limits = Limits()
    services: dict[str, Service] = Field(
        default_factory=dict, description="services that behave otherwise, by their name"
    )
    faults: list[Fault] = Field(default_factory=list, max_length=50)
    events: list[Event] = Field(default_factory=list, max_length=50)
    recovery: Literal["contract", "blind_retry"] = Field(
        "contract",
        description="contract: what each tool's contract allows. blind_retry: the wrong way, for showing",
    )
    sabotage: list[str] = Field(default_factory=list, description="defences that are switched off")
    interleave: int | None = Field(
        None, ge=0, description="seed of a schedule in which processes overtake each other between points"
    )
    persons: bool = Field(False, description="people answer what waits for them, by the services' own books")
    expect: Expect = Expect()

    @model_validator(mode="after")
    def _one_fault_each(self) -> Protocol:
        places = [(fault.at, fault.nth) for fault in self.faults]
        if twice := next((place for place in places if places.count(place) > 1), None):
            raise ValueError(f"two faults strike passage {twice[1]} of {twice[0]}; one passage bears one")
        return self

    def to_text(self) -> str:
        """As a file: only what is not usual, in a fixed order."""
        kept = self.model_dump(mode="json", exclude_defaults=True) | {"version": 1, "name": self.name}
        ordered = {name: kept[name] for name in type(self).model_fields if name in kept}
        return json.dumps(ordered, indent=2, ensure_ascii=False) + "\n"


def read_protocol(path: Path) -> Protocol:
    """The protocol in a file. UsageError says what is wrong with it, and where."""
    try:
        return parse_protocol(path.read_text("utf-8"), str(path))
    except (OSError, UnicodeError) as error:
        raise UsageError(f"the protocol {path} cannot be read: {error}") from error


def parse_protocol(text: str, named: str) -> Protocol:
    """The protocol in a text. UsageError says what is wrong with it, and where."""
    try:
        given = json.loads(text)
    except ValueError as error:
        raise UsageError(f"the protocol {named} is not JSON: {error}") from error
    if isinstance(given, dict):
        given = {name: value for name, value in given.items() if name != "$schema"}
    try:
        return Protocol.model_validate(given)
    except ValidationError as error:
        problems = [f"{_place(one.path)}: {_said(one.kind, one.message)}" for one in misfits(error)]
        raise UsageError(f"the protocol {named} is none: {'; '.join(problems)}") from None


def _place(path: Sequence[int | str]) -> str:
    """`faults[0].at`."""
    parts = [f"[{one}]" if isinstance(one, int) else f".{one}" for one in path]
    return "".join(parts).removeprefix(".") or "the whole"


def _said(kind: str, message: str) -> str:
    if kind == "extra_forbidden":
        return "there is nothing of this name here (`fencepost drill --schema` says what there is)"
    if kind == "missing":
        return "it is missing"
    message = message.removeprefix("Input ")
    return f"{message[:1].lower()}{message[1:]}"


def json_schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of a protocol file."""
    schema = Protocol.model_json_schema()
    schema["properties"]["$schema"] = {"type": "string"}
    schema["$defs"]["Fault"]["properties"]["at"]["enum"] = sorted(POINTS)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
