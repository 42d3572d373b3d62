"""The pipeline against real Postgres and Valkey: who takes what, and what comes back."""

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from fencepost import Context, Turn
from fencepost import commands as c
from fencepost.clock import boottime
from fencepost.errors import Unreachable
from fencepost.ledger.outbox import publish_again
from fencepost.states import Queue
from fencepost_ops.database import LedgerDatabase
from fencepost_ops.local import LocalValkey
from fencepost_workers.compensator import Compensator
from fencepost_workers.dispatcher import Dispatcher
from fencepost_workers.planner import Planner
from fencepost_workers.role import Held
from fencepost_workers.step import Step
from tests.awaiting import until
from tests.integration.step_shop import WITHIN_S, Failing, Shop, opened, replaced


@pytest.fixture
def shop(database: LedgerDatabase, valkey: LocalValkey) -> Iterator[Shop]:
    with opened(database, valkey, slots=4) as one:
        yield one


def test_a_run_goes_from_queue_to_queue_and_gives_everything_back(shop: Shop) -> None:
    calls = shop.planned("a")
    assert Step(shop.worker, Dispatcher(shop.worker)).handle(calls) == 1
    assert shop.idle()
    assert shop.states() == ["SUCCEEDED"]
    assert Step(shop.worker, Planner(shop.worker)).handle(shop.due(Queue.PLANNER)) == 1
    assert shop.idle()
    assert shop.sql("SELECT status FROM fencepost.runs") == [("COMPLETED",)]
    assert shop.sql("SELECT count(*) FROM fencepost.outbox") == [(0,)]
    shop.leases_are_free()


def test_no_more_items_run_at_once_than_there_are_slots_and_leftovers_wait(shop: Shop) -> None:
    calls = shop.planned(*"abcdefghij")
    shop.deed.gate.clear()
    handled: list[int] = []
    task = threading.Thread(
        target=lambda: handled.append(Step(shop.worker, Dispatcher(shop.worker)).handle(calls))
    )
    task.start()
    until("four have begun", lambda: shop.deed.begun == 4, WITHIN_S)
    # Nothing beyond the slots was claimed: another process could still take the rest.
    assert sorted(shop.states()) == ["DISPATCHING"] * 4 + ["INTENT_RECORDED"] * 6
    shop.deed.gate.set()
    task.join(WITHIN_S)
    assert handled == [10]
    assert shop.idle()
    assert shop.deed.most == 4
    assert shop.states() == ["SUCCEEDED"] * 10


def test_a_drain_hands_unclaimed_items_back_to_be_published_at_once(shop: Shop) -> None:
    calls = shop.planned(*"abcdef")
    shop.sql("UPDATE fencepost.outbox SET publish_at = fencepost.now() + interval '1 hour'")
    shop.deed.gate.clear()
    handled: list[int] = []
    task = threading.Thread(
        target=lambda: handled.append(Step(shop.worker, Dispatcher(shop.worker)).handle(calls))
    )
    task.start()
    until("four have begun", lambda: shop.deed.begun == 4, WITHIN_S)
    shop.worker.drain()
    task.join(WITHIN_S)
    assert handled == [4]
    handed_back = {subject for _, subject, _ in calls[4:]}
    again = shop.sql(
        "SELECT subject FROM fencepost.outbox WHERE queue = 'dispatcher' AND publish_at <= fencepost.now()"
    )
    assert {subject for (subject,) in again} == handed_back
    shop.deed.gate.set()
    assert shop.idle()
    assert sorted(shop.states()) == ["INTENT_RECORDED"] * 2 + ["SUCCEEDED"] * 4


def test_what_cannot_be_handed_back_is_left_to_the_relay(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    calls = shop.planned("a", "b")
    shop.worker.drain()

    def deadlocked() -> Any:
        raise psycopg.errors.DeadlockDetected("deadlock detected")

    with replaced(shop.worker.pool, "connection", deadlocked):
        assert Step(shop.worker, Dispatcher(shop.worker)).handle(calls) == 0
    assert "could not hand back 2 items, they are published again later: deadlock detected" in caplog.text


def test_handing_back_waits_for_nobody_who_moves_a_row(shop: Shop) -> None:
    calls = shop.planned("a", "b", "c")
    shop.sql("UPDATE fencepost.outbox SET publish_at = fencepost.now() + interval '1 hour'")
    with psycopg.connect(shop.database.owner) as mover:
        mover.execute("SELECT 1 FROM fencepost.outbox WHERE subject = %s FOR UPDATE", [calls[1][1]])
        with shop.worker.pool.connection() as connection:
            connection.execute("SET LOCAL lock_timeout = '1ms'")
            publish_again(connection, [*reversed(calls), ("t", calls[0][1], 99)])
    again = shop.sql("SELECT subject FROM fencepost.outbox WHERE publish_at <= fencepost.now()")
    assert {subject for (subject,) in again} == {calls[0][1], calls[2][1]}


class Gathering(Planner):
    """A planner that remembers what it took."""

    taken: Sequence[tuple[c.Order, Held]] = ()

    def gather(self, taken: Sequence[tuple[c.Order, Held]]) -> None:
        super().gather(taken)
        self.taken = taken


def under(held: Held, owner: str) -> Held:
    return replace(held, term=c.Term(owner, held.term.fence))


def test_no_planner_is_asked_once_its_time_is_over(shop: Shop) -> None:
    shop.enqueue("late")
    planner = Gathering(shop.worker)
    assert Step(shop.worker, planner).handle(shop.due(Queue.PLANNER)) == 1
    assert shop.idle()
    ((order, held),) = planner.taken
    assert isinstance(order, c.Plan)
    asked: list[Context] = []

    class Quick:
        async def propose(self, context: Context) -> Turn:
            asked.append(context)
            return Turn(finish={})

    late = replace(under(held, "late"), anchor=boottime() - order.timeout.total_seconds())
    with replaced(planner, "_planner", lambda _spec, _kept: Quick()):
        planner.gather([(order, late)])
        acting = planner.act(order, late)
        command = asyncio.run_coroutine_threadsafe(acting, shop.worker.loop).result(WITHIN_S)
    assert isinstance(command, c.RecordPlanLost)
    assert (command.code, asked) == ("timeout", [])


def test_two_terms_of_one_subject_in_one_process_have_their_data_each(shop: Shop) -> None:
    shop.enqueue("a")
    planner = Gathering(shop.worker)
    assert Step(shop.worker, planner).handle(shop.due(Queue.PLANNER)) == 1
    assert shop.idle()
    ((order, held),) = planner.taken
    assert isinstance(order, c.Plan)
    compensator = Compensator(shop.worker)
    forward: Any = SimpleNamespace(id=order.run.id, tenant="t", result=None)
    offset = c.Offset(order.run, forward, order.timeout)
    tried: list[Any] = []

    def propose(_order: c.Offset, result: bytes | None) -> Any:
        tried.append(result)

    with replaced(compensator, "_propose", propose):
        for role, one in ((planner, order), (compensator, offset)):
            for owner in ("old", "new"):
                role.gather([(one, under(held, owner))])
            for owner in ("new", "old"):
                acting = role.act(one, replace(under(held, owner), anchor=boottime()))
                command = asyncio.run_coroutine_threadsafe(acting, shop.worker.loop).result(WITHIN_S)
                assert isinstance(command, c.RecordTurn | c.RecordCompensation)
                assert command.term.owner == owner
            # What was not gathered is left to a takeover; above all, nothing is judged without it.
            for owner in ("old", "other"):
                acting = role.act(one, under(held, owner))
                with pytest.raises(LookupError, match="was not gathered"):
                    asyncio.run_coroutine_threadsafe(acting, shop.worker.loop).result(WITHIN_S)
    assert tried == [None, None]


def once_after(action: Callable[..., Any], error: Exception) -> Callable[..., Any]:
    """The action, whose first answer is lost."""
    lost: list[bool] = []

    def call(*args: Any) -> Any:
        answer = action(*args)
        if not lost:
            lost.append(True)
            raise error
        return answer

    return call


def test_a_claim_whose_commit_reply_was_lost_is_executed_once_under_its_own_term(shop: Shop) -> None:
    calls = shop.planned("a")
    losing = once_after(shop.worker.ledger.apply, Unreachable("the reply was lost"))
    with replaced(shop.worker.ledger, "apply", losing):
        assert Step(shop.worker, Dispatcher(shop.worker)).handle(calls) == 1
        assert shop.idle()
    assert shop.deed.begun == 1
    assert shop.states() == ["SUCCEEDED"]
    assert shop.sql("SELECT attempts FROM fencepost.calls") == [(1,)]


def test_without_redis_nothing_is_claimed_and_what_is_in_flight_is_recorded(
    shop: Shop, valkey: LocalValkey
) -> None:
    calls = shop.planned("a", "b")
    shop.deed.gate.clear()
    step = Step(shop.worker, Dispatcher(shop.worker))
    assert step.handle(calls[:1]) == 1

    def down(_wants: Any) -> Any:
        raise Unreachable("Redis grants no leases")

    with replaced(shop.worker.leases, "grant", down):
        assert step.handle(calls[1:]) == 0
        shop.deed.gate.set()
        assert shop.idle()
    assert sorted(shop.states()) == ["INTENT_RECORDED", "SUCCEEDED"]
    assert step.handle(calls[1:]) == 1


def test_a_lease_somebody_else_holds_is_not_disturbed(shop: Shop) -> None:
    calls = shop.planned("a")
    shop.deed.gate.clear()
    step = Step(shop.worker, Dispatcher(shop.worker))
    assert step.handle(calls) == 1
    assert step.handle(calls) == 0  # the same message once more
    assert shop.worker.slots.used == 1
    shop.deed.gate.set()
    assert shop.idle()
    assert shop.deed.begun == 1


def test_a_due_item_whose_lease_is_about_to_be_let_go_is_asked_for_again(shop: Shop) -> None:
    calls = shop.planned("a", "b")
    granted = shop.worker.leases.grant
    asked: list[int] = []

    def late(wants: Any) -> Any:
        asked.append(len(wants))
        held = 1 if len(asked) < 3 else 0
        return [None] * held + granted(wants[held:])

    with replaced(shop.worker.leases, "grant", late):
        assert Step(shop.worker, Dispatcher(shop.worker)).handle(calls) == 2
    assert asked == [2, 1, 1]
    assert shop.idle()


def test_an_item_whose_lease_stays_held_is_left_to_its_holder(shop: Shop) -> None:
    calls = shop.planned("a", "b")
    with replaced(shop.worker.leases, "grant", lambda wants: [None] * len(wants)):
        assert Step(shop.worker, Dispatcher(shop.worker)).handle(calls) == 0
    assert shop.idle()
    assert shop.states() == ["INTENT_RECORDED"] * 2


def test_a_message_of_another_generation_asks_for_no_lease(shop: Shop) -> None:
    calls = [(tenant, subject, generation - 1) for tenant, subject, generation in shop.planned("a")]

    def never(_wants: Any) -> Any:
        raise AssertionError

    with replaced(shop.worker.leases, "grant", never):
        assert Step(shop.worker, Dispatcher(shop.worker)).handle(calls) == 0


def test_a_lease_is_let_go_before_its_record_makes_the_next_step_due(shop: Shop) -> None:
    calls = shop.planned("a")
    order: list[str] = []
    let_go, submit = shop.worker.let_go, shop.worker.committer.submit

    def going(lease: str, owner: str) -> None:
        order.append("lease")
        let_go(lease, owner)

    def recording(command: Any) -> Any:
        order.append("record")
        return submit(command)

    with replaced(shop.worker, "let_go", going), replaced(shop.worker.committer, "submit", recording):
        Step(shop.worker, Dispatcher(shop.worker)).handle(calls)
        assert shop.idle()
    assert order == ["lease", "record"]


def test_a_claim_is_made_under_the_token_that_was_asked_for_and_not_a_later_one(shop: Shop) -> None:
    calls = shop.planned("a")
    role = Failing(shop.worker, "nowhere", RuntimeError())
    first = shop.worker.pulse.token()
    granted = shop.worker.leases.grant

    def and_the_pulse_dies(wants: Any) -> Any:
        shop.worker.pulse._pulse.close()
        assert shop.worker.pulse.token() != first
        return granted(wants)

    with replaced(shop.worker.leases, "grant", and_the_pulse_dies):
        assert Step(shop.worker, role).handle(calls) == 0
    # Refused: the process that was stamped as `first` counts as dead.
    assert [claim.worker for claim in role.claims] == [first]
    assert shop.states() == ["INTENT_RECORDED"]
    assert shop.idle()
    shop.leases_are_free()
    assert Step(shop.worker, Dispatcher(shop.worker)).handle(calls) == 1


def test_a_pulse_that_hangs_is_replaced_after_two_ttls_of_refusals(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr("fencepost_workers.worker.boottime", lambda: now[0])
    first = shop.worker.pulse.token()
    shop.worker.pulse.suspect(first)
    now[0] += 19
    shop.worker.pulse.suspect(first)
    assert shop.worker.pulse.token() == first
    now[0] += 2
    shop.worker.pulse.trusted(first)  # it caught up
    shop.worker.pulse.suspect(first)
    assert shop.worker.pulse.token() == first
    now[0] += 21
    shop.worker.pulse.suspect(first)
    assert shop.worker.pulse.token() != first


def test_a_worker_whose_committer_died_says_so(shop: Shop) -> None:
    assert shop.worker._broken() is None
    shop.worker.committer.close()
    assert shop.worker._broken() == "the committer"
