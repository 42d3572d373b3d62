"""The acceptance application and more tools: those that kill their process wherever user code may run, and
those that fork. SIGUSR2 makes a worker's consumer deaf: the thread that speaks to the broker does not return.
"""

import asyncio
import os
import signal
import time
from datetime import timedelta
from typing import Any

from fencepost import Context, Effect, Proposal, Request, Response, Turn
from fencepost.tools import Attempt
from tests.acceptance import apps
from tests.acceptance.apps import (
    ASKED_ONLY,
    Debit,
    Receipt,
    a_debit,
    app,
    ask_debit,
    bank,
    by_key,
    local,
    patient,
    pay_back,
)

__all__ = ["app"]

signal.signal(signal.SIGUSR2, lambda *_: time.sleep(3600))


SAMPLE = Debit(reference="what a declaration is tried on")


def _die(args: Debit | None = None) -> Any:
    """Kill this process; but for the sample, with which every process tries what is declared as it starts."""
    if args != SAMPLE:
        os.kill(os.getpid(), signal.SIGKILL)


def _ask_and_die(args: Debit) -> Request:
    _die(args)
    return ask_debit(args)


in_request = a_debit(bank, "dies.request", "dies in request", ask=_ask_and_die, examples=[SAMPLE])
in_parse = a_debit(bank, "dies.parse", "dies in parse")
in_lookup = a_debit(bank, "dies.lookup", "dies in lookup", ASKED_ONLY, examples=[SAMPLE])
in_offset = a_debit(bank, "dies.offset", "dies in offset", examples=[SAMPLE])


@in_parse.parse
def _parse(response: Response) -> Receipt:
    _die()
    return Receipt(id="never")


@in_lookup.lookup
def _lookup(args: Debit, key: str) -> Request:
    _die(args)
    return by_key(args, key)


@in_offset.compensate
def _offset(args: Debit, receipt: Receipt) -> Proposal:
    _die(args)
    return pay_back(args, receipt)


for _tool in (in_request, in_parse, in_offset):
    _tool.lookup(by_key)
for _tool in (in_request, in_parse, in_lookup):
    _tool.compensate(pay_back)


# -- forks: the child comes back from the tool as if it were the worker --


@local.python("fork.thread", effect=Effect.IRREVERSIBLE, intent=lambda a: ("fork", a.reference))
def fork_thread(args: apps.Deed, attempt: Attempt) -> Any:
    apps.make_effect("local", attempt, apps.RECEIPT)
    os.fork()
    return apps.RECEIPT


@local.python("fork.loop", effect=Effect.IRREVERSIBLE, intent=lambda a: ("fork", a.reference))
async def fork_loop(args: apps.Deed, attempt: Attempt) -> Any:
    """While other items of this process wait on the loop it forks, and awaits once more in both."""
    apps.make_effect("local", attempt, apps.RECEIPT)
    await asyncio.sleep(args.hundredths / 100)
    os.fork()
    await asyncio.sleep(0)
    return apps.RECEIPT


@local.python("late.do", effect=Effect.IRREVERSIBLE, intent=lambda a: ("late", a.reference))
async def late(args: apps.Deed, attempt: Attempt) -> Any:
    """Its effect comes at the end: whoever resumes a copy of it has it twice."""
    await asyncio.sleep(args.hundredths / 100)
    apps.make_effect("local", attempt, apps.RECEIPT)
    return apps.RECEIPT


@patient.python(
    "patient.do",
    effect=Effect.IRREVERSIBLE,
    intent=lambda a: ("patient", a.reference),
    contract=apps.REPEATABLE,
)
def patiently(args: apps.Deed, attempt: Attempt) -> Any:
    """Longer than a drain may take, the first time."""
    if apps.first_time("patient", attempt):
        time.sleep(args.hundredths / 100)
    return apps.RECEIPT


# -- a run that goes on until it is told --


@app.planner("until_told", version=1, timeout=timedelta(seconds=2))
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
