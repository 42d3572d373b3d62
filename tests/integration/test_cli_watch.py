"""`fencepost watch` on a real ledger: a run as it happens, the fleet, a Postgres that goes away."""

import json
import re
import signal
import subprocess
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from fencepost.ledger import tail
from fencepost.ledger.connect import connect
from fencepost.ledger.listings import runs_by_id
from fencepost_ops.commands import live
from fencepost_ops.database import LedgerDatabase
from tests.integration.ledger_bench import TENANT, Bench, open_bench
from tests.integration.shell import Shell, needs_repair, on_terminal, process, succeeded


@pytest.fixture
def bench(database: LedgerDatabase) -> Iterator[Bench]:
    with open_bench(database) as opened:
        yield opened


def watching(shell: Shell, *args: str) -> subprocess.Popen[str]:
    return process(shell, "watch", *args, env={"FENCEPOST_DSN": shell.database.dsns["reader"]})


def read_until(child: subprocess.Popen[str], text: str) -> str:
    """Its output up to the line that holds this."""
    assert child.stdout is not None
    told = ""
    patience = threading.Timer(60, child.kill)
    patience.start()
    try:
        while line := child.stdout.readline():
            told += line
            if text in line:
                return told
    finally:
        patience.cancel()
    raise AssertionError(f"it ended without {text}: {told}")


def objects(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


# -- one run ------------------------------------------------------------------------------------------


def test_a_run_is_told_as_it_happens_up_to_its_end(bench: Bench, shell: Shell) -> None:
    run, _ = succeeded(bench)
    child = watching(shell, "o-1", "--timeout", "60s")
    told = read_until(child, "ToolResultRecorded")
    assert told.startswith(f"run {run}  key o-1 · tenant shop · planner p v1 · created ")
    assert "?  term" not in told  # nor above RunCreated, which comes before the lease that names the process
    assert re.search(r"\n +\+\d+\.\d{3}  dispatcher h:1  term [0-9a-f]{6}/\d+\n", told)
    assert re.search(r"\n +\d+  ToolAttemptStarted +wallet\.debit 1\.0 #1 +2 s to answer\n", told)
    bench.finish(run)  # while it watches
    rest, err = child.communicate(timeout=60)
    assert (child.returncode, err) == (0, "")
    assert re.search(r"RunCompleted.*\nCOMPLETED after \d+(\.\d+)? m?s\n$", rest)
    seqs = [int(number) for number in re.findall(r"(?m)^ +(\d+)  [A-Z]", told + rest)]
    assert seqs == list(range(1, len(bench.events(run)) + 1))


def test_a_run_that_has_ended_is_told_at_once_with_its_exit_code(bench: Bench, shell: Shell) -> None:
    done, stopped = bench.enqueue("o-1"), bench.enqueue("o-2")
    bench.finish(done)
    shell.ok("cancel", "o-2", "--reason", "not wanted")
    assert shell("watch", "o-1").exit_code == 0
    result = shell("watch", str(stopped), role="reader")
    assert (result.exit_code, result.stderr) == (1, "")
    assert "\nSTOPPED (cancelled" in result.stdout
    told = objects(shell("watch", "o-2", "--json").stdout)
    assert [item["kind"] for item in told] == ["run", *["event"] * len(bench.events(stopped)), "end"]
    assert (told[0]["run_id"], told[-1]["status"]) == (str(stopped), "STOPPED")
    assert told[-1]["stop_reason"] == "cancelled"
    assert [item["seq"] for item in told[1:-1]] == [event.seq for event in bench.events(stopped)]


def test_a_history_longer_than_one_look_is_told_whole(
    bench: Bench, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, _ = succeeded(bench)
    bench.finish(run)
    with connect(bench.database.dsns["reader"], "test") as reader:
        found = [tail.look(reader, TENANT, run, after, page=3) for after in range(0, 20, 3)]
        (info,) = runs_by_id(reader, [run])
    seen = [told.event for look in found if look is not None for told in look.told]
    assert seen == bench.events(run)
    assert [look.more for look in found if look and look.told] == [True] * (len(seen) // 3 - 1) + [
        len(seen) % 3 > 0,
        *[False] * (len(seen) % 3 > 0),
    ]
    assert [look.ended for look in found if look and look.more] == [False] * (-(-len(seen) // 3) - 1)
    story = live.Story(info)
    lines = [line.plain for look in found if look for line in story.lines(look)]
    assert sum(bool(re.match(r" +\d+  [A-Z]", line)) for line in lines) == len(seen)


def test_a_run_that_waits_for_a_person_says_so_and_the_time_runs_out(bench: Bench, shell: Shell) -> None:
    run, _ = needs_repair(bench)
    result = shell("watch", "o-1", "--timeout", "300ms")
    assert result.exit_code == 1
    assert result.stdout.count("waits for a person: `fencepost unresolved` says for what") == 1
    assert result.stderr == f"fencepost: run {run} has not ended in time: it is ACTING\n"


def test_each_look_reads_only_what_is_new(bench: Bench) -> None:
    run, _ = succeeded(bench)
    with connect(bench.database.dsns["reader"], "test", autocommit=True) as reader:
        plan = "\n".join(
            line
            for (line,) in reader.execute(
                "EXPLAIN " + tail._LOOK, {"tenant": TENANT, "run": run, "after": 5, "page": 500}
            )
        )
    assert "Index Scan using events_pkey on events" in plan
    assert re.search(r"Index Cond: \(\(run = r\.id\) AND \(seq > ", plan)


def test_a_look_at_the_fleet_reads_what_is_open_and_not_what_has_ended(bench: Bench) -> None:
    with connect(bench.database.dsns["reader"], "test", autocommit=True) as reader:
        reader.execute("SET enable_seqscan = off")  # as it is with many rows: only if an index serves
        plans = [
            reader.execute("EXPLAIN " + statement).fetchall() for statement in (tail._OPEN, tail._TROUBLE)
        ]
    told = "\n".join(line for plan in plans for (line,) in plan)
    assert "Seq Scan" not in told
    assert {"runs_open", "calls_open", "outbox_dead"} <= set(re.findall(r"[a-z]+_[a-z]+", told))


def test_a_wrong_run_and_wrong_options_are_one_sentence(shell: Shell) -> None:
    assert shell.refused(2, "watch", "nothing").startswith("there is no run nothing; fencepost runs lists")
    assert "--once is for the overview" in shell.refused(2, "watch", "o-1", "--once")
    assert "--tenant goes with a RUN" in shell.refused(2, "watch", "--tenant", "shop")
    away = shell.refused(3, "watch", "o-1", FENCEPOST_DSN="postgresql://u:p@127.0.0.1:9/db")
    assert "cannot reach Postgres" in away
    told = shell.refused(2, "watch", "--once", role="producer")
    assert "this login may not do that" in told


def test_ctrl_c_ends_it_quietly(bench: Bench, shell: Shell) -> None:
    bench.enqueue("o-1")
    for args, awaited in ((("o-1",), "run "), (("--interval", "50ms"), " open 1 (1 QUEUED) ")):
        child = watching(shell, *args)
        read_until(child, awaited)
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=60)
        assert (child.returncode, err) == (130, "")


def test_a_postgres_that_goes_away_is_waited_for_and_nothing_is_missed(bench: Bench, shell: Shell) -> None:
    run = bench.enqueue("o-1")
    (call,) = bench.plan(run, ("wallet.debit", {"order": "o-1"}))
    child = watching(shell, "o-1", "--timeout", "60s")
    fleet = watching(shell, "--interval", "50ms", "--json", "--timeout", "60s")
    assert child.stderr is not None
    read_until(child, "DispatchIntentRecorded")
    read_until(fleet, '"ACTING": 1')
    limit = bench.sql("SELECT rolconnlimit FROM pg_roles WHERE rolname = 'fencepost_reader_login'")[0][0]
    bench.sql("ALTER ROLE fencepost_reader_login CONNECTION LIMIT 0")
    try:
        bench.sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
            " AND application_name = 'fencepost watch'"
        )
        gone = child.stderr.readline()
        read_until(fleet, '"kind": "away"')
        bench.succeed(run, call)
    finally:
        bench.sql(f"ALTER ROLE fencepost_reader_login CONNECTION LIMIT {limit}")
    read_until(fleet, '"kind": "back"')
    fleet.send_signal(signal.SIGINT)
    bench.finish(run)
    out, err = child.communicate(timeout=60)
    assert "Postgres" in gone
    assert gone.endswith("; waiting for it\n")
    assert (child.returncode, err) == (0, "Postgres answers again\n")
    assert out.count("ToolResultRecorded") == 1
    assert "COMPLETED after" in out
    assert fleet.communicate(timeout=60)[1] == ""


# -- the fleet ----------------------------------------------------------------------------------------


def test_the_fleet_is_seen_at_once(bench: Bench, shell: Shell) -> None:
    done, _ = succeeded(bench, "o-1")
    bench.finish(done)
    bench.enqueue("o-2")
    needs_repair(bench, "o-3")
    bench.sql(
        "UPDATE fencepost.outbox SET dead_at = fencepost.now() WHERE subject IN"
        " (SELECT id FROM fencepost.runs WHERE run_key = 'o-2')"
    )
    seen = shell.json("watch", "--once", role="reader")
    assert seen["runs"] == {"QUEUED": 1, "ACTING": 1, "COMPLETED": 1}
    assert (seen["unresolved"], seen["repairs"], seen["dead"], seen["due"]) == (1, 1, 1, 0)
    assert seen["workers"]["dispatcher"] == {"alive": 1}
    assert seen["workers"]["planner"] == {}
    told = shell.ok("watch", "--once", role="reader")
    assert re.search(r"RUNS +QUEUED +PLANNING +ACTING .*\n +1 +0 +1 +0 +0 +1 +0", told)
    assert "1 wait for a person (`fencepost unresolved`)" in told
    assert "steps set aside 1" in told


def test_lines_on_a_pipe_and_a_screen_on_a_terminal(bench: Bench, shell: Shell) -> None:
    bench.enqueue("o-1")
    told = shell.ok("watch", "--interval", "20ms", "--timeout", "1s", role="reader").splitlines()
    assert len(told) > 1
    line = (
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ  open 1 \(1 QUEUED\) · ended 0( · 0\.0 ended/s)? · due 1, oldest "
    )
    assert all(re.match(line, text) for text in told), told
    assert all(text.endswith("· workers 1 alive · unresolved 0 · dead 0") for text in told)
    screen = on_terminal(shell, "watch", "--interval", "20ms", "--timeout", "1s")
    assert screen.count("QUEUED") > 1
    assert "\x1b[" in screen


def test_a_worker_is_alive_or_silent_or_stalled_or_drains(bench: Bench, shell: Shell) -> None:
    def states() -> Any:
        return shell.json("watch", "--once")["workers"]["dispatcher"]

    assert states() == {"alive": 1}
    bench.sql("UPDATE fencepost.workers SET progress_at = fencepost.now(), busy = 1, slots = 2")
    assert states() == {"busy": 1}
    bench.debit(bench.enqueue("o-1"), "o-1")
    bench.ahead(3600)
    assert states() == {"stalled": 1}
    bench.sql("UPDATE fencepost.workers SET busy = 2")  # full: it cannot take anything
    assert states() == {"busy": 1}
    bench.sql("UPDATE fencepost.workers SET draining = true")
    assert states() == {"draining": 1}
    bench.sql("UPDATE fencepost.clock SET ahead = ahead + interval '1 hour'")
    assert states() == {"silent": 1}
