"""The desk without sockets: what is in the book before an answer leaves."""

import asyncio
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from fencepost_ops.sandbox import services
from fencepost_ops.sandbox.answers import Answer
from fencepost_ops.sandbox.book import BOOK_FILE, Book
from fencepost_ops.sandbox.desk import Desk
from fencepost_ops.sandbox.faults import Kind, Rule, Rules
from fencepost_ops.sandbox.settings import Settings
from fencepost_ops.sandbox.store import BookTaken, BookUnreadable, Store
from fencepost_ops.sandbox.wire import HttpRequest

BODY = {"account": "a", "amount": {"currency": "EUR", "amount_minor": 5, "scale": 2}, "reference": "r"}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path)
    yield store
    store.close()


@pytest.fixture
def desk(store: Store) -> Desk:
    return Desk(store, Settings(), Rules(), clock=lambda: 1000.0)


async def debit(desk: Desk, key: str = "k") -> Answer:
    operation = services.operation_at("/wallet/debits")
    assert operation is not None
    body = json.dumps(BODY).encode()
    request = HttpRequest("POST", "/wallet/debits", {}, {"idempotency-key": key}, body, keep_alive=True)
    return await desk.effect(operation, request)


async def lookup(desk: Desk, key: str = "k") -> Answer:
    path = f"/wallet/by-key/{key}"
    return await desk.lookup("wallet", "by-key", key, HttpRequest("GET", path, {}, {}, b"", keep_alive=True))


def test_an_answer_leaves_after_its_effect_is_committed(desk: Desk, tmp_path: Path) -> None:
    async def then_read() -> int:
        await debit(desk)
        return len(Book(tmp_path).effects())

    assert asyncio.run(then_read()) == 1


def test_a_lookup_tells_of_no_effect_before_that_is_committed(desk: Desk, tmp_path: Path) -> None:
    async def then_read() -> tuple[int, int]:
        effect = asyncio.ensure_future(debit(desk))
        found = await lookup(desk)  # the debit runs first, in the same turn of the loop
        while found.status == 404:
            found = await lookup(desk)
        seen = len(Book(tmp_path).effects())
        await effect
        return found.status, seen

    assert asyncio.run(then_read()) == (200, 1)


def test_requests_of_one_turn_share_one_commit(
    desk: Desk, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits = 0
    commit = store.commit

    def counted() -> None:
        nonlocal commits
        commits += 1
        commit()

    monkeypatch.setattr(store, "commit", counted)

    async def together() -> list[Answer]:
        return await asyncio.gather(*(debit(desk, f"k{n}") for n in range(20)))

    assert {answer.status for answer in asyncio.run(together())} == {201}
    assert commits == 1


def test_a_commit_that_fails_answers_nobody_and_leaves_no_memory_of_the_key(
    desk: Desk, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full() -> None:
        store._sql.execute("ROLLBACK")
        raise sqlite3.OperationalError("database or disk is full")

    async def twice() -> Answer:
        with monkeypatch.context() as patched:
            patched.setattr(store, "commit", full)
            with pytest.raises(sqlite3.OperationalError):
                await debit(desk)
        return await debit(desk)

    assert json.loads(asyncio.run(twice()).body)["replayed"] is False


def test_a_held_request_does_not_hold_the_commit_of_its_arrival(desk: Desk, tmp_path: Path) -> None:
    desk.rules.add(Rule(Kind.DELAY_BEFORE, delay_s=3600.0))

    async def hold() -> list[int | None]:
        held = asyncio.ensure_future(debit(desk))
        await asyncio.sleep(0)  # it arrives
        await asyncio.sleep(0)  # its arrival is committed
        held.cancel()
        return [request.status for request in Book(tmp_path).requests()]

    assert asyncio.run(hold()) == [None]


def test_two_stores_never_keep_one_book(store: Store, tmp_path: Path) -> None:
    with pytest.raises(BookTaken, match="another sandbox"):
        Store(tmp_path)


def test_a_book_of_another_version_is_refused(tmp_path: Path) -> None:
    Store(tmp_path).close()
    with sqlite3.connect(tmp_path / BOOK_FILE) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(BookUnreadable, match="version 99"):
        Store(tmp_path)


def test_a_file_that_is_no_book_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / BOOK_FILE).write_text("dear diary, " * 1000)
    with pytest.raises(BookUnreadable, match="not a database"):
        Store(tmp_path)
    assert (tmp_path / BOOK_FILE).read_text().startswith("dear diary")


def test_a_book_that_nobody_kept_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no sandbox"):
        Book(tmp_path).effects()
