"""`fencepost recover`: what it would do, what it does, and when it lets runs be planned again."""

import re
from collections.abc import Iterator
from datetime import timedelta

import pytest

from fencepost import commands as c
from fencepost.clock import NEVER
from fencepost.ledger import epochs, tail
from fencepost.ledger.connect import connect
from fencepost.settings import load_settings
from fencepost_ops.commands.live import ages
from fencepost_ops.doctor.findings import Level
from fencepost_ops.doctor.fleet import judge_fleet
from tests.integration.ledger_bench import Bench
from tests.integration.recovering import doubted, planned, released_afterwards
from tests.integration.shell import ORDERS, Shell


@pytest.fixture(autouse=True)
def released(bench: Bench) -> Iterator[None]:
    with released_afterwards(bench):
        yield


@pytest.fixture
def shell(bench: Bench, no_settings: None) -> Shell:
    return Shell(bench.database, {"COLUMNS": "240", "FENCEPOST_APP": ORDERS})


def test_the_command_says_first_what_it_would_do(bench: Bench, shell: Shell) -> None:
    _, call = planned(bench)
    plan = shell.json("recover", "--since", "1m", "--reason", "disk lost", "--dry-run")
    assert plan["recovered"] is False
    assert plan["calls"]["INTENT_RECORDED"] >= 1
    assert bench.state(call) == "INTENT_RECORDED"
    assert "nothing was done" in shell.ok("recover", "--since", "1m", "--reason", "disk lost", "--dry-run")
    assert bench.sql("SELECT 1 FROM fencepost.epochs WHERE released_at IS NULL") == []


def test_the_command_recovers_holds_and_releases_what_is_settled(bench: Bench, shell: Shell) -> None:
    run, call = planned(bench, "wallet.note")
    done = shell("recover", "--since", "1m", "--reason", "disk lost", "--by", "ann")
    assert (done.exit_code, "is held" in done.stderr) == (0, True), done.output
    assert "fencepost audit wallet" in done.stdout
    assert (bench.state(call), bench.call(call).quiet_at) == ("UNKNOWN", NEVER)
    assert doubted(bench, run, call)[0] == c.Done("NEEDS_REPAIR")
    for asked in (("runs",), ("workers",), ("show", str(run))):
        assert "and is held since" in shell(*asked, role="reader").stderr
    queued = bench.start()
    bench.sql("UPDATE fencepost.outbox SET publish_count = 5 WHERE run = %s", queued)
    told = shell("show", str(queued), role="reader").stdout
    assert "held: the run: the planner is asked for a turn, once the ledger is released" in told
    assert "is one running" not in told, "nobody is blamed for it"
    assert "and is held since" in shell.ok("watch", "--once", role="reader")
    assert "HELD since" in shell.ok("watch", "--timeout", "1ms", role="reader")
    assert shell.json("watch", "--once", role="reader")["held"]["opened_by"] == "ann"
    with connect(bench.database.dsns["reader"], "look", autocommit=True) as connection:
        seen = tail.overview(connection, ended=False)
    (finding, *_) = judge_fleet(seen, {}, None, intake="intake", limits=ages(load_settings()))
    assert (finding.level, "nothing new is planned or sent" in finding.says) == (Level.PROBLEM, True)
    assert "fencepost recover --release" in finding.do
    why = shell.refused(1, "recover", "--release", "--reason", "audited")
    assert "not settled yet, so nothing was released" in why
    left = shell.json("recover", "--release", "--reason", "audited", exit_code=1)
    assert str(call) in {one["call"] for one in left["unsettled"]}
    assert isinstance(bench.one(bench.claim_run(bench.start())), c.OnHold)
    unaudited = shell.refused(1, "recover", "--release", "--reason", "audited", "--anyway")
    assert "fencepost audit wallet/default --since" in unaudited
    with connect(bench.database.dsns["reader"], "audit", autocommit=True) as connection:
        since = epochs.held(connection)[-1].since
        for scope in re.findall(r"fencepost audit (\S+)", unaudited):
            assert epochs.note_audit(connection, scope, since + timedelta(seconds=1), 0)
        assert "fencepost audit wallet/default" in shell.refused(
            1, "recover", "--release", "--reason", "audited", "--anyway"
        ), "an audit of a part of that time is none"
        for scope in re.findall(r"fencepost audit (\S+)", unaudited):
            assert epochs.note_audit(connection, scope, since, 0)
    released = shell.json("recover", "--release", "--reason", "audited", "--anyway", "--by", "bob")
    assert len(released["released"]) == 1
    assert bench.sql("SELECT opened_by, reason, released_by, release_reason FROM fencepost.epochs ORDER BY 1")
    assert isinstance(bench.one(bench.claim_run(bench.start())), c.Plan)
    assert shell("runs", role="reader").stderr == ""
    assert shell.json("watch", "--once", role="reader")["held"] is None
    assert "not held" in shell.refused(1, "recover", "--release", "--reason", "again")


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (["--reason", "x"], "give --since MOMENT to recover, or --release"),
        (["--since", "1m", "--release", "--reason", "x"], "give --since MOMENT to recover, or --release"),
        (["--since", "1m", "--anyway", "--reason", "x"], "are for --release"),
        (["--since", "2999-01-01", "--reason", "x"], "lies ahead"),
        (["--since", "1m"], "--reason"),
    ],
)
def test_the_command_refuses_what_makes_no_sense(shell: Shell, asked: list[str], says: str) -> None:
    assert says in shell.refused(2, "recover", *asked)


def test_the_command_needs_the_application_and_an_operator(shell: Shell) -> None:
    assert "name the application" in shell.refused(
        2, "recover", "--since", "1m", "--reason", "x", FENCEPOST_APP=""
    )
    assert "permission denied" in shell.refused(2, "recover", "--since", "1m", "--reason", "x", role="reader")


def test_a_moment_after_the_last_stamp_is_doubted_aloud(bench: Bench, shell: Shell) -> None:
    bench.sql("UPDATE fencepost.workers SET last_seen = fencepost.now() - interval '1 hour'")
    told = shell("recover", "--since", "1m", "--reason", "x", "--dry-run")
    bench.ahead(0)
    assert "the last stamp of a worker here is of" in told.stderr
