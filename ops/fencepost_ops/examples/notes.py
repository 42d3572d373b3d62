"""Memory and retrieval on a fleet of its own, told as it happens: `python -m fencepost_ops.examples.notes`.

Three runs: one reads from a replica that is half a second behind and waits for what it wrote; one reads from
a replica that is an hour behind and is told so, its `verify` refuses the answer and its writes are offset;
one searches documents of which some are stale. The application is `fencepost_ops.examples.notes:app`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

import click
from pydantic import BaseModel

from fencepost import App, Attempt, Client, Context, Turn
from fencepost.events import Event
from fencepost.ledger import listings, memories
from fencepost.ledger.connect import Connection, Pool, connect
from fencepost.ledger.memories import PostgresMemory
from fencepost.memory import Memory, Read, Write
from fencepost.memory_port import Change, Listed, Slot, Stored, WriteAnswer, Writer
from fencepost.retrieval import Document, stale_calls
from fencepost_ops.fleet import Fleet, FleetOptions

TENANT: Final = "readers"
PLANNERS: Final = ("near", "far", "docs")
DAY: Final = timedelta(days=1)
_WITHIN_S: Final = 60.0
_LOOK_S: Final = 0.05

app = App("notes")


class Behind:
    """A replica of the ledger's memory: what it reads is as it was `lag` ago."""

    def __init__(self, lag: timedelta) -> None:
        self._lag = lag
        self._pools: dict[int, Pool] = {}

    def _pool(self) -> Pool:
        pid = os.getpid()
        if pid not in self._pools:
            self._pools[pid] = Pool(os.environ["FENCEPOST_DSN"], "notes-replica", 2)
        return self._pools[pid]

    def close(self) -> None:
        """Give back this process's sessions."""
        if (pool := self._pools.pop(os.getpid(), None)) is not None:
            pool.close()

    def write(self, slot: Slot, change: Change, writer: Writer) -> WriteAnswer:
        """On the primary."""
        return PostgresMemory(self._pool()).write(slot, change, writer)

    def written(self, slot: Slot, operation: str) -> int | None:
        """On the primary."""
        return PostgresMemory(self._pool()).written(slot, operation)

    def read(self, slot: Slot) -> Stored:
        """The newest version that has arrived here by now."""
        with self._pool().reading() as connection:
            then = listings.now(connection) - self._lag
            for one in memories.versions(connection, slot, 100):
                if one.written_at <= then:
                    return Stored(
                        one.version, one.value, not one.absent, one.erased_at is not None, one.untrusted, then
                    )
        return Stored(0, as_of=then)

    def keys(self, tenant: str, space: str, prefix: str, after: str, limit: int) -> Sequence[Listed]:
        """On the primary."""
        return PostgresMemory(self._pool()).keys(tenant, space, prefix, after, limit)


near = app.memory("near", store=Behind(timedelta(milliseconds=500)), wait=timedelta(seconds=5))
far = app.memory("far", store=Behind(timedelta(hours=1)), wait=timedelta(seconds=1))


class Question(BaseModel):
    """What is looked for."""

    query: str


def search(args: Question, _attempt: Attempt) -> list[Document]:
    """A library of two pages, of which one was last known to be current two months ago."""
    now = datetime.now(UTC)
    return [
        Document(id="leave-policy", version="rev-31", as_of=now, text=f"{args.query}: 30 days", score=0.9),
        Document(id="leave-faq", version="rev-4", as_of=now - 60 * DAY, text="25 days", score=0.8),
    ]


docs = app.retrieval("docs", search=search, max_age=30 * DAY)
app.allow("svc:*", ["near.*", "far.*", "docs.*"])


def _remembers(space: Memory, context: Context) -> Turn:
    match context.turn:
        case 1:
            return Turn([space.write.propose(Write(key="plan", value="draft", expected=0), call_id="first")])
        case 2:
            return Turn([space.write.propose(Write(key="plan", value="final", expected=1), call_id="second")])
        case 3:
            return Turn([space.read.propose(Read(key="plan"), call_id="read")])
        case _:
            read = context.call("read")
            return Turn(finish={"plan": read.result.get("value") if read is not None else None})


@app.planner("near")
def near_planner(context: Context) -> Turn:
    """Writes twice, and reads what it wrote."""
    return _remembers(near, context)


@app.planner("far")
def far_planner(context: Context) -> Turn:
    """The same, from a replica that cannot know it yet."""
    return _remembers(far, context)


@app.planner("docs")
def docs_planner(context: Context) -> Turn:
    """Searches, and answers from what it found."""
    found = context.call("search")
    if found is None:
        return Turn([docs.propose(Question(query="How many days of leave are there?"), call_id="search")])
    return Turn(finish={"answer": [one["text"] for one in found.result["documents"]]})


@app.verify("near")
@app.verify("far")
def fresh(context: Context) -> bool | str:
    """A completion that rests on anything stale is none."""
    return "; ".join(stale_calls(context)) or True


def main() -> None:
    """Start a fleet, send the runs and say what became of them."""
    with Fleet(FleetOptions("fencepost_ops.examples.notes:app", sandbox=False, out=sys.stderr)) as fleet:
        fleet.wait_ready()
        dsns = fleet.database.dsns
        with (
            Client(dsns["producer"], fleet.valkey.url()) as client,
            connect(dsns["reader"], "notes", autocommit=True) as reader,
        ):
            for planner in PLANNERS:
                run = sent(client, planner)
                click.echo(f"\n== run {planner} ==")
                for line in told(reader, run):
                    click.echo(line)


def sent(client: Client, planner: str) -> UUID:
    """Ask for a run of this planner; which one it is."""
    asked = client.enqueue(
        planner,
        {},
        run_key=planner,
        tenant=TENANT,
        principal="svc:reader",
        deadline=timedelta(minutes=2),
    )
    return asked.run_id


def told(reader: Connection, run: UUID) -> Iterator[str]:
    """What became of a run, line by line, once it has ended."""
    end = time.monotonic() + _WITHIN_S
    history = listings.history(reader, TENANT, run)
    while history is None or history.run.status not in {"COMPLETED", "STOPPED"}:
        if time.monotonic() > end:
            raise click.ClickException(f"run {run} has not ended within {_WITHIN_S:g} s")
        time.sleep(_LOOK_S)
        history = listings.history(reader, TENANT, run)
    labels = {call.id: f"{call.tool} ({call.label})" for call in history.calls}
    began = history.events[0].recorded_at
    for event in history.events:
        if (said := _said(reader, event, labels)) is not None:
            yield f"{(event.recorded_at - began).total_seconds():6.2f} s  {said}"
    for one in memories.grounding(reader, TENANT, run):
        yield f"          rests on {one.source} {one.id} at version {one.version}, as of {one.as_of}"
    yield f"          {history.run.status} {history.run.stop_reason or history.run.preview}"


def _said(reader: Connection, event: Event, labels: dict[UUID, str]) -> str | None:
    data: dict[str, Any] = event.data
    if event.type == "ToolResultRecorded" and event.call is not None:
        row = reader.execute(
            "SELECT data FROM fencepost.payloads WHERE tenant = %s AND digest = %s", [TENANT, data["result"]]
        ).fetchone()
        assert row is not None  # the event was recorded with it
        return f"{labels[event.call]}: {json.dumps(json.loads(bytes(row[0])))}"
    if event.type == "ModelResponseRecorded" and data.get("objection"):
        return f"verify refuses: {data['objection']}"
    return None


if __name__ == "__main__":
    main()
