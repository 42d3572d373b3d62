"""The ledger is restored to an earlier moment under a fleet that lives on, and was at work in between."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from fencepost.clock import rfc3339
from fencepost.decide.recover import FENCE_MARGIN
from fencepost.subjects import Call
from fencepost_ops.local import LocalPostgres
from tests.acceptance.stage import Stage, is_frozen, staged, step
from tests.acceptance.weather import long_only, patient
from tests.awaiting import until

SCALE = {"relay": 1, "planner": 2, "dispatcher": 2, "reconciler": 1, "compensator": 1}
TOOLS = {"asked": "bank.once", "known": "bank.debit", "blind": "blind.debit", "letter": "mail.send"}
"""What is unsent when the backup is taken, and sent after it; one of each class."""

LONG_S = 90.0
"""For what comes after an attempt's time, on a crowded machine."""

pytestmark = patient


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with staged(tmp_path_factory.mktemp("recover"), scale=SCALE) as one:
        yield one


def fencepost(stage: Stage, *args: str, dsn: str = "") -> tuple[int, str, str]:
    """The command line with an operator's login, as a process of its own."""
    told = {**os.environ, **stage.fleet.env("operator")}
    told |= {"FENCEPOST_DSN": dsn} if dsn else {}
    command = [sys.executable, "-m", "fencepost_ops.cli", *args]
    done = subprocess.run(command, env=told, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout, done.stderr


def told(stage: Stage, *args: str, code: int = 0, dsn: str = "") -> Any:
    """What a command answers in JSON."""
    exit_code, out, err = fencepost(stage, *args, "--json", dsn=dsn)
    assert exit_code == code, (out, err)
    return json.loads(out)


def run_of(stage: Stage, name: str, tool: str) -> UUID:
    return stage.send([step(tool, name, reference=name)], key=name, deadline_s=300)


def freeze(stage: Stage, *pids: int) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
        until("a frozen process", lambda pid=pid: is_frozen(pid))  # type: ignore[misc]


def wake(*pids: int) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGCONT)


def base_backup(stage: Stage, to: Path) -> datetime:
    """A copy of the running cluster; the moment it begins, which is no later than what it holds."""
    postgres = stage.fleet.postgres
    at: datetime = stage.value("SELECT fencepost.now()")
    command = [str(postgres.bin("pg_basebackup")), "-d", postgres.superuser_dsn, "-D", str(to)]
    subprocess.run([*command, "-X", "stream", "-c", "fast"], check=True, capture_output=True, timeout=120)
    return at


def put_back(stage: Stage, backup: Path) -> LocalPostgres:
    """The backup in the place of what there was, on a server that the fleet does not reach."""
    postgres = stage.fleet.postgres
    data = postgres.folder / "pgdata"
    owner = data.stat()
    postgres.stop()
    shutil.rmtree(data)
    shutil.move(backup, data)
    for path in (data, *data.rglob("*")):
        os.chown(path, owner.st_uid, owner.st_gid)
    return LocalPostgres.start(postgres.folder, settings=stage.fleet.postgres_settings(), fsync=False)


def held_at_the_backup(stage: Stage) -> tuple[dict[str, UUID], dict[str, int]]:
    """Runs as the backup finds them: one being planned, one claimed and not sent yet, one never taken, and
    those of `TOOLS`, unsent. And who was frozen for that.
    """
    frozen, runs = {}, {}
    (frozen["reconciler"],) = stage.pids("reconciler")
    freeze(stage, frozen["reconciler"])  # it would take over what is claimed and not sent
    stage.arm("dispatcher", "dispatch.before_wire=pause")
    runs["claimed"] = run_of(stage, "claimed", "bank.debit")
    frozen["claimer"] = stage.frozen("dispatcher")
    frozen["dispatcher"] = next(pid for pid in stage.pids("dispatcher") if pid != frozen["claimer"])
    freeze(stage, frozen["dispatcher"])
    runs |= {name: run_of(stage, name, tool) for name, tool in TOOLS.items()}
    for name in TOOLS:
        stage.until_state(runs[name], name, "INTENT_RECORDED")
    stage.arm("planner", "planner.after_model=pause")
    runs["planning"] = run_of(stage, "planning", "bank.debit")
    frozen["holder"] = stage.frozen("planner")
    frozen["planner"] = next(pid for pid in stage.pids("planner") if pid != frozen["holder"])
    freeze(stage, frozen["planner"])
    runs["queued"] = run_of(stage, "queued", "bank.debit")
    return runs, frozen


def recover_apart(stage: Stage, backup: Path, since: datetime) -> None:
    """Recover the backup on a port of its own, and put it in the ledger's place."""
    restored = put_back(stage, backup)
    private = stage.fleet.database.dsns["operator"].replace(
        f":{stage.fleet.postgres.port}/", f":{restored.port}/"
    )
    told_since = ("recover", "--since", rfc3339(since), "--reason", "the disk was lost")
    try:
        recovered = told(stage, *told_since, dsn=private)
    finally:
        restored.stop()
    assert recovered["marked"] == len(TOOLS) + 1
    assert {"bank.once", "mail.send"} <= set(recovered["happens_again"])
    assert "bank.debit" not in recovered["happens_again"]
    assert stage.fleet.mend() == ["Postgres"]


def settled_by_its_contract(stage: Stage, runs: dict[str, UUID]) -> Call:
    """Each call that may have been sent ends as its contract allows; the one that needs a person."""
    # Whoever held a term of before is refused: neither a turn nor an outcome is recorded under it.
    for name in ("asked", "known", "blind", "claimed"):
        stage.until_state(runs[name], name, "SUCCEEDED", within_s=LONG_S)
    letter = stage.until_state(runs["letter"], "letter", "NEEDS_REPAIR", within_s=LONG_S)
    for name in (*TOOLS, "claimed"):
        events = stage.events(runs[name])
        marked = next(n for n, e in enumerate(events) if e.type == "ToolOutcomeMarkedUnknown")
        later = [e for e in events[marked + 1 :] if e.type != "EvidenceFiled"]
        assert all((e.fence or FENCE_MARGIN) >= FENCE_MARGIN for e in later), stage.told(runs[name])
    # Nothing is planned, and nobody is blamed for it.
    assert [e.type for e in stage.events(runs["planning"])][-1] == "LedgerRestored"
    assert stage.events(runs["queued"]) == []
    assert stage.value("SELECT max(failures) FROM fencepost.outbox") == 0

    return letter


def audited_and_released(stage: Stage, since: datetime, letter: Call, done: Sequence[str]) -> None:
    """What nobody here knows of is listed; then the hold ends."""
    assert "not settled yet" in fencepost(stage, "recover", "--release", "--reason", "audited")[2]
    with stage.client("operator") as client:
        client.repair(letter.id, "SUCCEEDED", "ann", "the mail's own list", stage.book.effects("mail")[0].id)
    book = ("--book", stage.sandbox.url, "--service", "wallet", "--since", rfc3339(since))
    differing = told(stage, "audit", "bank", *book, code=1)
    orphans = json.dumps([f for f in differing["findings"] if f["kind"] == "effect_without_intent"])
    receipts = {name: next(e.id for e in stage.book.effects() if e.reference == name) for name in done}
    assert {name for name in ("queued", "lost") if receipts[name] in orphans} == {"queued", "lost"}, orphans
    assert receipts["asked"] not in orphans
    assert "fencepost audit" in fencepost(stage, "recover", "--release", "--reason", "audited")[2]
    unasked = ("--without-audit", "--reason", "the other services have no book")
    assert told(stage, "recover", "--release", *unasked)["unsettled"] == []


@long_only
def test_a_restored_ledger_settles_what_was_sent_and_repeats_no_effect(stage: Stage, tmp_path: Path) -> None:
    runs, frozen = held_at_the_backup(stage)
    since = base_backup(stage, tmp_path / "backup")
    # The time that will be lost: all of this happens, and one more order comes and is carried out.
    wake(frozen["dispatcher"], frozen["planner"])
    lost = run_of(stage, "lost", "bank.debit")
    done = [*TOOLS, "queued", "lost"]
    until("the effects of the lost time", lambda: all(stage.effects(name) for name in done), LONG_S)
    known = [runs[name] for name in (*TOOLS, "queued")]
    assert stage.ended(*known, lost, within_s=LONG_S) == ["COMPLETED"] * len(done)

    recover_apart(stage, tmp_path / "backup", since)
    wake(frozen["claimer"], frozen["holder"], frozen["reconciler"])
    letter = settled_by_its_contract(stage, runs)
    audited_and_released(stage, since, letter, done)

    # The producer sends its orders again: those that are known are the same runs, the lost one is a new one.
    stage.sent = [run_of(stage, name, TOOLS.get(name, "bank.debit")) for name in (*runs, "lost")]
    assert stage.sent[:-1] == list(runs.values())
    assert stage.sent[-1] != lost
    assert stage.ended(within_s=LONG_S) == ["COMPLETED"] * len(stage.sent)
    assert {name: len(stage.effects(name)) for name in (*runs, "lost")} == dict.fromkeys((*runs, "lost"), 1)
    assert stage.verdict(whole=True) == []
