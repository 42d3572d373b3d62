"""What the tests of the sandbox share: a client that never reuses another test's keys or accounts."""

from collections.abc import Mapping
from itertools import count
from types import TracebackType
from typing import Any, Self

import httpx2

from fencepost_ops.sandbox.book import Request
from fencepost_ops.sandbox.process import SandboxProcess
from fencepost_ops.sandbox.settings import Settings
from tests.awaiting import until

NUMBERS = count(1)
PATIENCE_S = 10.0


def money(minor: int) -> dict[str, Any]:
    return {"currency": "EUR", "amount_minor": minor, "scale": 2}


class Caller:
    """A client of one sandbox with a key and an account of its own."""

    def __init__(self, sandbox: SandboxProcess) -> None:
        number = next(NUMBERS)
        self.sandbox = sandbox
        self.key = f"key-{number}"
        self.account = f"account-{number}"
        self.http = httpx2.Client(base_url=sandbox.url, timeout=PATIENCE_S)

    @classmethod
    def of_a_fresh(cls, sandbox: SandboxProcess) -> Self:
        """A caller of a sandbox that behaves as if just started; the book stays."""
        sandbox.clear_faults()
        sandbox.configure(**Settings().wire())
        sandbox.move_clock(0)
        return cls(sandbox)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.http.close()

    def debit(
        self,
        key: str | None = None,
        *,
        minor: int = 500,
        fault: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float = PATIENCE_S,
    ) -> httpx2.Response:
        sent = {"Idempotency-Key": key or self.key, **(headers or {})}
        if fault is not None:
            sent["Sandbox-Fault"] = fault
        return self.http.post("/wallet/debits", json=self.body(key, minor), headers=sent, timeout=timeout)

    def body(self, key: str | None = None, minor: int = 500) -> dict[str, Any]:
        return {"account": self.account, "amount": money(minor), "reference": f"for-{key or self.key}"}

    def post(self, path: str, key: str | None = None, **body: Any) -> httpx2.Response:
        headers = {"Idempotency-Key": key or self.key}
        return self.http.post(path, json={"reference": "r", **body}, headers=headers)

    def effects(self, key: str | None = None) -> int:
        return len(self.sandbox.book.effects("wallet", key=key or self.key))

    def requests(self) -> list[Request]:
        return self.sandbox.book.requests("wallet", key=self.key)

    def await_arrival(self) -> None:
        """Wait until a request of this caller is in the book: it is then at the desk."""
        until("a request in the book", self.requests, every_s=0.005)

    def await_effect(self) -> None:
        """Wait until this caller's key had an effect."""
        until("an effect of the key", self.effects, every_s=0.005)
