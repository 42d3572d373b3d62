"""Defences in the processes: what a worker sends and when, and what the relay keeps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

import psycopg

from fencepost import commands as c
from fencepost.clock import boottime
from fencepost.tools import Response, StoredRequest
from fencepost_ops.drill.ledger import REFUSED_STATES, DrillLedger
from fencepost_ops.drill.protocol import Event, Expect, Fault, Fleet, Protocol
from fencepost_ops.drill.sabotages.decisions import calls, once
from fencepost_ops.drill.sabotages.switch import (
    STAND_IN,
    Sabotage,
    code,
    every,
    granted,
    in_depth,
    without,
)
from fencepost_ops.drill.services import Services, Wire
from fencepost_relay import relay
from fencepost_relay.relay import Relay
from fencepost_workers import attempts
from fencepost_workers.dispatcher import Dispatcher
from fencepost_workers.role import Held, Message
from fencepost_workers.step import Step

Made = Callable[..., Any]


# -- the wire ----------------------------------------------------------------------------------------------


def _asked_twice(answer: Made) -> Made:
    def answered(services: Services, wire: Wire) -> Response:
        if wire.method != "GET":
            answer(services, wire)
        return answer(services, wire)  # type: ignore[no-any-return]

    return answered


def _sent_first(claim: Made) -> Made:
    def claimed(role: Dispatcher, prepared: Any, message: Message, term: c.Term, token: str) -> Any:
        made = claim(role, prepared, message, term, token)
        if made is not None and made.request is not None:
            _send(role, made, prepared.operation)
        return made

    return claimed


def _send(role: Any, claim: c.ClaimCall, key: str | None) -> None:
    told = {"run": str(claim.run), "call": str(claim.subject), "attempt": "1", "fence": str(claim.term.fence)}
    stored = StoredRequest.from_text(claim.request or "")
    known = role.worker.app.registry.values()
    sending = role.worker.engine.send(
        stored,
        allowed=next(tool.dependency.outbound() for tool in known if tool.scope == claim.scope),
        key=key,
        deadline=None,
        until=boottime() + 1,
        correlation=told,
        kind="effect",
    )
    asyncio.run(sending)


def _anyhow(kept: Made) -> Made:
    """Sends what was claimed whatever the ledger has answered."""

    def acted(step: Any, wishes: Sequence[Any], answers: Sequence[Any], failed: list[Any]) -> Any:
        for wish, answered in zip(wishes, answers, strict=True):
            refused = isinstance(answered, tuple) and not isinstance(answered[0], c.Send)
            if refused and isinstance(wish.claim, c.ClaimCall) and wish.claim.request is not None:
                _send(step._role, wish.claim, None)  # noqa: SLF001 - as its own code would
        return kept(step, wishes, answers, failed)

    return acted


class _Rebuilt:
    """Builds a request anew for each attempt, with what is different by then."""

    def __init__(self, kept: type[StoredRequest]) -> None:
        self._kept = kept
        self._number = 0

    def from_text(self, text: str) -> StoredRequest:
        """See `StoredRequest.from_text`."""
        self._number += 1
        stored = self._kept.from_text(text)
        return replace(stored, body=stored.body[:-1] + f',"number":{self._number}}}'.encode())


_WIRE: Final = (
    Sabotage(
        name="retries_in_the_sdk",
        invariant="I9",
        about="each attempt puts one request on the wire: clients and proxies retry nothing",
        off=code(Services, "answer", _asked_twice),
        layer=STAND_IN,
        shows=Protocol(name="sabotage.retries_in_the_sdk", runs=calls("dedupes"), expect=once("dedupes")),
    ),
    Sabotage(
        name="sent_before_commit",
        invariant="I2",
        about="nothing is sent before the attempt is committed",
        off=code(Dispatcher, "claim", _sent_first),
        shows=Protocol(
            name="sabotage.sent_before_commit",
            runs=calls("dedupes"),
            faults=[Fault(at="ledger.in_transaction", do="crash", nth=3)],
            expect=once("dedupes"),
        ),
    ),
    Sabotage(
        name="sent_without_claim",
        invariant="I3",
        about="what the ledger has not let a process claim, it does not send",
        off=code(Step, "_kept", _anyhow),
        shows=Protocol(
            name="sabotage.sent_without_claim",
            runs=calls("dedupes"),
            fleet=Fleet(dispatcher=1),
            faults=[Fault(at="dispatch.after_lease", do="pause", for_s=2)],
            events=[Event(at_s=1, do="cancel", run=0)],
            expect=Expect(effects={"dedupes": 0}, runs=["STOPPED"], dispatches=0),
        ),
    ),
    Sabotage(
        name="late_look_removed",
        invariant="I10",
        about="just before the wire a worker looks at the clock, and sends nothing late",
        off=code(Held, "until", lambda _until: lambda _held, timeout: boottime() + timeout.total_seconds()),
        shows=Protocol(
            name="sabotage.late_look_removed",
            runs=calls("dedupes"),
            fleet=Fleet(reconciler=0),
            faults=[Fault(at="dispatch.after_claim", do="pause", for_s=10)],
            expect=once("dedupes"),
        ),
    ),
    Sabotage(
        name="request_rebuilt",
        invariant="I2",
        about="what is sent is the request that was stored with its attempt, byte for byte",
        off=code(attempts, "StoredRequest", _Rebuilt),
        shows=Protocol(name="sabotage.request_rebuilt", runs=calls("dedupes"), expect=once("dedupes")),
    ),
)

# -- the outbox --------------------------------------------------------------------------------------------


_DELETE: Final = "DELETE FROM fencepost.outbox WHERE subject = ANY (%(gone)s::uuid[])"


def _published_away(ledger: DrillLedger) -> Made:
    """The relay takes a row for done once its message is sent."""

    def other(publish: Made) -> Made:
        def published(one: Any, rows: Sequence[Any], at: Any) -> Any:
            done = publish(one, rows, at)
            try:
                gone = [row.subject for row in rows]
                one._execute(_DELETE, {"gone": gone})  # noqa: SLF001 - as its own code would
            except Exception as error:
                cause = error if isinstance(error, psycopg.Error) else error.__cause__
                if isinstance(cause, psycopg.Error) and (cause.sqlstate or "").startswith(REFUSED_STATES):
                    ledger.sessions["worker"].refused.append(str(cause).partition("\n")[0])
                raise
            return done

        return published

    return other


def _drop_rows(ledger: DrillLedger) -> Any:
    return code(Relay, "_publish", _published_away(ledger))(ledger)


_OUTBOX: Final = (
    *in_depth(
        Sabotage(
            name="row_dropped_at_publish",
            invariant="I12",
            about="an outbox row stays until its subject has moved on, whatever became of its message",
            off=_drop_rows,
            shows=Protocol(
                name="sabotage.row_dropped_at_publish",
                runs=calls("dedupes"),
                faults=[Fault(at="relay.after_publish", do="lost")],
                expect=once("dedupes"),
            ),
        ),
        every(granted("DELETE", "outbox", "fencepost_relay"), without("guard_outbox_end", "outbox")),
    ),
    Sabotage(
        name="published_once",
        invariant="I12",
        about="what nobody has claimed is published again",
        off=code(relay, "republish_delay", lambda _delay: lambda *_given: timedelta(days=1)),
        shows=Protocol(
            name="sabotage.published_once",
            runs=calls("dedupes"),
            faults=[Fault(at="relay.after_publish", do="lost")],
            expect=once("dedupes"),
        ),
    ),
)

PROCESSES: Final = (*_WIRE, *_OUTBOX)
