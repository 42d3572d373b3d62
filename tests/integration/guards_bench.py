"""Attacks on the tables in plain SQL: rows in any state, put there with the guards off, and one statement."""

import itertools
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import psycopg
from psycopg import sql

from fencepost.clock import uuid7
from fencepost.events import EventType
from fencepost.states import RUN_TABLE
from tests.integration.ledger_bench import TENANT, Bench

WORKER, OPERATOR, OWNER = "fencepost_worker", "fencepost_operator", None
OFFICES = ("cancel", "approval", "repair", "evidence", "recover")
LOGIN = "postgres"
"""Under which the tables are attacked."""
EPOCH = 7
"""The ledger is held under it while it is attacked."""
HELD = {"owner": "holder", "fence": 5}
"""The accepted term of every row an attack starts from."""


@dataclass
class Attack:
    """One transaction that is never committed; every attempt lives in a savepoint of its own."""

    connection: psycopg.Connection[Any]
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1000))
    said: str = ""
    """What Postgres said when it refused the last attempt."""

    def force(self, statement: str, *args: Any) -> list[Any]:
        """A statement with all triggers off, as the owner of everything."""
        self.connection.execute("SET LOCAL session_replication_role = replica")
        cursor = self.connection.execute(statement, args)
        found = cursor.fetchall() if cursor.description else []
        self.connection.execute("SET LOCAL session_replication_role = origin")
        return found

    def attempt(
        self, statement: str, *args: Any, role: str | None = WORKER, deferred: bool = False
    ) -> str | None:
        """The SQLSTATE with which Postgres refuses a statement, None where it does not; undone either way."""
        self.connection.execute("SAVEPOINT attempt")
        try:
            if role is not None:
                self.connection.execute(sql.SQL("SET LOCAL ROLE {}").format(sql.Identifier(role)))
            self.connection.execute(statement, args)
            if deferred:
                self.connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
        except psycopg.Error as error:
            self.said = str(error)
            return error.sqlstate
        else:
            return None
        finally:
            self.connection.execute("ROLLBACK TO SAVEPOINT attempt")

    def event(
        self, run: UUID, call: UUID | None = None, kind: str = "RepairRequested", **header: Any
    ) -> tuple[int, UUID, str]:
        """An event that a change could point at, ending a change: its number, id and hash."""
        seq, identity = next(self.numbers), uuid7()
        body = json.dumps(header.pop("body", {}))
        values: dict[str, Any] = {"tenant": TENANT, "run": run, "seq": seq, "id": identity, "type": kind}
        values |= {"version": 1, "call": call, "body": body, "digest": "", "principal": "p"}
        values |= {"causation": identity, "recorded_at": "2026-01-01T00:00:00Z", "projection": "p"}
        values |= {"prev_hash": "", "hash": f"hash-{seq}"} | header
        names = ", ".join(values)
        places = ", ".join(["%s"] * len(values))
        self.force(f"INSERT INTO fencepost.events ({names}) VALUES ({places})", *values.values())
        return seq, values["id"], f"hash-{seq}"

    def put(self, table: str, key: UUID, **columns: Any) -> None:
        """Put a row into any state, guards off."""
        names = ", ".join(f"{name} = %s" for name in columns)
        self.force(f"UPDATE fencepost.{table} SET {names} WHERE id = %s", *columns.values(), key)

    def update(
        self,
        table: str,
        key: UUID,
        columns: Mapping[str, Any],
        role: str | None = WORKER,
        *,
        deferred: bool = False,
    ) -> str | None:
        """Attempt to set columns of one row; the move of a run is told by its event."""
        if table == "runs" and "status" in columns and "seq" in columns:
            columns = self._told(key, columns)
        names = ", ".join(f"{name} = %s" for name in columns)
        statement = f"UPDATE fencepost.{table} SET {names} WHERE id = %s"
        return self.attempt(statement, *columns.values(), key, role=role, deferred=deferred)

    def _told(self, run: UUID, columns: Mapping[str, Any]) -> Mapping[str, Any]:
        """Have the newest event of a move take the run there; where it stays, nowhere."""
        to = columns["status"]
        ((before, requests),) = self.force("SELECT status, requests FROM fencepost.runs WHERE id = %s", run)
        kind = PLACING.get(to) if to != before else "LeaseAcquired"
        tell = "UPDATE fencepost.events SET type = %s, call = NULL WHERE run = %s AND seq = %s"
        said = self.force(
            "SELECT type FROM fencepost.events WHERE run = %s AND seq = %s", run, columns["seq"]
        )
        if kind is not None and (to != before or said[0][0] in PLACING.values()):
            self.force(tell, kind, run, columns["seq"])
        return {"requests": requests + (kind == "ModelRequestStarted")} | dict(columns)


PLACING = {move.target: move.event for move in sorted(RUN_TABLE, key=lambda move: move.event, reverse=True)}
"""An event that takes a run there."""


@contextmanager
def attack(bench: Bench) -> Iterator[Attack]:
    with bench.attacker.session() as session:
        session.execute("INSERT INTO fencepost.epochs VALUES (%s, now(), now(), 'ann', 'a restore')", [EPOCH])
        session.execute("SELECT set_config('fencepost.tokens', %s, true)", [bench.token])
        yield Attack(session)


def presented(via: str, version: int = 0) -> dict[str, Any]:
    """What an UPDATE sets to present itself `via` to a row that holds `HELD`; the owner is let go."""
    if via == "term":
        return {"presented_owner": HELD["owner"], "presented_fence": HELD["fence"], "owner": None}
    if via == "claim":
        return {"presented_owner": "next", "presented_fence": 6, "fence": 6, "owner": None}
    return {"presented_office": via, "presented_version": version, "fence": 6, "owner": None}


Change = dict[str, Any]
Proof = tuple[str, Change]
TERMS = {"term": (HELD["owner"], HELD["fence"]), "claim": ("next", 6)}


class CallTarget:
    """One call in a run that acts, held by `HELD`, and the events it may point at."""

    def __init__(self, planned: tuple[UUID, UUID, UUID, int], attack: Attack) -> None:
        self.run, self.call, self.other, self.version = planned
        self.attack = attack
        self.seq, _, _ = attack.event(self.run, self.call)

    def put(self, state: str, **columns: Any) -> None:
        """Put the call into a state it could honestly be in, unless `columns` say otherwise."""
        doubt = state in {"UNKNOWN", "NEEDS_REPAIR"}
        self.attack.put("calls", self.call, **(HELD | {"state": state, "doubt": doubt} | columns))

    def update(self, via: str, columns: Change, role: str | None = None) -> str | None:
        """Attempt exactly this change, with an event that proves nothing."""
        change = {"version": self.seq, **presented(via, self.version), **columns}
        return self.attack.update("calls", self.call, change, role or role_of(via))

    def event(self, via: str, kind: str, **header: Any) -> tuple[int, UUID]:
        """An event of the call, recorded under what `via` presents."""
        worker, fence = TERMS.get(via, (None, None))
        header = {"worker": worker, "fence": fence} | header
        seq, identity, _ = self.attack.event(self.run, self.call, kind, **header)
        return seq, identity

    def column(self, name: str) -> Any:
        found = self.attack.force(f"SELECT {name} FROM fencepost.calls WHERE id = %s", self.call)
        return found[0][0]

    def move(self, via: str, to: str, role: str | None = None, **columns: Any) -> str | None:
        """Attempt the honest change by which `via` would move the call, but for `columns`."""
        asked = self._asked(via)
        kind, header = honest(via, self.column("state"), to)
        attempts = self.column("attempts") + (kind == EventType.TOOL_ATTEMPT_STARTED)
        seq, identity = self.event(via, kind, attempt=attempts, **header)
        change: Change = {"state": to, "version": seq, "doubt": to in {"UNKNOWN", "NEEDS_REPAIR"}}
        if kind == EventType.APPROVAL_REQUESTED:
            change |= {"approval": approval(ASKED)}
        elif "decision" in header.get("body", {}):
            change |= {"approval": approval(asked, header["body"]["decision"])}
        if to == "DISPATCHING":
            change |= {"attempts": attempts, "doubt": self.column("state") != "INTENT_RECORDED"}
        if kind == EventType.RESULT_REUSED:
            change |= {"reused": True}
        elif via == "repair" and self.column("state") == to:
            said: dict[str, Change] = {
                "SUCCEEDED": {"offset_left": seq},
                "NEEDS_REPAIR": {"proposed": "{}"},
            }
            change |= said.get(to, {})
        elif to in {"SUCCEEDED", "FAILED", "ACCEPTED_UNKNOWN"}:
            change |= {"proof": identity}
        return self.update(via, change | columns, role)

    def _asked(self, via: str) -> dict[str, Any]:
        """Have asked for an approval of what waits for one: it is over by the time of a claim."""
        asked = ASKED | {"expires_at": "2026-01-01T00:00:00Z" if via == "claim" else ASKED["expires_at"]}
        if self.column("state") == "AWAITING_APPROVAL":
            self.attack.put("calls", self.call, approval=approval(asked))
        return asked


ASKED: dict[str, Any] = {"count": 1, "expires_at": "9000-01-01T00:00:00Z"}
"""What is asked for, as far as Postgres looks at it."""


def approval(asked: dict[str, Any], *decisions: dict[str, Any]) -> str:
    """What is kept of it."""
    return json.dumps({"asked": asked, "decisions": decisions})


def honest(via: str, source: str, to: str) -> Proof:
    """The event with which `via` moves a call from `source` to `to`."""
    if via == "recover":
        return EventType.TOOL_OUTCOME_MARKED_UNKNOWN, {"body": {"code": "ledger_restored", "epoch": EPOCH}}
    if "AWAITING_APPROVAL" in {source, to} and via in {"claim", "approval"}:
        return _approval(via, source, to)
    if via == "repair" and to == "UNKNOWN":
        return EventType.REPAIR_DECIDED, {"body": {"to": to}}
    if to in {"SUCCEEDED", "FAILED", "ACCEPTED_UNKNOWN"}:
        if via == "repair":
            return EventType.REPAIR_DECIDED, {"body": {"to": to, "release": source == to == "FAILED"}}
        if source == "INTENT_RECORDED":
            return EventType.RESULT_REUSED, {"body": {"meaning": "m"}}
        if via == "term" and source == "DISPATCHING":
            if to == "SUCCEEDED":
                return EventType.TOOL_RESULT_RECORDED, {}
            return EventType.TOOL_ATTEMPT_FAILED, {"body": {"final": True, "stored": False}}
        return EventType.TOOL_EFFECT_RECONCILED, {"body": {"to": to}}
    if via == "repair" and to == "NEEDS_REPAIR":
        return EventType.REPAIR_PROPOSED, {}
    if source == "DISPATCHING" and to == "INTENT_RECORDED":
        return EventType.TOOL_ATTEMPT_FAILED, {"body": {"final": False}}
    return EventType.TOOL_ATTEMPT_STARTED if to == "DISPATCHING" else EventType.REPAIR_REQUESTED, {}


def _approval(via: str, source: str, to: str) -> Proof:
    if source != "AWAITING_APPROVAL":
        return EventType.APPROVAL_REQUESTED, {"body": {"asked": ASKED}}
    word = {"who": "ann", "login": LOGIN, "approve": to != "REJECTED"}
    return EventType.APPROVAL_DECIDED, {"body": {"decision": word} if via == "approval" else {}}


def role_of(via: str) -> str:
    return OPERATOR if via in {"approval", "repair", "recover"} else WORKER
