"""Allowances in real sessions at once: no counter is overrun, nobody waits in a ring, nobody else pays."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from unittest.mock import patch
from uuid import UUID

import psycopg

from fencepost import commands as c
from fencepost.allowances import Allowance
from fencepost.ledger import allowances as counters
from fencepost.ledger.apply import Ledger
from fencepost.ledger.session import Session
from tests.awaiting import until
from tests.integration.allowed import DONE, NOT_DONE, Allowed, name, under
from tests.integration.ledger_bench import Bench

SESSIONS = 10


class Watched(Ledger):
    """A ledger that remembers what Postgres held against its batches."""

    errors: list[psycopg.Error]

    def _once(self, batch: list[c.Command]) -> list[c.Answer]:
        try:
            return super()._once(batch)
        except psycopg.Error as error:
            self.errors.append(error)
            raise


@contextmanager
def watched() -> Iterator[list[psycopg.Error]]:
    errors: list[psycopg.Error] = []
    with patch("tests.integration.ledger_bench.Ledger", Watched):
        Watched.errors = errors
        yield errors


@contextmanager
def held_up(bench: Bench, statement: str, sessions: int) -> Iterator[Callable[[], None]]:
    """A lock that sessions run into; the function given waits until so many have, and lets them go."""
    with psycopg.connect(bench.database.owner) as holder:
        holder.execute(statement)

        def release() -> None:
            until("all sessions wait", lambda: _waiting(bench) >= sessions, every_s=0.005)
            holder.commit()

        yield release


def _waiting(bench: Bench) -> int:
    asked = "SELECT count(DISTINCT pid) FROM pg_locks l JOIN pg_database d ON d.oid = l.database"
    return int(bench.sql(f"{asked} WHERE NOT granted AND datname = current_database()")[0][0])


def at_once(ledgers: Sequence[Ledger], batches: Sequence[list[c.Command]]) -> list[list[c.Answer]]:
    """Each batch in a session of its own, all of them beginning together."""
    together = threading.Barrier(len(batches))

    def apply(ledger: Ledger, batch: list[c.Command]) -> list[c.Answer]:
        together.wait(60)
        return ledger.apply(batch)

    with ThreadPoolExecutor(len(batches)) as threads:
        return list(threads.map(apply, ledgers, batches))


def test_ten_sessions_that_meet_a_new_counter_at_once_send_what_it_has_room_for(bench: Bench) -> None:
    few = name()
    with watched() as errors, under(bench, Allowance(id=few, count=3, per=("principal",))) as allowed:
        calls = allowed.calls(SESSIONS)
        batches: list[list[c.Command]] = [[allowed.claim(call)] for call in calls]
        ledgers = [allowed.ledger() for _ in batches]
        # Nobody's row is there yet: all of them stand before the table itself, and find it empty.
        with (
            held_up(bench, "LOCK TABLE fencepost.allowances IN ACCESS EXCLUSIVE MODE", SESSIONS) as release,
            ThreadPoolExecutor(1) as releaser,
        ):
            freed = releaser.submit(release)
            answers = [answer for (answer,) in at_once(ledgers, batches)]
            freed.result(60)
        assert sum(isinstance(answer, c.Send) for answer in answers) == 3
        assert answers.count(c.Done("REJECTED")) == SESSIONS - 3
        assert allowed.used(few) == [(3, 0)]
        started = [e.type for call in calls for e in bench.events(bench.call(call).run)]
        assert started.count("ToolAttemptStarted") == 3
        assert all(error.sqlstate == "55P03" for error in errors), errors  # impatience, never a deadlock


def test_batches_that_take_from_the_same_counters_in_opposite_orders_never_deadlock(bench: Bench) -> None:
    few = name()
    with watched() as errors, under(bench, _per_account(few), acts_on=_account) as allowed:
        ledgers = [allowed.ledger() for _ in range(4)]
        for _ in range(3):
            batches: list[list[c.Command]] = []
            for number in range(len(ledgers)):
                accounts = range(6) if number % 2 else range(5, -1, -1)
                batches.append([allowed.claim(_call(bench, allowed, account)) for account in accounts])
            sent = [answer for answers in at_once(ledgers, batches) for answer in answers]
            assert all(isinstance(answer, c.Send) for answer in sent), sent
        assert allowed.used(few) == [(12, 0)] * 6
        assert not errors


def test_batches_that_take_and_give_back_in_opposite_orders_never_deadlock(bench: Bench) -> None:
    few = name()
    with watched() as errors, under(bench, _per_account(few), acts_on=_account) as allowed:
        ledgers = [allowed.ledger() for _ in range(4)]
        for _ in range(5):
            batches: list[list[c.Command]] = []
            for number in range(len(ledgers)):
                gives, takes = (0, 1) if number % 2 else (1, 0)
                back, call = _call(bench, allowed, gives), _call(bench, allowed, takes)
                batches.append([bench.outcome(*allowed.sent(back), NOT_DONE), allowed.claim(call)])
            for given, taken in at_once(ledgers, batches):
                assert given == c.Done("FAILED")
                assert isinstance(taken, c.Send), taken
        assert allowed.used(few) == [(10, 0), (10, 0)]
        assert not errors


def _per_account(few: str) -> Allowance:
    return Allowance(id=few, count=1000, per=("resource",))


def _account(args: Any) -> tuple[str, str]:
    return "account", str(args.minor)


def _call(bench: Bench, allowed: Allowed, account: int) -> UUID:
    """A call on that account, of an intent of its own."""
    return allowed.planned_in(bench.start(), bench.order(), minor=account)


# -- what it costs ----------------------------------------------------------------------------------------


@contextmanager
def recorded() -> Iterator[list[str]]:
    """Every statement any session sends meanwhile."""
    said: list[str] = []
    execute = Session.execute

    def record(session: Session, query: Any, *rest: Any, **more: Any) -> Any:
        said.append(str(query))
        return execute(session, query, *rest, **more)

    with patch.object(Session, "execute", record):
        yield said


def _passed(bench: Bench, allowed: Allowed) -> list[str]:
    """The statements of a batch of claims, and of their outcomes."""
    calls = allowed.calls(3)
    claims = [allowed.claim(call) for call in calls]
    with recorded() as said:
        sends = bench.ledger.apply(claims)
        assert all(isinstance(send, c.Send) for send in sends)
        bench.ledger.apply(
            [
                bench.outcome(send, claim.term, DONE)
                for send, claim in zip(sends, claims, strict=True)
                if isinstance(send, c.Send)
            ]
        )
    return said


def test_batches_that_no_allowance_concerns_send_the_statements_they_always_did(bench: Bench) -> None:
    with under(bench) as allowed:
        usual = _passed(bench, allowed)
    with under(bench, Allowance(id=name(), count=1, tool="mail.*")) as allowed:
        assert _passed(bench, allowed) == usual
    assert not any("allowances" in statement for statement in usual)


def test_a_batch_under_allowances_sends_four_statements_more_however_long_it_is(bench: Bench) -> None:
    with under(bench) as allowed:
        usual = _passed(bench, allowed)
    rules = Allowance(id=name(), count=9), Allowance(id=name(), count=9, window=timedelta(hours=1))
    with under(bench, *rules) as allowed:
        limited = _passed(bench, allowed)
    more = [counters.NEW_COUNTERS, counters.LOCK_COUNTERS, counters.READ_CLOCK, counters.UPDATE_COUNTERS]
    assert [statement for statement in limited if statement not in usual] == more
    assert len(limited) == len(usual) + len(more)
