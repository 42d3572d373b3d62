"""Keys attacked in plain SQL: a key says what its call says, and is handed on only when that has ended."""

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from fencepost.clock import uuid7
from fencepost.states import CALL_AT_REST, CALL_ENDS, OperationStatus
from tests.integration.guards_bench import OPERATOR, OWNER, WORKER, Attack, attack
from tests.integration.ledger_bench import TENANT, Bench

ROLES = (WORKER, OPERATOR, OWNER)
STATUS_OF = {
    "SUCCEEDED": "completed",
    "FAILED": "failed",
    "REJECTED": "released",
    "CANCELLED": "released",
    "ACCEPTED_UNKNOWN": "unknown",
}
DOUBTFUL = {"UNKNOWN", "NEEDS_REPAIR"}
DEAD = {"REJECTED", "FAILED", "CANCELLED"}


class KeyTarget:
    """A key, the call that holds it, and three more calls of the run, one of which offsets it."""

    def __init__(self, attack: Attack, run: UUID, calls: list[UUID]) -> None:
        self.attack, self.run = attack, run
        self.call, self.second, self.undo, self.third = calls
        what = "operation, arguments_hash FROM fencepost.calls WHERE id = %s"
        ((self.key, self.hash),) = attack.force(f"SELECT {what}", self.call)
        self.sent, _, _ = attack.event(run, self.call, "ToolAttemptStarted")
        ((self.before,),) = attack.force("SELECT version FROM fencepost.calls WHERE id = %s", self.call)
        for other in (self.second, self.third):
            attack.put("calls", other, operation=self.key, arguments_hash=self.hash)

    def put(self, **columns: Any) -> None:
        """Put the key into any state, guards off."""
        names = ", ".join(f'"{name}" = %s' for name in columns)
        statement = f"UPDATE fencepost.operations SET {names} WHERE key = %s"
        self.attack.force(statement, *columns.values(), self.key)

    def hold(self, state: str, **columns: Any) -> None:
        """Put its holder into a state."""
        self.attack.put(
            "calls",
            self.call,
            **({"state": state, "doubt": state in DOUBTFUL, "version": self.sent} | columns),
        )

    def offsetting(self, state: str | None) -> None:
        """Have the third call offset the key, being in this state."""
        columns = {"compensates": self.key, "state": state} if state else {"compensates": None}
        self.attack.put("calls", self.undo, **columns)

    def update(self, role: str | None = WORKER, **columns: Any) -> str | None:
        names = ", ".join(f'"{name}" = %s' for name in columns)
        statement = f"UPDATE fencepost.operations SET {names} WHERE key = %s"
        return self.attack.attempt(statement, *columns.values(), self.key, role=role)


@pytest.fixture(scope="module")
def planned(module_bench: Bench) -> tuple[UUID, list[UUID]]:
    """A run with four unsent calls, never changed: every attack is undone."""
    run, order = module_bench.start(), module_bench.order()
    tools = ("wallet.debit", "wallet.note", "wallet.hold", "wallet.refund")
    return run, module_bench.plan(run, *((tool, {"order": order}) for tool in tools))


@pytest.fixture
def target(module_bench: Bench, planned: tuple[UUID, list[UUID]]) -> Iterator[KeyTarget]:
    with attack(module_bench) as opened:
        yield KeyTarget(opened, *planned)


# -- birth, identity, death ------------------------------------------------------------------------------

FREE: dict[str, Any] = {
    "tenant": TENANT,
    "key": "k",
    "scope": "s",
    "arguments_hash": "",
    "status": "released",
}
PAST = {
    "arguments_hash": "1:x",
    "status": "completed",
    "doubt": True,
    "run": uuid7(),
    "call": uuid7(),
    "first_sent_at": "2026-01-01T00:00:00Z",
    "expires_at": "2026-01-01T00:00:00Z",
    "receipt": "r",
    "result": "d",
    "preview": "p",
    "reused": 1,
    "proof": uuid7(),
    "releases": True,
    "untrusted": True,
}


def born(target: KeyTarget, role: str | None = WORKER, **columns: Any) -> str | None:
    values = FREE | columns
    names, places = ", ".join(f'"{n}"' for n in values), ", ".join(["%s"] * len(values))
    statement = f"INSERT INTO fencepost.operations ({names}) VALUES ({places})"
    return target.attack.attempt(statement, *values.values(), role=role)


@pytest.mark.parametrize(("column", "past"), sorted(PAST.items()))
def test_a_key_begins_free_and_with_no_past(target: KeyTarget, column: str, past: Any) -> None:
    for role in ROLES:
        assert born(target, role) is None
        assert born(target, role, **{column: past}) == "FP001"


@pytest.mark.parametrize("status", sorted(set(OperationStatus) - {"released"}))
def test_a_key_begins_with_no_status_but_released(target: KeyTarget, status: str) -> None:
    assert born(target, status=status) == "FP001"


@pytest.mark.parametrize(
    "columns",
    [
        {"tenant": "x"},
        {"key": "x"},
        {"scope": "x"},
        {"first_sent_at": "2026-01-01T00:00:01Z"},
        {"first_sent_at": None},
    ],
)
def test_a_keys_identity_and_first_send_never_change(target: KeyTarget, columns: dict[str, Any]) -> None:
    target.put(first_sent_at="2026-01-01T00:00:00Z")
    target.hold("DISPATCHING", attempts=1)
    assert target.update(status="open") is None
    for role in ROLES:
        assert target.update(role, **columns) == "FP001"


def test_keys_are_never_forgotten(target: KeyTarget) -> None:
    for statement in ("DELETE FROM fencepost.operations", "TRUNCATE fencepost.operations"):
        assert target.attack.attempt(statement) == "42501"
        assert target.attack.attempt(statement, role=OWNER) == "FP004"


# -- as its holder ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", sorted(CALL_AT_REST))
def test_a_key_has_the_status_of_the_call_that_holds_it(target: KeyTarget, state: str) -> None:
    target.hold(state)
    doubt = state in DOUBTFUL
    for role in ROLES:
        accepted = {s for s in OperationStatus if target.update(role, status=s, doubt=doubt) is None}
        assert accepted == {STATUS_OF.get(state, "open")}
        assert {target.update(role, status=s, doubt=doubt) for s in OperationStatus} == {None, "FP001"}


@pytest.mark.parametrize("state", sorted(CALL_AT_REST))
@pytest.mark.parametrize("doubt", [True, False])
def test_a_keys_doubt_is_that_of_the_call_that_holds_it(target: KeyTarget, state: str, doubt: bool) -> None:
    target.hold(state, doubt=doubt)
    status = STATUS_OF.get(state, "open")
    for role in ROLES:
        assert target.update(role, status=status, doubt=doubt) is None
        assert target.update(role, status=status, doubt=not doubt) == "FP003"


@pytest.mark.parametrize("column", ["run", "call", "arguments_hash"])
@pytest.mark.parametrize("made_up", [True, False])
def test_a_key_is_held_by_a_call_of_its_own(target: KeyTarget, column: str, made_up: bool) -> None:
    target.hold("FAILED")
    wrong: dict[str, Any] = {"run": uuid7(), "call": uuid7(), "arguments_hash": "1:x"}
    for role in ROLES:
        assert target.update(role, **{"status": "failed", column: wrong[column] if made_up else None}) in (
            "FP001",
            "23502",
        )


def test_a_key_is_not_held_by_another_keys_call_or_another_tenants(target: KeyTarget) -> None:
    target.put(status="released", call=None, run=None)
    target.attack.put("calls", target.second, state="INTENT_RECORDED")
    held: dict[str, Any] = {"status": "open", "call": target.second, "run": target.run}
    assert target.update(**held) is None
    target.attack.put("calls", target.second, operation="another")
    assert target.update(**held) == "FP001"
    target.attack.put("calls", target.second, operation=target.key, tenant="other")
    assert target.update(**held) == "FP001"


RESULT: dict[str, Any] = {"receipt": "r-1", "result": "d-1", "preview": "p-1", "proof": uuid7()}


@pytest.mark.parametrize("state", sorted(CALL_ENDS))
@pytest.mark.parametrize("column", sorted(RESULT))
def test_a_settled_keys_result_is_that_of_its_call(target: KeyTarget, state: str, column: str) -> None:
    target.hold(state, **RESULT)
    settled = {"status": STATUS_OF[state]}
    for role in ROLES:
        assert target.update(role, **settled, **RESULT) is None
        other = uuid7() if column == "proof" else "x"
        assert target.update(role, **(settled | RESULT | {column: other})) == "FP001"
        assert target.update(role, **(settled | RESULT | {column: None})) == "FP001"
    assert target.update(**settled) == "FP001", "none at all"


@pytest.mark.parametrize("column", sorted(RESULT))
def test_an_open_key_gets_no_result(target: KeyTarget, column: str) -> None:
    target.hold("DISPATCHING")
    assert target.update(status="open") is None
    assert target.update(status="open", **{column: RESULT[column]}) == "FP001"


def test_a_key_leaves_doubt_only_by_a_new_proof_of_its_call(target: KeyTarget) -> None:
    old, new = uuid7(), uuid7()
    target.put(doubt=True, proof=old)
    target.hold("SUCCEEDED", proof=new)
    cleared: dict[str, Any] = {"status": "completed", "doubt": False}
    for role in ROLES:
        assert target.update(role, **cleared, proof=new) is None
        assert target.update(role, **cleared, proof=uuid7()) in {"FP001", "FP003"}
    target.hold("SUCCEEDED", proof=old)
    assert target.update(**cleared) == "FP003"
    target.hold("SUCCEEDED", proof=None)
    assert target.update(**cleared, proof=None) == "FP003"
    target.hold("UNKNOWN", proof=new)
    assert target.update(status="open", doubt=False, proof=new) == "FP003"


# -- handed on -------------------------------------------------------------------------------------------


def taken(target: KeyTarget, role: str | None = WORKER) -> str | None:
    return target.update(role, call=target.second, run=target.run, status="open")


@pytest.mark.parametrize("status", sorted(OperationStatus))
def test_a_key_is_handed_on_only_when_released_or_failed(target: KeyTarget, status: str) -> None:
    target.hold("FAILED")
    target.put(status=status)
    for role in ROLES:
        assert taken(target, role) == (None if status in {"released", "failed"} else "FP001")
    target.put(doubt=True)
    assert taken(target) == "FP003"


@pytest.mark.parametrize("state", sorted(CALL_AT_REST))
@pytest.mark.parametrize("status", ["released", "failed"])
def test_a_key_is_handed_on_only_by_a_call_that_ended_without_effect(
    target: KeyTarget, status: str, state: str
) -> None:
    target.put(status=status)
    target.hold(state)
    for role in ROLES:
        assert taken(target, role) == (None if state in DEAD else "FP001")
    target.hold(state, doubt=True)
    assert taken(target) == "FP001"


def test_a_key_does_not_lose_its_holder(target: KeyTarget) -> None:
    target.hold("FAILED")
    target.put(status="failed")
    for role in ROLES:
        assert target.update(role, call=None, run=None, status="released") == "FP001"


# -- sent and reused -------------------------------------------------------------------------------------


def test_a_key_is_first_sent_by_an_attempt_and_not_in_the_future(target: KeyTarget) -> None:
    sent = "UPDATE fencepost.operations SET status = 'open', first_sent_at = {} WHERE key = %s"
    now = sent.format("fencepost.now()")
    target.hold("INTENT_RECORDED", attempts=0)
    for role in ROLES:
        assert target.attack.attempt(now, target.key, role=role) == "FP001"
    target.hold("DISPATCHING", attempts=1)
    for role in ROLES:
        assert target.attack.attempt(now, target.key, role=role) is None
        for later in ("fencepost.now() + interval '1 s'", "'infinity'"):
            assert target.attack.attempt(sent.format(later), target.key, role=role) == "FP001"


def test_what_its_contract_says_of_failures_is_noted_as_a_key_is_sent(target: KeyTarget) -> None:
    for attempts, refused in ((0, "FP001"), (1, None)):
        target.hold("DISPATCHING", attempts=attempts)
        for role in ROLES:
            assert target.update(role, status="open", releases=True) == refused


def test_what_is_not_sent_changes_no_window(target: KeyTarget) -> None:
    for change in ({"first_sent_at": "2026-01-01T00:00:00Z"}, {"expires_at": None}, {"releases": True}):
        target.put(expires_at="2026-02-01T00:00:00Z", releases=False)
        if "first_sent_at" not in change:
            target.put(first_sent_at="2026-01-01T00:00:00Z")
        for version, code in ((target.before, "FP001"), (target.sent, None)):
            target.hold("DISPATCHING", attempts=1, version=version)
            for role in ROLES:
                assert target.update(role, status="open", **change) == code, (change, target.attack.said)


def test_what_a_key_was_sent_as_is_what_its_attempt_tells(target: KeyTarget) -> None:
    target.hold("DISPATCHING", attempts=1)
    assert target.update(status="open", meaning="m") == "FP001", "its attempt says nothing of the kind"
    target.put(meaning="m")
    assert target.update(status="open", meaning=None) == "FP001"
    target.hold("FAILED")
    target.put(status="failed")
    passed_on: dict[str, Any] = {"call": target.second, "run": target.run, "status": "open"}
    assert target.update(**passed_on) == "FP001", "its new holder was never sent"
    assert target.update(**passed_on, meaning=None) is None


def test_a_window_opens_with_the_first_send(target: KeyTarget) -> None:
    target.hold("DISPATCHING", attempts=1)
    first = "2026-01-01T00:00:00Z"
    assert target.update(status="open", expires_at=first) == "FP001", "never sent"
    assert target.update(status="open", first_sent_at=first, expires_at=first) is None
    before = "2025-12-31T23:59:59Z"
    assert target.update(status="open", first_sent_at=first, expires_at=before) == "FP001"


@pytest.mark.parametrize("state", sorted(CALL_AT_REST))
def test_only_a_completed_keys_result_is_taken_and_it_stays_taken(target: KeyTarget, state: str) -> None:
    target.put(reused=2)
    target.hold(state)
    same = {"status": STATUS_OF.get(state, "open"), "doubt": state in DOUBTFUL}
    for role in ROLES:
        assert target.update(role, **same, reused=2) is None
        assert target.update(role, **same, reused=1) == "FP001"
        assert target.update(role, **same, reused=3) == (None if state == "SUCCEEDED" else "FP001")


# -- offset ----------------------------------------------------------------------------------------------

OFFSETTING: dict[str | None, set[str]] = {
    None: {"completed"},
    "AWAITING_APPROVAL": {"completed"},
    "INTENT_RECORDED": {"completed"},
    "DISPATCHING": {"completed", "compensating"},
    "UNKNOWN": {"completed", "compensating"},
    "NEEDS_REPAIR": {"completed", "compensating"},
    "ACCEPTED_UNKNOWN": {"completed", "compensating"},
    "SUCCEEDED": {"completed", "compensated"},
    "FAILED": {"completed"},
    "REJECTED": {"completed"},
    "CANCELLED": {"completed"},
}


@pytest.mark.parametrize("undo", list(OFFSETTING), ids=str)
def test_a_key_is_offset_by_a_call_that_offsets_it(target: KeyTarget, undo: str | None) -> None:
    target.put(status="completed")
    target.hold("SUCCEEDED")
    target.offsetting(undo)
    for role in ROLES:
        accepted = {s for s in OperationStatus if target.update(role, status=s) is None}
        assert accepted == OFFSETTING[undo]


@pytest.mark.parametrize("was", ["compensating", "compensated"])
@pytest.mark.parametrize("undo", list(OFFSETTING), ids=str)
def test_an_effect_that_is_being_offset_is_not_completed_again(
    target: KeyTarget, was: str, undo: str | None
) -> None:
    target.put(status=was)
    target.hold("SUCCEEDED")
    target.offsetting(undo)
    accepted = {s for s in OperationStatus if target.update(status=s) is None}
    if undo is None or undo in DEAD:
        assert accepted == {"completed"}
    else:
        assert accepted == {"compensated" if undo == "SUCCEEDED" else "compensating"}


def test_another_tenants_call_offsets_nothing(target: KeyTarget) -> None:
    target.put(status="completed")
    target.hold("SUCCEEDED")
    target.offsetting("SUCCEEDED")
    assert target.update(status="compensated") is None
    target.attack.put("calls", target.undo, tenant="other")
    assert target.update(status="compensated") == "FP001"
