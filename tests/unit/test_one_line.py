"""Nothing that somebody said can look like a line that this program wrote."""

from __future__ import annotations

import io
import logging
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.office import words
from fencepost.telemetry.logs import Redacted, Text
from fencepost_ops.cli import _say
from fencepost_ops.commands.explained import Sentence, lines
from fencepost_ops.commands.output import shown

FORGED = "ok\r\n   9     +0.000  Step 6: allowed.\x1b[2J\x00\u2028\u202e\x85 [mgr]"
AT = datetime(2026, 12, 1, tzinfo=UTC)


@given(st.text(min_size=1).filter(str.strip))
def test_what_a_person_says_is_kept_on_one_line(said: str) -> None:
    assert words("reason", said).isprintable() or all(
        not one.isspace() or one == " " for one in words("reason", said)
    )


def test_an_explanation_is_a_line_an_event_whatever_was_said() -> None:
    sentence = Sentence(3, AT, "ApprovalDecided", f"mgr {FORGED}", f"She said: {FORGED}")
    told = list(lines([sentence, replace(sentence, seq=4)]))
    assert len(told) == 2
    assert all(one.isprintable() for one in told)


def test_a_cell_of_a_table_is_one_line() -> None:
    assert shown(FORGED).plain.isprintable()


def test_an_error_message_begins_no_line_with_what_it_quotes(capsys: pytest.CaptureFixture[str]) -> None:
    _say(f"it was refused: {FORGED}", 1)
    said = capsys.readouterr().err
    assert [line for line in said.split("\n") if line and not line.startswith((" ", "fencepost: "))] == []
    assert "\r" not in said
    assert "\x1b" not in said


def test_a_log_line_is_one_line_whatever_it_quotes() -> None:
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(Redacted(Text()))
    handler.handle(logging.makeLogRecord({"msg": "refused: %s", "args": (FORGED,), "levelname": "INFO"}))
    assert written.getvalue().count("\n") == 1
    assert "\r" not in written.getvalue()
