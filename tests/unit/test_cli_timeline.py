"""One run's history as people read it."""

import contextlib
import io
import json
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.text import Text

from fencepost.clock import NEVER, rfc3339
from fencepost.events import Event, EventType
from fencepost.ledger.listings import History, NextStep, WorkerInfo
from fencepost.subjects import Call, Run
from fencepost_ops.commands import output, timeline
from fencepost_ops.commands.output import STYLES, _fitting, print_table, shown, when
from fencepost_ops.commands.sayings import detail

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
RUN, CALL = UUID(int=1), UUID(int=2)
SECOND = timedelta(seconds=1)


def run(**changes: Any) -> Run:
    given: dict[str, Any] = {
        "tenant": "shop",
        "id": RUN,
        "run_key": "o-1",
        "planner": "fulfil",
        "planner_version": 2,
        "principal": "svc:checkout",
        "request": "{}",
        "on_stop": "compensate",
        "created_at": NOW - 10 * SECOND,
        "deadline": NOW + 50 * SECOND,
        "status": "ACTING",
    }
    return Run(**{**given, **changes})


def call(**changes: Any) -> Call:
    given: dict[str, Any] = {
        "tenant": "shop",
        "id": CALL,
        "run": RUN,
        "turn": 1,
        "ordinal": 0,
        "label": "debit",
        "tool": "wallet.debit",
        "tool_version": 1,
        "effect": "reversible",
        "operation": "k",
        "scope": "wallet/default",
        "compensates": None,
        "arguments": "{}",
        "arguments_hash": "1:x",
        "required": True,
        "state": "DISPATCHING",
    }
    return Call(**{**given, **changes})


def event(kind: str, body: dict[str, Any], seq: int = 1, **changes: Any) -> Event:
    given: dict[str, Any] = {
        "tenant": "shop",
        "run": RUN,
        "seq": seq,
        "id": UUID(int=100 + seq),
        "type": kind,
        "version": 1,
        "call": None,
        "attempt": None,
        "body": json.dumps(body),
        "digest": "",
        "principal": "svc:checkout",
        "worker": None,
        "fence": None,
        "policy": None,
        "causation": UUID(int=50),
        "recorded_at": NOW,
        "projection": None,
        "prev_hash": "",
        "hash": "",
    }
    return Event(**{**given, **changes})


def step(**changes: Any) -> NextStep:
    given: dict[str, Any] = {
        "subject": RUN,
        "kind": "run",
        "run": RUN,
        "queue": "planner",
        "generation": 3,
        "due_at": NOW,
        "publish_at": NOW,
        "publish_count": 0,
        "takeovers": 0,
        "worker": None,
        "fence": 1,
    }
    return NextStep(**{**given, **changes})


def history(**changes: Any) -> History:
    empty: dict[str, Any] = {"calls": (), "events": (), "steps": (), "evidence": (), "workers": {}}
    return History(**{"now": NOW, "run": run(), **empty, **changes})


WORKER = WorkerInfo("w-1", "dispatcher", "host", 4242, NOW, NOW, None)


def test_events_of_one_change_stand_under_its_time_its_worker_and_its_term() -> None:
    owner = "abcdef0123456789"
    term = {"worker": owner, "fence": 7, "call": CALL}
    lease = {"owner": owner, "fence": 7, "worker": "w-1"}
    events = (
        event("LeaseAcquired", lease, 1, **term),
        event("ToolAttemptStarted", {"deadline": rfc3339(NOW + 2 * SECOND)}, 2, attempt=1, **term),
        event("ToolResultRecorded", {"receipt": "d-1"}, 3, attempt=1, causation=UUID(int=51), **term),
    )
    rows = list(timeline.event_rows(history(calls=(call(),), events=events, workers={"w-1": WORKER})))
    change = ("+10.000", "dispatcher host:4242", "term abcdef/7", "")
    assert [tuple(map(str, row)) for row in rows] == [
        change,
        ("1", "LeaseAcquired", "wallet.debit debit", "fence 7"),
        ("2", "ToolAttemptStarted", "wallet.debit debit #1", "2 s to answer"),
        change,
        ("3", "ToolResultRecorded", "wallet.debit debit #1", "receipt d-1"),
    ]


def test_who_decided_without_a_term_is_named() -> None:
    cancelled = event("CancelRequested", {"reason": "not wanted"}, principal="pat")
    (change, row) = timeline.event_rows(history(events=(cancelled,)))
    assert [str(cell) for cell in change] == ["+10.000", "by pat", "", ""]
    assert row[3] == "not wanted"


def test_a_worker_nobody_remembers_is_a_question_mark() -> None:
    lost = event("ToolResultRecorded", {"receipt": None}, worker="f" * 32, fence=3)
    (change, _) = timeline.event_rows(history(events=(lost,)))
    assert [str(cell) for cell in change][1:3] == ["?", "term ffffff/3"]


def test_bodies_are_shown_when_asked_for_and_never_raw() -> None:
    hostile = replace(event("CallCancelled", {}), body='{"reason":"\x1b[2J"}')
    (_, row) = timeline.event_rows(history(events=(hostile,)), bodies=True)
    assert row[3] == '{"reason":"\\u001b[2J"}'


@pytest.mark.parametrize(
    ("kind", "body", "said"),
    [
        ("RunCreated", {"planner": "fulfil", "planner_version": 2}, "fulfil v2"),
        ("ModelRequestStarted", {"turn": 3}, "turn 3"),
        ("ModelResponseRecorded", {"turn": 1, "proposals": 2, "objection": None}, "turn 1, 2 proposed"),
        (
            "ModelResponseRecorded",
            {"turn": 1, "proposals": 0, "objection": "too early"},
            "turn 1, 0 proposed; too early",
        ),
        ("ModelOutcomeUnknown", {"code": "timeout", "message": "no answer"}, "timeout: no answer"),
        ("RunCompleted", {"preview": '{"ok":true}'}, '{"ok":true}'),
        (
            "RunStopping",
            {"reason": "tool_failed", "detail": "wallet.debit: 402"},
            "tool_failed: wallet.debit: 402",
        ),
        ("RunStopped", {"offset": [1], "not_offset": []}, "1 offset, 0 not offset"),
        ("ToolProposalRecorded", {"arguments": "{}", "compensates": "k"}, "offsets an effect: {}"),
        ("AuthorizationAllowed", {"phase": "claim", "reason": "granted"}, "claim: granted"),
        (
            "AuthorizationDenied",
            {"phase": "claim", "code": "d", "reason": "ann is d", "message": "not authorised (d): ann is d"},
            "claim: not authorised (d): ann is d",
        ),
        (
            "DispatchIntentRecorded",
            {"waits": True, "ready_at": rfc3339(NOW + 5 * SECOND)},
            "waits for another call of its key; due in 5 s",
        ),
        ("ResultReused", {"receipt": "d-1", "from": "c"}, "receipt d-1 of call c"),
        (
            "ToolAttemptStarted",
            {"deadline": rfc3339(NOW + 2 * SECOND), "repeat": True},
            "2 s to answer, a repeat under the same key",
        ),
        (
            "ToolAttemptFailed",
            {"code": "429", "message": "slow down", "final": False, "ready_at": rfc3339(NOW + SECOND)},
            "429: slow down (again in 1 s)",
        ),
        (
            "ToolAttemptFailed",
            {"code": "402", "message": "no funds", "final": True, "ready_at": rfc3339(NOW)},
            "402: no funds (final)",
        ),
        ("ToolOutcomeMarkedUnknown", {"code": "timeout", "message": "no answer"}, "timeout: no answer"),
        (
            "ToolLookupRecorded",
            {"lookup": '{"answer":"absent","receipt":null,"detail":""}', "ready_at": rfc3339(NOW)},
            "absent; due at once",
        ),
        ("ToolLookupRecorded", {"lookup": "not JSON", "ready_at": rfc3339(NOW)}, "not JSON"),
        (
            "ReconciliationDeferred",
            {"reason": "the window is over", "ready_at": rfc3339(NEVER)},
            "the window is over; due never by itself",
        ),
        (
            "ToolEffectReconciled",
            {"to": "SUCCEEDED", "proof": "lookup", "receipt": "d-1"},
            "SUCCEEDED: proof lookup, receipt d-1",
        ),
        ("RepairRequested", {"reason": "two receipts"}, "two receipts"),
        ("EvidenceFiled", {"applied": True, "code": "applied", "receipt": "d-1"}, "applied, receipt d-1"),
        ("EvidenceFiled", {"applied": False, "code": "402", "receipt": None}, "not applied: 402"),
        ("CallCancelled", {"reason": "the run stopped"}, "the run stopped"),
        ("NeverHeardOf", {"reason": "some day"}, "some day"),
        ("ToolAttemptFailed", {"other": 1}, '{"other": 1}'),
    ],
)
def test_every_event_says_what_matters_in_a_few_words(kind: str, body: dict[str, Any], said: str) -> None:
    assert detail(event(kind, body)) == said


def test_no_type_of_event_can_break_the_timeline() -> None:
    for kind in EventType:
        assert isinstance(detail(event(kind, {})), str)


@pytest.mark.parametrize(
    ("next_step", "line"),
    [
        (step(), "next: the run: the planner is asked for a turn, due 0 ms ago"),
        (step(due_at=NOW + 50 * SECOND), "next: the run: its deadline, due in 50 s"),
        (
            step(due_at=NOW + SECOND, worker="w-1", publish_count=3),
            (
                "next: the run: taken over by the planner unless its worker answers, due in 1 s"
                " · held by dispatcher host:4242 · published 3 times"
            ),
        ),
        (
            step(subject=CALL, kind="call", queue="dispatcher"),
            "next: call wallet.debit debit: the dispatcher sends it, due 0 ms ago",
        ),
        (
            step(subject=CALL, kind="call", queue="reconciler", due_at=NEVER),
            "next: call wallet.debit debit: it needs repair, when a person acts",
        ),
        (
            step(queue="compensator", due_at=NEVER),
            "next: the run: its calls settle first",
        ),
    ],
)
def test_what_happens_next_is_said_with_its_time(next_step: NextStep, line: str) -> None:
    told = timeline.following(history(calls=(call(),), steps=(next_step,), workers={"w-1": WORKER}))
    assert next(told) == line


def test_a_run_waits_for_a_person_only_where_one_of_its_calls_does() -> None:
    waits = history(calls=(call(state="NEEDS_REPAIR"),), steps=(step(queue="compensator", due_at=NEVER),))
    assert next(timeline.following(waits)) == "next: the run: its calls settle first, when a person acts"


def test_a_run_with_nothing_left_says_so() -> None:
    assert list(timeline.following(history())) == ["nothing is left to happen"]


def test_a_call_that_needs_repair_comes_with_the_command_that_settles_it() -> None:
    told = list(timeline.following(history(calls=(call(state="NEEDS_REPAIR"),))))
    assert told[-1].startswith(f"settle it: fencepost repair {CALL} --reason TEXT (--happened --receipt R | ")


def test_the_header_says_who_asked_and_why_it_stopped() -> None:
    stopped = run(status="STOPPED", stop_reason="tool_failed", stop_detail="402", preview="{}")
    told = "\n".join(timeline.header(history(run=stopped)))
    assert told.startswith(f"run {RUN}  STOPPED (tool_failed: 402)\n")
    assert "key o-1 · tenant shop · principal svc:checkout" in told
    assert "(in 50 s)" not in told
    blocked = run(open=1, repairs=1)
    assert next(timeline.header(history(run=blocked))) == f"run {RUN}  ACTING, waits for a person"


def test_a_call_shows_where_its_result_is_from_and_whether_it_is_in_doubt() -> None:
    calls = (
        call(reused=True, state="SUCCEEDED", preview="{}", receipt="d-1"),
        replace(call(), doubt=True, attempts=2, error="timeout"),
    )
    reused, doubtful = timeline.call_rows(history(calls=calls))
    assert reused[5:] == ("d-1", "of another call: {}", CALL)
    assert doubtful[3:7] == ("DISPATCHING (in doubt)", 2, None, "timeout")


def test_what_is_not_due_yet_says_why() -> None:
    later = step(subject=CALL, kind="call", queue="dispatcher", due_at=NOW + 14.6 * SECOND)
    undo = call(compensates="k-1", state="INTENT_RECORDED")
    (told,) = timeline.following(history(calls=(undo,), steps=(later,)))
    assert "due in 14.6 s: not before what was sent for its effect can land no more" in told
    said = event("CallDeferred", {"reason": "dependency wallet is closed"}, call=CALL)
    (told,) = timeline.following(history(calls=(undo,), steps=(later,), events=(said,)))
    assert "due in 14.6 s: dependency wallet is closed" in told


# -- tables ------------------------------------------------------------------------------------------------


def test_columns_that_do_not_fit_are_left_out_from_the_right() -> None:
    columns = ["RUN!", "KEY", "TENANT?", "AGE>?"]
    cells = [[Text("r" * 10), Text("k" * 10), Text("t" * 10), Text("1 s")]]
    assert _fitting(columns, cells, 41) == [0, 1, 2, 3]
    assert _fitting(columns, cells, 38) == [0, 1, 2]
    assert _fitting(columns, cells, 30) == [0, 1]
    assert _fitting(columns, cells, 5) == [0, 1]


def at_width(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    made = partial(Console, width=width, markup=False, highlight=False, emoji=False, force_terminal=False)
    monkeypatch.setattr(output, "console", lambda: made(file=sys.stdout))


@given(
    widths=st.lists(st.integers(0, 150), min_size=1, max_size=9),
    marks=st.lists(st.sampled_from(["", "?", "!", ">", "!?", ">?"]), min_size=9, max_size=9),
)
def test_nothing_of_a_table_is_lost_in_a_hundred_columns(widths: list[int], marks: list[str]) -> None:
    names = [f"C{n}" for n in range(len(widths))]
    columns = [name + mark for name, mark in zip(names, marks, strict=False)]
    cells = [chr(ord("a") + n) * width for n, width in enumerate(widths)]
    out, said = io.StringIO(), io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patched,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(said),
    ):
        at_width(patched, 100)
        print_table(columns, [cells])
    for name, cell in zip(names, cells, strict=True):
        if name not in said.getvalue():
            assert out.getvalue().count(cell[:1] or "\0") == len(cell), (name, out.getvalue())


def test_what_is_left_out_of_a_table_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    at_width(monkeypatch, 40)
    print_table(["RUN!", "WHY?", "AGE?"], [("r" * 30, "w" * 30, "a" * 30)])
    told = capsys.readouterr()
    assert told.err == "left out: WHY, AGE; a wider terminal or --json shows all\n"
    print_table(["RUN!", "CALL!"], [("r" * 30, "c" * 30)])  # both may never be broken
    told = capsys.readouterr()
    assert (told.out, told.err) == (f"RUN  {'r' * 30}\n  CA {'c' * 30}\n".replace("CA", "CALL"), "")


def test_a_table_in_a_pipe_is_never_broken(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["A", "B?"], [("x" * 300, "y" * 300)])
    assert capsys.readouterr().out.splitlines()[1] == "x" * 300 + "  " + "y" * 300
    print_table(["A"], [], empty="nothing")
    assert capsys.readouterr().out == "nothing\n"


def test_cells_hide_nothing_and_break_no_line() -> None:
    assert shown("a\nb\tc\x1b[0m\u202e").plain == "a ⏎ b c\\u001b[0m\\u202e"
    assert shown(None).plain == ""
    assert shown("UNKNOWN").style == STYLES["UNKNOWN"]
    assert len(shown("x" * 10_000).plain) == 400


def test_moments_are_told_from_now() -> None:
    assert when(None, NOW) == ""
    assert when(NEVER, NOW) == "when a person acts"
    assert when(NOW + SECOND, NOW) == "in 1 s"
    assert when(NOW - SECOND, NOW) == "1 s ago"
