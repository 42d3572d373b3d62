"""The Celery application: four queues, one task each, and settings that leave no retry to others (R4).

Early acks: Postgres republishes what is lost; late acks would only add duplicates and an uncounted retry
owner. The hostile mode (`FENCEPOST_HOSTILE`, for tests) turns on exactly what this configuration avoids.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any, NoReturn
from uuid import UUID

from celery import Celery, Task, signals
from kombu import Exchange
from kombu import Queue as BrokerQueue

from fencepost.errors import FencepostError, Unreachable
from fencepost.settings import Settings, load_settings
from fencepost.states import Queue
from fencepost_workers.compensator import Compensator
from fencepost_workers.dispatcher import Dispatcher
from fencepost_workers.planner import Planner
from fencepost_workers.reconciler import Reconciler
from fencepost_workers.role import Message, Role
from fencepost_workers.step import Step
from fencepost_workers.sweep import Sweeper
from fencepost_workers.worker import Worker

log = logging.getLogger(__name__)

DRAIN_S = 30.0
_ROLES: dict[Queue, type[Role]] = {
    Queue.PLANNER: Planner,
    Queue.DISPATCHER: Dispatcher,
    Queue.RECONCILER: Reconciler,
    Queue.COMPENSATOR: Compensator,
}


if TYPE_CHECKING:
    _Task = Task[Any, Any]
else:
    _Task = Task  # generic in its type stubs only


class NoRetryTask(_Task):
    """A task that cannot be retried by Celery."""

    max_retries = 0
    autoretry_for = ()
    ignore_result = True

    def retry(self, *args: object, **kwargs: object) -> NoReturn:
        """Refused: retries have one owner, the ledger's timers."""
        raise NotImplementedError("retries have one owner: the ledger's timers")


def configure(settings: Settings) -> dict[str, Any]:
    """The settings of every process that speaks to the broker."""
    transport = {
        "visibility_timeout": 2 if settings.hostile else 600,
        "unacked_restore_interval": 1 if settings.hostile else 5,
        "unacked_restore_throttle": 1,
        "unacked_mutex_expire": 30,
        "unacked_restore_limit": 200,
        "socket_timeout": 10,  # must exceed the 1 s of a blocking pop; None would hang for ever
        "socket_connect_timeout": 5,
        "socket_keepalive": True,
        "health_check_interval": 5,
        "max_connections": 64,
        "max_retries": 0,
        "interval_start": 0,
        "interval_step": 0,
        "interval_max": 0,
        "client_name": "fencepost",
    }
    return {
        "broker_url": settings.redis_url,
        "broker_transport_options": transport,
        "broker_connection_retry": True,
        "broker_connection_retry_on_startup": True,
        "broker_connection_max_retries": None,
        "broker_pool_limit": 32,
        "task_acks_late": settings.hostile,
        "task_reject_on_worker_lost": False,
        "task_acks_on_failure_or_timeout": True,
        "worker_cancel_long_running_tasks_on_connection_loss": False,
        "worker_prefetch_multiplier": 1,
        "worker_enable_remote_control": True,
        "worker_send_task_events": True,
        "worker_hijack_root_logger": False,
        "worker_redirect_stdouts": False,
        "task_publish_retry": False,
        "task_ignore_result": True,
        "task_store_errors_even_if_ignored": False,
        "task_serializer": "json",
        "accept_content": ["json"],
        "task_create_missing_queues": False,
        "task_queues": [BrokerQueue(q, Exchange(q, type="direct"), routing_key=q) for q in map(str, Queue)],
        "task_default_queue": str(Queue.PLANNER),
        "enable_utc": True,
        "timezone": "UTC",
    }


app = Celery("fencepost", task_cls=NoRetryTask)
app.conf.update(configure(load_settings()))


class Process:
    """The worker of this process, made when it is first asked for, so that forks inherit nothing."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._worker: Worker | None = None
        self._sweeper: Sweeper | None = None
        self._steps: dict[Queue, Step] = {}
        self._stopped = False

    def step(self, queue: Queue) -> Step:
        """The pipeline of a queue. Raises UsageError or Unreachable where there can be none."""
        with self._lock:
            if self._stopped:
                raise Unreachable("this process has stopped")
            if self._worker is None:
                self._worker = Worker(load_settings(), queue)
            if queue not in self._steps:
                self._steps[queue] = Step(self._worker, _ROLES[queue](self._worker))
                if queue is Queue.RECONCILER:
                    self._sweeper = Sweeper(self._worker.pool, self._worker.ledger)
            return self._steps[queue]

    def drain(self) -> None:
        """Claim nothing more. For signal handlers: takes no lock that the main thread ever holds."""
        if self._worker is not None:
            self._worker.drain()

    def stop(self) -> None:
        """Finish what is in flight, and end."""
        with self._lock:
            self._stopped = True
            if self._sweeper is not None:
                self._sweeper.stop()
            if self._worker is not None:
                self._worker.stop(DRAIN_S)


PROCESS = Process()


def _handle(queue: Queue, items: list[list[Any]]) -> None:
    messages: list[Message] = [(str(t), UUID(s), int(g)) for t, s, g in items]
    PROCESS.step(queue).handle(messages)


def _register(queue: Queue) -> None:
    @app.task(name=f"fencepost.{queue}")
    def run(items: list[list[Any]]) -> None:
        _handle(queue, items)


for _queue in Queue:
    _register(_queue)


@signals.worker_ready.connect
def _ready(sender: Any, **_: object) -> None:
    """Stamp this process before its first task, so that it is seen waiting; wrong settings end it here."""
    try:
        for queue in sender.app.amqp.queues.consume_from:
            PROCESS.step(Queue(queue))
    except FencepostError as error:
        log.error("%s", error)  # noqa: TRY400 - a sentence for whoever set it up
        raise SystemExit(error.exit_code) from None


@signals.worker_shutting_down.connect
def _drain(**_: object) -> None:
    PROCESS.drain()


@signals.worker_shutdown.connect
def _stop(**_: object) -> None:
    PROCESS.stop()
