"""`fencepost audit`: a real ledger against the book of a live sandbox, or an application's own reader."""

import csv
import json
import signal
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx2
import pytest

from fencepost import Request
from fencepost import commands as c
from fencepost.clock import rfc3339
from fencepost.outcomes import Applied, Refused, Unsure
from fencepost.recovery import Answer
from fencepost.wire import StoredRequest
from fencepost_ops.audit import intents, spool
from fencepost_ops.audit.spool import Spool
from fencepost_ops.database import LedgerDatabase
from fencepost_ops.sandbox.process import SandboxProcess
from tests.awaiting import until
from tests.integration.ledger_bench import Bench, open_bench
from tests.integration.sandbox_caller import money
from tests.integration.shell import Shell, process

LOST = Unsure("timeout", "no answer")
APP = "tests.integration.audit_app:app"


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


# -- an application's own reader ----------------------------------------------------------------------


class Listed:
    """A book that a file lists."""

    def __init__(self, file: Path, bench: Bench) -> None:
        self.file = file
        self.bench = bench

    def write(self, *effects: dict[str, Any]) -> None:
        at = rfc3339(self.bench.now())
        self.file.write_text("\n".join(json.dumps({"at": at, "receipt": None} | one) for one in effects))


@pytest.fixture
def listed(tmp_path: Path, bench: Bench, shell: Shell) -> Listed:
    shell.env["FENCEPOST_APP"] = APP
    shell.env["AUDITED_BOOK"] = str(tmp_path / "book")
    return Listed(tmp_path / "book", bench)


def paid(bench: Bench, order: str, receipt: str, tool: str = "wallet.debit") -> UUID:
    run = bench.start()
    call = bench.debit(run, order, tool)
    bench.succeed(run, call, receipt)
    return call


def test_effects_are_matched_by_receipt_and_by_reference_where_the_book_keeps_no_keys(
    bench: Bench, shell: Shell, listed: Listed
) -> None:
    for n in range(3):
        paid(bench, f"o-{n}", f"d-{n}")
    paid(bench, "o-0", "w-0", "wallet.note")
    listed.write(
        {"receipt": "d-0"},
        {"reference": "o-1", "tool": "wallet.debit", "arguments": {"minor": 100}},
        {"reference": "o-2"},
        {"reference": "o-0", "tool": "wallet.note"},
        {"reference": "o-0"},  # the debit or the note: nobody knows which
        {"reference": "o-9"},
    )
    found = shell.json("audit", "wallet", exit_code=1)
    assert found["counts"]["matched"] == 4
    assert [f["effects"][0]["reference"] for f in found["findings"]] == ["o-0", "o-9"]


def test_what_is_in_doubt_is_told_with_the_command_that_settles_it(
    bench: Bench, shell: Shell, listed: Listed
) -> None:
    run = bench.start()
    call = bench.debit(run, "o-1", "mail.send")
    assert shell.refused(2, "audit", "mail").startswith("the application has no dependency mail; known: ")
    send, term = bench.dispatch(run, call)
    bench.record(send, term, LOST)
    bench.reconcile(run, call)
    bench.ahead(10)
    listed.write({"key": send.key, "receipt": "m-1"})
    (finding,) = shell.json("audit", "wallet", exit_code=1)["findings"]
    assert finding["kind"] == "in_doubt_yet_found"
    assert finding["next"].endswith("--happened --receipt m-1")
    assert shell.ok(*finding["next"].replace("TEXT", "audited").split()[1:]) == f"call {call} is SUCCEEDED\n"
    assert "nothing differs" in shell.ok("audit", "wallet")


def meanwhile(monkeypatch: pytest.MonkeyPatch, happens: Callable[[], object]) -> None:
    """Have something happen when the ledger has been read, and the book as well."""
    add = Spool.add_effects

    def added(self: Spool, effects: Any, since: datetime, before: datetime) -> None:
        add(self, effects, since, before)
        happens()

    monkeypatch.setattr(Spool, "add_effects", added)


def test_a_call_that_succeeds_after_the_book_was_read_is_not_missing(
    bench: Bench, shell: Shell, listed: Listed, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = bench.start()
    call = bench.debit(run, "o-1")
    send, term = bench.dispatch(run, call)
    meanwhile(monkeypatch, lambda: bench.record(send, term, Applied('{"id":"d-1"}', "d-1")))
    listed.write({"key": "elsewhere"})
    found = shell.json("audit", "wallet", exit_code=1)
    assert (found["counts"]["moving"], found["counts"]["missing"]) == (1, 0)
    assert bench.state(call) == "SUCCEEDED"


def test_a_doubt_that_is_settled_while_the_book_is_read_is_no_difference(
    bench: Bench, shell: Shell, listed: Listed, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = bench.start(deadline_s=600)
    call = bench.debit(run, "o-1")
    send, term = bench.dispatch(run, call)
    bench.record(send, term, LOST)
    bench.ahead(10)

    def reconciled() -> None:
        ask, asking = bench.reconcile(run, call)
        bench.one(bench.looked_up(ask, asking, Answer.FOUND, "d-1"))

    meanwhile(monkeypatch, reconciled)
    listed.write({"key": send.key, "receipt": "d-1"})
    found = shell.json("audit", "wallet")
    assert (found["counts"]["matched"], found["differences"]) == (1, 0)


def test_a_book_that_cannot_be_read_is_one_sentence_and_no_verdict(
    bench: Bench, shell: Shell, listed: Listed
) -> None:
    told = shell.refused(3, "audit", "wallet")
    assert told.startswith("the book of wallet/default cannot be read: FileNotFoundError")
    listed.file.write_text('{"at": "2026-01-01T00:00:00Z", "receipt": null}')
    assert "names its key, its receipt or its reference" in shell.refused(2, "audit", "wallet")
    assert "nobody reads the book of slow/default" in shell.refused(2, "audit", "slow")
    assert "no book at http://127.0.0.1:1" in shell.refused(
        3, "audit", "wallet", "--book", "http://127.0.0.1:1"
    )
    assert "the period is empty" in shell.refused(2, "audit", "wallet", "--until", "2d")
    assert "not both" in shell.refused(2, "audit", "wallet", "--json", "--csv")


def test_secrets_and_formulas_of_either_side_are_not_printed(
    bench: Bench, shell: Shell, listed: Listed
) -> None:
    paid(bench, "o-1", "d-1")
    listed.write({"receipt": "d-1", "arguments": {"password": "hunter2", "note": '=HYPERLINK("x")'}})
    for form in ([], ["--json"], ["--csv"]):
        told = shell("audit", "wallet", *form).stdout
        assert "hunter2" not in told
        assert "password" in told
    (row,) = csv.DictReader(shell("audit", "wallet", "--csv").stdout.splitlines())
    assert not any(cell.startswith("=") for cell in row.values())


def test_long_work_says_on_stderr_how_far_it_is(
    bench: Bench, shell: Shell, listed: Listed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fencepost_ops.commands.audit._EVERY_S", 0.0)
    paid(bench, "o-1", "d-1")
    listed.write({"receipt": "d-1"})
    result = shell("audit", "wallet", "--json")
    assert json.loads(result.stdout)["differences"] == 0
    assert result.stderr == "audit: 1 calls read so far\naudit: 1 effects read so far\n"


def test_it_is_scheduled_until_a_signal_ends_it(bench: Bench, shell: Shell, listed: Listed) -> None:
    paid(bench, "o-1", "d-1")
    listed.write({"receipt": "d-1"})
    child = process(
        shell,
        "audit",
        "wallet",
        "--json",
        "--every",
        "50ms",
        env={k: shell.env[k] for k in ("FENCEPOST_APP", "AUDITED_BOOK")},
    )
    assert child.stdout is not None
    told = [json.loads(child.stdout.readline()) for _ in range(2)]
    assert [one["differences"] for one in told] == [0, 0]
    listed.write({"receipt": "d-1"}, {"receipt": "d-2"})
    until("the planted effect", lambda: json.loads(child.stdout.readline())["differences"] == 1)  # type: ignore[union-attr]
    child.send_signal(signal.SIGTERM)
    child.communicate(timeout=30)
    assert child.returncode == 1
