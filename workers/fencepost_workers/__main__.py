"""`python -m fencepost_workers QUEUE [NAME]`: one worker process for one of the four queues, or the intake.

NAME is how it is called in logs and in Flower, the queue by default.
"""

import gc
import logging
import os
import sys
import warnings
from typing import NoReturn

from fencepost.errors import FencepostError
from fencepost.ledger.connect import connect
from fencepost.ledger.revision import require
from fencepost.settings import load_settings, redact
from fencepost.states import Queue
from fencepost.telemetry import spans
from fencepost.telemetry.start import start
from fencepost_workers import redaction

GC_THRESHOLDS = (20_000, 20, 20)  # a batch makes tens of thousands of records that die with it
INTAKE = "intake"
PROGRAMS = (*map(str, Queue), INTAKE)
TASKS_AT_ONCE = 4  # lists in hand at once; how many items run is FENCEPOST_SLOTS


def main(argv: list[str] | None = None) -> int:
    """Run until SIGTERM, which drains: nothing new is claimed, what is in flight is finished and recorded.

    Exit code 2 for wrong usage or settings, 3 without Postgres, each in one sentence.
    """
    names = sys.argv[1:] if argv is None else argv
    if len(names) not in {1, 2} or names[0] not in PROGRAMS:
        sys.stderr.write(f"usage: python -m fencepost_workers {'|'.join(PROGRAMS)} [NAME]\n")
        return 2
    redaction.install()
    for chatty in ("httpx2", "httpcore2", "celery", "kombu"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    try:
        start(load_settings(), names[0])
        from celery import signals

        signals.setup_logging.connect(_leave_logging)
        if names[0] == INTAKE:
            from fencepost_workers import intake

            return intake.serve(names[-1])
        return serve(Queue(names[0]), names[-1])
    except FencepostError as error:
        sys.stderr.write(f"{names[-1]}: {redact(str(error))}\n")
        return error.exit_code


def _leave_logging(**_: object) -> None:
    """Celery sets up no logging where somebody hears this: it would silence all below a warning."""


def serve(queue: Queue, name: str) -> int:
    """Be a Celery worker of this queue until a signal; its exit code. Raises FencepostError if it cannot
    start.
    """
    settings = load_settings()
    settings.need("dsn", "redis_url", "app")
    with connect(settings.dsn, "fencepost start") as session:
        require(session)
    from celery.exceptions import SecurityWarning
    from celery.utils.nodenames import default_nodename, host_format

    from fencepost_workers.celery import app
    from fencepost_workers.process import PROCESS
    from fencepost_workers.watch import exit_code

    # Celery warns root because of pickle; this fleet accepts JSON only.
    warnings.filterwarnings("ignore", category=SecurityWarning)
    PROCESS.step(queue)  # what is wrong is said before anything is consumed
    worker = app.Worker(
        hostname=host_format(default_nodename(f"{name}@%h")),
        queues=[str(queue)],
        pool="threads",
        concurrency=TASKS_AT_ONCE,
        without_gossip=True,
        without_mingle=True,
        loglevel="WARNING",
        quiet=True,
    )
    # What is imported by now stays: the collector need not look at it again with every batch of records.
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    worker.start()
    return exit_code(int(worker.exitcode or 0))


def end(code: int) -> NoReturn:
    """End at once: interpreters wait for every thread, and a tool that never returns holds one."""
    spans.close()
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    end(main())
