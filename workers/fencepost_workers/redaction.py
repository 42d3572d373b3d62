"""Keeps the credentials and secrets this process has used out of its logs: messages and tracebacks.

They come in with each attempt; the last `MOST` sets of them are known. Not covered: what a tool prints by
itself, other encodings than `tools/credentials.py` knows, and fields that are logged beside the message.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any, Final

from fencepost.redaction import hidden
from fencepost_workers.tools.credentials import WITHHELD, Credentials, as_bytes, as_text, without
from fencepost_workers.tools.spellings import LEAST_BYTES, readings

log = logging.getLogger(__name__)

MOST: Final = 1024
"""More than a process has attempts at a time."""

_FORMATTER: Final = logging.Formatter()


class Redaction:
    """What hides the values one process has used."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._known: OrderedDict[tuple[str, ...], Credentials] = OrderedDict()
        self._lock = threading.Lock()

    def learn(self, credentials: Credentials) -> None:
        """Hide these from now on."""
        if not credentials.values:
            return
        with self._lock:
            self._known[credentials.values] = self._known.pop(credentials.values, credentials)
            if len(self._known) > self._most:
                self._known.popitem(last=False)

    def hide(self, text: str) -> str:
        """The text without them, and without what this process itself has to hide. Never raises: `WITHHELD`
        where it cannot be searched.
        """
        try:
            return hidden(as_text(self._hide(as_bytes(text))))
        except Exception:  # noqa: BLE001 - whoever logs an error must not meet another
            return WITHHELD

    def _hide(self, data: bytes) -> bytes:
        with self._lock:
            known = list(self._known.values())
        if not known:
            return data
        read = list(readings(data))  # once for all: undoing escapes is what costs
        begun = _begun((reading.data for reading in read), frozenset().union(*(one.starts for one in known)))
        spans: list[tuple[int, int]] = []
        for one in known:
            if not one.starts.isdisjoint(begun):
                spans += [span for reading in read for span in one.spans(reading)]
        return without(data, spans)

    def clean(self, record: logging.LogRecord) -> None:
        """Take them out of a record. Its exception becomes text: frames hold values nobody wrote down.

        Never raises; of a record that cannot be read or searched nothing is shown.
        """
        if not self._known:
            return
        try:
            self._clean(record)
        except Exception:  # noqa: BLE001 - whoever logs an error must not meet another
            record.msg, record.args = WITHHELD, None
            record.exc_info = record.exc_text = record.stack_info = None

    def _clean(self, record: logging.LogRecord) -> None:
        try:
            message = record.getMessage()
        except Exception:  # noqa: BLE001 - logging would print the arguments to say so
            record.msg, record.args = f"{record.msg} (its arguments do not fit)", None
            message = record.msg
        hidden = self.hide(message)
        if hidden != message:
            record.msg, record.args = hidden, None
        if record.exc_info and record.exc_info[0] is not None:
            record.exc_text = self.hide(_FORMATTER.formatException(record.exc_info))
            record.exc_info = None
        if record.stack_info:
            record.stack_info = self.hide(record.stack_info)


def _begun(read: Iterable[bytes], starts: frozenset[bytes]) -> set[bytes]:
    """Which of these beginnings occur: one walk through each, however many values are known."""
    return {
        start
        for data in read
        for at in range(len(data) - LEAST_BYTES + 1)
        if (start := data[at : at + LEAST_BYTES]) in starts
    }


PROCESS: Final = Redaction()
learn = PROCESS.learn


def said(error: Exception | str) -> str:
    """What an error says, without what this process has to hide: for a row that keeps it."""
    try:
        text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - an error that cannot say what it is
        text = f"{type(error).__name__} without a text"
    return PROCESS.hide(text)


def install() -> None:
    """Clean every record this process makes from now on, whoever logs it."""
    before = logging.getLogRecordFactory()

    def make(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = before(*args, **kwargs)
        PROCESS.clean(record)
        return record

    logging.setLogRecordFactory(make)
    threading.excepthook = _ended


def _ended(how: threading.ExceptHookArgs) -> None:
    """A thread of the application's own ended with an error, which Python would print as it is."""
    if how.exc_type is SystemExit or how.exc_value is None:
        return
    name = how.thread.name if how.thread is not None else "a thread"
    log.error("%s ended", name, exc_info=(how.exc_type, how.exc_value, how.exc_traceback))
