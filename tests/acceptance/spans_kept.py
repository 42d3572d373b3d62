"""Who records the spans of the acceptance fleets: a file of JSON lines for each process.

FENCEPOST_OTEL=tests.acceptance.spans_kept:keep
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

NAME = "spans"


class ToFile(SpanExporter):
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        with (self._folder / f"{NAME}.{os.getpid()}.jsonl").open("a") as file:
            for span in spans:
                file.write(json.dumps(told(span)) + "\n")
        return SpanExportResult.SUCCESS


def told(span: ReadableSpan) -> dict[str, Any]:
    context = span.get_span_context()
    assert context is not None
    return {
        "name": span.name,
        "scope": span.instrumentation_scope.name if span.instrumentation_scope is not None else "",
        "trace_id": f"{context.trace_id:032x}",
        "span_id": f"{context.span_id:016x}",
        "parent_id": f"{span.parent.span_id:016x}" if span.parent is not None else None,
        "attributes": {k: list(v) if isinstance(v, tuple) else v for k, v in (span.attributes or {}).items()},
        "links": [f"{link.context.trace_id:032x}" for link in span.links],
        "status": span.status.status_code.name,
    }


def keep() -> None:
    """Called once by every process of the fleet."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(ToFile(Path(os.environ["ACCEPTANCE_DIR"]))))
    trace.set_tracer_provider(provider)


def read(folder: Path) -> list[dict[str, Any]]:
    """What all processes have recorded so far."""
    return [
        json.loads(line) for file in folder.glob(f"{NAME}.*.jsonl") for line in file.read_text().splitlines()
    ]
