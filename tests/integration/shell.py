"""`fencepost` as tests run it: in this process, as a process, on a terminal."""

import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import termios
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from click.testing import CliRunner, Result

from fencepost import commands as c
from fencepost.outcomes import Applied, Unsure
from fencepost_ops import cli
from fencepost_ops.database import LedgerDatabase
from tests.integration.ledger_bench import TENANT, Bench

ORDERS = "fencepost_ops.examples.orders:app"


@dataclass
class Shell:
    """Runs `fencepost` in this process, with a login of the given role."""

    database: LedgerDatabase
    env: dict[str, str]

    def __call__(self, *args: str, role: str = "operator", stdin: str = "", **env: str) -> Result:
        told = {"FENCEPOST_DSN": self.database.dsns[role], **self.env, **env}
        result = CliRunner(env=told).invoke(cli.main, list(args), input=stdin)
        password = self.database.dsns[role].split(":")[2].split("@")[0]
        assert password not in result.output
        assert "Traceback" not in result.output
        return result

    def ok(self, *args: str, **kwargs: Any) -> str:
        result = self(*args, **kwargs)
        assert (result.exit_code, result.stderr) == (0, ""), result.output
        return result.stdout

    def json(self, *args: str, exit_code: int = 0, **kwargs: Any) -> Any:
        result = self(*args, "--json", **kwargs)
        assert result.exit_code == exit_code, result.output
        return json.loads(result.stdout)

    def refused(self, code: int, *args: str, **kwargs: Any) -> str:
        result = self(*args, **kwargs)
        assert result.exit_code == code, result.output
        assert result.stderr.startswith("fencepost: ")
        return result.stderr.removeprefix("fencepost: ").strip()


def order(key: str, **changes: Any) -> dict[str, Any]:
    return {"run_key": key, "input": {"order": key}, **changes}


def lines(*items: Any) -> str:
    return "\n".join(json.dumps(item) for item in items) + "\n"


OPTIONS = ("--tenant", TENANT, "--principal", "svc:checkout")


def count(bench: Bench, table: str = "runs") -> int:
    return int(bench.sql(f"SELECT count(*) FROM fencepost.{table}")[0][0])


def succeeded(bench: Bench, key: str = "o-1") -> tuple[UUID, UUID]:
    run = bench.enqueue(key)
    (call,) = bench.plan(run, ("wallet.debit", {"order": key}))
    term = bench.term()
    send = bench.one(bench.claim_call(run, call, term))
    assert isinstance(send, c.Send)
    assert bench.one(bench.outcome(send, term, Applied('{"id":"d-77"}', "d-77"))) == c.Done("SUCCEEDED")
    return run, call


def needs_repair(bench: Bench, key: str = "o-1") -> tuple[UUID, UUID]:
    run = bench.enqueue(key)
    (call,) = bench.plan(run, ("wallet.note", {"order": key}))
    term = bench.term()
    send = bench.one(bench.claim_call(run, call, term))
    assert isinstance(send, c.Send)
    assert bench.one(bench.outcome(send, term, Unsure("timeout", "no answer in 2 s"))) == c.Done("UNKNOWN")
    bench.ahead(3)
    assert bench.one(bench.claim_doubt(run, call)) == c.Done("NEEDS_REPAIR")
    return run, call


def process(shell: Shell, *args: str, **options: Any) -> subprocess.Popen[str]:
    env = {
        **os.environ,
        "FENCEPOST_DSN": shell.database.dsns["operator"],
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    env |= options.pop("env", {})
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command = [sys.executable, "-m", "fencepost_ops.cli", *args]
    return subprocess.Popen(command, env=env, text=True, **{**streams, **options})


def on_terminal(shell: Shell, *args: str, stdin: str = "", **env: str) -> str:
    """What a process writes to a terminal of 100 columns."""
    controller, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
    child = process(shell, *args, stdout=terminal, stderr=terminal, env={"TERM": "xterm", **env})
    os.close(terminal)
    assert child.stdin is not None
    child.stdin.write(stdin)
    child.stdin.close()
    told = b""
    try:
        while piece := os.read(controller, 65536):
            told += piece
    except OSError:  # the terminal's last writer is gone
        pass
    os.close(controller)
    assert child.wait(timeout=60) in (0, 1)
    return told.decode()
