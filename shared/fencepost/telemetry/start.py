"""What every process does first: say how it logs, records and counts."""

from __future__ import annotations

import logging

from fencepost.settings import Settings
from fencepost.telemetry import correlation, logs, metrics, spans


def start(settings: Settings, role: str, *, text: str = logs.TEXT, quiet: bool = False) -> None:
    """Log, record spans and serve figures as these settings say. UsageError says what is missing for it.

    `text` is how a line of plain text looks; `quiet` leaves out what is less than a warning, unless lines for
    each item are asked for.
    """
    correlation.process(role=role)
    quiet = quiet and settings.log_level == "info"
    others = logging.WARNING if quiet else logging.INFO
    logs.setup(settings.log, "warning" if quiet else settings.log_level, text, others=others)
    spans.switch_on(settings.otel)
    metrics.serve(settings.metrics_address)
