"""A provider turns requests away: what asking again cannot mend ends a run at once, and what somebody has to
mend in the deployment ends none. The real SDKs, the sandbox's provider.
"""

import pytest

from fencepost.ledger.connect import connect
from fencepost.ledger.providers import waiting
from fencepost.states import Queue
from tests.integration.model_desk import WIRES, Desk


def test_a_request_that_its_provider_does_not_take_ends_the_run_and_says_why(desk: Desk) -> None:
    runs = {}
    for n, model in enumerate(WIRES):
        status = (400, 422, 400)[n]
        desk.spoil("status", status=status, model=model)
        runs[model] = (desk.enqueue(model, model), status)
    desk.go()
    for model, (run, status) in runs.items():
        ended = desk.run(run, "status", "stop_reason", "requests", "stop_detail")
        assert ended[:2] == ("STOPPED", "planner_failed")
        detail = str(ended[3])
        assert detail.startswith(f"model {model}: its provider does not take the request (http_{status}): ")
        assert detail.endswith("a fault was asked for")
    assert len(desk.asked()) == len(WIRES)


def test_what_one_model_does_not_take_another_may(desk: Desk) -> None:
    desk.spoil("status", status=400, model="responses")
    run = desk.enqueue("both")
    desk.go()
    assert desk.run(run, "status") == "COMPLETED"
    assert [one["model"] for one in desk.asked()][:2] == ["responses", "messages"]


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_deployment_that_is_set_up_wrong_ends_no_run_and_is_gone_on_from(desk: Desk, status: int) -> None:
    desk.spoil("status", status=status, model="chat", count=8)
    run = desk.enqueue("chat")
    assert desk.planner.handle(desk.shop.due(Queue.PLANNER)) == 1
    assert desk.shop.idle()
    with connect(desk.shop.database.dsns["reader"], "looks") as connection:
        (waits,) = waiting(connection, [run])
    assert waits.provider == "openai/default"
    assert waits.why.startswith(f"http_{status}: model chat: ")
    assert waits.why.endswith("a fault was asked for")
    desk.go(60)
    assert desk.run(run, "status", "requests", "failures") == ("COMPLETED", 2, 0)
    lost = desk.events(run, "ModelOutcomeUnknown")
    assert [one["code"] for one in lost] == [f"http_{status}"] * 8
    assert all(one["outage"] and one["spent"]["tokens"] == 0 for one in lost)
