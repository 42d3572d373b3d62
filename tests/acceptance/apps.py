"""The application of the acceptance fleets: the orders of the example, and tools that misbehave on purpose.

Only workers import this. Which tools the authority denies can be changed while they run, by a file in the
folder ACCEPTANCE_DIR.
"""

import asyncio
import base64
import ctypes
import json
import os
import signal
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from fencepost import (
    App,
    Context,
    Contract,
    Dedupes,
    Effect,
    FirstFailure,
    Lookup,
    NotApplied,
    Proposal,
    Request,
    Turn,
)
from fencepost.authority import Approver, AuthorizationDecision, AuthorizationRequest
from fencepost.declarations import HttpTool
from fencepost.services import Dependency, DependencyOptions
from fencepost.tools import Attempt
from fencepost_ops.examples import orders
from tests.acceptance import approved_tools, child_tools, mcp_tools, memory_tools, outside_tools, secret_tools

FOLDER = Path(os.environ["ACCEPTANCE_DIR"])
SECOND = timedelta(seconds=1)


class FileAuthority:
    """Allows everything to `svc:` principals but the tools named, one a line, in the file `denied`."""

    def decide(self, request: AuthorizationRequest) -> AuthorizationDecision:
        if request.tool.startswith(outside_tools.PREFIX):
            return outside_tools.ENGINE.decide(request)
        if request.tool.startswith(approved_tools.PREFIX):
            return approved_tools.ENGINE.decide(request)
        denied = FOLDER / "denied"
        names = denied.read_text().split() if denied.exists() else []
        allowed = request.principal.startswith("svc:") and request.tool not in names
        return AuthorizationDecision(allowed, "the file says so", f"denied: {' '.join(names)}")

    def may_approve(self, request: AuthorizationRequest, approver: Approver) -> AuthorizationDecision:
        """Of tools that ask for it."""
        return approved_tools.ENGINE.may_approve(request, approver)


app = App("acceptance", authority=FileAuthority())
app.registry.update(orders.app.registry)
app.planner("fulfil", version=1, timeout=2 * SECOND)(orders.fulfil)
app.verify("fulfil")(orders.fulfilled)

_URL = "env:FENCEPOST_SANDBOX_URL"


def _times(per_attempt: timedelta = 4 * SECOND, attempts: int = 4) -> DependencyOptions:
    return {
        "attempts": attempts,
        "per_attempt": per_attempt,
        "grace": SECOND,
        "reserve": SECOND,
        "backoff": timedelta(milliseconds=50),
        "backoff_cap": timedelta(milliseconds=500),
        "reconcile_for": 30 * SECOND,
        "margin": SECOND,
    }


bank = app.dependency("bank", _URL, **_times())
blind = app.dependency("blind", _URL, **_times(SECOND, attempts=6))
mail = app.dependency("mail", _URL, **_times(SECOND))
local = app.dependency("local", **_times())
hasty = app.dependency("hasty", **_times(1.5 * SECOND))
deadly = app.dependency("deadly", **_times(attempts=2))
patient = app.dependency("patient", _URL, **_times(9 * SECOND))

UNSEEN = Contract(
    repeat=Dedupes(
        window=timedelta(hours=1), first_failure=FirstFailure.RELEASED, in_progress=frozenset({409})
    ),
    settle=timedelta(milliseconds=500),
    not_applied=frozenset({402, 412, 429, 503}),
    retryable=frozenset({429, 503}),
)
"""Deduplicates, but cannot be asked: an unknown outcome is settled by a repeat, or not at all."""
ASKED_ONLY = Contract(
    lookup=Lookup(by="key", strong=True), settle=SECOND, not_applied=frozenset({402, 412, 429})
)
"""Can be asked, but must never be sent an equal request."""


class Receipt(BaseModel):
    id: str


class Debit(BaseModel):
    reference: str
    minor: int = 100


class Refund(BaseModel):
    reference: str
    debit: str


def ask_debit(args: Debit) -> Request:
    amount = {"currency": "EUR", "amount_minor": args.minor, "scale": 2}
    return Request.post(
        "/wallet/debits", json={"account": "acc", "amount": amount, "reference": args.reference}
    )


def by_key(_args: BaseModel, key: str) -> Request:
    return Request.get(f"/wallet/by-key/{key}")


def pay_back(args: Debit, receipt: Receipt) -> Proposal:
    return Proposal("bank.refund", Refund(reference=args.reference, debit=receipt.id))


def a_debit(
    dependency: Dependency,
    name: str,
    intent: str,
    contract: Contract = orders.PROMISED,
    ask: Callable[[Debit], Request] = ask_debit,
    examples: Sequence[Debit] = (),
) -> HttpTool[Debit, Receipt]:
    """A tool that debits: one intent for a reference under this word."""
    return dependency.http(
        name,
        effect=Effect.REVERSIBLE,
        returns=Receipt,
        contract=contract,
        intent=lambda a: (intent, a.reference),
        examples=examples,
    )(ask)


def a_refund(
    dependency: Dependency, name: str, contract: Contract = orders.PROMISED
) -> HttpTool[Refund, Receipt]:
    """A tool that pays back: one intent for a reference, whichever tool it is."""

    def ask(args: Refund) -> Request:
        return Request.post("/wallet/refunds", json={"debit": args.debit, "reference": args.reference})

    return dependency.http(
        name,
        effect=Effect.IRREVERSIBLE,
        returns=Receipt,
        contract=contract,
        intent=lambda a: ("refund", a.reference),
    )(ask)


debit = a_debit(bank, "bank.debit", "debit")
once = a_debit(bank, "bank.once", "once", ASKED_ONLY)
blindly = a_debit(blind, "blind.debit", "debit", UNSEEN)
approved = a_debit(bank, "approved.debit", "approved")
rationed = a_debit(bank, "rationed.debit", "rationed")
app.allowance("ration", tool="rationed.*", count=3, window=timedelta(days=3000))
patiently = a_debit(patient, "patient.debit", "debit")
"""An attempt may take so long that only a death explains an earlier takeover."""
pay = a_debit(blind, "blind.pay", "pay", UNSEEN)
"""Quiet soon after it was sent, so that its offset need not wait."""

refund = a_refund(bank, "bank.refund")
refund_blindly = a_refund(blind, "blind.refund", UNSEEN)
"""Offsets soon, and is settled by a repeat."""
repay = a_refund(blind, "blind.repay")
"""Offsets soon, and can be asked about."""

for _debit in (debit, once, approved, rationed, patiently):
    _debit.lookup(by_key)
for _refund in (refund, repay):
    _refund.lookup(by_key)
for _reversible in (debit, once, approved, rationed, blindly, patiently):
    _reversible.compensate(pay_back)


@pay.compensate
def pay_back_one_way_or_other(args: Debit, receipt: Receipt) -> Proposal:
    """By a refund that can be asked about where the reference says so, else by one that cannot.

    Planning it kills its process where the reference says so, as long as there is a file `deadly`.
    """
    if args.reference.endswith("deadly") and (FOLDER / "deadly").exists():
        os.kill(os.getpid(), signal.SIGKILL)
    tool = "blind.repay" if args.reference.endswith("asked") else "blind.refund"
    return Proposal(tool, Refund(reference=args.reference, debit=receipt.id))


class Letter(BaseModel):
    reference: str


@mail.http("mail.send", effect=Effect.IRREVERSIBLE, returns=Receipt, intent=lambda a: ("mail", a.reference))
def send(args: Letter) -> Request:
    """Promises nothing: no deduplication, no lookup."""
    return Request.post("/mail/messages", json={"to": "someone", "reference": args.reference})


# -- Python tools, whose effects are lines of a file --


class Deed(BaseModel):
    """What a Python tool does after its effect; `pause_s` in hundredths, because arguments have no floats."""

    reference: str
    then: str = "return"
    hundredths: int = 0


_RESULTS: dict[str, Any] = {
    "nul": {"id": "r\x00r", "text": "before\x00after"},
    "nan": {"id": "r-nan", "number": float("nan"), "low": float("-inf"), "high": float("inf")},
    "surrogate": {"id": "r-half", "text": "half \ud83d of it"},
}
RECEIPT = {"id": "deed"}


def make_effect(service: str, attempt: Attempt, result: dict[str, Any]) -> None:
    """Make the effect: one line, appended in one write, that outlives this process."""
    whose = {
        "service": service,
        "key": attempt.operation_key,
        "call": attempt.call,
        "attempt": attempt.number,
    }
    line = json.dumps({**whose, "receipt": result["id"], "at": time.time()})
    with (FOLDER / "deeds").open("a") as book:
        book.write(line + "\n")


def _end(deed: Deed) -> Any:
    if deed.then == "raise":
        raise RuntimeError("broke\x00 with NaN and \ud83d")
    return _result(deed)


def _result(deed: Deed) -> dict[str, Any]:
    result: dict[str, Any] = _RESULTS.get(deed.then, RECEIPT)
    return result


@local.python("local.do", effect=Effect.IRREVERSIBLE, intent=lambda a: ("do", a.reference))
def do(args: Deed, attempt: Attempt) -> Any:
    """In a thread."""
    if args.then == "refuse":
        raise NotApplied("nothing\x00 was done")
    make_effect("local", attempt, _result(args))
    time.sleep(args.hundredths / 100)
    return _end(args)


@local.python("local.await", effect=Effect.IRREVERSIBLE, intent=lambda a: ("await", a.reference))
async def wait(args: Deed, attempt: Attempt) -> Any:
    """On the event loop."""
    make_effect("local", attempt, _result(args))
    await asyncio.sleep(args.hundredths / 100)
    return _end(args)


def _hog(hundredths: int) -> None:
    """Keep every other thread of this process from running, without burning the machine's time."""
    ctypes.PyDLL(None).usleep(hundredths * 10_000)  # PyDLL does not release the interpreter's lock


@patient.python("patient.hog", effect=Effect.IRREVERSIBLE, intent=lambda a: ("hog", a.reference))
def hog(args: Deed, attempt: Attempt) -> Any:
    """Within its attempt, but for several times the TTL of its worker's stamp."""
    make_effect("patient", attempt, RECEIPT)
    _hog(args.hundredths)
    return RECEIPT


REPEATABLE = Contract(
    repeat=Dedupes(window=timedelta(hours=1), first_failure=FirstFailure.RELEASED),
    settle=timedelta(milliseconds=100),
)


def first_time(service: str, attempt: Attempt) -> bool:
    """Make the effect unless its key had it already; whether it was made now."""
    try:
        (FOLDER / f"key-{attempt.operation_key}").touch(exist_ok=False)
    except FileExistsError:
        return False
    make_effect(service, attempt, RECEIPT)
    return True


@hasty.python(
    "hasty.hog", effect=Effect.IRREVERSIBLE, intent=lambda a: ("hog", a.reference), contract=REPEATABLE
)
async def hog_loop(args: Deed, attempt: Attempt) -> Any:
    """Longer than its attempt may take, on the loop itself, the first time."""
    if first_time("hasty", attempt):
        _hog(args.hundredths)
    return RECEIPT


@deadly.python(
    "deadly.do", effect=Effect.IRREVERSIBLE, intent=lambda a: ("again", a.reference), contract=REPEATABLE
)
def again(args: Deed, attempt: Attempt) -> Any:
    """Kills its process after the effect, and at every repeat."""
    first_time("deadly", attempt)
    os.kill(os.getpid(), signal.SIGKILL)


# -- planners --


@app.planner("steps", version=1, timeout=2 * SECOND)
def steps(context: Context) -> Turn:
    """Propose what the input lists turn by turn, then claim to be done; `then` hogs or kills the planner."""
    asked = context.input
    if asked.get("then") == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    turns = asked["turns"]
    if context.turn <= len(turns):
        return Turn([_proposal(step) for step in turns[context.turn - 1]])
    return Turn(finish={"calls": {call.call_id: call.state for call in context.calls}})


def _proposal(step: dict[str, Any]) -> Proposal:
    """A step of the input; what its JSON cannot hold (NUL, NaN) comes in base64."""
    tool = _decoded(step["tool_b64"]) if "tool_b64" in step else step["tool"]
    arguments = _decoded(step["arguments_b64"]) if "arguments_b64" in step else step["arguments"]
    return Proposal(tool, arguments, step.get("call_id", ""))


def _decoded(text: str) -> str:
    return base64.b64decode(text).decode("utf-8", "surrogatepass")


secret_tools.add(app, FOLDER)
outside_tools.add(app, FOLDER)
approved_tools.add(app, FOLDER)
mcp_tools.add(app, FOLDER)
child_tools.add(app)
memory_tools.add(app, FOLDER)
