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
from fencepost.ledger.guards.allowances import CATCHES_UP, RELEASES, TAKES
from tests.integration.allowed import name, under
from tests.integration.guards_bench import OPERATOR, OWNER, WORKER, Attack, attack
from tests.integration.ledger_bench import TENANT, Bench

ROLES = (WORKER, OPERATOR, OWNER)


@dataclass
class Target:
    """A counter with a limit of three, of which two are used, and the call that made it."""

    attack: Attack
    allowance: str
    run: UUID
    call: UUID
    before: UUID
    """An event of an earlier transaction."""
    tried: bool = False

    def put(self, **columns: Any) -> None:
        names = ", ".join(f"{column} = %s" for column in columns)
        self.attack.force(
            f"UPDATE fencepost.allowances SET {names} WHERE allowance = %s", *columns.values(), self.allowance
        )

    def update(
        self, kind: str | None, role: str | None = WORKER, said: dict[str, Any] | None = None, **columns: Any
    ) -> str | None:
        """Attempt a change of the counter with an event of that type."""
        if self.tried:  # an event within a savepoint would not be one of this transaction's own
            self.attack.connection.execute("RELEASE SAVEPOINT attempt")
        self.tried = True
        event = (
            self.attack.event(self.run, self.call, kind, **({"body": said} if said else {}))[1]
            if kind is not None
            else uuid7()
        )
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
        with attack(bench) as attacked:
            yield Target(attacked, few, run, call, bench.events(run)[-1].id)


def test_a_counter_rises_and_falls_with_the_events_that_say_so_and_with_no_other(target: Target) -> None:
    for kind in EventType:
        assert target.update(kind, used_count=3) == (None if kind in TAKES else "FP004"), kind
        assert target.update(kind, used_count=1) == (None if kind in RELEASES else "FP004"), kind


def test_an_event_that_lets_nothing_go_has_a_counter_rise_only_where_it_tells_of_shares(
    target: Target,
) -> None:
    for kind in CATCHES_UP:
        assert target.update(kind, used_count=5) == "FP004", kind
        assert target.update(kind, said={"reserved": []}, used_count=5) is None, target.attack.said
        assert target.update(kind, said={"reserved": []}, used_count=1) == "FP004", kind


def test_no_event_is_no_reason_and_an_old_one_was_one_before(target: Target) -> None:
    changes: list[dict[str, Any]] = [{"used_count": 3}, {"used_count": 1}, {"used_minor": 5}]
    for role, columns in itertools.product(ROLES, [*changes, {"limit_count": 99}]):
        assert target.update(None, role, **columns) == "FP004"
        assert target.update(None, role, event=target.before, **columns) == "FP004"
        assert target.update(None, role, event=None, **columns) == "FP004"


def test_no_attempt_goes_beyond_the_limit_it_was_let_go_by_but_what_came_to_light_counts(
    target: Target,
) -> None:
    assert target.update("ToolAttemptStarted", used_count=4) == "FP003"
    assert target.update("ToolAttemptStarted", used_count=3, used_minor=6, limit_minor=5) == "FP003"
    assert target.update("ToolAttemptStarted", used_count=4, limit_count=4) is None
    assert target.update("RepairRequested", used_count=4) is None


def test_a_counter_is_never_below_nothing(target: Target) -> None:
    assert target.update("ToolAttemptFailed", used_count=-1) == "23514"
    assert target.update("ToolAttemptFailed", used_minor=-1) == "23514"


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
