"""A call that was authorised waits in the queue, and meanwhile something is taken back: it is never sent."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest

from fencepost import commands as c
from fencepost.authority import AllowList, Grant
from fencepost.events import EventType as E
from fencepost.ledger import principals
from fencepost.ledger.apply import Ledger
from fencepost.ledger.connect import Connection, connect
from fencepost.ledger.reads import context_calls
from fencepost.outcomes import Unsure
from fencepost_workers.contexts import views
from tests.integration.ledger_bench import TENANT, Bench

WHO = "svc:checkout"
NAMED: Any = {"by": "ann", "reason": "the test says so"}
TOOLS = ("wallet.*", "slow.*")


@dataclass
class Queue:
    """A bench with an operator at hand, and engines that ask for a role, or for somebody else's authority."""

    bench: Bench
    operator: Connection
    by_role: Ledger
    by_delegation: Ledger
    without_grants: Ledger


@pytest.fixture(scope="module")
def engines(module_bench: Bench) -> tuple[Ledger, Ledger, Ledger]:
    def granted(*grants: Grant) -> Ledger:
        return module_bench.ledger_as("worker", authority=AllowList(grants))

    return granted(Grant("role:clerk", TOOLS)), granted(Grant("boss", TOOLS)), granted()


@pytest.fixture
def queue(bench: Bench, engines: tuple[Ledger, Ledger, Ledger]) -> Iterator[Queue]:
    usual = bench.ledger
    with connect(bench.database.dsns["operator"], "operator", autocommit=True) as operator:
        yield Queue(bench, operator, *engines)
    bench.ledger = usual
    for table in ("principals", "delegations", "withdrawn"):
        bench.sql(f"DELETE FROM fencepost.{table}")


# -- what is there before, and what is taken back --------------------------------------------------------


def nothing(_: Queue) -> None:
    """Everybody may use the tools of the bench."""


def a_role(queue: Queue) -> None:
    principals.set_roles(queue.operator, TENANT, WHO, add=["clerk"], **NAMED)
    queue.bench.ledger = queue.by_role


def a_delegation(queue: Queue) -> None:
    until = queue.bench.now() + timedelta(seconds=20)
    principals.delegate(queue.operator, TENANT, "boss", WHO, tools="wallet.*", until=until, **NAMED)
    queue.bench.ledger = queue.by_delegation


def disabled(queue: Queue) -> None:
    principals.disable(queue.operator, TENANT, WHO, **NAMED)


def role_taken(queue: Queue) -> None:
    principals.set_roles(queue.operator, TENANT, WHO, remove=["clerk"], **NAMED)


def revoked(queue: Queue) -> None:
    (one,) = principals.delegations(queue.operator)
    principals.revoke(queue.operator, str(one.id), **NAMED)


def expired(queue: Queue) -> None:
    queue.bench.ahead(21)


def delegator_disabled(queue: Queue) -> None:
    principals.disable(queue.operator, TENANT, "boss", **NAMED)


def withdrawn(queue: Queue) -> None:
    assert principals.withdraw(queue.operator, "wallet.note", 1, **NAMED)


def deployed_without_its_grant(queue: Queue) -> None:
    queue.bench.ledger = queue.without_grants


TAKEN_BACK = [
    (nothing, disabled, "principal_disabled"),
    (a_role, role_taken, "policy_denied"),
    (a_delegation, revoked, "policy_denied"),
    (a_delegation, expired, "policy_denied"),
    (a_delegation, delegator_disabled, "policy_denied"),
    (nothing, withdrawn, "tool_withdrawn"),
    (nothing, deployed_without_its_grant, "policy_denied"),
]
CASES = pytest.mark.parametrize(
    ("before", "taken_back", "code"), TAKEN_BACK, ids=[taken.__name__ for _, taken, _ in TAKEN_BACK]
)
Step = Callable[[Queue], None]


def told(bench: Bench, run: UUID) -> str:
    """What the planner is told of the run's only call, in its next turn."""
    assert isinstance(bench.one(bench.claim_run(run)), c.Plan)
    with connect(bench.database.dsns["worker"], "planner") as connection:
        read = context_calls(connection, [(TENANT, run, 0)])
    (view,) = views(read[TENANT, run], bench.known.tool)
    assert (view.state, view.result) == ("REJECTED", None)
    return view.error or ""


@CASES
def test_what_was_taken_back_while_it_waited_is_never_dispatched(
    queue: Queue, before: Step, taken_back: Step, code: str
) -> None:
    bench = queue.bench
    before(queue)
    run = bench.start()
    call = bench.debit(run, bench.order(), "wallet.note")
    assert bench.state(call) == "INTENT_RECORDED"
    taken_back(queue)
    assert bench.one(bench.claim_call(run, call)) == c.Done("REJECTED")
    kinds = bench.kinds(run, call)
    assert kinds.count(E.TOOL_ATTEMPT_STARTED) == 0
    (denied,) = [e for e in bench.events(run) if e.type == E.AUTHORIZATION_DENIED]
    assert (denied.data["code"], denied.data["phase"]) == (code, "claim")
    assert bench.call(call).attempts == 0
    assert told(bench, run).startswith(f"not authorised ({code}): ")


@pytest.mark.parametrize(("before", "taken_back"), [(nothing, disabled), (a_role, role_taken)])
def test_a_required_call_that_is_denied_so_stops_its_run(
    queue: Queue, before: Step, taken_back: Step
) -> None:
    bench = queue.bench
    before(queue)
    run = bench.start()
    call = bench.debit(run, bench.order())
    taken_back(queue)
    bench.one(bench.claim_call(run, call))
    assert (bench.state(call), bench.run(run).stop_reason) == ("REJECTED", "authorization_denied")
    assert E.TOOL_ATTEMPT_STARTED not in bench.kinds(run)


def held_tool_withdrawn(queue: Queue) -> None:
    assert principals.withdraw(queue.operator, "wallet.hold", 1, **NAMED)


@pytest.mark.parametrize(
    ("before", "taken_back", "code"),
    [
        (nothing, disabled, "principal_disabled"),
        (nothing, held_tool_withdrawn, "tool_withdrawn"),
        (a_delegation, revoked, "policy_denied"),
    ],
)
def test_what_is_in_doubt_is_not_repeated_and_stays_in_doubt(
    queue: Queue, before: Step, taken_back: Step, code: str
) -> None:
    bench = queue.bench
    before(queue)
    run = bench.start()
    call = bench.debit(run, bench.order(), "wallet.hold")
    send, term = bench.dispatch(run, call)
    bench.record(send, term, Unsure("timeout", ""))
    taken_back(queue)
    answer, _ = bench.reconcile(run, call)
    assert answer == c.Done("UNKNOWN")
    assert bench.kinds(run, call).count(E.TOOL_ATTEMPT_STARTED) == 1
    (denied,) = [e for e in bench.events(run) if e.type == E.AUTHORIZATION_DENIED]
    assert denied.data["code"] == code


def test_nothing_of_it_is_remembered_what_is_given_back_in_time_is_sent(queue: Queue) -> None:
    bench = queue.bench
    run = bench.start()
    call = bench.debit(run, bench.order())
    disabled(queue)
    principals.enable(queue.operator, TENANT, WHO, **NAMED)
    principals.withdraw(queue.operator, "wallet.debit", 1, **NAMED)
    principals.restore(queue.operator, "wallet.debit", 1, **NAMED)
    bench.succeed(run, call)


def test_another_tenants_principal_and_another_version_are_others(queue: Queue) -> None:
    bench = queue.bench
    run = bench.start()
    call = bench.debit(run, bench.order())
    principals.disable(queue.operator, "other", WHO, **NAMED)
    principals.disable(queue.operator, TENANT, WHO + "2", **NAMED)
    principals.withdraw(queue.operator, "wallet.debit", 2, **NAMED)
    bench.succeed(run, call)


def test_what_commits_after_a_batch_was_made_counts_in_that_batch(queue: Queue) -> None:
    bench = queue.bench
    run, other = bench.start(), bench.start()
    calls = [bench.debit(one, bench.order()) for one in (run, other)]
    claims = [bench.claim_call(one, call) for one, call in zip((run, other), calls, strict=True)]
    disabled(queue)
    answers = bench.ledger.apply(claims)
    assert not any(isinstance(answer, c.Send) for answer in answers)
    assert [bench.state(call) for call in calls] == ["REJECTED"] * 2


PRINCIPAL = """
INSERT INTO fencepost.principals (tenant, principal, roles, disabled_at, changed_at, changed_by)
VALUES (%(tenant)s, %(who)s, %(roles)s, %(disabled_at)s, %(changed_at)s, 'ann')
"""
DELEGATION = """
INSERT INTO fencepost.delegations (tenant, id, principal, delegate, since, until, made_by, reason, revoked_at)
VALUES (%(tenant)s, gen_random_uuid(), 'boss', %(who)s, %(since)s, %(until)s, 'ann', 'always', %(revoked_at)s)
"""
WITHDRAWAL = """
INSERT INTO fencepost.withdrawn (tool, version, withdrawn_at, withdrawn_by, reason)
VALUES ('other.tool', 1, %(withdrawn_at)s, 'ann', 'it is broken')
"""
EARLIEST, LATEST = "0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z"
NO_MOMENTS = ["-infinity", "infinity", "10000-01-01T00:00:00Z", "0001-12-31T23:59:59Z BC"]


def values(**changes: str) -> dict[str, str | None]:
    """The parameters of a row by hand that every reader can tell, but for `changes`."""
    moments = dict.fromkeys(("changed_at", "since", "withdrawn_at"), EARLIEST)
    moments |= dict.fromkeys(("until", "disabled_at"), LATEST)
    return {"tenant": TENANT, "who": WHO, "roles": "[]", "revoked_at": None, **moments, **changes}


@contextmanager
def unchecked(queue: Queue, table: str) -> Iterator[None]:
    """What stands in the table is a ledger's of others' making: Postgres does not check what is written."""
    checks = queue.bench.sql(
        "SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint"
        " WHERE contype = 'c' AND conrelid = %s::regclass",
        f"fencepost.{table}",
    )
    for name, _ in checks:
        queue.bench.sql(f"ALTER TABLE fencepost.{table} DROP CONSTRAINT {name}")
    yield
    for name, definition in checks:
        queue.bench.sql(f"ALTER TABLE fencepost.{table} ADD CONSTRAINT {name} {definition} NOT VALID")


@pytest.mark.parametrize(
    "roles", ["null", '"clerk"', "[1]", "{}", '["clerk", null]', '[["clerk"]]', "clerk", ""]
)
def test_an_operator_writes_no_roles_by_hand_that_are_none(queue: Queue, roles: str) -> None:
    with pytest.raises(psycopg.errors.IntegrityError if roles[:1] in set('n"[{') else psycopg.DataError):
        queue.operator.execute(PRINCIPAL, values(roles=roles))
    queue.operator.execute(PRINCIPAL, values(roles='["clerk", "auditor"]'))
    with pytest.raises(psycopg.Error):
        queue.operator.execute("UPDATE fencepost.principals SET roles = %s", [roles])
    assert [one.roles for one in principals.listed(queue.operator)] == [("clerk", "auditor")]


@pytest.mark.parametrize("moment", NO_MOMENTS)
@pytest.mark.parametrize(
    ("statement", "columns"),
    [
        (PRINCIPAL, ("changed_at", "disabled_at")),
        (DELEGATION, ("since", "until", "revoked_at")),
        (WITHDRAWAL, ("withdrawn_at",)),
    ],
)
def test_an_operator_writes_no_moment_by_hand_that_readers_cannot_tell(
    queue: Queue, statement: str, columns: tuple[str, ...], moment: str
) -> None:
    for column in columns:
        with pytest.raises(psycopg.errors.CheckViolation):
            queue.operator.execute(statement, values(**{column: moment}))
    queue.operator.execute(statement, values())
    found = (principals.listed, principals.delegations, principals.withdrawn)
    assert sum(len(read(queue.operator)) for read in found) == 1


@pytest.mark.parametrize("roles", ["clerk", "null", '"clerk"', "[1]", "{}"])
def test_roles_written_by_hand_that_are_none_disable_their_principal_alone(queue: Queue, roles: str) -> None:
    bench = queue.bench
    found = bench.producer.execute(
        "SELECT run FROM fencepost.enqueue_run(%s, %s, 'p', 1, 'svc:other', '{}', interval '60 s', '{}')",
        [TENANT, bench.order()],
    ).fetchone()
    assert found is not None
    runs = [bench.start(), UUID(str(found[0]))]
    calls = [bench.debit(run, bench.order()) for run in runs]
    with unchecked(queue, "principals"):
        queue.operator.execute(PRINCIPAL, values(roles=roles))
    claims = [bench.claim_call(run, call) for run, call in zip(runs, calls, strict=True)]
    denied, sent = bench.ledger.apply(claims)
    assert (denied, type(sent)) == (c.Done("REJECTED"), c.Send)
    assert "its roles in the ledger are no list of names" in str(bench.call(calls[0]).error)


def test_a_delegation_written_by_hand_may_have_no_beginning_and_no_end(queue: Queue) -> None:
    with unchecked(queue, "delegations"):
        queue.operator.execute(DELEGATION, values(since="-infinity", until="infinity"))
    queue.bench.ledger = queue.by_delegation
    run = queue.bench.start()
    queue.bench.succeed(run, queue.bench.debit(run, queue.bench.order()))
