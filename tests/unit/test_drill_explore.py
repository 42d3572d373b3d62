"""Random protocols: pure, sane, and of every kind."""

from collections import Counter

from fencepost.testing import POINTS
from fencepost_ops.drill.explore import TIMELESS, explored
from fencepost_ops.drill.protocol import parse_protocol
from fencepost_ops.drill.sweep import HOPELESS

MANY = [explored(7, number) for number in range(1, 801)]


def test_a_seed_and_a_number_give_one_protocol() -> None:
    assert explored(7, 3) == explored(7, 3) == MANY[2]
    assert explored(7, 3) != explored(7, 4)
    assert explored(7, 3).model_copy(update={"name": ""}) != explored(8, 3).model_copy(update={"name": ""})


def test_every_one_is_a_file_that_can_be_read_again() -> None:
    for protocol in MANY[:300]:
        assert parse_protocol(protocol.to_text(), "it") == protocol


def test_everything_occurs() -> None:
    faults = [fault for protocol in MANY for fault in protocol.faults]
    assert {fault.at for fault in faults} == POINTS
    assert {fault.do for fault in faults} == {"crash", "pause", "error", "lost", "delay"}
    assert {len(protocol.faults) for protocol in MANY} >= {0, 1, 2, 3, 4, 5}
    assert any(fault.host for fault in faults)
    asked = [fault for fault in faults if fault.at == "reconcile.before_lookup"]
    assert {fault.answers for fault in asked} == {None, 200, 502, 504}
    assert {fault.do for fault in asked} >= {"lost", "delay"}
    events = {event.do for protocol in MANY for event in protocol.events}
    assert events == {"wipe_redis", "redis_away", "redis_back", "jump_clock", "double_messages",
                      "lose_messages", "turn_messages", "cancel", "sweep"}  # fmt: skip
    jumps = [event.seconds or 0 for p in MANY for event in p.events if event.do == "jump_clock"]
    assert min(jumps) < 0 < max(jumps)
    hasty = [p for p in MANY if any((event.seconds or 0) > 0 for event in p.events)]
    assert len(hasty) > 20
    assert {run.input["contract"] for p in hasty for run in p.runs} == TIMELESS
    runs = [run for protocol in MANY for run in protocol.runs]
    assert {run.planner for run in runs} == {"one", "two", "both", "stop"}
    assert len({run.input["contract"] for run in runs}) == 6
    assert {run.on_stop for run in runs} == {"compensate", "leave"}
    for name in ("turns", "calls", "attempts"):
        assert len({getattr(run, name) for run in runs}) > 2
    assert {protocol.persons for protocol in MANY} == {True, False}
    assert {protocol.interleave is None for protocol in MANY} == {True, False}


def test_in_every_third_nothing_may_wait_for_a_person() -> None:
    patient = [protocol for protocol in MANY if protocol.expect.waiting == 0]
    assert patient == MANY[2::3]
    assert not any(protocol.persons for protocol in patient)
    assert not any(run.input["contract"] in HOPELESS for protocol in patient for run in protocol.runs)
    assert sum(bool(protocol.faults) for protocol in patient) > len(patient) / 2


def test_intents_collide_between_runs() -> None:
    collide = 0
    for protocol in MANY:
        meant = Counter(
            (run.tenant, run.input["contract"], run.input["reference"])
            for run in protocol.runs
            if "reference" in run.input
        )
        collide += any(count > 1 for count in meant.values())
    assert collide > 50


def test_redis_always_comes_back() -> None:
    for protocol in MANY:
        away = False
        for event in sorted(protocol.events, key=lambda event: event.at_s):
            away = event.do == "redis_away" or (away and event.do != "redis_back")
        assert not away, protocol.name
