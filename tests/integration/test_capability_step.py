"""Capabilities from the claim to a service that asks for them: one an attempt, of use for nothing else."""

import asyncio
import http.client
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import jwt
import pytest
from pydantic import BaseModel

from fencepost import App, Attempt, Context, Contract, Dedupes, Effect, Lookup, Proposal, Request, Turn
from fencepost.capabilities import jwks_of, read_keys, verify, write_key
from fencepost.commands import Send
from fencepost.contracts import FirstFailure
from fencepost.decide import dispatch
from fencepost.events import EventType
from fencepost.money import Money
from fencepost.states import Queue
from fencepost.tools import StoredRequest
from fencepost_ops.local import LocalPostgres, LocalValkey
from fencepost_ops.sandbox.process import SandboxProcess
from fencepost_workers.dispatcher import Dispatcher
from fencepost_workers.reconciler import Reconciler
from fencepost_workers.role import Role
from fencepost_workers.step import Step
from fencepost_workers.worker import Worker
from tests.integration.conftest import copied
from tests.integration.raw_server import RawServer, says
from tests.integration.step_shop import WITHIN_S, Failing, Shop, opened

SECOND = timedelta(seconds=1)
HEADER = "fencepost-capability"
PROMISED = Contract(
    repeat=Dedupes(window=timedelta(hours=1), first_failure=FirstFailure.RELEASED),
    lookup=Lookup(strong=True),
    settle=SECOND,
    not_applied=frozenset({401, 403}),
)


class Debit(BaseModel):
    reference: str
    minor: int = 100
    claimed: int = 100


class Handed(BaseModel):
    reference: str


def _echoes(app: App, times: Any) -> None:
    echo = app.dependency("echo", "env:ECHO_URL", capability="X-Leave", **times)

    @echo.http("echo.say", effect=Effect.READ)
    def say(args: Handed) -> Request:
        return Request.get("/say")

    @app.planner("say", version=1)
    def saying(context: Context) -> Turn:
        if not context.calls:
            return Turn([say.propose(Handed(reference="r"), call_id="say")])
        return Turn(finish={})


def guarded_app(handed: list[Any]) -> App:
    app = App("guarded")
    times: Any = {"attempts": 3, "per_attempt": 5 * SECOND, "grace": SECOND, "reserve": SECOND}
    wallet = app.dependency("wallet", "env:VAULT_URL", capability=True, backoff=SECOND / 1000, **times)

    @wallet.http(
        "wallet.debit",
        version=2,
        effect=Effect.REVERSIBLE,
        succeeded=lambda answer: answer.status == 201,
        intent=lambda a: (a.reference,),
        contract=PROMISED,
        acts_on=lambda a: ("account", "ann"),
        amount=lambda a: Money(currency="EUR", amount_minor=a.claimed, scale=2),
    )
    def debit(args: Debit) -> Request:
        amount = {"currency": "EUR", "amount_minor": args.minor, "scale": 2}
        body = {"account": "ann", "amount": amount, "reference": args.reference}
        return Request.post("/guarded/wallet/debits", json=body)

    @debit.lookup
    def find(args: Debit, key: str) -> Request:
        return Request.get(f"/guarded/wallet/by-key/{key}")

    @debit.compensate
    def undo(args: Debit, result: Any) -> Proposal:
        return Proposal("wallet.debit", {"reference": f"undo {args.reference}"})

    @app.python("hand.over", effect=Effect.READ)
    def hand_over(args: Handed, attempt: Attempt) -> dict[str, bool]:
        handed.append(attempt.capability)
        return {"handed": True}

    @app.planner("note", version=1)
    def note(context: Context) -> Turn:
        if not context.calls:
            return Turn([hand_over.propose(Handed(reference="r"), call_id="hand")])
        return Turn(finish={})

    @app.planner("pay", version=1)
    def pay(context: Context) -> Turn:
        if not context.calls:
            return Turn([debit.propose(Debit(**context.input), call_id="debit")])
        return Turn(finish={})

    _echoes(app, times)
    app.allow("svc:*", tools=["wallet.debit", "hand.over", "echo.say"])
    return app


class Vault:
    """One worker's parts, and a service that asks for capabilities."""

    def __init__(self, shop: Shop, sandbox: SandboxProcess, keys: Path, handed: list[Any]) -> None:
        self.shop = shop
        self.sandbox = sandbox
        self.keys = keys
        self.handed = handed
        self._ahead = 0.0

    def ahead(self, seconds: float) -> None:
        """Move both clocks."""
        self.shop.ahead(seconds)
        self._ahead += seconds
        self.sandbox.move_clock(self._ahead)

    def as_usual(self) -> None:
        self.sandbox.configure(guard={"jwks": jwks_of(read_keys(self.keys)), "audience": "wallet/default"})
        self.sandbox.clear_faults()
        self.sandbox.move_clock(self._ahead)

    def step(self, queue: Queue) -> None:
        from fencepost_workers.planner import Planner

        roles: dict[Queue, Callable[[Worker], Role]] = {
            Queue.DISPATCHER: Dispatcher,
            Queue.PLANNER: Planner,
            Queue.RECONCILER: Reconciler,
        }
        due = self.shop.due(queue)
        assert due
        Step(self.shop.worker, roles[queue](self.shop.worker)).handle(due)
        assert self.shop.idle()

    def run(self, planner: str, key: str, **given: Any) -> str:
        """The state of a run's call once its first attempt is over."""
        self.shop.sql(
            "SELECT fencepost.enqueue_run('t', %s, %s, 1, 'svc:x', %s, interval '60 s')",
            key,
            planner,
            json.dumps(given),
        )
        self.step(Queue.PLANNER)
        self.step(Queue.DISPATCHER)
        return str(self.call("state"))

    def pay(self, key: str, **more: Any) -> str:
        return self.run("pay", key, reference=key, **more)

    def call(self, column: str) -> Any:
        """Of the newest call."""
        return self.shop.sql(f"SELECT {column} FROM fencepost.calls ORDER BY id DESC LIMIT 1")[0][0]

    def told_of_capabilities(self) -> list[bool]:
        """Whether each attempt of the call tells of one, which `fencepost explain` says."""
        asked = "SELECT (body::jsonb) ? 'capability' FROM fencepost.events WHERE call = %s AND type = %s"
        return [told for (told,) in self.shop.sql(asked, self.call("id"), EventType.TOOL_ATTEMPT_STARTED)]

    def sent(self) -> bytes:
        return StoredRequest.from_text(self.call("request")).body

    def requests(self, reference: str) -> list[Any]:
        return [r for r in self.sandbox.book.requests() if r.reference == reference]

    def refusals(self) -> list[str]:
        return [one["code"] for one in self.sandbox.get("/guarded/refused")["refused"]]

    def ask(self, token: str | None, body: bytes, key: str, path: str = "/guarded/wallet/debits") -> int:
        host = self.sandbox.url.removeprefix("http://")
        connection = http.client.HTTPConnection(host, timeout=10)
        try:
            told = {"Idempotency-Key": key, **({HEADER: token} if token else {})}
            connection.request("POST", path, body, told)
            return connection.getresponse().status
        finally:
            connection.close()

    def stored_bytes(self) -> str:
        rows = self.shop.sql("SELECT data FROM fencepost.payloads")
        return "\n".join(bytes(data).decode("utf-8", "replace") for (data,) in rows)

    def stored(self) -> str:
        """All that the ledger holds, as text."""
        tables = ("events", "calls", "operations", "outbox", "runs", "evidence")
        rows = [self.shop.sql(f"SELECT to_jsonb(x)::text FROM fencepost.{table} x") for table in tables]
        return "\n".join(str(row) for found in rows for row in found)


@pytest.fixture(scope="module")
def opened_vault(
    postgres: LocalPostgres, template: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Vault]:
    folder, handed = tmp_path_factory.mktemp("vault"), list[Any]()
    write_key(folder / "keys", datetime.now(UTC) - timedelta(hours=1))
    with (
        pytest.MonkeyPatch.context() as patch,
        LocalValkey.start() as valkey,
        SandboxProcess(folder / "sandbox") as sandbox,
        copied(postgres, template) as database,
    ):
        patch.setenv("VAULT_URL", sandbox.url)
        patch.setenv("FENCEPOST_SIGNING_KEYS", str(folder / "keys"))
        with opened(database, valkey, 4, guarded_app(handed)) as shop:
            yield Vault(shop, sandbox, folder / "keys", handed)


@pytest.fixture
def vault(opened_vault: Vault) -> Vault:
    opened_vault.as_usual()
    return opened_vault


def test_a_repeat_carries_a_capability_of_its_own_and_the_ledger_holds_none(vault: Vault) -> None:
    vault.sandbox.fault("drop_before", count=1)
    assert vault.pay("twice") == "UNKNOWN"
    for _ in range(10):
        vault.ahead(3)
        if vault.shop.due(Queue.RECONCILER):
            vault.step(Queue.RECONCILER)
        if vault.call("state") == "SUCCEEDED":
            break
    assert vault.call("state") == "SUCCEEDED"
    assert vault.refusals() == []
    assert vault.told_of_capabilities() == [True, True]
    requests = vault.requests("twice")
    first, second = (request.headers[HEADER] for request in requests)
    assert first != second
    assert requests[0].key == requests[1].key
    stored = vault.stored()
    assert requests[0].key in stored
    assert not any(token.rpartition(".")[2] in stored for token in (first, second))
    bound: dict[str, Any] = {
        "audience": "wallet/default",
        "method": "POST",
        "url": f"{vault.sandbox.url}/guarded/wallet/debits",
        "tenant": "t",
    }
    sent = vault.sent()
    known = jwks_of(read_keys(vault.keys))
    told = [
        verify(token, known, body=sent, now=at, **bound)
        for token, at in zip((first, second), times(first, second), strict=True)
    ]
    assert [one.attempt for one in told] == [1, 2]
    assert told[0].fence < told[1].fence
    assert {(one.principal, one.action, one.resource) for one in told} == {
        ("svc:x", "wallet.debit@2", ("account", "ann"))
    }
    assert told[0].limit == Money(currency="EUR", amount_minor=100, scale=2)
    assert told[0].operation == requests[0].key


def times(*tokens: str) -> list[datetime]:
    """When they were issued: the ledger's clock has been moved."""
    return [
        datetime.fromtimestamp(jwt.decode(token, options={"verify_signature": False})["iat"], UTC)
        for token in tokens
    ]


def test_a_captured_token_is_good_for_nothing_else(vault: Vault) -> None:
    assert vault.pay("captured") == "SUCCEEDED"
    (request,) = vault.requests("captured")
    token = request.headers[HEADER]
    body = vault.sent()
    other = body.replace(b"100", b"999")
    assert other != body
    assert vault.ask(None, body, "k-1") == 401
    assert vault.ask(token, other, "k-2") == 403
    assert vault.ask(token, body, "k-3", "/guarded/wallet/refunds") == 403
    assert vault.ask(token[:-8] + "AAAAAAAA", body, "k-4") == 401
    assert vault.ask(token, body, request.key) in {200, 201}  # the same again, which its key is for
    vault.sandbox.move_clock(vault._ahead + 60)
    assert vault.ask(token, body, request.key) == 401
    codes = vault.refusals()
    assert codes[-5:] == ["no_capability", "wrong_request", "wrong_request", "bad_signature", "expired"]
    assert [effect.reference for effect in vault.sandbox.book.effects()].count("captured") == 1


def test_a_key_the_service_does_not_know_has_no_effect(vault: Vault) -> None:
    vault.sandbox.configure(guard={"jwks": {"keys": []}, "audience": "wallet/default"})
    assert vault.pay("stranger") == "FAILED"
    assert vault.refusals()[-1] == "unknown_key"
    vault.sandbox.configure(guard={"jwks": jwks_of(read_keys(vault.keys)), "audience": "vault/default"})
    assert vault.pay("elsewhere") == "FAILED"
    assert vault.refusals()[-1] == "wrong_audience"
    references = {effect.reference for effect in vault.sandbox.book.effects()}
    assert not references & {"stranger", "elsewhere"}


def test_a_request_for_more_than_was_authorised_is_turned_away(vault: Vault) -> None:
    assert vault.pay("greedy", minor=500, claimed=100) == "FAILED"
    assert vault.refusals()[-1] == "over_limit"


def test_an_answer_that_echoes_the_token_is_kept_without_its_signature(
    vault: Vault, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def echoes(writer: asyncio.StreamWriter) -> None:
        await says("200 OK", json.dumps({"you sent": server.requests[0].decode()}).encode())(writer)

    server = RawServer([echoes])
    loop = vault.shop.worker.loop
    asyncio.run_coroutine_threadsafe(server.__aenter__(), loop).result(WITHIN_S)
    try:
        monkeypatch.setenv("ECHO_URL", f"http://127.0.0.1:{server.port}")
        assert vault.run("say", "echo") == "SUCCEEDED"
    finally:
        asyncio.run_coroutine_threadsafe(server.__aexit__(), loop).result(WITHIN_S)
    (head,) = [line for line in server.requests[0].decode().split("\r\n") if line.startswith("X-Leave: ")]
    claims, _, signature = head.removeprefix("X-Leave: ").rpartition(".")
    stored = vault.stored_bytes()
    assert claims in stored
    assert signature not in stored


def test_a_python_tool_is_handed_its_capability(vault: Vault) -> None:
    assert vault.run("note", "hand") == "SUCCEEDED"
    assert vault.told_of_capabilities() == [False]
    (capability,) = vault.handed
    assert (capability["run"], capability["call"]) == (str(vault.call("run")), str(vault.call("id")))
    assert (capability["tenant"], capability["principal"], capability["attempt"]) == ("t", "svc:x", 1)
    assert (capability["action"], capability["operation"]) == ("hand.over@1", None)
    assert capability["issued_at"] < capability["expires_at"]
    assert json.loads(json.dumps(capability)) == capability


def test_a_claim_whose_answer_was_lost_gives_the_same_capability_again(vault: Vault) -> None:
    given = json.dumps({"reference": "again"})
    vault.shop.sql(
        "SELECT fencepost.enqueue_run('t', 'again', 'pay', 1, 'svc:x', %s, interval '60 s')", given
    )
    vault.step(Queue.PLANNER)
    failing = Failing(vault.shop.worker, "act", RuntimeError("the process ends here"))
    Step(vault.shop.worker, failing).handle(vault.shop.due(Queue.DISPATCHER))
    assert vault.shop.idle()
    (claim,) = failing.claims
    first, second = (vault.shop.worker.ledger.apply([claim])[0] for _ in range(2))
    assert isinstance(first, Send)
    assert isinstance(second, Send)
    assert first.capability is not None
    assert second.capability is not None
    issued, expires = first.capability.issued_at, first.capability.expires_at
    assert replace(second.capability, issued_at=issued, expires_at=expires) == first.capability
    assert first.capability.limit == Money(currency="EUR", amount_minor=100, scale=2)
    assert (first.capability.attempt, first.capability.fence) == (1, claim.term.fence)


def test_a_python_tool_without_a_capability_is_not_called(
    vault: Vault, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = len(vault.handed)
    monkeypatch.setattr(dispatch, "granted", lambda *_: None)
    vault.shop.sql("SELECT fencepost.enqueue_run('t', 'bare', 'note', 1, 'svc:x', %s, interval '60 s')", "{}")
    vault.step(Queue.PLANNER)
    vault.step(Queue.DISPATCHER)
    assert (vault.call("state"), vault.call("attempts")) == ("INTENT_RECORDED", 1)
    assert "its claim gave no capability" in vault.call("error")
    assert len(vault.handed) == called
