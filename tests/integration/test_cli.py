"""The command line against real Postgres: what it prints, what it refuses, and its exit codes."""

import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest
from click.testing import CliRunner, Result

from fencepost import Client
from fencepost import commands as c
from fencepost.clock import parse_rfc3339, uuid7
from fencepost.outcomes import Applied, Unsure
from fencepost_ops import cli
from fencepost_ops.database import LedgerDatabase
from fencepost_ops.local import LocalPostgres
from tests.integration.ledger_bench import TENANT, Bench, open_bench

ROOT = Path(__file__).resolve().parents[2]
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


@pytest.fixture
def shell(database: LedgerDatabase, monkeypatch: pytest.MonkeyPatch) -> Shell:
    for name in [name for name in os.environ if name.startswith("FENCEPOST_")]:
        monkeypatch.delenv(name)
    return Shell(database, {"COLUMNS": "240"})


@pytest.fixture
def bench(database: LedgerDatabase) -> Iterator[Bench]:
    with open_bench(database) as opened:
        yield opened


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


# -- enqueue ---------------------------------------------------------------------------------------------


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


# -- runs and show ---------------------------------------------------------------------------------------


def test_runs_are_listed_newest_first_and_filtered(bench: Bench, shell: Shell) -> None:
    assert shell.ok("runs") == "no runs\n"
    first, second = bench.enqueue("o-1"), bench.enqueue("o-2")
    shell.ok("cancel", "o-1", "--reason", "not wanted", "--by", "pat")
    listed = shell.json("runs", role="reader")
    assert [(run["run_key"], run["status"]) for run in listed] == [("o-2", "QUEUED"), ("o-1", "STOPPED")]
    assert [run["run_id"] for run in shell.json("runs", "--status", "stopped")] == [str(first)]
    assert [run["run_id"] for run in shell.json("runs", "--limit", "1")] == [str(second)]
    assert shell.json("runs", "--tenant", "other") == []
    table = shell.ok("runs", role="producer")
    assert re.search(rf"{first} +o-1 +STOPPED +cancelled +\d+(\.\d+)? m?s +shop +p v1 +0 +0 +0", table)


def test_stuck_runs_wait_for_a_person_or_for_a_step_nobody_takes(bench: Bench, shell: Shell) -> None:
    needs_repair(bench, "o-1")
    bench.enqueue("o-2")
    assert [run["run_key"] for run in shell.json("runs", "--stuck")] == ["o-1"]
    assert "BLOCKED (ACTING)" in shell.ok("runs", "--stuck")
    bench.ahead(70)
    assert [run["run_key"] for run in shell.json("runs", "--stuck")] == ["o-2", "o-1"]


def test_a_run_is_shown_with_its_timeline_calls_and_next_step(bench: Bench, shell: Shell) -> None:
    run, call = succeeded(bench)
    told = shell.ok("show", "o-1", role="reader")
    assert f"run {run}  ACTING" in told
    assert "key o-1 · tenant shop · principal svc:checkout" in told
    assert re.search(r"\+\d+\.\d{3} +dispatcher h:1 +term [0-9a-f]{6}/\d+", told)
    assert re.search(r"ToolAttemptStarted +wallet\.debit 1\.0 #1 +2 s to answer", told)
    assert re.search(r"ToolResultRecorded +wallet\.debit 1\.0 #1 +receipt d-77", told)
    assert re.search(rf"1\.0 +wallet\.debit v1 +1\.0 +SUCCEEDED +1 +d-77 .* {call}", told)
    assert "next: the run: the planner is asked for a turn" in told
    assert '"receipt":"d-77"' in shell.ok("show", str(run), "--events")


def test_a_run_is_found_by_id_by_prefix_and_by_key(bench: Bench, shell: Shell) -> None:
    run = bench.enqueue("o-1")
    for name in (str(run), str(run)[:13], str(run).replace("-", "").upper(), "o-1"):
        assert shell.json("show", name)["run"]["id"] == str(run)
    assert shell.json("show", "o-1", "--tenant", TENANT)["steps"][0]["queue"] == "planner"


def test_an_unknown_and_an_ambiguous_run_are_told(bench: Bench, shell: Shell) -> None:
    assert shell.refused(2, "show", "nothing") == "there is no run nothing"
    assert shell.refused(2, "show", str(uuid7())).startswith("there is no run ")
    assert shell.refused(2, "show", "\x1b[2Jabc") == "there is no run \\u001b[2Jabc"
    with Client(shell.database.dsns["producer"]) as client:
        for tenant in ("shop", "market"):
            client.enqueue(
                "p", {}, run_key="o-1", tenant=tenant, principal="p", deadline=timedelta(minutes=1)
            )
    told = shell.refused(2, "show", "o-1")
    assert "o-1 names several runs" in told
    assert told.endswith("give the tenant as well")
    assert shell.json("show", "o-1", "--tenant", "market")["run"]["tenant"] == "market"
    assert shell.refused(2, "show", "o-1", "--tenant", "none") == "there is no run o-1 of tenant none"
    prefix = str(shell.json("show", "o-1", "--tenant", "market")["run"]["id"])[:6]
    assert "give more of the id" in shell.refused(2, "show", prefix)


def test_a_run_nobody_has_touched_is_shown(bench: Bench, shell: Shell) -> None:
    bench.enqueue("o-1")
    told = shell.ok("show", "o-1")
    assert "nothing has happened yet" in told
    assert "no calls" in told
    assert "next: the run: the planner is asked for a turn" in told


def test_what_is_stored_never_reaches_the_terminal_raw(bench: Bench, shell: Shell) -> None:
    key = "o-\x1b]0;evil\x07[red]x[/red]"
    shell.ok("enqueue", "p", *OPTIONS, stdin=lines(order(key)))
    for told in (shell.ok("runs"), shell.ok("show", key)):
        assert "\x1b" not in told
        assert "\x07" not in told
        assert "o-\\u001b]0;evil\\u0007[red]x[/red]" in told


# -- what needs a person ---------------------------------------------------------------------------------


def test_unresolved_calls_are_listed_and_their_exit_code_is_one(bench: Bench, shell: Shell) -> None:
    assert shell.ok("unresolved") == "every call is settled\n"
    run, call = needs_repair(bench)
    result = shell("unresolved", role="reader")
    assert (result.exit_code, result.stderr) == (1, "")
    told = result.stdout
    assert re.match(r"wallet\.note 1\.0 of run o-1: NEEDS_REPAIR for 3(\.\d+)? s\n", told)
    assert "  sent    1 × POST http://127.0.0.1:9/debits" in told
    assert "  lookup  never asked" in told
    assert "  why     the contract offers neither" in told
    assert f"  next    a person: fencepost repair {call} --reason TEXT" in told
    (listed,) = shell.json("unresolved", exit_code=1)
    assert (listed["call"], listed["run"], listed["doubt"], listed["due_at"]) == (
        str(call),
        str(run),
        True,
        None,
    )
    assert parse_rfc3339(listed["since"]).year > 2000
    assert shell.json("unresolved", "--tenant", "other") == []
    assert f"fencepost repair {call}" in shell.ok("show", "o-1")


@pytest.mark.parametrize(
    ("decision", "state"),
    [
        (("--happened", "--receipt", "n-1"), "SUCCEEDED"),
        (("--did-not-happen",), "FAILED"),
        (("--ask-again",), "UNKNOWN"),
        (("--accept-unknown",), "ACCEPTED_UNKNOWN"),
    ],
)
def test_a_person_settles_a_call(bench: Bench, shell: Shell, decision: tuple[str, ...], state: str) -> None:
    _, call = needs_repair(bench)
    told = shell.ok("repair", str(call), *decision, "--reason", "asked them", "--by", "pat")
    assert told == f"call {call} is {state}\n"
    assert bench.state(call) == state
    why = "SELECT principal, body ->> 'reason' FROM fencepost.events WHERE type = 'RepairDecided'"
    assert bench.sql(why) == [("pat", "asked them")]


def test_a_repair_that_cannot_be_is_one_sentence(bench: Bench, shell: Shell) -> None:
    _, call = succeeded(bench)
    reason = ("--reason", "because")
    told = shell.refused(1, "repair", str(call), "--did-not-happen", *reason)
    assert told == "the call is SUCCEEDED; only a call in NEEDS_REPAIR can be repaired"
    assert "decide: --happened" in shell.refused(2, "repair", str(call), *reason)
    assert "go together" in shell.refused(2, "repair", str(call), "--happened", *reason)
    assert "go together" in shell.refused(2, "repair", str(call), "--ask-again", "--receipt", "r", *reason)
    assert "missing option '--reason'" in shell.refused(2, "repair", str(call), "--ask-again")
    assert "there is no call 0000" in shell.refused(2, "repair", "0000", "--ask-again", *reason)
    assert "there is no call wallet" in shell.refused(2, "repair", "wallet", "--ask-again", *reason)


def test_a_reader_may_not_settle_or_stop_anything(bench: Bench, shell: Shell) -> None:
    _, call = needs_repair(bench)
    repair = ("repair", str(call), "--accept-unknown", "--reason", "r")
    assert "this login may not do that" in shell.refused(2, *repair, role="reader")
    assert "this login may not do that" in shell.refused(2, "cancel", "o-1", "--reason", "r", role="reader")
    assert bench.state(call) == "NEEDS_REPAIR"


def test_a_run_is_cancelled_once(bench: Bench, shell: Shell) -> None:
    run = bench.enqueue("o-1")
    told = shell.ok("cancel", str(run), "--reason", "not wanted", "--by", "pat")
    assert told == f"run {run} is STOPPED (cancelled)\n"
    again = shell.refused(1, "cancel", "o-1", "--reason", "not wanted")
    assert again == f"run {run} has ended STOPPED: there is nothing to cancel"


# -- fleet, tools, migrate -------------------------------------------------------------------------------


def test_workers_are_listed_with_what_they_hold(bench: Bench, shell: Shell) -> None:
    run = bench.enqueue("o-1")
    bench.one(bench.claim_run(run))
    (worker,) = shell.json("workers", role="reader")
    assert (worker["role"], worker["host"], worker["pid"], worker["held"]) == ("dispatcher", "h", 1, 1)
    assert re.search(r"dispatcher +h +1 +alive .* 1 +", shell.ok("workers"))
    bench.sql("UPDATE fencepost.clock SET ahead = ahead + interval '1 minute'")
    assert re.search(r"dispatcher +h +1 +silent +1 m ago", shell.ok("workers"))
    bench.sql("UPDATE fencepost.workers SET ended_at = fencepost.now()")
    assert shell.ok("workers") == "no workers\n"
    assert "ended" in shell.ok("workers", "--all")


def test_the_outbox_is_counted_per_queue(bench: Bench, shell: Shell) -> None:
    assert shell.ok("outbox") == "the outbox is empty: no run is open\n"
    needs_repair(bench, "o-1")
    bench.enqueue("o-2")
    bench.ahead(5)
    planner, reconciler = shell.json("outbox", role="relay")
    assert (planner["queue"], planner["rows"], planner["due"]) == ("planner", 2, 1)
    assert (reconciler["queue"], reconciler["rows"], reconciler["waiting"]) == ("reconciler", 1, 1)
    assert re.search(r"planner +2 +1 +[58](\.\d+)? s +0 +0 +in ", shell.ok("outbox"))


def test_tools_are_listed_with_their_class_and_risk(shell: Shell) -> None:
    listed = {tool["name"]: tool for tool in shell.json("tools", "--app", ORDERS)}
    assert listed["wallet.debit"]["class"] == "dedupes"
    assert listed["wallet.debit"]["window"] == 86400
    assert "At most one effect per intent" in listed["wallet.debit"]["promise"]
    assert listed["wallet.debit"]["residual_risk"]
    told = shell.ok("tools", FENCEPOST_APP=ORDERS)
    assert "wallet.debit v1: http, reversible, dedupes, window 1 d, settle 2 s" in told
    assert "  holds   At most one effect per intent" in told
    assert "  left    Equal keys are recognised" in told
    assert "name the application" in shell.refused(2, "tools")
    assert "there is no module absent_app" in shell.refused(2, "tools", "--app", "absent_app:app")


def test_migrate_says_from_where_to_where(postgres: LocalPostgres, shell: Shell) -> None:
    with psycopg.connect(postgres.superuser_dsn, autocommit=True) as connection:
        connection.execute("CREATE DATABASE bare")
    bare = postgres.superuser_dsn.rsplit("/", 1)[0] + "/bare"
    told = shell.refused(2, "runs", "--dsn", bare)
    assert "run `fencepost migrate` first" in told
    assert (
        '(relation "fencepost.runs" does not exist)' in told or '(schema "fencepost" does not exist)' in told
    )
    assert "run `fencepost migrate` first" in shell.refused(
        2, "enqueue", "p", *OPTIONS, "--dsn", bare, stdin=lines(order("o-1"))
    )
    told = shell.ok("migrate", "--dsn", bare)
    assert re.fullmatch(r"migrated the ledger from an empty database to \S+\n", told)
    assert re.fullmatch(r"the ledger is at \S+ already\n", shell.ok("--dsn", bare, "migrate"))
    done = shell.json("migrate", "--dsn", bare)
    assert done["before"] == done["after"]
    assert shell.ok("runs", "--dsn", bare) == "no runs\n"


def test_only_the_owner_migrates(postgres: LocalPostgres, shell: Shell) -> None:
    with psycopg.connect(postgres.superuser_dsn, autocommit=True) as connection:
        connection.execute("CREATE DATABASE not_mine")
    dsn = shell.database.dsns["reader"].rsplit("/", 1)[0] + "/not_mine"
    assert "this login may not do that" in shell.refused(2, "migrate", "--dsn", dsn)


# -- verify ----------------------------------------------------------------------------------------------


def test_histories_are_verified_and_a_changed_row_is_a_fault(bench: Bench, shell: Shell) -> None:
    run, _ = succeeded(bench, "o-1")
    bench.enqueue("o-2")
    assert shell.ok("verify", "--all", role="reader") == "2 runs, 12 events: no faults\n"
    assert shell.json("verify", "o-1") == {"runs": 1, "events": 12, "faults": []}
    with psycopg.connect(bench.database.owner, autocommit=True) as owner:
        owner.execute("ALTER TABLE fencepost.calls DISABLE TRIGGER ALL")
        owner.execute("UPDATE fencepost.calls SET receipt = 'forged'")
    result = shell("verify", "--all")
    assert (result.exit_code, result.stderr) == (1, "")
    assert f"run {run} of tenant shop: call " in result.stdout
    assert "its receipt is 'forged'; its events say 'd-77'" in result.stdout
    assert result.stdout.endswith("2 runs, 12 events: 1 fault\n")
    (fault,) = shell.json("verify", "o-1", exit_code=1)["faults"]
    assert fault["run"] == str(run)


def test_what_to_verify_has_to_be_said(shell: Shell) -> None:
    assert "name a RUN, or give --all" in shell.refused(2, "verify")
    assert "name a RUN, or give --all" in shell.refused(2, "verify", "o-1", "--all")
    assert "--all is every tenant's" in shell.refused(2, "verify", "--all", "--tenant", "shop")
    assert shell.refused(2, "verify", "o-1") == "there is no run o-1"


# -- whatever goes wrong ---------------------------------------------------------------------------------


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


def test_a_command_that_is_not_there_yet_is_not_listed(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cli.COMMANDS, "later", "fencepost_ops.not_written_yet:later")
    assert "later" not in shell.ok("--help").split()
    assert "no such command 'later'" in shell.refused(2, "later")


def test_every_command_that_is_listed_has_help(shell: Shell) -> None:
    for name in cli.COMMANDS:
        if name in shell.ok("--help"):
            assert "Usage:" in shell.ok(name, "--help")


# -- as a process ----------------------------------------------------------------------------------------


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


def test_a_process_reads_a_pipe_and_exits_with_the_code(bench: Bench, shell: Shell) -> None:
    child = process(shell, "enqueue", "p", *OPTIONS)
    out, err = child.communicate(lines(*(order(f"o-{n}") for n in range(100))), timeout=60)
    assert (child.returncode, err) == (0, "")
    assert "100 created" in out
    assert count(bench) == 100
    child = process(shell, "show", "nothing")
    out, err = child.communicate(timeout=60)
    assert (child.returncode, out, err) == (2, "", "fencepost: there is no run nothing\n")


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


def test_an_interrupt_is_no_traceback(bench: Bench, shell: Shell, tmp_path: Path) -> None:
    pipe = tmp_path / "orders"
    os.mkfifo(pipe)
    child = process(shell, "enqueue", "p", str(pipe), *OPTIONS)
    with pipe.open("w") as writing:  # opened once the child reads it
        writing.write(lines(order("o-1")))
        writing.flush()
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=60)
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
