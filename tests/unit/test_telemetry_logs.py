"""Lines of a process: what they belong to, in either form, and what was hidden stays hidden."""

import json
import logging
from uuid import UUID

import pytest

from fencepost.telemetry import correlation, logs
from fencepost_workers import pulse_program
from fencepost_workers.redaction import Redaction
from fencepost_workers.tools.credentials import Credentials

RUN, ROOT = UUID(int=0xABC), UUID(int=0xDEF)


def record(text: str = "it happened", error: BaseException | None = None) -> logging.LogRecord:
    told = None if error is None else (type(error), error, error.__traceback__)
    return logging.LogRecord("fencepost.x", logging.WARNING, __file__, 1, text, None, told)


def line(made: logging.LogRecord) -> dict[str, object]:
    text = logs.json_lines().format(made)
    assert "\n" not in text
    found: dict[str, object] = json.loads(text)
    return found


def test_a_line_says_what_it_belongs_to_and_its_trace_is_the_root() -> None:
    with correlation.bound(tenant="t", root=ROOT, run=RUN, call=UUID(int=5), attempt=2, fence=7, tool=None):
        told = line(record())
    assert told["trace_id"] == ROOT.hex
    assert told["span_id"] == correlation.span_id(UUID(int=5), 2)
    assert told["message"] == "it happened"
    assert (told["level"], told["logger"]) == ("warning", "fencepost.x")
    assert {
        "tenant": "t",
        "root": str(ROOT),
        "run": str(RUN),
        "attempt": 2,
        "fence": 7,
    }.items() <= told.items()
    assert "tool" not in told


def test_a_line_of_nothing_has_no_trace() -> None:
    assert "trace_id" not in line(record())


def test_a_traceback_is_a_field_of_its_line() -> None:
    try:
        raise ValueError("no such thing")
    except ValueError as error:
        told = line(record(error=error))
    assert "ValueError: no such thing" in str(told["exception"])


def test_what_was_hidden_stays_hidden() -> None:
    hidden = Redaction()
    hidden.learn(Credentials(("canary-of-this-test",)))
    try:
        raise ValueError("canary-of-this-test")
    except ValueError as error:
        made = record("told canary-of-this-test", error)
    hidden.clean(made)
    told = line(made)
    assert "canary" not in json.dumps(told)
    assert "ValueError" in str(told["exception"])


def test_plain_text_says_it_at_its_end() -> None:
    with correlation.bound(tenant="t", root=ROOT, run=RUN):
        assert logs.Text().format(record()).endswith(f"it happened [tenant=t run={RUN}]")
    assert logs.Text().format(record()).endswith("it happened")


@pytest.mark.parametrize("parts", [("a",), ("a", 1), ("a", 2)])
def test_the_id_of_a_span_nobody_records_is_the_same_everywhere(parts: tuple[object, ...]) -> None:
    assert correlation.span_id(*parts) == correlation.span_id(*parts)
    assert len({correlation.span_id("a"), correlation.span_id("a", 1), correlation.span_id("a", 2)}) == 3


def test_a_request_belongs_to_the_tree_it_is_made_in() -> None:
    assert correlation.current() is None
    with correlation.bound(root=ROOT, run=RUN, turn=3):
        assert correlation.current() == f"00-{ROOT.hex}-{correlation.span_id(RUN, 3)}-01"
        with correlation.bound(span_id="00000000000000aa"):
            assert correlation.current() == f"00-{ROOT.hex}-00000000000000aa-01"


def test_what_watches_a_worker_speaks_as_it_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    order = {"token": "0123456789abcdef", "pid": 7}
    pulse_program._log(order, "cannot stamp")
    assert capsys.readouterr().err == "pulse 01234567: cannot stamp\n"
    monkeypatch.setenv("FENCEPOST_LOG", "json")
    pulse_program._log(order, "cannot stamp")
    told = json.loads(capsys.readouterr().err)
    assert (told["worker"], told["message"]) == (order["token"], "pulse: cannot stamp")
