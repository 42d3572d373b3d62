"""An application whose tools show every type of argument that policies can see, and some that they cannot."""

from datetime import date, datetime
from decimal import Decimal
from typing import Any, Literal

from pydantic import BaseModel, Field

from fencepost import App, Effect, Proposal, Request
from fencepost.authority.bundle import Bundle, read_bundle
from fencepost.authority.cedar import CedarEngine
from fencepost.authority.compiled import Compiled
from fencepost.authority.vocabulary import vocabulary
from fencepost.money import Money

app = App("shop")
wallet = app.dependency("wallet", "http://127.0.0.1:9")
mail = app.dependency("mail", "http://127.0.0.1:9")


class Debit(BaseModel):
    order_id: str
    account: str
    amount: Money
    memo: str | None = None


class Refund(BaseModel):
    debit: str


class Look(BaseModel):
    account: str


class Address(BaseModel):
    street: str
    zip_code: str | None = Field(default=None, alias="zip-code")


class Everything(BaseModel):
    text: str = "a"
    number: int = 1
    flag: bool = False
    moment: datetime
    day: date
    exact: Decimal = Decimal("1.5")
    kind: Literal["x", "y"] = "x"
    labels: set[str] = set()
    addresses: list[Address] = []
    home: Address | None = None
    weight: float = 1.0
    free: dict[str, str] = {}
    either: int | str = 1
    maybe: list[str | None] = []


class Mail(BaseModel):
    to: str
    text: str


class MailTo(BaseModel):
    to: str
    text: int
    copies: int = 0


@wallet.http(
    "wallet.debit",
    effect=Effect.REVERSIBLE,
    intent=lambda a: (a.order_id,),
    succeeded=lambda answer: answer.status == 201,
)
def debit(args: Debit) -> Request:
    return Request.post("/debits", json={"order": args.order_id})


@debit.compensate
def pay_back(args: Debit, result: Any) -> Proposal:
    return Proposal("wallet.refund", {"debit": args.order_id})


@wallet.http(
    "wallet.refund",
    effect=Effect.IRREVERSIBLE,
    intent=lambda a: (a.debit,),
    succeeded=lambda answer: answer.status == 201,
)
def refund(args: Refund) -> Request:
    return Request.post("/refunds", json={"debit": args.debit})


@wallet.http("wallet.look", effect=Effect.READ)
def look(args: Look) -> Request:
    return Request.get(f"/accounts/{args.account}")


@mail.http("mail.send", version=1, effect=Effect.READ, egress=True)
def send_1(args: Mail) -> Request:
    return Request.post("/mail", json={"to": args.to})


@mail.http(
    "mail.send",
    version=2,
    effect=Effect.IRREVERSIBLE,
    egress=True,
    intent=lambda a: (a.to,),
    succeeded=lambda answer: answer.status == 201,
)
def send_2(args: MailTo) -> Request:
    return Request.post("/mail", json={"to": args.to})


@wallet.http("wallet.everything", effect=Effect.READ)
def everything(args: Everything) -> Request:
    return Request.get("/")


WORDS, PROBLEMS = vocabulary(app.registry)


def bundle(policies: str, **files: str) -> Bundle:
    """A bundle of these policies; every other file by its name, `_` for `.`."""
    named = {name.replace("__", "/").replace("_", "."): text for name, text in files.items()}
    made, problems = read_bundle({"bundle.json": '{"name": "shop"}', "all.cedar": policies, **named}, WORDS)
    assert made is not None, problems
    return made


def engine(policies: str, **files: str) -> CedarEngine:
    return CedarEngine(Compiled(bundle(policies, **files)), "7")
