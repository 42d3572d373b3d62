"""
The only code that talks to the broker.

A message is a list of [tenant, subject, generation]: a hint, never authority or payload (R1). The broker is
asked once for each message: Celery, kombu and redis-py do not retry (R4), and nothing waits longer than a
socket timeout.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from celery import Celery
from kombu import Connection, Producer, Queue
from kombu.exceptions import ChannelError, OperationalError
from kombu.transport import redis as kombu_redis
from redis import ResponseError

from fencepost.errors import Unreachable
from fencepost.leases import rotating

QUEUES: Final = ("planner", "dispatcher", "reconciler", "compensator")
SOCKET_TIMEOUT_S: Final = 2.0  # a pass fails within three seconds, whatever the broker does

# "max_retries" and the intervals are kombu's own, for connections.
_TRANSPORT: Final = {
    "socket_timeout": SOCKET_TIMEOUT_S,
    "socket_connect_timeout": SOCKET_TIMEOUT_S,
    "socket_keepalive": True,
    "max_retries": 0,
    "interval_start": 0,
    "interval_step": 0,
    "interval_max": 0,
    "client_name": "fencepost-relay",
}

Item = tuple[str, str, int]
"""Tenant, subject, generation."""


class RefusedError(Unreachable):
    """The broker is there and took nothing: it is read-only, full, or the queue's key is no list."""


if TYPE_CHECKING:

    class _Channel:
        connection: Any

        def _connparams(self, asynchronous: bool = False) -> dict[str, Any]: ...

    class _RedisTransport:
        pass

else:
    _Channel, _RedisTransport = kombu_redis.Channel, kombu_redis.Transport


class _Rotating(_Channel):
    """Its connections log in as the file of their address says when they begin."""

    def _connparams(self, asynchronous: bool = False) -> dict[str, Any]:
        address = self.connection.client.transport_options.get("address", "")
        return rotating(address, super()._connparams(asynchronous))


class _Transport(_RedisTransport):
    Channel = _Rotating


class Publishes(Protocol):
    """Who takes messages to their queues."""

    def lengths(self) -> dict[str, int]:
        """Messages waiting in each queue. Raises Unreachable."""
        ...

    def publish(self, queue: str, items: Sequence[Item], traceparent: str | None = None) -> None:
        """Send one message; see `Publisher.publish`."""
        ...

    def close(self) -> None:
        """Let go of the broker. Never raises."""
        ...


class Publisher:
    """One connection to the broker, opened when first used and again after a failure. For one thread."""

    def __init__(self, url: str) -> None:
        self._app = Celery("fencepost.relay", broker=url, set_as_current=False)
        self._app.conf.update(
            broker_transport_options={**_TRANSPORT, "address": url},
            # Left to itself kombu trusts any certificate, and sends the password; an address may say so.
            broker_use_ssl={"ssl_cert_reqs": "required"} if url.startswith("rediss:") else None,
            task_create_missing_queues=False,
            task_default_queue=QUEUES[0],  # never used, but Celery looks it up
            task_ignore_result=True,
            task_publish_retry=False,
            task_queues=[Queue(name) for name in QUEUES],
            task_serializer="json",
        )
        self._connection: Connection | None = None
        self._producer: Producer | None = None

    def lengths(self) -> dict[str, int]:
        """Messages waiting in each queue. Raises Unreachable."""
        with self._broker() as producer:
            return {queue: _length(producer.channel, queue) for queue in QUEUES}

    def publish(self, queue: str, items: Sequence[Item], traceparent: str | None = None) -> None:
        """
        Send one message with these items to `queue`; its header `traceparent` says to which tree of runs they
        belong, if it is one. No worker reads that: it knows what it does from the row (R1). Raises
        Unreachable, and then it may have been sent, unless it is RefusedError; LookupError
        for a queue nobody declares. Any other error is the items' own; what comes next has a new connection.
        """
        if queue not in QUEUES:
            raise LookupError(f"no worker of this version listens to a queue {queue!r}")
        with self._broker() as producer:
            self._app.send_task(
                f"fencepost.{queue}",
                args=[[list(item) for item in items]],
                queue=queue,
                producer=producer,
                declare=[],  # queues belong to those who consume; the default exchange needs no binding
                ignore_result=True,
                headers={} if traceparent is None else {"traceparent": traceparent},
            )

    def close(self) -> None:
        """Let go of the broker; the next call connects anew. Never raises."""
        connection, self._connection, self._producer = self._connection, None, None
        if connection is not None:
            connection.collect(SOCKET_TIMEOUT_S)

    @contextmanager
    def _broker(self) -> Iterator[Producer]:
        try:
            yield self._open()
        except _errors(self._connection) as error:
            self.close()
            if _refused(error):
                raise RefusedError(f"the broker refuses: {error}") from error
            raise Unreachable(f"the broker cannot be reached: {error}") from error
        except Exception:
            self.close()
            raise

    def _open(self) -> Producer:
        if self._producer is None:
            self._connection = self._app.connection_for_write(transport=_Transport)
            self._producer = self._app.amqp.Producer(self._connection, auto_declare=False)
        return self._producer


def _refused(error: BaseException | None) -> bool:
    """Whether the server's answer was a no: then nothing was sent."""
    while error is not None and not isinstance(error, ResponseError):
        error = error.__cause__ or error.__context__
    return error is not None


def _errors(connection: Connection | None) -> tuple[type[Exception], ...]:
    theirs = () if connection is None else connection.connection_errors + connection.channel_errors
    return (OperationalError, OSError, *cast("tuple[type[Exception], ...]", theirs))


def _length(channel: Any, queue: str) -> int:
    try:
        size: int = channel.queue_declare(queue=queue, passive=True).message_count
    except ChannelError:
        return 0  # an empty list is no list to Redis
    return size
