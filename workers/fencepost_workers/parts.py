"""What the pipeline needs of the process it runs in. A worker is one (`worker.py`); a drill makes others."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any, Protocol
from uuid import UUID

from fencepost.app import App
from fencepost.commands import Answer, Command
from fencepost.leases import Leases
from fencepost.ledger.apply import Ledger
from fencepost.ledger.connect import Pool
from fencepost.outbound import Outbound
from fencepost.outcomes import Sent
from fencepost.settings import Settings
from fencepost.tools import StoredRequest
from fencepost_workers.models.providers import Providers
from fencepost_workers.signing import Signer
from fencepost_workers.slots import Slots
from fencepost_workers.tools.http import Kind
from fencepost_workers.tools.mcp import McpEngine


class Named(Protocol):
    """Who remembers, beyond this process's death, which item's code is being run before its claim."""

    def named(self, tenant: str, subject: UUID, generation: int) -> AbstractContextManager[None]:
        """See `Suspects.named`."""
        ...


class Stamped(Protocol):
    """The proof that this process lives, under a token of its own."""

    @property
    def suspects(self) -> Named:
        """See `Suspects`."""
        ...

    def token(self) -> str:
        """The token to claim under from this moment. Raises `Unreachable`."""
        ...

    def trusted(self, token: str) -> None:
        """A claim under this token was judged by its merits."""
        ...

    def suspect(self, token: str) -> None:
        """Claims under this token are refused because its stamp is stale."""
        ...


class Submits(Protocol):
    """Who records outcomes."""

    def submit(self, command: Command) -> asyncio.Future[Answer]:
        """Have a command applied."""
        ...


class Sends(Protocol):
    """Who puts stored requests on the wire."""

    async def send(
        self,
        stored: StoredRequest,
        *,
        allowed: Outbound,
        key: str | None,
        deadline: datetime,
        until: float,
        correlation: Mapping[str, str],
        headers: Sequence[tuple[str, str]] = (),
        capability: tuple[str, str] | None = None,
        kind: Kind = "effect",
        unrepeated: bool = False,
    ) -> Sent:
        """See `HttpEngine.send`."""
        ...


class Parts(Protocol):
    """One process's parts."""

    @property
    def settings(self) -> Settings:
        """Its settings."""
        ...

    @property
    def app(self) -> App:
        """What it knows of the application."""
        ...

    @property
    def pid(self) -> int:
        """The process it was made in."""
        ...

    @property
    def pool(self) -> Pool:
        """Sessions with the ledger."""
        ...

    @property
    def ledger(self) -> Ledger:
        """The write path."""
        ...

    @property
    def leases(self) -> Leases:
        """Who grants leases."""
        ...

    @property
    def slots(self) -> Slots:
        """How many items it executes at once."""
        ...

    @property
    def shares(self) -> Mapping[str, int]:
        """How many of its slots each dependency may take, by scope."""
        ...

    @property
    def executor(self) -> Executor:
        """Threads for functions that block."""
        ...

    @property
    def committer(self) -> Submits:
        """Who records outcomes."""
        ...

    @property
    def engine(self) -> Sends:
        """Who sends requests."""
        ...

    @property
    def models(self) -> Providers:
        """Who asks model providers."""
        ...

    @property
    def mcp(self) -> McpEngine | None:
        """Who calls tools of MCP servers; None where nobody may, as in a drill."""
        ...

    @property
    def signer(self) -> Signer | None:
        """Who signs capabilities; None where no dependency asks for any."""
        ...

    @property
    def pulse(self) -> Stamped:
        """The proof that it lives."""
        ...

    def rand(self) -> float:
        """Randomness for jitter, in [0, 1)."""
        ...

    def pause(self, seconds: float) -> None:
        """Stand still for so long, at most, before something is asked again."""
        ...

    def start(self, works: Sequence[Coroutine[Any, Any, None]]) -> None:
        """Run these items."""
        ...

    def interruptible(self) -> AbstractContextManager[None]:
        """Inside, what runs may be cancelled because this process is to end."""
        ...

    def let_go(self, lease: str, owner: str) -> None:
        """Release a lease, soon and best-effort."""
        ...
