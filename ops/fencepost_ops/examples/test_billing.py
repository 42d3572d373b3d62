"""A tool and its test, as README has them: `pytest test_billing.py`."""

from datetime import timedelta
from typing import Any

from pydantic import BaseModel

from fencepost import App, Contract, Dedupes, Effect, FirstFailure, Request

app = App("billing")
billing = app.dependency("billing", "env:BILLING_URL")


class Charge(BaseModel):
    """What is charged."""

    order: str


class Receipt(BaseModel):
    """The service's own reference."""

    id: str


@billing.http(
    "billing.charge",
    effect=Effect.IRREVERSIBLE,
    returns=Receipt,
    intent=lambda a: ("order", a.order),
    contract=Contract(repeat=Dedupes(timedelta(hours=24), first_failure=FirstFailure.RELEASED)),
)
def charge(args: Charge) -> Request:
    """Charge an order."""
    return Request.post("/charges", json={"order": args.order})


charges: dict[str, str] = {}


def fake(request: Any) -> tuple[int, Any]:
    """A billing service that executes equal keys once."""
    return 201, {"id": charges.setdefault(request.key, f"r-{len(charges) + 1}")}


def test_charge(fencepost_drill: Any) -> None:
    """One effect, whatever is killed, frozen, lost or late."""
    sweep = fencepost_drill(
        app,
        tool="billing.charge",
        args={"order": "o-1"},
        service=fake,
        book=charges,
        fresh=charges.clear,
        env={"BILLING_URL": "https://billing.test"},
    )
    sweep.assert_one_effect()
