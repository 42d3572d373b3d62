"""What a sweep runs: counted by hand, so that nothing is left out in silence."""

from collections.abc import Iterable, Iterator

import pytest

from fencepost.testing import POINTS
from fencepost_ops.drill.app import CONTRACTS
from fencepost_ops.drill.jobs import Told
from fencepost_ops.drill.protocol import LOSES, WIRES, Fault, Protocol
from fencepost_ops.drill.sweep import (
    BASES,
    CONTRACT_FREE,
    LOOKUP,
    PLAN,
    SHAPES,
    WIRE,
    Base,
    Sweep,
    actions,
    firsts,
    seconds,
    singles,
)

DEDUPES = BASES[0].contract


class Imagined:
    """Histories that pass given points: once without a fault, and once more after each that strikes."""

    def __init__(self, passages: dict[str, int], *, fails: str = "", misses: str = "") -> None:
        self._passages = passages
        self._fails = fails
        self._misses = misses
        self.seen: list[Protocol] = []

    def run(self, histories: Iterable[tuple[int, Protocol]]) -> Iterator[Told]:
        for number, protocol in histories:
            self.seen.append(protocol)
            points = [fault.at for fault in protocol.faults]
            yield Told(
                number,
                protocol,
                ("I1",) if self._fails in points else (),
                passages={p: n + len(points) for p, n in self._passages.items()},
                before={points[0]: protocol.faults[0].nth} if points else {},
                missed=int(self._misses in points),
            )


def told(before: dict[str, int], passages: dict[str, int], first: Fault) -> Told:
    return Told(0, Protocol(name="x", faults=[first]), passages=passages, before=before)


def crash(point: str, nth: int = 1) -> Fault:
    return Fault(at=point, do="crash", nth=nth)


def test_every_class_of_contract_is_swept_in_every_shape() -> None:
    assert {(base.contract, base.shape) for base in BASES} == {(c, s) for c in CONTRACTS for s in SHAPES}
    assert len(BASES) == 6 * 4


@pytest.mark.parametrize("point", sorted(POINTS))
def test_everything_that_can_happen_at_a_point_is_tried(point: str) -> None:
    found = {(a.do, a.for_s, a.host, a.answers) for a in actions(point)}
    assert {
        ("crash", None, False, None),
        ("crash", None, True, None),
        ("pause", None, False, None),
        ("error", None, False, None),
    } <= found
    assert {("pause", 2.0, False, None), ("pause", 40.0, False, None)} <= found
    assert (("lost", None, False, None) in found) == (point in LOSES)
    assert ("delay" in {a.do for a in actions(point)}) == (point in WIRES)
    assert ({a.answers for a in actions(point)} == {None, 200, 502, 504}) == (point in WIRES)
    assert len(found) == len(actions(point)) == 6 + (point in LOSES) + 6 * (point in WIRES)
    for action in actions(point):
        assert action.at(point, 3).nth == 3, "each is a fault a protocol may have"


def test_nothing_may_wait_for_a_person_where_the_fleet_can_find_out() -> None:
    forgiven = {base.contract for base in BASES if base.protocol(crash(WIRE)).expect.waiting != 0}
    assert forgiven == {"neither"}


def test_a_delay_on_the_wire_is_tried_within_the_attempts_time_and_beyond_it() -> None:
    assert sorted(a.for_s or 0 for a in actions(WIRE) if a.do == "delay" and not a.answers) == [2.0, 40.0]


def test_single_faults_strike_at_every_passage() -> None:
    found = singles({"planner.after_claim": 3, WIRE: 2, "dispatch.response_lost": 0})
    assert len(found) == 3 * 6 + 2 * 13
    assert len({(f.at, f.nth, a) for a, f in found}) == len(found), "none twice"
    assert {f.nth for _, f in found if f.at == "planner.after_claim"} == {1, 2, 3}


def test_first_faults_of_pairs_strike_once_at_each_point_and_in_a_compensation_at_its_last_passage() -> None:
    passages = {WIRE: 3, PLAN: 1, "sweep.after_look": 0}
    assert firsts(Base(DEDUPES, "one"), passages) == {(WIRE, 1), (PLAN, 1)}
    assert firsts(Base(DEDUPES, "stop"), passages) == {(WIRE, 1), (WIRE, 3), (PLAN, 1)}
    assert firsts(Base(DEDUPES, "two"), passages) == firsts(Base(DEDUPES, "both"), passages) == set()


def test_second_faults_strike_at_the_next_passage_of_each_point_passed_after_the_first() -> None:
    before = {WIRE: 1, "relay.after_take": 2, "planner.after_claim": 1}
    after = {WIRE: 2, "relay.after_take": 5, "planner.after_claim": 1, "reconcile.after_lookup": 1}
    found = seconds(Base("lookup", "one"), told(before, after, crash(WIRE)))
    assert [(f.at, f.nth, f.do) for f in found] == [
        (WIRE, 2, "crash"),
        (WIRE, 2, "pause"),
        ("reconcile.after_lookup", 1, "crash"),
        ("reconcile.after_lookup", 1, "pause"),
        ("relay.after_take", 3, "crash"),
        ("relay.after_take", 3, "pause"),
    ], "a point that is not passed again is not struck; one that only a recovery passes is"


def test_a_question_meets_everything_that_a_network_does() -> None:
    found = seconds(Base("lookup", "one"), told({WIRE: 1}, {WIRE: 1, LOOKUP: 2}, crash(WIRE)))
    assert {fault.at for fault in found} == {LOOKUP}
    assert {fault.nth for fault in found} == {1}
    assert len(found) == len(actions(LOOKUP))
    assert {fault.answers for fault in found if fault.do == "lost"} == {None, 200, 502, 504}
    base = Base("lookup", "one")
    assert len({base.protocol(crash(WIRE), fault).name for fault in found}) == len(found), "each its own file"


def test_two_points_that_know_of_no_contract_are_paired_for_one_class_only() -> None:
    first, passages = crash("enqueue.after_commit"), {"planner.after_model": 1, WIRE: 1}
    assert {f.at for f in seconds(Base(DEDUPES, "one"), told({}, passages, first))} == passages.keys()
    assert {f.at for f in seconds(Base("lookup", "one"), told({}, passages, first))} == {WIRE}
    assert CONTRACT_FREE.isdisjoint({WIRE, PLAN, "ledger.in_transaction", "reconcile.after_lookup"})


def test_in_the_shape_that_stops_only_what_takes_part_in_the_compensation_is_paired() -> None:
    stop, passages = Base(DEDUPES, "stop"), {WIRE: 3, PLAN: 1}
    assert {f.at for f in seconds(stop, told({WIRE: 1}, passages, crash(WIRE)))} == {PLAN}
    assert {f.at for f in seconds(stop, told({WIRE: 2, PLAN: 1}, passages, crash(PLAN)))} == {WIRE}
    assert {f.at for f in seconds(stop, told({WIRE: 3, PLAN: 1}, {**passages, WIRE: 4}, crash(WIRE, 3)))} == {
        WIRE
    }
    assert seconds(stop, told({WIRE: 2}, passages, crash(WIRE, 2))) == [], "the same as for its first passage"


def test_a_whole_sweep_is_what_its_parts_are() -> None:
    runs = Imagined({WIRE: 1, "reconcile.after_lease": 2})
    sweep = Sweep(runs, bases=[Base("dedupes", "one"), Base("lookup", "two")])
    list(sweep.events())
    result = sweep.result
    assert (result.bases, result.singles) == (2, 2 * (1 * 13 + 2 * 6))
    assert result.pairs == 2 * 2 * 2 * 2, "two points × crash and pause, then two points × crash and pause"
    assert result.pairs_of == {
        (a, b) for a in (WIRE, "reconcile.after_lease") for b in (WIRE, "reconcile.after_lease")
    }
    assert result.ok
    assert result.left_out == 0
    assert len({protocol.to_text() for protocol in runs.seen}) == len(runs.seen) == result.histories


def test_a_budget_tries_each_action_at_each_point_first_and_says_what_it_leaves_out() -> None:
    sweep = Sweep(Imagined({WIRE: 9, "planner.after_claim": 9}), budget=30, bases=[Base("dedupes", "one")])
    list(sweep.events())
    result = sweep.result
    assert (result.singles, result.pairs) == (20, 10)
    assert result.left_out >= 9 * 19 - 20
    assert set(result.by_action) >= {"crash", "pause", "error", "lost", "crash of the host", "delay of 40 s"}


def test_what_fails_and_what_never_struck_are_no_proof() -> None:
    failing, missing = (
        Sweep(Imagined({WIRE: 1}, fails=fails, misses=misses), bases=[Base("dedupes", "two")])
        for fails, misses in ((WIRE, ""), ("", WIRE))
    )
    for sweep in (failing, missing):
        list(sweep.events())
        assert not sweep.result.ok
    assert len(failing.result.failures) == missing.result.never == 13
    assert missing.result.points[WIRE] == 0
