"""What models may use is held before they are asked, and charged whatever becomes of the answer."""

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import date, timedelta
from itertools import cycle
from typing import Any
from uuid import UUID

import pytest

from fencepost import Budget, slices
from fencepost import commands as c
from fencepost.clock import uuid7
from fencepost.events import Event
from fencepost.models import AgentSpec, ModelSpec, Price, Spent, Wire
from fencepost.states import StopReason
from tests.integration.family import declare, heard
from tests.integration.ledger_bench import Bench
from tests.integration.recovering import release, released_afterwards, restore

LONG_AGO = date(2020, 1, 1)
PRICED = (Price(LONG_AGO, input=1_000_000, output=2_000_000),)
"""One millionth per token told, two per token answered."""
WORST = Spent(300, 400)
"""200 tokens of context and 100 of answer."""
LESS = Spent(250, 310)


def agent(prices: tuple[Price, ...], bench: Bench) -> AgentSpec:
    spec = bench.app.dependencies[0]
    models = tuple(
        ModelSpec(
            name=name, wire=Wire.CHAT, model=name, dependency=spec, max_output=100, window=1000, prices=prices
        )
        for name in ("gpt", "spare")
    )
    return AgentSpec(models=models, instructions="", window=200)


@pytest.fixture
def asking(bench: Bench) -> Iterator[Bench]:
    """A bench whose planner is a model with a price."""
    yield from _asking(bench, PRICED)


@pytest.fixture
def unpriced(bench: Bench) -> Iterator[Bench]:
    """The same, but nobody knows what it costs."""
    yield from _asking(bench, ())


def _asking(bench: Bench, prices: tuple[Price, ...]) -> Iterator[Bench]:
    before, spec = bench.ledger, agent(prices, bench)
    bench.ledger = bench.ledger_as("worker", agent=lambda _name, _version: spec)
    yield bench
    bench.ledger = before


def ask(bench: Bench, run: UUID) -> c.ClaimRun:
    claim = bench.claim_run(run)
    order = bench.one(claim)
    assert isinstance(order, c.Plan), order
    return claim


def answer(bench: Bench, run: UUID, claim: c.ClaimRun, spent: Spent | None, *calls: Any) -> c.RecordTurn:
    return replace(bench.turn(run, claim, *calls), spent=spent)


def lost(bench: Bench, run: UUID, claim: c.ClaimRun, **how: Any) -> c.RecordPlanLost:
    return c.RecordPlanLost(**bench.base(run), term=claim.term, code="timeout", message="no answer", **how)


def balance(bench: Bench, run: UUID) -> tuple[int, int, int, int]:
    row = bench.run(run)
    return row.tokens, row.cost, row.held_tokens, row.held_cost


def why(bench: Bench, run: UUID) -> tuple[str | None, str]:
    row = bench.run(run)
    return row.stop_reason, (row.stop_detail or "").partition(":")[0]


def last(bench: Bench, run: UUID, kind: str) -> Event:
    return [event for event in bench.events(run) if event.type == kind][-1]


def test_the_worst_case_is_held_and_what_was_used_takes_its_place(asking: Bench) -> None:
    run = asking.start()
    claim = ask(asking, run)
    told = last(asking, run, "ModelRequestStarted").data
    assert (told["model"], told["held"]) == ("gpt", {"tokens": 300, "cost": 400})
    assert balance(asking, run) == (0, 0, 300, 400)
    asking.one(answer(asking, run, claim, LESS))
    assert balance(asking, run) == (250, 310, 0, 0)
    assert last(asking, run, "ModelResponseRecorded").data["spent"] == {"tokens": 250, "cost": 310}
    done = asking.finish_with(answer(asking, run, ask(asking, run), Spent(7, 8)))
    assert asking.one(done) == c.Done("COMPLETED")
    assert balance(asking, run) == (257, 318, 0, 0)


@pytest.mark.parametrize(("budget", "asked", "dimension"), [
    ('{"tokens": 1000}', 3, "tokens"),  # 250, 500, 750; and 750 + 300 would be too much
    ('{"tokens": 1050}', 4, "tokens"),
    ('{"cost": 1000}', 2, "cost"),  # 310, 620; 620 + 400
    ('{"tokens": 299}', 0, "tokens"),
    ('{"cost": 0}', 0, "cost"),
])  # fmt: skip
def test_a_request_whose_worst_case_does_not_fit_is_not_made(
    asking: Bench, budget: str, asked: int, dimension: str
) -> None:
    run = asking.start(budget=budget)
    for _ in range(asked):
        asking.one(answer(asking, run, ask(asking, run), LESS))
    assert asking.one(asking.claim_run(run)) == c.Done("STOPPED")
    assert why(asking, run) == ("budget_exhausted", dimension)
    assert asking.kinds(run).count("ModelRequestStarted") == asked
    assert balance(asking, run)[:2] == (asked * 250, asked * 310)


@pytest.mark.parametrize(
    "end", ["lost", "no usage", "unknown", "too many", "killed", "cancelled", "restored"]
)
def test_an_answer_nobody_can_account_for_is_charged_what_was_held(asking: Bench, end: str) -> None:
    run = asking.start()
    claim = ask(asking, run)
    if end == "lost":
        asking.one(lost(asking, run, claim))
    elif end == "no usage":
        asking.one(answer(asking, run, claim, None))
    elif end == "unknown":
        asking.one(answer(asking, run, claim, Spent(20, 0, known=False)))
    elif end == "too many":
        many = [("wallet.note", {"order": f"{n}"}) for n in range(257)]
        asking.one(answer(asking, run, claim, None, *many))
    elif end == "killed":
        asking.ahead(5)
        ask(asking, run)
    elif end == "cancelled":
        asking.cancel(run)
    else:
        with released_afterwards(asking):
            restore(asking)
            release(asking)
        above = c.Term("next", asking.run(run).fence + 1)
        assert isinstance(asking.one(replace(asking.claim_run(run), term=above)), c.Plan)
    tokens, cost, *held = balance(asking, run)
    assert (tokens, cost) == (300, 400)
    assert held == ([300, 400] if end in {"killed", "restored"} else [0, 0]), "that of the next request"
    kind = "ModelResponseRecorded" if end in {"no usage", "unknown"} else "ModelOutcomeUnknown"
    assert last(asking, run, kind).data["spent"] == {"tokens": 300, "cost": 400, "known": False}


def test_lost_answers_use_up_the_budget_like_others(asking: Bench) -> None:
    run = asking.start(budget='{"tokens": 700}')
    for _ in range(2):
        asking.one(lost(asking, run, ask(asking, run)))
        asking.ahead(11)
    assert asking.one(asking.claim_run(run)) == c.Done("STOPPED")
    assert why(asking, run) == ("budget_exhausted", "tokens")


def test_what_was_never_sent_costs_nothing(asking: Bench) -> None:
    run = asking.start()
    asking.one(lost(asking, run, ask(asking, run), spent=Spent()))
    assert balance(asking, run) == (0, 0, 0, 0)


def test_whoever_counts_more_than_it_was_told_is_charged_that_and_asked_no_more(asking: Bench) -> None:
    """The overshoot: by what one answer exceeds its reservation, and by no second one."""
    run = asking.start(budget='{"tokens": 400}')
    asking.one(answer(asking, run, ask(asking, run), Spent(450, 500)))
    assert balance(asking, run) == (450, 500, 0, 0)
    assert asking.one(asking.claim_run(run)) == c.Done("STOPPED")
    assert why(asking, run) == ("budget_exhausted", "tokens")


def test_without_a_price_nothing_is_asked_under_a_limit_of_cost(unpriced: Bench) -> None:
    run = unpriced.start(budget='{"cost": 1000000}')
    assert unpriced.one(unpriced.claim_run(run)) == c.Done("STOPPED")
    assert "model gpt has no price for today" in (unpriced.run(run).stop_detail or "")
    assert "ModelRequestStarted" not in unpriced.kinds(run)
    free = unpriced.start(budget='{"tokens": 1000}')
    ask(unpriced, free)
    assert balance(unpriced, free) == (0, 0, 300, 0)


def test_a_planner_that_is_no_model_is_asked_until_nothing_is_left(bench: Bench) -> None:
    run = bench.start(budget='{"tokens": 500}')
    for _ in range(2):
        bench.one(answer(bench, run, ask(bench, run), Spent(300)))
    assert bench.one(bench.claim_run(run)) == c.Done("STOPPED")
    assert why(bench, run) == ("budget_exhausted", "tokens")
    quiet = bench.start(budget='{"tokens": 0, "cost": 0}')
    bench.one(answer(bench, quiet, ask(bench, quiet), None))
    assert bench.one(bench.finish_with(answer(bench, quiet, ask(bench, quiet), None))) == c.Done("COMPLETED")


def test_another_model_is_asked_after_lost_answers_and_its_name_is_recorded(asking: Bench) -> None:
    run = asking.start()
    for name in ("gpt", "gpt", "spare"):
        claim = ask(asking, run)
        assert last(asking, run, "ModelRequestStarted").data["model"] == name
        asking.one(lost(asking, run, claim))
        asking.ahead(11)


def test_a_refusal_for_good_ends_the_run_at_once_and_says_why(asking: Bench) -> None:
    run = asking.start()
    claim = ask(asking, run)
    said = {"model": "gpt", "request": "req_1"}
    refused = lost(asking, run, claim, spent=Spent(120, 130), said=said, stop=StopReason.REFUSED)
    assert asking.one(refused) == c.Done("STOPPED")
    row = asking.run(run)
    assert (row.stop_reason, row.stop_detail, row.tokens) == ("refused", "no answer", 120)
    told = last(asking, run, "ModelOutcomeUnknown").data
    assert (told["said"], told["spent"]) == (said, {"tokens": 120, "cost": 130})


def test_the_next_question_waits_as_long_as_the_provider_asks_for(asking: Bench) -> None:
    run = asking.start()
    asking.one(lost(asking, run, ask(asking, run), retry_after=timedelta(seconds=30)))
    waits = asking.run(run).ready_at - asking.now()
    assert timedelta(seconds=25) < waits <= timedelta(seconds=30)
    assert asking.one(asking.claim_run(run)) == c.Moved()


def test_what_a_model_said_of_itself_and_the_patches_it_met_are_kept(asking: Bench) -> None:
    run = asking.start()
    turn = answer(asking, run, ask(asking, run), LESS)
    asking.one(replace(turn, said={"request": "req_9"}, markers=("new-way",)))
    told = last(asking, run, "ModelResponseRecorded").data
    assert (told["said"], told["markers"]) == ({"request": "req_9"}, ["new-way"])
    assert asking.run(run).markers == '["new-way"]'


# -- over a tree ---------------------------------------------------------------------------------------------


def test_ten_runs_started_at_once_share_one_purse(asking: Bench) -> None:
    """Each may use 300 tokens of what its parent has left, 1200: four are started, and none beyond."""
    if ("wallet.thrifty", 1) not in asking.app.registry:
        slice_ = Budget(turns=4, calls=4, attempts=8, depth=0, children=0, tokens=300)
        declare(asking.app, "wallet.thrifty", budget=slice_)
    run = asking.start(budget='{"tokens": 1300, "turns": 100, "calls": 100}')
    claim = ask(asking, run)
    topics = [("wallet.thrifty", {"topic": asking.order()}) for _ in range(10)]
    turn = answer(asking, run, claim, Spent(100, 100), *topics)
    asking.one(turn)
    claims = [
        replace(asking.claim_call(run, call), child=uuid7(), request=None, rand=0.0) for call in turn.call_ids
    ]
    with ThreadPoolExecutor(len(claims)) as sessions:
        list(sessions.map(asking.one, claims))
    begun = {call: child for call in turn.call_ids if (child := asking.call(call).child) is not None}
    assert len(begun) == 4
    refused = {asking.call(call).error for call in turn.call_ids if call not in begun}
    assert refused == {"budget: tokens: the child may use 300, and 0 are left of 1300"}
    asking.started += begun.values()
    for n, (call, child) in enumerate(begun.items()):
        spent = Spent(320, 0) if n == 0 else LESS  # more than it was let go with: that is charged as well
        asking.one(answer(asking, child, ask(asking, child), spent))
        assert asking.one(asking.claim_run(child)) == c.Done("STOPPED")
        assert why(asking, child) == ("budget_exhausted", "tokens")
        assert heard(asking, run, call) == c.Done("FAILED")
    total = 100 + 320 + 3 * 250
    tree = asking.sql("SELECT sum(tokens) FROM fencepost.runs WHERE id = ANY(%s)", [run, *begun.values()])
    assert tree == [(total,)]
    below = slices.amounts(asking.run(run).below)
    assert asking.run(run).tokens + below["tokens"] == total
    assert asking.one(asking.claim_run(run)) == c.Done("STOPPED"), f"{total} and 300 more would be too much"
    assert why(asking, run) == ("budget_exhausted", "tokens")


# -- whatever happens ----------------------------------------------------------------------------------------


class Book:
    """What one run must have used and hold, kept beside the ledger."""

    def __init__(self) -> None:
        self.tokens = self.cost = self.fruitless = self.asked = 0
        self.over = 0
        """By how much answers exceeded what was held for them."""

    def charge(self, spent: Spent | None) -> None:
        used = spent if spent is not None and spent.known else WORST
        self.tokens += used.tokens
        self.cost += used.cost
        self.over += max(0, used.tokens - WORST.tokens)


@pytest.mark.parametrize("seed", range(3))
def test_no_restart_crash_or_takeover_resets_a_counter_or_exceeds_a_limit(asking: Bench, seed: int) -> None:
    chance = random.Random(seed)
    limit = chance.randrange(1500, 4000)
    run = asking.start(budget=f'{{"tokens": {limit}, "turns": 100, "fruitless": 8}}', deadline_s=3000)
    book, before = Book(), asking.run(run)
    spec = agent(PRICED, asking)
    processes = cycle([asking.ledger, asking.ledger_as("worker", agent=lambda _name, _version: spec)])
    while asking.run(run).status not in {"STOPPED", "COMPLETED"}:
        claim = asking.claim_run(run)
        if not isinstance(asking.one(claim), c.Plan):
            break
        book.asked += 1
        _befall(asking, run, claim, book, chance)
        asking.ledger = next(processes)
        now = asking.run(run)
        assert now.tokens + now.held_tokens <= limit + book.over
        for name in ("tokens", "cost", "bytes", "requests", "turn", "calls", "seq"):
            assert getattr(now, name) >= getattr(before, name)
        before = now
    row = asking.run(run)
    assert (row.tokens, row.cost, row.held_tokens, row.requests) == (book.tokens, book.cost, 0, book.asked)
    assert row.stop_reason in {"budget_exhausted", "no_progress", "planner_failed"}


def _befall(bench: Bench, run: UUID, claim: c.ClaimRun, book: Book, chance: random.Random) -> None:
    spent = chance.choice([None, LESS, Spent(10, 10), Spent(390, 500), Spent()])
    what = chance.choice(["answer", "answer", "call", "lost", "killed", "forged"])
    if what == "killed":
        bench.ahead(5)
        book.charge(None)  # by whoever takes over
        return
    if what == "forged":  # an answer under a term that is no more: nothing of it counts
        stale = replace(claim, term=replace(claim.term, owner="somebody"))
        assert bench.one(answer(bench, run, stale, Spent(9999, 9999))) == c.Fenced()
    if what == "lost":
        bench.one(lost(bench, run, claim, spent=spent))
        bench.ahead(11)
    elif what == "call":
        turn = answer(bench, run, claim, spent, ("wallet.note", {"order": bench.order()}))
        bench.one(turn)
        bench.succeed(run, turn.call_ids[0])
    else:
        bench.one(answer(bench, run, claim, spent))
    book.charge(spent)
