"""The application of the ledger tests: a tool per kind of contract, an authority that can be told no."""

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from pydantic import BaseModel

from fencepost import App, Contract, Dedupes, Effect, Lookup, Proposal, Request
from fencepost.authority import Authority, AuthorizationDecision, AuthorizationRequest
from fencepost.contracts import FirstFailure, Natural
from fencepost.services import Dependency, DependencyOptions

SECOND = timedelta(seconds=1)

DEDUPES = Contract(
    repeat=Dedupes(window=timedelta(hours=1), first_failure=FirstFailure.RELEASED),
    lookup=Lookup(strong=True),
    settle=SECOND,
    not_applied=frozenset({402, 429}),
    retryable=frozenset({429}),
)
STORES_FAILURES = Contract(
    repeat=Dedupes(window=timedelta(hours=1), first_failure=FirstFailure.REPLAYED), settle=SECOND
)


FORGETS_FAILURES = Contract(
    repeat=Dedupes(window=timedelta(hours=1), first_failure=FirstFailure.RELEASED),
    settle=SECOND,
    not_applied=frozenset({402}),
)
SETS = Contract(
    repeat=Natural(resource=lambda a: ("price", a.sku)),
    settle=SECOND,
    not_applied=frozenset({402, 429}),
    retryable=frozenset({429}),
)


class Price(BaseModel):
    sku: str
    minor: int


class Debit(BaseModel):
    order: str
    minor: int = 100


class Debited(BaseModel):
    id: str


@dataclass
class Gate:
    """The app's own authority, and a list of tools it refuses, per phase."""

    behind: Authority
    closed: set[tuple[str, str]] = field(default_factory=set)
    version: str = "gate-1"

    def decide(self, request: AuthorizationRequest) -> AuthorizationDecision:
        if (request.tool, request.phase) in self.closed:
            return AuthorizationDecision(
                allowed=False, reason="the gate is closed", policy_version=self.version
            )
        return self.behind.decide(request)


def bench_app() -> App:
    app = App("bench")
    wallet = _wallet(app)
    _add_debits(wallet)
    _add_the_rest(wallet)
    _add_slow(app)
    _add_prices(app)
    _add_limited(app)
    app.allow("svc:*", tools=["narrow.*", "paced.*"])
    app.allow("svc:*", tools=["wallet.*", "slow.*", "mail.send", "shelf.*"], approvers=["person:*"])
    return app


def _wallet(app: App) -> Dependency:
    return app.dependency(
        "wallet",
        base_url="http://127.0.0.1:9",
        attempts=3,
        per_attempt=2 * SECOND,
        grace=SECOND,
        reserve=SECOND,
        margin=timedelta(0),
        backoff=timedelta(milliseconds=1),
        reconcile_for=30 * SECOND,
    )


def _add_debits(wallet: Dependency) -> None:
    """Deduplicated, looked up, and offset by a refund."""

    @wallet.http(
        "wallet.debit",
        effect=Effect.REVERSIBLE,
        returns=Debited,
        intent=lambda a: ("order", a.order),
        contract=DEDUPES,
    )
    def debit(args: Debit) -> Request:
        return Request.post("/debits", json={"order": args.order, "minor": args.minor})

    @debit.lookup
    def find(args: Debit, key: str) -> Request:
        return Request.get(f"/by-key/{key}")

    @wallet.http(
        "wallet.refund",
        effect=Effect.REVERSIBLE,
        returns=Debited,
        intent=lambda a: ("refund", a.order),
        contract=DEDUPES,
    )
    def refund(args: Debit) -> Request:
        return Request.post("/refunds", json={"order": args.order})

    @debit.compensate
    def undo(args: Debit, result: Any) -> Proposal:
        return Proposal("wallet.refund", {"order": args.order, "minor": args.minor})


def _add_the_rest(wallet: Dependency) -> None:
    """What promises nothing or stores its failures, what only reads, what cannot be offset."""

    @wallet.http("wallet.note", effect=Effect.REVERSIBLE, intent=lambda a: ("note", a.order), required=False)
    def note(args: Debit) -> Request:
        return Request.post("/notes", json={"order": args.order})

    @wallet.http(
        "wallet.lend", effect=Effect.REVERSIBLE, intent=lambda a: ("lend", a.order), contract=STORES_FAILURES
    )
    def lend(args: Debit) -> Request:
        return Request.post("/loans", json={"order": args.order})

    @lend.compensate
    def call_in(args: Debit, result: Any) -> Proposal:
        return Proposal("wallet.hold", {"order": args.order, "minor": args.minor})

    @wallet.http(
        "wallet.tip", effect=Effect.REVERSIBLE, intent=lambda a: ("tip", a.order), contract=FORGETS_FAILURES
    )
    def tip(args: Debit) -> Request:
        return Request.post("/tips", json={"order": args.order})

    @wallet.http(
        "wallet.hold",
        effect=Effect.REVERSIBLE,
        intent=lambda a: ("hold", a.order),
        contract=STORES_FAILURES,
    )
    def hold(args: Debit) -> Request:
        return Request.post("/holds", json={"order": args.order})

    @hold.compensate
    def release(args: Debit, result: Any) -> Proposal:
        return Proposal("wallet.refund", {"order": args.order, "minor": args.minor})

    @wallet.http("wallet.balance", effect=Effect.READ)
    def balance(args: Debit) -> Request:
        return Request.get("/balance")

    @wallet.http("mail.send", effect=Effect.IRREVERSIBLE, intent=lambda a: ("mail", a.order))
    def send(args: Debit) -> Request:
        return Request.post("/mails", json={"order": args.order})


def _add_prices(app: App) -> None:
    """Setting a price twice is setting it once, as long as nobody else sets it in between."""
    shelf = app.dependency(
        "shelf",
        base_url="http://127.0.0.1:9",
        attempts=4,
        per_attempt=2 * SECOND,
        grace=SECOND,
        reserve=SECOND,
        backoff=timedelta(milliseconds=1),
        reconcile_for=30 * SECOND,
    )

    @shelf.http(
        "shelf.price",
        effect=Effect.REVERSIBLE,
        intent=lambda a: ("price", a.sku, a.minor),
        contract=SETS,
        required=False,
    )
    def price(args: Price) -> Request:
        return Request.put(f"/prices/{args.sku}", json={"minor": args.minor})


def _add_limited(app: App) -> None:
    """Dependencies with limits for the whole fleet."""
    times: DependencyOptions = {"per_attempt": 2 * SECOND, "grace": SECOND, "reserve": SECOND}
    narrow: DependencyOptions = {**times, "concurrency": 2}
    paced: DependencyOptions = {**times, "rate": 0.5}
    for name, options in (("narrow", narrow), ("paced", paced)):
        dependency = app.dependency(name, base_url="http://127.0.0.1:9", **options)

        @dependency.http(
            f"{name}.pay",
            effect=Effect.REVERSIBLE,
            returns=Debited,
            intent=lambda a: ("pay", a.order),
            contract=DEDUPES,
        )
        def pay(args: Debit) -> Request:
            return Request.post("/pay", json={"order": args.order})


def _add_slow(app: App) -> None:
    """A dependency that is asked again after ten seconds."""
    slow = app.dependency("slow", base_url="http://127.0.0.1:9", backoff=10 * SECOND, per_attempt=2 * SECOND)

    @slow.http(
        "slow.pay",
        effect=Effect.REVERSIBLE,
        returns=Debited,
        intent=lambda a: ("pay", a.order),
        contract=DEDUPES,
    )
    def pay(args: Debit) -> Request:
        return Request.post("/pay", json={"order": args.order})

    @pay.lookup
    def find_payment(args: Debit, key: str) -> Request:
        return Request.get(f"/by-key/{key}")

    quiet = Contract(settle=3 * SECOND)

    @slow.http("slow.gift", effect=Effect.REVERSIBLE, intent=lambda a: ("gift", a.order), contract=quiet)
    def gift(args: Debit) -> Request:
        return Request.post("/gifts", json={"order": args.order})
