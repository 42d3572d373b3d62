"""`fencepost enqueue`, and whatever can go wrong with any command: sentences and exit codes."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import click
import pytest

from fencepost import Client
from fencepost_ops import cli
from fencepost_ops.commands.named import COMMANDS, SAYS
from fencepost_ops.database import LedgerDatabase
from tests.integration.ledger_bench import Bench, open_bench
from tests.integration.shell import (
    OPTIONS,
    ORDERS,
    Shell,
    count,
    lines,
    on_terminal,
    order,
    process,
    succeeded,
)


@pytest.fixture
def bench(database: LedgerDatabase) -> Iterator[Bench]:
    with open_bench(database) as opened:
        yield opened


# -- enqueue ------------------------------------------------------------------------------------------


def test_runs_are_enqueued_from_a_file_by_a_producer(bench: Bench, shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "orders.jsonl"
    file.write_text(lines(*(order(f"o-{n}") for n in range(60))))
    told = shell.ok("enqueue", "fulfil", str(file), *OPTIONS, "--deadline", "90s", role="producer")
    assert "60 created, 0 existing, 0 conflicts" in told
    assert "… and 40 more" in told
    assert count(bench) == 60
    ((planner, lasts),) = bench.sql("SELECT DISTINCT planner, deadline - created_at FROM fencepost.runs")
    assert (planner, lasts) == ("fulfil", timedelta(seconds=90))
    again = shell.json("enqueue", "fulfil", str(file), *OPTIONS, "--deadline", "90s", role="producer")
    assert (again["created"], again["existing"]) == (0, 60)
    assert again["runs"][0]["outcome"] == "existing"


def test_runs_are_enqueued_from_a_pipe_with_a_key_field(bench: Bench, shell: Shell) -> None:
    text = json.dumps([{"order_id": "o-1"}, {"order_id": "o-2"}])
    for args in (("fulfil",), ("fulfil", "-"), ("-", "--planner", "fulfil")):
        shell.ok("enqueue", *args, *OPTIONS, "--key-field", "order_id", stdin=text)
    assert bench.sql("SELECT run_key, request -> 'input' FROM fencepost.runs ORDER BY 1") == [
        ("o-1", {"order_id": "o-1"}),
        ("o-2", {"order_id": "o-2"}),
    ]


def test_a_single_argument_that_is_a_file_is_the_file(bench: Bench, shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "orders.json"
    file.write_text(json.dumps(order("o-1", planner="fulfil")))
    shell.ok("enqueue", str(file), *OPTIONS)
    assert count(bench) == 1


def test_a_taken_key_is_told_and_costs_the_others_nothing(bench: Bench, shell: Shell) -> None:
    shell.ok("enqueue", "p", *OPTIONS, stdin=lines(order("o-1")))
    text = lines(order("o-0"), order("o-1", input={"order": "another"}), order("o-2"))
    told = shell.refused(1, "enqueue", "p", *OPTIONS, stdin=text)
    assert told.startswith("run key o-1 of tenant shop is taken by another request")
    assert "use another run key" in told
    result = shell.json("enqueue", "p", *OPTIONS, stdin=text, exit_code=1)
    assert [run["outcome"] for run in result["runs"]] == ["existing", "conflict", "existing"]
    assert count(bench) == 3


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"run_key": "o-1", "input": {}}\n{"run_key": \n', "line 2: not JSON: expecting value at column 13"),
        (lines(order("o-1"), order("o-2", deadline="-1m")), "line 2: the deadline lies in the past"),
        (
            lines(order("o-1"), order("o-2", input="x" * 1024 * 1024)),
            "line 2: the input is 1048578 bytes of JSON",
        ),
        (lines(order("o-1"), order("o-2", color="red")), "line 2: unknown field 'color'"),
        ("", "standard input holds no runs"),
    ],
)
def test_a_bad_file_is_told_with_its_lines_and_nothing_is_enqueued(
    bench: Bench, shell: Shell, text: str, told: str
) -> None:
    assert told in shell.refused(2, "enqueue", "p", *OPTIONS, stdin=text)
    assert count(bench) == 0


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (("p", "absent.jsonl"), "cannot read absent.jsonl: No such file or directory"),
        (("p", "."), "cannot read .: Is a directory"),
        (("p", "--deadline", "-5m"), "-5m lies in the past"),
        (("p", "--deadline", "0s"), "0s lies in the past"),
        (("p", "--deadline", "soon"), "a duration is written like 90s"),
        (("p", "--on-stop", "explode"), "'explode' is not one of"),
        (("p", "-", "--planner", "q"), "the planner is named twice: p and q"),
        (("p", "--app", "nowhere"), "an app is named as package.module:attribute"),
        (("p", "--app", ORDERS), "there is no planner p; known: "),
        (("--dsn", "nonsense", "p"), "is no DSN of a Postgres"),
    ],
)
def test_a_wrong_call_of_enqueue_is_one_sentence(
    bench: Bench, shell: Shell, args: tuple[str, ...], told: str
) -> None:
    said = shell.refused(2, "enqueue", *args, *OPTIONS, stdin=lines(order("o-1")))
    assert told in said
    assert "\n" not in said
    assert count(bench) == 0


def test_the_newest_version_of_a_known_planner_is_taken(bench: Bench, shell: Shell) -> None:
    shell.ok("enqueue", "fulfil", *OPTIONS, stdin=lines(order("o-1")), FENCEPOST_APP=ORDERS)
    assert count(bench) == 1


# -- whatever goes wrong ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command", [("runs",), ("show", "o-1"), ("unresolved",), ("workers",), ("outbox",), ("migrate",)]
)
def test_a_wrong_ledger_is_one_sentence_without_the_password(shell: Shell, command: tuple[str, ...]) -> None:
    good = shell.database.dsns["operator"]
    host = good.split("@")[1]
    cases = [
        ("postgresql://u:hunter2secret@127.0.0.1:9/db", 3, "Connection refused"),
        (f"postgresql://fencepost_operator_login:hunter2secret@{host}", 2, "refuses the login"),
        (good.rsplit("/", 1)[0] + "/absent", 2, "does not exist"),
        ("postgresql+psycopg://u:hunter2secret@127.0.0.1/db", 2, "is no DSN of a Postgres"),
        ("host=127.0.0.1 password=hunter2secret nonsense", 2, "is no DSN of a Postgres"),
        ("", 2, "set FENCEPOST_DSN"),
    ]
    for dsn, code, told in cases:
        said = shell.refused(code, *command, FENCEPOST_DSN=dsn)
        assert told in said, (dsn, said)
        assert "hunter2secret" not in said
        assert "\n" not in said


def test_a_bug_is_one_sentence_too(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("postgresql://u:hunter2secret@h/db")

    monkeypatch.setattr("fencepost.ledger.listings.list_runs", broken)
    said = shell.refused(1, "runs")
    assert said.startswith(
        "a bug in fencepost, or in the application (ZeroDivisionError: postgresql://u:***@h/db)"
    )
    assert isinstance(shell("--traceback", "runs").exception, ZeroDivisionError)


def test_an_application_that_ends_the_process_is_one_sentence(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ends_at_once.py").write_text("raise SystemExit(4)\n")
    monkeypatch.syspath_prepend(tmp_path)
    said = shell.refused(2, "tools", "--app", "ends_at_once:app")
    assert said == "importing ends_at_once failed: SystemExit: 4 (ends_at_once.py:1)"


def test_a_command_that_is_not_there_yet_is_not_listed(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(COMMANDS, "later", "fencepost_ops.not_written_yet:later")
    assert "later" not in shell.ok("--help").split()
    assert "no such command 'later'" in shell.refused(2, "later")


def test_commands_are_listed_by_what_they_are_for(shell: Shell) -> None:
    told = shell.ok("--help")
    titles = ["Run a fleet:", "Send runs and follow them:", "Operate:", "Prove:"]
    assert sorted(titles, key=told.index) == titles
    assert "More:" not in told  # every command has its place
    listed = re.findall(r"(?m)^  ([a-z]+) {2,}[A-Z]", told.partition("Run a fleet:")[2])
    assert sorted(listed) == sorted(COMMANDS)


def test_every_command_that_is_listed_has_help(shell: Shell) -> None:
    listed = shell.ok("--help")
    for name in COMMANDS:
        if name in listed:
            assert "Usage:" in shell.ok(name, "--help")


def test_a_list_of_commands_says_of_each_what_its_own_help_begins_with() -> None:
    assert list(SAYS) == list(COMMANDS)
    for name, said in SAYS.items():
        command = cli.main.get_command(click.Context(cli.main), name)
        assert command is not None
        for limit in (30, 60, 1000):
            own = command.get_short_help_str(limit)
            assert click.Command(name, help=said).get_short_help_str(limit) == own, name


def test_a_list_of_commands_imports_none_of_them() -> None:
    told = "import sys; from fencepost_ops.cli import main; main(['--help'], standalone_mode=False); "
    told += "print(sorted({'psycopg', 'pydantic', 'redis', 'sqlalchemy'} & set(sys.modules)))"
    command = [sys.executable, "-c", told]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    assert done.stdout.splitlines()[-1] == "[]"


WITHOUT_JSON = {
    "up": "a fleet in the foreground, which tells what its processes say",
    "api": "a server in the foreground",
    "policy schema": "its output is the schema",
    "keys export": "its output is a JWKS, which is JSON",
}


def _every(command: click.Command, name: str, ctx: click.Context) -> Iterator[tuple[str, click.Command]]:
    if isinstance(command, click.Group):
        for part in command.list_commands(ctx):
            below = command.get_command(ctx, part)
            assert below is not None
            yield from _every(below, f"{name} {part}".strip(), click.Context(below, parent=ctx))
    if name and (not isinstance(command, click.Group) or command.invoke_without_command):
        yield name, command


def test_every_command_tells_programs_what_it_tells_people() -> None:
    commands = dict(_every(cli.main, "", click.Context(cli.main)))
    silent = {
        name
        for name, command in commands.items()
        if not any("--json" in option.opts for option in command.params)
    }
    assert silent == set(WITHOUT_JSON)


# -- as a process -------------------------------------------------------------------------------------


def test_a_process_reads_a_pipe_and_exits_with_the_code(bench: Bench, shell: Shell) -> None:
    child = process(shell, "enqueue", "p", *OPTIONS)
    out, err = child.communicate(lines(*(order(f"o-{n}") for n in range(100))), timeout=60)
    assert (child.returncode, err) == (0, "")
    assert "100 created" in out
    assert count(bench) == 100
    child = process(shell, "show", "nothing")
    out, err = child.communicate(timeout=60)
    assert (child.returncode, out) == (2, "")
    assert re.fullmatch(r"fencepost: there is no run nothing; .+\n", err)


def test_a_reader_that_goes_away_is_no_error(bench: Bench, shell: Shell) -> None:
    with Client(shell.database.dsns["producer"]) as client:
        for n in range(3):
            client.enqueue(
                "p",
                {"fill": "x" * 1000},
                run_key=f"o-{n}",
                tenant="shop",
                principal="p",
                deadline=timedelta(1),
            )
    reading, writing = os.pipe()
    os.close(reading)
    child = process(shell, "runs", "--json", stdout=writing)
    os.close(writing)
    _, err = child.communicate(timeout=60)
    assert (child.returncode, err) == (cli.BROKEN_PIPE, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device is always full here")
def test_an_output_that_cannot_be_written_is_one_sentence(shell: Shell) -> None:
    with Path("/dev/full").open("w") as full:
        child = process(shell, "workers", "--json", stdout=full.fileno())
        _, err = child.communicate(timeout=60)
    said = "fencepost: the output cannot be written: No space left on device\n"
    assert (child.returncode, err) == (cli.UNREACHABLE, said)


def test_an_interrupt_is_no_traceback(bench: Bench, shell: Shell, tmp_path: Path) -> None:
    pipe = tmp_path / "orders"
    os.mkfifo(pipe)
    child = process(shell, "enqueue", "p", str(pipe), *OPTIONS)
    with pipe.open("w") as writing:  # opened once the child reads it
        writing.write(lines(order("o-1")))
        writing.flush()
        until = time.monotonic() + 60
        while child.poll() is None and time.monotonic() < until:
            # One that comes in the instant before a read blocks is seen only when that read returns.
            child.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                child.wait(10)  # an interpreter that is ending dies of a second one
        _, err = child.communicate(timeout=1)
    assert child.returncode == cli.INTERRUPTED
    assert "Traceback" not in err
    assert err.strip().endswith("fencepost: interrupted")
    assert count(bench) == 0


@pytest.mark.parametrize("env", [{}, {"NO_COLOR": "1", "FORCE_COLOR": ""}])
def test_a_pipe_gets_plain_text(bench: Bench, shell: Shell, env: dict[str, str]) -> None:
    succeeded(bench)
    child = process(shell, "show", "o-1", env=env)
    out, _ = child.communicate(timeout=60)
    assert child.returncode == 0
    assert "\x1b" not in out


def test_a_terminal_sees_how_far_many_runs_are(bench: Bench, shell: Shell) -> None:
    text = lines(*(order(f"o-{n}") for n in range(60)))
    told = on_terminal(shell, "enqueue", "p", *OPTIONS, stdin=text)
    assert "enqueueing" in told
    assert "60/60" in told
    assert "60 created" in told
    assert "enqueueing" not in on_terminal(shell, "enqueue", "p", *OPTIONS, stdin=lines(order("o-1")))


def test_colours_are_for_terminals_that_want_them(bench: Bench, shell: Shell) -> None:
    bench.enqueue("o-1")
    shell.ok("cancel", "o-1", "--reason", "not wanted")
    assert "\x1b[33mSTOPPED" in on_terminal(shell, "runs")
    plain = on_terminal(shell, "runs", NO_COLOR="1")
    assert "STOPPED" in plain
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]m", plain)
