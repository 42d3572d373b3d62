"""Nobody waits while a person thinks: what is approved days later is what was asked, whoever runs by then."""

import itertools
import json
import os
import signal
from datetime import timedelta
from uuid import UUID

import pytest

from fencepost import App, Client
from fencepost.errors import FencepostError
from fencepost.ledger import principals
from fencepost.ledger.connect import connect
from fencepost.wire import StoredRequest
from tests.acceptance.approved_tools import ENGINE
from tests.acceptance.freezing import standing_still
from tests.acceptance.stage import Stage
from tests.acceptance.weather import long_only
from tests.awaiting import until

_numbers = itertools.count(1)
TAKE_PART = ("planner", "dispatcher")
DECIDING = App("deciding", authority=ENGINE)


def send(stage: Stage) -> tuple[UUID, str]:
    reference = f"approved-{next(_numbers)}"
    with stage.client("producer") as client:
        made = client.enqueue(
            "fickle",
            {"reference": reference},
            run_key=reference,
            tenant=stage.tenant,
            principal="svc:test",
            deadline=timedelta(hours=2),
        )
    stage.sent.append(made.run_id)
    return made.run_id, reference


def operator(stage: Stage) -> Client:
    broker = stage.fleet.env("operator")["FENCEPOST_REDIS_URL"]
    return Client(stage.fleet.database.dsns["operator"], broker, app=DECIDING)


@long_only
def test_an_approval_after_every_worker_was_killed_sends_what_was_asked_and_asks_no_model_again(
    stage: Stage,
) -> None:
    run, reference = send(stage)
    call = stage.until_state(run, "pay", "AWAITING_APPROVAL")
    before = [pid for role in TAKE_PART for pid in stage.pids(role)]
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    until("new workers for every queue", lambda: stage.works() and not set(before) & _living(stage))
    assert (stage.status(run), stage.requests(reference)) == ("ACTING", 0)
    with operator(stage) as client:
        (asked,) = client.approvals(run=run)
        assert client.approve(call.id, "person:ann", "fine", seen=asked.version) == "INTENT_RECORDED"
        with pytest.raises(FencepostError, match="it is decided already: person:ann"):
            client.deny(call.id, "person:bob", "no")
    assert stage.ended(run) == ["COMPLETED"]
    assert (stage.folder / f"fickle-{run}").read_text().split() == ["asked"]
    (started,) = stage.events(run, "ToolAttemptStarted")
    body = json.loads(StoredRequest.from_text(started.data["request"]).body)
    assert body["amount"]["amount_minor"] == 10
    assert asked.approval.asked["request"] == started.data["request"]
    assert stage.effects(reference) == ["debit"]


def _living(stage: Stage) -> set[int]:
    return {pid for role in TAKE_PART for pid in stage.pids(role)}


def test_who_approved_and_left_before_it_was_sent_has_approved_nothing(stage: Stage) -> None:
    run, reference = send(stage)
    call = stage.until_state(run, "pay", "AWAITING_APPROVAL")
    dispatchers = stage.pids("dispatcher")
    with operator(stage) as client:
        with (
            standing_still(dispatchers),
            connect(stage.fleet.database.dsns["operator"], "operator", autocommit=True) as ledger,
        ):
            assert client.approve(call.id, "person:ann", "fine") == "INTENT_RECORDED"
            principals.disable(ledger, stage.tenant, "person:ann", by="boss", reason="left")
        again = stage.until_state(run, "pay", "AWAITING_APPROVAL")
        assert stage.requests(reference) == 0
        assert (
            "person:ann, who gave it, is disabled: left"
            in json.loads(again.approval or "")["asked"]["reason"]
        )
        client.approve(call.id, "person:bob", "fine as well")
    assert stage.ended(run) == ["COMPLETED"]
    assert stage.effects(reference) == ["debit"]
