"""Allowances in real sessions at once: no counter is overrun, nobody waits in a ring, nobody else pays."""

from collections.abc import Iterator, Sequence
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
from fencepost.ledger import connect
from fencepost.ledger.apply import Ledger
from fencepost.ledger.session import Session
from tests.acceptance.weather import long_only
from tests.awaiting import until
from tests.integration.allowed import DONE, NOT_DONE, Allowed, name, under
from tests.integration.ledger_bench import Bench

SESSIONS = 10
Answers = list[list[c.Answer]]


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
    """What Postgres holds against the batches of the bench's ledgers: they wait for longer than a deadlock
    takes to be seen, so that one is not taken for impatience.
    """
    errors: list[psycopg.Error] = []
    with patch("tests.integration.ledger_bench.Ledger", Watched), patch.object(connect, "LOCK_S", 8):
        Watched.errors = errors
        yield errors


def _waiting(bench: Bench) -> int:
    asked = "SELECT count(DISTINCT pid) FROM pg_locks l JOIN pg_database d ON d.oid = l.database"
    return int(bench.sql(f"{asked} WHERE NOT granted AND datname = current_database()")[0][0])


def at_once(bench: Bench, ledgers: Sequence[Ledger], batches: Sequence[list[c.Command]]) -> Answers:
    """Each batch in a session of its own: they stand before the table of counters together, and then go."""
    with (
        psycopg.connect(bench.database.owner) as holder,
        ThreadPoolExecutor(len(batches)) as threads,
    ):
        holder.execute("LOCK TABLE fencepost.allowances IN ACCESS EXCLUSIVE MODE")
        going = [threads.submit(ledger.apply, batch) for ledger, batch in zip(ledgers, batches, strict=True)]
        until("all sessions wait", lambda: _waiting(bench) >= len(batches), every_s=0.005)
        holder.commit()
        return [one.result(60) for one in going]


def test_ten_sessions_that_meet_a_new_counter_at_once_send_what_it_has_room_for(bench: Bench) -> None:
    few = name()
    with watched() as errors, under(bench, Allowance(id=few, count=3, per=("principal",))) as allowed:
        calls = allowed.calls(SESSIONS)
        batches: list[list[c.Command]] = [[allowed.claim(call)] for call in calls]
        answers = [answer for (answer,) in at_once(bench, [allowed.ledger() for _ in batches], batches)]
        assert sum(isinstance(answer, c.Send) for answer in answers) == 3
        assert answers.count(c.Done("REJECTED")) == SESSIONS - 3
        assert allowed.used(few) == [(3, 0)]
        started = [e.type for call in calls for e in bench.events(bench.call(call).run)]
        assert started.count("ToolAttemptStarted") == 3
        assert not errors


@long_only
def test_batches_that_take_from_the_same_counters_in_opposite_orders_never_deadlock(bench: Bench) -> None:
    few = name()
    with watched() as errors, under(bench, _per_account(few), acts_on=_account) as allowed:
        ledgers = [allowed.ledger() for _ in range(4)]
        for _ in range(2):
            batches: list[list[c.Command]] = []
            for number in range(len(ledgers)):
                accounts = range(4) if number % 2 else range(3, -1, -1)
                batches.append([allowed.claim(_call(bench, allowed, account)) for account in accounts])
            sent = [answer for answers in at_once(bench, ledgers, batches) for answer in answers]
            assert all(isinstance(answer, c.Send) for answer in sent), sent
        assert allowed.used(few) == [(8, 0)] * 4
        assert not errors


@long_only
def test_batches_that_take_and_give_back_in_opposite_orders_never_deadlock(bench: Bench) -> None:
    few = name()
    with watched() as errors, under(bench, _per_account(few), acts_on=_account) as allowed:
        ledgers = [allowed.ledger() for _ in range(4)]
        for _ in range(3):
            batches: list[list[c.Command]] = []
            for number in range(len(ledgers)):
                gives, takes = (0, 1) if number % 2 else (1, 0)
                back, call = _call(bench, allowed, gives), _call(bench, allowed, takes)
                batches.append([bench.outcome(*allowed.sent(back), NOT_DONE), allowed.claim(call)])
            for given, taken in at_once(bench, ledgers, batches):
                assert given == c.Done("FAILED")
                assert isinstance(taken, c.Send), taken
        assert allowed.used(few) == [(6, 0), (6, 0)]
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
