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

from fencepost_workers.tools.credentials import LEAST_CHARS, Credentials
from fencepost_workers.tools.spellings import readings

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
        """The text without them."""
        with self._lock:
            known = list(self._known.values())
        texts = (text, *readings(text))  # once for all: undoing escapes is what costs
        begun = _begun(texts, frozenset[str]().union(*(one.starts for one in known)))
        for one in known:
            if not one.starts.isdisjoint(begun) and one.found_in(texts):
                text = one.hide(text)
        return text

    def clean(self, record: logging.LogRecord) -> None:
        """Take them out of a record. Its exception becomes text: frames hold values nobody wrote down."""
        if not self._known:
            return
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


def _begun(texts: Iterable[str], starts: frozenset[str]) -> set[str]:
    """Which of these beginnings occur: one walk through the texts, however many values are known."""
    return {
        start
        for text in texts
        for at in range(len(text) - LEAST_CHARS + 1)
        if (start := text[at : at + LEAST_CHARS]) in starts
    }


PROCESS: Final = Redaction()
learn = PROCESS.learn


def said(error: Exception | str) -> str:
    """What an error says, without what this process has to hide: for a row that keeps it."""
    return PROCESS.hide(error if isinstance(error, str) else f"{type(error).__name__}: {error}")


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
