"""A login of producers or of the HTTP interface sees no rows but those it may."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from psycopg import sql

from fencepost.ledger import tokens
from fencepost.ledger.guards.tenants import TABLES
from tests.integration.ledger_bench import TENANT, Bench

ENQUEUE = "SELECT run FROM fencepost.enqueue_run(%s, %s, 'p', 1, 'svc:x', '1', '1 hour')"


def made(bench: Bench, tenant: str) -> str:
    with psycopg.connect(bench.database.dsns["operator"], autocommit=True) as operator:
        return str(tokens.presented(tokens.make(operator, tenant, ["svc:x"], by="pat")[1]))


@contextmanager
def presenting(bench: Bench, token: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(bench.database.dsns["api"], autocommit=True) as session:
        session.execute("SELECT set_config('fencepost.tokens', %s, false)", [token])
        yield session


def seen(session: psycopg.Connection[Any], table: str) -> set[str]:
    return {
        row[0]
        for row in session.execute(sql.SQL("SELECT tenant FROM fencepost.{}").format(sql.Identifier(table)))
    }


def fill(bench: Bench) -> None:
    """Something of two tenants in every table."""
    run = bench.start()
    bench.debit(run, bench.order())
    with psycopg.connect(bench.database.owner, autocommit=True) as owner:
        owner.execute("SET session_replication_role = replica")
        for table in TABLES:
            columns = [
                (str(name), str(kind))
                for name, kind in owner.execute(
                    "SELECT attname, format_type(atttypid, NULL) FROM pg_attribute WHERE attgenerated = ''"
                    " AND attrelid = %s::regclass AND attnum > 0 AND attnotnull AND NOT attisdropped",
                    [f"fencepost.{table}"],
                )
            ]
            usual = {"uuid": "gen_random_uuid()", "text": "'a'", "timestamp with time zone": "now()"}
            usual |= {"jsonb": "'{}'", "json": "'{}'", "boolean": "false", "bytea": "'a'"}
            for tenant in (TENANT, "other"):
                values = {name: usual.get(kind, "1") for name, kind in columns} | {"tenant": f"'{tenant}'"}
                values |= {"digest": "encode(sha256('a'), 'hex')"} if table == "payloads" else {}
                values |= {"version": f"{len(tenant)}"} if table == "policies" else {}
                values |= {"roles": "'[]'"} if table == "principals" else {}
                owner.execute(
                    f"INSERT INTO fencepost.{table} ({', '.join(values)})"
                    f" VALUES ({', '.join(values.values())}) ON CONFLICT DO NOTHING"
                )


def test_the_interface_sees_the_tenants_whose_tokens_it_presents_and_no_others(bench: Bench) -> None:
    fill(bench)
    own, other = made(bench, TENANT), made(bench, "other")
    name, digest = own.split(":")
    with presenting(bench, own) as session:
        assert {table: seen(session, table) for table in TABLES} == {table: {TENANT} for table in TABLES}
    with presenting(bench, f"{own},{other}") as session:
        assert seen(session, "runs") >= {TENANT, "other"}
    for nothing in (
        "",
        name,
        f"{name}:",
        f"{name}:{'0' * 64}",
        f":{digest}",
        f"{other.split(':')[0]}:{digest}",
    ):
        with presenting(bench, nothing) as session:
            assert {table: seen(session, table) for table in TABLES} == {table: set() for table in TABLES}
            asked = session.execute("SELECT * FROM fencepost.bearer(%s, %s)", [name, nothing])
            assert asked.fetchall() == []
    with psycopg.connect(bench.database.dsns["operator"], autocommit=True) as operator:
        tokens.revoke(operator, name, by="pat")
    with presenting(bench, f"{own},{other}") as session:
        assert seen(session, "runs") == {"other"}
        assert tokens.living(session) == {other}


def test_the_interface_asks_for_nothing_of_a_tenant_whose_token_it_does_not_present(bench: Bench) -> None:
    run = bench.start()
    with presenting(bench, made(bench, "other")) as session:
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="presents no token of tenant"):
            session.execute(ENQUEUE, [TENANT, "k"])
        assert session.execute(ENQUEUE, ["other", "k"]).fetchall()
        with pytest.raises(psycopg.Error, match="there is no run"):
            session.execute("SELECT fencepost.signal_run(%s, %s, 'k', 'n', '1', 'svc:x')", [TENANT, run])
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            session.execute("SELECT digest FROM fencepost.api_tokens")


def test_a_producer_sees_the_runs_its_login_asked_for_and_no_others(bench: Bench) -> None:
    bench.owner.execute("CREATE ROLE another_producer LOGIN PASSWORD 'x' IN ROLE fencepost_producer")
    dsn = bench.database.dsns["producer"]
    try:
        with (
            psycopg.connect(dsn, autocommit=True) as one,
            psycopg.connect(dsn, user="another_producer", password="x", autocommit=True) as two,
        ):
            ((mine,),) = one.execute(ENQUEUE, ["shop", "mine"]).fetchall()
            ((theirs,),) = two.execute(ENQUEUE, ["shop", "theirs"]).fetchall()
            for session, run in ((one, mine), (two, theirs)):
                found = session.execute("SELECT id FROM fencepost.runs WHERE id = ANY(%s)", [[mine, theirs]])
                assert found.fetchall() == [(run,)]
                session.execute("SET fencepost.tokens = 'x'")
                assert two.execute("SELECT count(*) FROM fencepost.runs").fetchall() == [(1,)]
        with psycopg.connect(bench.database.dsns["worker"]) as worker:
            both = worker.execute("SELECT FROM fencepost.runs WHERE run_key IN ('mine', 'theirs')")
            assert len(both.fetchall()) == 2
    finally:
        bench.owner.execute("DROP ROLE another_producer")


def test_workers_pay_nothing_for_it(bench: Bench) -> None:
    with psycopg.connect(bench.database.dsns["worker"]) as worker:
        asked = "EXPLAIN (VERBOSE) SELECT * FROM fencepost.runs WHERE id = gen_random_uuid()"
        plan = "\n".join(row[0] for row in worker.execute(asked))
    assert "bearers" not in plan
    assert "InitPlan" not in plan
