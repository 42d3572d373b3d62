"""Fencepost: a worker fleet for agent runs whose effects happen at most once per business intent."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fencepost.app import App
    from fencepost.authority import AuthorizationDecision, AuthorizationRequest
    from fencepost.books import BookedEffect
    from fencepost.budgets import Budget
    from fencepost.client import Client, Enqueued
    from fencepost.contracts import (
        AfterTakeover,
        Contract,
        Dedupes,
        Effect,
        FirstFailure,
        Lookup,
        Mismatch,
        Natural,
        Never,
    )
    from fencepost.dependencies import Breaker
    from fencepost.errors import (
        Conflict,
        FencepostError,
        NotApplied,
        NotFound,
        ScriptError,
        Unreachable,
        UsageError,
    )
    from fencepost.fields import DecimalText, Instant, TenantId, Unordered
    from fencepost.joins import Join
    from fencepost.ledger.listings import RunInfo
    from fencepost.loading import load_app
    from fencepost.money import Money
    from fencepost.runrequest import RunRequest
    from fencepost.secrets import SecretRef
    from fencepost.tools import (
        PER_PROPOSAL,
        Absent,
        Attempt,
        CallView,
        Context,
        Found,
        OnStop,
        Proposal,
        Request,
        Response,
        Turn,
        Unclear,
    )

__version__ = "0.1.0"

__all__ = [
    "PER_PROPOSAL",
    "Absent",
    "AfterTakeover",
    "App",
    "Attempt",
    "AuthorizationDecision",
    "AuthorizationRequest",
    "BookedEffect",
    "Breaker",
    "Budget",
    "CallView",
    "Client",
    "Conflict",
    "Context",
    "Contract",
    "DecimalText",
    "Dedupes",
    "Effect",
    "Enqueued",
    "FencepostError",
    "FirstFailure",
    "Found",
    "Instant",
    "Join",
    "Lookup",
    "Mismatch",
    "Money",
    "Natural",
    "Never",
    "NotApplied",
    "NotFound",
    "OnStop",
    "Proposal",
    "Request",
    "Response",
    "RunInfo",
    "RunRequest",
    "ScriptError",
    "SecretRef",
    "TenantId",
    "Turn",
    "Unclear",
    "Unordered",
    "Unreachable",
    "UsageError",
    "__version__",
    "load_app",
]

# Loaded on first use, so that a producer or a pure module pays only for what it touches. A test keeps this
# map, the imports above and `__all__` equal.
_HOMES = {
    "fencepost.app": "App",
    "fencepost.authority": "AuthorizationDecision AuthorizationRequest",
    "fencepost.books": "BookedEffect",
    "fencepost.budgets": "Budget",
    "fencepost.client": "Client Enqueued",
    "fencepost.contracts": "AfterTakeover Contract Dedupes Effect FirstFailure Lookup Mismatch Natural Never",
    "fencepost.dependencies": "Breaker",
    "fencepost.errors": "Conflict FencepostError NotApplied NotFound ScriptError Unreachable UsageError",
    "fencepost.fields": "DecimalText Instant TenantId Unordered",
    "fencepost.joins": "Join",
    "fencepost.loading": "load_app",
    "fencepost.ledger.listings": "RunInfo",
    "fencepost.money": "Money",
    "fencepost.runrequest": "RunRequest",
    "fencepost.secrets": "SecretRef",
    "fencepost.tools": (
        "PER_PROPOSAL Absent Attempt CallView Context Found OnStop Proposal Request Response Turn Unclear"
    ),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names.split()}


if not TYPE_CHECKING:  # a type checker that sees it would take every misspelt name for an Any

    def __getattr__(name: str) -> Any:
        if name not in _HOME_OF:
            raise AttributeError(f"module 'fencepost' has no attribute {name!r}")
        value = getattr(importlib.import_module(_HOME_OF[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
