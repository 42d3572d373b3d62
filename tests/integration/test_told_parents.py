"""A run ends at the very moment its parent's call is looked at: whoever comes second makes the call due."""

import threading
from dataclasses import replace
from typing import Any

import pytest

from fencepost import commands as c
from fencepost.testing import fault
from tests.awaiting import until
from tests.integration.family import asked, due, grown, heard
from tests.integration.ledger_bench import Bench

WITHIN_S = 30
LOOKS = "looks"
STUCK = (
    "SELECT count(*) FROM pg_stat_activity"
    " WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%%outbox%%'"
)


@pytest.fixture
def family(bench: Bench) -> Bench:
    return grown(bench)


def test_an_end_that_meets_the_look_at_its_call_is_heard(
    family: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, call, child = asked(family, deadline_s=300)
    planned = family.claim_run(child)
    assert isinstance(family.one(planned), c.Plan)
    last = family.finish_with(family.turn(child, planned))
    # Whatever made it due early: a sweep, a person, a run that hurries its calls.
    family.sql("UPDATE fencepost.outbox SET due_at = fencepost.now() WHERE subject = %s", call)
    look = replace(family.claim_doubt(run, call), starts=True)
    inside, go_on = threading.Event(), threading.Event()

    def held(name: str) -> Any:
        if name == "ledger.in_transaction" and threading.current_thread().name == LOOKS:
            inside.set()
            assert go_on.wait(WITHIN_S)
        return fault(name)

    monkeypatch.setattr("fencepost.ledger.apply.fault", held)
    answers: dict[str, Any] = {}

    def apply_as(name: str, command: c.Command) -> threading.Thread:
        def work() -> None:
            answers[name] = family.one(command)

        thread = threading.Thread(target=work, name=name)
        thread.start()
        return thread

    looking = apply_as(LOOKS, look)
    try:
        assert inside.wait(WITHIN_S)  # it has read the run as going on, and holds the row of the call
        ending = apply_as("ends", last)
        until("the end waits or is told", lambda: "ends" in answers or family.sql(STUCK) != [(0,)], WITHIN_S)
    finally:
        go_on.set()
        looking.join(WITHIN_S)
    ending.join(WITHIN_S)
    assert answers == {LOOKS: c.Moved(), "ends": c.Done("COMPLETED")}  # its row goes back to where it stood
    assert due(family, call), "it was put off after the run had ended"
    assert heard(family, run, call) == c.Done("SUCCEEDED")
