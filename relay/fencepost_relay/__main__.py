"""
`python -m fencepost_relay`: pass after pass, until SIGTERM or SIGINT.

Between passes it waits for the doorbell, the next due row or the poll, whichever comes first. Nothing it
holds matters: a pass that hangs when the signal comes is given a second and a half and then cut off.
"""

import logging
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from types import FrameType

from fencepost.doorbell import Doorbell
from fencepost.errors import FaultInjected, Unreachable, UsageError
from fencepost.heads import Heads
from fencepost.health import HealthFile
from fencepost.ledger.outbox import Setback
from fencepost.settings import Settings, load_settings, redact
from fencepost.telemetry import correlation, metrics, spans
from fencepost.telemetry.start import start
from fencepost_relay.publisher import Publisher
from fencepost_relay.relay import PassResult, Relay

STOP_WITHIN_S = 1.5
REPORT_EVERY_S = 10.0
LOOK_FOR_STOP_EVERY_S = 0.25

log = logging.getLogger("fencepost.relay")


@dataclass
class Stop:
    """Set by a signal. A plain flag: an Event's lock might be held by the very code the signal interrupts."""

    asked: bool = False

    def install(self) -> None:
        """Stop on SIGTERM and SIGINT; by force when the current pass does not end in time."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._ask)
        signal.signal(signal.SIGALRM, self._force)

    def _ask(self, _number: int, _frame: FrameType | None) -> None:
        self.asked = True
        signal.setitimer(signal.ITIMER_REAL, STOP_WITHIN_S)

    def _force(self, _number: int, _frame: FrameType | None) -> None:
        os._exit(0)  # what the pass had taken comes due again by itself


@dataclass
class Report:
    """Counts since the last line of the log, so that a busy relay writes six lines a minute."""

    taken: int = 0
    published: int = 0
    longest_s: float = 0.0
    trouble: str = ""
    since: float = field(default_factory=time.monotonic)

    def passed(self, result: PassResult, took_s: float = 0.0) -> None:
        """Add a pass; say at once who was declared dead, what cannot be published and that an outage is
        over.
        """
        if self.trouble:
            log.info("passes succeed again")
            self.trouble = ""
        for token in result.declared_dead:
            log.warning("worker %s is silent; its rows are due", token[:8])
        self._set_back(result.setbacks)
        self.longest_s = max(self.longest_s, took_s)
        self.taken += result.taken
        self.published += result.published
        metrics.published(result.published)
        if self.taken and time.monotonic() - self.since >= REPORT_EVERY_S:
            self.flush()

    def _set_back(self, setbacks: Sequence[Setback]) -> None:
        """One line for those that are tried again and one for those set aside, however many."""
        for dead, level, what in (
            (False, logging.WARNING, "could not be published and are tried again later"),
            (True, logging.ERROR, "are set aside, see `fencepost outbox --dead`"),
        ):
            if found := [one for one in setbacks if one.dead is dead]:
                first = found[0]
                of = f"{first.tenant}/{first.subject}: {first.error}"
                with correlation.bound(**first.of):
                    log.log(level, "%d rows %s; the first, %s", len(found), what, of)

    def failed(self, error: Exception) -> None:
        """Say once what an outage is."""
        trouble = redact(" ".join(str(error).split()))
        if trouble != self.trouble:
            log.warning("pass failed: %s", trouble)
        self.trouble = trouble

    def flush(self) -> None:
        """Write the counts and start again."""
        if self.taken:
            took = 1000 * self.longest_s
            log.info("took %d rows, published %d; longest pass %.0f ms", self.taken, self.published, took)
        self.taken = self.published = 0
        self.longest_s = 0.0
        self.since = time.monotonic()


def run(relay: Relay, doorbell: Doorbell, stop: Stop, *, poll_s: float, health: HealthFile) -> None:
    """
    Passes until asked to stop. Outages are logged and outlived; raises UsageError when Postgres refuses the
    relay. Every pass that succeeds touches the health file.
    """
    report = Report()
    while not stop.asked:
        pause = poll_s
        try:
            began = time.monotonic()
            result = relay.run_once()
            report.passed(result, time.monotonic() - began)
            if not health.touch():
                log.error("%s", health.error)
            if result.next_due_in is not None:
                pause = min(pause, result.next_due_in.total_seconds())
        except (Unreachable, FaultInjected) as error:
            report.failed(error)
        _rest(doorbell, stop, pause)
    report.flush()


def _rest(doorbell: Doorbell, stop: Stop, pause_s: float) -> None:
    until = time.monotonic() + pause_s
    while not stop.asked and (left := until - time.monotonic()) > 0:
        if doorbell.wait(min(left, LOOK_FOR_STOP_EVERY_S)):
            return


def serve(settings: Settings) -> None:
    """Run one relay with these settings until a signal."""
    stop = Stop()
    stop.install()
    heads = Heads(settings.redis_url, settings.head_file)
    relay = Relay(
        settings.dsn,
        Publisher(settings.redis_url),
        republish=timedelta(seconds=settings.republish_s),
        worker_ttl=timedelta(seconds=settings.worker_ttl_s),
        list_size=settings.task_list,
        ahead=timedelta(milliseconds=settings.poll_ms),
        opened=heads.look,
    )
    try:
        with Doorbell(settings.redis_url) as doorbell:
            log.info("relay %d runs", os.getpid())
            health = HealthFile(settings.health_file)
            run(relay, doorbell, stop, poll_s=settings.poll_ms / 1000, health=health)
    finally:
        relay.close()
        heads.close()
        signal.setitimer(signal.ITIMER_REAL, 0)  # what is left, the interpreter's own end, needs no force
    log.info("relay %d stopped", os.getpid())


def main() -> int:
    """The program; returns its exit code (2: wrong settings or a ledger that refuses)."""
    try:
        settings = load_settings()
        start(settings, "relay")
        settings.need("dsn", "redis_url")
        serve(settings)
    except UsageError as error:
        sys.stderr.write(f"fencepost relay: {redact(str(error))}\n")
        return error.exit_code
    finally:
        spans.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
