"""The acceptance application and one tool for each row of the recovery table, with the promises it needs.

Only workers import this. Each tool has a dependency of its own, so that none waits for another.
"""

import time
from datetime import timedelta
from typing import Any

from pydantic import BaseModel

from fencepost import Contract, Dedupes, Effect, FirstFailure, Lookup, Natural, Request
from fencepost.contracts import AfterTakeover, Mismatch
from fencepost.contracts.catalogue import ENTRIES
from fencepost.declarations import HttpTool
from fencepost.services import Dependency, DependencyOptions
from fencepost.tools import Absent, Attempt, Found, LookupResult, Response, Unclear
from tests.acceptance.apps import RECEIPT, SECOND, app, make_effect

__all__ = ["app"]

TENTH = SECOND / 10
HOUR = timedelta(hours=1)
STRONG = Lookup(strong=True)
FORGETS = Dedupes(window=HOUR, first_failure=FirstFailure.RELEASED)


class Order(BaseModel):
    reference: str
    minor: int = 100


class Setting(BaseModel):
    reference: str
    page: str
    text: str


class Made(BaseModel):
    id: str


def a_dependency(name: str, **more: Any) -> Dependency:
    times: DependencyOptions = {
        "attempts": 3,
        "per_attempt": 2 * SECOND,
        "grace": SECOND,
        "reserve": SECOND,
        "margin": timedelta(0),
        "backoff": TENTH,
        "backoff_cap": 5 * TENTH,
        "reconcile_for": 20 * SECOND,
    }
    return app.dependency(name, "env:FENCEPOST_SANDBOX_URL", **{**times, **more})


def by_key(_args: BaseModel, key: str) -> Request:
    return Request.get(f"/wallet/by-key/{key}")


def a_row(
    name: str, contract: Contract, *, ask: bool = False, returns: Any = Made, **more: Any
) -> HttpTool[Order, Any]:
    """A debit under this row's contract."""

    def debit(args: Order) -> Request:
        amount = {"currency": "EUR", "amount_minor": args.minor, "scale": 2}
        return Request.post(
            "/wallet/debits", json={"account": f"acc-{name}", "amount": amount, "reference": args.reference}
        )

    tool: HttpTool[Order, Any] = a_dependency(name, **more).http(
        name,
        effect=Effect.IRREVERSIBLE,
        returns=returns,
        contract=contract,
        intent=lambda a: (name, a.reference, a.minor),
    )(debit)
    if ask:
        tool.lookup(by_key)
    return tool


ASKED = Contract(lookup=STRONG, settle=5 * TENTH)

a_row("row.lookup_found", ASKED, ask=True)
a_row("row.lookup_absent", ASKED, ask=True)
a_row("row.lookup_absent_for_good", ASKED, ask=True, attempts=1)
a_row("row.lookup_unclear", ASKED, ask=True, reconcile_for=3 * SECOND)
a_row("row.plain", Contract(repeat=FORGETS, settle=5 * TENTH))
a_row("row.repeat_by_key", Contract(repeat=FORGETS, settle=5 * TENTH))
a_row("row.window_passed", Contract(repeat=Dedupes(window=3 * SECOND, first_failure=FirstFailure.RELEASED)))
a_row("row.never", Contract(settle=5 * TENTH))
a_row("row.taken_over_repeats", Contract(repeat=FORGETS, settle=TENTH), per_attempt=5 * SECOND)
a_row(
    "row.taken_over_stays",
    Contract(repeat=FORGETS, settle=TENTH, after_takeover=AfterTakeover.REPAIR),
    per_attempt=5 * SECOND,
)
REPLAYS = Dedupes(
    window=HOUR, first_failure=FirstFailure.REPLAYED, replay_marker=("idempotent-replayed", "true")
)
a_row("row.replayed_failure", Contract(repeat=REPLAYS, settle=TENTH))

found_other = a_row("row.lookup_found_other", ASKED)


@found_other.lookup
def by_reference(args: Order, _key: str) -> Request:
    """By what the caller wrote on it, which says nothing of the amount."""
    return Request.get(f"/wallet/by-reference/{args.reference}")


@found_other.lookup_parse
def of_that_reference(response: Response, args: Order) -> LookupResult:
    if response.status == 404:
        return Absent()
    if response.status != 200:
        return Unclear(f"http_{response.status}")
    body = response.json()
    return Found(body["id"], body, same_arguments=body["amount"]["amount_minor"] == args.minor)


IGNORES = ENTRIES["paypal.orders"]


def done(answer: Response) -> bool:
    """Of services whose status is all they say."""
    return answer.status in {200, 201}


def an_ignorant(name: str) -> None:
    """An interface that answers a known key whatever comes with it: the answer is compared."""
    dependency = a_dependency(name)

    def make(args: Order) -> Request:
        body = {"reference": args.reference, "minor": args.minor}
        return Request.post(f"/imitations/{IGNORES.name}/make", json=body)

    assert IGNORES.key is not None
    repeat = Dedupes(window=HOUR, mismatch=Mismatch.IGNORED, first_failure=FirstFailure.REEXECUTED)
    tool = dependency.http(
        name,
        effect=Effect.IRREVERSIBLE,
        contract=Contract(repeat=repeat, settle=5 * TENTH),
        succeeded=done,
        intent=lambda a: (name, a.reference),
        key=IGNORES.key,
    )(make)

    @tool.same
    def same(args: Order, answer: Any) -> bool:
        return bool(answer["body"]["minor"] == args.minor)


an_ignorant("row.answer_compared")
an_ignorant("row.answer_for_another")


@a_dependency("row.natural").http(
    "row.natural",
    effect=Effect.IRREVERSIBLE,
    succeeded=done,
    contract=Contract(repeat=Natural(resource=lambda a: ("page", a.page)), settle=5 * TENTH),
    intent=lambda a: ("page", a.page, a.text),
)
def set_page(args: Setting) -> Request:
    return Request.post(f"/pages/{args.page}", json={"reference": args.reference, "text": args.text})


@a_dependency("row.evidence").python(
    "row.evidence",
    effect=Effect.IRREVERSIBLE,
    contract=Contract(repeat=Natural(resource=lambda a: a.reference), settle=15 * SECOND),
    intent=lambda a: ("late", a.reference),
)
def late(args: Order, attempt: Attempt) -> Any:
    """Answers after its attempt's time, when somebody else has its term."""
    make_effect("row", attempt, RECEIPT)
    time.sleep(3)
    return RECEIPT
