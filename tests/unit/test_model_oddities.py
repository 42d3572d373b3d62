"""Every field of an answer, on every wire, with every oddity: the very calls, fewer of them, or no turn."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest

from fencepost.models import Wire
from fencepost.proposals import Validated
from fencepost_ops.drill.model_table import CALLS, FIELDS
from fencepost_ops.sandbox.provider_oddities import SPELLED, Oddity, fields_of, odd
from fencepost_workers.models.answers import TURNS, Answer
from tests.unit.model_wires import WIRES, Event, heard, judged
from tests.unit.test_model_order import REPLY, told

ENDS = {Wire.RESPONSES: "response.completed", Wire.MESSAGES: "message_stop"}


def spoilt(events: list[Event]) -> Iterator[tuple[str, Oddity, list[Event]]]:
    for field in fields_of(events):
        for oddity in Oddity:
            yield field, oddity, odd(events, field, oddity)


def meant(wire: Wire, answer: Answer) -> list[str]:
    """The calls that would be made, as they are recorded."""
    found = [judged(call) for call in answer.calls]
    return [one.arguments for one in found if isinstance(one, Validated)]


@pytest.mark.parametrize("wire", WIRES)
def test_no_oddity_of_a_field_makes_another_call(wire: Wire) -> None:
    whole, came = meant(wire, heard(wire, told(wire))), Counter[bool]()
    assert len(whole) == 2
    for field, oddity, events in spoilt(told(wire)):
        answer = heard(wire, events)
        made = meant(wire, answer)
        assert made == [one for one in whole if one in made], (field, oddity)
        assert answer.ending in TURNS or not answer.calls
        came[made == whole] += 1
    assert came[True] > came[False]


@pytest.mark.parametrize("wire", WIRES)
def test_no_oddity_of_a_field_stands_for_the_end_of_an_answer(wire: Wire) -> None:
    events = told(wire)
    stop = [n for n, event in enumerate(events) if event.get("type") == ENDS.get(wire, "")]
    end = stop[0] if stop else len(events) - 2  # of Chat the last is its usage
    for field, oddity, cut in spoilt(events[:end]):
        assert heard(wire, cut).ending not in TURNS, (field, oddity)


@pytest.mark.parametrize("wire", WIRES)
def test_no_oddity_of_a_field_makes_a_call_of_arguments_that_break_off(wire: Wire) -> None:
    short = REPLY.with_last_arguments(REPLY.calls[-1].arguments[:-4])
    first = meant(wire, heard(wire, told(wire)))[:1]
    for field, oddity, events in spoilt(told(wire, short)):
        assert meant(wire, heard(wire, events)) in ([], first), (field, oddity)


def test_the_matrix_of_chat_has_every_field_that_is_sent() -> None:
    sent = set(fields_of(told(Wire.CHAT, replace(REPLY, thoughts=()))))
    assert sent <= {field.path for field in FIELDS}
    spelled = [row for field in FIELDS for row in field.rows() if row.rule["oddity"] in SPELLED]
    assert {row.on[Wire.CHAT].result for row in spelled} > {CALLS}
