"""Events told twice, out of their order or not at all: no turn, or the very calls, in their order."""

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations

import pytest

from fencepost.models import Wire
from fencepost.proposals import Validated
from fencepost_ops.sandbox import provider_wires
from fencepost_ops.sandbox.provider_replies import TOOL, Call, Reply
from fencepost_workers.models.answers import TURNS
from tests.unit.model_wires import WIRES, Event, heard, judged

CALLS = (Call("c1", "pay", '{"to": "acct_9", "amount_minor": 120000}'), Call("c2", "pay", '{"to": "acct_7"}'))
REPLY = Reply("a", "m", "I pay.", CALLS, stop=TOOL, thoughts=("Hm.", "", "And yet."))


Spoiling = Callable[[Sequence[Event]], Iterator[list[Event]]]


def told(wire: Wire, reply: Reply = REPLY) -> list[Event]:
    """The events of a provider's whole answer."""
    lines = b"".join(piece.data for piece in provider_wires.events(wire, reply, usage=True)).split(b"\n")
    return [json.loads(line[6:]) for line in lines if line.startswith(b"data: {")]


def twice(events: Sequence[Event]) -> Iterator[list[Event]]:
    for n in range(len(events)):
        yield [*events[: n + 1], *events[n:]]


def swapped(events: Sequence[Event]) -> Iterator[list[Event]]:
    for one, other in combinations(range(len(events)), 2):
        found = list(events)
        found[one], found[other] = events[other], events[one]
        yield found


def cut(events: Sequence[Event]) -> Iterator[list[Event]]:
    for n in range(len(events)):
        yield list(events[:n])


@pytest.mark.parametrize("spoilt", [twice, swapped, cut])
@pytest.mark.parametrize("wire", WIRES)
def test_no_call_comes_of_events_that_are_not_in_their_order(wire: Wire, spoilt: Spoiling) -> None:
    whole, proposed, tried = heard(wire, told(wire)).calls, 0, 0
    assert [(call.name, call.arguments) for call in whole] == [(one.name, one.arguments) for one in CALLS]
    for events in spoilt(told(wire)):
        answer, tried = heard(wire, events), tried + 1
        if answer.ending in TURNS:
            taken = [call for call in answer.calls if isinstance(judged(call), Validated)]
            assert taken == [call for call in whole if call in taken]
            proposed += 1
    # What is numbered is taken in its order alone, but for the first, which says nothing; elsewhere a text
    # may come again, and spoil the arguments of one call.
    assert proposed <= (1 if wire is Wire.RESPONSES else tried - 1)
