"""What an application looks like. Type-checked strictly with everything else, and imported by tests."""

from datetime import timedelta
from typing import TYPE_CHECKING, Literal, assert_type

from pydantic import BaseModel, ConfigDict, Field

from fencepost import (
    PER_PROPOSAL,
    Absent,
    App,
    Attempt,
    Context,
    Contract,
    Dedupes,
    Effect,
    FirstFailure,
    Found,
    Lookup,
    NotApplied,
    Proposal,
    Request,
    Response,
    Turn,
    Unclear,
)
from fencepost.tools import Tool


class Debit(BaseModel):
    model_config = ConfigDict(frozen=True)

    order_id: str = Field(min_length=1, max_length=40)
    amount: int = Field(gt=0)
    currency: Literal["EUR", "USD"] = "EUR"


class DebitReceipt(BaseModel):
    id: str
    amount: int = 0


class Refund(BaseModel):
    debit_id: str


class Stock(BaseModel):
    sku: str


class StockLevel(BaseModel):
    sku: str
    free: int


class CloseDay(BaseModel):
    tenant: str
    day: str


class Closed(BaseModel):
    number: int


app = App("shop")
wallet = app.dependency("wallet", "http://wallet.test/v1", attempts=3, per_attempt=timedelta(seconds=5))
inventory = app.dependency("inventory", "env:INVENTORY_URL", headers={"Authorization": "env:INVENTORY_TOKEN"})


def within_limits(args: Debit) -> None:
    if args.amount > 1_000_000:
        raise ValueError("more than a clerk may debit at once")


@wallet.http(
    "wallet.debit",
    version=1,
    effect=Effect.REVERSIBLE,
    intent=lambda args: ("order", args.order_id),
    returns=DebitReceipt,
    contract=Contract(
        repeat=Dedupes(
            window=timedelta(hours=24),
            first_failure=FirstFailure.REPLAYED,
            in_progress=frozenset({409}),
            replay_marker=("idempotent-replayed", "true"),
        ),
        lookup=Lookup(strong=True),
        settle=timedelta(seconds=10),
        not_applied=frozenset({402, 422, 429, 503}),
        retryable=frozenset({429, 503}),
    ),
    check=within_limits,
)
def debit(args: Debit) -> Request:
    return Request.post("/debits", json=args)


@debit.parse
def debited(response: Response) -> DebitReceipt | NotApplied:
    answer = response.json()
    if answer.get("state") == "declined":
        return NotApplied("declined", answer.get("reason", ""))
    return DebitReceipt.model_validate(answer)


@debit.lookup
def find_debit(args: Debit, key: str) -> Request:
    return Request.get("/debits", query={"key": key, "order": args.order_id})


@debit.lookup_parse
def found_debit(response: Response, args: Debit) -> Found | Absent | Unclear:
    if response.status != 200:
        return Unclear(f"http {response.status}")
    debits = response.json()["debits"]
    if not debits:
        return Absent()
    same = debits[0]["amount"] == args.amount
    return Found(debits[0]["id"], DebitReceipt.model_validate(debits[0]), same_arguments=same)


@debit.compensate
def refund_debit(args: Debit, receipt: DebitReceipt) -> Proposal:
    return refund.propose(Refund(debit_id=receipt.id), call_id=f"refund {args.order_id}")


@wallet.http(
    "wallet.refund",
    effect=Effect.IRREVERSIBLE,
    intent=lambda args: ("refund", args.debit_id),
    succeeded=lambda response: response.status == 201,
)
def refund(args: Refund) -> Request:
    return Request.post("/refunds", json={"debit": args.debit_id}, headers={"X-Reason": "stopped"})


@inventory.http("inventory.level", effect=Effect.READ, returns=StockLevel)
def level(args: Stock) -> Request:
    return Request.get(f"/stock/{args.sku}")


@app.python("ledger.close_day", effect=Effect.IRREVERSIBLE, intent=PER_PROPOSAL, returns=Closed)
def close_day(args: CloseDay, attempt: Attempt) -> Closed:
    if attempt.remaining() < 0.1:
        raise NotApplied("too_late", retryable=True, retry_after=timedelta(seconds=1))
    return Closed(number=len(args.day))


@close_day.receipt
def closing_number(closed: Closed) -> int:
    return closed.number


@app.python("ledger.note", effect=Effect.READ)
async def note(args: CloseDay, attempt: Attempt) -> dict[str, str]:
    return {"day": args.day, "key": attempt.operation_key}


@app.planner("fulfil", version=1)
def fulfil(context: Context) -> Turn:
    paid = context.call("debit")
    if paid is None:
        args = Debit(order_id=context.input["order_id"], amount=context.input["amount"])
        return Turn([debit.propose(args, call_id="debit")])
    return Turn(finish={"debit": paid.receipt, "calls": len(context.by_tool("wallet.debit"))})


@app.verify("fulfil")
def fulfilled(context: Context) -> bool | str:
    paid = context.call("debit")
    return True if paid is not None and paid.succeeded else "nothing was debited"


@app.planner("think")
async def think(context: Context) -> Turn:
    return Turn([Proposal("inventory.level", {"sku": context.input})])


app.scripted("close", 1, [{"proposals": [{"tool": "ledger.close_day"}]}, {"finish": True}])

app.allow("svc:checkout", ["wallet.*", "inventory.*", "wallet.refund"])
app.allow("svc:books", ["ledger.close_day", "ledger.note"], tenant="shop")


if TYPE_CHECKING:
    # What the signatures promise, and what they refuse: an unneeded ignore is an error of its own.
    assert_type(debit(Debit(order_id="o-1", amount=5)), Request)
    assert_type(debit.propose(Debit(order_id="o-1", amount=5)), Proposal)
    assert_type(app.tools, dict[str, Tool])
    debit(Refund(debit_id="d-1"))  # type: ignore[arg-type]
    debit.propose(Refund(debit_id="d-1"))  # type: ignore[arg-type]
    debit.parse(found_debit)  # type: ignore[arg-type]
    debit.compensate(lambda _args, _receipt: None)  # type: ignore[arg-type, return-value]
    app.dependency("other", attempt=3)  # type: ignore[call-arg]
