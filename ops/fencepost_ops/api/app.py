"""The routes: each takes a request apart, does one piece of work on the ledger, and answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Annotated, Any, Final
from uuid import UUID

from fastapi import APIRouter, FastAPI, Header, Path, Query, Request, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Match, Route

from fencepost import __version__
from fencepost.client import Enqueued
from fencepost.errors import Conflict, FencepostError
from fencepost.ledger import signals, tokens
from fencepost.ledger.tokens import Bearer
from fencepost.settings import Settings
from fencepost.telemetry import correlation
from fencepost_ops.api import answers, asked, openapi, reads
from fencepost_ops.api.attempts import Attempts
from fencepost_ops.api.edge import Edge
from fencepost_ops.api.problems import MEDIA_TYPE, Problem, again, forbidden, unauthenticated
from fencepost_ops.api.store import PRESENTED, Store
from fencepost_ops.api.streams import Heads, Stream

READY_FOR_S: Final = 1.0
"""How long an answer to /readyz is used again: whoever asks need not be somebody."""
LINGER_S: Final = 2.0
LINGER_BYTES: Final = 16 * 1024 * 1024
"""How much of a body that is too large is read all the same, and how long."""
_ID = Annotated[str, Path(description="the run's id")]
_KEY = Annotated[str | None, Header(alias="Idempotency-Key", description=openapi.KEY)]
_TRACE = Annotated[
    str | None, Header(alias="traceparent", description="W3C Trace Context; kept with the run")
]
_LAST = Annotated[str | None, Header(alias="Last-Event-ID", description="the number of the last event seen")]
_TEXT = str | None


class Interface:
    """The state of one process: its store, its streams, and who presented wrong tokens. Nothing durable."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.store = Store(settings)
        self.heads = Heads(self.store, settings.api_streams)
        self._attempts = Attempts()
        self._ready: tuple[float, bool] = (-READY_FOR_S, False)

    async def bearer(self, request: Request, scope: str) -> Bearer:
        """Who asks, as the token's row says at this moment. `Problem` for nobody, and for what it may not."""
        given = request.headers.getlist("authorization")
        kind, _, text = (given[0] if len(given) == 1 else "").partition(" ")
        if kind.lower() != "bearer" or not text.strip():
            raise unauthenticated("send a token: Authorization: Bearer fpt_…", presented=False)
        said = tokens.presented(text.strip())
        found = await self.look_up(said) if said is not None else None
        if said is None or found is None:
            address = request.client.host if request.client is not None else ""
            if (wait := self._attempts.wrong(address, time.monotonic())) > 0:
                raise again(
                    "too_many_attempts", "too many wrong tokens come from this address", int(wait) + 1
                )
            raise unauthenticated(
                "this token is nobody's: it is mistyped, revoked or expired", presented=True
            )
        PRESENTED.set(str(said))
        if scope not in found.scopes:
            raise forbidden(scope)
        return found

    async def look_up(self, said: tokens.Presented) -> Bearer | None:
        """Whose token it is."""
        return await self.store.read(lambda session: tokens.bearer(session, said))

    async def body(self, request: Request) -> Callable[[], dict[str, Any]]:
        """The object in a request's body, of which no more is kept than may be sent; to be read beside the
        loop, since a large one takes long.
        """
        most = self.settings.api_body_bytes
        length = request.headers.get("content-length", "")
        pieces = request.stream()
        data = bytearray()
        try:
            async with asyncio.timeout(self.settings.api_timeout_s / 2):
                if not length.isdecimal() or (len(length) <= 18 and int(length) <= most):
                    async for piece in pieces:
                        data += piece
                        if len(data) > most:
                            break
                    else:
                        return partial(asked.json_body, bytes(data), request.headers.get("content-type"))
        except TimeoutError:
            raise Problem("timeout", "the body did not come in time") from None
        except ClientDisconnect:  # nobody hears this, and it is no fault of ours
            raise Problem("timeout", "the client left in the middle of the body") from None
        await _let_go(pieces)
        raise Problem("body_too_large", f"the body has more than {most} bytes")

    async def run(self, tenant: str, run_id: UUID) -> reads.Run:
        """The run, if it is this tenant's."""
        found = await self.store.read(lambda session: reads.run(session, tenant, run_id))
        if found is None:
            raise asked.no_run(run_id)
        about(tenant, run_id, found.root)
        return found

    async def ready(self) -> bool:
        """Whether requests can be served now."""
        at, known = self._ready
        if time.monotonic() - at >= READY_FOR_S:
            try:
                known = await self.store.read(reads.may)
            except (Problem, FencepostError):
                known = False
            self._ready = (time.monotonic(), known)
        return known and not self.heads.draining


def about(tenant: str, run: UUID, root: UUID | None) -> None:
    """What a request, which has a task of its own, says from now on: which run it is about."""
    correlation.bind(tenant=tenant, root=root or run, run=run)


async def _let_go(pieces: AsyncIterator[bytes]) -> None:
    """Read on for a moment: a connection closed on what its client still sends loses it the answer."""
    left = LINGER_BYTES
    with suppress(TimeoutError, ClientDisconnect):
        async with asyncio.timeout(LINGER_S):
            async for piece in pieces:
                left -= len(piece)
                if left < 0:
                    return


def _json(body: bytes, status: int = 200, **headers: str) -> Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Response(body, status, named, "application/json")


def _place(run_id: UUID) -> str:
    return f"/v1/runs/{run_id}"


router = APIRouter()


def _of(request: Request) -> Interface:
    found: Interface = request.app.state.interface
    return found


@router.post("/v1/runs", **openapi.START)
async def start_run(request: Request, key: _KEY = None, trace: _TRACE = None) -> Response:  # noqa: ARG001
    """Have a run carried out. Answered once it is committed; the same again gives the same run."""
    own = _of(request)
    bearer = await own.bearer(request, "runs:write")
    asked.no_query(request.query_params.multi_items())
    named = asked.idempotency_key(request.headers.getlist("idempotency-key"))
    given = asked.traceparent(request.headers.getlist("traceparent"))
    said = await own.body(request)

    def enqueue() -> Enqueued:
        wanted = asked.run_request(said(), named, bearer, given)
        (outcome,) = own.store.client.enqueue_many([wanted])
        if isinstance(outcome, Conflict):
            raise outcome
        return outcome

    done = await own.store.do(enqueue)
    body = answers.run_text(await own.run(bearer.tenant, done.run_id))
    if done.created:
        return _json(body, 201, location=_place(done.run_id))
    return _json(body, location=_place(done.run_id), idempotent_replayed="true")


@router.get("/v1/runs", **openapi.LIST)
async def list_runs(
    request: Request,
    status: Annotated[_TEXT, Query(description="one or several, by commas")] = None,  # noqa: ARG001
    planner: _TEXT = None,  # noqa: ARG001
    run_key: _TEXT = None,  # noqa: ARG001
    cursor: Annotated[_TEXT, Query(description="`next` of the page before")] = None,  # noqa: ARG001
    limit: Annotated[_TEXT, Query(description=f"1 to {asked.LARGEST_PAGE}")] = None,  # noqa: ARG001
) -> Response:
    """The tenant's runs, the greatest ids first, a page at a time."""
    own = _of(request)
    bearer = await own.bearer(request, "runs:read")
    wanted = asked.list_request(request.query_params.multi_items())
    found = await own.store.read(lambda session: reads.runs(session, bearer.tenant, wanted))
    return _json(answers.runs_text(found, wanted.limit))


@router.get("/v1/runs/{run}", **openapi.SHOW)
async def show_run(request: Request, run: _ID) -> Response:
    """Where a run stands, and its result once it has one."""
    own = _of(request)
    bearer = await own.bearer(request, "runs:read")
    asked.no_query(request.query_params.multi_items())
    return _json(answers.run_text(await own.run(bearer.tenant, asked.run_id(run))))


@router.get("/v1/runs/{run}/events", **openapi.EVENTS)
async def list_events(
    request: Request,
    run: _ID,
    after: Annotated[_TEXT, Query(description="the number of the last event seen")] = None,  # noqa: ARG001
    limit: Annotated[_TEXT, Query(description=f"1 to {asked.LARGEST_EVENTS_PAGE}")] = None,  # noqa: ARG001
) -> Response:
    """The run's history, a page at a time."""
    own = _of(request)
    bearer = await own.bearer(request, "runs:read")
    seen, most = asked.events_request(request.query_params.multi_items())
    run_id = asked.run_id(run)
    page = await own.store.read(lambda session: reads.events(session, bearer.tenant, run_id, seen, most))
    if page is None:
        raise asked.no_run(run)
    about(bearer.tenant, run_id, page.root)
    return _json(answers.events_text(page, seen))


@router.get("/v1/runs/{run}/events/stream", **openapi.STREAM)
async def stream_events(
    request: Request,
    run: _ID,
    after: Annotated[_TEXT, Query(description="the number of the last event seen")] = None,  # noqa: ARG001
    last: _LAST = None,  # noqa: ARG001
) -> Response:
    """The run's history as it is recorded, until the run ends: server-sent events, each with its number."""
    own = _of(request)
    bearer = await own.bearer(request, "runs:read")
    given = request.headers.getlist("last-event-id")
    seen, again_here = asked.stream_request(request.query_params.multi_items(), given)
    run_id = asked.run_id(run)
    found = await own.run(bearer.tenant, run_id)
    if again_here and found.ended and seen >= found.seq:
        return Response(status_code=204)  # by which a browser knows that there is nothing to come back for
    beat = own.settings.api_heartbeat_s
    return Stream(own.heads, own.store, (bearer.tenant, run_id), seen, PRESENTED.get(), heartbeat_s=beat)


@router.post("/v1/runs/{run}/cancel", **openapi.CANCEL)
async def cancel_run(request: Request, run: _ID) -> Response:
    """Stop a run: nothing unsent is sent, what is in flight settles first, its effects are offset if it
    asked for that.
    """
    own = _of(request)
    bearer = await own.bearer(request, "runs:cancel")
    asked.no_query(request.query_params.multi_items())
    said = await own.body(request)
    found = await own.run(bearer.tenant, asked.run_id(run))
    if found.ended:
        raise Problem("run_ended", f"run {found.id} has ended {found.status}: there is nothing to cancel")
    by = f"{bearer.principal}/token:{bearer.token}"

    def cancel() -> None:
        reason = asked.cancel_reason(said())
        try:
            own.store.client.cancel(found.id, by, reason)
        except FencepostError as error:
            if type(error) is FencepostError and error.__cause__ is None:  # it ended since it was looked at
                raise signals.Deaf(str(error)) from None
            raise

    await own.store.do(cancel)
    return _json(answers.run_text(await own.run(bearer.tenant, found.id)))


@router.post("/v1/runs/{run}/signals", **openapi.SIGNAL)
async def send_signal(request: Request, run: _ID, key: _KEY = None) -> Response:  # noqa: ARG001
    """Send the run a message, which its planner sees at its next turn."""
    own = _of(request)
    bearer = await own.bearer(request, "runs:signal")
    asked.no_query(request.query_params.multi_items())
    named = asked.idempotency_key(request.headers.getlist("idempotency-key"))
    said = await own.body(request)
    found = await own.run(bearer.tenant, asked.run_id(run))

    def send() -> signals.Sent:
        wanted = asked.signal_request(said())
        sender = bearer.principal
        return own.store.client.signal(found.id, wanted.name, wanted.body, key=named, sender=sender)

    sent = await own.store.do(send)
    if sent.created:
        return _json(answers.signal_text(sent), 201)
    return _json(answers.signal_text(sent), idempotent_replayed="true")


@router.get("/healthz", **openapi.HEALTHY)
async def healthy() -> Response:
    """Whether this process lives."""
    return _json(answers.health_text("ok"))


@router.get("/readyz", **openapi.READY)
async def ready(request: Request) -> Response:
    """Whether this process can serve requests: it reaches a ledger it may use, and is not about to end."""
    if not await _of(request).ready():
        raise again("unavailable", "the ledger cannot be reached, or this process is about to end")
    return _json(answers.health_text("ready"))


async def _refused(request: Request, error: Exception) -> Response:
    problem = _as_problem(request, error)
    body = problem.body(request.state.request_id)
    headers = dict(problem.headers)
    if problem.code in {"body_too_large", "timeout"}:
        headers["Connection"] = "close"  # the rest of the body is not read
    return Response(body, problem.status, headers, MEDIA_TYPE)


def _as_problem(request: Request, error: Exception) -> Problem:
    if isinstance(error, Problem):
        return error
    if isinstance(error, HTTPException) and error.status_code == 405:
        allowed = ", ".join(sorted(_methods(request)))
        return Problem("method_not_allowed", f"this takes {allowed}", headers={"Allow": allowed})
    if isinstance(error, HTTPException):
        return Problem("not_found", "there is nothing here; /openapi.json tells what there is")
    return Problem("bug", "this failed by a fault of ours; its request_id is logged")


def _methods(request: Request) -> set[str]:
    """What may be done at this path, by all routes that match it."""
    found: set[str] = set()
    for route in router.routes:
        if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE:
            found |= route.methods or set()
    return found


@asynccontextmanager
async def _living(app: FastAPI) -> AsyncIterator[None]:
    own: Interface = app.state.interface
    looking = asyncio.create_task(own.heads.run())
    try:
        yield
    finally:
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)
        await asyncio.to_thread(own.store.close)


def build(settings: Settings) -> tuple[Interface, Callable[[Any, Any, Any], Awaitable[None]]]:
    """The application of one process, and its state."""
    app = FastAPI(
        title="Fencepost",
        version=__version__,
        description=openapi.ABOUT,
        docs_url=None,
        redoc_url=None,
        lifespan=_living,
        redirect_slashes=False,
    )
    own = app.state.interface = Interface(settings)
    app.include_router(router)
    for kind in (Problem, HTTPException, Exception):
        app.add_exception_handler(kind, _refused)
    openapi.tell(app)
    return own, Edge(app, settings.api_timeout_s)
