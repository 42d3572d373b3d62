"""Shrinking, on protocols that fail for a reason we choose."""

from collections.abc import Callable

import pytest

from fencepost_ops.drill.explore import explored
from fencepost_ops.drill.protocol import Asked, Event, Fault, Limits, Protocol
from fencepost_ops.drill.shrink import candidates, shrink, size

Rule = Callable[[Protocol], bool]


def fails_if(rule: Rule, kind: str = "I1") -> Callable[[Protocol], tuple[str, ...]]:
    return lambda protocol: (kind, "I6") if rule(protocol) else ("I6",)


def crashes(point: str) -> Rule:
    return lambda protocol: any(f.at == point and f.do == "crash" for f in protocol.faults)


BIG = Protocol(
    name="big",
    seed=77,
    runs=[
        Asked(planner="stop", input={"contract": "lookup"}, at_s=1.0),
        Asked(),
        Asked(turns=2, tenant="other"),
    ],
    limits=Limits(attempts=2),
    faults=[
        Fault(at="planner.after_claim", do="pause", nth=2),
        Fault(at="dispatch.after_effect", do="crash", nth=3, host=True),
        Fault(at="relay.after_take", do="error"),
        Fault(at="dispatch.before_wire", do="delay", for_s=4.0),
    ],
    events=[
        Event(at_s=1.234, do="redis_away"),
        Event(at_s=2.0, do="redis_back"),
        Event(at_s=3.0, do="cancel", run=2),
        Event(at_s=4.0, do="sweep"),
    ],
    interleave=4711,
    persons=True,
)


def test_shrinking_ends_when_it_has_taken_long_enough() -> None:
    looks = iter([False] * 3 + [True])
    found = shrink(BIG, ["I1"], fails_if(lambda _protocol: False), over=lambda: next(looks))
    assert (found.tries, found.cut_short, found.protocol) == (3, True, BIG)


def test_what_does_not_matter_goes() -> None:
    found = shrink(BIG, ["I1", "I6"], fails_if(crashes("dispatch.after_effect")))
    assert found.kind == "I1"
    assert size(found.protocol) == (1, 1, 0)
    (fault,) = found.protocol.faults
    assert (fault.nth, fault.host) == (1, False)
    assert (found.protocol.seed, found.protocol.interleave, found.protocol.persons) == (0, None, False)
    assert found.protocol.limits == Limits()
    assert found.protocol.runs == [Asked(input={"contract": "dedupes"})] or found.protocol.runs == [Asked()]
    assert found.protocol.name == "big"


def test_what_matters_stays() -> None:
    def rule(protocol: Protocol) -> bool:
        cancels = [e for e in protocol.events if e.do == "cancel"]
        third = any(e.run is not None and protocol.runs[e.run].tenant == "other" for e in cancels)
        return third and protocol.interleave is not None and crashes("dispatch.after_effect")(protocol)

    found = shrink(BIG, ["I1"], fails_if(rule)).protocol
    assert size(found) == (1, 1, 1)
    assert found.events == [Event(at_s=0.0, do="cancel", run=0)], "its run has moved up"
    assert found.interleave == 0


def test_it_must_fail_in_the_same_way() -> None:
    found = shrink(BIG, ["I1", "I6"], fails_if(lambda protocol: len(protocol.faults) >= 2))
    assert len(found.protocol.faults) == 2, "I6 fails always, and is not what was looked for"


def test_no_candidate_leaves_redis_away() -> None:
    for candidate in candidates(BIG):
        kinds = [event.do for event in candidate.events]
        assert kinds.count("redis_away") <= kinds.count("redis_back")
    found = shrink(BIG, ["I1"], fails_if(lambda protocol: any(e.do == "redis_away" for e in protocol.events)))
    assert [event.do for event in found.protocol.events] == ["redis_away", "redis_back"]


@pytest.mark.parametrize("number", range(20))
def test_it_ends_even_where_everything_fails(number: int) -> None:
    found = shrink(explored(3, number), ["I1"], fails_if(lambda _: True))
    assert size(found.protocol) == (1, 0, 0)
    assert not found.cut_short
    assert found.tries < 100


def test_it_gives_up_in_time_and_says_so() -> None:
    found = shrink(BIG, ["I1"], fails_if(lambda _: False), tries=5)
    assert (found.protocol, found.tries, found.cut_short) == (BIG, 5, True)
