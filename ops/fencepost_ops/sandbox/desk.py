"""The desk: what happens to one request for an effect, or to one lookup, from its arrival to its answer.

Everything runs on one event loop, so between two awaits nothing else decides. No answer leaves before what it
may speak of is committed.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from fencepost_ops.sandbox import answers, faults, keys
from fencepost_ops.sandbox.answers import Answer
from fencepost_ops.sandbox.commits import Commits
from fencepost_ops.sandbox.faults import Kind, Rule, Rules
from fencepost_ops.sandbox.keys import Decision, Memory, Policy
from fencepost_ops.sandbox.services import Invalid, Operation, Refused, Unchanged
from fencepost_ops.sandbox.settings import Settings, merged
from fencepost_ops.sandbox.store import Origin, Store, dumps
from fencepost_ops.sandbox.wire import HttpRequest

LOOKUPS = {"by-key": "key", "by-reference": "reference", "by-receipt": "id"}  # and the columns they search
_CORRELATION = frozenset({"idempotency-key", "traceparent", "tracestate", "request-id", "x-request-id"})


@dataclass(frozen=True, slots=True)
class Visit:
    """One request at the desk, its arrival noted in the book under `number`."""

    number: int
    service: str
    path: str
    key: str | None
    reference: str | None
    body: Any
    digest: str
    headers: str
    fault: Rule | None

    def meets(self, *kinds: Kind) -> bool:
        """Whether its fault is one of these."""
        return self.fault is not None and self.fault.kind in kinds

    async def pause(self, *kinds: Kind) -> None:
        """Wait as long as its fault says, if that is one of these."""
        if self.fault is not None and self.fault.kind in kinds and self.fault.pause_s > 0:
            await asyncio.sleep(self.fault.pause_s)

    @property
    def fingerprint(self) -> str:
        """What two requests of one key must have in common: path and JSON value."""
        same = json.dumps([self.path, self.body], sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(same.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class _Executing:
    """A keyed request in progress, as an equal one must know of it."""

    fingerprint: str
    ended: asyncio.Event


class Desk:
    """The services behind one book. `clock` gives Unix seconds, plus an administrator's offset."""

    def __init__(self, store: Store, settings: Settings, rules: Rules, clock: Callable[[], float]) -> None:
        self.store = store
        self.rules = rules
        self.commits = Commits(store)
        self.offset_s: float = store.setting("clock_offset_s") or 0.0
        self._clock = clock
        self._initial = settings
        self._executing: dict[tuple[str, str], _Executing] = {}
        store.settings = settings.changed(store.setting("config") or {})

    def now(self) -> float:
        """The services' clock."""
        return self._clock() + self.offset_s

    def move_clock(self, offset_s: float) -> None:
        """Put the services' clock ahead of the machine's by this much, also after a restart."""
        self.offset_s = offset_s
        self.store.put_setting("clock_offset_s", offset_s)

    def configure(self, wire: dict[str, Any]) -> None:
        """Change settings, also after a restart. Raises ValueError, and then nothing changed."""
        kept = merged(self.store.setting("config") or {}, wire)
        self.store.settings = self._initial.changed(kept)
        self.store.put_setting("config", kept)

    async def effect(self, operation: Operation, request: HttpRequest) -> Answer:
        """Answer a request for an effect. Raises ValueError for a fault header that cannot be read."""
        body = _parsed(request.body)
        reference = body.get("reference") if isinstance(body, dict) else None
        sent_key = keys.unquoted(request.headers.get("idempotency-key"))
        sent_reference = reference if isinstance(reference, str) else None
        visit = self._receive(operation.service, "effect", request, sent_key, sent_reference, body)
        await visit.pause(Kind.DELAY_ARRIVAL, *faults.GATE)
        answer = answers.at_the_gate(visit.fault) or await self._admitted(operation, visit)
        return await self._leave(visit, answer)

    async def lookup(self, service: str, by: str, value: str, request: HttpRequest) -> Answer:
        """Answer a lookup: the first effect that fits and how many do. Raises ValueError as `effect` does."""
        key, reference = (value if by == "by-key" else None), (value if by == "by-reference" else None)
        visit = self._receive(service, "lookup", request, key, reference, None)
        await visit.pause(Kind.DELAY_ARRIVAL, Kind.DELAY_BEFORE, *faults.GATE, *faults.FAILURES)
        answer = answers.at_the_gate(visit.fault) or answers.instead_of_executing(visit.fault, service)
        return await self._leave(visit, answer or self._find(service, LOOKUPS[by], value))

    def _receive(
        self,
        service: str,
        purpose: str,
        request: HttpRequest,
        key: str | None,
        reference: str | None,
        body: Any,
    ) -> Visit:
        path, asked = request.path, request.headers.get("sandbox-fault")
        rule = self.rules.meet(service, path, purpose, key, reference, asked)
        digest, headers = hashlib.sha256(request.body).hexdigest(), dumps(_correlation(request))
        number = self.store.receive(
            at=self.now(),
            service=service,
            purpose=purpose,
            method=request.method,
            path=path,
            key=key,
            reference=reference,
            digest=digest,
            headers=headers,
            fault=None if rule is None else rule.kind.value,
        )
        self.commits.due()  # the arrival is in the book even if the request is held, or the process dies
        return Visit(number, service, path, key, reference, body, digest, headers, rule)

    async def _leave(self, visit: Visit, answer: Answer) -> Answer:
        final = answers.spoiled(answer, visit.fault)
        self.store.answered(visit.number, final.visible_status, answer.replayed, answer.effect)
        await self.commits.settled()
        await visit.pause(Kind.DELAY_AFTER_COMMIT, *faults.SPOILS)
        return final

    async def _admitted(self, operation: Operation, visit: Visit) -> Answer:
        policy = self.store.settings.services[visit.service]
        try:
            key = keys.checked(visit.key)
        except ValueError as error:
            return answers.problem(400, "idempotency_key_invalid", str(error))
        if key is None and policy.key_required:
            return answers.problem(400, "idempotency_key_required", "send an Idempotency-Key header")
        if not isinstance(visit.body, dict):
            return answers.problem(400, "malformed", "the body must be a JSON object")
        if visit.fault is not None and visit.meets(Kind.FORGET_KEYS):
            self.store.forget(visit.service, visit.fault.key)
        if key is None or not policy.dedupes or visit.meets(Kind.IGNORE_KEYS):
            return await self._execute(operation, visit)
        return await self._keyed(operation, visit, key, policy)

    async def _keyed(self, operation: Operation, visit: Visit, key: str, policy: Policy) -> Answer:
        place, fingerprint = (visit.service, key), visit.fingerprint
        while True:
            first = self._executing.get(place)
            memory = self.store.memory(*place)
            executing = None if first is None else first.fingerprint
            decision = keys.decide(policy, memory, executing, fingerprint, self.now())
            if first is None or decision is not Decision.WAIT:
                break
            await first.ended.wait()
        if decision is Decision.CONFLICT:
            return answers.conflict()
        if decision is Decision.IN_PROGRESS:
            return answers.in_progress()
        if decision is Decision.REPLAY and memory is not None:
            await visit.pause(Kind.DELAY_BEFORE, *faults.FAILURES)
            return answers.instead_of_executing(visit.fault, visit.service) or answers.replay(memory)
        mine = self._executing[place] = _Executing(fingerprint, asyncio.Event())
        try:
            answer = await self._execute(operation, visit)
            self._remember(place, policy, memory, visit, answer)
            return answer
        finally:
            del self._executing[place]
            mine.ended.set()

    async def _execute(self, operation: Operation, visit: Visit) -> Answer:
        await visit.pause(Kind.DELAY_BEFORE, *faults.FAILURES)
        return answers.instead_of_executing(visit.fault, visit.service) or self._perform(operation, visit)

    def _perform(self, operation: Operation, visit: Visit) -> Answer:
        try:
            outcome = operation.outcome(visit.body, self.store)
        except Invalid as error:
            return answers.problem(400, "invalid", str(error))
        if isinstance(outcome, Refused):
            return answers.problem(outcome.status, outcome.code, outcome.detail)
        if isinstance(outcome, Unchanged):
            shown = {"kind": operation.kind, "reference": visit.reference, **outcome.answer}
            return answers.success(200, shown | {"replayed": False})
        origin = Origin(
            request=visit.number,
            service=visit.service,
            kind=operation.kind,
            key=visit.key,
            reference=visit.reference,
            digest=visit.digest,
            body=dumps(visit.body),
            headers=visit.headers,
        )
        answer = self.store.perform(origin, outcome, self.now())
        return replace(answers.success(201, answer | {"replayed": False}), effect=answer["id"])

    def _remember(
        self, place: tuple[str, str], policy: Policy, memory: Memory | None, visit: Visit, answer: Answer
    ) -> None:
        if answer.status == 400:
            return  # it never began: the key is as it was
        after = keys.after_success if answer.status < 300 else keys.after_failure
        if visit.fault is not None and visit.fault.remember_answer:
            answer = answers.spoiled(answer, visit.fault)
        text = answer.body.decode()
        kept = after(policy, memory, visit.fingerprint, self.now(), answer.status, text)
        if kept != memory:
            self.store.remember(*place, kept)

    def _find(self, service: str, column: str, value: str) -> Answer:
        policy = self.store.settings.services[service]
        if not policy.lookup:
            return answers.problem(501, "no_lookup", f"{service} cannot be asked what it did")
        until = self.now() - policy.lookup_lag_s
        found = self.store.effects(service=service, until=until, **{column: value})
        if not found:
            return answers.problem(404, "not_found", f"{service} has no effect with this {column}")
        first = found[0]
        told = {"key": first.key, "at": first.at, "digest": first.digest, "body": first.body}
        undone_by = self.store.undone_by(first.id)
        return answers.success(200, {**first.answer, **told, "undone_by": undone_by, "count": len(found)})


def _parsed(body: bytes) -> Any:
    """The JSON value of a body; None for what is none, nests too deep, or has no UTF-8 form."""
    try:
        value = json.loads(body)
        dumps(value).encode()
    except (ValueError, RecursionError):
        return None
    return value


def _correlation(request: HttpRequest) -> dict[str, str]:
    return {
        name: value
        for name, value in request.headers.items()
        if name in _CORRELATION or name.startswith(("fencepost-", "x-fencepost-")) or "deadline" in name
    }
