"""What `make bench` runs: the smallest run there is, one that waits for a slow model, and one with a
long history.

`FENCEPOST_APP=fencepost_ops.examples.bench_app:app` names this application.
"""

import asyncio
from datetime import timedelta
from typing import Any

from pydantic import BaseModel

from fencepost import App, Attempt, Context, Contract, Dedupes, Effect, FirstFailure, Lookup, Request, Turn

SLOW_S = 4.0
PER_TURN = 10
"""Calls the planner `many` proposes in each turn."""

app = App("bench")
here = app.dependency("here", per_attempt=timedelta(seconds=10))
wallet = app.dependency("wallet", "env:FENCEPOST_SANDBOX_URL", per_attempt=timedelta(seconds=10))


class Note(BaseModel):
    """What to note, and under which key."""

    key: str


class Noted(BaseModel):
    """Where it was noted."""

    id: str


@here.python(
    "bench.note",
    effect=Effect.IRREVERSIBLE,
    intent=lambda a: ("note", a.key),
    returns=Noted,
    contract=Contract(),
)
async def note(args: Note, attempt: Attempt) -> Noted:
    """Costs nothing: what is measured is everything around it."""
    return Noted(id=f"{args.key}/{attempt.number}")


@here.python(
    "bench.slow",
    effect=Effect.IRREVERSIBLE,
    intent=lambda a: ("slow", a.key),
    returns=Noted,
    contract=Contract(),
)
async def slow(args: Note, attempt: Attempt) -> Noted:
    """Takes as long as a slow model."""
    await asyncio.sleep(SLOW_S)
    return Noted(id=f"{args.key}/{attempt.number}")


@wallet.http(
    "bench.debit",
    effect=Effect.IRREVERSIBLE,
    intent=lambda a: ("debit", a.key),
    returns=Noted,
    contract=Contract(
        repeat=Dedupes(window=timedelta(hours=24), first_failure=FirstFailure.UNKNOWN),
        lookup=Lookup(by="key", strong=True),
        settle=timedelta(seconds=2),
        not_applied=frozenset({400, 402, 412, 429, 503}),
    ),
)
def debit(args: Note) -> Request:
    """One debit in the sandbox's wallet, by HTTP."""
    amount = {"currency": "EUR", "amount_minor": 1, "scale": 2}
    return Request.post("/wallet/debits", json={"account": "bench", "amount": amount, "reference": args.key})


@debit.lookup
def find(_args: Note, key: str) -> Request:
    """Whether the wallet knows the key."""
    return Request.get(f"/wallet/by-key/{key}")


@app.planner("one", version=1)
def one(context: Context) -> Turn:
    """One call of the tool the input names, then the end."""
    if context.call("it") is None:
        wanted: dict[str, Any] = {"note": note, "slow": slow, "debit": debit}
        return Turn([wanted[context.input["tool"]].propose(Note(key=context.input["key"]), call_id="it")])
    return Turn(finish={"done": True})


@app.planner("thinking", version=1)
async def thinking(context: Context) -> Turn:
    """A model that takes its time and then has nothing to do."""
    await asyncio.sleep(SLOW_S)
    return Turn(finish={"thought": context.run_id})


@app.planner("many", version=1)
def many(context: Context) -> Turn:
    """Turn after turn of calls, as many turns as the input says."""
    if context.turn > context.input["turns"]:
        return Turn(finish={"turns": context.turn})
    key = f"{context.input['key']}/{context.turn}"
    notes = [note.propose(Note(key=f"{key}/{n}"), call_id=f"{context.turn}-{n}") for n in range(PER_TURN)]
    return Turn(notes)


# What nothing can offset has to be named.
app.allow("svc:*", tools=["bench.note", "bench.slow", "bench.debit"])
