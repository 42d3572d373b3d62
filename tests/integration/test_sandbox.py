"""The sandbox over real HTTP: idempotency keys, lookups, the book."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from fencepost_ops.sandbox.process import SandboxProcess
from tests.integration.sandbox_caller import Caller, money


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SandboxProcess]:
    with SandboxProcess(tmp_path_factory.mktemp("sandbox")) as sandbox:
        yield sandbox


@pytest.fixture
def caller(sandbox: SandboxProcess) -> Iterator[Caller]:
    with Caller.of_a_fresh(sandbox) as caller:
        yield caller


def test_a_repeated_key_gets_the_first_answer_marked_as_replayed(caller: Caller) -> None:
    first, second = caller.debit(), caller.debit()
    assert (first.status_code, second.status_code) == (201, 201)
    assert first.json() | {"replayed": True} == second.json()
    assert first.json()["replayed"] is False
    assert "idempotent-replayed" not in first.headers
    assert second.headers["idempotent-replayed"] == "true"
    assert caller.effects() == 1
    assert [request.replayed for request in caller.requests()] == [False, True]


def test_of_eight_equal_requests_at_once_one_executes_and_the_others_wait_for_it(caller: Caller) -> None:
    caller.sandbox.fault("delay_before", key=caller.key, nth=1, delay_s=0.1)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: caller.debit(), range(8)))
    assert sorted(answer.json()["replayed"] for answer in answers) == [False] + [True] * 7
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert caller.effects() == 1
    assert caller.sandbox.book.requests_per_key()["wallet", caller.key] == 8


def test_an_equal_request_in_progress_is_answered_409_where_the_service_does_not_wait(caller: Caller) -> None:
    caller.sandbox.configure(services={"wallet": {"in_flight": "conflict"}})
    caller.sandbox.fault("delay_before", key=caller.key, nth=1, delay_s=0.3)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(caller.debit)
        caller.await_arrival()
        second = caller.debit()
        assert (second.status_code, second.json()["code"]) == (409, "in_progress")
        assert first.result().status_code == 201
    assert caller.effects() == 1


def test_a_waiting_request_executes_when_the_first_one_failed_and_was_released(caller: Caller) -> None:
    caller.sandbox.fault("error_500_before", key=caller.key, nth=1, delay_s=0.2)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(caller.debit)
        caller.await_arrival()
        assert caller.debit().status_code == 201
        assert first.result().status_code == 500
    assert caller.effects() == 1


def test_a_key_with_another_body_conflicts(caller: Caller) -> None:
    caller.debit(minor=500)
    other = caller.debit(minor=501)
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_conflict")
    assert caller.effects() == 1


def test_a_key_with_another_body_gets_the_cached_answer_where_bodies_are_ignored(caller: Caller) -> None:
    caller.sandbox.configure(services={"wallet": {"mismatch": "ignored"}})
    first, other = caller.debit(minor=500), caller.debit(minor=501)
    assert other.status_code == 201
    assert other.json() == first.json() | {"replayed": True}


def test_a_key_used_on_another_path_of_its_service_conflicts(caller: Caller) -> None:
    debit = caller.debit().json()["id"]
    assert caller.post("/wallet/refunds", debit=debit).status_code == 422


def test_services_remember_keys_apart_from_each_other(caller: Caller) -> None:
    assert caller.debit().status_code == 201
    assert caller.post("/inventory/reservations", sku="sku", quantity=1).status_code == 201


def test_a_key_is_required_and_may_be_quoted(caller: Caller) -> None:
    missing = caller.http.post("/wallet/debits", json=caller.body())
    too_long = caller.debit("x" * 256)
    assert (missing.status_code, missing.json()["code"]) == (400, "idempotency_key_required")
    assert (too_long.status_code, too_long.json()["code"]) == (400, "idempotency_key_invalid")
    assert caller.debit(f'"{caller.key}"').status_code == 201
    assert caller.effects() == 1


@pytest.mark.parametrize(
    ("policy", "repeat_status", "other_status", "effects"),
    [("released", 201, 422, 1), ("replayed", 500, 422, 0), ("reexecuted", 201, 422, 1)],
)
def test_a_first_failure_is_released_replayed_or_reexecuted(
    caller: Caller, policy: str, repeat_status: int, other_status: int, effects: int
) -> None:
    caller.sandbox.configure(services={"wallet": {"first_failure": policy}})
    caller.sandbox.fault("error_500_before", key=caller.key, count=1)
    assert caller.debit().status_code == 500
    repeat = caller.debit()
    assert repeat.status_code == repeat_status
    assert ("idempotent-replayed" in repeat.headers) is (policy == "replayed")
    assert caller.debit(minor=1).status_code == other_status
    assert caller.effects() == effects


def test_a_released_key_takes_another_body_and_a_reexecuted_one_does_not(caller: Caller) -> None:
    for policy, status in (("released", 201), ("reexecuted", 422)):
        caller.sandbox.configure(services={"wallet": {"first_failure": policy}})
        key = f"{caller.key}-{policy}"
        caller.sandbox.fault("error_500_before", key=key, count=1)
        assert caller.debit(key, minor=1).status_code == 500
        assert caller.debit(key, minor=2).status_code == status


def test_a_refusal_is_a_first_failure_too(caller: Caller) -> None:
    caller.sandbox.configure(services={"wallet": {"first_failure": "replayed"}})
    caller.sandbox.seed_account(caller.account, 10)
    refused = caller.debit()
    caller.sandbox.seed_account(caller.account, 10_000)
    repeat = caller.debit()
    assert (refused.status_code, refused.json()["code"]) == (402, "insufficient_funds")
    assert (repeat.status_code, repeat.headers["idempotent-replayed"]) == (402, "true")
    assert caller.effects() == 0


def test_a_request_that_never_began_leaves_no_memory(caller: Caller) -> None:
    caller.sandbox.configure(services={"wallet": {"first_failure": "replayed"}})
    headers = {"Idempotency-Key": caller.key}
    assert caller.http.post("/wallet/debits", json={"account": "a"}, headers=headers).status_code == 400
    assert caller.http.post("/wallet/debits", content=b"{", headers=headers).status_code == 400
    assert caller.debit().status_code == 201


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b'{"reference": "\\ud800"}', b"[" * 100_000, b"\xff"])
def test_a_body_that_is_no_json_object_is_malformed(caller: Caller, content: bytes) -> None:
    answer = caller.http.post("/wallet/debits", content=content, headers={"Idempotency-Key": caller.key})
    assert (answer.status_code, answer.json()["code"]) == (400, "malformed")


def test_after_its_window_a_key_is_a_new_request(caller: Caller) -> None:
    caller.sandbox.configure(services={"wallet": {"window_s": 60}})
    first = caller.debit().json()
    caller.sandbox.move_clock(59)
    assert caller.debit().json()["id"] == first["id"]
    caller.sandbox.move_clock(61)
    again = caller.debit().json()
    assert again["id"] != first["id"]
    assert again["replayed"] is False
    assert caller.effects() == 2


# Lookups and the book.


def test_an_effect_is_found_by_key_reference_and_receipt_with_what_was_asked(caller: Caller) -> None:
    answer = caller.debit().json()
    paths = (f"by-key/{caller.key}", f"by-reference/for-{caller.key}", f"by-receipt/{answer['id']}")
    for path in paths:
        found = caller.http.get(f"/wallet/{path}")
        assert found.status_code == 200
        told = found.json()
        assert {name: told[name] for name in ("id", "kind", "reference", "amount")} == {
            name: answer[name] for name in ("id", "kind", "reference", "amount")
        }
        assert told["body"] == caller.body()
        assert (told["key"], told["count"], told["undone_by"]) == (caller.key, 1, None)


def test_what_was_never_done_is_not_found(caller: Caller) -> None:
    for path in ("by-key/none", "by-reference/none", "by-receipt/none"):
        assert caller.http.get(f"/wallet/{path}").status_code == 404
    caller.debit()
    assert caller.http.get(f"/shipping/by-key/{caller.key}").status_code == 404


def test_a_lagging_lookup_finds_an_effect_only_after_its_lag(caller: Caller) -> None:
    caller.sandbox.configure(services={"wallet": {"lookup_lag_s": 30}})
    caller.debit()
    assert caller.http.get(f"/wallet/by-key/{caller.key}").status_code == 404
    caller.sandbox.move_clock(31)
    assert caller.http.get(f"/wallet/by-key/{caller.key}").status_code == 200


def test_a_lookup_says_how_many_effects_a_key_had(caller: Caller) -> None:
    caller.debit()
    caller.debit(fault="ignore_keys")
    assert caller.http.get(f"/wallet/by-key/{caller.key}").json()["count"] == 2


def test_lookups_are_booked_apart_from_requests_for_effects(caller: Caller) -> None:
    caller.debit()
    caller.http.get(f"/wallet/by-key/{caller.key}")
    book = caller.sandbox.book
    assert [r.method for r in book.requests(key=caller.key)] == ["POST"]
    assert [r.method for r in book.requests(key=caller.key, purpose="lookup")] == ["GET"]
    assert len(book.requests(key=caller.key, purpose=None)) == 2
    wire = caller.http.get("/requests", params={"key": caller.key, "purpose": "all"}).json()["requests"]
    assert [row["purpose"] for row in wire] == ["effect", "lookup"]


def test_correlation_headers_are_booked_and_secrets_are_not(caller: Caller) -> None:
    logged = {"x-fencepost-attempt": "2", "fencepost-call": "c", "x-deadline": "2026-01-01T00:00:00Z"}
    caller.debit(headers=logged | {"authorization": "Bearer secret"})
    effect, request = caller.sandbox.book.effects(key=caller.key)[0], caller.requests()[0]
    assert effect.headers == request.headers == logged | {"idempotency-key": caller.key}
    assert (effect.request, request.effect) == (request.seq, effect.id)


def test_the_book_over_http_equals_the_book_on_disk_and_continues_where_asked(caller: Caller) -> None:
    caller.debit()
    told = caller.http.get("/effects", params={"service": "wallet"}).json()
    kept = [effect.wire() for effect in caller.sandbox.book.effects("wallet")]
    assert told["effects"] == kept
    assert told["last"] == kept[-1]["seq"]
    rest = caller.http.get("/effects", params={"since": told["last"]}).json()
    assert rest == {"effects": [], "last": told["last"]}
    assert len(caller.http.get("/requests", params={"limit": 1}).json()["requests"]) == 1
    assert caller.http.get("/effects", params={"colour": "red"}).status_code == 400


def test_balances_and_stock_follow_the_effects_and_their_undoing(caller: Caller) -> None:
    caller.sandbox.seed_account(caller.account, 600)
    caller.sandbox.seed_item("sku-1", 5)
    debit = caller.debit().json()["id"]
    reserved = caller.post("/inventory/reservations", sku="sku-1", quantity=4).json()["id"]
    account = f"/wallet/accounts/{caller.account}"
    assert caller.sandbox.get(account)["balance"] == money(100)
    assert caller.sandbox.get("/inventory/items/sku-1")["stock"] == 1
    undoings = (("/wallet/refunds", {"debit": debit}), ("/inventory/releases", {"reservation": reserved}))
    for path, body in undoings:
        assert caller.post(path, f"{caller.key}-undo", **body).status_code == 201
        assert caller.post(path, f"{caller.key}-again", **body).status_code == 412
    assert caller.sandbox.get(account)["balance"] == money(600)
    assert caller.sandbox.get("/inventory/items/sku-1")["stock"] == 5
    assert caller.http.get(f"/wallet/by-key/{caller.key}").json()["undone_by"] is not None


def test_a_shipment_is_made_and_cancelled(caller: Caller) -> None:
    made = caller.post("/shipping/shipments", address_id="adr-1", reservation="res-1")
    gone = caller.post("/shipping/cancellations", f"{caller.key}-x", shipment=made.json()["id"])
    assert (made.status_code, gone.status_code) == (201, 201)


def test_mail_neither_deduplicates_nor_tells(caller: Caller) -> None:
    for _ in range(2):
        assert caller.post("/mail/messages", to="a").status_code == 201
    assert len(caller.sandbox.book.effects("mail", key=caller.key)) == 2
    assert caller.http.get(f"/mail/by-key/{caller.key}").status_code == 501


def test_writing_a_page_twice_is_one_effect_and_going_back_is_another(caller: Caller) -> None:
    path = f"/pages/{caller.key}"
    for title, status, version in (("a", 201, 1), ("a", 200, 1), ("b", 201, 2), ("a", 201, 3)):
        answer = caller.http.post(path, json={"title": title})
        assert (answer.status_code, answer.json()["version"]) == (status, version)
        assert answer.json()["id"].startswith("page_")
    assert caller.sandbox.get(path) == {"page": caller.key, "version": 3, "body": {"title": "a"}}
