"""A secret goes to the service it is for and nowhere else: no log, row, key of Redis or page people read."""

import base64
import itertools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote, unquote

import psycopg
import pytest
import redis
from click.testing import CliRunner

from fencepost_ops import cli
from tests.acceptance.stage import Stage, step
from tests.answering import Asked, Said, answering

_numbers = itertools.count(1)
PASSWORD = "canary7f3a9c41e5d2/+pass word"
TOKEN = "Bearer canaryb81d06aa73f4"
CANARIES = {
    "the secret": "7f3a9c41e5d2",
    "the credential": "b81d06aa73f4",
    "the secret's beginning": "canary7",
    "the credential's beginning": "canaryb",
}


class Echo:
    """A service that gives back whatever it is told, as services do in their errors."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []

    def answer(self, asked: Asked) -> Said | None:
        body = json.loads(asked.body or b"{}")
        self.seen.append({"path": asked.path, "headers": dict(asked.headers), "body": body})
        everything = self._all(asked, body)
        if asked.method == "GET":
            return self._said(
                asked, 200, {"id": f"found {asked.headers['X-Password']}", "you_sent": everything}
            )
        if body["then"] == "drop":
            return None
        if body["then"] == "refuse":
            return self._said(asked, 422, everything | {"escaped": quote(str(everything))})
        if body["then"] == "refuse late":  # where what is kept of an answer is cut, and before
            padding = "x" * (490 - len('{"padding": "", "password": "'))
            return self._said(asked, 422, {"padding": padding, "password": body["password"]})
        return self._said(asked, 200, {"id": body["password"], "you_sent": everything})

    @staticmethod
    def _all(asked: Asked, body: dict[str, Any]) -> dict[str, Any]:
        return {
            "basic": base64.b64encode(f"anna:{asked.headers['X-Password']}".encode()).decode(),
            "path": asked.path,
            "token": asked.headers["Authorization"],
            "headers": dict(asked.headers),
            "body": body,
        }

    @staticmethod
    def _said(asked: Asked, status: int, value: Any) -> Said:
        return Said(json.dumps(value).encode(), status, {"X-Echo": asked.headers["X-Password"] or ""})


@pytest.fixture
def echo(stage: Stage) -> Iterator[Echo]:
    """The service; its address, its token and a secret of this tenant where the fleet looks for them."""
    secrets = stage.folder / "secrets" / stage.tenant / "mailbox"
    secrets.mkdir(parents=True)
    (secrets / "anna").write_text(PASSWORD)
    (stage.folder / "echo-token").write_text(TOKEN)
    service = Echo()
    with answering(service.answer) as url:
        (stage.folder / "echo-url").write_text(url)
        yield service


def login(label: str, tool: str = "echo.login", whose: str = "anna", **more: Any) -> dict[str, Any]:
    reference, password = f"login-{next(_numbers)}", {"secret": f"mailbox/{whose}"}
    return step(tool, label, reference=reference, password=password, **more)


def test_no_canary_is_found_anywhere(stage: Stage, echo: Echo) -> None:
    run = stage.send(
        [
            login("taken"),
            login("refused", then="refuse"),
            login("dropped", then="drop"),
            login("cut", then="refuse late"),
        ],
        [login("told", "echo.tell"), login("raised", "echo.tell", then="raise")],
        [login("unknown", whose="bob"), login("unbuilt", then="no request")],
        deadline_s=120,
    )
    raised = stage.until_state(run, "raised", "NEEDS_REPAIR")
    shown = _everything_people_read(stage, str(run), str(raised.id))
    with stage.client("operator") as client:
        client.repair(raised.id, "SUCCEEDED", by="person:tester", reason="it did", receipt="told")
    assert stage.ended(run, within_s=60) == ["COMPLETED"]
    calls = stage.calls(run)
    assert {label: call.state for label, call in calls.items()} == {
        "taken": "SUCCEEDED",
        "refused": "FAILED",
        "cut": "FAILED",
        "dropped": "SUCCEEDED",
        "told": "SUCCEEDED",
        "raised": "SUCCEEDED",
        "unknown": "FAILED",
        "unbuilt": "REJECTED",
    }
    assert "basic" in str(calls["refused"].error)
    assert calls["dropped"].receipt == "found plain ***"
    assert "this tenant has no secret mailbox/bob" in str(calls["unknown"].error)
    failed = [e.data["code"] for e in stage.events(run, "ToolAttemptFailed") if e.call == calls["unknown"].id]
    assert failed == ["secret_unavailable"] * 2
    _the_service_was_told(echo)

    shown |= _everything_people_read(stage, str(run), str(raised.id))
    places = {**shown, **_rows(stage), **_redis(stage), "the log": _log(stage)}
    assert "logging in with ***" in places["the log"]
    assert "logging in failed" in places["the log"]
    assert len(places) > 30
    for what, canary in CANARIES.items():
        assert {place for place, text in places.items() if found(canary, text)} == set(), what


def _the_service_was_told(echo: Echo) -> None:
    """Every request carried the real values, and none came for what could not be resolved or built."""
    assert [seen["body"].get("then") for seen in echo.seen].count(None) >= 1  # the question
    assert len([seen for seen in echo.seen if seen["body"]]) == 4
    for seen in echo.seen:
        assert seen["headers"]["Authorization"] == TOKEN
        assert seen["headers"]["X-Password"] == f"plain {PASSWORD}"
        if seen["body"]:
            assert seen["body"]["password"] == PASSWORD
            assert unquote(seen["path"].partition("token=")[2]) == PASSWORD


def found(canary: str, text: str) -> bool:
    """Whether it is in there: as it is, in hex, or in base64 wherever it begins there."""
    forms = {canary, canary.encode().hex()}
    for before in range(3):
        whole = base64.b64encode(bytes(before) + canary.encode())
        forms.add(whole[4 if before else 0 : -4].decode())
    return any(form in text for form in forms)


def test_the_search_finds_what_it_looks_for() -> None:
    for canary in CANARIES.values():
        for before in ("", "a", "ab", "abc"):
            text = f"{before}canar{canary}z"
            assert found(canary, text)
            assert found(canary, text.encode().hex())
            assert found(canary, base64.b64encode(text.encode()).decode())
        assert not found(canary, "canary-1")
    assert found(CANARIES["the secret"], PASSWORD)
    assert found(CANARIES["the credential"], TOKEN)


def _log(stage: Stage) -> str:
    return (stage.folder / "fleet.log").read_text(errors="replace")


def _everything_people_read(stage: Stage, run: str, call: str) -> dict[str, str]:
    asked = (
        ("show", run),
        ("show", run, "--json"),
        ("unresolved",),
        ("unresolved", call),
        ("unresolved", call, "--json"),
        ("runs", "--json"),
        ("outbox", "--json"),
        ("outbox", "--dead", "--json"),
        ("workers", "--json"),
        ("stats", "--json"),
        ("verify", run, "--json"),
    )
    told = {"FENCEPOST_REDIS_URL": stage.fleet.env("operator")["FENCEPOST_REDIS_URL"], "COLUMNS": "240"}
    runner = CliRunner(env={**told, "FENCEPOST_DSN": stage.fleet.database.dsns["operator"]})
    printed = {" ".join(args): runner.invoke(cli.main, list(args)).output for args in asked}
    assert "mailbox/anna" in printed[f"show {run} --json"]
    return printed


@contextmanager
def _owner(stage: Stage) -> Iterator[psycopg.Connection[Any]]:
    with stage.fleet.connect("owner") as connection:
        yield connection


def _rows(stage: Stage) -> dict[str, str]:
    """Every row of every table."""
    with _owner(stage) as connection:
        tables = [
            name
            for (name,) in connection.execute(
                "SELECT table_name FROM information_schema.tables"
                " WHERE table_schema = 'fencepost' AND table_type = 'BASE TABLE'"
            )
        ]
        return {
            f"table {name}": "\n".join(
                row[0] for row in connection.execute(f"SELECT t::text FROM fencepost.{name} t")
            )
            for name in tables
        }


def _redis(stage: Stage) -> dict[str, str]:
    """Every key, what it holds and its dump."""
    reading = {
        "string": lambda r, k: r.get(k),
        "list": lambda r, k: r.lrange(k, 0, -1),
        "set": lambda r, k: r.smembers(k),
        "zset": lambda r, k: r.zrange(k, 0, -1),
        "hash": lambda r, k: r.hgetall(k),
        "stream": lambda r, k: r.xrange(k),
    }
    with redis.Redis.from_url(stage.fleet.env("relay")["FENCEPOST_REDIS_URL"]) as server:
        held = {}
        for key in server.scan_iter():
            kind = server.type(key).decode()
            if kind != "none":
                held[f"redis {key!r}"] = f"{key!r} {reading[kind](server, key)!r} {server.dump(key)!r}"
    assert held
    return held
