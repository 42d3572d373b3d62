"""Counters of allowances attacked in plain SQL: they move only with what a call has come to (R7)."""

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pytest

from fencepost import commands as c
from fencepost.allowances import Allowance
from fencepost.clock import uuid7
from fencepost.events import EventType
from fencepost.ledger.guards.allowances import CATCHES_UP, RELEASES, STARTS, TAKES
from tests.integration.allowed import NOT_DONE, euros, name, under
from tests.integration.guards_bench import OPERATOR, OWNER, WORKER, Attack, attack
from tests.integration.ledger_bench import TENANT, Bench

ROLES = (WORKER, OPERATOR, OWNER)
MOVE = "UPDATE fencepost.allowances SET event = %s, used_count = %s WHERE allowance = %s"


@dataclass
class Target:
    """A counter with a limit of three, of which two are used, and the call that made it."""

    attack: Attack
    allowance: str
    run: UUID
    call: UUID
    idle: UUID
    """A call of that run that holds nothing."""
    share: dict[str, Any]
    """What the call holds."""
    before: UUID
    """An event of an earlier transaction."""
    tried: bool = False

    def put(self, **columns: Any) -> None:
        names = ", ".join(f"{column} = %s" for column in columns)
        self.attack.force(
            f"UPDATE fencepost.allowances SET {names} WHERE allowance = %s", *columns.values(), self.allowance
        )

    def holds(self, call: UUID | None = None, **changes: Any) -> None:
        """Have a call, the one that holds a share if none is named, hold such a one."""
        share = self.share | changes
        self.attack.put("calls", call or self.call, reserved=json.dumps([share]))
        self.share = share if call is None else self.share

    def event(self, kind: str, call: UUID | None = None, **changes: Any) -> UUID:
        """An event of a call, of the one that holds a share if none is named; an attempt tells of it, but for
        `changes`.
        """
        body = {"reserved": [self.share | changes]} if kind == STARTS else {}
        return self.attack.event(self.run, call or self.call, kind, body=body)[1]

    def update(
        self, kind: str | None, role: str | None = WORKER, said: dict[str, Any] | None = None, **columns: Any
    ) -> str | None:
        """Attempt a change of the counter with an event of that type, that says `said` or what an honest one
        would.
        """
        if self.tried:  # an event within a savepoint would not be one of this transaction's own
            self.attack.connection.execute("RELEASE SAVEPOINT attempt")
        self.tried = True
        if said is not None and kind is not None:
            event = self.attack.event(self.run, self.call, kind, body=said)[1]
        else:
            event = uuid7() if kind is None else self.event(kind)
        change = {"event": event} | columns
        names = ", ".join(f"{column} = %s" for column in change)
        statement = f"UPDATE fencepost.allowances SET {names} WHERE allowance = %s"
        return self.attack.attempt(statement, *change.values(), self.allowance, role=role)


@pytest.fixture
def target(bench: Bench) -> Iterator[Target]:
    few = name()
    with under(bench, Allowance(id=few, count=3)) as allowed:
        call, second = allowed.calls(2)
        assert isinstance(allowed.claimed(call), c.Send)
        assert isinstance(allowed.claimed(second), c.Send)
        run = bench.call(call).run
        (share,) = json.loads(str(bench.call(call).reserved))
        before = bench.events(run)[-1].id
        idle = allowed.planned([bench.order()])[0]
        with attack(bench) as attacked:
            attacked.put("calls", idle, run=run, ordinal=99)
            yield Target(attacked, few, run, call, idle, share, before)


def test_a_counter_rises_and_falls_with_the_events_that_say_so_and_with_no_other(target: Target) -> None:
    for kind in EventType:
        assert target.update(kind, used_count=3) == (None if kind in TAKES else "FP004"), kind
        assert target.update(kind, used_count=1) == (None if kind in RELEASES else "FP004"), kind


def test_an_event_that_lets_nothing_go_has_a_counter_rise_only_where_it_tells_of_shares(
    target: Target,
) -> None:
    target.holds(count=3)
    for kind in CATCHES_UP:
        assert target.update(kind, used_count=5) == "FP004", kind
        assert target.update(kind, said={"reserved": []}, used_count=5) == "FP004", kind
        assert target.update(kind, said={"reserved": [target.share | {"key": "k"}]}, used_count=5) == "FP004"
        assert target.update(kind, said={"reserved": [target.share]}, used_count=5) is None, (
            target.attack.said
        )
        assert target.update(kind, said={"reserved": [target.share]}, used_count=1) == "FP004", kind


def test_no_event_is_no_reason_and_an_old_one_was_one_before(target: Target) -> None:
    changes: list[dict[str, Any]] = [{"used_count": 3}, {"used_count": 1}, {"used_minor": 5}]
    for role, columns in itertools.product(ROLES, [*changes, {"limit_count": 99}]):
        assert target.update(None, role, **columns) == "FP004"
        assert target.update(None, role, event=target.before, **columns) == "FP004"
        assert target.update(None, role, event=None, **columns) == "FP004"


def test_no_attempt_goes_beyond_the_limit_it_was_let_go_by_but_what_came_to_light_counts(
    target: Target,
) -> None:
    target.holds(count=2, minor=6)
    assert target.update(STARTS, used_count=4) == "FP003"
    money: dict[str, Any] = {"limit_minor": 5, "currency": "EUR"}
    spends = {"reserved": [target.share | money]}
    assert target.update(STARTS, said=spends, used_count=3, used_minor=6, **money) == "FP003"
    assert target.update(STARTS, said=spends, used_count=3, used_minor=5, **money) is None, target.attack.said
    more = {"reserved": [{"key": "other"}, target.share | {"limit_count": 4}]}
    assert target.update(STARTS, said=more, used_count=4, limit_count=4) is None
    assert target.update("RepairRequested", used_count=4) is None


@pytest.mark.parametrize(
    "limits", [{"limit_count": None}, {"limit_count": 9}, {"limit_minor": 9}, {"currency": "EUR"}]
)
def test_an_attempt_is_let_go_by_the_limits_it_tells_of_and_by_no_others(
    target: Target, limits: dict[str, Any]
) -> None:
    for role in ROLES:
        assert target.update(STARTS, role, used_count=3) is None
        assert target.update(STARTS, role, used_count=3, **limits) == "FP004", (
            "another limit than it tells of"
        )
        said: dict[str, Any]
        for said in ({}, {"reserved": []}, {"reserved": [target.share | limits]}):
            assert target.update(STARTS, role, said=said, used_count=3) == "FP004", said
        other = {"reserved": [target.share | {"key": "other"}]}
        assert target.update(STARTS, role, said=other, used_count=3) == "FP004", "a share of another counter"


@pytest.mark.parametrize("end", ["since", "until"])
def test_a_window_is_that_of_the_attempt_let_go(target: Target, end: str) -> None:
    """One that ended long ago would be forgotten, with all that is used of it."""
    for role in ROLES:
        said = {"reserved": [target.share | {end: "2020-01-01T00:00:00Z"}]}
        assert target.update(STARTS, role, said=said, used_count=3) == "FP004"
        assert "its window is that of the attempt" in target.attack.said
        target.attack.force(
            f"UPDATE fencepost.allowances SET {end} = '2020-01-01' WHERE allowance = %s", target.allowance
        )
        assert target.update(STARTS, role, used_count=3) == "FP004"
        assert target.update(STARTS, role, said=said, used_count=3) is None, target.attack.said
        target.attack.force(
            f"UPDATE fencepost.allowances SET {end} = %s WHERE allowance = %s",
            target.share[end],
            target.allowance,
        )


@pytest.mark.parametrize("kind", sorted({*TAKES, *RELEASES}))
def test_what_becomes_of_a_call_that_has_no_share_moves_no_counter(target: Target, kind: str) -> None:
    used = 1 if kind in RELEASES else 3
    for call, expected in ((target.idle, "FP004"), (uuid7(), "FP004"), (target.call, None)):
        event = target.event(kind, call)
        assert target.attack.attempt(MOVE, event, used, target.allowance) == expected, target.attack.said
        target.attack.connection.execute("RELEASE SAVEPOINT attempt")


@pytest.mark.parametrize("how", ["UPDATE", "SAVEPOINT one; UPDATE; RELEASE SAVEPOINT one"])
def test_a_counter_moves_once_in_a_transaction_whatever_its_events_say(target: Target, how: str) -> None:
    first, second = target.event("ToolAttemptFailed"), target.event("CallCancelled")
    again = target.event(STARTS)
    session = target.attack.connection
    session.execute("SET LOCAL ROLE fencepost_worker")
    for part in how.split("; "):
        session.execute(*((MOVE, [first, 1, target.allowance]) if part == "UPDATE" else (part,)))
    session.execute("RESET ROLE")
    for role, (event, used) in itertools.product(ROLES, ((first, 0), (second, 0), (again, 2))):
        assert target.attack.attempt(MOVE, event, used, target.allowance, role=role) == "FP004"
        assert "in this transaction" in target.attack.said


def test_a_counter_is_never_below_nothing(target: Target) -> None:
    target.holds(count=3, minor=1)
    assert target.update("ToolAttemptFailed", used_count=-1) == "23514"
    assert target.update("ToolAttemptFailed", used_minor=-1) == "23514"


def test_no_counter_moves_by_more_than_the_calls_have_for_which_it_does(target: Target, bench: Bench) -> None:
    target.holds(count=1, minor=5)
    for role in ROLES:
        assert target.update("RepairRequested", role, used_count=3, used_minor=5) is None, target.attack.said
        assert target.update("RepairRequested", role, used_count=4) == "FP004"
        assert target.update("RepairRequested", role, used_minor=6) == "FP004"
        assert target.update("ToolAttemptFailed", role, used_count=0) == "FP004"
        assert "less" in target.attack.said
    session = target.attack.connection
    session.execute("RELEASE SAVEPOINT attempt")
    target.tried = False
    given = target.event("CallCancelled", target.idle)
    for told in ([], [target.event("CallCancelled")], [given], [given, given], [target.before]):
        assert target.update("ToolAttemptFailed", presented_events=told, used_count=0) == "FP004", told
    target.holds(target.idle, count=1)
    assert target.update("ToolAttemptFailed", presented_events=[given], used_count=0) is None
    assert target.update("RepairRequested", presented_events=[given], used_count=4) == "FP004", "it gave back"
    assert not bench.sql("SELECT 1 FROM fencepost.allowances WHERE presented_events IS NOT NULL")


def test_a_counter_does_not_become_another(target: Target) -> None:
    changes: list[tuple[str, Any]] = [
        ("tenant", "other"),
        ("key", "other"),
        ("allowance", "other"),
        ("since", "2026-01-01T00:00:00Z"),
        ("until", "2026-01-01T00:00:00Z"),
        ("first_call", target.run),
    ]
    for column, value in changes:
        assert target.update("ToolAttemptStarted", **{column: value}) == "FP001", column


def test_a_new_counter_is_unused(target: Target) -> None:
    statement = (
        "INSERT INTO fencepost.allowances (tenant, key, allowance, first_call, used_count, used_minor)"
        " VALUES (%s, %s, 'new', %s, %s, %s)"
    )
    for used, expected in (((0, 0), None), ((1, 0), "FP001"), ((0, 1), "FP001")):
        assert target.attack.attempt(statement, TENANT, str(uuid7()), target.call, *used) == expected


def test_a_counter_is_forgotten_only_a_day_after_its_window(target: Target) -> None:
    gone = "DELETE FROM fencepost.allowances WHERE allowance = %s"
    whens = (("NULL", "FP004"), ("23 hours 59 minutes", "FP004"), ("24 hours 1 minute", None))
    for role, (ends, expected) in itertools.product(ROLES, whens):
        ended = "NULL" if ends == "NULL" else f"fencepost.now() - interval '{ends}'"
        target.attack.force(
            f"UPDATE fencepost.allowances SET until = {ended} WHERE allowance = %s", target.allowance
        )
        assert target.attack.attempt(gone, target.allowance, role=role) == expected, ends


SHARE = json.dumps([{"key": "k"}], separators=(",", ":"))


@pytest.mark.parametrize(
    ("kind", "body", "reserved", "expected"),
    [
        ("ToolAttemptStarted", {"reserved": [{"key": "k"}]}, SHARE, None),
        ("ToolAttemptStarted", {"reserved": [{"key": "other"}]}, SHARE, "FP001"),
        ("ToolAttemptStarted", {}, SHARE, "FP001"),
        ("ToolAttemptStarted", {"reserved": [{"key": "k"}]}, None, "FP001"),
        ("RepairRequested", {"reserved": [{"key": "k"}]}, SHARE, "FP001"),
    ],
)
def test_what_a_call_holds_changes_only_as_its_attempt_says(
    bench: Bench, kind: str, body: dict[str, Any], reserved: str | None, expected: str | None
) -> None:
    run = bench.start()
    call = bench.debit(run, bench.order())
    with attack(bench) as attacked:
        attacked.put("calls", call, owner="holder", fence=5, reserved="[]" if reserved is None else None)
        said = {"attempt": 1, "worker": "next", "fence": 6, "body": body}
        text = json.dumps(body, separators=(",", ":"))
        seq, identity, _ = attacked.event(run, call, kind, **said)
        attacked.force("UPDATE fencepost.events SET body = %s::json WHERE id = %s", text, identity)
        change = {"presented_owner": "next", "presented_fence": 6, "owner": "next", "fence": 6}
        change |= {"version": seq, "reserved": reserved}
        if kind == "ToolAttemptStarted":
            change |= {"state": "DISPATCHING", "attempts": 1}
        assert attacked.update("calls", call, change) == expected, attacked.said


@pytest.mark.parametrize(
    ("kind", "stands", "told", "expected"),
    [
        ("LeaseAcquired", {"restored": 1}, "k", None),
        ("LeaseAcquired", {"restored": 1}, "other", "FP001"),
        ("LeaseAcquired", {"restored": None}, "k", "FP001"),
        ("LeaseAcquired", {"restored": 1, "reserved": "[]"}, "k", "FP001"),
        ("LeaseAcquired", {"restored": 1, "attempts": 1}, "k", "FP001"),
        ("ToolOutcomeMarkedUnknown", {"restored": 1}, "k", "FP001"),  # that is the recovering office's
    ],
)
def test_what_a_restored_call_holds_is_told_once_by_who_takes_it_up(
    bench: Bench, kind: str, stands: dict[str, Any], told: str, expected: str | None
) -> None:
    run = bench.start()
    call = bench.debit(run, bench.order())
    with attack(bench) as attacked:
        attacked.put("calls", call, state="UNKNOWN", doubt=True, owner="holder", fence=5, **stands)
        text = json.dumps({"reserved": [{"key": told}]}, separators=(",", ":"))
        seq, identity, _ = attacked.event(run, call, kind, worker="next", fence=6)
        attacked.force("UPDATE fencepost.events SET body = %s::json WHERE id = %s", text, identity)
        change = {"presented_owner": "next", "presented_fence": 6, "owner": "next", "fence": 6}
        assert attacked.update("calls", call, change | {"version": seq, "reserved": SHARE}) == expected, (
            attacked.said
        )


def test_no_call_begins_with_a_share(bench: Bench) -> None:
    run = bench.start()
    call = bench.debit(run, bench.order())
    with attack(bench) as attacked:
        columns = "tenant, %s, run, turn, ordinal + 1, label, tool, tool_version, effect, scope, arguments"
        more = "arguments_hash, required, 'INTENT_RECORDED', ready_at, %s, 'holder', 5, %s"
        attacked.put("runs", run, status="PLANNING", owner="holder", fence=5)
        other = uuid7()
        seq, _, _ = attacked.event(run, other, "DispatchIntentRecorded")
        names = "tenant, id, run, turn, ordinal, label, tool, tool_version, effect, scope, arguments"
        rest = (
            "arguments_hash, required, state, ready_at, version, presented_owner, presented_fence, reserved"
        )
        statement = (
            f"INSERT INTO fencepost.calls ({names}, {rest})"
            f" SELECT {columns}, {more} FROM fencepost.calls WHERE id = %s"
        )
        assert attacked.attempt(statement, other, seq, SHARE, call) == "FP001"
        assert "with a past" in attacked.said
        assert attacked.attempt(statement, other, seq, None, call) is None, attacked.said


def test_a_batch_moves_a_counter_by_what_all_its_calls_take_and_give_back(bench: Bench) -> None:
    few = name()
    spends = Allowance(id=few, spend=euros(10_000), count=9)

    def at_once(*told: tuple[UUID, str]) -> bool:
        """Whether these events of calls are of one transaction, and the batch was not split."""
        calls, kinds = zip(*told, strict=True)
        return bool(
            bench.sql(
                "SELECT count(DISTINCT xmin::text), count(*) FROM fencepost.events WHERE (call, type) IN"
                " (SELECT * FROM unnest(%s::uuid[], %s::text[]))",
                list(calls),
                list(kinds),
            )
            == [(1, len(told))]
        )

    with under(bench, spends) as allowed:
        small, large = allowed.calls(3, minor=100), allowed.calls(2, minor=250)
        batch = [allowed.claim(call) for call in small]
        sent = bench.ledger.apply(batch)
        assert at_once(*((call, STARTS) for call in small))
        assert allowed.used(few) == [(3, 300)]
        ends = [
            bench.outcome(send, claim.term, NOT_DONE)
            for send, claim in zip(sent, batch, strict=True)
            if isinstance(send, c.Send)
        ]
        bench.ledger.apply([ends[0], *(allowed.claim(call) for call in large)])
        assert at_once((small[0], "ToolAttemptFailed"), *((call, STARTS) for call in large))
        assert allowed.used(few) == [(4, 700)]
        bench.ledger.apply(ends[1:])
        assert at_once(*((call, "ToolAttemptFailed") for call in small[1:]))
        assert allowed.used(few) == [(2, 500)]
