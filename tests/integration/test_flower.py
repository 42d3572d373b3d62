"""Flower as `fencepost up` starts it, beside a broker and no worker: it looks, and changes nothing."""

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
import redis

from fencepost.states import Queue
from fencepost_ops.fleet import FLOWER_ENV, flower_command
from fencepost_ops.local import LocalValkey
from fencepost_ops.ports import free_port

WITHIN_S = 60.0


def asked(url: str, method: str = "GET") -> tuple[int, str]:
    """Status and body; status 0 while nobody answers."""
    request = urllib.request.Request(url, method=method)  # noqa: S310 - our own, on this machine
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError as error:
        return 0, str(error)


def lengths(base: str) -> dict[str, int]:
    """Of its queues, once it answers."""
    end = time.monotonic() + WITHIN_S
    while (answer := asked(f"{base}/api/queues/length"))[0] != 200:
        assert time.monotonic() < end, answer
        time.sleep(0.05)
    return {queue["name"]: queue["messages"] for queue in json.loads(answer[1])["active_queues"]}


@pytest.fixture
def valkey() -> Iterator[LocalValkey]:
    running = [LocalValkey.start()]
    yield running[0]
    running[0].stop()


def test_it_shows_the_queues_takes_nothing_changes_nothing_and_outlives_its_broker(
    valkey: LocalValkey,
) -> None:
    base = f"http://127.0.0.1:{(port := free_port())}"
    paths = {"PYTHONPATH": os.pathsep.join(sys.path), "FENCEPOST_REDIS_URL": valkey.url()}
    flower = subprocess.Popen(flower_command(port), env={**os.environ, **paths, **FLOWER_ENV})
    again: LocalValkey | None = None
    try:
        assert lengths(base) == {str(queue): 0 for queue in Queue}
        with redis.Redis.from_url(valkey.url()) as client:
            for queue in Queue:
                client.lpush(queue, "{}", "{}")
            assert asked(f"{base}/api/workers?refresh=1") == (200, "{}")
            assert lengths(base) == {str(queue): 2 for queue in Queue}
            for order in ("task/send-task/fencepost.planner", "task/revoke/x", "worker/shutdown/x"):
                assert asked(f"{base}/api/{order}", "POST")[0] == 403
            assert [client.llen(queue) for queue in Queue] == [2] * len(Queue)
        valkey.stop()
        assert asked(f"{base}/api/queues/length")[0] == 500
        again = valkey.again()
        assert lengths(base) == {str(queue): 0 for queue in Queue}
        with redis.Redis.from_url(again.url()) as client:
            client.lpush(Queue.PLANNER, "{}")
            assert lengths(base)["planner"] == 1
        assert flower.poll() is None
    finally:
        flower.terminate()
        flower.wait(30)
        if again is not None:
            again.stop()
