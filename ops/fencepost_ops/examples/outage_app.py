"""What the outage is measured with: runs of one call to a service that throttles, and to one that does not.

`FENCEPOST_APP=fencepost_ops.examples.outage_app:app` names this application; OUTAGE_CONCURRENCY is how many
requests the throttled service is sent at once by the whole fleet, without it as many as the slots allow.
"""

import os
from datetime import timedelta

from pydantic import BaseModel

from fencepost import App, Context, Contract, Dedupes, Effect, FirstFailure, Lookup, Request, Turn

app = App("outage")
_URL = "env:FENCEPOST_SANDBOX_URL"
_CONCURRENCY = os.environ.get("OUTAGE_CONCURRENCY")
throttled = app.dependency("wallet", _URL, concurrency=int(_CONCURRENCY) if _CONCURRENCY else None)
unharmed = app.dependency("mail", _URL)


class Reference(BaseModel):
    """Which run it is of."""

    key: str


class Receipt(BaseModel):
    """The service's own reference to the effect."""

    id: str


@throttled.http(
    "outage.debit",
    effect=Effect.IRREVERSIBLE,
    returns=Receipt,
    intent=lambda a: ("debit", a.key),
    contract=Contract(
        repeat=Dedupes(window=timedelta(hours=24), first_failure=FirstFailure.RELEASED),
        lookup=Lookup(by="key", strong=True),
        settle=timedelta(seconds=2),
        not_applied=frozenset({402, 412, 429}),
        retryable=frozenset({429}),
    ),
)
def debit(args: Reference) -> Request:
    """One debit in the sandbox's wallet."""
    amount = {"currency": "EUR", "amount_minor": 1, "scale": 2}
    return Request.post("/wallet/debits", json={"account": "acc", "amount": amount, "reference": args.key})


@debit.lookup
def find(_args: Reference, key: str) -> Request:
    """Whether the wallet knows the key."""
    return Request.get(f"/wallet/by-key/{key}")


@unharmed.http("outage.mail", effect=Effect.IRREVERSIBLE, returns=Receipt, intent=lambda a: ("mail", a.key))
def mail(args: Reference) -> Request:
    """One message in the sandbox's mail."""
    return Request.post("/mail/messages", json={"to": "someone", "reference": args.key})


@app.planner("one", version=1)
def one(context: Context) -> Turn:
    """One call of the tool the input names, then the end."""
    if context.call("it") is None:
        tool = {"debit": debit, "mail": mail}[context.input["tool"]]
        return Turn([tool.propose(Reference(key=context.input["key"]), call_id="it")])
    return Turn(finish={"done": True})


# What nothing can offset has to be named.
app.allow("svc:*", tools=["outage.debit", "outage.mail"])
