"""The one writer of the book: a SQLite file in WAL mode, held by one process, used by one thread.

Every write joins the transaction that is open; `commit` ends it for all requests that shared it. SQLite's
synchronous=NORMAL is enough here: the death of the process loses no commit.
"""

from __future__ import annotations

import fcntl
import json
import sqlite3
from dataclasses import dataclass, fields
from pathlib import Path
from typing import IO, Any, cast

from fencepost_ops.sandbox.book import (
    BOOK_FILE,
    BOOK_VERSION,
    SCHEMA,
    Effect,
    Request,
    select_effects,
    select_requests,
)
from fencepost_ops.sandbox.keys import Memory
from fencepost_ops.sandbox.services import Account, Done, Item, Money, Page, Past
from fencepost_ops.sandbox.settings import Settings


class BookTaken(Exception):
    """Another sandbox already keeps the book in this folder."""


class BookUnreadable(Exception):
    """The file in this folder is no book that this sandbox can keep."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where an effect comes from: the number of the request and what it carried (`body`, `headers`: JSON)."""

    request: int
    service: str
    kind: str
    key: str | None
    reference: str | None
    digest: str
    body: str
    headers: str


def dumps(value: Any) -> str:
    """Compact JSON."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def columns(record: Any) -> dict[str, Any]:
    """The fields of a flat dataclass, by name."""
    return {field.name: getattr(record, field.name) for field in fields(record)}


class Store:
    """Opens or makes the book in a folder. Raises BookTaken while another holds it, or BookUnreadable."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = _take_lock(folder)
        self.settings = Settings()
        self._sql = sqlite3.connect(folder / BOOK_FILE, isolation_level=None)
        self._sql.row_factory = sqlite3.Row
        try:
            self._prepare()
        except (sqlite3.Error, ValueError) as error:
            self.close()
            raise BookUnreadable(f"{folder / BOOK_FILE} cannot be kept as a book: {error}") from error

    def _prepare(self) -> None:
        self._sql.execute("PRAGMA journal_mode = WAL")
        self._sql.execute("PRAGMA synchronous = NORMAL")
        version = self._sql.execute("PRAGMA user_version").fetchone()[0]
        if version == 0:
            self._sql.executescript(f"BEGIN; {SCHEMA} PRAGMA user_version = {BOOK_VERSION}; COMMIT;")
        elif version != BOOK_VERSION:
            raise ValueError(f"it has version {version}, this sandbox knows {BOOK_VERSION}")

    @property
    def dirty(self) -> bool:
        """Whether something is written and not committed."""
        return self._sql.in_transaction

    def commit(self) -> None:
        """Commit what was written since the last commit. Raises sqlite3.Error, and then all of it is gone."""
        try:
            self._sql.execute("COMMIT")
        except sqlite3.Error:
            if self._sql.in_transaction:
                self._sql.execute("ROLLBACK")
            raise

    def close(self) -> None:
        """Commit, and let go of the book."""
        if self.dirty:
            self.commit()
        self._sql.close()
        self._lock.close()

    def _write(self, statement: str, *values: Any) -> sqlite3.Cursor:
        if not self._sql.in_transaction:
            self._sql.execute("BEGIN IMMEDIATE")
        return self._sql.execute(statement, values)

    def _insert(self, table: str, **row: Any) -> int:
        return self._put("INSERT", table, row)

    def _replace(self, table: str, **row: Any) -> int:
        return self._put("INSERT OR REPLACE", table, row)

    def _put(self, verb: str, table: str, row: dict[str, Any]) -> int:
        marks = ", ".join("?" * len(row))
        cursor = self._write(f"{verb} INTO {table} ({', '.join(row)}) VALUES ({marks})", *row.values())
        return cast(int, cursor.lastrowid)

    def _one(self, statement: str, *values: Any) -> sqlite3.Row | None:
        row: sqlite3.Row | None = self._sql.execute(statement, values).fetchone()
        return row

    # Requests and effects.

    def receive(self, **row: Any) -> int:
        """Note a request on its arrival, by the columns of `requests`. Returns its number."""
        return self._insert("requests", **row)

    def answered(self, request: int, status: int | None, replayed: bool, effect: str | None) -> None:
        """Note what a request is answered, before anything is sent."""
        self._write(
            "UPDATE requests SET status = ?, replayed = ?, effect = ? WHERE seq = ?",
            *(status, replayed, effect, request),
        )

    def perform(self, origin: Origin, done: Done, at: float) -> dict[str, Any]:
        """Write an effect and the state after it. Returns the answer, which names the receipt."""
        last = self._one("SELECT seq FROM sqlite_sequence WHERE name = 'effects'")
        seq = 1 if last is None else last["seq"] + 1
        receipt = f"{origin.kind}_{seq:06d}"
        answer = {"id": receipt, "kind": origin.kind, "reference": origin.reference, **done.answer}
        row = columns(origin) | {"seq": seq, "id": receipt, "at": at, "answer": dumps(answer)}
        amount = {} if done.amount is None else done.amount.wire()
        self._insert("effects", undoes=done.undoes, **row, **amount)
        self._keep(done, receipt)
        return answer

    def _keep(self, done: Done, receipt: str) -> None:
        if done.account is not None:
            self.put_account(done.account)
        if done.item is not None:
            self.put_item(done.item)
        if done.page is not None:
            page = columns(done.page) | {"body": dumps(done.page.body), "receipt": receipt}
            self._replace("pages", **page)

    def effects(self, **conditions: Any) -> list[Effect]:
        """Effects as `select_effects` finds them, those not committed yet included."""
        return select_effects(self._sql, **conditions)

    def requests(self, **conditions: Any) -> list[Request]:
        """Requests as `select_requests` finds them, those not committed yet included."""
        return select_requests(self._sql, **conditions)

    # Keys.

    def memory(self, service: str, key: str) -> Memory | None:
        """What the service remembers of a key, its window not considered."""
        row = self._one("SELECT * FROM keys WHERE service = ? AND key = ?", service, key)
        if row is None:
            return None
        return Memory(row["fingerprint"], row["first_at"], row["status"], row["answer"])

    def remember(self, service: str, key: str, memory: Memory | None) -> None:
        """Replace what is remembered of a key; None forgets it."""
        if memory is None:
            self.forget(service, key)
        else:
            self._replace("keys", service=service, key=key, **columns(memory))

    def forget(self, service: str | None, key: str | None) -> int:
        """Forget keys; None stands for every service, every key. Returns how many were forgotten."""
        named = {n: value for n, value in (("service", service), ("key", key)) if value is not None}
        where = " AND ".join(["1", *(f"{name} = ?" for name in named)])
        return self._write(f"DELETE FROM keys WHERE {where}", *named.values()).rowcount

    # The world the business rules read, and its seeding.

    @property
    def default_balance_minor(self) -> int:
        """What an account never seen before holds."""
        return self.settings.default_balance_minor

    def account(self, account_id: str) -> Account | None:
        """The account, if it was seeded or used before."""
        row = self._one("SELECT * FROM accounts WHERE id = ?", account_id)
        if row is None:
            return None
        return Account(account_id, Money(row["currency"], row["amount_minor"], row["scale"]))

    def put_account(self, account: Account) -> None:
        """Write an account as it is from now on."""
        self._replace("accounts", id=account.id, **account.balance.wire())

    def item(self, sku: str) -> Item:
        """The item; one that was never seeded has the default stock."""
        row = self._one("SELECT stock FROM items WHERE sku = ?", sku)
        return Item(sku, self.settings.default_stock if row is None else row["stock"])

    def put_item(self, item: Item) -> None:
        """Write an item as it is from now on."""
        self._replace("items", sku=item.sku, stock=item.stock)

    def page(self, page_id: str) -> Page | None:
        """The page, if it was written before."""
        row = self._one("SELECT * FROM pages WHERE id = ?", page_id)
        if row is None:
            return None
        return Page(page_id, row["version"], json.loads(row["body"]), row["receipt"])

    def past(self, receipt: str) -> Past | None:
        """The effect with that receipt."""
        found = select_effects(self._sql, id=receipt)
        return Past(receipt, found[0].kind, found[0].body, found[0].amount) if found else None

    def undone_by(self, receipt: str) -> str | None:
        """The receipt of the effect that undid this one."""
        row = self._one("SELECT id FROM effects WHERE undoes = ?", receipt)
        return None if row is None else row["id"]

    # What an administrator set, kept across restarts.

    def setting(self, name: str) -> Any:
        """A kept value, or None."""
        row = self._one("SELECT value FROM settings WHERE name = ?", name)
        return None if row is None else json.loads(row["value"])

    def put_setting(self, name: str, value: Any) -> None:
        """Keep a JSON value under a name."""
        self._replace("settings", name=name, value=dumps(value))


def _take_lock(folder: Path) -> IO[str]:
    # The lock dies with the process, so that a killed sandbox leaves nothing to clear away.
    lock = (folder / "sandbox.lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        message = f"another sandbox keeps the book in {folder}; stop it or choose another folder"
        raise BookTaken(message) from None
    return lock
