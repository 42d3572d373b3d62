"""`fencepost repair --where …`: what fits, who agrees, and what becomes of each call."""

import os
import pty
import re
from collections.abc import Iterator, Sequence
from typing import Any
from uuid import UUID

import pytest

from fencepost import Unreachable
from fencepost import commands as c
from fencepost.ledger.repairs import Waiting, waiting
from fencepost.office import Office
from fencepost.outcomes import Applied, Unsure
from fencepost_ops.commands import bulk
from fencepost_ops.database import LedgerDatabase
from tests.awaiting import until
from tests.integration import ledger_bench
from tests.integration.ledger_bench import Bench, open_bench
from tests.integration.shell import Shell, process

LOST = Unsure("timeout", "no answer in 2 s")
REASON = ("--reason", "the provider was down", "--by", "pat")


@pytest.fixture
def bench(database: LedgerDatabase) -> Iterator[Bench]:
    with open_bench(database) as opened:
        yield opened


def unknowable(bench: Bench, key: str, tool: str = "wallet.note") -> tuple[UUID, c.Send, c.Term]:
    run = bench.enqueue(key)
    call = bench.debit(run, key, tool)
    send, term = bench.dispatch(run, call)
    bench.record(send, term, LOST)
    bench.ahead(4)
    assert bench.reconcile(run, call)[0] == c.Done("NEEDS_REPAIR")
    return call, send, term


def three(bench: Bench) -> list[UUID]:
    return [unknowable(bench, f"o-{n}")[0] for n in range(3)]


def states(bench: Bench, calls: Sequence[UUID]) -> list[str]:
    return [bench.state(call) for call in calls]


def test_a_dry_run_lists_and_decides_nothing(bench: Bench, shell: Shell) -> None:
    calls = three(bench)
    told = shell.ok(
        "repair", "--where", "tool=wallet.note", "--accept-unknown", *REASON, "--dry-run", role="reader"
    )
    assert all(str(call) in told for call in calls)
    assert told.endswith("3 calls would be decided ACCEPTED_UNKNOWN; nothing was decided\n")
    listed = shell.json("repair", "--where", "tool=wallet.note", "--accept-unknown", *REASON, "--dry-run")
    assert (listed["decided"], len(listed["calls"])) == (False, 3)
    assert states(bench, calls) == ["NEEDS_REPAIR"] * 3


def test_nothing_is_decided_of_many_without_being_agreed_to(bench: Bench, shell: Shell) -> None:
    calls = three(bench)
    every = ("repair", "--state", "NEEDS_REPAIR", "--accept-unknown", *REASON)
    assert "3 calls fit: agree with --yes, or with --expect 3" in shell.refused(2, *every)
    assert shell.refused(1, *every, "--expect", "2") == "3 calls fit, not 2: nothing was decided"
    assert states(bench, calls) == ["NEEDS_REPAIR"] * 3
    told = shell.ok(*every, "--expect", "3")
    assert told.endswith("3 ACCEPTED_UNKNOWN\n")
    assert states(bench, calls) == ["ACCEPTED_UNKNOWN"] * 3
    why = "SELECT principal, body ->> 'reason' FROM fencepost.events WHERE type = 'RepairDecided'"
    assert bench.sql(why) == [("pat", "the provider was down")] * 3
    assert shell.ok(*every, "--yes") == "no call that needs repair fits\n"


@pytest.mark.parametrize(
    ("how", "count"),
    [
        (("--where", "tool=wallet.note"), 2),
        (("--where", "tool=wallet.note", "--where", "tool=slow.gift"), 3),
        (("--where", "dependency=slow"), 1),
        (("--where", "dependency=wallet/default"), 2),
        (("--where", "dependency=wallet", "--where", "run=o-1"), 1),
        (("--where", "tenant=other"), 0),
        (("--tenant", "shop", "--older-than", "10s"), 1),
        (("--older-than", "1h"), 0),
        (("--where", "tool=wallet.%"), 0),
    ],
)
def test_which_calls_fit(module_bench: Bench, how: tuple[str, ...], count: int) -> None:
    if not module_bench.sql("SELECT 1 FROM fencepost.calls"):
        unknowable(module_bench, "o-1")
        module_bench.ahead(10)
        unknowable(module_bench, "o-2")
        unknowable(module_bench, "o-3", "slow.gift")
    shell = Shell(module_bench.database, {"COLUMNS": "240"})
    fits = shell.json("repair", *how, "--ask-again", *REASON, "--dry-run", role="reader")
    assert len(fits["calls"]) == count


def test_a_run_key_that_several_tenants_have_needs_the_tenant(
    bench: Bench, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, _, _ = unknowable(bench, "o-1")
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(ledger_bench, "TENANT", "other")
        theirs, _, _ = unknowable(bench, "o-1")
    by_key = ("repair", "--where", "run=o-1", "--accept-unknown", *REASON)
    for more in ((), ("--yes",), ("--dry-run",)):
        told = shell.refused(2, *by_key, *more)
        assert told == "runs of several tenants have that key: name one with --tenant, of other, shop"
    listed = shell.ok("repair", "--where", "tool=wallet.note", "--accept-unknown", *REASON, "--dry-run")
    assert sorted(line.split()[2] for line in listed.splitlines()[:3]) == ["TENANT", "other", "shop"]
    assert shell.ok(*by_key, "--tenant", "other", "--yes").endswith("1 ACCEPTED_UNKNOWN\n")
    assert states(bench, [mine, theirs]) == ["NEEDS_REPAIR", "ACCEPTED_UNKNOWN"]
    # Also where only one of them waits: it may not be the one that is meant.
    assert "name one with --tenant" in shell.refused(2, *by_key, "--yes")


def test_a_refusal_in_between_costs_the_others_nothing(bench: Bench, shell: Shell) -> None:
    first, _, _ = unknowable(bench, "o-1")
    known, send, term = unknowable(bench, "o-2")
    bench.one(bench.evidence(send, term, Applied('{"id":"n-1"}', "n-1")))
    last, _, _ = unknowable(bench, "o-3")
    result = shell("repair", "--where", "dependency=wallet", "--accept-unknown", *REASON, "--yes")
    assert result.exit_code == 1
    assert f"call {first} (wallet.note of run o-1) is ACCEPTED_UNKNOWN\n" in result.stdout
    assert f"call {last} (wallet.note of run o-3) is ACCEPTED_UNKNOWN\n" in result.stdout
    assert re.search(rf"call {known} .* was refused: attempt 1 is known to have been applied", result.stdout)
    assert result.stdout.endswith("2 ACCEPTED_UNKNOWN, 1 refused\n")
    assert states(bench, [first, known, last]) == ["ACCEPTED_UNKNOWN", "NEEDS_REPAIR", "ACCEPTED_UNKNOWN"]


def test_what_changed_after_it_was_listed_is_not_decided(
    bench: Bench, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    call, send, term = unknowable(bench, "o-1")
    other, _, _ = unknowable(bench, "o-2")
    look = waiting

    def listed(*args: Any) -> list[Waiting]:
        found = look(*args)
        bench.one(bench.evidence(send, term, Applied('{"id":"n-1"}', "n-1")))  # it speaks of the first call
        return found

    monkeypatch.setattr(bulk, "waiting", listed)
    found = shell.json("repair", "--where", "tool=wallet.note", "--ask-again", *REASON, "--yes", exit_code=1)
    told = {one["call"]: (one["state"], one["why"]) for one in found["calls"]}
    assert told[str(other)] == ("UNKNOWN", None)
    assert told[str(call)] == (None, "the call has changed since you looked at it; look again, then decide")
    assert bench.state(call) == "NEEDS_REPAIR"


def test_a_postgres_that_goes_away_half_way_leaves_what_was_decided_told(
    bench: Bench, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = three(bench)
    monkeypatch.setattr("fencepost.office.BATCH", 1)
    apply, asked = Office.apply, []

    def failing(self: Office, batch: Sequence[c.Command]) -> list[c.Answer]:
        asked.append(batch)
        if len(asked) == 2:
            raise Unreachable("Postgres is away")
        return apply(self, batch)

    monkeypatch.setattr(Office, "apply", failing)
    again = ("repair", "--where", "tool=wallet.note", "--accept-unknown", *REASON, "--yes")
    result = shell(*again)
    assert result.exit_code == 3
    assert f"call {calls[0]} (wallet.note of run o-0) is ACCEPTED_UNKNOWN\n" in result.stdout
    assert "2 calls were not reached: the same command again is safe" in result.stderr
    assert states(bench, calls) == ["ACCEPTED_UNKNOWN", "NEEDS_REPAIR", "NEEDS_REPAIR"]
    assert shell.ok(*again).endswith("2 ACCEPTED_UNKNOWN\n")


def test_on_a_terminal_the_number_is_typed(bench: Bench, shell: Shell) -> None:
    calls = three(bench)
    controller, terminal = pty.openpty()
    command = ("repair", "--where", "tool=wallet.note", "--accept-unknown", *REASON)
    child = process(shell, *command, stdin=terminal, stdout=terminal, stderr=terminal, env={"TERM": "xterm"})
    os.close(terminal)
    told = b""

    def asked() -> bool:
        nonlocal told
        told += os.read(controller, 65536)
        return b"Type 3 to decide" in told

    until("the question", asked)
    os.write(controller, b"3\n")
    assert child.wait(timeout=60) == 0
    os.close(controller)
    assert states(bench, calls) == ["ACCEPTED_UNKNOWN"] * 3


def test_what_cannot_be_said_of_many_is_one_sentence(shell: Shell) -> None:
    where = ("--where", "tool=wallet.note")
    happened = shell.refused(2, "repair", *where, "--happened", *REASON)
    assert "what happened has a receipt of its own each time" in happened
    assert "are of one CALL" in shell.refused(2, "repair", *where, "--ask-again", "--seen", "3", *REASON)
    assert "are for --where" in shell.refused(2, "repair", "0000", "--ask-again", "--yes", *REASON)
    assert "name a CALL, or say which" in shell.refused(2, "repair", "--ask-again", *REASON)
    assert "name a CALL, or say which" in shell.refused(2, "repair", "0000", *where, "--ask-again", *REASON)
    for wrong in ("tool", "colour=red", "tool="):
        assert "give NAME=VALUE with one of tool, dependency, tenant, run" in shell.refused(
            2, "repair", "--where", wrong, "--ask-again", *REASON
        )
