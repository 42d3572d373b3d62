"""The acceptance application and more tools: those that kill their process wherever user code may run, and
those that fork. SIGUSR2 makes a worker's consumer deaf: the thread that speaks to the broker does not return.
"""

import asyncio
import os
import signal
import time
from typing import Any

from fencepost import Context, Effect, Proposal, Request, Response, Turn
from fencepost.tools import Attempt
from fencepost_ops.examples import orders
from tests.acceptance import apps
from tests.acceptance.apps import ASKED_ONLY, Debit, Receipt, Refund, app, bank, local, patient

__all__ = ["app"]

signal.signal(signal.SIGUSR2, lambda *_: time.sleep(3600))


def _die(*_: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def _debit(args: Debit) -> Request:
    amount = {"currency": "EUR", "amount_minor": args.minor, "scale": 2}
    return Request.post(
        "/wallet/debits", json={"account": "acc", "amount": amount, "reference": args.reference}
    )


def _by_key(_args: Debit, key: str) -> Request:
    return Request.get(f"/wallet/by-key/{key}")


@bank.http(
    "dies.request",
    effect=Effect.REVERSIBLE,
    returns=Receipt,
    contract=orders.PROMISED,
    intent=lambda a: ("dies in request", a.reference),
)
def in_request(args: Debit) -> Request:
    _die()
    return _debit(args)


@bank.http(
    "dies.parse",
    effect=Effect.REVERSIBLE,
    returns=Receipt,
    contract=orders.PROMISED,
    intent=lambda a: ("dies in parse", a.reference),
)
def in_parse(args: Debit) -> Request:
    return _debit(args)


@in_parse.parse
def _parse(response: Response) -> Receipt:
    _die()
    return Receipt(id="never")


@bank.http(
    "dies.lookup",
    effect=Effect.REVERSIBLE,
    returns=Receipt,
    contract=ASKED_ONLY,
    intent=lambda a: ("dies in lookup", a.reference),
)
def in_lookup(args: Debit) -> Request:
    return _debit(args)


@in_lookup.lookup
def _lookup(args: Debit, key: str) -> Request:
    _die()
    return _by_key(args, key)


@bank.http(
    "dies.offset",
    effect=Effect.REVERSIBLE,
    returns=Receipt,
    contract=orders.PROMISED,
    intent=lambda a: ("dies in offset", a.reference),
)
def in_offset(args: Debit) -> Request:
    return _debit(args)


@in_offset.compensate
def _offset(args: Debit, receipt: Receipt) -> Proposal:
    _die()
    return Proposal("bank.refund", Refund(reference=args.reference, debit=receipt.id))


for _tool in (in_request, in_parse, in_offset):
    _tool.lookup(_by_key)
for _tool in (in_request, in_parse, in_lookup):
    _tool.compensate(
        lambda args, receipt: Proposal("bank.refund", Refund(reference=args.reference, debit=receipt.id))
    )


# -- forks: the child comes back from the tool as if it were the worker --


@local.python("fork.thread", effect=Effect.IRREVERSIBLE, intent=lambda a: ("fork", a.reference))
def fork_thread(args: apps.Deed, attempt: Attempt) -> Any:
    apps._effect("local", attempt, apps._RECEIPT)
    os.fork()
    return apps._RECEIPT


@local.python("fork.loop", effect=Effect.IRREVERSIBLE, intent=lambda a: ("fork", a.reference))
async def fork_loop(args: apps.Deed, attempt: Attempt) -> Any:
    """While other items of this process wait on the loop it forks, and awaits once more in both."""
    apps._effect("local", attempt, apps._RECEIPT)
    await asyncio.sleep(args.hundredths / 100)
    os.fork()
    await asyncio.sleep(0)
    return apps._RECEIPT


@local.python("late.do", effect=Effect.IRREVERSIBLE, intent=lambda a: ("late", a.reference))
async def late(args: apps.Deed, attempt: Attempt) -> Any:
    """Its effect comes at the end: whoever resumes a copy of it has it twice."""
    await asyncio.sleep(args.hundredths / 100)
    apps._effect("local", attempt, apps._RECEIPT)
    return apps._RECEIPT


@patient.python(
    "patient.do",
    effect=Effect.IRREVERSIBLE,
    intent=lambda a: ("patient", a.reference),
    contract=apps.REPEATABLE,
)
def patiently(args: apps.Deed, attempt: Attempt) -> Any:
    """Longer than a drain may take, the first time."""
    if apps._first("patient", attempt):
        time.sleep(args.hundredths / 100)
    return apps._RECEIPT


# -- a run that goes on until it is told --


@app.planner("until_told", version=1)
def until_told(context: Context) -> Turn:
    """Two more calls every turn, until the file `enough` is there."""
    if (apps.FOLDER / "enough").exists():
        return Turn(finish={"turns": context.turn})
    reference, turn = context.input["reference"], context.turn
    return Turn(
        [
            Proposal("bank.debit", Debit(reference=f"{reference}-{turn}"), "debit"),
            Proposal("local.await", apps.Deed(reference=f"{reference}-{turn}", hundredths=30), "nap"),
        ]
    )
