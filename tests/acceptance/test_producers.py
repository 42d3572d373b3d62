"""One business intent through every way in at once: SQL, the client, the command line, plain Celery."""

import json
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis
from celery import Celery
from click.testing import CliRunner

from fencepost import Budget
from fencepost.tools import OnStop
from fencepost_ops import cli
from tests.acceptance.stage import Stage, Step, step
from tests.awaiting import until

PRINCIPAL = "svc:test"
KEY = "producers-1"
ENQUEUE = """
SELECT fencepost.enqueue_run(%s, %s, 'steps', 1, %s, %s::jsonb, interval '1 minute', '{"turns": 8}')
"""


@pytest.fixture
def taking(stage: Stage) -> Iterator[Stage]:
    """The fleet, with an intake for the test's tenant."""
    bound = {"FENCEPOST_INTAKE_TENANT": stage.tenant, "FENCEPOST_INTAKE_PRINCIPAL": PRINCIPAL}
    env = {**os.environ, **stage.fleet.env("producer"), **bound}
    intake = subprocess.Popen([sys.executable, "-m", "fencepost_workers", "intake"], env=env)
    try:
        yield stage
    finally:
        intake.terminate()
        assert intake.wait(timeout=60) == 0


class Ways:
    """The four producers, each with the same request in words of its own."""

    def __init__(self, stage: Stage, turns: list[list[Step]], folder: Path) -> None:
        self.stage, self.turns, self.folder = stage, turns, folder

    def sql(self) -> None:
        with psycopg.connect(self.stage.fleet.database.dsns["producer"]) as session:
            given = [self.stage.tenant, KEY, PRINCIPAL, json.dumps({"turns": self.turns})]
            session.execute(ENQUEUE, given)

    def client(self) -> None:
        with self.stage.client("producer") as client:
            client.enqueue(
                "steps",
                {"turns": self.turns},
                run_key=KEY,
                tenant=self.stage.tenant,
                principal=PRINCIPAL,
                deadline=timedelta(seconds=60),
                budget=Budget(turns=8),
            )

    def jsonl(self) -> None:
        file = self.folder / "runs.jsonl"
        asked = {"run_key": KEY, "input": {"turns": self.turns}, "budget": {"turns": 8, "calls": 64}}
        file.write_text(json.dumps(asked))
        arguments = ["--dsn", self.stage.fleet.database.dsns["producer"], "enqueue", "steps", str(file)]
        arguments += ["--tenant", self.stage.tenant, "--principal", PRINCIPAL, "--deadline", "60s"]
        told = CliRunner().invoke(cli.main, arguments)
        assert told.exit_code == 0, told.output

    def celery(self) -> None:
        asked: dict[str, Any] = {"run_key": KEY, "planner": "steps", "input": {"turns": self.turns}}
        asked |= {"deadline_s": 60, "budget": {"turns": 8}, "on_stop": str(OnStop.COMPENSATE)}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            broker = Celery(broker=self.stage.fleet.valkey.url())
            broker.send_task("fencepost.intake", kwargs=asked, queue="intake")

    @property
    def all(self) -> list[Callable[[], None]]:
        return [self.sql, self.client, self.jsonl, self.celery]


def test_one_intent_through_all_four_producers_at_once_has_one_run_and_one_effect(
    taking: Stage, tmp_path: Path
) -> None:
    ways = Ways(taking, [[step("bank.debit", "debit", reference=KEY)]], tmp_path)
    start = threading.Barrier(len(ways.all))

    def send(way: Callable[[], None]) -> None:
        start.wait()
        way()

    with ThreadPoolExecutor(len(ways.all)) as threads:
        list(threads.map(send, ways.all))
    with redis.Redis.from_url(taking.fleet.valkey.url()) as broker:
        # The intake answers for its message once the run is there, whoever made it.
        until(
            "the message taken in", lambda: not broker.exists("intake") and not broker.hlen("unacked_intake")
        )
    run = taking.value("SELECT id FROM fencepost.runs WHERE tenant = %s", taking.tenant)
    taking.sent.append(run)
    assert taking.ended(run) == ["COMPLETED"]
    assert taking.value("SELECT count(*) FROM fencepost.runs WHERE tenant = %s", taking.tenant) == 1
    assert taking.value("SELECT count(*) FROM fencepost.intake_refusals") == 0
    assert (taking.effects(KEY), taking.requests(KEY)) == (["debit"], 1)
