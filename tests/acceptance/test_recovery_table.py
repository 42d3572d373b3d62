"""Every row of the recovery table on a live fleet: what an unknown outcome comes to, and what the services
saw of it. All rows are under way at once; a row is a tool, what goes wrong, and what must follow.
"""

import http.client
import json
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import pytest

from fencepost.contracts.catalogue import ENTRIES
from fencepost.tools import operation_key
from tests.acceptance.conftest import HOSTILE
from tests.acceptance.stage import Stage, staged, step
from tests.awaiting import until

ENV = {"FENCEPOST_APP": "tests.acceptance.recovery_app:app", **HOSTILE}
IGNORES = "paypal.orders"
Fault = tuple[str, dict[str, Any]]
LOST: Fault = ("drop_after_commit", {"nth": 1})
NOTHING_DONE: Fault = ("drop_before", {"nth": 1})


@dataclass(frozen=True)
class Row:
    """What goes wrong, and what must follow: how the call settles, and the services' own books."""

    name: str
    faults: tuple[Fault, ...]
    settles: str
    requests: int
    effects: int
    proof: str = ""
    """What its history says of how it was known, or why it took a person."""
    events: Mapping[str, int] = field(default_factory=dict)
    """How many events of a type the call has."""
    killed: bool = False
    """Its worker is killed once the effect is there."""


ROWS = (
    Row("evidence", (), "SUCCEEDED", 0, 1, "evidence of attempt 1", {"EvidenceFiled": 1}),
    Row("lookup_found", (LOST,), "SUCCEEDED", 1, 1, "the lookup found it with the same arguments"),
    Row("lookup_absent", (NOTHING_DONE,), "SUCCEEDED", 2, 1, events={"ToolAttemptStarted": 2}),
    Row("lookup_absent_for_good", (NOTHING_DONE,), "FAILED", 1, 0, "the lookup proved the key absent"),
    Row(
        "lookup_unclear",
        (LOST, ("garbage_200", {"on": "lookup"})),
        "NEEDS_REPAIR",
        1,
        1,
        "reconciliation deadline",
    ),
    Row(
        "lookup_found_other",
        (NOTHING_DONE,),
        "NEEDS_REPAIR",
        2,
        1,
        "the downstream knows the key for another request",
    ),
    Row("repeat_by_key", (LOST,), "SUCCEEDED", 2, 1, events={"ToolAttemptStarted": 2}),
    Row(
        "replayed_failure",
        (("error_500_after_commit", {"nth": 1, "remember_answer": True}),),
        "NEEDS_REPAIR",
        2,
        1,
        "replayed_500",
        {"ToolAttemptStarted": 2},
    ),
    Row("answer_compared", (LOST,), "SUCCEEDED", 2, 1, events={"ToolAttemptStarted": 2}),
    Row("answer_for_another", (), "NEEDS_REPAIR", 2, 1, "the downstream answered this key for another"),
    Row(
        "window_passed",
        (("delay_after_commit", {"nth": 1, "delay_s": 5}),),
        "NEEDS_REPAIR",
        1,
        1,
        "the downstream may no longer know the key",
    ),
    Row("natural", (LOST,), "SUCCEEDED", 2, 1, events={"ToolAttemptStarted": 2}),
    Row("never", (LOST,), "NEEDS_REPAIR", 1, 1, "neither a proof of absence nor a safe repeat"),
    Row(
        "taken_over_repeats",
        (("delay_after_commit", {"nth": 1, "delay_s": 30}),),
        "SUCCEEDED",
        2,
        1,
        events={"ToolAttemptStarted": 2},
        killed=True,
    ),
    Row(
        "taken_over_stays",
        (("delay_after_commit", {"nth": 1, "delay_s": 30}),),
        "NEEDS_REPAIR",
        1,
        1,
        "the worker was lost and the contract allows no repeat after that",
        killed=True,
    ),
)


class Table:
    """All rows, sent at once; those whose worker dies once the others have settled."""

    def __init__(self, stage: Stage) -> None:
        until("a worker for every queue", stage.works)
        self.stage = stage
        self.runs: dict[str, UUID] = {}
        for killed in (False, True):
            mine = [row for row in ROWS if row.killed is killed]
            for row in mine:
                self.runs[row.name] = self.begin(row)
            for pid in {self.holder(row) for row in mine if killed}:
                os.kill(pid, signal.SIGKILL)
            # A row that never settles fails its own test, and not those of its neighbours.
            with suppress(AssertionError):
                until("every row's call settled", partial(self.all_settled, mine), 60)

    def all_settled(self, rows: Sequence[Row]) -> bool:
        """Whether the calls of these rows stand as they must."""
        found = [self.stage.calls(self.runs[row.name]).get("row") for row in rows]
        return all(call and call.state == row.settles for call, row in zip(found, rows, strict=True))

    def begin(self, row: Row) -> UUID:
        """Arrange what goes wrong, and send the row's run."""
        reference = f"row-{row.name}"
        if row.name == "lookup_found_other":
            assert self.stage.ended(self.send("plain", reference, minor=700)) == ["COMPLETED"]
        if row.name == "answer_for_another":
            self.beforehand(row, reference)
        for kind, more in row.faults:
            asked = {"key": self.key(row.name, reference, 100)}
            about = asked if more.get("on") == "lookup" else {"reference": reference}
            self.stage.sandbox.fault(kind, **about, **more)
        if row.name == "natural":
            return self.stage.send(
                [step("row.natural", "row", reference=reference, page="home", text="first")], deadline_s=120
            )
        return self.send(row.name, reference)

    def send(self, name: str, reference: str, minor: int = 100) -> UUID:
        return self.stage.send([step(f"row.{name}", "row", reference=reference, minor=minor)], deadline_s=120)

    def key(self, name: str, *parts: object) -> str:
        tool = f"row.{name}"
        return operation_key(self.stage.tenant, f"{tool}/default", tool, (tool, *parts))

    def beforehand(self, row: Row, reference: str) -> None:
        """Somebody has used the key for another request: what a ledger that lost commits would meet."""
        entry = ENTRIES[IGNORES]
        assert entry.key is not None
        headers = {entry.key.name: entry.key.spell(self.key(row.name, reference))}
        target = urlsplit(self.stage.sandbox.url)
        connection = http.client.HTTPConnection(target.hostname or "", target.port, timeout=10)
        body = json.dumps({"reference": reference, "minor": 700})
        connection.request("POST", f"/imitations/{IGNORES}/make", body, headers)
        assert connection.getresponse().status == 201
        connection.close()

    def holder(self, row: Row) -> int:
        """The process that makes the row's attempt, once its effect is there."""
        run = self.runs[row.name]
        until("the effect", lambda: self.effects(row.name))
        return self.stage.holder(run, "row")

    def effects(self, name: str) -> int:
        """How many effects the services' own books hold for a row."""
        if name == "evidence":
            return self.stage.deeds_of(self.stage.calls(self.runs[name])["row"])
        if name.startswith("answer_"):
            return len(self.imitated(name, "effects"))
        return len(self.stage.effects(f"row-{name}"))

    def requests(self, name: str) -> int:
        """How many requests for an effect the services saw of a row."""
        if name.startswith("answer_"):
            return sum(row["purpose"] == "effect" for row in self.imitated(name, "requests"))
        return self.stage.requests(f"row-{name}")

    def imitated(self, name: str, what: str) -> list[dict[str, Any]]:
        kept = self.stage.sandbox.get(f"/imitations/{IGNORES}/book")[what]
        return [row for row in kept if row["reference"] == f"row-{name}"]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Table]:
    scale = {"planner": 1, "dispatcher": 2, "reconciler": 1, "compensator": 1, "relay": 1}
    with staged(tmp_path_factory.mktemp("recovery"), env=ENV, scale=scale) as stage:
        yield Table(stage)
        stage.calm()
        assert stage.verdict() == []


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_an_unknown_outcome_comes_to_what_its_contract_allows(table: Table, row: Row) -> None:
    run = table.runs[row.name]
    call = table.stage.calls(run)["row"]
    assert (call.state, call.doubt) == (row.settles, row.settles == "NEEDS_REPAIR"), table.stage.told(run)
    mine = [event for event in table.stage.events(run) if event.call == call.id]
    said = [event.data.get("proof") or event.data.get("reason") or "" for event in mine]
    assert any(row.proof in text for text in said), table.stage.told(run)
    assert "ToolOutcomeMarkedUnknown" in [event.type for event in mine], "it was in doubt"
    counted = {kind: sum(event.type == kind for event in mine) for kind in row.events}
    assert counted == row.events
    assert (table.requests(row.name), table.effects(row.name)) == (row.requests, row.effects)


def test_an_older_calls_repeat_never_overwrites_what_a_later_call_set(table: Table) -> None:
    """The older request is lost on its way; the later call waits until the older one's repeat is answered."""
    stage = table.stage

    def set_to(text: str) -> UUID:
        one = step("row.natural", "row", reference=f"page-{text}", page="front", text=text)
        return stage.send([one], deadline_s=120)

    stage.sandbox.fault("drop_before", reference="page-older", nth=1)
    older = set_to("older")
    stage.until_event(older, "ToolAttemptStarted")
    later = set_to("later")
    assert stage.ended(older, later, within_s=60) == ["COMPLETED", "COMPLETED"]
    assert [stage.requests(f"page-{text}") for text in ("older", "later")] == [2, 1]
    told = [e.reference for e in stage.book.effects("pages") if (e.reference or "").startswith("page-")]
    assert told == ["page-older", "page-later"]
    assert stage.sandbox.get("/pages/front")["body"]["text"] == "later"
