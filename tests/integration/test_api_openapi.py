"""/openapi.json is true: whatever is asked, well or badly, the answer is one of those it tells of."""

import json
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest

from fencepost_ops.database import LedgerDatabase
from fencepost_ops.local import LocalPostgres
from tests.integration.api_process import Api, running, start, token
from tests.integration.conftest import copied

SEED = 20261130
OF_EACH = 30
"""Requests of each operation."""
TEXTS = [
    "",
    " ",
    "p",
    "x" * 300,
    "\0",
    "\u202e",
    "é" * 250,
    "' OR 1=1 --",
    "%s%n",
    "../../etc/passwd",
    "{{7*7}}",
    "null",
    "-1",
    "1e400",
    "9" * 400,
    "QUEUED",
    "a,b",
    "[]",
]
VALUES: list[Any] = [
    *TEXTS,
    None,
    True,
    0,
    -1,
    1.5,
    10**30,
    2**63,
    [],
    {},
    [[[[]]]],
    {"a": {"b": [1, None, "\0"]}},
    {"": 1},
    {"turns": -1},
    {"turns": "many"},
    {"wall_clock_ms": 0},
]
RAW = [
    b"",
    b"{",
    b"null",
    b"[]",
    b'"text"',
    b"{}{}",
    b'{"a":NaN}',
    b'{"a":1,"a":1}',
    b'{"planner":"\xff"}',
    b'{"planner":"\\ud800"}',
    b'{"input":1e999999999999,"planner":"p","deadline":1}',
    b"[" * 5000,
    b'{"a":' * 3000,
    b"\xef\xbb\xbf{}",
    b"\x1f\x8b\x08\x00",
]
HEADERS: list[str | bytes] = [
    "k",
    '"k"',
    '"',
    "",
    "é".encode(),
    b"\xff",
    "x" * 300,
    "a b",
    "00-0-0-0",
    "18446744073709551616",
]


@pytest.fixture(scope="module")
def ledger(postgres: LocalPostgres, template: dict[str, str]) -> Iterator[LedgerDatabase]:
    with copied(postgres, template) as database:
        yield database


@pytest.fixture(scope="module")
def api(ledger: LedgerDatabase) -> Iterator[Api]:
    with running(ledger) as process:
        yield process


class Truth:
    """What the document tells, and whether an answer is so."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.document = document
        self.seen: Counter[str] = Counter()

    def operations(self) -> Iterator[tuple[str, str, dict[str, Any]]]:
        for path, operations in self.document["paths"].items():
            for method, operation in operations.items():
                yield path, method, operation

    def check(self, path: str, method: str, answer: httpx2.Response) -> None:
        told = self.document["paths"][path][method]["responses"]
        where = f"{method} {path} -> {answer.status_code}: {answer.text[:300]}"
        assert answer.status_code != 500, where
        assert str(answer.status_code) in told, where
        said = told[str(answer.status_code)]
        self.seen[f"{method} {path} {answer.status_code}"] += 1
        content = said.get("content", {})
        if not content:
            assert answer.content == b"", where
            return
        kind = answer.headers["content-type"].partition(";")[0]
        assert kind in content, where
        if kind == "text/event-stream":
            return
        schema = {**content[kind]["schema"], "components": self.document["components"]}
        from jsonschema import Draft202012Validator

        errors = [error.message for error in Draft202012Validator(schema).iter_errors(answer.json())]
        assert errors == [], where
        for name in said.get("headers", {}):
            if name != "WWW-Authenticate" or answer.status_code == 401:
                assert name.lower() in answer.headers or name == "Retry-After", where


def body(random: random.Random, operation: dict[str, Any]) -> dict[str, Any] | None:
    """A body that fits, with something in it that may not."""
    if "requestBody" not in operation:
        return None
    properties = operation["requestBody"]["content"]["application/json"]["schema"]["properties"]
    made: dict[str, Any] = {"planner": "p", "input": {}, "deadline": 60} if "planner" in properties else {}
    made |= {name: "x" for name in ("name", "reason") if name in properties}
    for _ in range(random.choice([0, 0, 1, 2])):
        made[random.choice([*properties, *TEXTS])] = random.choice(VALUES)
    return made


@dataclass
class Place:
    """A run there is, and a token that may do little."""

    run: str
    narrow: str


def ask(
    random: random.Random,
    client: httpx2.Client,
    path: str,
    method: str,
    operation: dict[str, Any],
    there: Place,
) -> httpx2.Response:
    run = there.run
    place = path.replace("{run}", random.choice([run] * 6 + ["x", "%00", "%ff", run.upper(), run + "0"]))
    named = [p["name"] for p in operation.get("parameters", ()) if p["in"] == "query"]
    query = [
        (random.choice([*named, "no"]), random.choice(TEXTS)) for _ in range(random.choice([0, 0, 0, 1, 2]))
    ]
    headers: list[tuple[str, str | bytes]] = [("Content-Type", "application/json")]
    if random.random() < 0.2:
        headers = [("Content-Type", random.choice(["text/html", "application/json; charset=x", ""]))]
    for name in ("Idempotency-Key", "Last-Event-ID", "traceparent", "X-Request-Id"):
        if random.random() < 0.4:
            chosen: str | bytes = random.choice(HEADERS)
            headers.append((name, chosen))
        elif name == "Idempotency-Key":
            headers.append((name, f"k-{random.randrange(8)}"))
    if random.random() < 0.15:
        wrong = ["x", "fpt_" + "0" * 16 + "_" + "A" * 43]
        headers.append(("Authorization", "Bearer " + random.choice([*wrong, *[there.narrow] * 3])))
    data = random.choice(RAW) if random.random() < 0.25 else json.dumps(body(random, operation)).encode()
    content = {"content": data} if "requestBody" in operation else {}
    given = [(name.encode(), v if isinstance(v, bytes) else v.encode()) for name, v in headers]
    with client.stream(method, place, params=query, headers=given, **content) as answer:  # type: ignore[arg-type]
        if answer.headers.get("content-type", "").startswith("text/event-stream"):
            return httpx2.Response(answer.status_code, headers=answer.headers)  # it has no end to read to
        answer.read()
        return answer


def test_whatever_is_asked_the_answer_is_one_that_is_told_of(api: Api, ledger: LedgerDatabase) -> None:
    chance = random.Random(SEED)
    with api.client(token(ledger)) as client:
        truth = Truth(client.get("/openapi.json").json())
        there = Place(start(client, "there").json()["id"], token(ledger, scopes=("runs:read",)))
        for path, method, operation in truth.operations():
            for _ in range(OF_EACH if operation["security"] else 3):
                truth.check(path, method, ask(chance, client, path, method, operation, there))
        assert api.child.poll() is None
    statuses = {name.rpartition(" ")[2] for name in truth.seen}
    assert {"200", "201", "400", "401", "403", "404", "409", "415"} <= statuses, truth.seen


def test_the_document_tells_of_every_route_and_of_nothing_else(api: Api) -> None:
    with api.client(None) as nobody:
        document = nobody.get("/openapi.json").json()
    assert document["openapi"].startswith("3.1")
    assert set(document["paths"]) == {
        "/v1/runs",
        "/v1/runs/{run}",
        "/v1/runs/{run}/events",
        "/v1/runs/{run}/events/stream",
        "/v1/runs/{run}/cancel",
        "/v1/runs/{run}/signals",
        "/healthz",
        "/readyz",
    }
    for path, method, operation in Truth(document).operations():
        assert operation["security"] == ([{"token": []}] if path.startswith("/v1") else []), (path, method)
        problems = {s: r for s, r in operation["responses"].items() if s >= "400"}
        assert problems, (path, method)
        keys = [one for one in operation.get("parameters", ()) if one["name"] == "Idempotency-Key"]
        assert all(one["required"] for one in keys)
        assert bool(keys) == ("idempotency_key_required" in str(problems))
        for said in problems.values():
            assert set(said["content"]) == {"application/problem+json"}
    start_codes = document["paths"]["/v1/runs"]["post"]["responses"]
    assert {"400", "401", "403", "408", "409", "413", "415", "422", "429", "503"} <= set(start_codes)
    from jsonschema import Draft202012Validator

    Draft202012Validator.check_schema(document["components"]["schemas"]["RunModel"])
