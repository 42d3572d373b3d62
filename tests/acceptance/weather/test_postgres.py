"""Every weather between the fleet and Postgres, and wires that are slow, under load."""

import os
import signal
import time

from tests.acceptance.stage import Stage
from tests.acceptance.weather import LONG, OUTAGE_S, long_only, patient
from tests.acceptance.weather.load import all_settle, orders, under_way
from tests.acceptance.weather.routed import RELAYS, WORKERS, routed

pytestmark = patient

COUNT = 30 if LONG else 4


def test_sessions_that_fall_silent_are_given_up_by_workers_relays_and_pulses(stage: Stage) -> None:
    """No process is restarted for it, and none hangs: each gives up what does not answer."""
    before, tokens = stage.fleet.pids(), living(stage)
    sent = orders(stage, COUNT)
    under_way(stage, sent)
    silent = routed(stage).ledger.black_hole()
    assert silent >= len(RELAYS) + 2 * len(WORKERS)  # a session each at least, and one for every pulse
    all_settle(stage, sent | orders(stage, 2))
    assert stage.fleet.pids() == before
    assert living(stage) == tokens  # a pulse that hung would have been replaced


def living(stage: Stage) -> set[str]:
    """The tokens of the workers that live."""
    with stage.reader() as connection:
        rows = connection.execute("SELECT token FROM fencepost.workers WHERE ended_at IS NULL").fetchall()
    return {token for (token,) in rows}


@long_only
def test_a_wire_to_postgres_that_is_dead_for_a_while_costs_time_only(stage: Stage) -> None:
    """Old sessions fall silent and new ones are not answered either."""
    sent = orders(stage, COUNT)
    under_way(stage, sent)
    wire = routed(stage).ledger
    wire.hanging = True
    wire.black_hole()
    time.sleep(OUTAGE_S)
    wire.clear()
    all_settle(stage, sent | orders(stage, 2))


@long_only
def test_slow_wires_to_both_servers_cost_time_only(stage: Stage) -> None:
    routed(stage).ledger.latency_s = 0.01
    routed(stage).redis.latency_s = 0.05
    all_settle(stage, orders(stage, COUNT, delay_s=0))


@long_only
def test_cut_sessions_cost_time_only(stage: Stage) -> None:
    sent = orders(stage, COUNT)
    under_way(stage, sent)
    for _ in range(10):
        routed(stage).ledger.reset()
        time.sleep(0.4)
    all_settle(stage, sent)


def test_a_worker_frozen_in_its_transaction_holds_up_nobody(stage: Stage) -> None:
    armed = stage.arm("dispatcher", "ledger.in_transaction=pause")
    sent = orders(stage, COUNT)
    pid = stage.frozen("dispatcher")
    assert armed.fired
    all_settle(stage, sent)
    os.kill(pid, signal.SIGCONT)
