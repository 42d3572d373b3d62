"""A worker's own clock counts the time its host was suspended (R6)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.acceptance.clock_shim import WrongClock, built, why_not

AHEAD = "import time; from fencepost.clock import boottime; print(boottime() - time.monotonic())"


@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
def test_boot_time_goes_on_while_a_host_sleeps(tmp_path: Path) -> None:
    def ahead(clock: WrongClock) -> float:
        return float(subprocess.check_output([sys.executable, "-c", AHEAD], env=os.environ | clock.env))

    with WrongClock(built(tmp_path), tmp_path / "clock") as clock:
        before = ahead(clock)
        clock.suspend(3600)
        assert 3590 < ahead(clock) - before < 3610
