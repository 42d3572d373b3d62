"""A simulated process: the fleet's own pipeline and relay, on virtual parts, one step at a time.

What is real: the steps, roles, decisions, the ledger and its guards in Postgres, the relay's pass. What is
not: threads, sockets and signals, which the chaos command is for. A process that is dead does nothing any
more, whatever its code still tries while it unwinds; that is how a SIGKILL is meant here.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, ParamSpec, TypeVar
from urllib.parse import urlsplit
from uuid import UUID

from fencepost.app import App
from fencepost.clock import boottime, token
from fencepost.commands import Answer, Claim, Command
from fencepost.decide.fold import Known
from fencepost.errors import FaultInjected
from fencepost.leases import Want
from fencepost.ledger.apply import Ledger
from fencepost.outbound import Outbound, OutboundRefused
from fencepost.outcomes import Answered, Lost, NotSent, Sent
from fencepost.settings import Settings
from fencepost.states import Queue
from fencepost.testing import fault
from fencepost.tools import Response, StoredRequest
from fencepost_ops.drill.baton import Killed
from fencepost_ops.drill.ledger import Sessions
from fencepost_ops.drill.redis import VirtualRedis
from fencepost_ops.drill.services import Services, Wire
from fencepost_ops.drill.virtual import VirtualClock
from fencepost_workers.compensator import Compensator
from fencepost_workers.dispatcher import Dispatcher
from fencepost_workers.models.providers import Providers
from fencepost_workers.patience import Patience
from fencepost_workers.planner import Planner
from fencepost_workers.reconciler import Reconciler
from fencepost_workers.role import Message, Role
from fencepost_workers.signing import rehearsing
from fencepost_workers.slots import Slots
from fencepost_workers.step import Step
from fencepost_workers.tools.http import HttpEngine, Kind

P = ParamSpec("P")
T = TypeVar("T")

ROLES: Mapping[Queue, type[Role]] = {
    Queue.PLANNER: Planner,
    Queue.DISPATCHER: Dispatcher,
    Queue.RECONCILER: Reconciler,
    Queue.COMPENSATOR: Compensator,
}
SLOTS = 100
_PATIENCE_S = 60.0
_NOBODY = UUID(int=0)


@dataclass(frozen=True, slots=True)
class Network:
    """What the network does with one request: it lands so much later, or never (None).

    `answers`: a gateway answers with this status meanwhile, in the service's place.
    """

    lands_in: float | None
    answers: int | None = None


class World:
    """What all processes of a history share, and how long one of them is made to wait in the network."""

    def __init__(
        self,
        app: App,
        settings: Settings,
        clock: VirtualClock,
        redis: VirtualRedis,
        services: Services,
        sessions: Sessions,
        wait: Callable[[datetime], None],
    ) -> None:
        self.app = app
        self.settings = settings
        self.clock = clock
        self.redis = redis
        self.services = services
        self.sessions = sessions
        self.wait = wait


class Host:
    """One process: whether it lives, and under which token."""

    def __init__(self, role: str, number: int) -> None:
        self.role = role
        self.name = f"{role}/{number}"
        self.token = token()
        self.dead = False
        self.ahead: dict[UUID, timedelta] = {}
        """How far the ledger's clock was ahead when this process claimed a call, by the call."""
        self.about: UUID | None = None
        """The call of the request it sends, or has sent last."""
        self.silent = False
        """Whether its pulse stamps no more."""
        self.network: Network | None = None
        """What befalls its next request."""

    def check(self) -> None:
        """Raises `Killed` if it is dead."""
        if self.dead:
            raise Killed


class _Inline(Executor):
    """Runs a function at once, where it is handed over."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - it belongs to whoever waits
            future.set_exception(error)
        return future


class _Nobody:
    @contextmanager
    def named(self, tenant: str, subject: UUID, generation: int) -> Iterator[None]:  # noqa: ARG002 - a port
        yield


class _Pulse:
    suspects = _Nobody()

    def __init__(self, host: Host) -> None:
        self._host = host

    def token(self) -> str:
        return self._host.token

    def trusted(self, token: str) -> None:
        """Nothing to remember."""

    def suspect(self, token: str) -> None:
        """Nothing to remember: stamps are made by the history."""


class _Leases:
    def __init__(self, host: Host, redis: VirtualRedis) -> None:
        self._host = host
        self._redis = redis

    def grant(self, wants: Sequence[Want]) -> list[int | None]:
        self._host.check()
        return self._redis.grant(wants)

    def release(self, holds: Sequence[tuple[str, str]]) -> None:
        if not self._host.dead:
            self._redis.release(holds)


class _Ledger(Ledger):
    """The write path, which notes for each call how the ledger's clock stood when it was claimed."""

    def __init__(self, host: Host, world: World, limit: int) -> None:
        ttl = timedelta(seconds=world.settings.worker_ttl_s)
        super().__init__(world.sessions, known(world.app, limit), worker_ttl=ttl)
        self._host = host
        self._clock = world.clock

    def apply(self, commands: Sequence[Command]) -> list[Answer]:
        answers = super().apply(commands)
        claimed = [command.subject for command in commands if isinstance(command, Claim)]
        self._host.ahead.update(dict.fromkeys(claimed, self._clock.ahead))
        return answers


class _Committer:
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._patience = Patience()

    def submit(self, command: Command) -> asyncio.Future[Answer]:
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        try:
            (answer,) = self._patience.call(
                lambda: self._ledger.apply([command]), _PATIENCE_S, "an outcome waits"
            )
            future.set_result(answer)
        except Exception as error:  # noqa: BLE001 - it belongs to whoever waits
            future.set_exception(error)
        return future


class _Engine:
    """Sends to the drill's own services in virtual time, and to every other address really."""

    def __init__(self, host: Host, world: World) -> None:
        self._host = host
        self._world = world

    async def send(
        self,
        stored: StoredRequest,
        *,
        allowed: Outbound,
        key: str | None,
        deadline: datetime,
        until: float,
        correlation: Mapping[str, str],
        headers: Sequence[tuple[str, str]] = (),
        capability: tuple[str, str] | None = None,
        kind: Kind = "effect",
        unrepeated: bool = False,
    ) -> Sent:
        self._host.check()
        self._host.about = UUID(correlation["call"]) if "call" in correlation else None
        service = self._world.services.of(stored.target)
        if service is None:
            async with HttpEngine() as real:
                return await real.send(
                    stored, allowed=allowed, key=key, deadline=deadline, until=until,
                    correlation=correlation, headers=headers, capability=capability, kind=kind,
                    unrepeated=unrepeated,
                )  # fmt: skip
        try:
            target = allowed.admit(stored.target)
        except OutboundRefused as error:
            return NotSent(error.code, str(error), retryable=False)
        beside = [*(headers if allowed.trusts(target) else ()), *([capability] if capability else ())]
        try:
            if kind == "effect":
                fault("dispatch.before_wire")
        except FaultInjected as error:
            return NotSent("worker_error", f"nothing was sent: {error}")
        if boottime() >= until:
            return NotSent("deadline_passed", "the attempt's time was over before a byte was sent")
        now = self._world.clock.now
        wire = _wire(service, stored, key, correlation, beside, kind)
        ahead = self._host.ahead.get(self._host.about or _NOBODY, self._world.clock.ahead)
        return self._sent(replace(wire, sent=(now + ahead, now)), until)

    def _sent(self, wire: Wire, until: float) -> Sent:
        network, self._host.network = self._host.network, None
        clock, services = self._world.clock, self._world.services
        if network is not None and network.answers is not None:
            if network.lands_in is not None:
                services.send_later(wire, clock.now + timedelta(seconds=network.lands_in))
            else:
                services.missed(wire)
            return Answered(_page(network.answers))
        if network is not None and network.lands_in is None:
            services.missed(wire)
            return Lost("connection_lost", "the connection was reset, and the request never arrived")
        if network is not None:
            lands, waits = network.lands_in or 0.0, until - boottime()
            if lands >= waits:
                services.send_later(wire, clock.now + timedelta(seconds=lands))
                self._world.wait(clock.now + timedelta(seconds=waits))
                self._host.check()
                return Lost("timeout", f"no answer within {waits:.3f} s")
            self._world.wait(clock.now + timedelta(seconds=lands))
            self._host.check()
        return services.deliver(wire, until - boottime())


def _page(status: int) -> Response:
    """What a gateway says where the service should."""
    body = f"<!doctype html><title>{status}</title><p>The service cannot be reached at the moment.</p>"
    return Response(status, {"content-type": "text/html"}, body.encode())


def _wire(
    service: str,
    stored: StoredRequest,
    key: str | None,
    correlation: Mapping[str, str],
    headers: Sequence[tuple[str, str]],
    kind: Kind,
) -> Wire:
    told = {name.lower(): value for name, value in [*stored.headers, *headers]}
    told |= {f"fencepost-{name}": value for name, value in correlation.items()}
    if key is not None:
        told.setdefault("idempotency-key", key)
    path = urlsplit(stored.target).path
    return Wire(service, stored.method, path, told, stored.body, stored.target, kind)


_HERE = threading.local()


def worker_here() -> Worker | None:
    """The worker process that this thread is a step of; None outside of a history."""
    found: Worker | None = getattr(_HERE, "worker", None)
    return found


class Worker(Host):
    """A worker process of one queue: `Parts` for the fleet's own pipeline."""

    def __init__(self, queue: Queue, number: int, world: World, limit: int) -> None:
        super().__init__(str(queue), number)
        self.queue = queue
        self.settings = world.settings
        self.app = world.app
        self.pid = os.getpid()
        self.pool = world.sessions
        self.slots = Slots(SLOTS)
        self.executor = _Inline()
        self.pulse = _Pulse(self)
        self.leases = _Leases(self, world.redis)
        self.engine = _Engine(self, world)
        self.ledger = _Ledger(self, world, limit)
        self.committer = _Committer(self.ledger)
        self.signer = rehearsing(self.app.dependencies)
        self.mcp = None  # a drill starts no processes of others and asks nobody outside
        self.models = Providers()
        self.shares = {tool.scope: SLOTS for tool in self.app.registry.values()}
        self.wait = world.wait
        self._clock = world.clock
        self._works: list[Coroutine[Any, Any, None]] = []
        self._step = Step(self, ROLES[queue](self))

    def rand(self) -> float:
        """See `Parts`."""
        return self._clock.rand()

    def pause(self, seconds: float) -> None:
        """Nobody runs meanwhile, so there is nothing to wait for."""

    def start(self, works: Sequence[Coroutine[Any, Any, None]]) -> None:
        """See `Parts`: run once the claims are made."""
        self._works += works

    def interruptible(self) -> AbstractContextManager[None]:
        """See `Parts`: no process of a drill is told to end."""
        return nullcontext()

    def let_go(self, lease: str, owner: str) -> None:
        """See `Parts`."""
        self.leases.release([(lease, owner)])

    def work(self, messages: Sequence[Message]) -> None:
        """Claim and carry out what a message names, to the end."""
        _HERE.worker = self
        self._step.handle(messages)
        works, self._works = self._works, []
        if works:
            _run(works)


def _run(works: Sequence[Coroutine[Any, Any, None]]) -> None:
    loop = asyncio.new_event_loop()
    tasks = [loop.create_task(work) for work in works]
    try:
        loop.run_until_complete(asyncio.wait(tasks))
    finally:
        for task in tasks:
            task.cancel()
        while left := [task for task in tasks if not task.done()]:
            with suppress(Killed):
                loop.run_until_complete(asyncio.wait(left))
        loop.close()
        for task in tasks:  # a process that is dead has nothing to say of the others it was at
            if not task.cancelled():
                task.exception()
    for task in tasks:
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error


def known(app: App, takeover_limit: int) -> Known:
    """What a process knows of its application."""
    return Known(
        tool=lambda name, version: app.registry.get((name, version)),
        planner=lambda name, version: (name, version) in app.planner_versions,
        authority=app.authority,
        takeover_limit=takeover_limit,
        limited=frozenset(),
        providers=frozenset(model.scope for model in app.models.values()),
        allowances=app.allowances,
        agent=app.agent_of,
    )
