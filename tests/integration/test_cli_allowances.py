"""`fencepost allowances`: whose counters there are, what is used and held of them, and when windows end."""

from collections.abc import Iterator
from datetime import timedelta

import pytest

from fencepost.allowances import Allowance
from fencepost_ops.database import LedgerDatabase
from tests.integration.allowed import DONE, NOBODY_KNOWS, NOT_DONE, euros, under
from tests.integration.ledger_bench import Bench, open_bench
from tests.integration.shell import Shell

RULES = (
    Allowance(id="day", count=5, spend=euros(1000), window=timedelta(days=1), per=("principal", "resource")),
    Allowance(id="ever", count=2),
)


@pytest.fixture
def bench(database: LedgerDatabase) -> Iterator[Bench]:
    with open_bench(database) as opened:
        yield opened


def test_counters_are_listed_with_what_is_used_and_held(bench: Bench, shell: Shell) -> None:
    assert shell.ok("allowances", role="reader") == "no allowance has been used\n"
    with under(bench, *RULES) as allowed:
        first, second, third = allowed.planned(["o-1", "o-2", "o-3"], minor=250)
        bench.record(*allowed.sent(third), NOT_DONE)
        bench.record(*allowed.sent(first), DONE)
        bench.record(*allowed.sent(second), NOBODY_KNOWS)
    table = shell.ok("allowances", role="reader")
    lines = {_order(line): " ".join(line.split()) for line in table.splitlines()}
    assert lines["head"] == "TENANT ALLOWANCE FOR ENDS USED HELD LIMIT COUNTER"
    for order, used in (
        ("o-1", "1, 2.50 EUR 5, 10.00 EUR"),
        ("o-2", "1, 2.50 EUR 1, 2.50 EUR 5, 10.00 EUR"),
        ("o-3", "0, 0.00 EUR 5, 10.00 EUR"),
    ):
        whose = f"shop day principal svc:checkout, resource account:{order} in "
        assert lines[order].startswith(whose)
        assert used in lines[order]
    assert lines["ever"].startswith("shop ever the tenant never 2 1 2 ")
    told = shell.json("allowances", role="reader")
    known = {
        (one["subject"].get("resource"), one["calls"], one["minor"], one["held_calls"], one["held_minor"])
        for one in told
    }
    assert known == {
        ("account:o-1", 1, 250, 0, 0),
        ("account:o-2", 1, 250, 1, 250),
        ("account:o-3", 0, 0, 0, 0),
        (None, 2, 0, 1, 0),
    }
    assert shell.json("allowances", "--tenant", "other", role="reader") == []


def _order(line: str) -> str:
    words = [word for word in ("o-1", "o-2", "o-3", "ever") if word in line]
    return words[0] if words else "head"


def test_windows_that_have_ended_are_shown_when_asked_for(bench: Bench, shell: Shell) -> None:
    with under(bench, RULES[0]) as allowed:
        bench.record(*allowed.sent(allowed.planned(["o-1"])[0]), DONE)
    bench.ahead(86400)
    assert shell.json("allowances") == []
    (one,) = shell.json("allowances", "--all")
    assert (one["allowance"], one["calls"], one["minor"], one["currency"]) == ("day", 1, 100, "EUR")
    assert " ago " in shell.ok("allowances", "--all")


def test_a_counter_says_nothing_of_whom_once_the_history_is_gone(bench: Bench, shell: Shell) -> None:
    with under(bench, RULES[0]) as allowed:
        allowed.sent(allowed.planned(["o-1"])[0])
    bench.sql("ALTER TABLE fencepost.allowances DISABLE TRIGGER guard_allowance")
    bench.sql("UPDATE fencepost.allowances SET first_call = gen_random_uuid()")
    (one,) = shell.json("allowances")
    assert one["subject"] is None
    assert "not known any more" in shell.ok("allowances")
    assert "o-1" not in shell.ok("allowances")
