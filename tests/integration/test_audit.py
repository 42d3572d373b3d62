"""`fencepost audit`: a real ledger against the book of a live sandbox, or an application's own reader."""

import csv
import json
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import httpx2
import pytest

from fencepost import Request
from fencepost import commands as c
from fencepost.clock import rfc3339
from fencepost.ledger import epochs
from fencepost.ledger.connect import connect
from fencepost.outcomes import Applied, Refused, Unsure
from fencepost.wire import StoredRequest
from fencepost_ops.audit import intents, spool
from fencepost_ops.database import LedgerDatabase
from fencepost_ops.sandbox.process import SandboxProcess
from tests.integration.ledger_bench import Bench, open_bench
from tests.integration.sandbox_caller import money
from tests.integration.shell import Shell

LOST = Unsure("timeout", "no answer")


@pytest.fixture
def bench(database: LedgerDatabase) -> Iterator[Bench]:
    with open_bench(database) as opened:
        yield opened


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SandboxProcess]:
    with SandboxProcess(tmp_path_factory.mktemp("audited")) as running:
        yield running


class Payments:
    """Sends debits as a worker does, and plants what should not be there at the downstream."""

    def __init__(self, bench: Bench, sandbox: SandboxProcess) -> None:
        self.bench = bench
        self.sandbox = sandbox
        self.http = httpx2.Client(base_url=sandbox.url, timeout=10)

    def order(self) -> str:
        """One that no other ledger has either: they share the sandbox, and equal intents have equal keys."""
        return uuid4().hex

    def body(self, order: str) -> dict[str, Any]:
        return {"account": order, "amount": money(100), "reference": order}

    def begun(self, order: str) -> tuple[c.Send, c.Term]:
        run = self.bench.start(deadline_s=600)
        call = self.bench.debit(run, order)
        term = self.bench.term()
        request = Request.post("/wallet/debits", json=self.body(order)).bind(self.sandbox.url).to_text()
        send = self.bench.one(c.ClaimCall(**self.bench._claim(run, call, term, None), request=request))
        assert isinstance(send, c.Send), send
        return send, term

    def effect(self, send: c.Send, key: str | None = None) -> str:
        """Send the stored bytes; the receipt."""
        stored = StoredRequest.from_text(send.call.request or "")
        headers = {**dict(stored.headers), "Idempotency-Key": key or str(send.key)}
        answer = self.http.request(stored.method, stored.target, content=stored.body, headers=headers)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    def paid(self, order: str) -> c.Send:
        send, term = self.begun(order)
        receipt = self.effect(send)
        assert self.bench.record(send, term, Applied(f'{{"id":"{receipt}"}}', receipt)) == c.Done("SUCCEEDED")
        return send

    def book(self, statement: str, *values: object) -> None:
        """Change the sandbox's book behind its back."""
        with closing(sqlite3.connect(self.sandbox.data / "sandbox.sqlite3", timeout=10)) as connection:
            assert connection.execute(statement, values).rowcount == 1
            connection.commit()


@pytest.fixture
def payments(bench: Bench, sandbox: SandboxProcess) -> Iterator[Payments]:
    made = Payments(bench, sandbox)
    yield made
    made.http.close()


def test_an_audit_is_noted_while_the_ledger_is_held(payments: Payments, shell: Shell) -> None:
    book = ("audit", "wallet", "--book", payments.sandbox.url, "--service", "wallet", "--since", "1ms")
    noted = "SELECT scope, login FROM fencepost.audits"
    shell.json(*book, role="reader")
    assert payments.bench.sql(noted) == []
    with connect(payments.bench.database.dsns["operator"], "hold", autocommit=True) as connection:
        epochs.open_epoch(connection, payments.bench.now() - timedelta(minutes=1), "ann", "restored")
    shell.json(*book, role="reader")
    ((scope, login),) = payments.bench.sql(noted)
    assert (scope, "reader" in login) == ("wallet/default", True)


def planted(payments: Payments) -> dict[str, UUID]:
    """One of everything that can be wrong, between payments that are right; by what it is."""
    bench = payments.bench
    for _ in range(3):
        payments.paid(payments.order())
    twice = payments.paid(payments.order())
    payments.sandbox.fault("forget_keys", service="wallet", key=twice.key)
    payments.effect(twice)
    gone = payments.paid(payments.order())
    payments.book("DELETE FROM effects WHERE key = ?", gone.key)
    dearer = payments.paid(payments.order())
    payments.book("UPDATE effects SET amount_minor = 900 WHERE key = ?", dearer.key)
    lost, term = payments.begun(payments.order())
    payments.effect(lost)
    bench.record(lost, term, LOST)
    denied, term = payments.begun(payments.order())
    payments.effect(denied)
    assert bench.record(denied, term, Refused("402", "no money", retryable=False)) == c.Done("FAILED")
    payments.effect(twice, key=f"nobody-asked-for-{payments.order()}")
    open_, term = payments.begun(payments.order())
    bench.record(open_, term, LOST)
    bench.ahead(10)
    return {
        "duplicate": twice.call.id,
        "missing": gone.call.id,
        "different": dearer.call.id,
        "in_doubt_yet_found": lost.call.id,
        "denied_yet_found": denied.call.id,
        "in_doubt": open_.call.id,
    }


def audited(shell: Shell, payments: Payments, *args: str, exit_code: int = 1) -> Any:
    where = ("--book", payments.sandbox.url, "--since", "30m", "--slack", "5m")
    return shell.json("audit", "wallet", *where, *args, exit_code=exit_code, role="reader")


def kinds(found: Any, mine: set[str]) -> dict[str, str]:
    """The findings about these calls, by kind."""
    return {
        f["kind"]: f["intent"]["call"]
        for f in found["findings"]
        if f["intent"] and f["intent"]["call"] in mine
    }


def test_everything_planted_in_a_live_sandbox_is_found_and_nothing_else(
    payments: Payments, shell: Shell, sandbox: SandboxProcess
) -> None:
    strange = len(sandbox.book.effects("wallet"))  # of the other tests' ledgers: nobody here asked for them
    calls = planted(payments)
    found = audited(shell, payments)
    assert kinds(found, {str(call) for call in calls.values()}) == {k: str(v) for k, v in calls.items()}
    counts = Counter({kind: count for kind, count in found["counts"].items() if count})
    assert counts == {"matched": 3, "effect_without_intent": 1 + strange, **dict.fromkeys(calls, 1)}
    assert (found["intents"], found["differences"]) == (9, 6 + strange)
    (differs,) = [f for f in found["findings"] if f["kind"] == "different"]
    assert [d["field"] for d in differs["differences"]] == ["amount"]
    (twice,) = [f for f in found["findings"] if f["kind"] == "duplicate"]
    assert len({effect["receipt"] for effect in twice["effects"]}) == 2


def test_table_csv_and_json_tell_the_same_and_what_to_do(payments: Payments, shell: Shell) -> None:
    calls = planted(payments)
    where = ("--book", str(payments.sandbox.data), "--since", "30m", "--slack", "5m")
    table, lines = shell("audit", "wallet", *where), shell("audit", "wallet", *where, "--csv")
    assert (table.exit_code, lines.exit_code) == (1, 1)
    assert f"call    {calls['missing']} (receipt " in table.stdout
    assert "amount: the ledger has " in table.stdout
    rows = list(csv.DictReader(lines.stdout.splitlines()))
    assert {row["kind"]: row["call"] for row in rows if row["call"]} == {k: str(v) for k, v in calls.items()}
    (doubtful,) = [row for row in rows if row["kind"] == "in_doubt_yet_found"]
    assert doubtful["downstream_receipts"]
    assert "900" in next(row["differences"] for row in rows if row["kind"] == "different")


def test_a_period_is_audited_page_by_page_and_only_that_period(
    payments: Payments, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intents, "PAGE", 2)
    monkeypatch.setattr(spool, "_PAGE", 2)
    first = [payments.paid(payments.order()) for _ in range(5)]
    middle = payments.bench.now()
    for _ in range(4):
        payments.paid(payments.order())
    found = audited(shell, payments, exit_code=1 if audited_before(payments) else 0)
    assert (found["intents"], found["counts"]["matched"]) == (9, 9)
    # Those before the middle are read for their effects alone, by the slack.
    late = shell.json(
        "audit",
        "wallet",
        "--book",
        payments.sandbox.url,
        "--since",
        rfc3339(middle),
        "--slack",
        "5m",
        role="reader",
    )
    assert (late["intents"], late["counts"]["matched"], late["differences"]) == (4, 4, 0)
    early = (rfc3339(middle - timedelta(minutes=2)), rfc3339(middle))
    told = shell.json(
        "audit",
        "wallet",
        "--book",
        payments.sandbox.url,
        "--since",
        early[0],
        "--until",
        early[1],
        exit_code=1 if audited_before(payments) else 0,
    )
    assert (told["intents"], told["counts"]["matched"]) == (len(first), len(first))


def audited_before(payments: Payments) -> bool:
    """Whether the sandbox, which the tests of this module share, has effects of other ledgers."""
    keys = {key for (key,) in payments.bench.sql("SELECT key FROM fencepost.operations")}
    return any(effect.key not in keys for effect in payments.sandbox.book.effects("wallet"))


def test_the_sandbox_a_fleet_talks_to_has_its_book_built_in(payments: Payments, shell: Shell) -> None:
    payments.paid(payments.order())
    since = ("--since", "10m", "--slack", "1m")
    result = shell("audit", "wallet", *since, "--json", FENCEPOST_SANDBOX_URL=payments.sandbox.url)
    assert json.loads(result.stdout)["counts"]["matched"] == 1
    assert "nobody reads the book" in shell.refused(2, "audit", "wallet", *since)
    stranger = shell.refused(2, "audit", "strange", *since, FENCEPOST_SANDBOX_URL=payments.sandbox.url)
    assert "nobody reads the book of strange/default" in stranger


def test_an_effect_of_a_call_first_sent_long_ago_is_found_by_its_key(
    payments: Payments, shell: Shell
) -> None:
    send, term = payments.begun(payments.order())
    payments.bench.ahead(4000)
    receipt = payments.effect(send)
    payments.bench.record(send, term, Applied(f'{{"id":"{receipt}"}}', receipt))
    payments.book("UPDATE effects SET at = at + 4000 WHERE key = ?", send.key)
    found = shell.json(
        "audit", "wallet", "--book", payments.sandbox.url, "--since", "10m", "--slack", "1m", exit_code=0
    )
    assert (found["intents"], found["counts"]["matched"]) == (0, 1)
