"""The sandbox's back office: reading the book and the balances, seeding, and asking for faults.

Nothing here counts as a request to a service, and no fault applies to it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from fencepost_ops.sandbox import answers, services
from fencepost_ops.sandbox.answers import Answer
from fencepost_ops.sandbox.desk import Desk
from fencepost_ops.sandbox.faults import Kind, parse_file, parse_rule
from fencepost_ops.sandbox.services import Account, Item
from fencepost_ops.sandbox.wire import HttpRequest

_FILTERS = frozenset({"service", "key", "reference"})


class Admin:
    """Answers everything that is no request to a service."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._store = desk.store
        self._routes: Mapping[tuple[str, str], Callable[[HttpRequest], Answer]] = {
            ("GET", "/health"): lambda _: answers.success(200, {"ok": True}),
            ("GET", "/effects"): self._effects,
            ("GET", "/requests"): self._requests,
            ("GET", "/faults"): self._faults,
            ("POST", "/faults"): self._add_faults,
            ("DELETE", "/faults"): lambda _: self._deleted(None),
            ("GET", "/admin/clock"): lambda _: self._clock(),
            ("POST", "/admin/clock"): self._move_clock,
            ("GET", "/admin/config"): lambda _: answers.success(200, self._store.settings.wire()),
            ("POST", "/admin/config"): self._configure,
            ("POST", "/admin/accounts"): self._seed_account,
            ("POST", "/admin/items"): self._seed_item,
        }

    async def answer(self, request: HttpRequest) -> Answer:
        """Answer a request; a ValueError becomes a 400 that says why. What it changed is committed."""
        try:
            answer = self._route(request)
        except (ValueError, OverflowError, RecursionError) as error:
            answer = answers.problem(400, "invalid", str(error))
        await self._desk.commits.settled()
        return answer

    def _route(self, request: HttpRequest) -> Answer:
        route = self._routes.get((request.method, request.path))
        if route is not None:
            return route(request)
        match (request.method, *request.segments):
            case ("GET", "wallet", "accounts", account):
                return self._account(account)
            case ("GET", "inventory", "items", sku):
                return answers.success(200, {"sku": sku, "stock": self._store.item(sku).stock})
            case ("GET", "pages", page):
                return self._page(page)
            case ("DELETE", "faults", rule):
                return self._deleted(rule)
        known = {path for _, path in self._routes}
        if request.path in known or services.operation_at(request.path) is not None:
            return answers.problem(405, "method_not_allowed", f"{request.path} knows no {request.method}")
        return answers.problem(404, "no_such_path", f"the sandbox has nothing at {request.path}")

    def _effects(self, request: HttpRequest) -> Answer:
        found = self._store.effects(**_range(request), **_filters(request, _FILTERS))
        last = found[-1].seq if found else _since(request)
        return answers.success(200, {"effects": [effect.wire() for effect in found], "last": last})

    def _requests(self, request: HttpRequest) -> Answer:
        conditions = {"purpose": "effect"} | _filters(request, _FILTERS | {"purpose"})
        if conditions["purpose"] == "all":
            del conditions["purpose"]
        found = self._store.requests(**_range(request), **conditions)
        last = found[-1].seq if found else _since(request)
        return answers.success(200, {"requests": [one.wire() for one in found], "last": last})

    def _account(self, name: str) -> Answer:
        account = self._store.account(name)
        if account is None:
            return answers.problem(404, "not_found", f"account {name} was neither seeded nor used")
        return answers.success(200, {"account": name, "balance": account.balance.wire()})

    def _page(self, name: str) -> Answer:
        page = self._store.page(name)
        if page is None:
            return answers.problem(404, "not_found", f"page {name} was never written")
        return answers.success(200, {"page": name, "version": page.version, "body": page.body})

    def _seed_account(self, request: HttpRequest) -> Answer:
        body = _json(request)
        balance = services.money(body.get("balance"), least=0)
        self._store.put_account(Account(services.text(body, "account"), balance))
        return self._account(services.text(body, "account"))

    def _seed_item(self, request: HttpRequest) -> Answer:
        body = _json(request)
        item = Item(services.text(body, "sku"), services.whole(body, "stock", least=0))
        self._store.put_item(item)
        return answers.success(200, {"sku": item.sku, "stock": item.stock})

    def _clock(self) -> Answer:
        return answers.success(200, {"now": self._desk.now(), "offset_s": self._desk.offset_s})

    def _move_clock(self, request: HttpRequest) -> Answer:
        offset_s = _json(request).get("offset_s")
        if not isinstance(offset_s, int | float) or isinstance(offset_s, bool) or not math.isfinite(offset_s):
            raise ValueError("offset_s must be a number of seconds")
        self._desk.move_clock(float(offset_s))
        return self._clock()

    def _configure(self, request: HttpRequest) -> Answer:
        self._desk.configure(dict(_json(request)))
        return answers.success(200, self._store.settings.wire())

    def _faults(self, _: HttpRequest) -> Answer:
        rules = self._desk.rules
        standing = [rule.wire() for rule in rules.standing]
        return answers.success(200, {"faults": standing, "fired": dict(rules.fired)})

    def _add_faults(self, request: HttpRequest) -> Answer:
        body = _json(request)
        if "faults" in body:
            added = [self._desk.rules.add(rule).wire() for rule in parse_file(body)]
            return answers.success(201, {"faults": added})
        rule = parse_rule(body)
        if rule.kind is Kind.FORGET_KEYS and not rule.conditional:
            self._desk.rules.fired[rule.kind.value] += 1
            return answers.success(200, {"forgotten": self._store.forget(rule.service, rule.key)})
        return answers.success(201, self._desk.rules.add(rule).wire())

    def _deleted(self, rule: str | None) -> Answer:
        return answers.success(200, {"deleted": self._desk.rules.delete(rule)})


def _json(request: HttpRequest) -> Mapping[str, Any]:
    body = json.loads(request.body or b"null")
    if not isinstance(body, dict):
        raise ValueError("the body must be a JSON object")  # noqa: TRY004 - answered like any bad body
    return body


def _since(request: HttpRequest) -> int:
    return int(request.query.get("since", "0"))


def _range(request: HttpRequest) -> dict[str, Any]:
    limit = request.query.get("limit")
    return {"since": _since(request), "limit": None if limit is None else int(limit)}


def _filters(request: HttpRequest, allowed: frozenset[str]) -> dict[str, str]:
    unknown = set(request.query) - allowed - {"since", "limit"}
    if unknown:
        raise ValueError(f"{request.path} has no filter {', '.join(sorted(unknown))}")
    return {name: value for name, value in request.query.items() if name in allowed}
