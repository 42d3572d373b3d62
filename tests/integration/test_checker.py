"""The checker on whole tables: a healthy world holds; edits (I6), lost and stale rows (I12) are named."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import fencepost_ops.checker
from fencepost_ops.local import LocalPostgres
from tests.integration.checker_world import ROW, World, built, copy_of, sentence
from tests.integration.test_checker_books import goes_red


@pytest.fixture(scope="module")
def original(postgres: LocalPostgres, template: dict[str, str]) -> Iterator[World]:
    with built(postgres, template) as world:
        yield world


@pytest.fixture
def world(original: World, postgres: LocalPostgres) -> Iterator[World]:
    with copy_of(original, postgres) as made:
        yield made


def test_a_healthy_world_holds_and_everything_was_looked_at(world: World) -> None:
    report = world.check()
    assert report.violated == []
    assert report.ok
    assert [v.invariant for v in report.verdicts if v.count == 0] == []
    assert (report.totals.runs, report.totals.completed, report.totals.stopped) == (4, 2, 1)
    assert report.totals.effects == len(world.books.kept) == 4
    assert any("fencepost audit DEPENDENCY compares" in note for note in report.verdict("I1").notes), (
        "amounts"
    )


def test_who_waits_for_a_person_is_named_with_the_command_that_answers(world: World) -> None:
    (waiting,) = world.check().waiting
    assert f"fencepost repair {world.unknown}" in waiting


def test_the_report_as_json_names_every_culprit(world: World) -> None:
    world.sql("DELETE FROM fencepost.outbox WHERE subject = %s", world.unknown)
    told = world.check().to_json()
    assert told["ok"] is False
    assert told["invariants"]["I12"]["verdict"] == "violated"
    (violation,) = told["invariants"]["I12"]["violations"]
    assert violation["call"] == str(world.unknown)
    assert told["invariants"]["I1"]["verdict"] == "holds"


# -- I6 --

SET = "UPDATE fencepost.operations SET "


def test_an_edited_body_is_found(world: World) -> None:
    edit = """UPDATE fencepost.events SET body = '{"receipt":"r-x"}' WHERE run = %s AND type = %s"""
    world.sql(edit, world.completed, "ToolResultRecorded")
    report = world.check()
    assert "its body was changed" in sentence(report, "I6")
    assert str(world.completed) in sentence(report, "I6")
    assert report.violated == ["I6", "I6.replay"]


@pytest.mark.parametrize(
    "edit", ["principal = 'mallory'", "fence = fence + 1", "recorded_at = recorded_at - '1s'::interval"]
)
def test_an_edited_header_is_found(world: World, edit: str) -> None:
    world.sql(f"UPDATE fencepost.events SET {edit} WHERE run = %s AND type = 'RunCompleted'", world.completed)
    assert "its header was changed" in sentence(world.check(), "I6")


def test_a_removed_event_is_found(world: World) -> None:
    world.sql(
        "DELETE FROM fencepost.events WHERE run = %s AND type = 'ArgumentsCanonicalized'", world.completed
    )
    assert "is missing" in sentence(world.check(), "I6")


def test_a_cut_tail_is_found(world: World) -> None:
    world.sql("DELETE FROM fencepost.events WHERE run = %s AND type = 'RunCompleted'", world.completed)
    report = world.check(settled=False)
    assert "its history says" in sentence(report, "I6")
    assert report.violated == ["I6", "I6.replay"]


def test_a_lost_history_is_found(world: World) -> None:
    world.sql("DELETE FROM fencepost.events WHERE run = %s", world.completed)
    assert str(world.completed) in sentence(world.check(), "I6")


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        ("state = 'FAILED'", "its state is FAILED, its history says SUCCEEDED"),
        ("doubt = true", "its doubt is True, its history says False"),
        ("attempts = 9", "its number of attempts is 9, its history says 1"),
    ],
)
def test_an_edited_row_is_found(world: World, edit: str, says: str) -> None:
    world.sql(f"UPDATE fencepost.calls SET {edit} WHERE id = %s", world.paid)
    report = world.check()
    assert says in sentence(report, "I6")
    assert {"I6", "I6.replay"} <= set(report.violated)


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        ("DELETE FROM fencepost.operations WHERE", "the ledger has lost its key"),
        (SET + "status = 'failed', receipt = NULL WHERE", "its key is failed although the call is SUCCEEDED"),
        (SET + "receipt = NULL WHERE", "its key has receipt None, the call r-paid"),
        (SET + "receipt = 'r-x' WHERE", "its key has receipt r-x, the call r-paid"),
        (SET + "doubt = true WHERE", "the doubt of its key is True, its own is False"),
        (SET + "status = 'released' WHERE", "its key is released although"),
        (SET + "call = NULL WHERE", "its key is held by nobody"),
        (SET + "call = gen_random_uuid() WHERE", "which is no call of it"),
        (SET + "first_sent_at = NULL WHERE", "told to have been sent first never"),
        (SET + "first_sent_at = first_sent_at + '1s'::interval WHERE", "told to have been sent first"),
    ],
)
def test_an_edited_key_is_found(world: World, edit: str, says: str) -> None:
    """Its row alone keeps another run from sending it once more."""
    key = "(SELECT operation FROM fencepost.calls WHERE id = %s)"
    world.sql(f"{edit} key = {key}", world.paid)
    for runs in (None, [world.completed]):
        if "gen_random" not in edit or runs is None:
            goes_red(world.check(runs=runs), "I6", says, world.paid)


def test_an_open_key_that_was_freed_is_found(world: World) -> None:
    key = "(SELECT operation FROM fencepost.calls WHERE id = %s)"
    world.sql(f"{SET} status = 'released', doubt = false WHERE key = {key}", world.unknown)
    said = sentence(world.check(), "I6")
    assert "its key is released although the call is NEEDS_REPAIR" in said
    assert "the doubt of its key is False, its own is True" in said


def test_what_only_the_kernels_replay_can_see_is_reported_apart(world: World) -> None:
    world.sql("UPDATE fencepost.runs SET stop_detail = 'x' WHERE id = %s", world.completed)
    goes_red(world.check(), "I6.replay", world.completed, "stop_detail")


# -- I11 --


def test_two_living_compensations_of_one_effect_are_found(world: World) -> None:
    with world.unguarded() as owner:
        owner.execute("DROP INDEX fencepost.calls_one_compensation")
        owner.execute(
            "UPDATE fencepost.calls SET compensates = (SELECT compensates FROM fencepost.calls WHERE id = %s)"
            " WHERE id = %s",
            [world.refund, world.paid],
        )
    report = world.check()
    assert "2 compensations of one effect" in sentence(report, "I11")
    assert "offsets an effect that is not its run's" in sentence(report, "I11")
    assert str(world.paid) in sentence(report, "I11")


# -- I12 --


def test_an_open_run_without_an_outbox_row_is_found(world: World) -> None:
    world.sql("DELETE FROM fencepost.outbox WHERE subject = %s", world.waiting)
    goes_red(world.check(), "I12", world.waiting, "nothing will ever happen to it")


def test_a_row_of_what_has_ended_is_found(world: World) -> None:
    world.sql(ROW, "shop", world.paid, "call", world.completed)
    goes_red(world.check(), "I12", world.paid, "which has ended or never was")


def test_a_run_that_nobody_ended_is_found_once_everything_should_be_settled(world: World) -> None:
    run = world.bench.enqueue("another")
    assert world.check(settled=False).violated == []
    goes_red(world.check(), "I12", run, "nobody is to do anything")


def test_a_call_that_still_moves_is_found_once_everything_should_be_settled(world: World) -> None:
    run = world.bench.enqueue("another")
    call = world.bench.debit(run, "another")
    goes_red(world.check(), "I12", run, call, "INTENT_RECORDED")


# -- independence --

READS_THE_KERNEL = "replayed.py"  # the one file whose verdict is the kernel's own, and reported as such


def test_the_checker_shares_no_code_with_the_writers_but_the_names_of_states() -> None:
    folder = Path(fencepost_ops.checker.__file__).parent
    allowed = ("fencepost.states", "fencepost.books", "fencepost_ops.checker", "fencepost_ops.sandbox.book")
    for path in folder.glob("*.py"):
        if path.name != READS_THE_KERNEL:
            ours = [name for name in _imports(path) if name.startswith("fencepost")]
            assert [name for name in ours if not name.startswith(allowed)] == [], path.name


def _imports(path: Path) -> list[str]:
    found: list[str] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found.append(node.module or "")
    return found
