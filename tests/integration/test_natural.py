"""Natural tools: who sets a thing waits for whoever was sent to set it before; no repeat comes too late."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from fencepost import commands as c
from fencepost.clock import uuid7
from fencepost.operations import Operation
from fencepost.outcomes import Applied, Outcome, Refused, Unsure
from fencepost.proposals import Validated
from fencepost.tools import compensation_key
from tests.integration.guards_bench import OPERATOR, OWNER, WORKER, Attack, attack
from tests.integration.ledger_bench import TENANT, Bench

APPLIED = Applied("{}", "r-1")
LOST = Unsure("timeout", "the answer was lost")
BUSY = Refused("http_429", "not now", retryable=True)
NO = Refused("http_402", "no", retryable=False)


def price(bench: Bench, sku: str, minor: int, **how: Any) -> tuple[UUID, UUID]:
    """A run that sets a price."""
    run = bench.start(**{"deadline_s": 300} | how)
    (call,) = bench.plan(run, ("shelf.price", {"sku": sku, "minor": minor}))
    return run, call


def resource(bench: Bench, call: UUID) -> Operation:
    columns = ", ".join(f'"{name}"' for name in Operation.__slots__)
    key = bench.call(call).resource
    return Operation(*bench.sql(f"SELECT {columns} FROM fencepost.operations WHERE key = %s", key)[0])


def waits(bench: Bench, run: UUID, call: UUID) -> None:
    """The call is claimed, and waits."""
    assert bench.one(bench.claim_call(run, call)) == c.Done("INTENT_RECORDED")
    assert (bench.call(call).waits, bench.call(call).attempts) == (True, 0)
    assert bench.one(bench.claim_call(run, call)) == c.Moved(), "it is not due before the resource is free"


def test_an_older_calls_repeat_never_overwrites_what_a_later_one_set(bench: Bench) -> None:
    """The older answer is lost; the later call is due at once, and is sent only after the older's repeat."""
    sku, sent = bench.order(), []
    older, first = price(bench, sku, 100)
    later, second = price(bench, sku, 200)
    send, term = bench.dispatch(older, first)
    sent.append(send.call.arguments)
    bench.record(send, term, LOST)
    waits(bench, later, second)
    assert bench.reconcile(older, first)[0] == c.Done("UNKNOWN"), "what was sent may still land"
    bench.ahead(4)
    repeat, again = bench.reconcile(older, first)
    assert isinstance(repeat, c.Send)
    assert (repeat.repeat, repeat.call.request) == (True, send.call.request)
    sent.append(repeat.call.arguments)
    bench.sql("UPDATE fencepost.outbox SET due_at = fencepost.now() WHERE subject = %s", second)
    waits(bench, later, second)
    bench.record(repeat, again, APPLIED)
    last, term = bench.dispatch(later, second)
    sent.append(last.call.arguments)
    bench.record(last, term, APPLIED)
    assert [text.split(":")[1][:3] for text in sent] == ["100", "100", "200"], "the later value stays"
    assert (bench.state(first), bench.state(second)) == ("SUCCEEDED", "SUCCEEDED")


def test_a_call_that_was_overtaken_all_the_same_is_never_repeated(bench: Bench) -> None:
    """As after a ledger that lost a commit: the resource says that a later call was sent to set it."""
    sku = bench.order()
    older, first = price(bench, sku, 100)
    later, second = price(bench, sku, 200)
    send, term = bench.dispatch(older, first)
    bench.record(send, term, LOST)
    bench.sql("SET session_replication_role = replica")
    bench.sql(
        "UPDATE fencepost.operations SET call = %s, run = %s, status = 'released', doubt = false"
        " WHERE key = %s",
        second,
        later,
        bench.call(first).resource,
    )
    bench.sql("SET session_replication_role = origin")
    bench.ahead(4)
    assert bench.reconcile(older, first)[0] == c.Done("NEEDS_REPAIR")
    assert "a later call has set the same resource since" in (bench.call(first).error or "")


def test_what_nobody_answered_may_still_land_so_a_later_value_waits_for_it(bench: Bench) -> None:
    sku = bench.order()
    older, first = price(bench, sku, 100)
    later, second = price(bench, sku, 200)
    send, term = bench.dispatch(older, first)
    bench.record(send, term, LOST)
    waits(bench, later, second)
    assert bench.one(bench.evidence(send, term, APPLIED)) == c.Done("UNKNOWN")
    assert bench.reconcile(older, first)[0] == c.Done("SUCCEEDED")
    quiet = bench.call(first).quiet_at
    assert quiet is not None
    assert (resource(bench, first).status, resource(bench, first).expires_at) == ("released", quiet)
    assert bench.one(bench.claim_call(later, second)) == c.Late()
    row = bench.row(second)
    assert row is not None
    assert row.due_at == quiet + timedelta(microseconds=1)
    bench.ahead((quiet - bench.now()).total_seconds() + 0.1)
    bench.succeed(later, second)
    assert resource(bench, first).call == second


def test_a_refused_call_that_is_tried_again_keeps_its_turn(bench: Bench) -> None:
    sku = bench.order()
    older, first = price(bench, sku, 100)
    later, second = price(bench, sku, 200)
    send, term = bench.dispatch(older, first)
    assert bench.record(send, term, BUSY) == c.Done("INTENT_RECORDED")
    waits(bench, later, second)
    bench.ahead(1)
    bench.succeed(older, first)
    bench.succeed(later, second)


@pytest.mark.parametrize("end", ["FAILED", "CANCELLED", "REJECTED", "NEEDS_REPAIR"])
def test_every_end_of_a_call_that_was_sent_frees_what_it_set_and_doubt_does_not(
    bench: Bench, end: str
) -> None:
    sku = bench.order()
    older, first = price(bench, sku, 100)
    later, second = price(bench, sku, 200)
    send, term = bench.dispatch(older, first)
    outcomes: dict[str, Outcome] = {"FAILED": NO, "NEEDS_REPAIR": LOST}
    bench.record(send, term, outcomes.get(end, BUSY))
    if end == "CANCELLED":
        bench.cancel(older)
    if end == "REJECTED":
        bench.ahead(1)
        bench.gate.closed.add(("shelf.price", "claim"))
        bench.one(bench.claim_call(older, first))
        bench.gate.closed.clear()
    if end == "NEEDS_REPAIR":
        bench.ahead(31)
        bench.reconcile(older, first)
    assert bench.state(first) == end
    if end == "NEEDS_REPAIR":
        waits(bench, later, second)
        assert bench.repair(first, "ACCEPTED_UNKNOWN") == c.Done("ACCEPTED_UNKNOWN")
    if end in {"CANCELLED", "REJECTED"}:  # its last request was answered, but not by this end
        bench.ahead(4)
    bench.succeed(later, second)


def test_an_effect_that_comes_to_light_holds_its_resource_again_unless_another_has_it(bench: Bench) -> None:
    sku = bench.order()
    older, first = price(bench, sku, 100)
    send, term = bench.dispatch(older, first)
    bench.record(send, term, NO)
    bench.one(bench.evidence(send, term, APPLIED))
    assert bench.state(first) == "NEEDS_REPAIR"
    later, second = price(bench, sku, 200)
    waits(bench, later, second)
    assert bench.repair(first, "SUCCEEDED", "r-1") == c.Done("SUCCEEDED")
    bench.ahead(4)
    other, third = bench.dispatch(later, second)
    bench.record(other, third, APPLIED)
    bench.one(bench.evidence(send, term, Applied("{}", "r-2")))
    assert bench.state(first) == "NEEDS_REPAIR"
    held = resource(bench, first)
    assert (held.call, held.status) == (second, "released"), "what was set since is not its own"
    assert bench.repair(first, "UNKNOWN") == c.Done("UNKNOWN")
    assert bench.reconcile(older, first)[0] == c.Done("NEEDS_REPAIR"), "two receipts"


def test_two_in_one_turn_and_other_things_and_tenants(bench: Bench) -> None:
    sku = bench.order()
    run = bench.start()
    step = "shelf.price"
    first, second, other = bench.plan(
        run,
        (step, {"sku": sku, "minor": 1}),
        (step, {"sku": sku, "minor": 2}),
        (step, {"sku": sku + "x", "minor": 1}),
    )
    assert bench.call(first).resource == bench.call(second).resource != bench.call(other).resource
    assert bench.call(first).operation != bench.call(first).resource
    send, term = bench.dispatch(run, first)
    waits(bench, run, second)
    bench.succeed(run, other)
    bench.record(send, term, APPLIED)
    bench.succeed(run, second)
    assert bench.finish(run) == c.Done("COMPLETED")
    tool = bench.app.registry[step, 1]
    args = tool.read_arguments(bench.call(first).arguments)
    assert tool.resource(TENANT, args) == bench.call(first).resource != tool.resource("other", args)


def offsetting(bench: Bench, sku: str, minor: int) -> tuple[UUID, UUID]:
    """A stopped run, and the call by which it is offset: one that sets a price."""
    run = bench.start()
    bench.succeed(run, bench.debit(run, bench.order(), "wallet.lend"))
    bench.cancel(run)
    claim = bench.claim_stopped(run)
    order = bench.one(claim)
    assert isinstance(order, c.Offset), order
    place = order.run.turn + 1, order.run.calls
    checked = bench.validated(run, *place, "shelf.price", sku=sku, minor=minor)
    assert isinstance(checked, Validated)
    proposal = replace(checked, operation=compensation_key(order.forward.operation or ""), required=False)
    made: dict[str, Any] = {"forward": order.forward.id, "proposal": proposal, "call_id": uuid7()}
    bench.one(c.RecordCompensation(**bench.base(run), term=claim.term, **made))
    bench.ahead(4)  # what it offsets has settled
    return run, made["call_id"]


def test_a_compensation_waits_for_what_it_sets_until_its_own_deadline_and_no_longer(bench: Bench) -> None:
    sku = bench.order()
    send, term = bench.dispatch(*price(bench, sku, 100, deadline_s=3600))
    bench.record(send, term, LOST)
    run, back = offsetting(bench, sku, 5)
    waits(bench, run, back)
    until = bench.call(back).reconcile_until
    assert until is not None
    assert (bench.call(back).ready_at, until > bench.now()) == (until, True)
    bench.ahead((until - bench.now()).total_seconds() + 0.1)
    assert bench.one(bench.claim_call(run, back)) == c.Done("REJECTED")
    assert bench.call(back).error == "late: the compensation's own deadline has passed"
    assert bench.kinds(run, back)[-2:] == ["DispatchDeferred", "ProposalRejected"], "it did not spin"


def test_a_compensation_is_woken_when_what_it_sets_is_free(bench: Bench) -> None:
    sku = bench.order()
    run, back = offsetting(bench, sku, 5)
    send, term = bench.dispatch(*price(bench, sku, 100))
    waits(bench, run, back)
    bench.record(send, term, APPLIED)
    row = bench.row(back)
    assert row is not None
    assert row.due_at <= bench.now()
    bench.succeed(run, back)


def test_of_eight_claims_at_once_one_is_sent(bench: Bench) -> None:
    sku = bench.order()
    made = [price(bench, sku, number) for number in range(8)]
    claims = [bench.claim_call(run, call) for run, call in made]
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(bench.one, claims))
    (won,) = [n for n, answer in enumerate(answers) if isinstance(answer, c.Send)]
    assert all(a == c.Done("INTENT_RECORDED") for n, a in enumerate(answers) if n != won), answers
    bench.record(answers[won], claims[won].term, APPLIED)
    left = [pair for n, pair in enumerate(made) if n != won]
    due = bench.sql(
        "SELECT count(*) FROM fencepost.outbox WHERE subject = ANY(%s) AND due_at <= fencepost.now()",
        [call for _, call in left],
    )
    assert due == [(7,)], "all of them were woken"
    for run, call in left:
        bench.succeed(run, call)


# -- what Postgres refuses, whoever asks -----------------------------------------------------------------


class Things:
    """Two unsent calls that set the same thing, and the thing's key."""

    def __init__(self, attack: Attack, bench: Bench) -> None:
        self.attack = attack
        sku = bench.order()
        (self.run, self.first), (self.other, self.second) = price(bench, sku, 1), price(bench, sku, 2)
        self.key = bench.call(self.first).resource
        attack.put("calls", self.first, state="DISPATCHING", attempts=1)
        self.put(call=self.first, run=self.run, status="open")

    def put(self, **columns: Any) -> None:
        names = ", ".join(f'"{name}" = %s' for name in columns)
        self.attack.force(
            f"UPDATE fencepost.operations SET {names} WHERE key = %s", *columns.values(), self.key
        )

    def update(self, role: str | None = WORKER, **columns: Any) -> str | None:
        names = ", ".join(f'"{name}" = %s' for name in columns)
        statement = f"UPDATE fencepost.operations SET {names} WHERE key = %s"
        return self.attack.attempt(statement, *columns.values(), self.key, role=role)

    def take(self, role: str | None = WORKER) -> str | None:
        return self.update(
            role, call=self.second, run=self.other, status="open", doubt=False, expires_at=None
        )


@pytest.fixture
def things(bench: Bench) -> Iterator[Things]:
    with attack(bench) as opened:
        yield Things(opened, bench)


@pytest.mark.parametrize("state", ["DISPATCHING", "UNKNOWN", "NEEDS_REPAIR", "INTENT_RECORDED"])
def test_a_resource_is_not_handed_on_while_the_call_that_was_sent_is_unsettled(
    things: Things, state: str
) -> None:
    things.attack.put("calls", things.second, state="DISPATCHING", attempts=1)
    things.attack.put("calls", things.first, state=state, doubt=state in {"UNKNOWN", "NEEDS_REPAIR"})
    things.put(doubt=state in {"UNKNOWN", "NEEDS_REPAIR"})
    for role in (WORKER, OPERATOR, OWNER):
        assert things.take(role) == "FP003"
        assert things.update(role, status="released", doubt=False) in {"FP001", "FP003"}
    things.attack.put("calls", things.first, state="FAILED", doubt=False)
    things.put(status="released", doubt=False)
    assert things.take() is None
    things.put(expires_at="2999-01-01T00:00:00Z")
    assert things.take() == "FP003", "what was sent may still land"


@pytest.mark.parametrize("proof", [None, "ToolEffectReconciled", "RepairDecided"])
def test_what_nobody_answered_is_let_go_no_earlier_than_it_is_quiet(
    things: Things, proof: str | None
) -> None:
    quiet = {"quiet_at": "2999-01-01T00:00:00Z"}
    seen = things.attack.event(things.run, things.first, proof)[1] if proof else None
    things.attack.put("calls", things.first, state="FAILED", doubt=False, proof=seen, **quiet)
    for role in (WORKER, OPERATOR, OWNER):
        assert things.update(role, status="released", expires_at=None) == "FP003"
        assert things.update(role, status="released", expires_at="2998-12-31T00:00:00Z") == "FP003"
    assert "what was sent may set it until 2999-01-01" in things.attack.said
    assert things.update(status="released", expires_at=quiet["quiet_at"]) is None
    in_flight = {"quiet_at": "9999-01-01T00:00:00Z", "in_flight_until": "2900-01-01T00:00:00Z"}
    things.attack.put("calls", things.first, **in_flight)
    assert things.update(status="released", expires_at=None) == "FP003"
    assert things.update(status="released", expires_at=in_flight["in_flight_until"]) is None


@pytest.mark.parametrize("proof", ["ToolResultRecorded", "ToolAttemptFailed"])
def test_what_was_answered_is_let_go_at_once(things: Things, proof: str) -> None:
    seen = things.attack.event(things.run, things.first, proof)[1]
    things.attack.put("calls", things.first, state="FAILED", proof=seen, quiet_at="2999-01-01T00:00:00Z")
    assert things.update(status="released", expires_at=None) is None


def test_a_resource_is_held_only_by_a_call_that_was_sent_to_set_it(things: Things) -> None:
    things.attack.put("calls", things.first, state="FAILED")
    things.put(status="released")
    assert things.take() == "FP001", "it was never sent"
    things.attack.put("calls", things.second, state="DISPATCHING", attempts=1, resource="another")
    assert things.take() == "FP001"


def test_no_call_is_sent_to_set_what_another_holds(bench: Bench, things: Things) -> None:
    """A whole honest claim of the second call, but for the resource: refused at COMMIT."""
    seq, _, _ = things.attack.event(
        things.other, things.second, "ToolAttemptStarted", attempt=1, worker="next", fence=6
    )
    claim = {
        "state": "DISPATCHING",
        "attempts": 1,
        "version": seq,
        "fence": 6,
        "owner": "next",
        "presented_owner": "next",
        "presented_fence": 6,
    }
    things.attack.force(
        "UPDATE fencepost.operations SET status = 'open', call = %s, first_sent_at = now()"
        " WHERE key = (SELECT operation FROM fencepost.calls WHERE id = %s)",
        things.second,
        things.second,
    )
    for role in (WORKER, OWNER):
        assert things.attack.update("calls", things.second, claim, role) is None
        assert things.attack.update("calls", things.second, claim, role, deferred=True) is not None
        assert "sent without holding what it sets" in things.attack.said
    things.put(call=things.second, run=things.other)
    assert things.attack.update("calls", things.second, claim, deferred=True) is None


@pytest.mark.parametrize("column", ["resource", "scope"])
def test_what_a_key_or_a_call_sets_never_changes(things: Things, column: str) -> None:
    for role in (WORKER, OWNER):
        assert things.update(role, **{column: "false" if column == "resource" else "x"}) == "FP001"
        assert things.attack.update("calls", things.first, {"resource": "x"}, role) == "FP001"
