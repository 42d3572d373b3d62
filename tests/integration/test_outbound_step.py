"""Hosts that arguments choose, from the proposal to the wire: refused where first known, nothing is sent."""

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeVar

import pytest
from pydantic import BaseModel

from fencepost import App, Context, Contract, Dedupes, Effect, Proposal, Request, Turn
from fencepost.contracts import FirstFailure
from fencepost.dependencies import DependencySpec
from fencepost.states import Queue
from fencepost.tools import Tool
from fencepost_ops.local import LocalPostgres, LocalValkey
from fencepost_workers.dispatcher import Dispatcher
from fencepost_workers.planner import Planner
from fencepost_workers.reconciler import Reconciler
from fencepost_workers.role import Role
from fencepost_workers.step import Step
from fencepost_workers.worker import Worker
from tests.integration.conftest import copied
from tests.integration.raw_server import Answer, RawServer, raw, says
from tests.integration.step_shop import WITHIN_S, Shop, opened

SECOND = timedelta(seconds=1)
PROMISED = Contract(
    repeat=Dedupes(window=timedelta(hours=1), first_failure=FirstFailure.RELEASED), settle=SECOND
)
T = TypeVar("T")


class Page(BaseModel):
    url: str


def fetching_app() -> App:
    app = App("fetching")
    times: Any = {"attempts": 3, "per_attempt": 5 * SECOND, "grace": SECOND, "reserve": SECOND}
    web = app.dependency("web", hosts=("*.example.com", "http://localhost:1"), **times)

    @web.http("web.fetch", effect=Effect.READ)
    def fetch(args: Page) -> Request:
        return Request.get(args.url, headers={"X-Reader": "stored"})

    @web.http(
        "web.post",
        effect=Effect.REVERSIBLE,
        succeeded=lambda answer: answer.status in {200, 201},
        intent=lambda a: (a.url,),
        contract=PROMISED,
    )
    def post(args: Page) -> Request:
        return Request.post(args.url, json={"n": 1})

    @post.compensate
    def undo(args: Page, result: Any) -> Proposal:
        return Proposal("web.post", {"url": args.url})

    @app.planner("fetch", version=1)
    def plan(context: Context) -> Turn:
        if context.turn > 1:
            return Turn(finish={})
        tool, urls = context.input["tool"], context.input["urls"]
        return Turn([Proposal(tool, {"url": url}, f"c{n}") for n, url in enumerate(urls)])

    app.allow("svc:*", tools=["web.fetch", "web.post"])
    return app


class Web:
    def __init__(self, shop: Shop) -> None:
        self.shop = shop

    def step(self, queue: Queue) -> None:
        roles: dict[Queue, Callable[[Worker], Role]] = {
            Queue.DISPATCHER: Dispatcher,
            Queue.PLANNER: Planner,
            Queue.RECONCILER: Reconciler,
        }
        Step(self.shop.worker, roles[queue](self.shop.worker)).handle(self.shop.due(queue))
        assert self.shop.idle()

    def run(self, key: str, tool: str, *urls: str) -> None:
        given = json.dumps({"tool": tool, "urls": urls})
        self.shop.sql(
            "SELECT fencepost.enqueue_run('t', %s, 'fetch', 1, 'svc:x', %s, interval '60 s')", key, given
        )
        self.step(Queue.PLANNER)

    def calls(self, key: str) -> list[tuple[str, int, str]]:
        return [
            (state, attempts, error or "")
            for state, attempts, error in self.shop.sql(
                "SELECT c.state, c.attempts, c.error FROM fencepost.calls c"
                " JOIN fencepost.runs r ON r.id = c.run WHERE r.run_key = %s ORDER BY c.id",
                key,
            )
        ]

    def events(self, key: str, kind: str) -> list[Any]:
        rows = self.shop.sql(
            "SELECT e.body FROM fencepost.events e JOIN fencepost.runs r ON r.id = e.run"
            " WHERE r.run_key = %s AND e.type = %s ORDER BY e.seq",
            key,
            kind,
        )
        return [json.loads(body) if isinstance(body, str) else body for (body,) in rows]

    def on_loop(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.shop.worker.loop).result(WITHIN_S)

    @contextmanager
    def server(self, *answers: Answer) -> Iterator[RawServer]:
        server = self.on_loop(RawServer(list(answers)).__aenter__())
        try:
            yield server
        finally:
            self.on_loop(server.__aexit__())

    @contextmanager
    def deployed(self, **dependency: Any) -> Iterator[None]:
        """Another declaration of the dependency, as of a deploy."""
        registry: dict[tuple[str, int], Tool] = self.shop.worker.app.registry
        before = dict(registry)
        spec: DependencySpec = replace(registry["web.post", 1].dependency, **dependency)
        registry.update({key: replace(tool, dependency=spec) for key, tool in before.items()})
        try:
            yield
        finally:
            registry.update(before)

    @contextmanager
    def names(self, *addresses: str) -> Iterator[list[str]]:
        """What every name leads to."""
        asked: list[str] = []

        async def resolve(host: str, port: int) -> Sequence[str]:
            asked.append(host)
            return addresses

        pools: Any = self.shop.worker.engine._pools
        for client in pools._clients:
            self.on_loop(client.aclose())
        pools._clients, pools._kinds, pools._busy = [], [], []
        before, pools._resolver = pools._resolver, resolve
        try:
            yield asked
        finally:
            pools._resolver = before


@pytest.fixture(scope="module")
def web(postgres: LocalPostgres, template: dict[str, str]) -> Iterator[Web]:
    with (
        LocalValkey.start() as valkey,
        copied(postgres, template) as database,
        opened(database, valkey, 4, fetching_app()) as shop,
    ):
        yield Web(shop)


HOSTILE = [
    "http://169.254.169.254/latest/meta-data/",
    "http://100.100.100.200/latest/meta-data/",
    "http://[::ffff:127.0.0.1]/",
    "http://[fd00:ec2::254]/",
    "http://2130706433/",
    "http://0177.0.0.1/",
    "http://0x7f.1/",
    "http://127.1/",
    "file:///etc/passwd",
    "gopher://shop.example.com/",
    "//evil.example/",
    "https://evil.example/",
    "https://example.com/",
    "https://a.example.com.evil.example/",
    "https://a.example.com@evil.example/",
    "https://evil.example\\.example.com/",
    "https://a.example.com:8443/",
    "http://a.example.com/",
    "https://a.example.com./",
    "https://\u0430.example.com/",  # a Cyrillic letter
    "https://a.example.com/../../x",
    "https://a.example.com/#x",
]


def test_a_planner_is_told_at_once_and_nothing_is_dispatched(web: Web) -> None:
    web.run("hostile", "web.post", *HOSTILE)
    refused = web.events("hostile", "ProposalRejected")
    assert [(one["step"], one["code"]) for one in refused] == [(5, "outbound_refused")] * len(HOSTILE)
    assert {(state, attempts) for state, attempts, _ in web.calls("hostile")} == {("REJECTED", 0)}
    assert web.events("hostile", "ToolAttemptStarted") == []
    web.step(Queue.PLANNER)
    (status,) = web.shop.sql("SELECT status FROM fencepost.runs WHERE run_key = 'hostile'")[0]
    assert status == "COMPLETED"


def test_a_host_that_is_no_longer_declared_is_refused_in_the_claim(web: Web) -> None:
    web.run("withdrawn", "web.post", "https://a.example.com/x")
    with web.deployed(hosts=("b.example.com",)), web.names("8.8.8.8") as asked:
        web.step(Queue.DISPATCHER)
    assert asked == []
    (rejected,) = web.events("withdrawn", "ProposalRejected")
    assert (rejected["step"], rejected["code"]) == (5, "outbound_refused")
    assert web.events("withdrawn", "ToolAttemptStarted") == []
    assert web.calls("withdrawn")[0][:2] == ("REJECTED", 0)


def test_a_name_that_leads_inside_costs_an_attempt_and_is_not_tried_again(web: Web) -> None:
    for key, tool in (("inside", "web.post"), ("read", "web.fetch")):
        web.run(key, tool, "https://inside.example.com/x")
        with web.names("8.8.8.8", "10.0.0.7") as asked:
            web.step(Queue.DISPATCHER)
        assert asked == ["inside.example.com"]
        (failed,) = web.events(key, "ToolAttemptFailed")
        assert (failed["code"], failed["final"], failed["requests"]) == ("outbound_refused", True, 0)
        assert "inside.example.com leads to a private address" in failed["message"]
        assert "10.0.0.7" not in web.calls(key)[0][2]  # the planner reads it
        assert web.calls(key)[0][:2] == ("FAILED", 1)
    assert web.shop.sql("SELECT scope FROM fencepost.dependencies WHERE failures > 0") == []


def test_a_stored_request_whose_host_is_withdrawn_is_not_sent_again(web: Web) -> None:
    """Its outcome stays unknown: that nothing was sent this time says nothing of the first."""
    with web.server(raw(b""), says("200 OK")) as server:
        host = f"http://a.example.com:{server.port}"
        with web.deployed(hosts=(host,), private=("127.0.0.0/8",)), web.names("127.0.0.1"):
            web.run("moved", "web.post", f"{host}/x")
            web.step(Queue.DISPATCHER)
            assert web.calls("moved")[0][:2] == ("UNKNOWN", 1)
        web.shop.ahead(7)
        web.step(Queue.RECONCILER)
        assert len(server.requests) == 1
        assert web.calls("moved")[0][:2] == ("UNKNOWN", 2)
        codes = [one["code"] for one in web.events("moved", "ToolOutcomeMarkedUnknown")]
        assert codes == ["connection_lost", "outbound_refused"]


def test_a_reading_tool_is_redirected_to_where_it_may_go_only(web: Web) -> None:
    with web.server(says("200 OK", b'{"id": "there"}')) as there:
        to = f"http://b.example.com:{there.port}/there#part"
        evil = f"http://evil.example:{there.port}/x"
        with web.server(
            says("302 Found", b"", f"Location: {to}"),
            says("302 Found", b"", "Location: /again"),
            says("302 Found", b"", "Location: /again"),
            says("302 Found", b"", "Location: /again"),
            says("302 Found", b"", f"Location: {evil}"),
            says("302 Found", b"", "Location: http://169.254.169.254/latest"),
            says("302 Found", b"", "Location: file:///etc/passwd"),
            says("302 Found", b"", f"Location: {to}"),
        ) as here:
            host, other = f"http://a.example.com:{here.port}", f"http://b.example.com:{there.port}"
            token = (("Authorization", "Bearer geheim-1"),)
            declared: dict[str, Any] = {
                "hosts": (host, other),
                "private": ("127.0.0.1",),
                "redirects": 2,
                "attempts": 1,
            }
            with web.deployed(base_url=host, headers=token, **declared), web.names("127.0.0.1"):
                web.run("followed", "web.fetch", f"{host}/x")
                web.step(Queue.DISPATCHER)
                assert web.calls("followed")[0][:2] == ("SUCCEEDED", 1)
                assert web.events("followed", "ToolResultRecorded")[0]["requests"] == 1
                assert there.requests[0].startswith(b"GET /there HTTP/1.1\r\n")
                for told in (b"geheim", b"X-Reader: stored"):
                    assert [told in server.requests[0] for server in (here, there)] == [True, False]
                web.run("circle", "web.fetch", f"{host}/x")
                web.step(Queue.DISPATCHER)
                assert web.events("circle", "ToolAttemptFailed")[0]["code"] == "http_302"
                assert [b"geheim" in request for request in here.requests] == [True] * 4
                assert [b"X-Reader: stored" in request for request in here.requests] == [True] * 4
                for number, key in enumerate(("evil", "metadata", "file")):
                    web.run(key, "web.fetch", f"{host}/x")
                    web.step(Queue.DISPATCHER)
                    (failed,) = web.events(key, "ToolAttemptFailed")
                    assert (failed["code"], failed["final"]) == ("outbound_refused", True)
                    assert len(here.requests) == 5 + number
                web.run("effect", "web.post", f"{host}/x")
                web.step(Queue.DISPATCHER)
                assert web.calls("effect")[0][:2] == ("UNKNOWN", 1)
        assert len(there.requests) == 1


def test_what_is_declared_to_be_inside_is_reached(web: Web) -> None:
    with web.server(says("200 OK", b'{"id": "p-1"}')) as server:
        host = f"http://a.example.com:{server.port}"
        with web.deployed(hosts=(host,), private=("127.0.0.1",)), web.names("127.0.0.1"):
            web.run("meant", "web.post", f"{host}/x?a[]=1&b=%20")
            web.step(Queue.DISPATCHER)
        assert web.calls("meant")[0][:2] == ("SUCCEEDED", 1)
        head = server.requests[0].decode()
        assert head.startswith(f"POST /x?a[]=1&b=%20 HTTP/1.1\r\nHost: a.example.com:{server.port}\r\n")
