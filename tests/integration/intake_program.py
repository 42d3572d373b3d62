"""The intake's program, started again whenever it ends: a fork of a process that has everything imported.

`python -m tests.integration.intake_program FOLDER`. There the file `pid` names the life there is; the file
`faults` says what each is armed with, once among all of them. How a life ends is said on stdout.
"""

import os
import signal
import sys
from pathlib import Path
from typing import NoReturn

from fencepost.testing import FAULTS
from fencepost_workers import intake  # noqa: F401 - imported once, for all lives
from fencepost_workers.__main__ import end, main


def live(folder: Path) -> None:
    faults, pidfile = folder / "faults", folder / "pid"
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if faults.exists():
            FAULTS.arm(faults.read_text(), folder / "once")
        end(main(["intake"]))
    fresh = pidfile.with_suffix(".new")
    fresh.write_text(str(pid))
    fresh.rename(pidfile)

    def stop(*_: object) -> NoReturn:
        os.kill(pid, signal.SIGKILL)
        os._exit(0)

    signal.signal(signal.SIGTERM, stop)
    _, status = os.waitpid(pid, 0)
    sys.stdout.write(f"life {pid} ended: {os.waitstatus_to_exitcode(status)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    while True:
        live(Path(sys.argv[1]))
