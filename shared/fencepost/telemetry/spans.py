"""Spans by the API of OpenTelemetry, and nothing where nobody records any.

Who records them is the process's own setting: `FENCEPOST_OTEL=module:function` names a function without
arguments that sets the tracer provider, once at the start; or the process is started under
`opentelemetry-instrument`, which reads the standard `OTEL_*` variables. Without either, or without the extra
`telemetry`, a span costs one comparison.

Spans of a tree of runs have the root run's id as their trace. Runs live for days and over many processes, so
no span stands for a whole run: each turn, request, attempt, lookup and compensation is one, under a parent
computed from the root, which nobody records.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from importlib import import_module
from typing import Any, Final, Literal
from uuid import UUID

from fencepost.errors import UsageError
from fencepost.telemetry import correlation
from fencepost.telemetry.names import OURS, OUTCOME, SCOPE

log = logging.getLogger(__name__)

Kind = Literal["internal", "client"]


class Span:
    """What a span is told while it is open."""

    def set(self, **attributes: object) -> None:
        """Attributes of our own: `name` becomes `fencepost.name`; None is left out."""

    def convention(self, attributes: Mapping[str, object]) -> None:
        """Attributes under the names of a convention; None is left out."""

    def ended(self, outcome: str, *, failed: bool = False) -> None:
        """How it came out; `failed` marks it as an error."""


class _Recorded(Span):
    def __init__(self, span: Any) -> None:
        self._span = span

    def set(self, **attributes: object) -> None:
        self.convention({f"{OURS}{name}": value for name, value in attributes.items()})

    def convention(self, attributes: Mapping[str, object]) -> None:
        self._span.set_attributes(_kept(attributes))

    def ended(self, outcome: str, *, failed: bool = False) -> None:
        from opentelemetry.trace import StatusCode

        self._span.set_attribute(OUTCOME, outcome)
        if failed:
            self._span.set_status(StatusCode.ERROR, outcome)


_OFF: Final = nullcontext(Span())
_tracers: Final[list[Any]] = []
"""Our tracer, once somebody records."""


def switch_on(factory: str = "") -> bool:
    """Record from now on, if anybody does. UsageError for a factory that cannot be called."""
    if factory:
        _call(factory)
    try:
        from opentelemetry import trace
    except ImportError:
        if factory:
            raise UsageError(
                "FENCEPOST_OTEL needs opentelemetry-api: pip install 'fencepost[telemetry]'"
            ) from None
        return False
    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        if factory:
            raise UsageError(f"FENCEPOST_OTEL: {factory} was called, and has set no tracer provider")
        return False
    _tracers[:] = [provider.get_tracer(SCOPE)]
    return True


def _call(factory: str) -> None:
    module, _, name = factory.partition(":")
    try:
        made: Callable[[], object] = getattr(import_module(module), name)
        made()
    except Exception as error:
        raise UsageError(f"FENCEPOST_OTEL: {factory} cannot be called: {error}") from error


def close() -> None:
    """Have everything recorded so far sent, as far as whoever records can. Never raises."""
    if not _tracers:
        return
    _tracers.clear()
    from opentelemetry import trace

    with suppress(Exception):
        getattr(trace.get_tracer_provider(), "shutdown", lambda: None)()


def recording() -> bool:
    """Whether anybody records."""
    return bool(_tracers)


def span(
    name: str, of: str, attributes: Mapping[str, object], *, kind: Kind = "internal", link: str | None = None
) -> AbstractContextManager[Span]:
    """A span called `name of` around what is being worked on here (`correlation.bound`), which has to be a
    part of a tree. `link` is the traceparent of whoever asked for it, from a trace of its own.
    """
    top = correlation.root() if _tracers else None
    return _OFF if top is None else _open(top, f"{name} {of}".rstrip(), attributes, kind, link)


@contextmanager
def _open(
    top: UUID, name: str, attributes: Mapping[str, object], kind: Kind, link: str | None
) -> Iterator[Span]:
    from opentelemetry import trace

    here = trace.get_current_span().get_span_context()
    # What is open here may be somebody else's, as of a consumer of messages that is instrumented.
    context = None if here.trace_id == top.int else _under(top)
    links = [] if link is None else _linked(link)
    told = _kept(attributes) | {f"{OURS}{k}": v for k, v in correlation.said().items() if k[-3:] != "_id"}
    with _tracers[0].start_as_current_span(  # noqa: SIM117 - the second needs the first
        name,
        context=context,
        kind=trace.SpanKind.CLIENT if kind == "client" else trace.SpanKind.INTERNAL,
        attributes=told,
        links=links,
        record_exception=False,  # what an exception says may be content
        set_status_on_exception=False,
    ) as opened:
        with correlation.bound(span_id=f"{opened.get_span_context().span_id:016x}"):
            try:
                yield _Recorded(opened)
            except BaseException as error:
                opened.set_status(trace.StatusCode.ERROR, type(error).__name__)
                raise


def _under(top: UUID) -> Any:
    from opentelemetry import trace

    parent = trace.SpanContext(
        trace_id=top.int,
        span_id=int(correlation.span_id(top), 16),
        is_remote=True,
        trace_flags=trace.TraceFlags(trace.TraceFlags.SAMPLED),
    )
    return trace.set_span_in_context(trace.NonRecordingSpan(parent))


def _linked(traceparent: str) -> list[Any]:
    from opentelemetry import trace

    _, trace_id, span_id, flags = traceparent.split("-")[:4]
    far = trace.SpanContext(int(trace_id, 16), int(span_id, 16), True, trace.TraceFlags(int(flags, 16)))
    return [trace.Link(far)]


def _kept(attributes: Mapping[str, object]) -> dict[str, Any]:
    return {name: value for name, value in attributes.items() if value is not None}
