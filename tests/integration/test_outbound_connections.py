"""Where connections really go: to addresses that were judged, under the name that was asked for."""

import asyncio
import gzip
import ssl
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpcore2
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from fencepost.outbound import Address, Outbound, OutboundRefused, outbound
from fencepost.outcomes import Answered, Lost, NotSent, Sent
from fencepost.tools import Request, StoredRequest
from fencepost_workers.tools import connections
from fencepost_workers.tools.http import MAX_RESPONSE_BYTES, HttpEngine
from tests.integration.http_sending import send, sent_to
from tests.integration.raw_server import RawServer, says

HERE, THERE = "127.0.0.1", "127.0.0.2"
ANY = outbound(None, ("*",), ())


class Names:
    """A resolver that answers the nth question with the nth answer, the last one from then on."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self.answers = answers
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        return self.answers[min(len(self.asked), len(self.answers)) - 1]


def shop(port: int, *private: str) -> tuple[StoredRequest, Outbound]:
    """A request to a host that arguments named, and its dependency's rules."""
    stored = Request.post(f"http://shop.example:{port}/orders", json={"n": 1}).bind(None)
    return stored, outbound(None, (f"http://shop.example:{port}",), private)


def test_a_name_that_leads_outside_first_and_inside_later_is_asked_for_once() -> None:
    async def scenario() -> None:
        names = Names([HERE], [THERE])
        async with RawServer([says("200 OK")]) as server, HttpEngine(resolver=names) as engine:
            inside = await asyncio.start_server(lambda *_: pytest.fail("inside"), THERE, server.port)
            stored, allowed = shop(server.port, HERE)
            assert isinstance(await send(engine, stored, allowed=allowed), Answered)
            assert names.asked == ["shop.example"]
            assert b"\r\nHost: shop.example:" in server.requests[0]
        async with inside, HttpEngine(resolver=names) as engine:  # connects anew: the name leads inside now
            refused = await send(engine, stored, allowed=allowed)
            assert isinstance(refused, NotSent)
            assert (refused.code, refused.retryable, refused.requests) == ("outbound_refused", False, 0)
            assert "loopback" in refused.message
            assert THERE not in refused.message
            assert not engine.requests_sent.total()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "addresses",
    [
        ["127.0.0.1"],
        ["8.8.8.8", "127.0.0.1"],
        ["127.0.0.1", "8.8.8.8"],
        ["::ffff:127.0.0.1"],
        ["169.254.169.254"],
        ["64:ff9b::a9fe:a9fe"],
        ["100.100.100.200"],
        ["fd00:ec2::254"],
        ["::1"],
        ["0.0.0.0"],  # noqa: S104 - nothing is bound
        ["fe80::1%lo"],
        [],
    ],
)
def test_a_name_one_address_of_which_is_inside_is_not_connected_to(addresses: list[str]) -> None:
    async def scenario() -> Sent:
        async with RawServer([says("200 OK")]) as server:
            async with HttpEngine(resolver=Names(addresses)) as engine:
                stored, allowed = shop(server.port)
                result = await send(engine, stored, allowed=allowed)
            assert server.connections == 0
            return result

    result = asyncio.run(scenario())
    assert isinstance(result, NotSent)
    assert result.code == "outbound_refused"


def test_the_systems_resolver_is_judged_too() -> None:
    async def scenario() -> Sent:
        async with RawServer([says("200 OK")]) as server, HttpEngine() as engine:
            stored = Request.get(f"http://localhost:{server.port}/").bind(None)
            allowed = outbound(None, (f"http://localhost:{server.port}",), ())
            result = await send(engine, stored, allowed=allowed)
            assert server.connections == 0
            mine = outbound(f"http://localhost:{server.port}", (), ())
            assert isinstance(await send(engine, stored, allowed=mine), Answered)
            return result

    result = asyncio.run(scenario())
    assert isinstance(result, NotSent)
    assert "localhost leads to a loopback address" in result.message


@pytest.mark.parametrize(
    "status", ["301 Moved", "302 Found", "307 Temporary Redirect", "308 Permanent Redirect"]
)
def test_a_redirect_is_an_answer_and_no_credential_follows_it(status: str) -> None:
    async def scenario() -> None:
        async with RawServer([says("200 OK")]) as elsewhere, HttpEngine() as engine:
            location = f"Location: http://127.0.0.1:{elsewhere.port}/metadata"
            async with RawServer([says(status, b"{}", location)]) as server:
                secret = [("Authorization", "Bearer geheim")]
                result = await send(engine, server.stored(Request.get("/a")), headers=secret)
                assert isinstance(result, Answered)
                assert result.response.status == int(status[:3])
                assert b"geheim" in server.requests[0]
            assert (elsewhere.connections, elsewhere.requests) == (0, [])

    asyncio.run(scenario())


def test_the_dependencys_headers_go_to_no_host_from_arguments() -> None:
    async def scenario() -> None:
        async with RawServer([says("200 OK")]) as server, HttpEngine(resolver=Names([HERE])) as engine:
            base, other = f"http://pay.example:{server.port}", f"http://shop.example:{server.port}"
            allowed = outbound(base, (other,), (HERE,))
            secret = [("Authorization", "Bearer geheim")]
            for url in (base, other):
                stored = Request.get(f"{url}/a").bind(None)
                assert isinstance(await send(engine, stored, allowed=allowed, headers=secret), Answered)
            assert [b"geheim" in request for request in server.requests] == [True, False]

    asyncio.run(scenario())


def test_a_connection_that_one_dependency_may_have_is_not_used_for_another() -> None:
    async def scenario() -> None:
        async with RawServer([says("200 OK")]) as server, HttpEngine(resolver=Names([HERE])) as engine:
            stored, wide = shop(server.port, HERE)
            assert isinstance(await send(engine, stored, allowed=wide), Answered)
            _, narrow = shop(server.port)
            refused = await send(engine, stored, allowed=narrow)
            assert isinstance(refused, NotSent)
            assert refused.code == "outbound_refused"
            assert isinstance(await send(engine, stored, allowed=wide), Answered)
            assert (server.connections, len(server.requests)) == (1, 2)

    asyncio.run(scenario())


def test_what_is_not_declared_is_refused_before_its_name_is_asked_for() -> None:
    async def scenario() -> None:
        names = Names([HERE])
        async with HttpEngine(resolver=names) as engine:
            for url in (
                "http://evil.example/",
                "http://2130706433/",
                "http://0177.0.0.1/",
                "http://user@shop.example/",
            ):
                result = await send(engine, StoredRequest("GET", url), allowed=shop(80)[1])
                assert isinstance(result, NotSent)
                assert result.code == "outbound_refused"
        assert names.asked == []

    asyncio.run(scenario())


def test_an_address_that_refuses_leaves_the_next_one() -> None:
    async def scenario() -> None:
        async with RawServer([says("200 OK")]) as server:
            async with HttpEngine(resolver=Names([THERE, HERE])) as engine:
                stored, allowed = shop(server.port, "127.0.0.0/8")
                assert isinstance(await send(engine, stored, allowed=allowed), Answered)
            async with HttpEngine(resolver=Names([THERE, "127.0.0.3"])) as engine:
                failed = await send(engine, stored, allowed=allowed)
                assert isinstance(failed, NotSent)
                assert (failed.code, failed.retryable) == ("connect_failed", True)

    asyncio.run(scenario())


class Stream(httpcore2.AsyncNetworkStream):
    closed = False

    async def aclose(self) -> None:
        self.closed = True


@pytest.mark.parametrize("loser_connects", [False, True])
def test_an_address_that_does_not_answer_costs_a_head_start(
    monkeypatch: pytest.MonkeyPatch, *, loser_connects: bool
) -> None:
    monkeypatch.setattr(connections, "HEAD_START_S", 0.01)

    async def scenario() -> None:
        tried: list[str] = []
        slow, quick = Stream(), Stream()

        async def connect(address: Address) -> httpcore2.AsyncNetworkStream:
            tried.append(str(address))
            if str(address) == "8.8.8.8":
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    if not loser_connects:
                        raise
                return slow
            return quick

        judged = ANY.reach(ANY.admit("https://a.example/"))
        ordered = connections._interleaved(judged.judge("a", ["8.8.8.8", "9.9.9.9", "2606:4700::1"]))
        assert [str(a) for a in ordered] == ["8.8.8.8", "2606:4700::1", "9.9.9.9"]
        assert await connections._first(connect, ordered) is quick
        assert tried == ["8.8.8.8", "2606:4700::1"]
        assert (slow.closed, quick.closed) == (loser_connects, False)

    asyncio.run(scenario())


def certified(folder: Path, name: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """What a server of that name speaks, and what trusts it."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    made = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = made.public_bytes(serialization.Encoding.PEM)
    file = folder / f"{name}.pem"
    own = serialization.PrivateFormat.PKCS8
    file.write_bytes(pem + key.private_bytes(serialization.Encoding.PEM, own, serialization.NoEncryption()))
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(file)
    return server, ssl.create_default_context(cadata=pem.decode())


def test_tls_is_spoken_with_the_name_that_was_asked_for(tmp_path: Path) -> None:
    server_side, trusting = certified(tmp_path, "shop.example")
    heads: list[bytes] = []
    asked: list[str | None] = []
    server_side.sni_callback = lambda _socket, name, _context: asked.append(name)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        await says("200 OK")(writer)
        writer.close()

    async def scenario() -> None:
        server = await asyncio.start_server(serve, HERE, 0, ssl=server_side)
        port = server.sockets[0].getsockname()[1]
        allowed = outbound(None, (f"shop.example:{port}", f"other.example:{port}"), (HERE,))
        async with server, HttpEngine(verify=trusting, resolver=Names([HERE])) as engine:
            right = Request.get(f"https://shop.example:{port}/").bind(None)
            assert isinstance(await send(engine, right, allowed=allowed), Answered)
            assert f"Host: shop.example:{port}\r\n".encode() in heads[0]
            wrong = await send(
                engine, Request.get(f"https://other.example:{port}/").bind(None), allowed=allowed
            )
            assert isinstance(wrong, NotSent)
            assert (wrong.code, len(heads)) == ("connect_failed", 1)
            assert asked == ["shop.example", "other.example"]

    asyncio.run(scenario())


def test_of_a_bomb_no_more_is_unpacked_than_is_read_of_any_answer() -> None:
    bomb = gzip.compress(b"\0" * 50_000_000)
    [result], _ = sent_to(says("200 OK", bomb, "Content-Encoding: gzip"))
    assert isinstance(result, Lost)
    assert result.code == "oversize"
    assert result.begun is not None
    assert len(result.begun.body) == MAX_RESPONSE_BYTES
    assert len(bomb) < 100_000


def endless(part: bytes) -> Any:
    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n")
        while not writer.is_closing():
            writer.write(part)
            await writer.drain()

    return answer


def test_a_head_without_end_is_given_up_at_its_cap() -> None:
    [result], server = sent_to(endless(b"X-Padding: " + b"x" * 1000 + b"\r\n"))
    assert isinstance(result, Lost)
    assert (result.code, len(server.requests)) == ("connection_lost", 1)


def test_interim_answers_without_end_are_given_up_at_the_cap() -> None:
    async def early(writer: asyncio.StreamWriter) -> None:
        while not writer.is_closing():
            writer.write(b"HTTP/1.1 103 Early Hints\r\n\r\n" * 100)
            await writer.drain()

    [result], _ = sent_to(early, timeout=60, max_response_bytes=100_000)
    assert isinstance(result, Lost)
    assert result.code == "oversize"


def test_a_socket_of_this_machine_is_no_host() -> None:
    async def scenario() -> None:
        judged = connections.Judged(ANY.reach(ANY.admit("https://a.example/")), Names([HERE]), 1)
        with pytest.raises(OutboundRefused):
            await judged.connect_tcp("a.example", 443)
        with pytest.raises(httpcore2.ConnectError):
            await judged.connect_unix_socket("/run/docker.sock")

    asyncio.run(scenario())
