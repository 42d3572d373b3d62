"""What a run has used, and what its calls have done, moves by the events of the change that say so."""

import json
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from fencepost.events import EventType
from tests.integration.guards_bench import OWNER, WORKER, CallTarget, attack, presented
from tests.integration.ledger_bench import Bench

E = EventType
Said = tuple[EventType, UUID | None, dict[str, Any]]
USED = ("attempts", "calls", "requests", "bytes", "written")
DONE = ("effects", "unknowns")
LONG = {"taken": False, "note": "é" * 50}


class Counted:
    """A run that acts, with two of everything, and one call of it."""

    def __init__(self, target: CallTarget) -> None:
        self.attack, self.run, self.call = target.attack, target.run, target.call
        self.before = dict.fromkeys((*USED, *DONE), 2) | {"written": 1}

    def moved(self, by: dict[str, int], *events: Said) -> str | None:
        """What Postgres says of a move by these events and these numbers; the others stay."""
        seq = next(self.attack.numbers)
        self.attack.put("runs", self.run, status="ACTING", seq=seq, owner=None, fence=5, **self.before)
        self.attack.put("calls", self.call, version=seq)
        told = [self.attack.event(self.run, call, kind, **header) for kind, call, header in events]
        seq, _, head = told[-1]
        after = {name: self.before[name] + by.get(name, 0) for name in self.before}
        change = presented("claim") | {"seq": seq, "head_hash": head, **after}
        if any(kind == E.MODEL_REQUEST_STARTED for kind, _, _ in events):
            change |= {"status": "PLANNING"}
        answers = {self.attack.update("runs", self.run, change, role) for role in (WORKER, OWNER)}
        assert len(answers) == 1, answers
        return answers.pop()

    def only(self, by: dict[str, int], *events: Said) -> None:
        """These events move the run by these numbers, and by no other."""
        assert self.moved(by, *events) is None, self.attack.said
        for name in self.before:
            for wrong in (-1, 1):
                assert self.moved(by | {name: by.get(name, 0) + wrong}, *events) == "FP004", (name, wrong)


@pytest.fixture
def counted(module_bench: Bench, planned: tuple[UUID, UUID, UUID, int]) -> Iterator[Counted]:
    with attack(module_bench) as opened:
        yield Counted(CallTarget(planned, opened))


def test_what_a_run_has_used_follows_from_its_events(counted: Counted) -> None:
    call, size = counted.call, len(json.dumps(LONG))
    counted.only({"attempts": 1}, (E.TOOL_ATTEMPT_STARTED, call, {}))
    counted.only({"calls": 2}, *[(E.TOOL_PROPOSAL_RECORDED, call, {})] * 2)
    counted.only({"requests": 1}, (E.MODEL_REQUEST_STARTED, None, {}))
    unread = (E.MODEL_OUTCOME_UNKNOWN, None, {"body": {"taken": False}})
    counted.only({"requests": -1}, unread)
    counted.only({}, (E.MODEL_OUTCOME_UNKNOWN, None, {}))
    counted.only({"bytes": size, "written": 1}, (E.EVIDENCE_FILED, call, {"version": 2, "body": LONG}))


def to(state: str) -> dict[str, Any]:
    return {"body": {"to": state}, "version": 2}


HAPPENED = [
    (E.TOOL_RESULT_RECORDED, {}),
    (E.TOOL_EFFECT_RECONCILED, {"body": {"to": "SUCCEEDED"}}),
    (E.REPAIR_DECIDED, {"body": {"to": "SUCCEEDED"}}),
]


@pytest.mark.parametrize(("kind", "header"), HAPPENED)
def test_an_effect_counts_in_its_run_with_the_event_that_tells_of_it(
    counted: Counted, kind: EventType, header: dict[str, Any]
) -> None:
    put, call = counted.attack.put, counted.call
    put("calls", call, state="UNKNOWN")
    counted.only({"effects": 1}, (kind, call, header))
    put("calls", call, compensates="key")
    counted.only({"effects": -1}, (kind, call, header))
    put("calls", call, effect="read")
    counted.only({}, (kind, call, header))
    put("calls", call, effect="reversible", compensates=None, reused=True)
    counted.only({}, (kind, call, header))


def test_what_is_taken_back_counts_no_more_and_what_nobody_knows_does(counted: Counted) -> None:
    put, call = counted.attack.put, counted.call
    asked: Said = (E.REPAIR_REQUESTED, call, {})
    put("calls", call, state="SUCCEEDED")
    counted.only({"effects": -1}, asked)
    counted.only({}, (E.REPAIR_DECIDED, call, {"body": {"to": "SUCCEEDED", "offset": "left"}}))
    put("calls", call, state="NEEDS_REPAIR")
    counted.only({}, asked)
    size = len(json.dumps(to("ACCEPTED_UNKNOWN")["body"]))
    accepted = (E.REPAIR_DECIDED, call, to("ACCEPTED_UNKNOWN"))
    counted.only({"unknowns": 1, "bytes": size, "written": 1}, accepted)
    put("calls", call, state="ACCEPTED_UNKNOWN")
    counted.only({"unknowns": -1}, asked)
    counted.before["unknowns"] = 0
    assert counted.moved({}, asked) is None, "one of the first versions was not counted"
    put("calls", call, state="DISPATCHING")
    told = {"body": {"to": "SUCCEEDED", "unknown": 3}}
    counted.only({"effects": 1, "unknowns": 3}, (E.CHILD_RUN_SETTLED, call, told))


def test_several_events_of_a_call_count_one_after_the_other(counted: Counted) -> None:
    call = counted.call
    counted.attack.put("calls", call, state="NEEDS_REPAIR")
    happened: Said = (E.REPAIR_DECIDED, call, {"body": {"to": "SUCCEEDED"}})
    asked: Said = (E.REPAIR_REQUESTED, call, {})
    counted.only({}, happened, asked)
    counted.only({"effects": 1}, happened, asked, happened)


def test_a_call_that_is_written_before_its_run_hides_nothing(counted: Counted) -> None:
    seq = next(counted.attack.numbers)
    counted.attack.put("runs", counted.run, status="ACTING", seq=seq, owner=None, fence=5)
    told, _, head = counted.attack.event(counted.run, counted.call, E.TOOL_RESULT_RECORDED)
    counted.attack.put("calls", counted.call, state="SUCCEEDED", version=told)
    for effects in (0, 1):
        change = presented("claim") | {"seq": told, "head_hash": head, "effects": effects}
        assert counted.attack.update("runs", counted.run, change) == "FP004"
