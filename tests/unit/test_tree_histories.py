"""Random histories of trees of runs under faults: one run per call, nothing spent twice, everything ends."""

from collections import defaultdict
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from fencepost import Budget, Effect, Proposal, slices
from fencepost import commands as c
from fencepost.budgets import budget_of
from fencepost.children import ChildOptions
from fencepost.joins import Join
from fencepost.proposals import validate
from fencepost.states import CALL_ENDS, RUN_ENDS
from fencepost.subjects import Run
from tests.integration.ledger_app import SECOND, bench_app
from tests.unit.ledger_memory import TENANT
from tests.unit.ledger_world import Fields, World

STEPS = 100
COUNTED = ("turns", "calls", "attempts", "children")


class Question(BaseModel):
    topic: str


def _app() -> Any:
    app = bench_app()
    times: ChildOptions = {"deadline": 20 * SECOND, "grace": SECOND, "reserve": SECOND, "required": False}
    times["reconcile_for"] = 30 * SECOND
    small = Budget(turns=3, calls=4, attempts=6, depth=0, children=0)
    large = Budget(turns=7, calls=9, attempts=14, depth=1, children=2)
    by_topic: ChildOptions = {"intent": lambda a: ("topic", a.topic)}
    for name, budget in (("wallet.ask", small), ("wallet.deep", large), ("wallet.usual", None)):
        said: ChildOptions = {**times, **by_topic, "budget": budget}
        app.child(name, planner="p", arguments=Question, effect=Effect.REVERSIBLE, **said)
    return app


APP = _app()
TOOLS = {name: tool for (name, _), tool in APP.registry.items()}
JOINS = (Join(), Join.quorum(1), Join.quorum(2, by=3 * SECOND), Join.within(2 * SECOND, rest="leave"))


@dataclass
class Family(World):
    """A world whose planners ask others, and wait for them in every way."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.tools_of = TOOLS
        self.memory.known = replace(
            self.memory.known, tool=lambda name, version: APP.registry.get((name, version))
        )
        for number in range(self.runs):
            budget = self.rng.choice(
                [
                    '{"budget": {}}',
                    '{"budget": {"turns": 12, "calls": 12, "attempts": 12, "children": 3, "tokens": 9}}',
                ]
            )
            run = UUID(int=number + 1)
            self.memory.loaded.runs.pop((TENANT, run))
            self.memory.enqueue(run, deadline=timedelta(seconds=60), on_stop="compensate", request=budget)

    def _act(self, order: Any, term: c.Term) -> None:
        if isinstance(order, c.Tell):
            told: Fields = {"by": f"run:{order.call.run}", "reason": order.reason}
            if self.rng.random() > 0.2 or not self.faults:  # else it is killed before it says so
                self.apply(c.RequestCancel(**self.base(order.child), **told))
            return
        super()._act(order, term)

    def _turn(self, order: c.Plan, term: c.Term) -> c.Command:
        run, chance = order.run, self.rng.random()
        if not self.faults or chance < 0.35:
            return super()._turn(order, term)
        number, base = run.turn + 1, self.base(run.id)
        wanted = [
            self.rng.choice(("wallet.ask", "wallet.usual", "wallet.deep", "wallet.debit")) for _ in range(3)
        ]
        proposals = []
        for n, tool in enumerate(wanted[: self.rng.randint(1, 3)]):
            thing = f"{self.rng.choice('abcdef')}{self.rng.randint(0, 3)}"
            args = {"order": thing, "minor": 100} if tool == "wallet.debit" else {"topic": thing}
            place: Fields = {"run_id": str(run.id), "turn": number, "ordinal": n}
            proposals.append(validate(Proposal(tool, args), tools=TOOLS, tenant=TENANT, **place))
        ids = tuple(self.base(run.id)["id"] for _ in proposals)
        said: Fields = {"proposals": tuple(proposals), "call_ids": ids, "join": self.rng.choice(JOINS)}
        return c.RecordTurn(**base, term=term, turn=number, seen=run.seq, **said)

    def check(self) -> None:
        """One run per call; and no run, nor any tree, has used or holds more than its budget (I13)."""
        super().check()
        runs = self.memory.loaded.runs
        below: dict[UUID, list[Run]] = defaultdict(list)
        for run in runs.values():
            if run.parent_call is not None:
                below[run.parent_call].append(run)
        assert all(len(one) == 1 for one in below.values()), "two runs of one call"
        for call in self.memory.calls():
            assert (call.child is not None) == (call.id in below)
        for run in runs.values():
            budget, beneath = budget_of(run.request), slices.amounts(run.below)
            for name in COUNTED:
                assert self._own(run)[name] + beneath[name] <= getattr(budget, name), (name, run)
            held = {UUID(call) for call in slices.read(run.below).held}
            its = self.memory.loaded.calls[TENANT, run.id]
            assert all(its[call].state not in CALL_ENDS for call in held), "an ended call holds a slice"
            if run.parent is not None:
                assert budget.turns >= 1
                assert budget.tokens is None or budget.tokens >= 1
        for root in (run for run in runs.values() if run.parent is None):
            budget = budget_of(root.request)
            tree = [run for run in runs.values() if root.id in (run.id, run.root)]
            for name in ("turns", "calls", "attempts"):
                assert sum(self._own(run)[name] for run in tree) <= getattr(budget, name)
            assert len(tree) - 1 <= budget.children

    def _own(self, run: Run) -> dict[str, int]:
        calls = [one for one in self.memory.loaded.calls[TENANT, run.id].values() if not one.compensates]
        attempts = sum(one.attempts for one in calls)
        return {"turns": run.requests, "calls": len(calls), "attempts": attempts, "children": 0}


@settings(max_examples=3, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_any_tree_replays_starts_each_run_once_and_stays_within_its_roots_budget(seed: int) -> None:
    world = Family(seed)
    for _ in range(STEPS):
        if not world.step():
            break
        world.check()
    world.drain(3000)
    world.memory.check_histories()
    assert all(run.status in RUN_ENDS for run in world.memory.loaded.runs.values())
