"""The audit with an application's own reader of a book: matching, doubts, what changes meanwhile, secrets."""

import csv
import json
import signal
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from subprocess import Popen
from typing import Any
from uuid import UUID

import pytest

from fencepost.clock import rfc3339
from fencepost.outcomes import Applied, Unsure
from fencepost.recovery import Answer
from fencepost_ops.audit.spool import Spool
from fencepost_ops.database import LedgerDatabase
from tests.awaiting import until
from tests.integration.ledger_bench import Bench, open_bench
from tests.integration.shell import Shell, process

LOST = Unsure("timeout", "no answer")
APP = "tests.integration.audit_app:app"


@pytest.fixture
def bench(database: LedgerDatabase) -> Iterator[Bench]:
    with open_bench(database) as opened:
        yield opened


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
    said = shell.ok(*finding["next"].replace("TEXT", "audited").split()[1:])
    assert said.startswith(f"call {call} is SUCCEEDED: its run goes on")
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


def scheduled(shell: Shell) -> Popen[str]:
    env = {name: shell.env[name] for name in ("FENCEPOST_APP", "AUDITED_BOOK")}
    return process(shell, "audit", "wallet", "--json", "--every", "50ms", env=env)


def test_it_is_scheduled_until_a_signal_ends_it(bench: Bench, shell: Shell, listed: Listed) -> None:
    paid(bench, "o-1", "d-1")
    listed.write({"receipt": "d-1"})
    child = scheduled(shell)
    assert child.stdout is not None
    told = [json.loads(child.stdout.readline()) for _ in range(2)]
    assert [one["differences"] for one in told] == [0, 0]
    listed.write({"receipt": "d-1"}, {"receipt": "d-2"})
    until("the planted effect", lambda: json.loads(child.stdout.readline())["differences"] == 1)  # type: ignore[union-attr]
    child.send_signal(signal.SIGTERM)
    child.communicate(timeout=30)
    assert child.returncode == 1


@pytest.mark.parametrize(
    ("more", "exit_code"), [((), 3), (({"receipt": "d-2"},), 1)], ids=["same", "differs"]
)
def test_a_book_that_cannot_be_read_once_does_not_end_what_is_scheduled(
    bench: Bench, shell: Shell, listed: Listed, more: tuple[dict[str, Any], ...], exit_code: int
) -> None:
    paid(bench, "o-1", "d-1")
    child = scheduled(shell)
    assert child.stdout is not None
    assert child.stderr is not None
    told = child.stderr.readline()
    assert told.startswith("audit: the book of wallet/default cannot be read: FileNotFoundError")
    assert told.endswith("; the next audit tries again\n")
    whole = listed.file.with_suffix(".new")
    Listed(whole, bench).write({"receipt": "d-1"}, *more)
    whole.rename(listed.file)
    assert json.loads(child.stdout.readline())["differences"] == len(more)
    child.send_signal(signal.SIGTERM)
    child.communicate(timeout=30)
    assert child.returncode == exit_code
