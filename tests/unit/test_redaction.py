"""What a worker logs holds no credential it has used, however it came there."""

import json
import logging
import sys
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

from fencepost.dependencies import DependencySpec
from fencepost_workers import redaction
from fencepost_workers.redaction import Redaction
from fencepost_workers.tools.credentials import WITHHELD, Credentials

CANARY = "canary-7f3a/9c+e5"


def canary(value: str = CANARY) -> Credentials:
    return Credentials.of(DependencySpec("d", headers=(("Accept", "text/html"),)), (value,))


class Kept(logging.Handler):
    """What was logged, as text, and the records themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)
        self.texts.append(self.format(record))


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[logging.Logger, Kept]]:
    before = logging.getLogRecordFactory()
    monkeypatch.setattr(redaction, "PROCESS", Redaction())
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    redaction.install()
    redaction.PROCESS.learn(canary())
    logger, kept = logging.getLogger("test.redaction"), Kept()
    logger.addHandler(kept)
    logger.propagate = False
    yield logger, kept
    logger.removeHandler(kept)
    logging.setLogRecordFactory(before)


def raising() -> None:
    password = CANARY
    raise ValueError(f"422 for {password}")


def test_messages_arguments_and_tracebacks_are_cleaned(log: tuple[logging.Logger, Kept]) -> None:
    logger, kept = log
    logger.warning("sent %s to %s", CANARY, "somebody")
    logger.warning("sent %r", {"password": CANARY})
    logger.warning(f"sent {CANARY}")  # noqa: G004 - as people do
    logger.warning("sent %s", CANARY.replace("/", "%2F").replace("+", "%2b"))
    try:
        raising()
    except ValueError:
        logger.exception("it failed")
        logger.warning("again", exc_info=True, stack_info=True)
    assert all("canary" not in text for text in kept.texts)
    assert kept.texts[0] == "sent *** to somebody"
    assert "422 for ***" in kept.texts[4]
    assert "Traceback" in kept.texts[4]


def test_no_frame_goes_on_to_a_handler_that_would_print_its_locals(log: tuple[logging.Logger, Kept]) -> None:
    logger, kept = log
    try:
        raising()
    except ValueError:
        logger.exception("it failed")
    assert all(record.exc_info is None for record in kept.records)


def test_arguments_that_do_not_fit_are_not_printed_to_say_so(
    log: tuple[logging.Logger, Kept], capsys: pytest.CaptureFixture[str]
) -> None:
    logger, kept = log
    logger.warning("one %s and %s", CANARY)  # noqa: PLE1206 - the point
    assert kept.texts == ["one %s and %s (its arguments do not fit)"]
    assert CANARY not in capsys.readouterr().err


def test_what_ends_a_thread_is_logged_not_printed(
    log: tuple[logging.Logger, Kept], capsys: pytest.CaptureFixture[str]
) -> None:
    _, kept = log
    redaction.log.addHandler(kept)
    try:
        thread = threading.Thread(target=raising, name="the tool's own")
        thread.start()
        thread.join()
    finally:
        redaction.log.removeHandler(kept)
    assert "the tool's own ended" in kept.texts[0]
    assert "422 for ***" in kept.texts[0]
    assert CANARY not in capsys.readouterr().err


def test_where_nothing_is_known_records_stay_as_they_are() -> None:
    none = Redaction()
    none.learn(Credentials([]))
    try:
        raise ValueError(CANARY)
    except ValueError:
        record = logging.LogRecord("n", 30, "p", 1, "m %s", (CANARY,), sys.exc_info())
    none.clean(record)
    assert record.exc_info is not None
    assert record.getMessage() == f"m {CANARY}"


def test_a_clean_record_keeps_its_arguments() -> None:
    known = Redaction()
    known.learn(canary())
    arguments: Any = ("x", 7)
    record = logging.LogRecord("n", 30, "p", 1, "%s %d", arguments, None)
    known.clean(record)
    assert record.args == arguments


def test_the_last_ones_are_known_and_use_keeps_them_known() -> None:
    known = Redaction(most=2)
    first, second, third = (canary(f"secret-number-{n}") for n in range(3))
    for one in (first, second, first, third):
        known.learn(one)
    assert known.hide("secret-number-0 secret-number-1 secret-number-2") == "*** secret-number-1 ***"


@pytest.mark.parametrize("value", ["six-ch", CANARY, "пароль-ключ", 'quo"te\\back slash'])
def test_among_many_each_is_found_however_it_is_spelled(value: str) -> None:
    known = Redaction()
    for number in range(50):
        known.learn(canary(f"other-secret-{number}"))
    known.learn(canary(value))
    spellings = {value, json.dumps(value), json.dumps(json.dumps(value)), quote(value, safe="")}
    spellings.add(value.encode().decode("latin-1"))
    for spelled in spellings:
        assert known.hide(f"a{spelled}z") != f"a{spelled}z", spelled
    assert known.hide(value[:-1]) == value[:-1]


def test_numbers_no_character_has_do_not_make_logging_raise(log: tuple[logging.Logger, Kept]) -> None:
    logger, kept = log
    try:
        raise ValueError(f"the model said &#{'1' * 5000} and {CANARY}")
    except ValueError:
        logger.exception("a planner failed")
    assert "&#111" in kept.texts[0]
    assert "and ***" in kept.texts[0]


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError(CANARY)


def test_a_record_that_cannot_be_searched_is_withheld_and_nobody_is_told_by_an_error(
    log: tuple[logging.Logger, Kept], monkeypatch: pytest.MonkeyPatch
) -> None:
    logger, kept = log
    logger.warning(Mute())
    assert kept.texts == [WITHHELD]
    assert redaction.said(Mute()) == "Mute without a text"

    def broken(_data: bytes) -> Any:
        raise RecursionError(CANARY)

    monkeypatch.setattr(redaction, "readings", broken)
    try:
        raising()
    except ValueError:
        logger.warning("sent %s", CANARY, exc_info=True, stack_info=True)
    assert redaction.PROCESS.hide(CANARY) == WITHHELD
    assert kept.texts[1].startswith(WITHHELD)
    assert "canary" not in "".join(kept.texts)


def test_a_log_line_of_many_backslashes_is_cleaned_in_time() -> None:
    known = Redaction()
    known.learn(canary())
    assert known.hide(CANARY + "\\" * 1_000_000) == "***" + "\\" * 1_000_000
