"""An agent that remembers, searches, acts and asks another run, for what is told of all that."""

import logging
import os
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

from pydantic import BaseModel

from fencepost import App, Budget, Context, Contract, Effect, Proposal, Request, Turn
from fencepost.authority import AuthorizationDecision, AuthorizationRequest
from fencepost.models import Price, Wire
from fencepost.retrieval import Document
from fencepost.tools import PER_PROPOSAL, Attempt
from fencepost_ops.examples import orders
from tests.acceptance import mcp_tools

SECOND = timedelta(seconds=1)
MODEL = "traced"
PRICE = Price(since=date(2026, 1, 1), input=2_000_000, output=8_000_000)

log = logging.getLogger(__name__)


class Everything:
    """Allows everything, to a tainted run too."""

    def decide(self, request: AuthorizationRequest) -> AuthorizationDecision:
        return AuthorizationDecision(True, "everything is allowed here", "everything")


app = App("traced", authority=Everything())
app.registry.update(orders.app.registry)
mcp_tools.add(app, Path(os.environ.get("ACCEPTANCE_DIR", ".")))
desk = app.dependency("desk", "env:FENCEPOST_SANDBOX_URL", per_attempt=4 * SECOND)
provider = app.dependency("provider", "env:FENCEPOST_SANDBOX_URL")


class Named(BaseModel):
    reference: str


class Query(BaseModel):
    query: str


@desk.http(
    "mail.send",
    effect=Effect.IRREVERSIBLE,
    intent=lambda a: ("mail", a.reference),
    contract=Contract(),
    untrusted=False,
    succeeded=lambda answer: answer.status == 201,
)
def send(args: Named) -> Request:
    return Request.post("/mail/messages", json={"to": "ann@example.com", "reference": args.reference})


@app.python("steps.note", effect=Effect.READ, contract=Contract(), untrusted=False)
def note(args: Named, _attempt: Attempt) -> str:
    log.info("noted")  # in a thread of its own, and it belongs to the run all the same
    return "noted"


def search(_args: Query, _attempt: Attempt) -> list[Document]:
    return [Document(id="handbook", version="r7", as_of=datetime.now(UTC), text="what is known")]


app.memory("notes", per_attempt=2 * SECOND)
app.retrieval("docs", search=search, max_age=timedelta(days=1), per_attempt=2 * SECOND)
app.child(
    "team.ask",
    planner="member",
    arguments=Named,
    effect=Effect.IRREVERSIBLE,
    intent=PER_PROPOSAL,
    budget=Budget(turns=6, calls=2, attempts=8, depth=0, children=0),
    deadline=20 * SECOND,
)


@app.planner("member", version=1)
def member(context: Context) -> Turn:
    reference = f"child-{context.input['reference']}"
    if not context.by_tool("mail.send"):
        return Turn([Proposal("mail.send", {"reference": reference}, "mail")])
    return Turn(finish={"reference": reference})


@app.planner("undone", version=1)
def undone(context: Context) -> Turn:
    """A debit and a note, and then what nobody takes: the run stops, and the debit is offset."""
    order = context.input["order"]
    if context.turn == 1:
        amount = {"currency": "EUR", "amount_minor": 100, "scale": 2}
        debit = {"order_id": order, "account": "acc", "amount": amount}
        note = {"ref": order, "text": "hello"}
        return Turn([Proposal("wallet.debit", debit, "debit"), Proposal("diary.write", note, "note")])
    parcel = {"order_id": order, "address_id": "a-1", "reservation": "none"}
    return Turn([Proposal("shipping.schedule", parcel, "ship")])


model = app.model("traced", via=provider, wire=Wire.RESPONSES, model=MODEL, max_output=512, prices=(PRICE,))
app.agent(
    "desk",
    model=model,
    instructions="Remember, search, act and ask.",
    tools=("mail.send", "steps.note", "notes.*", "docs.search", "team.ask"),
    window=16_000,
)
_REFERENCE = {"$input": "reference"}
_NOTE = {"key": _REFERENCE}
SCRIPT = {
    "turns": [
        {
            "calls": [
                {
                    "name": "notes.write",
                    "id": "w",
                    "arguments": {"key": _REFERENCE, "value": 1, "expected": 0},
                },
                {"name": "docs.search", "id": "s", "arguments": {"query": "anything"}},
                {"name": "steps.note", "id": "n", "arguments": {"reference": _REFERENCE}},
            ]
        },
        {
            "calls": [
                {"name": "mail.send", "id": "m", "arguments": {"reference": _REFERENCE}},
                {"name": "team.ask", "id": "t", "arguments": {"reference": _REFERENCE}},
            ]
        },
    ],
    "last": "Done.",
}
