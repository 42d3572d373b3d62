"""A scripted model provider: OpenAI Responses, Chat Completions and Anthropic Messages for the real SDKs.

    POST /v1/responses  /v1/chat/completions  /v1/messages    (also without /v1)
    POST /models/script    what models answer (see `provider_scripts`); replaces a model's earlier script
    POST /models/faults    what goes wrong (see `provider_faults`); GET and DELETE as for other faults
    POST /models/release   ends every `hold` that waits now
    GET  /models/requests?since=&model=    the book (see `provider_book`)

Thousands of slow streams cost one process little: each is a task that sleeps. A transcript that a provider
would refuse is refused: calls without results, results without calls, missing fields.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from fencepost_ops.sandbox import answers, provider_scripts, provider_wires
from fencepost_ops.sandbox.answers import Answer
from fencepost_ops.sandbox.desk import Desk
from fencepost_ops.sandbox.provider_book import FIRST_CHARS, Asking, Ledger
from fencepost_ops.sandbox.provider_faults import Facts, Fault, Rule, Rules, parse, spoiled
from fencepost_ops.sandbox.provider_oddities import odd_pieces
from fencepost_ops.sandbox.provider_play import Left, Played, Player
from fencepost_ops.sandbox.provider_replies import CONTEXT, Reply
from fencepost_ops.sandbox.provider_scripts import Limits, Script, Unscripted
from fencepost_ops.sandbox.provider_shipped import SHIPPED
from fencepost_ops.sandbox.provider_transcript import (
    CHAT,
    MESSAGES,
    RESPONSES,
    Asked,
    Malformed,
    read,
)
from fencepost_ops.sandbox.wire import HttpRequest

_PATHS: Final = {
    "/responses": RESPONSES,
    "/chat/completions": CHAT,
    "/messages": MESSAGES,
}
_KEPT_HEADERS: Final = ("idempotency-key", "traceparent", "x-client-request-id", "user-agent")
_CONTEXT_CODE: Final = "context_length_exceeded"


def wire_at(path: str) -> str | None:
    """The wire a path belongs to."""
    return _PATHS.get(path.removeprefix("/v1"))


class Provider:
    """All models of one process. Scripts that were posted outlive it."""

    def __init__(self, folder: Path, desk: Desk) -> None:
        self.rules = Rules()
        self.book = Ledger(folder)
        self._desk = desk
        self._posted: dict[str, Any] = dict(desk.store.setting("models") or {})
        given = {**SHIPPED, **desk.store.settings.models, **self._posted}
        self._scripts = {name: provider_scripts.parse(name, one) for name, one in given.items()}
        self._released = asyncio.Event()
        self._running: Counter[str] = Counter()
        self._buckets: dict[str, tuple[float, float]] = {}

    def close(self) -> None:
        """Close the book."""
        self.book.close()

    # -- the back office --

    async def admin(self, request: HttpRequest) -> Answer:
        """Answer what is asked under /models. Raises ValueError for a body that cannot be read."""
        answer = self._admin(request)
        await self._desk.commits.settled()
        return answer

    def _admin(self, request: HttpRequest) -> Answer:
        match (request.method, *request.segments[1:]):
            case ("POST", "script"):
                return self._script(_object(request))
            case ("GET", "script"):
                return answers.success(200, {"models": sorted(self._scripts), "posted": self._posted})
            case ("POST", "faults"):
                return self._add_faults(_object(request))
            case ("GET", "faults"):
                standing = [rule.wire_form() for rule in self.rules.standing]
                return answers.success(200, {"faults": standing, "fired": dict(self.rules.fired)})
            case ("DELETE", "faults", *which):
                return answers.success(200, {"deleted": self.rules.delete(which[0] if which else None)})
            case ("POST", "release"):
                self.release()
                return answers.success(200, {"released": True})
            case ("GET", "requests"):
                return self._requests(request)
        return answers.problem(404, "no_such_path", f"the provider has nothing at {request.path}")

    def release(self) -> None:
        """End every hold that waits now; later ones wait again."""
        self._released.set()
        self._released = asyncio.Event()

    def _script(self, body: Mapping[str, Any]) -> Answer:
        given = body.get("models")
        if not isinstance(given, dict):
            raise ValueError('a script is {"models": {"name": {"turns": [...]}}}')  # noqa: TRY004 - a bad body
        parsed = {name: provider_scripts.parse(name, one) for name, one in given.items()}
        self._scripts |= parsed
        self._posted |= given
        self._desk.store.put_setting("models", self._posted)
        return answers.success(200, {"models": sorted(self._scripts)})

    def _add_faults(self, body: Mapping[str, Any]) -> Answer:
        if "faults" not in body:
            return answers.success(201, self.rules.add(parse(body)).wire_form())
        if not isinstance(body["faults"], list):
            raise ValueError("faults is a list of objects")  # noqa: TRY004 - a bad body
        parsed = [parse(one, body.get("seed", 0)) for one in body["faults"]]
        return answers.success(201, {"faults": [self.rules.add(rule).wire_form() for rule in parsed]})

    def _requests(self, request: HttpRequest) -> Answer:
        since, model = int(request.query.get("since", "0")), request.query.get("model")
        found = [one.wire_form() for one in self.book.requests[since:] if model in (None, one.model)]
        told = {"requests": found, "last": len(self.book.requests)}
        return answers.success(200, {**told, "open": self.book.open, "most": self.book.most})

    # -- the wires --

    async def answer(
        self, wire: str, request: HttpRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Answer a model request; whether its connection can be used again."""
        player = Player(reader, writer, lambda: self._released)
        seq = len(self.book.requests) + 1
        key = request.headers.get("authorization", request.headers.get("x-api-key", ""))
        asking = Asking(
            seq=seq,
            at=self._desk.now(),
            wire=wire,
            body=hashlib.sha256(request.body).hexdigest(),
            key=hashlib.sha256(key.removeprefix("Bearer ").encode()).hexdigest() if key else "",
            retries=request.headers.get("x-stainless-retry-count"),
            headers={name: request.headers[name] for name in _KEPT_HEADERS if name in request.headers},
        )
        try:
            asked: Asked | Malformed = read(wire, _json(request.body), request.headers)
        except Malformed as error:
            asked = error
        if isinstance(asked, Asked):
            asking = replace(
                asking,
                model=asked.model,
                stream=asked.stream,
                turn=asked.turn,
                transcript=asked.digest,
                nth=self.rules.visit(asked.model, asked.digest),
                first=asked.first[:FIRST_CHARS],
            )
        self.book.begin(asking)
        played = Played("left", None)
        try:
            if isinstance(asked, Malformed):
                played = await self._refuse(player, wire, seq, 400, str(asked))
            elif not key:
                played = await self._refuse(player, wire, seq, 401, "no API key was sent")
            else:
                played = await self._known(asking, asked, player)
        except (Left, ConnectionError):
            pass
        except asyncio.CancelledError:  # the process ends
            played = Played("cut", None)
            raise
        finally:
            there = player.there
            self.book.end(
                seq, ended=self._desk.now(), outcome=played.outcome, status=played.status, there=there
            )
        return played.keep_alive and request.keep_alive

    async def _refuse(
        self,
        player: Player,
        wire: str,
        seq: int,
        status: int,
        message: str,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Played:
        body = provider_wires.error(wire, status, message, code)
        return await player.error(status, body, {**_ids(seq), **(headers or {})})

    async def _known(self, asking: Asking, asked: Asked, player: Player) -> Played:
        script = self._scripts.get(asked.model)
        if script is None:
            why = f"The model `{asked.model}` does not exist: POST its script to /models/script"
            return await self._refuse(player, asked.wire, asking.seq, 404, why, "model_not_found")
        full = self._full(asked.model, script.limits)
        if full is not None:
            wait = {"retry-after": str(script.limits.retry_after_s)}
            return await self._refuse(player, asked.wire, asking.seq, 429, full, "rate_limit_exceeded", wait)
        facts = Facts(asked.wire, asked.model, asked.turn, asked.digest, asking.seq, asking.nth, asked.first)
        rule = self.rules.meet(facts)
        if rule is not None:
            self.book.know(asking.seq, fault=rule.kind.value)
        self._running[asked.model] += 1
        try:
            return await self._spoken(asking, asked, script, rule, player)
        except Unscripted as error:
            return await self._refuse(player, asked.wire, asking.seq, 400, str(error), "unscripted")
        finally:
            self._running[asked.model] -= 1

    def _full(self, model: str, limits: Limits) -> str | None:
        """Why a request is turned away, if it is."""
        if limits.concurrent is not None and self._running[model] >= limits.concurrent:
            return f"Rate limit reached: {limits.concurrent} requests at once"
        if limits.per_s is not None:
            now = time.monotonic()
            left, since = self._buckets.get(model, (limits.per_s, now))
            left = min(limits.per_s, left + (now - since) * limits.per_s)
            self._buckets[model] = (left - 1 if left >= 1 else left, now)
            if left < 1:
                return f"Rate limit reached: {limits.per_s:g} requests per second"
        return None

    async def _spoken(
        self, asking: Asking, asked: Asked, script: Script, rule: Rule | None, player: Player
    ) -> Played:
        wire, seq = asked.wire, asking.seq
        headers_s, first_s, between_s = script.latency.pace(asked.digest, asking.nth)
        if rule is not None and rule.kind is Fault.SLOW:
            headers_s, first_s, between_s = rule.headers_s, rule.first_s, rule.between_s
        if rule is not None and rule.kind is Fault.STATUS:
            await player.wait(rule.headers_s)
            why = "a fault was asked for"
            return await self._refuse(player, wire, seq, rule.status, why, rule.code, _steering(rule))
        if (instead := await player.before_headers(rule)) is not None:
            return instead
        reply = spoiled(provider_scripts.reply(script, asked, seq), rule)
        if reply.stop == CONTEXT and wire != MESSAGES:
            why = "This model's maximum context length was exceeded"
            return await self._refuse(player, wire, seq, 400, why, _CONTEXT_CODE)
        if asked.stream and not (rule is not None and rule.kind is Fault.GARBAGE):
            return await self._streamed(asked, reply, (headers_s, first_s, between_s), rule, (seq, player))
        failed = rule is not None and rule.kind is Fault.RESPONSE_FAILED
        body = provider_wires.failed(reply) if failed else provider_wires.body(wire, reply)
        await player.wait(headers_s + first_s + between_s)
        return await player.whole(body, _ids(seq), rule, wire)

    @staticmethod
    async def _streamed(
        asked: Asked,
        reply: Reply,
        pace: tuple[float, float, float],
        rule: Rule | None,
        line: tuple[int, Player],
    ) -> Played:
        seq, player = line
        options = asked.body.get("stream_options") or {}
        pieces = provider_wires.events(asked.wire, reply, usage=options.get("include_usage") is True)
        if rule is not None and rule.kind is Fault.NO_DONE:
            pieces = pieces[:-1]
        if rule is not None and rule.kind is Fault.ODD:
            pieces = odd_pieces(pieces, rule.field, rule.oddity)
        headers_s, first_s, between_s = pace
        await player.wait(headers_s)
        return await player.stream(pieces, (first_s, between_s), _ids(seq), rule, (asked.wire, reply))


def _ids(seq: int) -> dict[str, str]:
    return {"x-request-id": f"req_{seq}", "request-id": f"req_{seq}"}


def _steering(rule: Rule) -> dict[str, str]:
    found: dict[str, str] = {}
    if rule.retry_after_s is not None:
        found["retry-after"] = str(rule.retry_after_s)
    if rule.retry_after_ms is not None:
        found["retry-after-ms"] = str(rule.retry_after_ms)
    if rule.should_retry is not None:
        found["x-should-retry"] = str(rule.should_retry).lower()
    return found


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _object(request: HttpRequest) -> Mapping[str, Any]:
    body = _json(request.body)
    if not isinstance(body, dict):
        raise ValueError("the body must be a JSON object")  # noqa: TRY004 - answered like any bad body
    return body
