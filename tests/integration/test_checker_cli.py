"""`fencepost check`: verdicts for people and programs, exit codes, and books wherever they are kept."""

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from fencepost.clock import rfc3339
from fencepost_ops.check import RemoteBooks, books
from fencepost_ops.checker import SandboxBooks
from fencepost_ops.local import LocalPostgres
from fencepost_ops.sandbox.process import SandboxProcess
from tests.integration.checker_world import World, built, copy_of
from tests.integration.sandbox_caller import Caller
from tests.integration.shell import Shell


@pytest.fixture(scope="module")
def original(postgres: LocalPostgres, template: dict[str, str]) -> Iterator[World]:
    with built(postgres, template) as world:
        yield world


@pytest.fixture
def world(original: World, postgres: LocalPostgres) -> Iterator[World]:
    with copy_of(original, postgres) as made:
        yield made


@pytest.fixture
def shell(world: World) -> Shell:
    return Shell(world.bench.database, {"FENCEPOST_SANDBOX_URL": "", "FENCEPOST_APP": ""})


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SandboxProcess]:
    with SandboxProcess(tmp_path_factory.mktemp("sandbox")) as box:
        with Caller.of_a_fresh(box) as caller:
            caller.debit(headers={"Fencepost-Attempt": "2", "Fencepost-Fence": "x"})
            caller.debit(fault="error_503")
        yield box


def test_a_healthy_ledger_is_fine_and_what_was_not_checked_is_said(shell: Shell) -> None:
    said = shell.ok("check", "--all", role="reader")
    assert "I1         unchecked" in said
    assert "I6         holds" in said
    assert "no service's book was given" in said
    assert "books read: none" in said
    assert "waits for an operator: fencepost repair" in said


def test_a_violation_is_exit_code_1_and_names_its_culprit(shell: Shell, world: World) -> None:
    world.sql("DELETE FROM fencepost.outbox WHERE subject = %s", world.unknown)
    result = shell("check", "--all", role="reader")
    assert result.exit_code == 1
    assert f"I12 is violated: run {world.waiting}: call {world.unknown} (wallet.hold)" in result.stdout


def test_one_run_is_checked_alone(shell: Shell, world: World) -> None:
    world.sql("DELETE FROM fencepost.outbox WHERE subject = %s", world.unknown)
    told = shell.json("check", str(world.completed), role="reader")
    assert (told["ok"], told["runs"]) == (True, 1)
    assert shell.json("check", str(world.waiting), role="reader", exit_code=1)["ok"] is False


def test_json_holds_the_whole_report(shell: Shell) -> None:
    told = shell.json("check", "--all", "--settled", role="reader")
    assert told["invariants"]["I6"]["verdict"] == "holds"
    assert told["invariants"]["I12"]["notes"] == []


def test_a_ledger_that_has_not_settled_is_told_only_when_asked(shell: Shell, world: World) -> None:
    world.bench.enqueue("another")
    assert shell("check", "--all").exit_code == 0
    assert shell("check", "--all", "--settled").exit_code == 1


def test_bad_questions_are_usage(shell: Shell, tmp_path: Path) -> None:
    assert "name a RUN, or give --all" in shell.refused(2, "check")
    assert "name a RUN, or give --all" in shell.refused(2, "check", "run-1", "--all")
    assert "--tenant says whose RUN is meant" in shell.refused(2, "check", "--all", "--tenant", "shop")
    assert "there is no run nobody" in shell.refused(2, "check", "nobody")
    assert "no sandbox has kept a book" in shell.refused(2, "check", "--all", "--book", str(tmp_path))


def test_a_book_that_does_not_answer_is_unreachable(shell: Shell) -> None:
    assert "no book at http://127.0.0.1:9" in shell.refused(
        3, "check", "--all", "--book", "http://127.0.0.1:9"
    )


def test_effects_that_no_run_explains_are_found_in_the_book_that_is_named(
    shell: Shell, sandbox: SandboxProcess
) -> None:
    for place in (sandbox.url, str(sandbox.data)):
        result = shell("check", "--all", "--book", place, "--json")
        assert result.exit_code == 1
        told = json.loads(result.stdout)["invariants"]
        assert "no such attempt was ever recorded" in told["I2"]["violations"][0]["message"]


def test_a_book_reads_alike_over_http_and_on_disk(sandbox: SandboxProcess) -> None:
    far, near = RemoteBooks(sandbox.url), SandboxBooks(sandbox.book)
    assert far.effects("wallet") == near.effects("wallet")
    assert far.requests("wallet") == near.requests("wallet")
    (effect,) = near.effects("wallet")
    assert (effect.origin.attempt, effect.origin.fence, effect.origin.call) == (2, None, None)
    assert len(near.requests("wallet")) == 2
    assert books(None) is None


# -- books that the application reads itself --


@pytest.fixture
def own(shell: Shell, world: World, tmp_path: Path) -> Shell:
    """The application reads the wallet's book from a file, which knows receipts and no keys."""
    book(tmp_path, [{"receipt": e.receipt, "at": rfc3339(e.at)} for e in world.books.kept])
    shell.env |= {"FENCEPOST_APP": "tests.integration.audit_app:app", "AUDITED_BOOK": str(tmp_path / "book")}
    return shell


def book(folder: Path, effects: list[dict[str, str]]) -> None:
    (folder / "book").write_text("".join(json.dumps(effect) + "\n" for effect in effects))


def kept(folder: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in (folder / "book").read_text().splitlines()]


def test_the_books_an_application_reads_are_held_against_the_ledger_too(own: Shell, world: World) -> None:
    told = own.json("check", "--all", "--settled", role="reader")
    found = told["invariants"]
    assert told["books"] == ["wallet/default"]
    assert (found["I1"]["verdict"], found["I2"]["verdict"], found["I2"]["count"]) == ("holds", "holds", 4)
    assert "requests to wallet/default were not counted: its book keeps none" in found["I9"]["notes"]
    assert "books read: wallet/default" in own.ok("check", str(world.stopped), role="reader")


def test_what_an_applications_book_says_otherwise_is_a_violation(
    own: Shell, world: World, tmp_path: Path
) -> None:
    paid, *others = kept(tmp_path)
    assert paid["receipt"] == "r-paid"
    for effects, invariant, says in (
        (others, "I1", f"no effect in the book of wallet, yet call {world.paid}"),
        ([paid, paid, *others], "I1", "2 effects of one intent: wallet/default r-paid"),
        ([paid, {**paid, "receipt": "r-x"}, *others], "I2", "no call here is known by its receipt"),
    ):
        book(tmp_path, effects)
        result = own("check", "--all", role="reader")
        assert result.exit_code == 1
        assert f"{invariant} is violated: " in result.stdout
        assert says in result.stdout
        assert own("check", str(world.stopped), role="reader").exit_code == 0


def test_an_effect_is_looked_for_since_its_intent_was_first_sent(
    own: Shell, world: World, tmp_path: Path
) -> None:
    bench = world.bench
    order = json.loads(bench.call(world.paid).arguments)["order"]
    earlier = "UPDATE fencepost.operations SET first_sent_at = first_sent_at - '1 day'::interval"
    world.sql(f"{earlier} WHERE call = %s", world.paid)
    paid = world.effect("r-paid")
    book(tmp_path, [{"receipt": "r-paid", "at": rfc3339(paid.at - timedelta(days=1))}])
    run = bench.enqueue("later")
    call = bench.succeed_by_reuse(run, order)
    bench.finish(run)
    assert bench.call(call).receipt == "r-paid"
    told = own.json("check", str(run), role="reader")["invariants"]["I1"]
    assert (told["verdict"], told["count"]) == ("holds", 1)


def test_an_applications_book_that_cannot_be_read_is_unreachable(own: Shell, tmp_path: Path) -> None:
    (tmp_path / "book").unlink()
    assert "the book of wallet/default cannot be read: FileNotFoundError" in own.refused(3, "check", "--all")


def test_how_far_the_clock_of_a_book_may_be_off_is_told(
    shell: Shell, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fencepost_ops.check.books", lambda _place: world.books)
    assert shell("check", "--all", role="reader").exit_code == 0
    world.books.change("r-paid", at=world.effect("r-paid").at - timedelta(seconds=2))
    result = shell("check", "--all", role="reader")
    assert result.exit_code == 1
    assert "I2 is violated" in result.stdout
    assert "before its attempt was recorded" in result.stdout
    assert shell("check", "--all", "--tolerance", "3", role="reader").exit_code == 0
    assert shell("check", "--all", "--tolerance", "-1", role="reader").exit_code == 2
