"""The example of memory and retrieval, on a worker process's parts: its transcript tells what it promises."""

import re
from collections.abc import Iterator

import pytest

from fencepost import Client
from fencepost.ledger.connect import connect
from fencepost_ops.examples import notes
from fencepost_ops.local import LocalPostgres, LocalValkey
from tests.integration.conftest import copied
from tests.integration.memory_shop import Lagging, Library, Memories
from tests.integration.step_shop import opened

QUIET_S = 30  # after which nothing of a write can still land, and it is offset


@pytest.fixture
def memories(
    postgres: LocalPostgres, template: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Memories]:
    with (
        LocalValkey.start() as valkey,
        copied(postgres, template) as database,
        opened(database, valkey, 4, notes.app) as shop,
    ):
        monkeypatch.setenv("FENCEPOST_DSN", database.dsns["worker"])
        yield Memories(shop, Lagging(), Library())
        for space in (notes.near, notes.far):
            assert isinstance(space.spec.store, notes.Behind)
            space.spec.store.close()


def test_its_transcript_tells_what_waits_what_is_stale_and_what_answers_rest_on(memories: Memories) -> None:
    dsns, said = memories.shop.database.dsns, {}
    with (
        Client(dsns["producer"]) as client,
        connect(dsns["reader"], "notes", autocommit=True) as reader,
    ):
        for planner in notes.PLANNERS:
            run = notes.sent(client, planner)
            memories.settle()
            memories.shop.ahead(QUIET_S)
            memories.settle()
            said[planner] = "\n".join(notes.told(reader, run))
    assert re.search(r'near\.read \(read\): .*"version": 2, .*"value": "final"', said["near"])
    assert "rests on near plan at version 2, as of " in said["near"]
    assert said["near"].endswith('COMPLETED {"plan": "final"}')
    assert "verify refuses: far.read (read): version 0 was known, 2 was written" in said["far"]
    assert "far.restore (offset second)" in said["far"]
    assert "rests on" not in said["far"]
    assert said["far"].endswith("STOPPED no_progress")
    assert re.search(r'"stale": \[\{"id": "leave-faq", .*"stale_left_out": 0', said["docs"])
    assert re.findall(r"rests on docs (\S+) at version (\S+),", said["docs"]) == [("leave-policy", "rev-31")]
