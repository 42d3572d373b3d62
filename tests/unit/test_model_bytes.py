"""How much is read of what a provider sends: never more than an answer can have."""

import asyncio
import gzip

import pytest

from fencepost.models import Wire
from fencepost_workers.models import Providers, pools
from fencepost_workers.models.answers import Answer, Ending
from tests.unit.test_model_requests import NOW, WIRES, Answering, provider

LIMIT = 100_000


def asked(wire: Wire, answer: Answering) -> tuple[Answer, str]:
    async def ask() -> tuple[Answer, str]:
        async with provider(answer) as asked:
            providers = Providers()
            told = await providers.ask(asked.model(wire), {"model": "m"}, 60, NOW)
            await providers.aclose()
            return told.answer, asked.heads[0].lower()

    return asyncio.run(ask())


def endless(head: bytes, begun: bytes) -> Answering:
    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(head + b"connection: close\r\n\r\n" + begun)
        try:
            while True:
                writer.write(b"x" * 10_000)
                await writer.drain()
        except ConnectionError:
            return

    return answer


@pytest.mark.parametrize("wire", WIRES)
def test_a_line_without_an_end_is_read_up_to_the_limit(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "MAX_BYTES", LIMIT)
    answer, head = asked(wire, endless(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n", b'data: "'))
    assert answer.ending is Ending.MALFORMED
    assert f"more than {LIMIT} bytes" in answer.why
    assert "accept-encoding: identity" in head


@pytest.mark.parametrize("wire", WIRES)
def test_an_error_without_an_end_is_the_error_its_status_says(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "MAX_ERROR_BYTES", LIMIT)
    answer, _ = asked(
        wire, endless(b"HTTP/1.1 529 Busy\r\ncontent-type: application/json\r\n", b'{"error": "')
    )
    assert (answer.ending, answer.code) == (Ending.FAILED, "http_529")


def test_a_compressed_error_is_not_blown_up() -> None:
    small = gzip.compress(b'{"error": {"message": "' + b"told" * 1_000_000 + b'"}}')

    async def answer(writer: asyncio.StreamWriter) -> None:
        head = f"HTTP/1.1 503 Busy\r\ncontent-encoding: gzip\r\ncontent-length: {len(small)}\r\n"
        writer.write(head.encode() + b"connection: close\r\n\r\n" + small)

    found, _ = asked(Wire.CHAT, answer)
    assert (found.ending, found.code) == (Ending.FAILED, "http_503")
    assert "toldtold" not in found.why
