"""What is sent again is what was sent first: the stored bytes, known by their fingerprint, or nothing."""

from typing import Any
from uuid import UUID

import pytest

from fencepost import commands as c
from fencepost.ledger.connect import connect
from fencepost.ledger.verify import verify_run
from fencepost.outcomes import Refused, Unsure
from fencepost.tools import Request, operation_key
from fencepost.wire import fingerprint
from tests.integration.ledger_bench import TENANT, Bench

LOST = Unsure("timeout", "the answer was lost")
BUSY = Refused("http_429", "not now", retryable=True)
OTHER = Request.post("/debits", json={"minor": 1}).bind("http://127.0.0.1:9").to_text()


def put(bench: Bench, call: UUID, **columns: Any) -> None:
    """Change a stored call behind everybody's back, guards off."""
    names = ", ".join(f"{name} = %s" for name in columns)
    bench.sql("SET session_replication_role = replica")
    bench.sql(f"UPDATE fencepost.calls SET {names} WHERE id = %s", *columns.values(), call)
    bench.sql("SET session_replication_role = origin")


def verified(bench: Bench, run: UUID) -> bool:
    """Whether the run still replays to its rows; it is not asked again after the test."""
    bench.started.remove(run)
    with connect(bench.database.dsns["reader"], "verify") as connection:
        return verify_run(connection, TENANT, run).ok


def sent(bench: Bench, outcome: Any, tool: str = "wallet.hold") -> tuple[UUID, UUID, c.Send]:
    run = bench.start()
    call = bench.debit(run, bench.order(), tool)
    send, term = bench.dispatch(run, call)
    bench.record(send, term, outcome)
    return run, call, send


def test_every_attempt_tells_the_fingerprint_of_what_was_sent(bench: Bench) -> None:
    run, call, send = sent(bench, LOST)
    repeat, _ = bench.reconcile(run, call)
    assert isinstance(repeat, c.Send)
    assert repeat.call.request == send.call.request is not None
    told = [e.data["fingerprint"] for e in bench.events(run) if e.type == "ToolAttemptStarted"]
    held = bench.call(call)
    one = fingerprint(TENANT, held.scope, held.tool, held.tool_version, send.call.request)
    assert told == [one, one]
    assert held.fingerprint == one


def test_a_repeat_of_other_bytes_is_refused_and_goes_to_a_person(bench: Bench) -> None:
    run, call, _ = sent(bench, LOST)
    put(bench, call, request=OTHER)
    assert bench.reconcile(run, call)[0] == c.Done("NEEDS_REPAIR")
    held = bench.call(call)
    assert (held.attempts, held.doubt) == (1, True)
    assert "its fingerprint differs" in (held.error or "")
    assert not verified(bench, run), "and so the edit is found"


def test_a_retry_of_other_bytes_is_refused_although_nothing_is_in_doubt(bench: Bench) -> None:
    run, call, _ = sent(bench, BUSY)
    put(bench, call, request=OTHER)
    bench.ahead(1)
    assert bench.one(bench.claim_call(run, call)) == c.Done("REJECTED")
    assert not verified(bench, run)


@pytest.mark.parametrize("outcome", [LOST, BUSY], ids=["in doubt", "refused"])
def test_postgres_holds_what_is_sent_again_against_the_event_of_the_first_attempt(
    bench: Bench, outcome: Any
) -> None:
    """Bytes and fingerprint may both have been changed: the history has not."""
    run, call, _ = sent(bench, outcome)
    held = bench.call(call)
    forged = fingerprint(TENANT, held.scope, held.tool, held.tool_version, OTHER)
    put(bench, call, request=OTHER, fingerprint=forged)
    bench.ahead(1)
    claim = bench.claim_doubt(run, call) if outcome is LOST else bench.claim_call(run, call)
    answer = bench.one(claim)
    assert isinstance(answer, c.Broken)
    assert "another fingerprint than what was sent" in answer.why
    assert bench.call(call).attempts == 1
    put(bench, call, request=held.request, fingerprint=held.fingerprint)


@pytest.mark.parametrize("column", ["request", "fingerprint"])
def test_what_was_sent_never_changes(bench: Bench, column: str) -> None:
    _, call, _ = sent(bench, LOST)
    with pytest.raises(Exception, match="what was proposed and sent does not change"):
        bench.sql(f"UPDATE fencepost.calls SET {column} = 'x' WHERE id = %s", call)


def test_a_fingerprint_covers_tenant_scope_tool_version_and_every_byte() -> None:
    parts: list[Any] = ["shop", "bank", "bank.pay", 1, "text"]
    others: list[Any] = ["s", "b", "bank.pays", 2, "texts"]
    marks = {fingerprint(*parts)}
    for place, other in enumerate(others):
        marks.add(fingerprint(*[*parts[:place], other, *parts[place + 1 :]]))
    assert len(marks) == 6


def test_a_request_is_other_text_if_any_part_of_it_is_other() -> None:
    def text(method: str = "POST", path: str = "/a", mode: str = "test", body: object = 1) -> str:
        return (
            Request(method, path, headers=(("Api-Mode", mode),), body=str(body).encode())
            .bind("http://h")
            .to_text()
        )

    assert len({text(), text(method="PUT"), text(path="/b"), text(mode="live"), text(body=2)}) == 5


def test_equal_intents_of_two_tools_have_keys_of_their_own() -> None:
    """Making an invoice and paying it: one key for both would make the second a repeat of the first."""
    keys = {operation_key("shop", "bank", tool, ("invoice", "i-1")) for tool in ("bank.make", "bank.pay")}
    assert len(keys) == 2


@pytest.mark.parametrize("outcome", [LOST, BUSY], ids=["in doubt", "refused for now"])
def test_what_was_first_sent_before_there_were_fingerprints_is_sent_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, outcome: Any
) -> None:
    with monkeypatch.context() as before:
        before.setattr("fencepost.decide.prints.of", lambda _call, _request: None)
        run, call, send = sent(bench, outcome)
    assert bench.call(call).fingerprint is None
    if outcome is LOST:
        again, term = bench.reconcile(run, call)
    else:
        bench.ahead(1)
        again, term = bench.dispatch(run, call)
    assert isinstance(again, c.Send)
    assert again.call.request == send.call.request
    bench.record(again, term, Refused("http_402", "no money", retryable=False))
    with connect(bench.database.dsns["reader"], "verify") as connection:
        assert verify_run(connection, TENANT, run).ok
