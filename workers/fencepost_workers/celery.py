"""The Celery application: four queues, one task each, and settings that leave no retry to others (R4).

Early acks: Postgres republishes what is lost; late acks would only add duplicates and an uncounted retry
owner. The hostile mode (`FENCEPOST_HOSTILE`, for tests) turns on exactly what this configuration avoids.

Importing this costs little: Flower does too. What a worker needs beyond it is in `process.py`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn

from celery import Celery, Task, signals
from celery.worker.control import Panel
from kombu import Exchange
from kombu import Queue as BrokerQueue
from kombu.transport import TRANSPORT_ALIASES

from fencepost.settings import Settings, load_settings
from fencepost.states import Queue

if TYPE_CHECKING:
    _Task = Task[Any, Any]
else:
    _Task = Task  # generic in its type stubs only


# Anything may lie in a queue; see there. By alias and not by setting, so that the broker's address keeps its
# scheme: Flower goes by it.
TRANSPORT_ALIASES.update(dict.fromkeys(("redis", "rediss"), "fencepost_workers.broker:Transport"))


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
        "visibility_timeout": settings.visibility_timeout_s,
        "unacked_restore_interval": 1 if settings.hostile else 5,
        "unacked_restore_throttle": 1,
        "unacked_mutex_expire": 30,
        "unacked_restore_limit": 200,
        # Must exceed the 1 s of a blocking pop; None would hang for ever.
        "socket_timeout": settings.broker_timeout_s,
        "socket_connect_timeout": settings.broker_timeout_s / 2,
        "socket_keepalive": True,
        "health_check_interval": settings.broker_timeout_s / 2,
        "max_connections": 64,
        "max_retries": 0,
        "interval_start": 0,
        "interval_step": 0,
        "interval_max": 0,
        "client_name": "fencepost",
        "address": settings.redis_url,
    }
    return {
        "broker_url": settings.redis_url,
        # Left to itself kombu trusts any certificate, and sends the password. The address may say otherwise.
        "broker_use_ssl": {"ssl_cert_reqs": "required"} if settings.redis_url.startswith("rediss:") else None,
        "broker_transport_options": transport,
        "broker_connection_retry": True,
        "broker_connection_retry_on_startup": True,
        "broker_connection_max_retries": None,
        # A Redis that refuses (read-only, full, a key of another type) is asked anew; it ends no process.
        "broker_channel_error_retry": True,
        "broker_pool_limit": 32,
        "task_acks_late": settings.hostile,
        "task_reject_on_worker_lost": False,
        "task_acks_on_failure_or_timeout": True,
        "worker_cancel_long_running_tasks_on_connection_loss": False,
        "worker_prefetch_multiplier": 1,
        "worker_enable_remote_control": True,
        # A task is a list of hints: whoever watches runs reads the ledger. Flower shows workers and queues.
        "worker_send_task_events": False,
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


def _register(queue: Queue) -> None:
    @app.task(name=f"fencepost.{queue}")
    def run(items: list[list[Any]]) -> None:
        from fencepost_workers.process import PROCESS

        PROCESS.handle(queue, items)


for _queue in Queue:
    _register(_queue)


# What a broadcast may change in a worker; asking (ping, inspect) stays. Anybody who reaches the broker can
# send one, and a forged message costs time only (R1).
_ORDERS = (
    "add_consumer",
    "autoscale",
    "cancel_consumer",
    "election",
    "enable_events",
    "pool_grow",
    "pool_restart",
    "pool_shrink",
    "rate_limit",
    "revoke",
    "revoke_by_stamped_headers",
    "shutdown",
    "terminate",
    "time_limit",
)


@signals.worker_init.connect
def _take_no_orders(**_: object) -> None:
    for name in _ORDERS:
        Panel.data.pop(name, None)


@signals.worker_init.connect
def _load(sender: Any, **_: object) -> None:
    """A worker's own part hears the signals that follow. The intake is none."""
    if sender.app is not app:
        return
    import_module("fencepost_workers.process")
