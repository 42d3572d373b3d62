"""A fork that comes back into the worker's code ends there, before it has sent, recorded or run anything."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

# Each of them runs in an interpreter of its own, forks for real, and prints who came how far. The child's
# exit code is printed by its parent.
PRELUDE = """
import asyncio, os, sys, threading, warnings
from datetime import UTC, datetime

warnings.simplefilter("ignore", DeprecationWarning)  # that forks and threads do not mix is what is tested

def say(text):
    os.write(1, f"{text}\\n".encode())

def reap(pid):
    say(f"child {os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}")
"""
HTTP = """
from fencepost.clock import boottime
from fencepost.outbound import outbound
from fencepost_workers.tools.http import HttpEngine
from tests.integration.raw_server import RawServer, says

async def main():
    async with RawServer([says("200 OK")]) as server, HttpEngine() as engine:
        stored = server.stored()
        allowed = outbound(f"http://127.0.0.1:{server.port}", (), ())
        rest = {"allowed": allowed, "key": "k", "correlation": {}}
        send = lambda: engine.send(stored, deadline=datetime.now(UTC), until=boottime() + 20, **rest)
        SCENE
        say(f"requests {len(server.requests)}")

asyncio.run(main())
"""
SCENES = {
    "a fork sends nothing": """
        if (pid := os.fork()) == 0:
            await send()
            say("sent")
        reap(pid)
        await send()
    """,
    "nor goes on with what its parent was sending": """
        import fencepost_workers.tools.http as http
        passed, pids = http.fault, []
        def fork_at_the_wire(point):
            if not pids:
                pids.append(os.fork())
            passed(point)
        http.fault = fork_at_the_wire  # the last thing before the first byte
        await send()
        reap(pids[0])
    """,
}
THREAD = """
from fencepost_workers.slots import ToolThreads
threads = ToolThreads(1)

def tool():
    global pid
    pid = os.fork()
    return pid

first, second = threads.submit(tool), threads.submit(lambda: say(f"next in {os.getpid() == parent}"))
parent = os.getpid()
first.result(10), second.result(10)
reap(pid)
threads.shutdown()
"""
LOOP = """
from fencepost_workers.forks import LoopGuard

async def forks():
    await asyncio.sleep(0)
    global pid
    pid = os.fork()
    if pid == 0:
        say("its own code runs in the child")
    await asyncio.sleep(0)
    say(f"forks goes on in {os.getpid() == parent}")

async def other():
    for _ in range(4):
        await asyncio.sleep(0)
        say(f"other goes on in {os.getpid() == parent}")

async def main():
    guard.of_this_thread()
    await asyncio.gather(other(), forks(), other())

parent = os.getpid()
loop = asyncio.new_event_loop()
guard = LoopGuard(loop)
loop.run_until_complete(main())
reap(pid)
if (pid := os.fork()) == 0:  # a loop that does not run is nobody's
    os._exit(0)
reap(pid)
loop.close()
"""


def run(script: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + script],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES)
def test_over_http(scene: str) -> None:
    script = HTTP.replace("        SCENE", textwrap.indent(textwrap.dedent(scene), "        "))
    assert run(script) == ["child 70", "requests 1"]


def test_a_thread_that_forked_takes_no_more_work_in_the_child() -> None:
    assert sorted(run(THREAD)) == ["child 70", "next in True"]


def test_a_loop_that_forked_runs_nothing_in_the_child_but_what_forked() -> None:
    said = run(LOOP)
    assert said.count("its own code runs in the child") == 1
    assert said.count("forks goes on in True") == 1
    assert said.count("other goes on in True") == 8
    assert [line for line in said if line.endswith("False")] == []
    assert said[-2:] == ["child 70", "child 0"]
