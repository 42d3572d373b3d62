"""Postgres has no session left: everybody is told so in one sentence, and no work is lost."""

import os
import subprocess
import sys

from tests.acceptance.stage import Stage, step
from tests.awaiting import until

CLI = [sys.executable, "-m", "fencepost_ops.cli"]


def test_work_waits_for_sessions_and_is_not_lost(stage: Stage) -> None:
    stage.sandbox.fault("delay_before", reference_prefix="full-", delay_s=0.2)
    runs = [
        stage.send([step("bank.debit", "one", reference=f"full-{n}")], key=f"full-{n}") for n in range(10)
    ]
    with stage.fleet.connect() as owner:
        owner.execute("ALTER ROLE fencepost_worker_login CONNECTION LIMIT 1")
        try:
            owner.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE usename = 'fencepost_worker_login'"
            )
            env = {**os.environ, **stage.fleet.env("worker")}
            said = until("a refusal", lambda: refused(env))
        finally:
            owner.execute("ALTER ROLE fencepost_worker_login CONNECTION LIMIT -1")
    assert "has no session left for us (too many connections for role" in said
    assert said.endswith(
        "raise its max_connections, or lower FENCEPOST_POOL_SIZE or the number of processes; "
        "`fencepost doctor` adds them up\n"
    )
    assert said.count("\n") == 1
    assert stage.ended(*runs, within_s=60) == ["COMPLETED"] * len(runs)
    assert [stage.effects(f"full-{n}") for n in range(10)] == [["debit"]] * 10


def refused(env: dict[str, str]) -> str:
    """What the command line says while no session is to be had; empty if it had one."""
    asked = subprocess.run([*CLI, "runs"], env=env, capture_output=True, text=True, check=False)
    assert asked.returncode in {0, 3}, asked.stderr
    return asked.stderr
