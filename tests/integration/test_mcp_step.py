"""Tools of an MCP server through the real step: held, pinned anew, looked up, given to a person."""

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from pydantic import BaseModel

from fencepost import App, Context, Effect, Proposal, SecretRef, Turn
from fencepost.decide.holds import AGAIN, RECHECK
from fencepost.mcp import CHANGED, Remote, Streamable
from fencepost.states import Queue
from fencepost.tools import Tool
from fencepost_ops.check import terms
from fencepost_ops.checker import check
from fencepost_ops.local import LocalPostgres, LocalValkey
from fencepost_workers.dispatcher import Dispatcher
from fencepost_workers.planner import Planner
from fencepost_workers.reconciler import Reconciler
from fencepost_workers.role import Role
from fencepost_workers.step import Step
from fencepost_workers.tools import mcp
from fencepost_workers.worker import Worker
from tests.integration.conftest import copied
from tests.integration.mcp_app import PIN
from tests.integration.mcp_notes import Notes, Written, served, writing
from tests.integration.shell import Shell
from tests.integration.step_shop import Shop, opened

SECOND = timedelta(seconds=1)
SECRET = "correct horse, battery"
ROLES: dict[Queue, Callable[[Worker], Role]] = {
    Queue.DISPATCHER: Dispatcher,
    Queue.PLANNER: Planner,
    Queue.RECONCILER: Reconciler,
}


class Sealed(BaseModel):
    ref: str
    text: SecretRef


def noting_app(url: str) -> App:
    app = App("noting")
    times: Any = {"attempts": 2, "per_attempt": 40 * SECOND, "grace": SECOND, "reserve": SECOND}
    notes = served(app, Streamable(), url, **times)
    writing(notes)
    notes.mcp(
        "note.seal",
        arguments=Sealed,
        remote="write_note",
        effect=Effect.IRREVERSIBLE,
        intent=lambda a: ("sealed", a.ref),
        returns=Written,
        secrets=("seal",),
    )

    @app.planner("write", version=1)
    def plan(context: Context) -> Turn:
        if context.turn > 1:
            return Turn(finish={})
        return Turn([Proposal(context.input["tool"], context.input["arguments"], "w")])

    app.secrets(lambda tenant, name: SECRET if name == "seal" else None)
    app.allow("svc:*", tools=["note.write", "note.seal"])
    return app


class Desk:
    def __init__(self, shop: Shop, notes: Notes, url: str) -> None:
        self.shop = shop
        self.notes = notes
        env = {"FENCEPOST_APP": "tests.integration.mcp_app:app", "MCP_NOTES_URL": url}
        self.shell = Shell(shop.database, env)

    def step(self, queue: Queue) -> int:
        count = Step(self.shop.worker, ROLES[queue](self.shop.worker)).handle(self.shop.due(queue))
        assert self.shop.idle()
        return count

    def run(self, key: str, tool: str = "note.write", minutes: int = 1, **arguments: Any) -> None:
        given = json.dumps({"tool": tool, "arguments": {"ref": key, **arguments}})
        self.shop.sql(
            "SELECT fencepost.enqueue_run('t', %s, 'write', 1, 'svc:x', %s, make_interval(mins => %s))",
            key,
            given,
            minutes,
        )
        self.step(Queue.PLANNER)

    def call(self, key: str) -> tuple[str, int, str, str | None]:
        (row,) = self.shop.sql(
            "SELECT c.state, c.attempts, coalesce(c.error, ''), c.request FROM fencepost.calls c"
            " JOIN fencepost.runs r ON r.id = c.run WHERE r.run_key = %s",
            key,
        )
        return (row[0], row[1], row[2], row[3])

    def events(self, key: str, kind: str) -> list[dict[str, Any]]:
        rows = self.shop.sql(
            "SELECT e.body FROM fencepost.events e JOIN fencepost.runs r ON r.id = e.run"
            " WHERE r.run_key = %s AND e.type = %s ORDER BY e.seq",
            key,
            kind,
        )
        return [json.loads(body) if isinstance(body, str) else body for (body,) in rows]

    def checked(self) -> list[str]:
        """What the checker has against these runs."""
        with psycopg.connect(self.shop.database.dsns["reader"], autocommit=True) as reader:
            report = check(reader, None, settled=False, terms=terms(self.shop.worker.app))
        return [f"{v.invariant}: {wrong.message}" for v in report.verdicts for wrong in v.violations]

    def effects(self, key: str) -> list[Any]:
        return [line for line in self.notes.effects() if line["note"]["ref"] == key]

    @contextmanager
    def deployed(self, change: Callable[[Tool], Tool]) -> Iterator[None]:
        """Another tool under the same name and version."""
        registry = self.shop.worker.app.registry
        before = registry["note.write", 1]
        registry["note.write", 1] = change(before)
        try:
            yield
        finally:
            registry["note.write", 1] = before

    def pinned(self, definition: str | None) -> AbstractContextManager[None]:
        """Another pin, as of a deploy."""
        return self.deployed(lambda tool: replace(tool, mcp=Remote("write_note", definition)))

    def trying(self, attempts: int) -> AbstractContextManager[None]:
        """So many attempts."""
        return self.deployed(
            lambda tool: replace(tool, dependency=replace(tool.dependency, attempts=attempts))
        )


@pytest.fixture(scope="module")
def desk(
    postgres: LocalPostgres, template: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Desk]:
    notes = Notes(tmp_path_factory.mktemp("notes"))
    mcp.load()  # a second's work, which no step has to wait for here
    with (
        LocalValkey.start() as valkey,
        copied(postgres, template) as database,
        notes.http() as url,
        opened(database, valkey, 4, noting_app(url)) as shop,
    ):
        yield Desk(shop, notes, url)


def found_pin(desk: Desk, key: str) -> str:
    """What the server offers now, as the held call tells it."""
    return desk.call(key)[2].rpartition(" ")[2]


def test_a_call_is_stored_as_it_is_sent_and_succeeds(desk: Desk) -> None:
    desk.notes.faults()
    desk.run("plain")
    assert desk.step(Queue.DISPATCHER) == 1
    state, attempts, _, request = desk.call("plain")
    assert (state, attempts) == ("SUCCEEDED", 1)
    assert request is not None
    assert json.loads(request)["method"] == "tools/call"
    assert len(desk.effects("plain")) == 1
    (started,) = desk.events("plain", "ToolAttemptStarted")
    assert started["fingerprint"]


def test_an_unknown_outcome_is_looked_up_by_the_partner_tool(desk: Desk) -> None:
    desk.notes.faults(write_note={"do": "raise_after"})
    desk.run("looked")
    desk.step(Queue.DISPATCHER)
    assert desk.call("looked")[0] == "UNKNOWN"
    assert desk.step(Queue.RECONCILER) == 1
    assert desk.call("looked")[0] == "SUCCEEDED"
    (effect,) = desk.effects("looked")
    (settled,) = desk.events("looked", "ToolEffectReconciled")
    assert settled["receipt"] == effect["note"]["id"]
    asked = desk.notes.calls("find_note")[-1]
    assert asked["arguments"]["key"] == effect["key"]


def test_an_unknown_outcome_without_a_lookup_is_a_persons(desk: Desk) -> None:
    desk.notes.faults(write_note={"do": "raise_after"})
    desk.run("sealed", "note.seal", text={"secret": "seal"})
    desk.step(Queue.DISPATCHER)
    desk.step(Queue.RECONCILER)
    state, attempts, _, _ = desk.call("sealed")
    assert (state, attempts) == ("NEEDS_REPAIR", 1)
    (effect,) = desk.effects("sealed")
    assert effect["text"] == SECRET


def test_a_secret_reaches_the_server_and_is_stored_nowhere(desk: Desk) -> None:
    desk.notes.faults()
    desk.run("hidden", "note.seal", text={"secret": "seal"})
    desk.step(Queue.DISPATCHER)
    state, _, _, request = desk.call("hidden")
    assert state == "SUCCEEDED"
    assert SECRET not in str(request)
    (effect,) = desk.effects("hidden")
    assert effect["text"] == SECRET
    assert desk.shop.sql("SELECT 1 FROM fencepost.events WHERE body::text LIKE %s", f"%{SECRET}%") == []


def test_a_result_that_is_not_what_it_should_be_proves_nothing_and_the_effect_is_looked_up(
    desk: Desk,
) -> None:
    desk.notes.faults(write_note={"do": "wrong"})
    desk.run("strange")
    desk.step(Queue.DISPATCHER)
    assert desk.call("strange")[0] == "UNKNOWN"
    (marked,) = desk.events("strange", "ToolOutcomeMarkedUnknown")
    assert marked["code"] == "unreadable_answer"
    desk.step(Queue.RECONCILER)
    assert desk.call("strange")[0] == "SUCCEEDED"


def test_a_changed_definition_holds_the_call_until_a_person_pins_it_anew(desk: Desk) -> None:
    desk.notes.faults()
    with desk.pinned(PIN):
        desk.run("held", minutes=60)
        desk.step(Queue.DISPATCHER)
        state, attempts, error, _ = desk.call("held")
        assert (state, attempts) == ("INTENT_RECORDED", 1)
        assert error.startswith(f"{CHANGED}: nothing was sent.")
        assert PIN in error
        for _ in range(3):  # no attempt is spent while the pin is the one it was held under
            desk.shop.ahead(AGAIN.total_seconds() + 1)
            desk.step(Queue.DISPATCHER)
        assert desk.call("held")[:2] == ("INTENT_RECORDED", 1)
        assert {said["held"] for said in desk.events("held", "DispatchDeferred")} == {CHANGED}
        assert desk.events("held", "ToolAttemptFailed")[0]["code"] == CHANGED
        (call,) = desk.shop.sql("SELECT id FROM fencepost.calls WHERE error LIKE %s", f"{CHANGED}%")[0]
        told = desk.shell("unresolved")
        assert told.exit_code == 1
        assert f"pinned as {PIN}" in told.output
        assert "fencepost mcp check" in told.output
        assert str(call) in [one.get("call") for one in desk.shell.json("unresolved", exit_code=1)]
        assert "It is held until a person pins" in desk.shell.ok("explain", str(call))
        assert "fencepost mcp check" in desk.shell("unresolved", str(call)).output
        assert desk.shell.json("unresolved", str(call), exit_code=1)["call"] == str(call)
        (aged,) = [one for one in desk.shell.json("stats")["unresolved"] if one["state"] == "HELD"]
        assert aged["count"] == 1
        assert aged["oldest"] > 3 * AGAIN.total_seconds()
        told = desk.shell.json("doctor", exit_code=3)["findings"]  # it knows of no Redis
        assert "1 call is held, and nothing was sent" in " ".join(one["says"] for one in told)
    assert desk.effects("held") == []
    with desk.pinned(found_pin(desk, "held")):
        desk.shop.ahead(AGAIN.total_seconds() + 1)
        desk.step(Queue.DISPATCHER)
    assert desk.call("held")[:2] == ("SUCCEEDED", 2)
    assert len(desk.effects("held")) == 1


def test_a_hold_of_hours_is_a_few_events_and_ends_soon_after_its_pin(desk: Desk) -> None:
    desk.notes.faults()
    count = "SELECT r.seq FROM fencepost.runs r WHERE r.run_key = 'long'"
    with desk.trying(1):
        with desk.pinned(PIN):
            desk.run("long", minutes=24 * 60)
            desk.step(Queue.DISPATCHER)
            for claims, most in ((40, 7), (40, 1)):
                ((seq,),) = desk.shop.sql(count)
                for _ in range(claims):  # each of them looks at the pin
                    desk.shop.ahead(AGAIN.total_seconds() + 1)
                    assert len(desk.shop.due(Queue.DISPATCHER)) == 1
                    desk.step(Queue.DISPATCHER)
                    assert desk.shop.due(Queue.DISPATCHER) == [], "put off, whether that is told or not"
                ((after,),) = desk.shop.sql(count)
                assert after - seq <= most
            assert desk.call("long")[:2] == ("INTENT_RECORDED", 1)
        desk.shop.ahead(AGAIN.total_seconds() + 1)
        desk.step(Queue.DISPATCHER)
        assert desk.call("long")[:2] == ("SUCCEEDED", 2)
    assert desk.checked() == []


def test_a_held_call_looks_again_by_itself_and_keeps_an_attempt_for_a_person(desk: Desk) -> None:
    desk.notes.faults()
    with desk.trying(3):
        with desk.pinned(PIN):
            desk.run("again", minutes=60)
            desk.step(Queue.DISPATCHER)
            for attempts in (2, 2):  # the third is kept
                desk.shop.ahead(RECHECK.total_seconds() + 45)
                desk.step(Queue.DISPATCHER)
                assert desk.call("again")[:2] == ("INTENT_RECORDED", attempts)
        desk.shop.ahead(AGAIN.total_seconds() + 1)
        desk.step(Queue.DISPATCHER)
        assert desk.call("again")[:2] == ("SUCCEEDED", 3)


def test_a_call_held_at_its_last_attempt_goes_on_once_it_is_pinned_anew(desk: Desk) -> None:
    desk.notes.faults()
    with desk.trying(1):
        with desk.pinned(PIN):
            desk.run("last", minutes=60)
            desk.step(Queue.DISPATCHER)
            assert desk.call("last")[:2] == ("INTENT_RECORDED", 1)
        desk.shop.ahead(AGAIN.total_seconds() + 1)
        desk.step(Queue.DISPATCHER)
        assert desk.call("last")[:2] == ("SUCCEEDED", 2)
        assert [said["limit"] for said in desk.events("last", "ToolAttemptStarted")] == [1, 2]
    assert desk.checked() == []


def test_the_command_line_pins_and_compares_what_a_server_offers(desk: Desk) -> None:
    desk.notes.faults()
    pins = desk.shell.json("mcp", "pin", "notes")
    assert set(pins) == {"write_note", "find_note"}
    written = desk.shell.ok("mcp", "pin", "notes")
    assert "# write_note: Writes a note." in written
    assert f'"write_note": "{pins["write_note"]}",' in written
    found = {one["remote"]: one for one in desk.shell.json("mcp", "check", exit_code=1)}
    assert {name: one["state"] for name, one in found.items()} == {
        "write_note": "unpinned",
        "find_note": "changed",
        "gone": "missing",
    }
    assert found["find_note"]["offered"] == pins["find_note"]
    assert f"find_note (note.find v1): was pinned as {PIN}" in desk.shell("mcp", "check").output
    assert "is no MCP server" in desk.shell.refused(2, "mcp", "pin", "plain")
    assert "MCP servers of app noted: notes" in desk.shell.refused(2, "mcp", "pin", "none")
    away = {"MCP_NOTES_URL": "http://127.0.0.1:1/mcp"}
    assert "nothing was sent" in desk.shell.refused(3, "mcp", "pin", "notes", **away)


def test_tools_says_what_is_pinned_and_what_is_left(desk: Desk) -> None:
    told = desk.shell.ok("tools")
    assert "note.write v1: mcp, irreversible, lookup_only" in told
    assert "NOT PINNED" in told
    assert f"pinned as {PIN}" in told
    assert "its server may make another tool of it" in told
