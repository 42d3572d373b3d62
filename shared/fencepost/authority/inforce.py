"""Engines of published policies, compiled once per process: code, never a decision.

Which version is in force, each claim reads from Postgres; here it only finds the engine to ask.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from fencepost.authority.decisions import (
    Approver,
    Authority,
    AuthorizationDecision,
    AuthorizationRequest,
)
from fencepost.canonical import sanitize
from fencepost.errors import UsageError

if TYPE_CHECKING:
    from fencepost.authority.compiled import Compiled

KEPT: Final = 256
"""Versions known at once; beyond them each batch compiles what it needs anew. A compiled bundle takes some
hundred kilobytes; versions with the same text share it.
"""


@dataclass(frozen=True)
class Unusable:
    """The authority of a version that cannot be used here: it denies, and says why."""

    version: str
    why: str

    def decide(self, request: AuthorizationRequest) -> AuthorizationDecision:  # noqa: ARG002 - the port's
        """A denial."""
        return self._no()

    def may_approve(
        self,
        request: AuthorizationRequest,  # noqa: ARG002 - the port's
        approver: Approver,  # noqa: ARG002 - the port's
    ) -> AuthorizationDecision:
        """A denial."""
        return self._no()

    def _no(self) -> AuthorizationDecision:
        return AuthorizationDecision(
            False, f"policy {self.version} cannot be used: {self.why}", self.version, (), "policy_error"
        )


class Engines:
    """The engines of one ledger's policy versions. Any thread may ask.

    What two versions have in common is compiled once; what is used least is forgotten first, and has to be
    added again.
    """

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._lock = threading.Lock()
        self._found: OrderedDict[int, Authority] = OrderedDict()

    def engine(self, version: int) -> Authority | None:
        """The engine of a version; None if it has to be added first."""
        with self._lock:
            engine = self._found.get(version)
            if engine is not None:
                self._found.move_to_end(version)
            return engine

    def add(self, version: int, bundle: str) -> Authority:
        """Compile a version's bundle. One that cannot be compiled denies everything, and says why."""
        engine = self._made(version, bundle)
        with self._lock:
            self._found[version] = engine
            self._found.move_to_end(version)
            while len(self._found) > self._kept:
                self._found.popitem(last=False)
        return engine

    def _made(self, version: int, bundle: str) -> Authority:
        from fencepost.authority.cedar import CedarEngine  # most processes never see a policy

        try:
            return CedarEngine(compiled(bundle), str(version))
        except UsageError as error:
            return Unusable(str(version), sanitize(error, 300))
        except Exception as error:  # noqa: BLE001 - whatever it is, a policy that does not load denies
            return Unusable(str(version), f"{type(error).__name__}: {sanitize(error, 200)}")


@lru_cache(maxsize=KEPT)
def compiled(bundle: str) -> Compiled:
    """A published text, compiled once per process. UsageError if it cannot be used here."""
    from fencepost.authority.bundle import Bundle
    from fencepost.authority.compiled import Compiled

    return Compiled(Bundle.unpack(bundle))
