import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fencepost.errors import FaultInjected, UsageError
from fencepost.testing import FAULTS, POINTS, Faults, FaultSpec, fault, parse_faults

ROOT = Path(__file__).parents[2]


def test_a_specification_names_points_actions_and_passages() -> None:
    assert parse_faults(
        "dispatch.after_effect=crash@3, relay.after_take=pause,planner.after_model=error"
    ) == (
        FaultSpec("dispatch.after_effect", "crash", 3),
        FaultSpec("relay.after_take", "pause", 1),
        FaultSpec("planner.after_model", "error", 1),
    )
    assert parse_faults("") == parse_faults(" , ") == ()


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        ("dispatch.after_effekt=crash", "unknown fault point 'dispatch.after_effekt'"),
        ("dispatch.after_effect", "not of the form"),
        ("dispatch.after_effect=explode", "not of the form"),
        ("dispatch.after_effect=crash@0", "not of the form"),
        ("dispatch.after_effect=crash@x", "not of the form"),
    ],
)
def test_a_misspelt_specification_is_refused(spec: str, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        parse_faults(spec)


def test_nothing_is_armed_unless_asked_for() -> None:
    assert not FAULTS.armed
    fault("dispatch.after_effect")
    fault("no such point")  # production pays one attribute check, not a look-up


def test_a_fault_strikes_at_its_passage_and_only_there() -> None:
    sent: list[int] = []
    faults = Faults(sent.append)
    faults.arm("relay.after_take=crash@2,relay.after_take=pause@4,relay.after_publish=error")
    history = []
    for _ in range(5):
        faults.passed("relay.after_take")
        history.append(len(sent))
    assert history == [0, 1, 1, 2, 2]
    assert sent == [signal.SIGKILL, signal.SIGSTOP]
    with pytest.raises(FaultInjected, match=r"relay\.after_publish, passage 1"):
        faults.passed("relay.after_publish")
    faults.passed("relay.after_publish")


def test_an_unknown_point_is_an_error_where_faults_are_armed() -> None:
    faults = Faults()
    faults.arm("relay.after_take=error")
    with pytest.raises(UsageError, match="unknown fault point"):
        faults.passed("relay.after_taking")


def test_a_shared_folder_makes_a_fault_strike_once_across_processes(tmp_path: Path) -> None:
    environment = {
        "FENCEPOST_FAULT": "relay.after_take=crash@1",
        "FENCEPOST_FAULT_ONCE_DIR": str(tmp_path / "once"),
    }
    sent: list[int] = []
    for _process in range(3):
        faults = Faults(sent.append)
        faults.arm_from(environment)
        faults.passed("relay.after_take")
    assert sent == [signal.SIGKILL]


def test_without_a_folder_every_process_is_struck() -> None:
    sent: list[int] = []
    for _process in range(2):
        faults = Faults(sent.append)
        faults.arm_from({"FENCEPOST_FAULT": "relay.after_take=crash@1"})
        faults.passed("relay.after_take")
    assert len(sent) == 2


def test_disarming_stops_everything() -> None:
    sent: list[int] = []
    faults = Faults(sent.append)
    faults.arm("relay.after_take=crash")
    faults.disarm()
    faults.passed("relay.after_take")
    assert (sent, faults.armed) == ([], False)


def test_a_crash_kills_the_process_for_real() -> None:
    passage = "fault('relay.after_take')"
    code = f"from fencepost.testing import fault; {passage}; print('alive', flush=True); {passage}"
    environment = {
        **os.environ,
        "FENCEPOST_FAULT": "relay.after_take=crash@2",
        "PYTHONPATH": str(ROOT / "shared"),
    }
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, check=False, timeout=60
    )
    assert (done.stdout, done.returncode) == (b"alive\n", -signal.SIGKILL)


def test_every_point_named_in_the_code_is_of_the_closed_set() -> None:
    named = set()
    for root in ("shared", "workers", "relay", "ops"):
        for path in (ROOT / root).rglob("*.py"):
            named |= set(re.findall(r"""\bfault\(\s*["']([^"']+)["']""", path.read_text("utf-8")))
    assert named <= POINTS
