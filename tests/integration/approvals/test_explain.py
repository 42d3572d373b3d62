"""`fencepost explain`: the authority of one call, from its events alone."""

import re
from dataclasses import replace
from datetime import UTC, datetime
from uuid import UUID

import pytest

from fencepost.events import Event, EventType, body_digest, body_text
from fencepost.outcomes import Unsure
from fencepost.recovery import Answer
from fencepost_ops.commands.explained import _OF_CALL, _OF_RUN, explain
from tests.integration.approvals.desk import REFUND, Desk, asking
from tests.integration.shell import Shell

E = EventType
LOST = Unsure("timeout", "no answer in 2 s")
CALL = UUID(int=7)


@pytest.fixture
def cli(desk: Desk, no_settings: None) -> Shell:
    return Shell(desk.bench.database, {"COLUMNS": "240"})


def test_an_approved_and_reconciled_call_is_explained_link_by_link(desk: Desk, cli: Shell) -> None:
    desk.policy.grants = (asking("wallet.debit", count=2), REFUND)
    desk.principal("carol", '["boss"]')
    desk.delegate("carol", "bob", "wallet.*")
    run, call = desk.asked()
    desk.say(call)
    desk.say(call, "bob")
    term = desk.bench.term()
    send = desk.bench.one(replace(desk.bench.claim_call(run, call, term), request=desk.request(call)))
    desk.bench.record(send, term, LOST)
    desk.bench.ahead(4)
    ask, asking_term = desk.bench.reconcile(run, call)
    desk.bench.one(desk.bench.looked_up(ask, asking_term, Answer.FOUND, "d-77"))
    told = cli.ok("explain", str(call)[:18])
    version = desk.policy.now.version
    wanted = (
        rf"Run \S+ \({run}\) was asked for in tenant shop under the authority of svc:checkout: planner p v1",
        r"Turn 1 was recorded: 1 proposed",
        r"It was proposed: wallet.debit v1 \(reversible\), as step 0 of turn 1, labelled 1.0, with arguments",
        r"Steps \(1\) schema and size, .*\(5\) the tool's own checks found it valid",
        rf"Step 6, as it was recorded: it takes 2 persons to approve exactly these .*policy {version}",
        rf"ann \(login {desk.logins['ann']}\) approved it: ann looked; .*Another person has to as well",
        rf"bob \(login {desk.logins['bob']}\), with the roles boss, by delegation carol>bob approved it",
        r"Step 6, in the claim that sends it: allowed for svc:checkout",
        r"Attempt 1 was committed before anything was sent.*It sends POST http://127.0.0.1:9/debits",
        r"The outcome of attempt 1 is unknown, timeout: no answer in 2 s",
        r"The downstream was asked about its key: found \(d-77\)",
        r"It was reconciled as SUCCEEDED, proved by .*receipt d-77",
        rf"call {call} is SUCCEEDED",
    )
    at = 0
    for pattern in wanted:
        found = re.compile(pattern).search(told, at)
        assert found is not None, (pattern, told)
        at = found.start()


def test_the_same_for_a_program(desk: Desk, cli: Shell) -> None:
    _, call = desk.asked()
    desk.say(call, approve=False)
    value = cli.json("explain", str(call))
    assert (value["state"], value["chain"][0]["event"]) == ("REJECTED", "RunCreated")
    said = next(link for link in value["chain"] if link["event"] == "ApprovalDecided")
    assert said["by"] == "ann"
    assert "denied it: ann looked" in said["text"]
    assert value["chain"][-1]["event"] == "RunStopping"


def test_who_is_disabled_before_any_policy_is_asked_is_told_so_once(desk: Desk, cli: Shell) -> None:
    run, call = desk.approved()
    desk.principal("svc:checkout", disabled=True)
    desk.claim(run, call)
    (link,) = [
        one for one in cli.json("explain", str(call))["chain"] if one["event"] == "AuthorizationDenied"
    ]
    assert link["text"] == (
        "Step 6, in the claim that sends it: denied: not authorised (principal_disabled):"
        " svc:checkout is disabled: left; no policy answered."
    )
    assert re.fullmatch("term [0-9a-f]{6}/[0-9]+", link["by"])


def test_of_its_neighbours_it_tells_nothing(desk: Desk, cli: Shell) -> None:
    run, order = desk.run(), desk.bench.order()
    call, other = desk.bench.plan(
        run, ("wallet.debit", {"order": order}), ("wallet.note", {"order": "neighbour"})
    )
    told = cli.ok("explain", str(call))
    assert "neighbour" not in told
    assert str(other) not in told
    events = [link["event"] for link in cli.json("explain", str(call))["chain"]]
    assert events.count("ToolProposalRecorded") == 1
    assert "there is no call 0000" in cli.refused(2, "explain", "0000")


def test_an_attempt_tells_which_allowances_it_holds() -> None:
    share = {
        "allowance": "daily",
        "count": 1,
        "minor": 1250,
        "currency": "EUR",
        "until": "2026-01-02T00:00:00Z",
    }
    body = body_text({"deadline": "2026-01-01T00:00:02Z", "repeat": True, "reserved": [share]})
    at = datetime(2026, 1, 1, tzinfo=UTC)
    kind = E.TOOL_ATTEMPT_STARTED
    header = (1, UUID(int=1), kind, 1, CALL, 2, body, body_digest(body), "svc:a", None, None, None)
    (told,) = explain([Event("t", UUID(int=2), *header, UUID(int=1), at, None, "", "")], CALL)
    held = "It holds 1 call and 12.50 EUR of allowance daily in the window until 2026-01-02T00:00:00Z."
    assert held in told.text
    assert told.text.startswith(
        "Attempt 2, a repeat under the same key, was committed before anything was sent"
    )
    assert told.text.endswith(held)


def test_every_event_of_a_call_has_a_sentence() -> None:
    of_runs_alone = {
        E.MODEL_REQUEST_STARTED,
        E.MODEL_OUTCOME_UNKNOWN,
        E.RUN_COMPLETED,
        E.COMPENSATION_REQUESTED,
        E.COMPENSATION_DEFERRED,
        E.RUN_STOPPED,
        E.LEDGER_RESTORED,
        E.PLAN_DEFERRED,
        E.MODEL_PASSED_OVER,
    }
    assert set(EventType) - set(_OF_CALL) - set(_OF_RUN) == of_runs_alone


@pytest.mark.parametrize("kind", [*sorted(_OF_CALL), "OfAnotherVersion"])
def test_an_event_of_a_form_it_does_not_know_is_told_all_the_same(kind: str) -> None:
    body = body_text({"strange": "a \u202e form"})
    at = datetime(2026, 1, 1, tzinfo=UTC)
    header = (1, UUID(int=1), kind, 1, CALL, None, body, body_digest(body), "p", None, None, None)
    event = Event("t", UUID(int=2), *header, UUID(int=1), at, None, "", "")
    (told,) = explain([event], CALL)
    assert kind in told.text
    assert "\u202e" not in told.text
