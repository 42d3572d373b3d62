"""I5 for every event: who recorded it held a term of the run, or of one of its calls."""

from collections.abc import Iterator

import pytest

from fencepost.events import Event
from fencepost_ops.local import LocalPostgres
from tests.integration.checker_world import World, built, copy_of, forged, like, place, sentence

Events = list[Event]


@pytest.fixture(scope="module")
def original(postgres: LocalPostgres, template: dict[str, str]) -> Iterator[World]:
    with built(postgres, template) as world:
        yield world


@pytest.fixture(scope="module")
def world(original: World, postgres: LocalPostgres) -> Iterator[World]:
    """One world for all: whoever forges a history in it forges it back."""
    with copy_of(original, postgres) as made:
        yield made


@pytest.mark.parametrize(
    "kind",
    [
        "RunStopped",
        "RunStopping",
        "CompensationRequested",
        "CompensationDeferred",
        "DispatchIntentRecorded",
        "AuthorizationAllowed",
        "ToolAttemptStarted",
    ],
)
def test_whatever_is_recorded_by_a_worker_that_held_no_term_is_found(world: World, kind: str) -> None:
    fence = 1 if kind in ("RunStopping", "CompensationDeferred") else 99

    def zombie(events: Events) -> Events:
        at = place(events, kind)
        return [*events[:at], like(events[at], worker="zombie", fence=fence), *events[at + 1 :]]

    with forged(world, world.stopped, zombie):
        said = sentence(world.check(), "I5")
        assert f"({kind}): recorded under fence {fence} of zombie, which held no term of this run" in said


def test_that_a_worker_held_no_term_is_found_of_a_request_for_repair_too(world: World) -> None:
    def zombie(events: Events) -> Events:
        at = place(events, "RepairRequested")
        return [*events[:at], like(events[at], worker="zombie"), *events[at + 1 :]]

    with forged(world, world.waiting, zombie):
        assert "of zombie, which held no term" in sentence(world.check(), "I5")
