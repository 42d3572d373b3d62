"""The pure parts of the drill of users' tools: books in every form, what is swept, what is said."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from fencepost import BookedEffect, Request, Response, UsageError
from fencepost.testing import POINTS
from fencepost_ops.checker import Report, Totals
from fencepost_ops.drill.outcome import Outcome
from fencepost_ops.drill.protocol import LOSES, Protocol
from fencepost_ops.drill.users import plan, probe
from fencepost_ops.drill.users.downstream import is_loopback
from fencepost_ops.drill.users.entries import Entry, grown, read_entries
from fencepost_ops.drill.users.exchanges import Received, response_of
from fencepost_ops.drill.users.played import Played
from fencepost_ops.examples import wrong_tools as tools

AT = datetime(2030, 1, 1, tzinfo=UTC)


@dataclass
class Kept:
    id: int
    key: str


@pytest.mark.parametrize(
    ("book", "known"),
    [
        ([{"id": "r-1", "key": "k"}], [("k", "r-1")]),
        (lambda: [{"receipt": "r-1", "idempotency_key": "k"}], [("k", "r-1")]),
        (lambda _since, _until: [BookedEffect("r-1", AT, key="k")], [("k", "r-1")]),
        ([Kept(7, "k")], [("k", "7")]),
        ({"k": "r-1"}, [("k", "r-1")]),
        ({"k": {"id": "r-1"}}, [("k", "r-1")]),
        (["just text"], [(None, None)]),
        (lambda: 2, [(None, None), (None, None)]),
        ((), []),
    ],
)
def test_a_book_is_read_in_every_form(book: Any, known: list[Any]) -> None:
    assert [(one.key, one.receipt) for one in read_entries(book, None)] == known


def test_a_test_says_where_its_book_has_the_key() -> None:
    (entry,) = read_entries([{"id": "r-1", "ref": "k"}], lambda one: one["ref"])
    assert (entry.key, entry.receipt) == ("k", "r-1")


@pytest.mark.parametrize("book", ["text", lambda: None, lambda _one: [], 3.5])
def test_what_is_no_book_is_refused(book: Any) -> None:
    with pytest.raises(UsageError, match="book="):
        read_entries(book, None)


def test_a_service_answers_in_short_or_in_full() -> None:
    assert response_of((201, {"id": 1})) == Response(201, {"content-type": "application/json"}, b'{"id": 1}')
    assert response_of((204, None)).body == b""
    assert response_of((503, "later", {"Retry-After": 5})).headers["retry-after"] == "5"
    with pytest.raises(UsageError, match="status, value"):
        response_of({"id": 1})


def test_a_request_tells_its_parts() -> None:
    request = Received("GET", "https://a.test/by?ref=x%20y", {"idempotency-key": "k"}, b'{"a": 1}')
    assert (request.path, request.query, request.key, request.json()) == (
        "/by",
        {"ref": "x y"},
        "k",
        {"a": 1},
    )


@pytest.mark.parametrize(
    ("target", "own"),
    [
        ("http://127.0.0.1:80/x", True),
        ("http://[::1]/x", True),
        ("http://localhost:9/x", True),
        ("http://bank.localhost/x", True),
        ("https://localhost.example.com/x", False),
        ("https://10.0.0.1/x", False),
        ("https://api.example.com", False),
    ],
)
def test_only_loopback_is_this_machine(target: str, own: bool) -> None:
    assert is_loopback(target) is own


def case(name: str) -> plan.Case:
    tool = tools.app.tool(name)
    return plan.Case(name, tool, plan.wanted(tool, {"input": {}}))


def test_every_point_is_swept_with_everything_at_every_passage() -> None:
    passages = {"dispatch.after_claim": 1, "relay.after_publish": 3, "ledger.in_transaction": 2}
    faults = plan.singles(passages, ("*",))
    assert len({(one.at, one.do, one.nth) for one in faults}) == len(faults) == 1 * 3 + 3 * 4 + 2 * 4
    assert faults[0].at == "dispatch.after_claim"  # what is nearest to the request comes first
    assert {one.at for one in plan.singles(passages, ("relay.*",))} == {"relay.after_publish"}
    assert Counter(one.do for one in faults)["lost"] == sum(
        passages[point] for point in LOSES if point in passages
    )


def test_the_wire_is_swept_first_and_not_twice() -> None:
    passages = {"dispatch.before_wire": 1, "dispatch.response_lost": 1}
    invited = [one.faults[0] for one in plan.invited(case("right.dedupes"), passages) if one.faults]
    singles = plan.singles(passages, ("*",))
    known = [(one.at, one.do, one.nth, one.for_s, one.answers) for one in [*invited, *singles]]
    assert known[:2] == [(point, "lost", 1, None, None) for point in plan.LOST]
    assert len(set(known)) == len(known)


def test_a_contract_invites_the_end_of_its_window_and_its_latest_landing() -> None:
    histories = {one.name: one for one in plan.invited(case("right.dedupes"), {"dispatch.before_wire": 1})}
    spec = tools.app.tool("right.dedupes").dependency
    last = tools.DAY - spec.margin - spec.per_attempt - tools.SETTLE - timedelta(seconds=1)
    window = histories["right.dedupes.window"]
    assert [(one.do, one.at_s) for one in window.events] == [
        ("redis_away", 1.0),
        ("redis_back", last.total_seconds()),
    ]
    assert window.runs[0].deadline_s > last.total_seconds()
    late = histories["right.dedupes.network.late"].faults[0]
    assert late.for_s == pytest.approx((spec.per_attempt + tools.SETTLE).total_seconds() - 0.1)
    assert not any(one.endswith(".window") for one in _names("right.lookup"))
    assert not any("gateway" in one for one in _names("right.python"))


def _names(name: str) -> list[str]:
    return [one.name for one in plan.invited(case(name), {})]


def test_a_protocol_without_runs_gets_the_run_of_the_call() -> None:
    one = case("right.lookup")
    bare = Protocol(name="mine")
    assert one.completed(bare).runs == [one.run]
    own = one.run.model_copy(update={"deadline_s": 7.0})
    assert one.completed(Protocol(name="mine", runs=[own])).runs == [own]


def test_a_long_name_hides_no_case_and_no_history() -> None:
    name = "t" * 96 + ".x y"
    run = case("right.lookup").run
    long = plan.Case(
        name, tools.app.tool("right.lookup"), run, run.model_copy(update={"run_key": plan.OTHER})
    )
    faults = plan.singles(dict.fromkeys(POINTS, 3), ("*",))
    pairs = [
        (a, b) for a in faults[:40] for b in faults if plan.paired(b.at) and (a.at, a.nth) != (b.at, b.nth)
    ]
    protocols = [*plan.invited(long, dict.fromkeys(POINTS, 3)), *map(long.struck, faults)]
    protocols += [long.struck(*pair) for pair in pairs]
    names = [one.name for one in protocols]
    assert len(set(names)) == len(names)
    assert max(map(len, names)) <= 100
    cases = {one.name.rpartition(".")[2]: played(one).case for one in protocols if len(one.runs) > 1}
    assert cases == {"again": "again", "other": "other"}
    assert {played(one).case for one in protocols if len(one.runs) == 1} == {None}
    renamed = next(one for one in protocols if len(one.runs) > 1).model_copy(update={"name": "mine"})
    assert played(renamed).case == "again"


def played(protocol: Protocol) -> Played:
    outcome = Outcome(protocol, (), (), 0, 0.0, (), (), {}, 0, (), Report((), Totals(0, 0, 0, 0, 0, 0, 0, 0)))
    return Played(outcome, (), (), (), ())


@pytest.mark.parametrize("pattern", ["dispach.*", "dispatch", "", "relay.after_publish "])
def test_a_pattern_of_no_point_is_refused(pattern: str) -> None:
    plan.check_patterns(("*", "dispatch.*", "relay.after_publish"))
    with pytest.raises(UsageError, match="matches no fault point"):
        plan.check_patterns(("dispatch.*", pattern))


def entries(*told: tuple[str | None, str | None, str]) -> list[Entry]:
    return [Entry(*one) for one in told]


ONE, TWO = ("k", "r-1", "paid"), ("k", "r-2", "paid")
NO_ID, CHANGED = ("k", None, "at 10:00"), ("k", None, "at 10:05")


@pytest.mark.parametrize(
    ("before", "now", "fresh", "gone"),
    [
        ([], [ONE], ["receipt r-1"], []),
        ([ONE], [ONE], [], []),
        ([ONE], [ONE, TWO], ["receipt r-2"], []),
        ([ONE], [TWO, ONE], ["receipt r-2"], []),  # the newest first
        ([ONE], [ONE, ONE], ["receipt r-1"], []),
        ([ONE], [("k", "r-1", "refunded")], [], []),  # the same effect, of which more is said
        ([ONE], [TWO], ["receipt r-2 (in the book in the place of receipt r-1)"], ["receipt r-1"]),
        ([NO_ID], [CHANGED], ["at 10:05 (in the book in the place of at 10:00)"], ["at 10:00"]),
        ([ONE], [], [], ["receipt r-1"]),
        ([ONE, TWO], [TWO], [], ["receipt r-1"]),
    ],
)
def test_what_is_new_in_a_book_and_what_it_lost(
    before: list[Any], now: list[Any], fresh: list[str], gone: list[str]
) -> None:
    new, lost = grown(entries(*before), entries(*now))
    assert ([one.named for one in new], [one.named for one in lost]) == (fresh, gone)


def test_differences_are_told_by_their_place() -> None:
    assert probe.differ('{"a": {"b": [1, 2]}}', '{"a": {"b": [1, 3]}}') == ["a.b[1]: 2 ≠ 3"]
    assert probe.differ("x", "y") == ["x ≠ y"]
    assert probe.differ("x", "x") == []


@pytest.mark.parametrize("name", ["right.dedupes", "right.lookup", "right.python", "wrong.narrow"])
def test_pure_parts_are_not_accused(name: str) -> None:
    tool, args = tools.app.tool(name), tools.Order(order="o-1")
    assert probe.unlike_intents(tool, args) == []
    assert probe.unlike_requests(tool, args, "k") == []


def test_a_clock_of_whole_seconds_is_found_too() -> None:
    tool = tools.app.tool("right.dedupes")
    slow = replace(tool, request=lambda a: Request.post("/c", json={"ref": f"{a.order}-{int(time.time())}"}))
    (line,) = probe.unlike_requests(slow, tools.Order(order="o-1"), "k")
    assert line.startswith("body ref: o-1-")
