"""How the sandbox's services behave: a policy each, and what unseeded accounts and items hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fencepost_ops.sandbox.keys import Policy
from fencepost_ops.sandbox.services import MAX_MINOR, SERVICES

_AMOUNTS = ("default_balance_minor", "default_stock")
_KEYLESS = Policy(dedupes=False, key_required=False, lookup=False)


def _policies() -> Mapping[str, Policy]:
    return {service: _KEYLESS if service in ("mail", "pages") else Policy() for service in SERVICES}


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything adjustable about the services, by file at the start and by `POST /admin/config` later."""

    services: Mapping[str, Policy] = field(default_factory=_policies)
    default_balance_minor: int = 10**12
    default_stock: int = 10**9
    guard: Mapping[str, Any] | None = None
    models: Mapping[str, Any] = field(default_factory=dict)

    def changed(self, wire: Mapping[str, Any]) -> Settings:
        """The settings with the named ones replaced. Raises ValueError for anything unknown."""
        changes: dict[str, Any] = {}
        for name, value in wire.items():
            if name == "services" and isinstance(value, Mapping):
                changed = {service: self._policy(service, policy) for service, policy in value.items()}
                changes[name] = dict(self.services) | changed
            elif name == "models" and isinstance(value, Mapping):
                changes[name] = dict(self.models) | dict(value)
            elif _is_guard(value) if name == "guard" else name in _AMOUNTS and _is_amount(value):
                changes[name] = value
            else:
                raise ValueError(f"the sandbox has no setting {name}={value!r}")
        return replace(self, **changes)

    def _policy(self, service: str, wire: Any) -> Policy:
        if service not in self.services or not isinstance(wire, Mapping):
            raise ValueError(f"the sandbox has no service {service!r}; it has {', '.join(self.services)}")
        return self.services[service].changed(wire)

    def wire(self) -> dict[str, Any]:
        """The settings as JSON values."""
        return {
            "services": {name: policy.wire() for name, policy in self.services.items()},
            "default_balance_minor": self.default_balance_minor,
            "default_stock": self.default_stock,
            "guard": self.guard,
            "models": dict(self.models),
        }


def _is_guard(value: Any) -> bool:
    return value is None or (isinstance(value, Mapping) and set(value) == {"jwks", "audience"})


def _is_amount(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_MINOR


def merged(earlier: Mapping[str, Any], later: Mapping[str, Any]) -> dict[str, Any]:
    """Two settings documents as one: objects are merged, everything else is replaced by the later one."""
    both = dict(earlier)
    for name, value in later.items():
        before = both.get(name)
        if isinstance(before, Mapping) and isinstance(value, Mapping):
            both[name] = merged(before, value)
        else:
            both[name] = value
    return both
