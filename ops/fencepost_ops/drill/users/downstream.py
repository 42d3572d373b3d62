"""The user's own services in a drill: in this process, on loopback, or behind a Python tool's functions.

Requests land when the network of the history says so. After each of them the user's book is read, so that
every effect is known with the request that made it.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import ipaddress
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Generic, ParamSpec, TypeVar, cast
from urllib.parse import urlsplit

import httpx2

from fencepost.errors import FaultInjected, UsageError
from fencepost.outcomes import Answered, Lost, NotSent, Sent
from fencepost.testing import fault
from fencepost.tools import Attempt, Response, Tool
from fencepost_ops.drill.process import Worker, worker_here
from fencepost_ops.drill.services import Services, Wire
from fencepost_ops.drill.users.application import ATTEMPT
from fencepost_ops.drill.users.entries import Entry, grown
from fencepost_ops.drill.users.exchanges import Exchange, Received, heard, response_of, shown
from fencepost_ops.drill.virtual import VirtualClock

P = ParamSpec("P")
R = TypeVar("R")

Service = Callable[[Received], Any]
"""Takes a request and answers it. ConnectionError and TimeoutError mean that it did what it did, and that its
answer is lost."""

MOST_S: Final = 10.0  # of real time, for a real fake to answer
GRACE_S: Final = 1.0  # more, in which what is late may still be cancelled
LOOPBACK: Final = "on loopback"


class Endless(Exception):
    """A late call that came to no end."""


@dataclass(frozen=True)
class Wired(Generic[P, R]):
    """A function through which a Python tool reaches its service; `lost` makes what it raises for silence."""

    function: Callable[P, R]
    lost: Callable[[str], BaseException]

    @property
    def name(self) -> str:
        """How it is told."""
        return str(getattr(self.function, "__qualname__", None) or repr(self.function))


def is_loopback(target: str) -> bool:
    """Whether an address is this machine's own."""
    host = urlsplit(target).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def elsewhere(target: str) -> str:
    """Why a request is not sent."""
    return (
        f"requests would really go to {urlsplit(target).hostname}: give service=, who answers in the test, "
        "or a base_url on loopback (env={...} sets what a base_url reads)"
    )


class Downstream(Services):
    """All services of one history. `places`: who stands at which base URL."""

    def __init__(
        self,
        clock: VirtualClock,
        places: Sequence[tuple[str, Service]],
        entries: Callable[[], list[Entry]],
        per_attempt: timedelta,
    ) -> None:
        super().__init__({}, clock)
        self.log: list[Exchange] = []
        self.seen: list[Entry] = []
        """Every effect there ever was in the book, in the order in which they were seen."""
        self.makers: list[Exchange | None] = []
        """Which request made which of its effects."""
        self.broken: BaseException | None = None
        """What the user's own code raised that is no outcome: the test is wrong, not the tool."""
        self._book: list[Entry] = []
        """The book as last read."""
        self._places = sorted(places, key=lambda place: -len(place[0]))
        self._entries = entries
        self._per_attempt = per_attempt
        self._later: list[tuple[datetime, int, Callable[[], object]]] = []
        self._count = 0
        self._real: httpx2.Client | None = None

    # -- HTTP ---------------------------------------------------------------------------------------------

    def of(self, target: str) -> str | None:
        """Who stands at an address. UsageError for one that is neither the test's nor this machine's."""
        for base, _ in self._places:
            if target == base or target.startswith((f"{base}/", f"{base}?")):
                return base
        if not is_loopback(target):
            raise self._break(UsageError(elsewhere(target)))
        return LOOPBACK

    def deliver(self, wire: Wire, waits: float) -> Sent:
        """The request arrives; see `Services`."""
        entry = self._put_down(wire)
        try:
            return Answered(self._arrived(wire, entry, min(waits, MOST_S)))
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            entry.landed_s, entry.heard = None, str(error)
            return NotSent("connect_failed", str(error))
        except (ConnectionError, TimeoutError, httpx2.TransportError) as error:
            entry.heard = f"{type(error).__name__}: {error}"
            return Lost("connection_lost", entry.heard)

    def send_later(self, wire: Wire, at: datetime) -> None:
        """See `Services`."""
        entry = self._put_down(wire)
        self._at(at, lambda: self._landed(wire, entry))

    def answer(self, wire: Wire) -> Response:
        """See `Services`."""
        return self._arrived(wire, self._put_down(wire), MOST_S)

    def missed(self, wire: Wire) -> None:
        """See `Services`."""
        self._put_down(wire)

    def _landed(self, wire: Wire, entry: Exchange) -> None:
        try:
            self._arrived(wire, entry, MOST_S)
        except (ConnectionError, TimeoutError, httpx2.TransportError):
            return
        finally:
            entry.heard += ", which nobody heard"

    def _put_down(self, wire: Wire) -> Exchange:
        kind = "lookup" if wire.kind == "lookup" else "effect"
        attempt = wire.headers.get("fencepost-attempt", "")
        entry = Exchange(
            self._clock.seconds,
            cast("Any", kind),
            f"{wire.method} {urlsplit(wire.target)._replace(scheme='', netloc='').geturl()}",
            wire.key,
            shown(wire.body),
            wire.headers.get("fencepost-call"),
            int(attempt) if attempt.isdigit() else None,
        )
        self.log.append(entry)
        return entry

    def _arrived(self, wire: Wire, entry: Exchange, seconds: float) -> Response:
        entry.landed_s = self._clock.seconds
        try:
            real = wire.service == LOOPBACK
            response = self._really(wire, seconds) if real else self._asked(wire)
            entry.heard, entry.status = heard(response), response.status
            return response
        finally:
            self._look(entry)

    def _asked(self, wire: Wire) -> Response:
        service = next(service for base, service in self._places if base == wire.service)
        try:
            answer = service(Received(wire.method, wire.target, wire.headers, wire.body))
            if inspect.iscoroutine(answer):
                answer.close()
                raise UsageError("service= is an async def; give a def that answers at once")
            return response_of(answer)
        except (ConnectionError, TimeoutError):
            raise
        except Exception as error:
            self._break(error)
            raise

    def _really(self, wire: Wire, seconds: float) -> Response:
        if self._real is None:
            self._real = httpx2.Client(verify=False, trust_env=False, follow_redirects=False)
        answer = self._real.request(
            wire.method, wire.target, headers=dict(wire.headers), content=wire.body or None, timeout=seconds
        )
        return Response(answer.status_code, {n.lower(): v for n, v in answer.headers.items()}, answer.content)

    # -- a Python tool's own wire -------------------------------------------------------------------------

    def call(self, wired: Wired[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call a function as a wire: in a history its calls are lost and delayed as requests are."""
        entry = self._begin(wired, args, kwargs)
        try:
            result = wired.function(*args, **kwargs)
        except BaseException as error:
            entry.heard = f"{type(error).__name__}: {error}"
            raise
        finally:
            self._look(entry)
        self._end(wired, entry, result)
        return result

    async def acall(self, wired: Wired[P, Any], *args: P.args, **kwargs: P.kwargs) -> Any:
        """As `call`, for an `async def`."""
        entry = self._begin(wired, args, kwargs)
        try:
            result = await wired.function(*args, **kwargs)
        except BaseException as error:
            entry.heard = f"{type(error).__name__}: {error}"
            raise
        finally:
            self._look(entry)
        self._end(wired, entry, result)
        return result

    def _begin(self, wired: Wired[Any, Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Exchange:
        told = ", ".join([*map(repr, args), *(f"{name}={value!r}" for name, value in kwargs.items())])
        entry = Exchange(self._clock.seconds, "call", wired.name, None, shown(told.encode()))
        if (attempt := ATTEMPT.get()) is not None:
            entry.call, entry.attempt = attempt.call, attempt.number
        self.log.append(entry)
        worker = worker_here()
        if worker is not None:
            worker.check()
            network, worker.network = worker.network, None
            if network is not None and network.lands_in is None:
                entry.heard = "nothing: it was lost on its way"
                raise wired.lost(f"{wired.name}: the connection was lost")
            if network is not None and network.lands_in is not None:
                self._slowly(worker, network.lands_in, wired, entry, args, kwargs)
        entry.landed_s = self._clock.seconds
        return entry

    def _slowly(
        self,
        worker: Worker,
        lands_in: float,
        wired: Wired[Any, Any],
        entry: Exchange,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> None:
        waits = min(lands_in, self._per_attempt.total_seconds())
        late = lands_in > waits
        if late:
            landing = functools.partial(self._called_late, wired, entry, args, kwargs)
            self._at(self._clock.now + timedelta(seconds=lands_in), landing)
        worker.wait(self._clock.now + timedelta(seconds=waits))
        worker.check()
        if late:
            entry.heard = "nothing in time"
            raise wired.lost(f"{wired.name}: no answer within {waits:g} s")

    def _called_late(
        self, wired: Wired[Any, Any], entry: Exchange, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        entry.landed_s = self._clock.seconds
        try:
            result = wired.function(*args, **kwargs)
            if inspect.iscoroutine(result):
                finished(result)
        except Endless:
            entry.heard = "nothing"
            said = f"{wired.name}, called late, did not end within {MOST_S:g} s of real time"
            self._break(UsageError(said))
        except Exception as error:  # noqa: BLE001 - nobody hears it any more
            entry.heard = f"{type(error).__name__}: {error}, which nobody heard"
        finally:
            self._look(entry)

    def _end(self, wired: Wired[Any, Any], entry: Exchange, result: object) -> None:
        entry.heard = shown(repr(result).encode())
        try:
            fault("dispatch.response_lost")
        except FaultInjected:
            entry.heard = "nothing: its answer was lost"
            raise wired.lost(f"{wired.name}: no answer came") from None

    # -- later, and the book ------------------------------------------------------------------------------

    def _at(self, at: datetime, landing: Callable[[], object]) -> None:
        self._count += 1
        self._later.append((at, self._count, landing))

    @property
    def lands_next(self) -> datetime | None:
        """See `Services`."""
        return min((at for at, _, _ in self._later), default=None)

    def land(self) -> int:
        """See `Services`."""
        due = sorted((one for one in self._later if one[0] <= self._clock.now), key=lambda one: one[:2])
        self._later = [one for one in self._later if one not in due]
        for _, _, landing in due:
            landing()
        return len(due)

    def _look(self, entry: Exchange | None) -> None:
        """Read the book: what is new was made by this request."""
        try:
            now = self._entries()
        except Exception as error:  # noqa: BLE001 - the user's own code, told once the history is over
            self._break(error)
            return
        fresh, gone = grown(self._book, now)
        self._book = now
        if gone and not fresh:
            after = "" if entry is None else f" after {entry.what}"
            said = (
                f"book= must only grow: {gone[0].named} is no longer in it{after}. It has to give every "
                "effect that ever happened; an undo takes nothing out of it"
            )
            self._break(UsageError(said))
        if entry is not None:
            entry.made += fresh
        self.makers += [entry] * len(fresh)
        self.seen += fresh

    def attempted(self, tool: Tool, attempt: Attempt) -> None:
        """An attempt of a Python tool is over: what is new in the book, no wire has made, but itself."""
        before = len(self.seen)
        entry = Exchange(self._clock.seconds, "call", tool.name, None, "", attempt.call, attempt.number)
        entry.landed_s = self._clock.seconds
        self._look(entry)
        if len(self.seen) > before:
            self.log.append(entry)

    def finish(self) -> None:
        """The history is over: read the book for the last time, and raise what the user's own code raised."""
        self._look(None)
        if self._real is not None:
            self._real.close()
        if self.broken is not None:
            raise self.broken

    def _break(self, error: BaseException) -> BaseException:
        self.broken = self.broken or error
        return error


def finished(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """What a coroutine gives, run to its end in a loop of its own: whoever waits here may have one already.

    Endless if that takes longer than MOST_S; what it raises.
    """
    ended: Future[Any] = Future()

    def run() -> None:
        try:
            ended.set_result(asyncio.run(_within(coroutine)))
        except BaseException as error:  # noqa: BLE001 - raised where the result is asked for
            ended.set_exception(error)

    threading.Thread(target=contextvars.copy_context().run, args=(run,), daemon=True).start()
    wait([ended], MOST_S + GRACE_S)
    if not ended.done():
        raise Endless
    return ended.result()


async def _within(coroutine: Coroutine[Any, Any, Any]) -> Any:
    limit = asyncio.timeout(MOST_S)
    try:
        async with limit:
            return await coroutine
    except TimeoutError:
        if limit.expired():
            raise Endless from None
        raise
