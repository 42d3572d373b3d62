"""What Postgres refuses of policies that somebody inserts by hand: nothing is open but the next number."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from fencepost.errors import Conflict
from fencepost.ledger import policies
from fencepost.ledger.connect import Connection, connect
from tests.integration.guards_bench import OPERATOR, OWNER, Attack, attack
from tests.integration.ledger_bench import Bench
from tests.integration.policy_app import DEBITS, bundle

INSERT = (
    "INSERT INTO fencepost.policies"
    " (version, tenant, name, digest, bundle, published_by, note, published_at, login)"
    " VALUES (%s, %s, %s, %s, %s, %s, %s, '2020-01-01Z', 'somebody')"
)
SAID = {"version": 1, "tenant": "", "name": "n", "digest": "d", "bundle": "{}", "by": "ann", "note": "why"}


def said(**other: Any) -> list[Any]:
    return list({**SAID, **other}.values())


@pytest.fixture
def opened(module_bench: Bench) -> Iterator[Attack]:
    with attack(module_bench) as opened:
        yield opened


@pytest.fixture
def operator(bench: Bench) -> Iterator[Connection]:
    with connect(bench.database.dsns["operator"], "test", autocommit=True) as connection:
        yield connection


@pytest.mark.parametrize("role", [OPERATOR, OWNER])
@pytest.mark.parametrize(
    ("other", "state"),
    [
        ({"version": 2**63 - 1}, "FP004"),
        ({"version": 2}, "FP004"),
        ({"version": None}, "FP004"),
        ({"version": 0}, "23505"),
        ({"version": -(2**63)}, "23505"),
        *(({name: " "}, "FP004") for name in ("tenant", "name", "digest", "bundle", "by", "note")),
        ({}, None),
    ],
)
def test_an_inserted_policy_is_the_next_and_says_what_it_is(
    opened: Attack, other: dict[str, Any], state: str | None, role: str | None
) -> None:
    assert opened.attempt(INSERT, *said(**other), role=role) == state


def test_nobodys_last_number_closes_policies(bench: Bench, operator: Connection) -> None:
    with pytest.raises(Exception, match="is not the next, which is 1"):
        operator.execute(INSERT, said(version=2**63 - 1))
    assert policies.publish(operator, bundle(DEBITS), tenant="", by="ann", note="n").version == 1


def test_postgres_says_when_and_by_which_login(bench: Bench, operator: Connection) -> None:
    last = policies.history(operator)
    operator.execute(INSERT, said(version=len(last) + 1))
    made = policies.history(operator)[0]
    assert bench.now() - made.published_at < timedelta(minutes=5)
    ((login,),) = operator.execute("SELECT session_user").fetchall()
    assert made.login == login


def test_a_number_taken_a_moment_ago_is_a_conflict(operator: Connection, bench: Bench) -> None:
    """Whoever publishes has chosen its number, and somebody else commits the same before it is inserted."""
    bench.sql(
        "CREATE FUNCTION fencepost.first() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN"
        " NEW.version := NEW.version - 1; RETURN NEW; END$$"
    )
    operator.execute(INSERT, said(version=len(policies.history(operator)) + 1))
    bench.sql(
        "CREATE TRIGGER a_first BEFORE INSERT ON fencepost.policies FOR EACH ROW"
        " EXECUTE FUNCTION fencepost.first()"
    )
    try:
        with pytest.raises(Conflict, match="same instant"):
            policies.publish(operator, bundle(DEBITS), tenant="", by="ann", note="n")
    finally:
        bench.sql("DROP TRIGGER a_first ON fencepost.policies")
        bench.sql("DROP FUNCTION fencepost.first")
