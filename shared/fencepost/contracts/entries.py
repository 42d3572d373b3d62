"""What one entry of the catalogue holds, and what makes it sound. PURE."""

from dataclasses import dataclass, replace
from datetime import date
from typing import Any, Final

from fencepost.contracts import (
    APPLIED,
    ZERO,
    Contract,
    Dedupes,
    Effect,
    FirstFailure,
    Mismatch,
    promise,
    residual_risk,
    tool_class,
)
from fencepost.contracts.carriers import KeyCarrier

# What an entry can list as undocumented; `problems` holds these words against the contract.
SETTLE: Final = "how long after its deadline a request may still land"
LAG: Final = "how far a lookup lags behind"
WINDOW: Final = "how long a key is remembered"
OTHER: Final = "what a known key meets with another request"
FAILED: Final = "what a repeat meets after a first failure"
BUSY: Final = "what a repeat meets while the first request runs"
REFUSALS: Final = "which answers prove that nothing happened"
SUCCESS: Final = "which statuses say that it happened"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One published promise. `contract.lookup` needs a lookup function of the tool's own; see `unasked`.

    `key` None: nothing in the request is recognised again. `sdk_invents`: the provider's own client makes a
    key of its own per call where it is given none, and forgets it with the process. `scope`, `charset`,
    `found_by`, `money` and `notes` are for the reader: nothing is decided by them.
    """

    name: str
    operation: str
    contract: Contract
    key: KeyCarrier | None
    source: str
    checked_on: date
    scope: str = ""
    charset: str = "ASCII"
    sdk_invents: bool = False
    found_by: str = ""
    money: str = ""
    notes: tuple[str, ...] = ()
    undocumented: tuple[str, ...] = ()

    @property
    def unasked(self) -> Contract:
        """The contract for a tool that has no lookup function."""
        return replace(self.contract, lookup=None)

    def to_json(self) -> dict[str, Any]:
        """The entry as JSON values, with what its class promises for an effect and what is left."""
        effect = Effect.IRREVERSIBLE
        return {
            "name": self.name,
            "operation": self.operation,
            "class": tool_class(effect, self.contract).value,
            "promise": promise(effect, self.contract),
            "residual_risk": residual_risk(effect, self.contract),
            "contract": dict(self.contract.to_json()),
            "key": None if self.key is None else self.key.to_json(),
            "scope": self.scope,
            "charset": self.charset if self.key is not None else "",
            "sdk_invents_keys": self.sdk_invents,
            "found_by": self.found_by,
            "money": self.money,
            "notes": list(self.notes),
            "undocumented": list(self.undocumented),
            "source": self.source,
            "checked_on": self.checked_on.isoformat(),
        }


def problems(entry: Entry) -> list[str]:
    """What contradicts itself in an entry, one sentence each; empty for a sound one."""
    repeat, lookup = entry.contract.repeat, entry.contract.lookup
    said = " ".join(entry.undocumented)
    found = []
    if not entry.source.startswith("https://"):
        found.append("its source is no public address")
    if isinstance(repeat, Dedupes) and entry.key is None:
        found.append("it recognises a key that nothing carries")
    if entry.key is not None and not entry.scope:
        found.append("it does not say where a key is unique")
    if isinstance(repeat, Dedupes):
        if (repeat.window == ZERO) != (WINDOW in said):
            found.append("a window is stated or listed as undocumented, one of the two")
        if (repeat.first_failure is FirstFailure.UNKNOWN) != (FAILED in said):
            found.append("what follows a first failure is stated or listed as undocumented, one of the two")
        if OTHER in said and repeat.mismatch is Mismatch.REJECTED:
            found.append("another request under a known key counts as ignored while it is undocumented")
    if (entry.contract.applied == APPLIED) != (SUCCESS in said):
        found.append("the statuses of a success are stated or listed as undocumented, one of the two")
    if (entry.contract.settle is None) != (SETTLE in said):
        found.append("settle is stated or listed as undocumented, one of the two")
    if lookup is not None and (lookup.delay is None) != (LAG in said):
        found.append("a lookup's lag is stated or listed as undocumented, one of the two")
    return found
