"""The door between the broker and Celery: no entry of a queue, whatever it is, ends a process.

Celery takes what it finds in a list for a message of its own, and what is none raises through its event loop
and ends the worker. Here an entry is judged before Celery sees it; what is no list of hints is dropped, and
each kind of it logged once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from queue import Empty
from typing import TYPE_CHECKING, Any

from kombu.transport import redis as kombu_redis
from redis import RedisError

from fencepost.leases import rotating
from fencepost.states import Queue
from fencepost_workers.hints import Flaw, read

if TYPE_CHECKING:

    class _Channel:
        connection: Any

        def _connparams(self, asynchronous: bool = False) -> dict[str, Any]: ...
        def _brpop_read(self, **options: Any) -> Any: ...

    class _Transport:
        connection_errors: tuple[type[Exception], ...]
        client: Any

        def __init__(self, *args: Any, **options: Any) -> None: ...
        def _deliver(self, message: Any, queue: str) -> None: ...

else:
    _Channel, _Transport = kombu_redis.Channel, kombu_redis.Transport

log = logging.getLogger(__name__)

_QUEUES = frozenset(map(str, Queue))
_SHOWN = 200  # characters of what was dropped
_logged: set[tuple[str, str]] = set()
heard: list[Callable[[], None]] = []
"""Called for every entry that is dropped: whoever drops hears its queue."""


def _drop(queue: str, reason: str, entry: object) -> None:
    for hear in heard:
        hear()
    if (queue, reason) not in _logged:
        _logged.add((queue, reason))
        shown = ascii(entry)[:_SHOWN]
        log.warning("dropped an entry of %s; others like it go unsaid: %s: %s", queue, reason, shown)


class Rotating(_Channel):
    """A channel whose connections log in as the file of their address says when they begin."""

    def _connparams(self, asynchronous: bool = False) -> dict[str, Any]:
        address = self.connection.client.transport_options.get("address", "")
        return rotating(address, super()._connparams(asynchronous))


class Channel(Rotating):
    """A channel that drops what cannot even be parsed."""

    def _brpop_read(self, **options: Any) -> Any:
        transport = self.connection
        transport.parsed = False
        try:
            return super()._brpop_read(**options)
        except (Empty, OSError, RedisError):
            raise
        # A stranger's bytes break a parser in any way they like. The reply has been read to its end by then,
        # so that the connection is as good as after any other.
        except Exception as error:
            if transport.parsed:
                raise
            _drop("a queue", "it cannot be parsed", error)
            return True


class Transport(_Transport):
    """Kombu's transport for Redis; from our queues it delivers only what `hints.read` makes of an entry."""

    Channel = Channel
    parsed = False
    """Whether the entry now being read was parsed."""

    def _deliver(self, message: Any, queue: str) -> None:
        self.parsed = True
        if queue not in _QUEUES:
            self._deliver_broadcast(message, queue)
            return
        found = read(message, queue)
        if isinstance(found, Flaw):
            _drop(queue, found.reason, message)
        else:
            super()._deliver(found, queue)

    def _deliver_broadcast(self, message: Any, queue: str) -> None:
        """One publication reaches every worker at once; it is not acknowledged, so nothing is left of it."""
        try:
            super()._deliver(message, queue)
        except (OSError, RedisError):
            raise
        except Exception as error:  # noqa: BLE001 - whatever a stranger's message breaks
            _drop("a broadcast", f"it breaks its reader: {type(error).__name__}", message)
