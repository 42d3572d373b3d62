"""`python -m fencepost_ops.sandbox`: the sandbox as a process. Prints its base URL as one line."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fencepost_ops.sandbox.faults import parse_file
from fencepost_ops.sandbox.server import Options, serve
from fencepost_ops.sandbox.settings import Settings
from fencepost_ops.sandbox.store import BookTaken, BookUnreadable


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT. Returns 0; 2 if it cannot start, after one sentence why."""
    asked = _parser().parse_args(arguments)
    try:
        settings = Settings().changed(_document(asked.config) if asked.config else {})
        rules = parse_file(_document(asked.faults)) if asked.faults else ()
        options = Options(asked.data, asked.host, asked.port, settings, rules)
        asyncio.run(_until_stopped(options, _announcer(asked), with_stdin=asked.stop_with_stdin))
    except (BookTaken, BookUnreadable, ValueError) as error:
        print(f"sandbox: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"sandbox: cannot serve {asked.host}:{asked.port} from {asked.data}: {error}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fencepost_ops.sandbox",
        description="Services with a durable book, for demos and drills; they fail as they are asked to.",
    )
    parser.add_argument(
        "--data", type=Path, required=True, help="folder of the book; made if it is not there"
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default %(default)s)")
    parser.add_argument("--port", type=int, default=0, help="port to listen on; 0 lets the system choose one")
    parser.add_argument(
        "--ready-fd", type=int, help="file descriptor that also gets the base URL, then is closed"
    )
    parser.add_argument("--port-file", type=Path, help="file that also gets the base URL, written whole")
    parser.add_argument("--faults", type=Path, help="JSON file of faults to start with")
    parser.add_argument("--config", type=Path, help="JSON file of settings, as POST /admin/config takes them")
    parser.add_argument("--stop-with-stdin", action="store_true", help="also stop when standard input ends")
    return parser


def _document(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from None


def _announcer(asked: argparse.Namespace) -> Callable[[str], None]:
    def announce(url: str) -> None:
        print(url, flush=True)
        if asked.port_file is not None:
            partial = asked.port_file.with_name(asked.port_file.name + ".partial")
            partial.write_text(url + "\n", encoding="utf-8")
            partial.replace(asked.port_file)
        if asked.ready_fd is not None:
            with os.fdopen(asked.ready_fd, "w", encoding="utf-8") as ready:
                ready.write(url + "\n")

    return announce


async def _until_stopped(options: Options, ready: Callable[[str], None], *, with_stdin: bool) -> None:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if with_stdin:
        # The pipe ends with whoever holds its other side, however that process dies.
        loop.add_reader(0, _stop_at_end, stop)
    await serve(options, ready=ready, stop=stop)


def _stop_at_end(stop: asyncio.Event) -> None:
    if not os.read(0, 4096):
        asyncio.get_running_loop().remove_reader(0)
        stop.set()


if __name__ == "__main__":
    sys.exit(main())
