"""`python -m fencepost_workers QUEUE`: one worker process for one of the four queues, with the settings it needs."""

import logging
import sys
import warnings

from fencepost.errors import FencepostError
from fencepost.settings import load_settings
from fencepost.states import Queue

TASKS_AT_ONCE = "4"  # lists in hand at once; how many items run is FENCEPOST_SLOTS


def main(argv: list[str] | None = None) -> int:
    """Run until SIGTERM, which drains: nothing new is claimed, what is in flight is finished and recorded.

    Exit code 2 for wrong usage or settings, in one sentence.
    """
    names = sys.argv[1:] if argv is None else argv
    if len(names) not in (1, 2) or names[0] not in {str(q) for q in Queue}:
        sys.stderr.write(f"usage: python -m fencepost_workers {'|'.join(str(q) for q in Queue)} [NAME]\n")
        return 2
    queue, name = names[0], names[-1]
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    for chatty in ("httpx2", "httpcore2", "celery", "kombu"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    try:
        load_settings().need("dsn", "redis_url", "app")
        from celery.exceptions import SecurityWarning

        from fencepost_workers.celery import app
    except FencepostError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    # Celery warns root because of pickle; this fleet accepts JSON only.
    warnings.filterwarnings("ignore", category=SecurityWarning)
    options = ["-P", "threads", "-c", TASKS_AT_ONCE, "--without-gossip", "--without-mingle", "-l", "WARNING"]
    app.worker_main(["-q", "worker", "-Q", queue, "-n", f"{name}@%h", *options])
    return 0


if __name__ == "__main__":
    sys.exit(main())
