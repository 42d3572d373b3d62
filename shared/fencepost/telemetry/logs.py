"""Log lines of a process: one JSON object each, by structlog, or plain text. Written to stderr.

Whatever logs by Python's `logging` is rendered here, the application's tools and the libraries too, and says
what it belongs to (`correlation.said`). What is to be hidden has been taken out of a record before it comes
here. Arguments, results and prompts are in no line of ours.
"""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from collections.abc import MutableMapping
from types import TracebackType
from typing import Any, Final, Literal

from fencepost.errors import UsageError
from fencepost.redaction import hidden
from fencepost.telemetry import correlation

Form = Literal["text", "json"]
Level = Literal["debug", "info", "warning", "error"]

OURS: Final = ("fencepost", "fencepost_workers", "fencepost_relay", "fencepost_ops")
"""Loggers the level is set of; all others say what they say from `info` on."""
TEXT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_SHOWN: Final = ("tenant", "run", "turn", "call", "attempt")
"""What a line of plain text ends in, where it is known."""


class Text(logging.Formatter):
    """Lines for people: what a line belongs to stands at its end."""

    def __init__(self, form: str = TEXT) -> None:
        super().__init__(form)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - as logging calls it
        """As `Formatter.formatMessage`."""
        line, known = super().formatMessage(record), correlation.said()
        line = line.replace("\r", "\\r").replace("\n", "\\n")  # a message is one line, whatever it quotes
        if "run" not in known:
            return line
        told = [f"{name}={known[name]}" for name in _SHOWN if name in known]
        return f"{line} [{' '.join(told)}]"


class Redacted(logging.Formatter):
    """Lines as another formatter makes them, without what this process has to hide."""

    def __init__(self, inner: logging.Formatter) -> None:
        super().__init__()
        self._inner = inner

    def format(self, record: logging.LogRecord) -> str:
        """As `Formatter.format`."""
        return hidden(self._inner.format(record))


def uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """What Python prints of an error nobody caught, without what this process has to hide."""
    sys.stderr.write(hidden("".join(traceback.format_exception(kind, error, trace))))


def _of_thread(how: threading.ExceptHookArgs) -> None:
    if how.exc_value is not None and how.exc_type is not SystemExit:
        uncaught(how.exc_type, how.exc_value, how.exc_traceback)


def setup(form: Form, level: Level, text: str = TEXT, *, others: int = logging.INFO) -> None:
    """Render all lines of this process in this form from now on, unless whoever embeds it has set up logging
    already. UsageError without structlog, for JSON.
    """
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = uncaught
    if threading.excepthook is threading.__excepthook__:
        threading.excepthook = _of_thread
    root = logging.getLogger()
    if root.handlers:
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Redacted(json_lines() if form == "json" else Text(text)))
    root.addHandler(handler)
    root.setLevel(others)
    for name in OURS:
        logging.getLogger(name).setLevel(level.upper())
    if form == "json":
        logging.captureWarnings(capture=True)


def json_lines() -> logging.Formatter:
    """One JSON object a line. UsageError without structlog."""
    try:
        import structlog
    except ImportError:
        raise UsageError("FENCEPOST_LOG=json needs structlog: pip install 'fencepost[telemetry]'") from None
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[
            structlog.stdlib.add_log_level,
            structlog.stdlib.add_logger_name,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _belongs,
            _exception,
            structlog.processors.format_exc_info,
        ],
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.EventRenamer("message"),
            structlog.processors.JSONRenderer(),
        ],
        use_get_message=True,
    )


def _belongs(_: Any, __: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    line.update(correlation.said())
    return line


def _exception(_: Any, __: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A traceback that was made text already, so that what it must not say could be taken out of it."""
    if text := line["_record"].exc_text:
        line["exception"] = text
        line.pop("exc_info", None)
    return line
