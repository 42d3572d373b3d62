"""A run whose planner is a model, and the model's provider closed, failing or full: what its claim does, and
what its answers tell the fleet.
"""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest

from fencepost import commands as c
from fencepost import machine
from fencepost.breaker import State
from fencepost.dependencies import DependencySpec
from fencepost.events import Event, EventType
from fencepost.ledger.apply import Ledger
from fencepost.models import AgentSpec, ModelSpec, Spent, Wire
from fencepost.moves import Fact
from fencepost.subjects import Run
from fencepost_ops.checker import check
from tests.integration.ledger_app import SECOND
from tests.integration.ledger_bench import Bench
from tests.integration.test_gate import about_dependencies, known, statements

__all__ = ["statements"]  # a fixture

How = tuple[str, timedelta | None]
"""How an answer was lost: a code, and what the provider asked for."""
ONE, OTHER = "one/default", "other/default"
BUSY: How = ("http_429", 7 * SECOND)
DOWN: How = ("http_503", None)
SLOW: How = ("timeout", None)
BROKEN: How = ("connection_lost", None)
DRAINED: How = (c.DRAINED, None)
GARBLED: How = ("malformed_answer", None)


def model(name: str, timeout: timedelta = 60 * SECOND, **limits: Any) -> ModelSpec:
    spec = DependencySpec(name, "http://127.0.0.1:9", **limits)
    return ModelSpec(name=name, wire=Wire.CHAT, model="m", dependency=spec, timeout=timeout)


class Fleet:
    """A bench whose planner `p` is a model, and how its runs are claimed and answered."""

    def __init__(self, bench: Bench, *models: ModelSpec) -> None:
        self.bench = bench
        agent = AgentSpec(models=models, instructions="help")
        self.scope = models[0].scope
        self.changes: dict[str, Any] = {
            "agent": lambda _name, _version: agent,
            "providers": frozenset(one.scope for one in models),
            "limited": frozenset(one.scope for one in models if one.dependency.limited),
        }
        self.ledger: Ledger = bench.ledger_as("worker", **self.changes)

    def claim(self, run: UUID, *, scope: str | None = None) -> tuple[c.Answer, c.Term]:
        asked = replace(self.bench.claim_run(run), scope=self.scope if scope is None else scope)
        (answer,) = self.ledger.apply([asked])
        return answer, asked.term

    def asked(self, run: UUID) -> c.Term:
        answer, term = self.claim(run)
        assert isinstance(answer, c.Plan), answer
        return term

    def lost(self, run: UUID, term: c.Term, how: How, **more: Any) -> c.RecordPlanLost:
        code, wait = how
        named: dict[str, Any] = {"code": code, "message": "gone", "retry_after": wait, "scope": self.scope}
        return c.RecordPlanLost(**self.bench.base(run) | {"rand": 0.0}, term=term, **named | more)

    def lose(self, run: UUID, term: c.Term, how: How, **more: Any) -> Event:
        assert self.ledger.apply([self.lost(run, term, how, **more)]) == [c.Done("PLANNING")]
        return self.bench.events(run)[-1]

    def answer(self, run: UUID, term: c.Term) -> None:
        turn = c.RecordTurn(
            **self.bench.base(run), term=term, turn=1, seen=0, scope=self.scope, spent=Spent(5)
        )
        assert self.ledger.apply([turn]) == [c.Done("ACTING")]

    def late(self, run: UUID, term: c.Term, answered: bool) -> c.Answer:
        said: dict[str, Any] = {"term": term, "scope": self.scope, "spent": Spent(5)}
        turn = c.RecordTurn(**self.bench.base(run), turn=1, seen=0, **said)
        (answer,) = self.ledger.apply([turn if answered else self.lost(run, term, DRAINED)])
        return answer

    def fail(self, how: How, times: int) -> None:
        """So many runs of others lose an answer like this."""
        for _ in range(times):
            run = self.bench.start()
            self.lose(run, self.asked(run), how)


@pytest.fixture
def fleet(bench: Bench) -> Fleet:
    return Fleet(bench, model("one"))


def test_a_closed_provider_sends_a_run_back_without_a_turn_a_failure_or_a_reservation(fleet: Fleet) -> None:
    fleet.fail(BUSY, 1)
    bench = fleet.bench
    held = known(bench, ONE)
    assert (held.state, held.reason) == (State.OPEN, "http_429, Retry-After 7 s")
    run = bench.start()
    answer, term = fleet.claim(run)
    assert answer == c.Done("QUEUED")
    assert bench.kinds(run) == ["RunCreated", "PlanDeferred"]
    said = bench.events(run)[-1].data
    assert said["reason"] == f"dependency {ONE} is open: http_429, Retry-After 7 s"
    assert said["breaker"] == "open"
    back = bench.run(run)
    assert (back.requests, back.failures, back.owner, back.held_tokens) == (0, 0, None, 0)
    assert back.fence == term.fence
    row = bench.row(run)
    assert row is not None
    assert held.closed_until is not None
    assert held.closed_until < row.due_at < held.closed_until + SECOND
    bench.ahead(9)
    fleet.answer(run, fleet.asked(run))
    assert known(bench, ONE).state == State.CLOSED


def test_a_run_between_two_turns_waits_where_it_stands(fleet: Fleet) -> None:
    run = fleet.bench.start()
    fleet.answer(run, fleet.asked(run))
    fleet.fail(BUSY, 1)
    assert fleet.claim(run)[0] == c.Done("ACTING")
    assert fleet.bench.run(run).turn == 1


def test_a_claim_that_was_recorded_is_answered_again_as_put_off(fleet: Fleet) -> None:
    fleet.fail(BUSY, 1)
    run = fleet.bench.start()
    claim = replace(fleet.bench.claim_run(run), scope=ONE)
    assert fleet.ledger.apply([claim]) == [c.Done("QUEUED")]
    assert fleet.ledger.apply([claim]) == [c.Done("QUEUED")]
    assert fleet.bench.kinds(run).count("PlanDeferred") == 1


@pytest.mark.parametrize("named", ["", OTHER])
def test_a_worker_that_names_no_provider_or_another_is_held_up_all_the_same(fleet: Fleet, named: str) -> None:
    run = fleet.bench.start()
    fleet.lose(run, fleet.asked(run), BUSY, scope=named)
    assert known(fleet.bench, ONE).state == State.OPEN
    assert fleet.claim(fleet.bench.start(), scope=named)[0] == c.Done("QUEUED")


def test_one_run_at_a_time_tries_it_again_and_its_answer_opens_it(fleet: Fleet) -> None:
    fleet.fail(BUSY, 1)
    runs = [fleet.bench.start() for _ in range(3)]
    fleet.bench.ahead(8)
    terms = [fleet.claim(run) for run in runs]
    assert [type(answer) for answer, _ in terms] == [c.Plan, c.Done, c.Done]
    assert known(fleet.bench, ONE).state == State.HALF_OPEN
    event = fleet.lose(runs[0], terms[0][1], GARBLED)
    assert "outage" not in event.data
    assert known(fleet.bench, ONE).state == State.CLOSED, "a malformed answer is one"


def test_the_deadline_of_a_run_binds_while_its_provider_is_closed(fleet: Fleet) -> None:
    fleet.fail(("http_429", timedelta(minutes=30)), 1)
    run = fleet.bench.start(deadline_s=20)
    assert fleet.claim(run)[0] == c.Done("QUEUED")
    row = fleet.bench.row(run)
    assert row is not None
    assert row.due_at == fleet.bench.run(run).deadline
    fleet.bench.ahead(21)
    assert fleet.claim(run)[0] == c.Done("STOPPED")
    assert fleet.bench.run(run).stop_reason == "deadline_exceeded"


def test_an_outage_of_minutes_ends_no_run(fleet: Fleet) -> None:
    bench, run = fleet.bench, fleet.bench.start(deadline_s=3600)
    for _ in range(12):
        fleet.lose(run, fleet.asked(run), DOWN, spent=Spent())
        bench.ahead(31)
    event = bench.events(run)[-1]
    assert event.data["outage"] is True
    assert event.data["taken"] is False
    lost = bench.run(run)
    assert (lost.failures, lost.outages) == (12, 11), "the first alone could have been its own"
    assert lost.requests == 1, "what was turned away unread is no turn"
    fleet.answer(run, fleet.asked(run))
    well = bench.run(run)
    assert (well.failures, well.outages, well.requests) == (0, 0, 2)


def test_what_only_one_run_meets_is_its_own_failure(fleet: Fleet) -> None:
    bench, run = fleet.bench, fleet.bench.start(deadline_s=3600)
    for _ in range(4):
        fleet.lose(run, fleet.asked(run), DOWN)
        other = bench.start()
        fleet.answer(other, fleet.asked(other))
        bench.ahead(11)
    assert fleet.ledger.apply([fleet.lost(run, fleet.asked(run), DOWN)]) == [c.Done("STOPPED")]
    assert not any("outage" in event.data for event in bench.events(run))
    stopped = bench.run(run)
    assert (stopped.stop_reason, stopped.stop_detail) == (
        "planner_failed",
        "the planner failed 5 times in a row; the last time: http_503: gone",
    )


SET_UP = ["http_401", "http_402", "http_403", "http_404", "http_307", "secret_unavailable"]


@pytest.mark.parametrize("code", SET_UP)
def test_what_is_wrong_with_the_deployment_ends_no_run_and_costs_no_turn(fleet: Fleet, code: str) -> None:
    bench, run = fleet.bench, fleet.bench.start(deadline_s=3600)
    for _ in range(12):
        event = fleet.lose(run, fleet.asked(run), (code, None), spent=Spent())
        assert (event.data["outage"], event.data["taken"]) == (True, False)
        bench.ahead(61)
    waits = bench.run(run)
    assert (waits.failures, waits.outages, waits.requests) == (12, 12, 0)
    fleet.answer(run, fleet.asked(run))
    assert bench.run(run).failures == 0


def test_an_account_that_is_taken_no_more_closes_its_provider_for_all(fleet: Fleet) -> None:
    fleet.fail(("http_401", None), 20)
    assert known(fleet.bench, ONE).reason == "20 failures in a row, the last http_401"
    assert fleet.claim(fleet.bench.start())[0] == c.Done("QUEUED")


def test_a_model_there_is_not_closes_nothing_for_the_others(fleet: Fleet) -> None:
    fleet.fail(("http_404", None), 25)
    fleet.asked(fleet.bench.start())


def test_a_run_whose_model_is_set_up_wrong_is_asked_for_every_minute(fleet: Fleet) -> None:
    bench, run = fleet.bench, fleet.bench.start(deadline_s=3600)
    for _ in range(12):
        lost = fleet.lost(run, fleet.asked(run), ("http_404", None), spent=Spent())
        fleet.ledger.apply([replace(lost, rand=0.5)])
        bench.ahead(61)
    assert (bench.run(run).ready_at - bench.events(run)[-1].recorded_at).total_seconds() == 30


def test_lost_answers_may_be_billed_and_cost_their_turn(fleet: Fleet) -> None:
    fleet.fail(BROKEN, 3)
    run = fleet.bench.start()
    event = fleet.lose(run, fleet.asked(run), BROKEN)
    assert event.data["outage"] is True
    assert "taken" not in event.data
    assert fleet.bench.run(run).requests == 1


def test_twenty_lost_answers_close_it_and_a_planner_that_errs_says_nothing_of_it(fleet: Fleet) -> None:
    fleet.fail(BROKEN, 19)
    fleet.fail(("planner_error", None), 1)
    assert (known(fleet.bench, ONE).state, known(fleet.bench, ONE).failures) == (State.CLOSED, 19)
    fleet.fail(BROKEN, 1)
    assert known(fleet.bench, ONE).reason == "20 failures in a row, the last connection_lost"


def test_a_slow_provider_is_not_an_ill_one(fleet: Fleet) -> None:
    fleet.fail(BROKEN, 5)
    fleet.fail(SLOW, 25)
    held = known(fleet.bench, ONE)
    assert (held.state, held.failures) == (State.CLOSED, 5)
    run = fleet.bench.start()
    fleet.answer(run, fleet.asked(run))


@pytest.mark.parametrize(
    ("declared", "deadline_s", "has"),
    [(None, 7200, 4500), (None, 600, 600), (7 * SECOND, 7200, 7), (9000 * SECOND, 7200, 7200)],
)
def test_a_model_has_the_time_it_declares_and_no_other_number_cuts_it(
    bench: Bench, declared: timedelta | None, deadline_s: int, has: int
) -> None:
    """Neither its dependency's `per_attempt` nor a number of the fleet's."""
    fleet = Fleet(bench, model("one", 4500 * SECOND, per_attempt=2 * SECOND))
    run = bench.start(deadline_s=deadline_s)
    asked = replace(bench.claim_run(run), scope=ONE, cap=declared)
    (answer,) = fleet.ledger.apply([asked])
    assert isinstance(answer, c.Plan)
    assert abs(answer.timeout.total_seconds() - has) < 2
    row = bench.row(run)
    assert row is not None  # nobody takes it over before
    assert row.due_at == bench.events(run)[-1].recorded_at + answer.timeout + asked.grace


def test_the_model_that_is_asked_in_anothers_place_has_its_own_time(bench: Bench) -> None:
    fleet = Fleet(bench, model("one", 5 * SECOND), model("other", 900 * SECOND))
    fleet.fail(BUSY, 1)
    run = bench.start(deadline_s=7200)
    (answer,) = fleet.ledger.apply([replace(bench.claim_run(run), scope=ONE, cap=None)])
    assert isinstance(answer, c.Plan)
    assert answer.timeout == 900 * SECOND


def test_an_answer_is_one_whatever_it_says(fleet: Fleet) -> None:
    fleet.fail(BROKEN, 19)
    fleet.fail(GARBLED, 1)
    assert known(fleet.bench, ONE).failures == 0


def test_a_provider_that_is_well_costs_one_read_and_a_planner_without_a_model_none(
    bench: Bench, statements: list[str]
) -> None:
    fleet, run = Fleet(bench, model("one")), bench.start()
    plain = bench.start()
    statements.clear()
    term = fleet.asked(run)
    assert about_dependencies(statements) == ["SELECT"]
    fleet.answer(run, term)
    assert about_dependencies(statements) == ["SELECT", "SELECT"]
    statements.clear()
    bench.plan(plain)
    assert about_dependencies(statements) == []


def test_a_limit_of_the_provider_holds_for_the_fleet_and_writes_nothing(bench: Bench) -> None:
    fleet = Fleet(bench, model("one", concurrency=2))
    runs = [bench.start(), bench.start()]
    first, _ = [fleet.asked(run) for run in runs]
    waits = bench.start()
    answer, _ = fleet.claim(waits)
    assert isinstance(answer, c.Full)
    assert (answer.scope, answer.limit) == (ONE, "concurrency")
    assert bench.kinds(waits) == []
    fleet.answer(runs[0], first)
    fleet.asked(waits)


def test_who_takes_over_a_lost_worker_and_finds_no_room_comes_back(bench: Bench) -> None:
    fleet = Fleet(bench, model("one", concurrency=1))
    lost = bench.start()
    fleet.asked(lost)
    bench.ahead(3.1)  # cap and grace are over, and its place is free
    fleet.asked(bench.start())
    assert fleet.claim(lost)[0] == c.Done("PLANNING")
    assert bench.kinds(lost)[-2:] == ["ModelOutcomeUnknown", "PlanDeferred"]
    assert bench.events(lost)[-1].data["reason"] == f"dependency {ONE}: its concurrency is used up"
    back = bench.run(lost)
    assert (back.status, back.owner, back.failures) == ("PLANNING", None, 1)


def test_a_closed_provider_is_passed_over_for_the_next_model(bench: Bench) -> None:
    fleet = Fleet(bench, model("one"), model("other"))
    fleet.fail(BUSY, 1)
    run = bench.start()
    answer, term = fleet.claim(run)
    assert isinstance(answer, c.Plan)
    assert (answer.run.failures, answer.run.outages) == (2, 2), "whom to ask follows from it"
    assert bench.kinds(run) == ["RunCreated", "ModelPassedOver", "LeaseAcquired", "ModelRequestStarted"]
    assert bench.events(run)[-1].data["model"] == "other"
    fleet.answer(run, term)
    assert bench.run(run).failures == 0
    assert known(bench, ONE).state == State.OPEN, "it was not the one that answered"


def test_a_run_comes_back_when_the_first_of_its_closed_providers_may_be_tried(bench: Bench) -> None:
    fleet = Fleet(bench, model("one"), model("other"))
    bench.sql(
        "INSERT INTO fencepost.dependencies (scope, state, closed_until, reason, opens, opened_at)"
        " SELECT w.scope, 'open', fencepost.now() + w.wait, 'http_503', 1, fencepost.now()"
        " FROM (VALUES (%s, interval '20 s'), (%s, interval '5 s')) AS w (scope, wait)",
        ONE,
        OTHER,
    )
    run = bench.start()
    at = bench.now()
    assert fleet.claim(run)[0] == c.Done("QUEUED")
    row = bench.row(run)
    assert row is not None
    assert 4 * SECOND < row.due_at - at < 7 * SECOND


def test_a_cancel_reaches_a_run_that_waits_for_its_provider(fleet: Fleet) -> None:
    fleet.fail(BUSY, 1)
    run = fleet.bench.start()
    fleet.claim(run)
    assert isinstance(fleet.bench.cancel(run), c.Done)
    assert fleet.bench.status(run) == "STOPPED"


Rule = Callable[[Run, Fact], dict[str, Any]]


def changed(monkeypatch: pytest.MonkeyPatch, kind: EventType, rule: Rule) -> None:
    """A process that follows another rule than the one it was released with."""
    monkeypatch.setitem(machine._RUN_RULES, kind, rule)


@pytest.mark.parametrize("status", ["QUEUED", "ACTING"])
def test_postgres_lets_nobody_hold_a_run_that_was_put_off(
    fleet: Fleet, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = fleet.bench.start()
    if status == "ACTING":
        fleet.answer(run, fleet.asked(run))
    fleet.fail(BUSY, 1)
    rule = machine._RUN_RULES[EventType.PLAN_DEFERRED]
    changed(monkeypatch, EventType.PLAN_DEFERRED, lambda r, f: rule(r, f) | {"owner": f.event.worker})
    answer, _ = fleet.claim(run)
    assert answer == c.Broken(f"run {run}: nobody holds it while it is {status}")


def test_postgres_takes_no_turn_back_but_by_the_event_that_says_so(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = fleet.bench.start()
    term = fleet.asked(run)
    rule = machine._RUN_RULES[EventType.MODEL_OUTCOME_UNKNOWN]
    kind = EventType.MODEL_OUTCOME_UNKNOWN
    with monkeypatch.context() as patched:
        changed(patched, kind, lambda r, f: rule(r, f) | {"requests": r.requests - 1})
        lost = fleet.lost(run, term, BROKEN)
        (answer,) = fleet.ledger.apply([lost])
    assert answer == c.Broken(f"run {run}: what it has used moves with the events of that")


def test_the_checker_finds_nothing_wrong_with_runs_that_waited(bench: Bench) -> None:
    fleet = Fleet(bench, model("one"), model("other"))
    lost, waits = bench.start(), bench.start()
    fleet.lose(lost, fleet.asked(lost), BUSY, spent=Spent())
    alone = Fleet(bench, model("one"))
    assert alone.claim(waits)[0] == c.Done("QUEUED")
    bench.ahead(8)
    fleet.answer(lost, fleet.asked(lost))
    alone.answer(waits, alone.asked(waits))
    with psycopg.connect(bench.database.dsns["reader"], autocommit=True) as reader:
        report = check(reader, None, settled=False, runs=[lost, waits])
    assert report.ok, report
    assert (bench.run(lost).requests, bench.run(waits).requests) == (1, 1)
