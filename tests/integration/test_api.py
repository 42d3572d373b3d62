"""The HTTP interface as a process: what it answers to whom, and that a request repeated is one request."""

import json
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import httpx2
import psycopg
import pytest

from fencepost_ops.database import LedgerDatabase
from fencepost_ops.local import LocalPostgres
from tests.awaiting import until
from tests.integration.api_process import RUN, Api, running, start, token
from tests.integration.conftest import copied

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.fixture(scope="module")
def ledger(postgres: LocalPostgres, template: dict[str, str]) -> Iterator[LedgerDatabase]:
    with copied(postgres, template) as database:
        yield database


@pytest.fixture(scope="module")
def api(ledger: LedgerDatabase) -> Iterator[Api]:
    with running(ledger) as process:
        yield process


@pytest.fixture(scope="module")
def shop(api: Api) -> Iterator[httpx2.Client]:
    with api.client(token(api.database)) as client:
        yield client


def sql(database: LedgerDatabase, statement: str, *args: Any) -> list[Any]:
    with psycopg.connect(database.owner, autocommit=True) as connection:
        cursor = connection.execute(statement, args)
        return cursor.fetchall() if cursor.description else []


def refused(answer: httpx2.Response, status: int, code: str) -> dict[str, Any]:
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")
    told: dict[str, Any] = answer.json()
    assert (told["status"], told["code"]) == (status, code), told
    assert told["request_id"] == answer.headers["x-request-id"]
    return told


def test_a_run_is_started_once_and_told_again_as_it_stands(
    shop: httpx2.Client, ledger: LedgerDatabase
) -> None:
    first = shop.post("/v1/runs", json=RUN, headers={"Idempotency-Key": '"once"', "traceparent": TRACE})
    assert first.status_code == 201
    assert "idempotent-replayed" not in first.headers
    run = first.json()
    assert first.headers["location"] == f"/v1/runs/{run['id']}"
    assert (run["status"], run["principal"], run["traceparent"]) == ("QUEUED", "svc:checkout", TRACE)
    again = shop.post("/v1/runs", json=RUN, headers={"Idempotency-Key": "once"})
    assert (again.status_code, again.headers["idempotent-replayed"]) == (200, "true")
    assert again.json() == run
    assert shop.get(first.headers["location"]).json() == run
    found = sql(ledger, "SELECT tenant, run_key, traceparent FROM fencepost.runs WHERE id = %s", run["id"])
    assert found == [("shop", "once", TRACE)]


def test_the_statuses_of_a_start(shop: httpx2.Client) -> None:
    refused(shop.post("/v1/runs", json=RUN), 400, "idempotency_key_required")
    start(shop, "taken")
    other = refused(start(shop, "taken", deadline=601), 422, "idempotency_conflict")
    assert "taken by another request" in other["detail"]
    assert start(shop, "taken", input={"order": "o-1"}, version=1, on_stop="compensate").status_code == 200
    key = {"Idempotency-Key": "k-1"}
    bad = refused(start(shop, "k-1", input={"a": [1, {"b": "\0"}]}), 400, "invalid_request")
    assert bad["errors"] == [{"pointer": "/input", "detail": bad["detail"]}]
    assert bad["detail"].startswith("input.a[1].b holds a NUL")
    typed = {**key, "Content-Type": "application/json"}
    twice = shop.post("/v1/runs", content=b'{"planner":"p","planner":"q"}', headers=typed)
    assert "twice" in refused(twice, 400, "invalid_request")["detail"]
    refused(shop.post("/v1/runs", content=b"{}", headers=key), 415, "unsupported_media_type")
    refused(shop.post("/v1/runs", json=RUN, headers=key, params={"x": 1}), 400, "invalid_request")
    large = json.dumps({**RUN, "input": "x" * 3 * 1024 * 1024}).encode()
    refused(shop.post("/v1/runs", content=large, headers=typed), 413, "body_too_large")
    unsaid = shop.post("/v1/runs", content=iter([large[:1_500_000], large[1_500_000:]]), headers=typed)
    refused(unsaid, 413, "body_too_large")
    refused(start(shop, "k-1", planner="p" * 201), 400, "invalid_request")
    refused(start(shop, "k-1", principal="svc:root"), 403, "forbidden")
    wrong = refused(shop.put("/v1/runs", json=RUN, headers=key), 405, "method_not_allowed")
    assert wrong["detail"] == "this takes GET, POST"
    refused(shop.get("/v1/runners"), 404, "not_found")
    assert shop.get("/v1/runs", params={"run_key": "k-1"}).json()["runs"] == []


def test_fifty_at_once_are_one_run(api: Api, ledger: LedgerDatabase) -> None:
    together = threading.Barrier(50)

    def one(_: int) -> tuple[int, str]:
        together.wait(60)
        answer = start(client, "stampede")
        return answer.status_code, answer.json()["id"]

    unlimited = httpx2.Limits(max_connections=None)
    with api.client(token(ledger), limits=unlimited) as client, ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(one, range(50)))
    assert sorted(status for status, _ in answers) == [200] * 49 + [201]
    assert len({run for _, run in answers}) == 1
    assert sql(ledger, "SELECT count(*) FROM fencepost.runs WHERE run_key = 'stampede'") == [(1,)]


def test_what_another_producer_has_not_committed_yet_is_in_flight(
    shop: httpx2.Client, ledger: LedgerDatabase
) -> None:
    with psycopg.connect(ledger.dsns["producer"]) as other:
        other.execute(
            "SELECT fencepost.enqueue_run('shop', 'flying', 'p', 1, 'svc:checkout', '{\"order\": \"o-1\"}',"
            " interval '600 s')"
        )
        answer = start(shop, "flying")
        refused(answer, 409, "idempotency_in_flight")
        assert int(answer.headers["retry-after"]) >= 1
        other.commit()
    assert start(shop, "flying").status_code == 200


def test_a_process_killed_between_commit_and_answer_is_asked_again(ledger: LedgerDatabase) -> None:
    bearer = token(ledger)
    with running(ledger, FENCEPOST_FAULT="enqueue.after_commit=crash") as dying:
        with dying.client(bearer) as client, pytest.raises(httpx2.TransportError):
            start(client, "lost-answer")
        dying.child.wait(60)
        assert dying.end() != 0
        assert sql(ledger, "SELECT count(*) FROM fencepost.runs WHERE run_key = 'lost-answer'") == [(1,)]
        dying.env = {}
        dying.start()
        with dying.client(bearer) as client:
            again = start(client, "lost-answer")
    assert (again.status_code, again.headers["idempotent-replayed"]) == (200, "true")
    assert sql(ledger, "SELECT count(*) FROM fencepost.runs WHERE run_key = 'lost-answer'") == [(1,)]


def test_what_belongs_to_another_tenant_is_not_there(api: Api, shop: httpx2.Client) -> None:
    run = start(shop, "ours").json()["id"]
    key = {"Idempotency-Key": "s"}
    with api.client(token(api.database, "bank", "svc:teller")) as bank:
        reason = {"reason": "mine"}

        def ask(run: object) -> list[httpx2.Response]:
            place = f"/v1/runs/{run}"
            return [
                bank.get(place),
                bank.get(f"{place}/events"),
                bank.get(f"{place}/events/stream"),
                bank.post(f"{place}/cancel", json=reason),
                bank.post(f"{place}/signals", json={"name": "go"}, headers=key),
            ]

        nowhere = uuid4()
        for there, missing in zip(ask(run), ask(nowhere), strict=True):
            hidden = refused(there, 404, "not_found")["detail"].replace(run, "X")
            assert hidden == refused(missing, 404, "not_found")["detail"].replace(str(nowhere), "X")
        refused(bank.get("/v1/runs/not-an-id"), 404, "not_found")
        assert bank.get("/v1/runs").json() == {"runs": [], "next": None}
        assert bank.get("/v1/runs", params={"run_key": "ours"}).json()["runs"] == []
        own = start(bank, "ours", principal="svc:teller")
        assert own.status_code == 201  # one key in two tenants is two runs
        assert own.json()["id"] != run
    assert shop.get(f"/v1/runs/{run}").json()["status"] == "QUEUED"


def test_who_may_what_is_the_tokens_word(api: Api, ledger: LedgerDatabase) -> None:
    with api.client(None) as nobody:
        assert nobody.get("/healthz").json() == {"status": "ok"}
        assert nobody.get("/readyz").json() == {"status": "ready"}
        assert nobody.get("/openapi.json").status_code == 200
        asked = nobody.get("/v1/runs")
        refused(asked, 401, "unauthenticated")
        assert asked.headers["www-authenticate"] == 'Bearer realm="fencepost"'
        for text in ("Basic abc", "Bearer", "Bearer nonsense", "bearer fpt_"):
            refused(nobody.get("/v1/runs", headers={"Authorization": text}), 401, "unauthenticated")
    reading = token(ledger, scopes=("runs:read",))
    with api.client(reading) as reader:
        run = start(reader, "no")
        refused(run, 403, "forbidden")
        assert 'error="insufficient_scope", scope="runs:write"' in run.headers["www-authenticate"]
        refused(reader.post(f"/v1/runs/{uuid4()}/cancel", json={"reason": "x"}), 403, "forbidden")
        refused(reader.post(f"/v1/runs/{uuid4()}/signals", json={"name": "x"}), 403, "forbidden")
        assert reader.get("/v1/runs").status_code == 200
        sql(
            ledger,
            "UPDATE fencepost.api_tokens SET revoked_at = now(), revoked_by = 'x' WHERE id = %s",
            reading.split("_")[1],
        )
        gone = reader.get("/v1/runs")
        refused(gone, 401, "unauthenticated")
        assert 'error="invalid_token"' in gone.headers["www-authenticate"]
    short = token(ledger, lifetime=timedelta(seconds=30))
    with api.client(short) as brief:
        assert brief.get("/v1/runs").status_code == 200
        used = sql(ledger, "SELECT last_used_at FROM fencepost.api_tokens WHERE id = %s", short.split("_")[1])
        assert used[0][0] is not None
        sql(ledger, "UPDATE fencepost.clock SET ahead = ahead + interval '31 s'")
        refused(brief.get("/v1/runs"), 401, "unauthenticated")
    right = token(ledger)
    with api.client(right[:-1] + ("A" if right[-1] != "A" else "B")) as forger:
        refused(forger.get("/v1/runs"), 401, "unauthenticated")


def test_lists_are_filtered_and_paged_by_key(api: Api, ledger: LedgerDatabase) -> None:
    with api.client(token(ledger, "pages")) as client:
        made = [start(client, f"p-{n}", planner="a" if n % 2 else "b").json()["id"] for n in range(7)]
        found: list[str] = []
        cursor: dict[str, str] = {}
        while True:
            page = client.get("/v1/runs", params={"limit": 3, **cursor}).json()
            found += [run["id"] for run in page["runs"]]
            if page["next"] is None:
                break
            cursor = {"cursor": page["next"]}
        assert found == made[::-1]
        assert len(client.get("/v1/runs", params={"planner": "a"}).json()["runs"]) == 3
        (one,) = client.get("/v1/runs", params={"run_key": "p-4"}).json()["runs"]
        assert one["id"] == made[4]
        client.post(f"/v1/runs/{made[0]}/cancel", json={"reason": "enough"})
        ended = client.get("/v1/runs", params={"status": "STOPPED,COMPLETED"}).json()["runs"]
        assert [run["id"] for run in ended] == made[:1]
        assert len(client.get("/v1/runs", params={"status": "QUEUED"}).json()["runs"]) == 6
        refused(client.get("/v1/runs", params={"colour": "red"}), 400, "invalid_request")
        refused(client.get("/v1/runs", params={"status": "DONE"}), 400, "invalid_request")


def test_a_cancel_stops_the_run_and_says_who(shop: httpx2.Client, ledger: LedgerDatabase) -> None:
    run = start(shop, "cancel-me").json()["id"]
    refused(shop.post(f"/v1/runs/{run}/cancel", json={"reason": " "}), 400, "invalid_request")
    done = shop.post(f"/v1/runs/{run}/cancel", json={"reason": "the customer called"})
    assert done.status_code == 200
    assert (done.json()["status"], done.json()["stop_reason"]) == ("STOPPED", "cancelled")
    refused(shop.post(f"/v1/runs/{run}/cancel", json={"reason": "again"}), 409, "run_ended")
    said = sql(
        ledger,
        "SELECT principal FROM fencepost.events WHERE run = %s AND type = 'CancelRequested'",
        run,
    )
    assert said[0][0].startswith("svc:checkout/token:")
    page = shop.get(f"/v1/runs/{run}/events", params={"limit": 2}).json()
    assert [event["type"] for event in page["events"]] == ["RunCreated", "CancelRequested"]
    rest = shop.get(f"/v1/runs/{run}/events", params={"after": page["next"]}).json()
    assert [event["type"] for event in rest["events"]] == ["RunStopping", "RunStopped"]
    assert (rest["status"], rest["last_event"]) == ("STOPPED", rest["next"])


def test_a_signal_is_taken_once(shop: httpx2.Client, ledger: LedgerDatabase) -> None:
    run = start(shop, "signal-me").json()["id"]

    def send(key: str, **body: Any) -> httpx2.Response:
        return shop.post(f"/v1/runs/{run}/signals", json=body, headers={"Idempotency-Key": key})

    first = send("s-1", name="paid", body={"amount": 12})
    assert (first.status_code, first.json()["number"]) == (201, 1)
    again = send("s-1", name="paid", body={"amount": 12})
    assert (again.status_code, again.headers["idempotent-replayed"]) == (200, "true")
    assert again.json() == first.json()
    refused(send("s-1", name="paid", body={"amount": 13}), 422, "idempotency_conflict")
    assert send("s-2", name="paid").json()["number"] == 2
    refused(send("s-3", name="big", body="x" * 70_000), 400, "invalid_request")
    refused(send("s-3", nome="x"), 400, "invalid_request")
    refused(shop.post(f"/v1/runs/{run}/signals", json={"name": "x"}), 400, "idempotency_key_required")
    shop.post(f"/v1/runs/{run}/cancel", json={"reason": "enough"})
    refused(send("s-4", name="late"), 409, "run_ended")
    assert send("s-1", name="paid", body={"amount": 12}).status_code == 200
    kept = sql(ledger, "SELECT number, name, sender FROM fencepost.signals WHERE run = %s ORDER BY 1", run)
    assert kept == [(1, "paid", "svc:checkout"), (2, "paid", "svc:checkout")]


def test_a_result_is_told_as_it_was_recorded(shop: httpx2.Client, ledger: LedgerDatabase) -> None:
    run = UUID(start(shop, "with-result").json()["id"])
    text = b'{"total": 1.10, "n": 12345678901234567890}'
    with psycopg.connect(ledger.owner, autocommit=True) as owner:  # as a run that has COMPLETED holds it
        owner.execute("SET session_replication_role = replica")
        owner.execute(
            "WITH kept AS (INSERT INTO fencepost.payloads"
            " VALUES ('shop', encode(sha256(%(t)s), 'hex'), %(t)s) RETURNING digest)"
            " UPDATE fencepost.runs SET result = digest FROM kept WHERE id = %(run)s",
            {"t": text, "run": run},
        )
    answer = shop.get(f"/v1/runs/{run}")
    assert b'"result": {"total": 1.10, "n": 12345678901234567890}}' in answer.content
    assert answer.json()["result"]["total"] == 1.1


def test_wrong_tokens_are_slowed_down_and_no_token_is_in_a_log_or_in_the_ledger(
    ledger: LedgerDatabase,
) -> None:
    bearer = token(ledger, note="canary")
    secret = bearer.split("_", 2)[2]
    with running(ledger) as own:
        with own.client(bearer) as known, own.client(bearer + "x") as guessing:
            start(known, "canary")
            known.get("/v1/runs", params={"access_token": bearer})
            known.get(f"/v1/runs/{bearer}")
            known.get("/v1/runs", headers={"X-Request-Id": "mine"})
            known.get(f"/{bearer}")
            statuses = [guessing.get("/v1/runs").status_code for _ in range(40)]
            assert statuses[:20] == [401] * 20
            assert 429 in statuses
            slowed = next(a for a in iter(lambda: guessing.get("/v1/runs"), None) if a.status_code == 429)
            refused(slowed, 429, "too_many_attempts")
            assert int(slowed.headers["retry-after"]) >= 1
            assert known.get("/v1/runs").status_code == 200
            with own.client(token(ledger)) as unseen:  # never presented before, from the same address
                assert unseen.get("/v1/runs").status_code == 200
        assert own.end(signal.SIGTERM) == 0
    assert "POST /v1/runs 201" in own.log
    assert " mine" in own.log
    assert secret not in own.log
    with psycopg.connect(ledger.owner) as owner:
        tables = owner.execute(
            "SELECT c.oid::regclass::text FROM pg_class c WHERE c.relnamespace = 'fencepost'::regnamespace"
            " AND c.relkind = 'r'"
        ).fetchall()
        assert ("fencepost.api_tokens",) in tables
        for (table,) in tables:
            found = owner.execute(
                f"SELECT count(*) FROM {table} AS t WHERE strpos(t::text, %s) > 0", [secret]
            ).fetchone()
            assert found == (0,), table


def test_a_ledger_that_is_away_is_said_and_nothing_of_it_is_shown(
    shop: httpx2.Client, ledger: LedgerDatabase, postgres: LocalPostgres
) -> None:
    assert start(shop, "away").status_code == 201
    with psycopg.connect(postgres.superuser_dsn, autocommit=True) as owner:
        owner.execute(f"ALTER DATABASE {ledger.name} ALLOW_CONNECTIONS false")
        try:
            owner.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [ledger.name]
            )
            answer = start(shop, "away")  # the first, which is the one that looks
            told = refused(answer, 503, "unavailable")
            assert int(answer.headers["retry-after"]) >= 1
            assert ledger.name not in answer.text
            assert "safe" in told["detail"]
            until("it is not ready", lambda: shop.get("/readyz").status_code == 503)
            assert shop.get("/healthz").status_code == 200
        finally:
            owner.execute(f"ALTER DATABASE {ledger.name} ALLOW_CONNECTIONS true")
    until("it is ready again", lambda: shop.get("/readyz").status_code == 200)
    until("runs are taken again", lambda: start(shop, "away").status_code == 200)
