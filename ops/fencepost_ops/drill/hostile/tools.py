"""The tools that the hostile proposals are for; nothing but `BENIGN` of that table may ever reach them."""

from decimal import Decimal
from typing import Literal

from pydantic import BaseModel, Field

from fencepost import Effect, Request
from fencepost.canonical import MAX_INT
from fencepost.fields import DecimalText, Instant, TenantId, Unordered
from fencepost.money import Money
from fencepost.secrets import SecretRef
from fencepost.services import Dependency


class Order(BaseModel):
    """What an order is for."""

    reference: str = Field(max_length=100)
    minor: int = Field(default=100, ge=1, le=MAX_INT)


class Mailed(BaseModel):
    """The answer of the service that takes mail."""

    id: str


class Page(BaseModel):
    """Where something is."""

    url: str


class Owner(BaseModel):
    """Whose something is."""

    tenant: str


class Payment(BaseModel):
    """One argument of each kind."""

    order: TenantId[Literal["order"]]
    amount: Money
    due: Instant
    rate: DecimalText = Decimal(1)
    tags: Unordered[str] = frozenset()
    others: list[TenantId[Literal["order"]]] = []
    by_name: dict[str, TenantId[Literal["order"]]] = {}
    owner: Owner | None = None
    owners: list[Owner] = []
    password: SecretRef | None = None


def _check(args: Order) -> bool:
    if args.reference == "forbidden":
        raise ValueError("this is forbidden")
    if args.reference == "breaks the check":
        raise KeyError(args.reference)
    return args.reference != "unwanted"


def _intent(args: Order) -> tuple[str, str]:
    if args.reference == "breaks the intent":
        raise LookupError(args.reference)
    return "order", args.reference


HOSTS = ("files.example.com", "*.example.org")
"""Where else the dependency may go."""


def add(home: Dependency) -> None:
    """Register them with a dependency whose service takes mail, and that names `HOSTS`."""

    @home.http("hostile.order", effect=Effect.IRREVERSIBLE, returns=Mailed, intent=_intent, check=_check)
    def order(args: Order) -> Request:
        return Request.post("/mail/messages", json={"to": "someone", "reference": args.reference})

    @home.http(
        "hostile.pay",
        effect=Effect.IRREVERSIBLE,
        returns=Mailed,
        intent=lambda a: ("pay", str(a.order)),
        secrets=("mailbox/*",),
    )
    def pay(args: Payment) -> Request:
        body = {"to": str(args.order), "reference": args.order.id, "amount": args.amount.model_dump()}
        return Request.post("/mail/messages", json=body | {"password": args.password})

    @home.http("hostile.fetch", effect=Effect.READ)
    def fetch(args: Page) -> Request:
        return Request.get(args.url)
