"""Published policies in a real ledger: the table, and what the next claim makes of them."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from uuid import UUID

import psycopg
import pytest

from fencepost import commands as c
from fencepost.authority import Authority
from fencepost.authority.bundle import read_bundle
from fencepost.authority.inforce import Engines
from fencepost.authority.vocabulary import vocabulary
from fencepost.errors import Conflict, NotFound
from fencepost.ledger import policies
from fencepost.ledger.connect import Connection, connect
from fencepost_ops.database import LedgerDatabase
from tests.awaiting import until
from tests.integration.ledger_bench import TENANT, Bench, open_bench
from tests.integration.policy_app import DEBITS, LOOSE, NOTES, bundle


@pytest.fixture
def bench(database: LedgerDatabase) -> Iterator[Bench]:
    """A bench whose workers ask the policy in force."""
    with open_bench(database) as opened:
        opened.known = replace(opened.known, engines=Engines())
        opened.ledger = opened.ledger_as("worker", engines=opened.known.engines)
        yield opened


@pytest.fixture
def operator(database: LedgerDatabase) -> Iterator[Connection]:
    with connect(database.dsns["operator"], "test", autocommit=True) as connection:
        yield connection


def put(connection: Connection, text: str, tenant: str = policies.ALL, after: int | None = None) -> int:
    return policies.publish(connection, bundle(text), tenant=tenant, by="ann", note="n", after=after).version


# -- the table ------------------------------------------------------------------------------------------


def test_the_greatest_version_of_a_tenant_or_of_all_is_in_force(operator: Connection) -> None:
    def now(tenant: str = policies.ALL) -> int:
        found = policies.in_force(operator, tenant)
        return found.version if found is not None else 0

    assert (now(), now("shop")) == (0, 0)
    assert put(operator, DEBITS, "shop") == 1
    assert (now(), now("shop"), now("other")) == (0, 1, 0)
    assert put(operator, NOTES) == 2
    assert (now(), now("shop"), now("other")) == (2, 2, 2)
    assert put(operator, LOOSE, "shop") == 3
    assert (now(), now("shop"), now("other")) == (2, 3, 2)
    assert [row.version for row in policies.history(operator)] == [3, 2, 1]
    assert [row.version for row in policies.history(operator, "other")] == [2]
    assert [row.version for row in policies.history(operator, "shop", 2)] == [3, 2]


def test_what_is_published_is_kept_as_it_was(operator: Connection, database: LedgerDatabase) -> None:
    put(operator, DEBITS)
    row = policies.version(operator, 1)
    assert (row.name, row.digest, row.bundle) == ("bench", bundle(DEBITS).digest, bundle(DEBITS).pack())
    assert (row.published_by, row.note) == ("ann", "n")
    assert row.login == database.dsns["operator"].partition("//")[2].partition(":")[0]
    with pytest.raises(NotFound, match="there is no policy version 9"):
        policies.version(operator, 9)
    with pytest.raises(psycopg.Error):
        operator.execute("UPDATE fencepost.policies SET note = 'another'")
    with pytest.raises(psycopg.Error):
        operator.execute("DELETE FROM fencepost.policies")
    with (
        connect(database.dsns["worker"], "test", autocommit=True) as worker,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        put(worker, NOTES)


def test_a_version_is_published_only_after_the_one_that_was_seen(operator: Connection) -> None:
    with pytest.raises(Conflict, match="the last policy is none, not 3"):
        put(operator, DEBITS, after=3)
    put(operator, DEBITS, "shop", after=0)
    put(operator, DEBITS, "other", after=0)
    with pytest.raises(Conflict, match="the last policy is version 1 of ann, not 0"):
        put(operator, NOTES, "shop", after=0)
    put(operator, NOTES, "shop", after=1)
    with pytest.raises(Conflict, match="the last policy is version 3 of ann"):
        put(operator, NOTES, after=2)
    assert put(operator, NOTES, after=3) == 4


def test_of_two_that_publish_at_once_one_does(bench: Bench, operator: Connection) -> None:
    said = list[str]()

    def go() -> None:
        try:
            put(operator, NOTES, after=0)
        except Conflict as error:
            said.append(str(error))

    second = threading.Thread(target=go)
    with connect(bench.database.dsns["operator"], "test") as first:
        assert put(first, DEBITS, after=0) == 1
        second.start()
        waiting = "SELECT 1 FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'"
        until("the second waits for the first", lambda: bench.sql(waiting))
        first.commit()
    second.join(60)
    assert said == ["somebody published at the same instant; look at what, and publish again"]
    assert [row.version for row in policies.history(operator)] == [1]


# -- what the claim makes of it -------------------------------------------------------------------------


def last_decision(bench: Bench, run: UUID) -> tuple[str, dict[str, object]]:
    event = [one for one in bench.events(run) if one.type.startswith("Authorization")][-1]
    return event.type, {**event.data, "policy": event.policy}


def test_a_policy_published_while_a_call_waits_decides_in_the_claim(
    bench: Bench, operator: Connection
) -> None:
    put(operator, LOOSE)
    run = bench.start()
    first, second = bench.plan(run, ("wallet.debit", {"order": "a"}), ("wallet.note", {"order": "b"}))
    kind, said = last_decision(bench, run)
    assert (kind, said["policy"], said["deciding"]) == ("AuthorizationAllowed", "1", ["notes"])
    assert set(said["digests"]) == {"policy", "schema", "entities", "request"}  # type: ignore[call-overload]
    put(operator, DEBITS)
    answer = bench.one(bench.claim_call(run, second))
    assert not isinstance(answer, c.Send), answer
    kind, said = last_decision(bench, run)
    assert (kind, said["policy"], said["code"]) == ("AuthorizationDenied", "2", "policy_denied")
    assert (bench.state(second), bench.call(second).attempts) == ("REJECTED", 0)
    assert bench.call(first).attempts == 0


def test_two_versions_are_live_in_one_fleet_each_for_its_tenant(bench: Bench, operator: Connection) -> None:
    put(operator, DEBITS)
    put(operator, NOTES, "elsewhere")
    send, _ = bench.dispatch(run := bench.start(), bench.debit(run, bench.order()))
    assert last_decision(bench, run)[1]["policy"] == "1"
    assert send.attempt == 1
    assert bench.known.engines is not None
    put(operator, LOOSE, TENANT)
    bench.dispatch(run := bench.start(), bench.debit(run, bench.order()))
    assert last_decision(bench, run)[1]["policy"] == "3"


def test_a_policy_that_cannot_be_read_lets_nothing_out(bench: Bench, operator: Connection) -> None:
    put(operator, DEBITS)
    run = bench.start()
    call = bench.debit(run, bench.order())
    bench.sql(
        "INSERT INTO fencepost.policies SELECT 2, '', name, digest, replace(bundle, 'permit', 'premit'),"
        " published_at, published_by, login, note FROM fencepost.policies"
    )
    assert not isinstance(bench.one(bench.claim_call(run, call)), c.Send)
    kind, said = last_decision(bench, run)
    assert (kind, said["code"]) == ("AuthorizationDenied", "policy_error")
    assert "policy 2 cannot be used" in str(said["reason"])


class Forgetful(Engines):
    """Forgets an engine once it was compiled or asked for: other tenants' policies have come between."""

    def engine(self, version: int) -> Authority | None:
        found = super().engine(version)
        self._found.clear()
        return found

    def add(self, version: int, bundle: str) -> Authority:
        made = super().add(version, bundle)
        self._found.clear()
        return made


def test_a_policy_that_is_forgotten_meanwhile_decides_all_the_same(
    bench: Bench, operator: Connection
) -> None:
    bench.ledger = bench.ledger_as("worker", engines=Forgetful())
    limited = replace(bundle(LOOSE), allowances=({"id": "once", "count": 1},))
    policies.publish(operator, limited, tenant=policies.ALL, by="ann", note="n")
    runs = [bench.start() for _ in range(2)]
    calls = [bench.debit(run, bench.order()) for run in runs]
    assert isinstance(bench.one(bench.claim_call(runs[0], calls[0])), c.Send)
    assert bench.one(bench.claim_call(runs[1], calls[1])) == c.Done("REJECTED")
    assert last_decision(bench, runs[1])[1]["code"] == "allowance_exceeded"


def test_a_policy_tells_what_offsets_an_effect_from_what_a_planner_proposed(
    bench: Bench, operator: Connection
) -> None:
    offsets = '@id("back") permit (principal, action == Action::"wallet.refund", resource)'
    put_all = f"{DEBITS}{offsets} when {{ context.compensates }};"
    words, _ = vocabulary(bench.app.registry)
    made, _ = read_bundle({"bundle.json": '{"name": "bench"}', "all.cedar": put_all}, words)
    assert made is not None
    policies.publish(operator, made, tenant=TENANT, by="ann", note="n")
    run = bench.start()
    bench.succeed(run, bench.debit(run, bench.order()))
    bench.cancel(run)
    bench.offset(run)
    kind, said = last_decision(bench, run)
    assert (kind, said["policy"], said["deciding"]) == ("AuthorizationAllowed", "1", ["back"])
    other = bench.start()
    bench.debit(other, bench.order(), "wallet.refund")
    assert last_decision(bench, other)[0] == "AuthorizationDenied"
