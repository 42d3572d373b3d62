"""Replay: the same events give the same rows, and nothing else passes for them."""

import hashlib
import json
import random
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any
from uuid import UUID

import pytest

from fencepost.events import GENESIS, Event, body_digest, body_text, chain_hash
from fencepost.projection import ReplayError, projection_hash, replay, seal
from fencepost.records import reader
from fencepost.subjects import Call, View
from tests.unit.ledger_world import World

LATER = ("resource", "fingerprint", "offset_asked", "offset_left", "proposed", "restored")


@pytest.fixture(scope="module")
def world() -> World:
    world = World(seed=10, runs=1)
    for _ in range(60):
        if not world.step():
            break
    world.drain()
    return world


@pytest.fixture
def history(world: World) -> list[Event]:
    (events,) = world.memory.histories.values()
    assert len(events) > 20
    return list(events)


def rechained(events: list[Event], start: int) -> list[Event]:
    """The history with every link from `start` on made good again, as a forger would."""
    made = events[:start]
    for event in events[start:]:
        head = made[-1].hash if made else GENESIS
        linked = replace(event, seq=len(made) + 1, prev_hash=head, digest=body_digest(event.body))
        made.append(replace(linked, hash=chain_hash(linked)))
    return made


def changes(events: list[Event]) -> Iterator[int]:
    return (event.seq for event in events if event.projection is not None)


def test_every_prefix_of_whole_changes_replays(history: list[Event]) -> None:
    for seq in changes(history):
        view = replay(history[:seq])
        assert (view.run.seq, view.run.head_hash) == (seq, history[seq - 1].hash)
        assert projection_hash(view.run) == history[seq - 1].projection


def test_an_edited_removed_or_swapped_event_is_found(history: list[Event]) -> None:
    middle = len(history) // 2
    edited = [*history]
    edited[middle] = replace(edited[middle], principal="mallory")
    removed = history[:middle] + history[middle + 1 :]
    swapped = [*history]
    swapped[middle], swapped[middle + 1] = swapped[middle + 1], swapped[middle]
    for broken in (edited, removed, swapped):
        with pytest.raises(ReplayError):
            replay(broken)


def test_a_forged_body_in_a_chain_made_good_again_is_found_by_the_projection(history: list[Event]) -> None:
    at = next(n for n, e in enumerate(history) if e.type == "DispatchIntentRecorded")
    body: dict[str, Any] = history[at].data | {"waits": True}
    forged = [*history]
    forged[at] = replace(forged[at], body=body_text(body))
    with pytest.raises(ReplayError, match="differs from the projection"):
        replay(rechained(forged, at))


def test_an_empty_history_proves_nothing() -> None:
    with pytest.raises(ReplayError, match="empty"):
        replay([])


def test_the_sum_of_calls_depends_on_every_call_and_not_on_their_order(world: World) -> None:
    run = world.memory.run(UUID(int=1))
    calls = list(world.memory.calls())
    assert len(calls) > 1
    empty = replace(run, calls_sum=GENESIS)
    totals: set[str] = set()
    for _ in range(5):
        random.Random(len(totals)).shuffle(calls)
        view = View(empty)
        for call in calls:
            view = seal(view.calls, View(view.run, {**view.calls, call.id: call}))
        totals.add(view.run.calls_sum)
    assert totals == {run.calls_sum}


def test_sealing_takes_back_what_a_call_was_before(world: World) -> None:
    run = world.memory.run(UUID(int=1))
    before = {call.id: call for call in world.memory.calls()}
    first: Call = next(iter(before.values()))
    changed = {**before, first.id: replace(first, receipt="another")}
    there = seal(before, View(run, changed))
    assert there.run.calls_sum != run.calls_sum
    assert seal(changed, View(there.run, before)).run.calls_sum == run.calls_sum


def test_a_field_that_came_later_changes_no_recorded_projection_until_it_says_something(world: World) -> None:
    run = replace(world.memory.run(UUID(int=1)), calls_sum=GENESIS)
    later: dict[str, Any] = dict.fromkeys(LATER)
    call = replace(next(iter(world.memory.calls())), **later)

    def total(of: Call) -> str:
        return seal({}, View(run, {of.id: of})).run.calls_sum

    # As the ledger's first version wrote it: the fields up to `version`, and no other.
    names = [f.name for f in fields(Call)]
    first = reader(Call, names[: names.index("version") + 1])(call)
    text = json.dumps(first, separators=(",", ":"), ensure_ascii=False)
    assert total(call) == hashlib.sha256(text.encode()).hexdigest()
    said: list[dict[str, Any]] = [{name: "x"} for name in LATER]
    assert len({total(call), *(total(replace(call, **one)) for one in said)}) == 1 + len(LATER)
