"""What the command line says of a real ledger, and how a person settles what needs one."""

import json
import re
from collections.abc import Iterator
from datetime import timedelta

import psycopg
import pytest

from fencepost import Client
from fencepost import commands as c
from fencepost.clock import parse_rfc3339, uuid7
from fencepost_ops.database import LedgerDatabase
from fencepost_ops.local import LocalPostgres
from tests.integration.ledger_bench import TENANT, Bench, open_bench
from tests.integration.shell import (
    OPTIONS,
    ORDERS,
    Shell,
    lines,
    needs_repair,
    order,
    succeeded,
)

LISTED = "fencepost runs lists runs, fencepost show RUN its calls"


@pytest.fixture
def bench(database: LedgerDatabase) -> Iterator[Bench]:
    with open_bench(database) as opened:
        yield opened


# -- runs and show ------------------------------------------------------------------------------------


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
    assert shell.refused(2, "show", "nothing") == f"there is no run nothing; {LISTED}"
    assert shell.refused(2, "show", str(uuid7())).startswith("there is no run ")
    assert shell.refused(2, "show", "\x1b[2Jabc") == f"there is no run \\u001b[2Jabc; {LISTED}"
    with Client(shell.database.dsns["producer"]) as client:
        for tenant in ("shop", "market"):
            client.enqueue(
                "p", {}, run_key="o-1", tenant=tenant, principal="p", deadline=timedelta(minutes=1)
            )
    told = shell.refused(2, "show", "o-1")
    assert "o-1 names several runs" in told
    assert told.endswith("give the tenant as well")
    assert shell.json("show", "o-1", "--tenant", "market")["run"]["tenant"] == "market"
    told = shell.refused(2, "show", "o-1", "--tenant", "none")
    assert re.fullmatch(r"there is no run o-1 of tenant none; there is a run \S{36} of tenant market", told)
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


# -- what needs a person ------------------------------------------------------------------------------


def test_unresolved_calls_are_listed_and_their_exit_code_is_one(bench: Bench, shell: Shell) -> None:
    assert shell.ok("unresolved") == "no call is unknown, held or left to a person\n"
    run, call = needs_repair(bench)
    result = shell("unresolved", role="reader")
    assert (result.exit_code, result.stderr) == (1, "")
    told = result.stdout
    assert re.match(
        r"waits for a person:\nwallet\.note 1\.0 of run o-1: NEEDS_REPAIR for 3(\.\d+)? s\n", told
    )
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
    run, call = needs_repair(bench)
    told = shell.ok("repair", str(call), *decision, "--reason", "asked them", "--by", "pat")
    assert told.startswith(f"call {call} is {state}: ")
    assert told.endswith(f"; see fencepost show {run}\n")
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


def test_an_effect_that_was_not_offset_waits_for_a_person(bench: Bench, shell: Shell) -> None:
    run, call = succeeded(bench)
    bench.cancel(run)
    for _ in range(5):
        bench.one(bench.claim_stopped(run))
        bench.ahead(4)
    assert bench.one(bench.claim_stopped(run)) == c.Done("STOPPED")
    result = shell("unresolved", role="reader")
    listed = result.stdout
    assert result.exit_code == 1
    assert "not offset for" in listed
    assert "given up after 5 lost workers in a row" in listed
    assert f"fencepost repair {call} --offset" in listed
    told = shell.ok("repair", str(call), "--offset", "--reason", "the bug is mended", "--by", "pat")
    assert told == f"the effect of call {call} is to be offset once more\n"
    assert bench.status(run) == "COMPENSATING"
    assert shell.ok("unresolved", role="reader") == "no call is unknown, held or left to a person\n"


def test_an_effect_that_nothing_offsets_is_listed_until_a_person_leaves_it(
    bench: Bench, shell: Shell
) -> None:
    run = bench.enqueue("o-1")
    call = bench.debit(run, "a", "mail.send")
    bench.succeed(run, call, "mail-1")
    bench.cancel(run)
    assert bench.one(bench.claim_stopped(run)) == c.Done("STOPPED")
    listed = shell("unresolved", role="reader")
    assert listed.exit_code == 1
    assert "why     irreversible" in listed.stdout
    assert f"fencepost repair {call} --leave --reason" in listed.stdout
    (entry,) = json.loads(shell("unresolved", "--json", role="reader").stdout)
    assert (entry["call"], entry["again"]) == (str(call), False)
    told = shell.ok("repair", str(call), "--leave", "--reason", "nobody minds", "--by", "pat")
    assert told == f"the effect of call {call} stays as it is\n"
    assert shell.ok("unresolved", role="reader") == "no call is unknown, held or left to a person\n"


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
    other = bench.enqueue("o-2")
    said = shell.json("cancel", "o-2", "--reason", "not wanted")
    assert (said["run_id"], said["status"], said["stop_reason"]) == (str(other), "STOPPED", "cancelled")


# -- fleet, tools, migrate ----------------------------------------------------------------------------


def test_workers_are_listed_with_what_they_hold(bench: Bench, shell: Shell) -> None:
    run = bench.enqueue("o-1")
    bench.one(bench.claim_run(run))
    (worker,) = shell.json("workers", role="reader")
    assert (worker["role"], worker["host"], worker["pid"], worker["held"]) == ("dispatcher", "h", 1, 1)
    assert worker["state"] == "alive"
    assert re.search(r"dispatcher +h +1 +alive .* 1 +", shell.ok("workers", "--check"))
    bench.sql("UPDATE fencepost.clock SET ahead = ahead + interval '1 minute'")
    assert re.search(r"dispatcher +h +1 +silent .* 1 m .*ago", shell.ok("workers"))
    assert shell("workers", "--check").exit_code == 1
    bench.sql("UPDATE fencepost.workers SET ended_at = fencepost.now()")
    assert shell.ok("workers") == "no workers\n"
    assert "ended" in shell.ok("workers", "--all", "--check")


def test_a_worker_that_makes_no_progress_is_listed_as_stalled(bench: Bench, shell: Shell) -> None:
    run = bench.enqueue("o-1")
    bench.one(bench.claim_run(run))
    said = (
        "UPDATE fencepost.workers SET role = role, last_seen = fencepost.now(), busy = 3, slots = 8, "
        "progress_at = fencepost.now() - interval '31 s', draining = false"
    )
    bench.sql(said)
    (worker,) = shell.json("workers", "--check", role="reader")
    assert (worker["state"], worker["busy"], worker["slots"], worker["waiting"]) == ("busy", 3, 8, 0)
    assert re.search(r"busy +3\d(\.\d)? s ago +3/8 +", shell.ok("workers"))
    bench.sql("UPDATE fencepost.outbox SET queue = 'dispatcher', generation = generation + 1")
    bench.sql("UPDATE fencepost.outbox SET due_at = fencepost.now()")
    assert re.search(r"stalled +3\d(\.\d)? s ago +3/8 +", shell.ok("workers"))
    assert shell("workers", "--check").exit_code == 1
    bench.sql("UPDATE fencepost.workers SET draining = true")
    assert "draining" in shell.ok("workers", "--check")


def test_the_outbox_is_counted_per_queue(bench: Bench, shell: Shell) -> None:
    assert shell.ok("outbox") == "the outbox is empty: no run is open\n"
    needs_repair(bench, "o-1")
    bench.enqueue("o-2")
    bench.ahead(5)
    planner, reconciler = shell.json("outbox", role="relay")
    assert (planner["queue"], planner["rows"], planner["due"]) == ("planner", 2, 1)
    assert (reconciler["queue"], reconciler["rows"], reconciler["waiting"]) == ("reconciler", 1, 1)
    assert re.search(r"planner +2 +1 +\d+(\.\d+)? s +0 +0 +0 +in ", shell.ok("outbox"))


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
    assert re.fullmatch(r"the ledger is at \S+ already: nothing to do\n", shell.ok("--dsn", bare, "migrate"))
    done = shell.json("migrate", "--dsn", bare)
    assert done["before"] == done["after"]
    assert shell.ok("runs", "--dsn", bare) == "no runs\n"


def test_only_the_owner_migrates(postgres: LocalPostgres, shell: Shell) -> None:
    with psycopg.connect(postgres.superuser_dsn, autocommit=True) as connection:
        connection.execute("CREATE DATABASE not_mine")
    dsn = shell.database.dsns["reader"].rsplit("/", 1)[0] + "/not_mine"
    assert "this login may not do that" in shell.refused(2, "migrate", "--dsn", dsn)


# -- verify -------------------------------------------------------------------------------------------


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
    assert shell.refused(2, "verify", "o-1") == f"there is no run o-1; {LISTED}"
