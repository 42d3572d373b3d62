"""What strangers put into our queues ends no process and holds up nobody (R1)."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tests.acceptance.stage import Stage, until
from tests.acceptance.weather import LONG
from tests.acceptance.weather.forged import SUBJECT, garbage, message
from tests.acceptance.weather.load import all_settle, orders
from tests.acceptance.weather.resets import broker
from tests.acceptance.weather.routed import QUEUES, WORKERS

FLOOD = 5000 if LONG else 100
FLOOD_KIB = 32 * 1024  # in each queue: whoever kept it would have grown by as much


def test_garbage_in_every_queue_ends_no_worker_and_holds_up_nobody(stage: Stage) -> None:
    before = stage.fleet.pids()
    with broker(stage) as server:
        for queue in QUEUES:
            server.lpush(queue, *garbage(queue))
        all_settle(stage, orders(stage, 3, delay_s=0))
        until("empty queues", lambda: not any(server.llen(queue) for queue in QUEUES))
        until("nothing unacknowledged", lambda: server.hlen("unacked") == 0)
    assert stage.fleet.pids() == before
    said = (stage.folder / "fleet.log").read_text()
    assert said.count("of planner; others like it go unsaid: it names another task") == 1  # each kind once


def test_garbage_broadcast_to_workers_ends_none(stage: Stage) -> None:
    before = stage.fleet.pids()
    with broker(stage) as server:
        whole = json.loads(message("celery.pidbox", []))
        for said in (b"not json", b"3", b"{}", b"[]", json.dumps(whole).encode()):
            server.publish("/0.celery.pidbox", said)
        all_settle(stage, orders(stage, 2, delay_s=0))
    assert stage.fleet.pids() == before


def test_what_is_forged_to_wait_is_not_kept_kombu_337_celery_9849(stage: Stage) -> None:
    """A message to be executed later is kept in the memory of a worker beyond all its limits
    (celery/celery#9849), and after the visibility timeout in that of every other (celery/kombu#337).

    Nothing here is ever to be executed later: what a message says of its time is not read.
    """
    later = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    before = {name: _resident(pid) for name, pid in stage.fleet.pids().items() if name in WORKERS}
    with broker(stage) as server:
        for queue in QUEUES:
            one = message(queue, [["t", SUBJECT, 1]], eta=later, origin="x" * (FLOOD_KIB * 1024 // FLOOD))
            server.lpush(queue, *[one] * FLOOD)
        all_settle(stage, orders(stage, 2, delay_s=0))
        until("all taken", lambda: not any(server.llen(queue) for queue in QUEUES))
        until("none held back", lambda: server.hlen("unacked") == 0)
    after = {name: _resident(pid) for name, pid in stage.fleet.pids().items() if name in WORKERS}
    grown = {name: after[name] - before[name] for name in WORKERS}
    assert max(grown.values()) < FLOOD_KIB / 2


def _resident(pid: int) -> int:
    """KiB of memory a process holds."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))
