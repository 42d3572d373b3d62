"""A process that is stopped between its last look at the clock and a body's bytes, and goes on too late."""

import asyncio
import os
import sys
from pathlib import Path

from tests.acceptance.freezing import standing_still
from tests.integration.raw_server import RawServer, says

SENDER = """
import asyncio, os, signal, sys
from httpcore2 import AnyIOBackend
from fencepost.tools import StoredRequest
from fencepost_workers.tools.http import HttpEngine
from tests.integration.http_sending import send

connect = AnyIOBackend.connect_tcp

async def connected(self, *args, **options):
    stream = await connect(self, *args, **options)
    write, count = stream.write, iter(range(99))

    async def stopping(data, timeout=None):
        if next(count) == 1:  # the head is the first, the body the second
            os.kill(os.getpid(), signal.SIGSTOP)
        await write(data, timeout)

    stream.write = stopping
    return stream

AnyIOBackend.connect_tcp = connected

async def main():
    async with HttpEngine() as engine:
        sent = await send(engine, StoredRequest.from_text(sys.stdin.read()), timeout=0.5)
        print(type(sent).__name__, sent.late)

asyncio.run(main())
"""


def test_a_process_stopped_at_the_wire_knows_that_its_bytes_left_late() -> None:
    async def scenario() -> tuple[bytes, int]:
        async with RawServer([says("500 Internal Server Error")]) as server:
            pipe = asyncio.subprocess.PIPE
            sender = await asyncio.create_subprocess_exec(
                sys.executable, "-c", SENDER, stdin=pipe, stdout=pipe, cwd=Path(__file__).parents[2]
            )
            assert sender.stdin is not None
            sender.stdin.write(server.stored().to_text().encode())
            sender.stdin.close()
            _, status = await asyncio.to_thread(os.waitpid, sender.pid, os.WUNTRACED)
            assert os.WIFSTOPPED(status)
            with standing_still([sender.pid]):
                await asyncio.sleep(0.6)  # its attempt's time passes while it stands still
            told, _ = await sender.communicate()
            await asyncio.wait_for(server.received.wait(), 5)
            return told, len(server.requests)

    told, requests = asyncio.run(scenario())
    # The answer may be in time to be read when it wakes, or not: it knows that it was late either way.
    assert (told.split()[1:], requests) == ([b"True"], 1)
