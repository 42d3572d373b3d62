"""Imitations of published interfaces: one service, told by `behaviours` what to do, with a book of its own.

    POST or PUT /imitations/NAME/...         makes an effect, as its key and behaviour allow
    GET         /imitations/NAME/found?...   what `key=` or `reference=` finds
    GET         /imitations/NAME/book        every effect and every request, for tests

Faults are asked for as for the services, by the name of the imitation. Books and keys live as long as the
process: these are no services of an order, and nobody audits them after a kill.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any
from uuid import UUID

from fencepost_ops.sandbox import answers, faults
from fencepost_ops.sandbox.answers import Answer
from fencepost_ops.sandbox.behaviours import BEHAVIOURS, Behaviour
from fencepost_ops.sandbox.faults import Kind, Rule, Rules
from fencepost_ops.sandbox.wire import HttpRequest


@dataclass(frozen=True, slots=True)
class Made:
    """One effect."""

    id: str
    key: str | None
    reference: str | None
    body: Any
    at: float


@dataclass(slots=True)
class _Known:
    """What is remembered of a key; without an answer it failed, and its execution is taken up again."""

    fingerprint: str
    since: float
    answer: Answer | None = None


@dataclass(slots=True)
class _Own:
    """What one imitation has done and knows."""

    made: list[Made] = field(default_factory=list)
    asked: list[dict[str, Any]] = field(default_factory=list)
    known: dict[str, _Known] = field(default_factory=dict)
    running: dict[str, asyncio.Event] = field(default_factory=dict)


class Imitations:
    """All imitations, of one event loop; between two awaits nothing else decides."""

    def __init__(self, rules: Rules, now: Callable[[], float]) -> None:
        self._rules = rules
        self._now = now
        self._own: defaultdict[str, _Own] = defaultdict(_Own)

    async def answer(self, request: HttpRequest) -> Answer:
        """Answer a request to an imitation. Raises ValueError for a fault header that cannot be read."""
        _, name, *rest = (*request.segments, "", "")
        if name not in BEHAVIOURS:
            return answers.problem(404, "no_such_imitation", f"there is no imitation of {name}")
        if request.method == "GET" and rest[0] == "book":
            own = self._own[name]
            return answers.success(
                200, {"effects": [asdict(made) for made in own.made], "requests": own.asked}
            )
        if request.method == "GET":
            return await self._found(name, request)
        return await self._effect(name, request, rest[1])

    async def _found(self, name: str, request: HttpRequest) -> Answer:
        by, own = BEHAVIOURS[name].found_by, self._own[name]
        value = request.query.get(by or "")
        rule = self._meet(name, "lookup", request, None, None)
        if (gone := answers.at_the_gate(rule)) is not None:
            return gone
        if by is None or value is None:
            return answers.problem(501, "no_lookup", f"{name} cannot be asked that")
        until = self._now() - BEHAVIOURS[name].found_after_s
        seen = [made for made in own.made if getattr(made, by) == value and made.at <= until]
        if not seen:
            return answers.spoiled(answers.problem(404, "not_found", f"nothing with this {by}"), rule)
        return answers.spoiled(answers.success(200, {**asdict(seen[0]), "count": len(seen)}), rule)

    def _meet(
        self, name: str, purpose: str, request: HttpRequest, key: str | None, reference: str | None
    ) -> Rule | None:
        asked = request.headers.get("sandbox-fault")
        rule = self._rules.meet(name, request.path, purpose, key, reference, asked)
        told = {"purpose": purpose, "key": key, "reference": reference, "at": self._now()}
        of = {n: v for n, v in request.headers.items() if n.startswith("fencepost-")}
        digest = hashlib.sha256(request.body).hexdigest()
        self._own[name].asked.append({**told, "digest": digest, "headers": of})
        return rule

    async def _effect(self, name: str, request: HttpRequest, last: str) -> Answer:
        behaviour = BEHAVIOURS[name]
        try:
            body = json.loads(request.body or b"{}")
        except ValueError:
            return answers.problem(400, "malformed", "the body must be JSON")
        key = _key(behaviour, request, body, last)
        reference = body.get("reference") if isinstance(body, dict) else None
        rule = self._meet(name, "effect", request, key, reference)
        await _pause(rule, Kind.DELAY_ARRIVAL, *faults.GATE)
        answer = answers.at_the_gate(rule) or _refused_key(behaviour, key)
        if answer is None and (key is None or (behaviour.unless and behaviour.unless not in request.headers)):
            answer = await self._execute(name, rule, Made("", key, reference, body, 0.0))
        elif answer is None and key is not None:
            answer = await self._keyed(name, rule, key, Made("", key, reference, body, 0.0))
        assert answer is not None
        final = answers.spoiled(answer, rule)
        await _pause(rule, Kind.DELAY_AFTER_COMMIT, *faults.SPOILS)
        return final

    async def _keyed(self, name: str, rule: Rule | None, key: str, wanted: Made) -> Answer:
        behaviour, own = BEHAVIOURS[name], self._own[name]
        remembers = behaviour.taken is not None or behaviour.remembers_s > 0
        while remembers and key in own.running:
            if behaviour.running is not None:
                return answers.problem(behaviour.running, "running", "an equal request is running")
            await own.running[key].wait()
        answer = self._judged(behaviour, own, key, _print(wanted.body))
        if answer is not None:
            return answer
        ended = own.running[key] = asyncio.Event()
        began = self._now()
        try:
            answer = await self._execute(name, rule, wanted)
        finally:
            own.running.pop(key, None)
            ended.set()
        if remembers and behaviour.taken is None:
            since = self._now() if behaviour.from_completion else began
            self._remember(behaviour, own, key, _Known(_print(wanted.body), since, answer))
        return answer

    def _judged(self, behaviour: Behaviour, own: _Own, key: str, fingerprint: str) -> Answer | None:
        """What a known key is answered; None for one to execute."""
        if behaviour.taken is not None:
            if any(made.key == key for made in own.made):
                return answers.problem(behaviour.taken, "exists", "the name is taken")
            return None
        known = own.known.get(key)
        if known is None or self._now() >= known.since + behaviour.remembers_s:
            return None
        if known.fingerprint != fingerprint and behaviour.other_body is not None:
            return answers.problem(behaviour.other_body, "mismatch", "the key is known for another request")
        if known.answer is None:
            return None
        marked = {} if behaviour.marker is None else dict([behaviour.marker])
        return replace(known.answer, headers={**known.answer.headers, **marked}, replayed=True, effect=None)

    def _remember(self, behaviour: Behaviour, own: _Own, key: str, known: _Known) -> None:
        if known.answer is None or known.answer.status < 300 or behaviour.after_failure == "replayed":
            own.known[key] = known
        elif behaviour.after_failure == "reexecuted":
            own.known[key] = replace(known, answer=None)
        else:
            own.known.pop(key, None)

    async def _execute(self, name: str, rule: Rule | None, wanted: Made) -> Answer:
        await _pause(rule, Kind.DELAY_BEFORE, *faults.FAILURES)
        if (failed := answers.instead_of_executing(rule, name)) is not None:
            return failed
        own = self._own[name]
        made = replace(wanted, id=f"{name}-{len(own.made) + 1}", at=self._now())
        own.made.append(made)
        shown = {"id": made.id, "reference": made.reference, "body": made.body}
        return replace(answers.success(201, shown), effect=made.id)


async def _pause(rule: Rule | None, *kinds: Kind) -> None:
    if rule is not None and rule.kind in kinds and rule.pause_s > 0:
        await asyncio.sleep(rule.pause_s)


def _print(body: Any) -> str:
    return json.dumps(body, sort_keys=True)


def _key(behaviour: Behaviour, request: HttpRequest, body: Any, last: str) -> str | None:
    if behaviour.in_path:
        return last
    if behaviour.header is not None:
        return request.headers.get(behaviour.header)
    found = body if behaviour.field is not None else None
    for part in (behaviour.field or "").split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return found if isinstance(found, str) else None


def _refused_key(behaviour: Behaviour, key: str | None) -> Answer | None:
    if not behaviour.keyed:
        return None
    if not key:
        return answers.problem(400, "key_required", "this interface wants a key")
    if behaviour.longest is not None and len(key) > behaviour.longest:
        return answers.problem(400, "key_too_long", f"a key has {behaviour.longest} characters at most")
    if behaviour.uuid:
        try:
            UUID(key)
        except ValueError:
            return answers.problem(400, "key_invalid", "a key is a UUID")
    return None
