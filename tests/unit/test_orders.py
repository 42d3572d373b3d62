"""The example's planner: what it proposes from which context."""

import pytest

from fencepost.tools import CallView, Context
from fencepost_ops.examples.orders import Ship, fulfil

INPUT = {"order_id": "o-1", "address_id": "a-1"}


def done(label: str, receipt: str, result: object) -> CallView:
    return CallView(label, f"x.{label}", {}, "SUCCEEDED", result, None, receipt)


@pytest.mark.parametrize("repaired", [False, True])
def test_an_order_goes_on_from_receipts_whether_or_not_a_person_settled_its_calls(repaired: bool) -> None:
    def call(label: str, receipt: str) -> CallView:
        return done(label, receipt, None if repaired else {"id": receipt})

    calls = (call("reserve", "r-1"), call("debit", "d-1"))
    (proposal,) = fulfil(Context("r", "t", "svc:x", INPUT, 2, calls)).proposals
    shipped = Ship(order_id="o-1", address_id="a-1", reservation="r-1")
    assert proposal.arguments == shipped.model_dump()
    turn = fulfil(Context("r", "t", "svc:x", INPUT, 3, (*calls, call("ship", "s-1"))))
    assert turn.finish == {"order_id": "o-1", "shipment": "s-1"}
