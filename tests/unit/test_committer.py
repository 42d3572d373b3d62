"""The group committer: batches, patience with Postgres, and nobody left waiting for an answer."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any
from uuid import UUID

import psycopg
import pytest

from fencepost.commands import Answer, Broken, Command, Done, RequestCancel
from fencepost.errors import Unreachable
from fencepost_workers import patience
from fencepost_workers.committer import Committer
from fencepost_workers.patience import Patience, passes

WITHIN_S = 5


def command(number: int) -> Command:
    return RequestCancel(id=UUID(int=number), tenant="t", run=UUID(int=number), by="test")


class Ledger:
    """Applies as it is told to: `script` holds what to raise, one entry per call; the rest succeed."""

    def __init__(self, *script: Exception | None) -> None:
        self.script = list(script)
        self.batches: list[list[int]] = []
        self.entered = threading.Event()
        self.gate = threading.Event()
        self.gate.set()

    def apply(self, commands: Sequence[Command]) -> list[Answer]:
        self.batches.append([c.id.int for c in commands])
        self.entered.set()
        assert self.gate.wait(WITHIN_S)
        if self.script and (error := self.script.pop(0)) is not None:
            raise error
        return [Done(str(c.id.int)) for c in commands]


class Loop:
    """As much of an event loop as a committer needs; its futures can be waited for by any thread."""

    def create_future(self) -> "Future[Answer]":
        return Future()

    def call_soon_threadsafe(self, action: Callable[..., None], *args: Any) -> None:
        action(*args)


class Waited(Committer):
    """A committer whose futures the test may wait for."""

    def submit(self, command: Command) -> Any:
        return super().submit(command)


def committer(ledger: Ledger) -> Waited:
    return Waited(ledger, Loop())  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "PAUSE_S", 0.001)


def test_a_lone_outcome_is_recorded_at_once() -> None:
    ledger = Ledger()
    one = committer(ledger)
    assert one.submit(command(1)).result(WITHIN_S) == Done("1")
    one.close()
    assert ledger.batches == [[1]]


def test_outcomes_gather_while_a_batch_is_being_written() -> None:
    ledger = Ledger()
    ledger.gate.clear()
    one = committer(ledger)
    futures = [one.submit(command(1))]
    assert ledger.entered.wait(WITHIN_S)
    futures += [one.submit(command(n)) for n in (2, 3, 4)]
    ledger.gate.set()
    assert [f.result(WITHIN_S) for f in futures] == [Done(str(n)) for n in (1, 2, 3, 4)]
    one.close()
    assert ledger.batches == [[1], [2, 3, 4]]


@pytest.mark.parametrize(
    "error",
    [
        Unreachable("down"),
        psycopg.errors.AdminShutdown("shut down"),
        psycopg.errors.IdleInTransactionSessionTimeout("frozen"),
        psycopg.errors.DiskFull("full"),
        psycopg.OperationalError("connection lost"),
    ],
)
def test_a_batch_whose_reply_was_lost_is_applied_again_with_the_same_commands(error: Exception) -> None:
    ledger = Ledger(error, error)
    one = committer(ledger)
    assert one.submit(command(1)).result(WITHIN_S) == Done("1")
    one.close()
    assert ledger.batches == [[1], [1], [1]]


@pytest.mark.parametrize("error", [psycopg.errors.UndefinedColumn("no such"), ValueError("a bug")])
def test_what_patience_cannot_mend_is_raised_to_who_waits_and_the_committer_lives(error: Exception) -> None:
    ledger = Ledger(error)
    one = committer(ledger)
    assert one.submit(command(1)).exception(WITHIN_S) is error
    assert one.submit(command(2)).result(WITHIN_S) == Done("2")
    assert one.alive()
    one.close()


def test_an_outcome_nobody_waits_for_any_more_is_recorded_all_the_same() -> None:
    ledger = Ledger()
    ledger.gate.clear()
    one = committer(ledger)
    given_up = one.submit(command(1))
    assert given_up.cancel()
    ledger.gate.set()
    assert one.submit(command(2)).result(WITHIN_S) == Done("2")
    one.close()
    assert sorted(n for batch in ledger.batches for n in batch) == [1, 2]


def test_closing_records_what_waits() -> None:
    ledger = Ledger()
    ledger.gate.clear()
    one = committer(ledger)
    futures = [one.submit(command(n)) for n in range(250)]
    ledger.gate.set()
    one.close()
    assert all(f.done() for f in futures)
    assert max(map(len, ledger.batches)) <= 100
    assert not one.alive()


def test_closing_does_not_wait_for_a_postgres_that_stays_away() -> None:
    ledger = Ledger(*[Unreachable("down")] * 10_000)
    one = committer(ledger)
    lost = one.submit(command(1))
    assert ledger.entered.wait(WITHIN_S)
    one.close(within_s=0.05)
    assert isinstance(lost.exception(0), Unreachable)


def test_patience_ends_with_the_last_error() -> None:
    tries: list[int] = []

    def action() -> None:
        tries.append(1)
        raise Unreachable(f"try {len(tries)}")

    with pytest.raises(Unreachable, match=r"try [2-9]|try \d\d+"):
        Patience().call(action, 0.02, "nothing waits")


@pytest.mark.parametrize(
    ("error", "passing"),
    [
        (Unreachable("down"), True),
        (psycopg.OperationalError("no server"), True),
        (psycopg.errors.QueryCanceled("x"), True),
        (psycopg.errors.DeadlockDetected("x"), True),
        (psycopg.errors.LockNotAvailable("x"), True),
        (psycopg.errors.ReadOnlySqlTransaction("a standby"), True),
        (psycopg.errors.UniqueViolation("x"), False),
        (psycopg.errors.InsufficientPrivilege("x"), False),
        (psycopg.ProgrammingError("x"), False),
        (RuntimeError("x"), False),
    ],
)
def test_only_what_may_pass_is_waited_for(error: Exception, passing: Any) -> None:
    assert passes(error) is passing


def test_a_refused_outcome_is_an_answer() -> None:
    class Refusing(Ledger):
        def apply(self, commands: Sequence[Command]) -> list[Answer]:
            return [Broken("no")] * len(commands)

    one = committer(Refusing())
    assert one.submit(command(1)).result(WITHIN_S) == Broken("no")
    one.close()


def test_an_outcome_that_cannot_be_written_loses_no_other() -> None:
    class Choosy(Ledger):
        def apply(self, commands: Sequence[Command]) -> list[Answer]:
            answers = super().apply(commands)
            if any(c.id.int == 3 for c in commands):
                raise ValueError("cannot be written")
            return answers

    ledger = Choosy()
    ledger.gate.clear()
    one = committer(ledger)
    futures = {n: one.submit(command(n)) for n in range(1, 9)}
    ledger.gate.set()
    for n, future in futures.items():
        if n == 3:
            with pytest.raises(ValueError, match="cannot be written"):
                future.result(WITHIN_S)
        else:
            assert future.result(WITHIN_S) == Done(str(n))
    one.close()
