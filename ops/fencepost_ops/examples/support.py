"""Support for orders, by a model: it looks up what was paid, pays it back, and writes to the customer.

    fencepost up --app fencepost_ops.examples.support:app
    echo '{"run_key": "s-1", "input": {"order_id": "o-1", "to": "ann@example.com"}}' >support.jsonl
    fencepost enqueue support support.jsonl --tenant shop --principal svc:support

The order comes first: this application fulfils orders too. Its models are asked at the sandbox, whose
provider knows a script for them, or where SUPPORT_OPENAI_URL and SUPPORT_ANTHROPIC_URL say, with the keys in
SUPPORT_OPENAI_KEY and SUPPORT_ANTHROPIC_KEY and the model SUPPORT_MODEL. What a model proposes is validated,
allowed and sent like any proposal; a refund happens once, however often the model is asked.
"""

import os
from datetime import date, timedelta

from pydantic import BaseModel

from fencepost import App, Contract, Effect, Request
from fencepost.models import AgentOptions, ModelOptions, Price, Wire
from fencepost.tools import Context
from fencepost_ops.examples import orders

app = App("support")
app.registry.update(orders.app.registry)
app.planner("fulfil", version=1)(orders.fulfil)
app.verify("fulfil")(orders.fulfilled)

_SANDBOX = "env:FENCEPOST_SANDBOX_URL"
MODEL = os.environ.get("SUPPORT_MODEL", "support")


def _set(name: str, otherwise: str) -> str:
    """The setting that reads this variable, where there is one."""
    return f"env:{name}" if name in os.environ else otherwise


payments = app.dependency("payments", _SANDBOX, attempts=6, per_attempt=timedelta(seconds=2))
mail = app.dependency("mail", _SANDBOX, per_attempt=timedelta(seconds=2))
openai = app.dependency("openai", _set("SUPPORT_OPENAI_URL", _SANDBOX))
anthropic = app.dependency("anthropic", _set("SUPPORT_ANTHROPIC_URL", _SANDBOX))


class Order(BaseModel):
    """Which order."""

    order_id: str


class Paid(BaseModel):
    """What was paid for an order: `id` names the debit."""

    id: str
    account: str
    amount: orders.Money


class Message(BaseModel):
    """What is written to whom, about which order."""

    order_id: str
    to: str
    words: str


@payments.http("payments.find", effect=Effect.READ, returns=Paid, contract=Contract())
def find(args: Order) -> Request:
    """What was paid for an order, and by which debit."""
    return Request.get(f"/wallet/by-reference/{args.order_id}")


@mail.http(
    "mail.send",
    effect=Effect.IRREVERSIBLE,
    returns=orders.Receipt,
    intent=lambda a: ("support", a.order_id),
    contract=Contract(not_applied=frozenset({400, 429, 503}), retryable=frozenset({429, 503})),
)
def send(args: Message) -> Request:
    """Write to the customer, once for an order. Nobody can be asked whether a message has left."""
    return Request.post(
        "/mail/messages", json={"to": args.to, "reference": args.order_id, "words": args.words}
    )


_PRICES = (Price(since=date(2026, 1, 1), input=2_000_000, output=8_000_000, cache_read=500_000),)
"""Of the sandbox's model, in millionths of a dollar for a million tokens; a real one has its own."""


def _asked_by(wire: Wire, key: str) -> ModelOptions:
    return {"wire": wire, "model": MODEL, "key": _set(key, ""), "max_output": 1024, "prices": _PRICES}


responses = app.model("responses", via=openai, **_asked_by(Wire.RESPONSES, "SUPPORT_OPENAI_KEY"))
chat = app.model("chat", via=openai, **_asked_by(Wire.CHAT, "SUPPORT_OPENAI_KEY"))
messages = app.model("messages", via=anthropic, **_asked_by(Wire.MESSAGES, "SUPPORT_ANTHROPIC_KEY"))

INSTRUCTIONS = (
    "You are the support of a shop. Find what was paid for the order, pay it back, then write to the "
    "customer that the money is on its way, and say so."
)
_WITH: AgentOptions = {"tools": ("payments.find", "wallet.refund", "mail.send"), "window": 16_000}
app.agent("support", model=(responses, messages), instructions=INSTRUCTIONS, **_WITH)
app.agent("support-chat", model=chat, instructions=INSTRUCTIONS, **_WITH)
app.agent("support-messages", model=messages, instructions=INSTRUCTIONS, **_WITH)


def is_done(context: Context) -> bool | str:
    """A case is done when the money went back and the customer was told, whatever the model says."""
    missing = [
        tool
        for tool in ("wallet.refund", "mail.send")
        if not any(call.succeeded for call in context.by_tool(tool))
    ]
    return not missing or f"not done: {', '.join(missing)}"


for _agent in ("support", "support-chat", "support-messages"):
    app.verify(_agent)(is_done)

app.allow("svc:*", tools=["inventory.reserve", "inventory.release", "shipping.schedule", "shipping.cancel"])
app.allow("svc:*", tools=["wallet.debit", "wallet.refund", "payments.find", "mail.send"])
