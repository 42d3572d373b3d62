"""The worker of this process as Celery drives it: made before its first task, stopped by signals."""

from __future__ import annotations

import gc
import logging
import threading
import time
from datetime import timedelta
from typing import Any
from uuid import UUID

from celery import signals

from fencepost.errors import FencepostError, Unreachable
from fencepost.settings import load_settings
from fencepost.states import Queue
from fencepost_workers import broker
from fencepost_workers.compensator import Compensator
from fencepost_workers.dispatcher import Dispatcher
from fencepost_workers.planner import Planner
from fencepost_workers.reconciler import Reconciler
from fencepost_workers.role import Message, Role
from fencepost_workers.step import Step
from fencepost_workers.sweep import Sweeper
from fencepost_workers.worker import Worker

log = logging.getLogger(__name__)

SERVED_AGAIN_S = 0.5  # between two looks whether servers that were away are back
GC_AFTER = 20_000
"""Objects between two collections: a batch of a hundred makes thousands, and hardly any in a ring."""
_ROLES: dict[Queue, type[Role]] = {
    Queue.PLANNER: Planner,
    Queue.DISPATCHER: Dispatcher,
    Queue.RECONCILER: Reconciler,
    Queue.COMPENSATOR: Compensator,
}


class Process:
    """The worker of this process, made when it is first asked for, so that forks inherit nothing."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._worker: Worker | None = None
        self._sweeper: Sweeper | None = None
        self._steps: dict[Queue, Step] = {}
        self._stopped = False
        self._drained_at: float | None = None

    def step(self, queue: Queue) -> Step:
        """The pipeline of a queue. Raises UsageError or Unreachable where there can be none."""
        with self._lock:
            if self._stopped:
                raise Unreachable("this process has stopped")
            if self._worker is None:
                self._worker = Worker(load_settings(), queue)
                broker.heard.append(self._worker.hearing.took)
            if queue not in self._steps:
                self._worker.hearing.also(str(queue))
                step = self._steps[queue] = Step(self._worker, _ROLES[queue](self._worker))
                self._worker.cut_off.append(lambda: step.cut_off)
                if queue is Queue.RECONCILER:
                    settings = self._worker.settings
                    republish = timedelta(seconds=settings.republish_s)
                    ttl = timedelta(seconds=settings.worker_ttl_s)
                    self._sweeper = Sweeper(
                        self._worker.pool, self._worker.ledger, settings.sweep_s, republish, ttl
                    )
            return self._steps[queue]

    def handle(self, queue: Queue, items: list[list[Any]]) -> None:
        """Claim and start what a message names: tenant, subject and generation of each."""
        messages: list[Message] = [(str(t), UUID(s), int(g)) for t, s, g in items]
        step = self.step(queue)
        if self._worker is not None:
            self._worker.hearing.took()
            self._await_servers(step, self._worker)
        step.handle(messages)

    def _await_servers(self, step: Step, worker: Worker) -> None:
        """After an outage: hold what is in hand, and leave the rest of the queue to those who reach both
        servers. The row of a message that waited here too long is published again.
        """
        while step.cut_off and not worker.slots.draining:
            if worker.served():
                step.cut_off = False
            else:
                worker.pause(SERVED_AGAIN_S)

    def ready(self) -> None:
        """The consumer has begun: from now on a queue that it leaves untouched speaks against it."""
        if self._worker is not None:
            self._worker.hearing.ready()

    def drain(self) -> None:
        """Claim nothing more. For signal handlers: takes no lock that the main thread ever holds."""
        if self._drained_at is None:
            self._drained_at = time.monotonic()
        if self._worker is not None:
            self._worker.drain()

    def stop(self) -> None:
        """Finish what is in flight, for as long after the drain began as it may take, and end."""
        with self._lock:
            self._stopped = True
            if self._sweeper is not None:
                self._sweeper.stop()
            if self._worker is not None:
                since = time.monotonic() - (self._drained_at or time.monotonic())
                self._worker.stop(max(0.0, self._worker.settings.drain_s - since))


PROCESS = Process()


def _settle() -> None:
    """What has been imported and made by now stays: spare the collector from walking through it for good."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_AFTER, 20, 20)


@signals.worker_ready.connect
def _ready(sender: Any, **_: object) -> None:
    """Stamp this process before its first task, so that it is seen waiting; wrong settings end it here."""
    try:
        for queue in sender.app.amqp.queues.consume_from:
            PROCESS.step(Queue(queue))
        _settle()
        PROCESS.ready()
    except FencepostError as error:
        log.error("%s", error)  # noqa: TRY400 - a sentence for whoever set it up
        raise SystemExit(error.exit_code) from None


@signals.worker_shutting_down.connect
def _drain(**_: object) -> None:
    PROCESS.drain()


@signals.worker_shutdown.connect
def _stop(**_: object) -> None:
    PROCESS.stop()
