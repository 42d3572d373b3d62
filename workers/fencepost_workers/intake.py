"""`python -m fencepost_workers intake [NAME]`: takes in runs that any Celery client sends, without Fencepost.

    Celery(broker=…).send_task("fencepost.intake", queue="intake", kwargs={"run_key": "o-1", "version": 1,
        "planner": "fulfil", "input": {…}, "deadline_s": 300, "budget": {…}, "on_stop": "compensate"})

The one exception to R1: such a message is the only copy there is. So it is acknowledged once its run is
committed or, where it can be none, once it lies in `fencepost intake` for a person. Until then, with Postgres
away or this process killed, it stays with the broker and is delivered again; its run key makes that one run.
What a killed intake held is delivered again 60 s after it was taken, and up to 5 s more for the next sweep of
any intake of that Redis database (another 5 s if one was killed in its sweep).
A Redis that restarts without persistence, or is flushed, loses what is queued: where that matters, use
`fencepost.enqueue_run` or `Client`.

Tenant and principal are this process's settings: whoever reaches the broker may start runs in their name, and
what those may do is the policy's word. The login is a producer's.
"""

from __future__ import annotations

import functools
import logging
import random
import sys
import threading
import warnings
from collections.abc import Callable
from contextlib import closing
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, Protocol

import psycopg
from celery import Celery, signals
from celery.exceptions import SecurityWarning
from celery.utils.nodenames import default_nodename, host_format
from celery.worker.consumer import Consumer
from kombu import Exchange
from kombu import Queue as BrokerQueue
from kombu.transport import TRANSPORT_ALIASES

from fencepost.client import Client
from fencepost.errors import Conflict, FencepostError, UsageError
from fencepost.health import HealthFile
from fencepost.ledger import refusals
from fencepost.ledger.connect import Pool, translate
from fencepost.settings import Settings, load_settings, redact
from fencepost.states import Queue
from fencepost_workers.celery import NoRetryTask, configure
from fencepost_workers.intake_channel import UNACKED, entry
from fencepost_workers.intake_entry import Binding, Cut, Judged, judged

if TYPE_CHECKING:

    class _Consumer:
        app: Any
        pool: Any
        connection_errors: tuple[type[Exception], ...]

        def register_with_event_loop(self, hub: Any) -> None: ...

        def call_soon(self, p: Callable[..., object], *args: object) -> object: ...

else:
    _Consumer = Consumer

log = logging.getLogger(__name__)

NAME: Final = "fencepost intake"
AT_ONCE: Final = 8
"""Messages in hand at once, each with a thread and a session of Postgres; the broker keeps the others."""
_VISIBILITY_S: Final = 60
"""After which what is marked is delivered again. Short, since a message takes a fraction of a second and its
run key makes two deliveries one run. A longer outage of Postgres only has messages delivered again."""
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 2.0
_HEALTH_EVERY_S: Final = 1.0
_BUGS: Final = 5  # failures of one message that nothing explains, before it goes to a person
# Classes of Postgres errors that the same message would meet again: data, constraints, limits of the program.
_ITS_OWN_FAULT: Final = ("22", "23", "54")
_MAY = (
    "SELECT has_function_privilege('fencepost.refuse_intake(uuid, text, text, text, text, text)', 'EXECUTE')"
)


class Hand:
    """What this process has taken from the queue and not yet answered for; each message once.

    Where the broker delivers one again while it is in hand (a lost connection, a short visibility timeout)
    it is carried once, and every delivery answered. So an outage of Postgres, however long, fills no memory.
    """

    def __init__(self, binding: Binding, client: Client, pool: Pool) -> None:
        self.binding = binding
        self._stopping = threading.Event()
        self._client, self._pool = client, pool
        self._lock = threading.Lock()
        self._held: dict[bytes, list[Answerable]] = {}
        self._away = False

    def stop(self) -> None:
        """Finish what has a session of Postgres, and let the others be given back. For signal handlers."""
        self._stopping.set()
        for pool in (self._client, self._pool):  # elsewhere: whoever is interrupted may hold its lock
            threading.Thread(target=pool.close, name="stop", daemon=True).start()

    def admit(self, delivery: Answerable, item: bytes, cut: Cut | None = None) -> Callable[[], None] | None:
        """What is to be done for this delivery, in a thread; None where that is under way already."""
        # An entry holds the tag it was sent with, which stays with it; of one that is cut we keep our own.
        key = sha256(cut.tag.encode() + item if cut else item).digest()
        with self._lock:
            known = self._held.setdefault(key, [])
            known.append(delivery)
        return functools.partial(self._carry, key, item, cut) if len(known) == 1 else None

    def _carry(self, key: bytes, item: bytes, cut: Cut | None) -> None:
        done = False
        try:
            done = self._settled(judged(item, self.binding, cut))
        finally:
            with self._lock:
                deliveries = self._held.pop(key)
            for delivery in deliveries:
                delivery.answer(done=done)

    def _settled(self, asked: Judged) -> bool:
        """Whether it was committed, as a run or a refusal. False: this process stops before it could be."""
        pause, bugs, error = _FIRST_PAUSE_S, 0, asked.error
        while not self._stopping.is_set():
            try:
                error = error or self._enqueued(asked)
                if error:
                    self._refuse(asked, error)
            except (FencepostError, psycopg.Error) as failure:
                if not error and _is_its_own(failure):
                    error = str(failure)
                    continue
                self._hold(failure)
            except Exception as failure:
                log.exception("message %s of %s failed", asked.id, self.binding.queue)
                bugs += 1
                if not error and bugs >= _BUGS:
                    error = f"a bug in fencepost ({type(failure).__name__}: {failure})"
            else:
                self._go_on()
                return True
            self._stopping.wait(pause * (0.5 + random.random()))
            pause = min(2 * pause, _LONGEST_PAUSE_S)
        return False

    def _enqueued(self, asked: Judged) -> str:
        """Why it became no run; empty if it did, now or before."""
        assert asked.request is not None
        (outcome,) = self._client.enqueue_many([asked.request])
        return str(outcome) if isinstance(outcome, Conflict) else ""

    def _refuse(self, asked: Judged, error: str) -> None:
        bound = self.binding
        whose = {"queue": bound.queue, "tenant": bound.tenant, "principal": bound.principal}
        with self._pool.connection() as connection:
            refusals.refuse(connection, asked.id, **whose, message=asked.text, error=error)
        log.warning("refused message %s of %s: %s", asked.id, bound.queue, error)

    def _hold(self, failure: Exception) -> None:
        with self._lock:
            first, self._away = not self._away, True
        if first and not self._stopping.is_set():
            log.warning("messages of %s are held: %s", self.binding.queue, redact(str(failure)))

    def _go_on(self) -> None:
        if self._away:
            self._away = False
            log.warning("messages of %s are taken in again", self.binding.queue)


def _is_its_own(failure: Exception) -> bool:
    """Whether the ledger refused this message and would again; if not, it is Postgres or the login."""
    cause = failure.__cause__
    state = cause.sqlstate or "" if isinstance(cause, psycopg.Error) else ""
    return state == "FP422" or state.startswith(_ITS_OWN_FAULT)


class Answerable(Protocol):
    """A delivery of a message, to be answered once."""

    def answer(self, *, done: bool) -> None:
        """Whether what it asks for is committed; if not, it is to be delivered again."""


class Delivery:
    """One of the broker's, answered on the loop that owns its connection."""

    def __init__(self, message: Any, consumer: IntakeConsumer) -> None:
        self._message, self._consumer = message, consumer

    def answer(self, *, done: bool) -> None:
        """Acknowledge it, or give it back to the queue. What cannot be answered is delivered again."""
        self._consumer.call_soon(self._answer, done)

    def _answer(self, done: bool) -> None:
        try:
            if done:
                self._message.ack()
            else:
                self._message.requeue()
        # The connection it came by may be gone, in any of kombu's ways; an error here would end the process.
        except Exception as error:  # noqa: BLE001
            log.warning("message %s is delivered again: %r", self._message.delivery_tag, error)


class IntakeConsumer(_Consumer):
    """Celery's consumer, but that all there is in the queue goes to `Hand`: it knows no task."""

    def create_task_handler(self, **_: object) -> Callable[[Any], None]:
        """What is called with each message, on the event loop."""
        return self._on_message

    def register_with_event_loop(self, hub: Any) -> None:
        """Also say once a second that the loop goes round, to whoever asks for this process's health."""
        super().register_with_event_loop(hub)
        hub.timer.call_repeatedly(_HEALTH_EVERY_S, HealthFile(load_settings().health_file).touch)

    def _on_message(self, message: Any) -> None:
        hand: Hand = self.app.hand
        if (todo := hand.admit(Delivery(message, self), *entry(message))) is not None:
            self.pool.apply_async(todo, callback=_nothing)


def _nothing(_answer: object) -> None:
    pass


class Intake(Celery):
    """The Celery application of one intake process: one queue, answered late."""

    hand: Hand


def marking(settings: Settings) -> dict[str, Any]:
    """The transport's options by which an intake marks what it holds, and when that is delivered again."""
    return {
        "visibility_timeout": min(_VISIBILITY_S, settings.visibility_timeout_s),
        "unacked_key": UNACKED,
        "unacked_index_key": f"{UNACKED}_index",
        "unacked_mutex_key": f"{UNACKED}_mutex",
        "unacked_mutex_expire": 5,  # two sweeps at once do no harm
    }


def application(settings: Settings, hand: Hand) -> Intake:
    """The application that fills this hand."""
    name = hand.binding.queue
    TRANSPORT_ALIASES.update(dict.fromkeys(("redis", "rediss"), "fencepost_workers.intake_channel:Transport"))
    made = Intake("fencepost.intake", task_cls=NoRetryTask)
    made.hand = hand
    made.conf.update(configure(settings))
    made.conf.broker_transport_options.update(marking(settings))
    made.conf.update(
        task_acks_late=True,
        task_queues=[BrokerQueue(name, Exchange(name, type="direct"), routing_key=name)],
        task_default_queue=name,
    )
    return made


def binding_of(settings: Settings) -> Binding:
    """The binding these settings say. UsageError, naming what to set."""
    settings.need("dsn", "redis_url", "intake_tenant", "intake_principal")
    if settings.intake_queue in set(map(str, Queue)):
        raise UsageError(f"FENCEPOST_INTAKE_QUEUE: {settings.intake_queue} is a queue of the fleet's own")
    return Binding(settings.intake_queue, settings.intake_tenant, settings.intake_principal)


def check_login(pool: Pool, dsn: str) -> None:
    """Unreachable without Postgres, NotFound without a ledger, UsageError for no producer's login."""
    with pool.connection() as session:
        try:
            row = session.execute(_MAY).fetchone()
        except psycopg.Error as error:
            raise translate(error, dsn) from error
    if row is None or not row[0]:
        raise UsageError("this login may take in no runs: use one that is a member of fencepost_producer")


def serve(name: str) -> int:
    """Take in runs until a signal, which gives back what is not committed; the exit code. FencepostError if
    it cannot start.
    """
    settings = load_settings()
    binding = binding_of(settings)
    warnings.filterwarnings("ignore", category=SecurityWarning)
    logging.getLogger("psycopg.pool").setLevel(logging.ERROR)  # that Postgres is away is said once, by us
    with (
        closing(Pool(settings.dsn, NAME, 1)) as pool,
        Client(settings.dsn, settings.redis_url, pool_size=AT_ONCE) as client,
    ):
        check_login(pool, settings.dsn)  # and keeps its session, by whose name this process is counted
        hand = Hand(binding, client, pool)

        @signals.worker_shutting_down.connect(weak=False)
        def _stop(**_: object) -> None:
            hand.stop()

        worker = application(settings, hand).Worker(
            hostname=host_format(default_nodename(f"{name}@%h")),
            queues=[binding.queue],
            pool="threads",
            concurrency=AT_ONCE,
            consumer_cls=f"{__name__}:IntakeConsumer",
            without_gossip=True,
            without_mingle=True,
            loglevel="WARNING",
            quiet=True,
        )
        worker.start()
    return int(worker.exitcode or 0)


if __name__ == "__main__":
    from fencepost_workers.__main__ import end, main

    end(main(["intake", *sys.argv[1:]]))
