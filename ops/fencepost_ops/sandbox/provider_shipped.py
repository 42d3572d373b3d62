"""Scripts that every sandbox knows: the models of the examples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_ORDER: Final = {"$input": "order_id"}

SHIPPED: Final[Mapping[str, Any]] = {
    "support": {
        "turns": [
            {
                "text": "I look up what was paid.",
                "calls": [{"name": "payments.find", "id": "paid", "arguments": {"order_id": _ORDER}}],
            },
            {
                "calls": [
                    {
                        "name": "wallet.refund",
                        "id": "refund",
                        "arguments": {"order_id": _ORDER, "debit": {"$result": "paid", "path": "id"}},
                    }
                ]
            },
            {
                "calls": [
                    {
                        "name": "mail.send",
                        "arguments": {
                            "order_id": _ORDER,
                            "to": {"$input": "to"},
                            "words": "Your money is on its way.",
                        },
                    }
                ]
            },
        ],
        "last": "The money was paid back, and the customer knows.",
    }
}
"""By the name of the model; a script that is posted or configured under it takes its place."""
