"""Every fault that can be asked of the sandbox, over real HTTP, and what it leaves in the book."""

import contextlib
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest

from fencepost_ops.sandbox.faults import Kind
from fencepost_ops.sandbox.process import SandboxProcess
from fencepost_ops.sandbox.settings import Settings
from tests.integration.sandbox_caller import Caller


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SandboxProcess]:
    with SandboxProcess(tmp_path_factory.mktemp("sandbox")) as sandbox:
        yield sandbox


@pytest.fixture
def caller(sandbox: SandboxProcess) -> Iterator[Caller]:
    with Caller.of_a_fresh(sandbox) as caller:
        yield caller


WITHOUT_EFFECT = {
    Kind.DROP_BEFORE,
    Kind.ERROR_500_BEFORE,
    Kind.ERROR_503,
    Kind.THROTTLE_429,
    Kind.REFUSE,
    Kind.IN_PROGRESS_409,
}


@pytest.mark.parametrize("kind", Kind)
def test_every_kind_of_fault_has_its_effect_or_none_and_stands_in_the_book(
    caller: Caller, kind: Kind
) -> None:
    caller.sandbox.fault(kind.value, key=caller.key, count=1, delay_s=0.01)
    with contextlib.suppress(httpx2.TransportError):
        caller.debit()
    assert caller.effects() == (0 if kind in WITHOUT_EFFECT else 1)
    assert [request.fault for request in caller.requests()] == [kind.value]
    assert caller.debit().status_code == 201
    assert [request.fault for request in caller.requests()] == [kind.value, None]


@pytest.mark.parametrize("kind", ["drop_before", "drop_before;reset=true"])
def test_a_dropped_request_had_no_effect(caller: Caller, kind: str) -> None:
    with pytest.raises(httpx2.TransportError):
        caller.debit(fault=kind)
    assert caller.effects() == 0
    assert [request.status for request in caller.requests()] == [None]


def test_a_dropped_connection_ends_or_is_reset_as_asked(caller: Caller) -> None:
    where = urlsplit(caller.sandbox.url)
    head = "POST /mail/messages HTTP/1.1\r\nContent-Length: 0\r\nSandbox-Fault: drop_before"

    def received(ending: str) -> bytes:
        with socket.create_connection((where.hostname, where.port), timeout=10) as connection:
            connection.sendall(f"{head}{ending}\r\n\r\n".encode())
            return connection.recv(1)

    assert received("") == b""
    with pytest.raises(ConnectionResetError):
        received(";reset=true")


@pytest.mark.parametrize("kind", ["drop_after_commit", "drop_after_commit;reset=true", "half_response"])
def test_a_lost_answer_leaves_the_effect_and_the_repeat_gets_its_answer(caller: Caller, kind: str) -> None:
    with pytest.raises(httpx2.TransportError):
        caller.debit(fault=kind)
    assert caller.effects() == 1
    assert caller.debit().json()["replayed"] is True
    assert caller.effects() == 1


@pytest.mark.parametrize(
    ("kind", "status", "code"),
    [
        ("error_500_before", 500, "failed"),
        ("error_503", 503, "unavailable"),
        ("throttle_429;retry_after_s=7", 429, "throttled"),
        ("in_progress_409", 409, "in_progress"),
        ("refuse", 402, "refused"),
        ("refuse;status=403;code=blocked", 403, "blocked"),
    ],
)
def test_a_fault_that_says_no_had_no_effect_and_touches_no_remembered_key(
    caller: Caller, kind: str, status: int, code: str
) -> None:
    first = caller.debit(fault=kind)
    assert (first.status_code, first.json()["code"]) == (status, code)
    assert caller.effects() == 0
    assert caller.debit().json()["replayed"] is False
    again = caller.debit(fault=kind)
    assert (again.status_code, again.json()["code"]) == (status, code)
    assert caller.debit().json()["replayed"] is True
    assert caller.effects() == 1


def test_a_throttled_caller_is_told_when_to_come_back(caller: Caller) -> None:
    caller.sandbox.fault("throttle_429", key=caller.key, count=1, retry_after_s=7)
    assert caller.debit().headers["retry-after"] == "7"


@pytest.mark.parametrize(
    ("kind", "status"),
    [("error_500_after_commit", 500), ("garbage_200", 200), ("oversize_200;bytes=100000", 200)],
)
def test_a_spoiled_answer_hides_an_effect_that_the_repeat_reveals(
    caller: Caller, kind: str, status: int
) -> None:
    spoiled = caller.debit(fault=kind)
    assert spoiled.status_code == status
    assert caller.effects() == 1
    if kind == "garbage_200":
        with pytest.raises(ValueError, match="Expecting value"):
            spoiled.json()
    if kind.startswith("oversize"):
        assert len(spoiled.content) > 100_000
    assert caller.debit().json()["replayed"] is True


def test_a_500_after_commit_can_be_what_the_key_remembers(caller: Caller) -> None:
    caller.debit(fault="error_500_after_commit;remember_answer=true")
    repeat = caller.debit()
    assert (repeat.status_code, repeat.headers["idempotent-replayed"]) == (500, "true")
    assert caller.effects() == 1


def test_a_slow_answer_comes_after_the_commit(caller: Caller) -> None:
    caller.sandbox.fault("delay_after_commit", key=caller.key, delay_s=30)
    with pytest.raises(httpx2.ReadTimeout):
        caller.debit(timeout=0.2)
    assert caller.effects() == 1


@pytest.mark.parametrize("kind", ["delay_arrival", "delay_before"])
def test_a_request_whose_caller_gave_up_still_lands_later(caller: Caller, kind: str) -> None:
    caller.sandbox.fault(kind, key=caller.key, count=1, delay_s=0.3)
    with pytest.raises(httpx2.ReadTimeout):
        caller.debit(timeout=0.1)
    assert caller.effects() == 0
    caller.await_effect()
    assert caller.debit().json()["replayed"] is True


def test_a_late_arrival_holds_no_key_meanwhile(caller: Caller) -> None:
    caller.sandbox.fault("delay_arrival", key=caller.key, count=1, delay_s=0.3)
    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(caller.debit)
        caller.await_arrival()
        assert caller.debit().json()["replayed"] is False
        assert late.result().json()["replayed"] is True
    assert caller.effects() == 1


def test_forgotten_keys_execute_again(caller: Caller) -> None:
    caller.debit()
    assert caller.sandbox.fault("forget_keys", service="wallet", key=caller.key) == {"forgotten": 1}
    assert caller.debit().json()["replayed"] is False
    assert caller.debit(fault="forget_keys").json()["replayed"] is False
    assert caller.effects() == 3


def test_ignored_keys_execute_again_until_the_fault_is_deleted(caller: Caller) -> None:
    rule = caller.sandbox.fault("ignore_keys", service="wallet", key=caller.key)
    for _ in range(3):
        assert caller.debit().json()["replayed"] is False
    assert caller.http.delete(f"/faults/{rule['id']}").json() == {"deleted": 1}
    assert caller.debit().status_code == 201
    assert caller.debit().json()["replayed"] is True
    assert caller.effects() == 4


def test_a_counted_fault_meets_exactly_as_many_of_many_requests_at_once(caller: Caller) -> None:
    caller.sandbox.fault("error_503", reference_prefix=f"for-{caller.key}", count=3)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda n: caller.debit(f"{caller.key}-{n}"), range(16)))
    assert sorted(answer.status_code for answer in answers) == [201] * 13 + [503] * 3
    assert caller.http.get("/faults").json()["faults"] == []


def test_lookups_meet_only_the_faults_meant_for_them(caller: Caller) -> None:
    caller.debit()
    path = f"/wallet/by-key/{caller.key}"
    caller.sandbox.fault("error_503", service="wallet", count=1)
    assert caller.http.get(path).status_code == 200
    caller.sandbox.fault("error_500_before", service="wallet", on="lookup", count=1)
    assert caller.http.get(path).status_code == 500
    assert caller.http.get(path, headers={"Sandbox-Fault": "throttle_429"}).status_code == 429
    with pytest.raises(httpx2.TransportError):
        caller.http.get(path, headers={"Sandbox-Fault": "drop_after_commit"})


def test_the_book_names_the_fault_each_request_met_and_counts_what_fired(caller: Caller) -> None:
    before = caller.http.get("/faults").json()["fired"].get("garbage_200", 0)
    caller.debit(fault="garbage_200")
    caller.debit()
    assert [request.fault for request in caller.requests()] == ["garbage_200", None]
    assert caller.http.get("/faults").json()["fired"]["garbage_200"] == before + 1


def test_nonsense_is_refused_in_a_sentence_and_changes_nothing(caller: Caller) -> None:
    posts: list[tuple[str, dict[str, Any]]] = [
        ("/faults", {"kind": "meteor"}),
        ("/admin/config", {"services": {"bank": {}}}),
        ("/admin/config", {"services": {"wallet": {"window_s": -1}}}),
        ("/admin/clock", {"offset_s": "soon"}),
        ("/admin/accounts", {"account": "a", "balance": 5}),
        ("/admin/items", {"sku": "s", "stock": -1}),
    ]
    for path, body in posts:
        assert caller.http.post(path, json=body).status_code == 400
    assert caller.debit(fault="meteor").json()["code"] == "bad_fault"
    assert caller.http.get("/admin/config").json() == Settings().wire()
    assert caller.http.get("/nowhere").status_code == 404
    assert caller.http.get("/wallet/debits").status_code == 405
    assert caller.http.post("/wallet/debits", content=b"x" * (2**20 + 1)).status_code == 413
