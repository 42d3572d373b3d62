"""Streams of events: in order, none twice, none left out, whatever process serves them; and their cost."""

import itertools
import json
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from uuid import UUID

import httpx2
import psycopg
import pytest

from fencepost import commands as c
from fencepost.outcomes import Applied
from fencepost_ops.local import LocalPostgres
from tests.awaiting import until
from tests.integration.api_process import Api, Frame, frames, running, start, token
from tests.integration.conftest import copied
from tests.integration.ledger_bench import Bench, open_bench

STREAMS = 10


@pytest.fixture(scope="module")
def bench_of_streams(postgres: LocalPostgres, template: dict[str, str]) -> Iterator[Bench]:
    with copied(postgres, template) as database, open_bench(database) as bench:
        yield bench


@pytest.fixture(scope="module")
def api(bench_of_streams: Bench) -> Iterator[Api]:
    env = {"FENCEPOST_API_STREAMS": str(2 * STREAMS), "FENCEPOST_API_HEARTBEAT_S": "0.3"}
    with running(bench_of_streams.database, **env) as process:
        yield process


def one_call(bench: Bench, run: UUID) -> None:
    """A turn, and a call that succeeds."""
    (call,) = bench.plan(run, ("wallet.debit", {"order": bench.order()}))
    term = bench.term()
    send = bench.one(bench.claim_call(run, call, term))
    assert isinstance(send, c.Send)
    assert bench.one(bench.outcome(send, term, Applied('{"id":"d"}', "d"))) == c.Done("SUCCEEDED")


def stream(client: httpx2.Client, run: object, **headers: str) -> AbstractContextManager[httpx2.Response]:
    return client.stream("GET", f"/v1/runs/{run}/events/stream", headers=headers)


def rest(told: Iterator[Frame], seen: list[Frame]) -> None:
    """Read on until the stream ends, or breaks."""
    for frame in told:
        seen.append(frame)  # noqa: PERF402 - what came before it broke counts


def sessions(bench: Bench) -> int:
    (row,) = bench.sql(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'fencepost %%'"
        " AND usename LIKE 'fencepost_api%%'"
    )
    return int(row[0])


def test_a_stream_is_resumed_at_another_process_without_a_gap(api: Api, bench_of_streams: Bench) -> None:
    bench = bench_of_streams
    seen: list[Frame] = []
    with api.client(token(api.database)) as client:
        run = UUID(start(client, "resumed", on_stop="leave").json()["id"])
        one_call(bench, run)
        with stream(client, run) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            told = frames(answer.iter_lines())
            seen += itertools.islice(told, 5)
            api.end(signal.SIGKILL)
            with pytest.raises(httpx2.TransportError):
                rest(told, seen)
        one_call(bench, run)
    api.start()
    with api.client(token(api.database)) as client:
        with stream(client, run, **{"Last-Event-ID": str(seen[-1].id)}) as answer:
            told = frames(answer.iter_lines())
            late = threading.Thread(
                target=client.post, args=(f"/v1/runs/{run}/cancel",), kwargs={"json": {"reason": "enough"}}
            )
            late.start()
            seen += told  # until the run has ended, and the stream with it
            late.join()
        assert (seen[-1].event, seen[-1].data["status"]) == ("end", "STOPPED")
        kept = bench.sql("SELECT seq, type FROM fencepost.events WHERE run = %s ORDER BY seq", run)
        assert [(frame.id, frame.event) for frame in seen[:-1]] == kept
        leases = [frame.data["body"] for frame in seen if frame.event == "LeaseAcquired"]
        assert leases
        assert all(set(body) == {"fence"} for body in leases)  # our processes are no tenant's business
        over = client.get(f"/v1/runs/{run}/events/stream", headers={"Last-Event-ID": str(seen[-1].id)})
        assert over.status_code == 204  # by which a browser comes back no more
        with stream(client, run) as answer:
            assert [frame.id for frame in frames(answer.iter_lines())][:-1] == [seq for seq, _ in kept]


def test_many_streams_hold_no_session_and_no_more_than_there_may_be(
    api: Api, bench_of_streams: Bench
) -> None:
    bench = bench_of_streams
    bearer = token(api.database)
    with ExitStack() as stack, api.client(bearer, limits=httpx2.Limits(max_connections=None)) as client:
        runs = [UUID(start(client, f"many-{n}").json()["id"]) for n in range(STREAMS)]
        answers = [stack.enter_context(stream(client, run)) for run in runs]
        assert {answer.status_code for answer in answers} == {200}
        with stream(client, runs[0]) as one_more:
            assert one_more.status_code == 503
            assert int(one_more.headers["retry-after"]) >= 1
            assert json.loads(one_more.read())["code"] == "overloaded"
        assert sessions(bench) <= 8  # FENCEPOST_POOL_SIZE, of its pools together
        for run in runs:
            one_call(bench, run)
        for answer in answers:  # each gets what is its own
            heard = list(itertools.islice(frames(answer.iter_lines()), 3))
            assert [frame.id for frame in heard] == [1, 2, 3]
        with api.client(token(api.database, "bank")) as other:
            mine = start(other, "mine").json()["id"]
            place = stack.enter_context(stream(other, mine))
            assert place.status_code == 200  # a tenant has half of all places at most
    with api.client(bearer) as client:

        def free() -> bool:
            with stream(client, runs[0]) as answer:
                return answer.status_code == 200

        until("the places of readers that have gone are free again", free)


def test_a_stream_beats_and_ends_with_its_token(api: Api, bench_of_streams: Bench) -> None:
    bearer = token(api.database)
    with api.client(bearer) as client:
        run = start(client, "revoked").json()["id"]
        with stream(client, run) as answer:
            lines = answer.iter_lines()
            assert next(line for line in lines if line.startswith(":")) == ": still here"
            with psycopg.connect(api.database.owner, autocommit=True) as owner:
                owner.execute(
                    "UPDATE fencepost.api_tokens SET revoked_at = now(), revoked_by = 'x' WHERE id = %s",
                    [bearer.split("_")[1]],
                )
            began = time.monotonic()
            assert [frame.event for frame in frames(lines)] == ["revoked"]
            assert time.monotonic() - began < 2


def test_whoever_reads_is_told_that_the_process_ends(api: Api, bench_of_streams: Bench) -> None:
    with api.client(token(api.database)) as client:
        run = start(client, "drained").json()["id"]
        with stream(client, run) as answer:
            lines = answer.iter_lines()
            next(lines)
            began = time.monotonic()
            api.child.send_signal(signal.SIGTERM)
            assert [frame.event for frame in frames(lines)] == ["drain"]
        assert api.end() == 0
    assert time.monotonic() - began < 25  # FENCEPOST_DRAIN_S is 30: nothing was waited for
