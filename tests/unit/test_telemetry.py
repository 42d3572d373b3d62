"""Spans and figures: nothing where nobody listens, and what is told where somebody does."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID, uuid4

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from fencepost.errors import UsageError
from fencepost.telemetry import correlation, metrics, names, spans

ROOT, RUN = uuid4(), uuid4()
FAR = f"00-{'ab' * 16}-{'cd' * 8}-01"


@contextmanager
def keeping(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """Spans of one test alone; the process's own provider stays what it is."""
    memory, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(memory))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    assert spans.switch_on()
    yield memory
    spans.close()


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    with keeping(monkeypatch) as memory:
        yield memory


def one(memory: InMemorySpanExporter) -> ReadableSpan:
    (span,) = memory.get_finished_spans()
    return span


def traced(span: Any) -> tuple[int, int]:
    context = span.get_span_context()
    return context.trace_id, context.span_id


def test_nobody_records_and_nothing_is_told() -> None:
    assert not spans.recording()
    with correlation.bound(root=ROOT, run=RUN), spans.span(names.CHAT, "m", {}) as span:
        span.set(anything=1)
        span.ended("lost", failed=True)
        assert correlation.current() == f"00-{ROOT.hex}-{correlation.span_id(RUN, '')}-01"


def test_a_span_is_in_the_trace_of_its_root_under_what_is_open(kept: InMemorySpanExporter) -> None:
    with (
        correlation.bound(root=ROOT, run=RUN, turn=2),
        spans.span(names.INVOKE_AGENT, "desk", {names.AGENT_NAME: "desk"}, link=FAR),
        spans.span(names.CHAT, "m", {}, kind="client") as chat,
    ):
        chat.convention({names.OUTPUT_TOKENS: 3, names.RESPONSE_ID: None})
        sent = correlation.current()
    chat_span, agent = kept.get_finished_spans()
    assert (agent.name, chat_span.name) == ("invoke_agent desk", "chat m")
    assert traced(agent)[0] == traced(chat_span)[0] == ROOT.int
    assert chat_span.parent is not None
    assert chat_span.parent.span_id == traced(agent)[1]
    assert sent == f"00-{ROOT.hex}-{traced(chat_span)[1]:016x}-01"
    assert agent.parent is not None
    assert f"{agent.parent.span_id:016x}" == correlation.span_id(ROOT)
    assert [link.context.trace_id for link in agent.links] == [int("ab" * 16, 16)]
    assert dict(chat_span.attributes or {})["fencepost.run"] == str(RUN)
    assert dict(chat_span.attributes or {})[names.OUTPUT_TOKENS] == 3
    assert names.RESPONSE_ID not in (chat_span.attributes or {})


def test_what_is_open_and_somebody_elses_is_no_parent(kept: InMemorySpanExporter) -> None:
    other = trace.get_tracer_provider().get_tracer("celery")
    with (
        other.start_as_current_span("run/fencepost.planner"),
        correlation.bound(root=ROOT, run=RUN),
        spans.span(names.CHAT, "m", {}),
    ):
        pass
    ours = next(span for span in kept.get_finished_spans() if span.name == "chat m")
    assert traced(ours)[0] == ROOT.int


def test_what_an_exception_says_is_in_no_span(kept: InMemorySpanExporter) -> None:
    with (
        pytest.raises(ValueError, match="canary"),
        correlation.bound(root=ROOT, run=RUN),
        spans.span(names.CHAT, "m", {}),
    ):
        raise ValueError("canary")
    assert "canary" not in one(kept).to_json()
    assert one(kept).status.description == "ValueError"


def test_outside_of_a_tree_there_is_no_span(kept: InMemorySpanExporter) -> None:
    with spans.span(names.CHAT, "m", {}):
        pass
    assert kept.get_finished_spans() == ()


@pytest.mark.parametrize("factory", ["nowhere:at_all", "json:dumps", "json:nothing"])
def test_a_factory_that_sets_no_provider_is_said(factory: str) -> None:
    with pytest.raises(UsageError, match="FENCEPOST_OTEL"):
        spans.switch_on(factory)


@pytest.mark.parametrize("address", ["here", "127.0.0.1:", "127.0.0.1:70000", ":x"])
def test_an_address_of_figures_that_is_none_is_said(address: str) -> None:
    with pytest.raises(UsageError, match="FENCEPOST_METRICS_ADDRESS"):
        metrics.serve(address)


def test_figures_are_kept_only_where_they_are_served() -> None:
    assert metrics.serve("") is None
    assert not metrics.on()
    metrics.hop("tool", 1.0)
    metrics.asked("m", "turn", {"input": 1}, 5)


def test_a_root_is_a_trace_id() -> None:
    root = UUID("01a22cb7-1776-7587-9a51-e3691d416ead")
    assert correlation.traceparent(root, "00000000000000aa") == (
        "00-01a22cb7177675879a51e3691d416ead-00000000000000aa-01"
    )
