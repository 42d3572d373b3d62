"""Starting a server on a free port of 127.0.0.1, and saying why when it does not come up."""

import socket
import time
from collections.abc import Callable
from pathlib import Path

from fencepost_ops.processes import Leashed, LocalServerError

READY_WITHIN = 60.0  # seconds; a database that was killed replays its log first
PORT_TRIES = 5
LOOK_EVERY = 0.02  # seconds between two tries to connect


def free_port() -> int:
    """A TCP port of 127.0.0.1 that was free a moment ago: whoever binds it must be ready to lose the race."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def why_not(port: int) -> str | None:
    """Why a TCP port of 127.0.0.1 cannot be used now, None if it can; 0 stands for any free one."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a closed one is free at once
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            return error.strerror or str(error)
    return None


def last_lines(log: Path, count: int = 8) -> str:
    """The last lines of a log file, indented, for an error message."""
    try:
        lines = log.read_text(errors="replace").splitlines()[-count:]
    except OSError as error:
        lines = [f"(no log: {error.strerror})"]
    return "\n".join(f"    {line}" for line in lines)


def start_on_port(
    name: str,
    log: Path,
    port: int | None,
    start: Callable[[int], Leashed],
    refusal: Callable[[int], str | None],
) -> tuple[Leashed, int]:
    """Start a server and return it with its port once `refusal(port)` is None, which says that it answers.

    Where the port is ours to choose and somebody else was faster, another is tried. Raises LocalServerError
    with the last lines of the log when the server ends or is not ready in time, and leaves nothing running.
    """
    tries = PORT_TRIES if port is None else 1
    for attempt in range(1, tries + 1):
        chosen = port or free_port()
        server = start(chosen)
        try:
            if _await_answer(name, server, chosen, refusal):
                return server, chosen
        except BaseException:
            server.stop()
            raise
        status, words = server.stop(), last_lines(log)
        taken = "in use" in words
        if attempt == tries or not taken:
            reason = f"port {chosen} is taken; choose another" if taken else f"{name} ended ({status})"
            raise LocalServerError(f"{reason}. Its log, {log}, ends:\n{words}")
    raise AssertionError("the last try returns or raises")


def _await_answer(name: str, server: Leashed, port: int, refusal: Callable[[int], str | None]) -> bool:
    """True once it answers, False when it has ended."""
    deadline = time.monotonic() + READY_WITHIN
    server.pid  # noqa: B018 (raises when the program could not be started at all)
    while server.poll(LOOK_EVERY) is None:
        reason = refusal(port)
        if reason is None:
            return True
        if time.monotonic() > deadline:
            raise LocalServerError(f"{name} is not ready after {READY_WITHIN:.0f} s: {reason}")
    return False
