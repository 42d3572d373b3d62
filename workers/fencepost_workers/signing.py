"""Signs an attempt's capability for the dependency that asks for one, just before its request leaves.

The token is made for each sending anew and stored nowhere. Keys are looked at again every `LOOK_S`, so that a
new one is used, and a removed one is not, without a restart.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from fencepost.authority.capabilities import Capability
from fencepost.clock import boottime
from fencepost.dependencies import DependencySpec
from fencepost.errors import UsageError
from fencepost.tools import StoredRequest

if TYPE_CHECKING:
    from fencepost.capabilities import SigningKey

log = logging.getLogger(__name__)

LOOK_S: Final = 30.0

Read = Callable[[], "tuple[SigningKey, ...]"]


class Signer:
    """Who signs in one process, with the keys `read` gives; UsageError if it gives none that may sign now."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._keys = read()
        self._looked = boottime()
        self._current()

    def header(
        self, spec: DependencySpec, capability: Capability | None, stored: StoredRequest
    ) -> tuple[str, str] | None:
        """The header that carries the capability of this very request; None for who asks for none.

        UsageError where there is no capability, or no key any more.
        """
        from fencepost.capabilities import sign

        name = spec.capability_header
        if name is None:
            return None
        if capability is None:
            raise UsageError(f"dependency {spec.name} asks for a capability, and its claim gave none")
        asked = {"audience": spec.scope, "method": stored.method, "url": stored.target}
        return name, sign(capability, self._current(), body=stored.body, **asked)

    def _current(self) -> SigningKey:
        from fencepost.capabilities import signing

        with self._lock:
            if boottime() - self._looked >= LOOK_S:
                self._look()
            key = signing(self._keys, datetime.now(UTC))
        if key is None:
            raise UsageError("there is no signing key whose time has come; fencepost keys new makes one")
        return key

    def _look(self) -> None:
        self._looked = boottime()
        try:
            self._keys = self._read()
        except UsageError as error:  # those at hand still sign
            log.warning("%s", error)


def signer_of(folder: str, dependencies: Iterable[DependencySpec]) -> Signer | None:
    """The signer of a process that sends to these; None where none of them asks for capabilities.

    UsageError, in one sentence, where one asks and cannot be given any: nothing may be sent to it then.
    """
    asking = sorted({spec.name for spec in dependencies if spec.capability_header is not None})
    if not asking:
        return None
    who = f"dependency {asking[0]} asks for capabilities"
    if not folder:
        raise UsageError(f"{who}; set FENCEPOST_SIGNING_KEYS to a folder of keys (fencepost keys new)")
    try:
        from fencepost.capabilities import read_keys

        return Signer(lambda: read_keys(folder))
    except ImportError as error:
        raise UsageError(f"{who}, which needs PyJWT: pip install 'fencepost[capabilities]'") from error
    except UsageError as error:
        raise UsageError(f"{who}; {error}") from error


def rehearsing(dependencies: Iterable[DependencySpec]) -> Signer | None:
    """For drills: signs with a key that everybody knows, the same in every history."""
    if all(spec.capability_header is None for spec in dependencies):
        return None
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from fencepost.capabilities import key_of

    key = key_of(Ed25519PrivateKey.from_private_bytes(bytes(32)), datetime.fromtimestamp(0, UTC))
    return Signer(lambda: (key,))


def told(header: tuple[str, str] | None) -> tuple[str, ...]:
    """What of it must not be kept where an answer quotes it: the signature, without which it is none."""
    return () if header is None else (header[1].rpartition(".")[2],)
