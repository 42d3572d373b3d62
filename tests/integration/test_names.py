"""A name has one spelling, and Python and Postgres agree on it wherever one enters."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, cast
from uuid import UUID

import psycopg
import pytest

from fencepost import App, names
from fencepost.allowances import read
from fencepost.authority.statements import statements
from fencepost.errors import UsageError
from fencepost.ledger import principals, tokens
from fencepost.ledger.signals import send
from fencepost.office import Office
from fencepost.runrequest import RunRequest
from fencepost.settings import Settings
from tests.integration.ledger_bench import Bench

OTHERS = (
    "mgr:Anna",
    "mgr:anna ",
    " mgr:anna",
    "mgr: anna",
    "mgr:anna\n",
    "mgr:an\u200bna",
    "mgr:\u00adanna",
    "mgr:\u0430nna",
    "mgr:a\u0301nna",
    "mgr:\u00e1nna",
    "mgr:\uff41nna",
    "mgr:anna\u202e",
    "",
    "*",
)
"""What looks like `mgr:anna` or nearly so, and what could be anybody."""


def _texts() -> list[str]:
    seeded = random.Random(20261201)
    near = "az09AZ._-:@/+=| \t\n*>,~#'\"\\\u00e9\u0301\u0430\u200b\u00ad\ufeff\u0130\u0131\u212a\u017f\u1e9e"
    made = {"".join(seeded.choices(near, k=seeded.randint(0, 8))) for _ in range(3000)}
    every = (chr(n) for n in range(1, 0x3000) if not 0xD800 <= n < 0xE000)
    made |= {text for letter in every for text in (letter, f"mgr{letter}anna")}
    return sorted(made | {"a" * n for n in (1, 99, 100, 101, 199, 200, 201, 300, 301)})


@pytest.mark.parametrize("kind", ["tenant", "principal", "by"])
def test_python_and_postgres_take_the_same_texts_for_names(bench: Bench, kind: str) -> None:
    texts = _texts()
    given = "unnest(%s::text[]) WITH ORDINALITY AS x(t, n)"
    ((found,),) = bench.sql(f"SELECT array_agg({names.sql('t', kind)} ORDER BY n) FROM {given}", texts)
    assert [text for text, one in zip(texts, found, strict=True) if one != names.fits(kind, text)] == []
    assert 80 < sum(found) < len(found) / 2


LATER = datetime(2100, 1, 1, tzinfo=UTC)
SAID: Any = {"by": "ops:pat", "reason": "a test"}
_MOMENT = datetime(2026, 1, 1, tzinfo=UTC)
FILLED: dict[str, Any] = {
    "text": "x",
    "uuid": UUID(int=1),
    "bigint": 9_000_000,
    "integer": 1,
    "boolean": False,
    "timestamp with time zone": _MOMENT,
    "jsonb": "1",
}
_TOKEN = {"principals": '["svc:x"]', "created_by": "ops:pat"}
GIVEN: dict[tuple[str, str], dict[str, Any]] = {
    ("delegations", "revoked_by"): {"made_by": "ops:pat", "revoked_at": _MOMENT},
    ("memory", "erased_by"): {"erased_at": _MOMENT, "erased_reason": "asked to"},
    ("api_tokens", "created_by"): _TOKEN,
    ("api_tokens", "revoked_by"): _TOKEN | {"revoked_at": _MOMENT},
}
ENTRIES: dict[str, Callable[[Any, str], object]] = {
    "run request, principal": lambda _, name: RunRequest(
        planner="p", input=1, run_key="k", tenant="shop", principal=name, deadline=timedelta(1)
    ),
    "run request, tenant": lambda _, name: RunRequest(
        planner="p", input=1, run_key="k", tenant=name, principal="svc:x", deadline=timedelta(1)
    ),
    "disable": lambda session, name: principals.disable(session, "shop", name, **SAID),
    "disable in a tenant": lambda session, name: principals.disable(session, name, "svc:x", **SAID),
    "roles": lambda session, name: principals.set_roles(session, "shop", name, add=["r"], **SAID),
    "who disables": lambda session, name: principals.disable(session, "shop", "svc:x", by=name, reason="r"),
    "delegates": lambda session, name: principals.delegate(session, "shop", name, "b", until=LATER, **SAID),
    "delegate": lambda session, name: principals.delegate(session, "shop", "b", name, until=LATER, **SAID),
    "withdraws": lambda session, name: principals.withdraw(session, "t", 1, by=name, reason="r"),
    "token": lambda session, name: tokens.make(session, "shop", ["svc:x", name], by="ops:pat"),
    "token's tenant": lambda session, name: tokens.make(session, name, ["svc:x"], by="ops:pat"),
    "who makes a token": lambda session, name: tokens.make(session, "shop", ["svc:x"], by=name),
    "signal": lambda session, name: send(
        session, "shop", cast("Any", None), key="k", name="n", body=1, sender=name
    ),
    "cancel": lambda _, name: Office.cancel(cast("Any", None), "shop", cast("Any", None), name, "r"),
    "approve": lambda _, name: Office.decide(cast("Any", None), cast("Any", None), name, "r", approve=True),
    "repin": lambda _, name: Office.repin(cast("Any", None), "shop", cast("Any", None), 2, name, "r", seen=1),
    "intake": lambda _, name: Settings(intake_principal=name or " "),
}


PERSONS = (
    ("principals", "changed_by"),
    ("delegations", "made_by"),
    ("delegations", "revoked_by"),
    ("withdrawn", "withdrawn_by"),
    ("authority_changes", "made_by"),
    ("epochs", "released_by"),
    ("memory", "erased_by"),
    ("api_tokens", "created_by"),
    ("api_tokens", "revoked_by"),
    ("policies", "published_by"),
    ("signals", "sender"),
)
"""Every column in which a person says who decides."""


@pytest.mark.parametrize(("table", "column"), PERSONS)
def test_whoever_writes_a_row_by_hand_has_one_spelling_too(bench: Bench, table: str, column: str) -> None:
    with bench.owner.transaction(force_rollback=True):
        bench.owner.execute("SET LOCAL session_replication_role = replica")  # the guards would object first
        required = bench.sql(
            "SELECT a.attname, format_type(a.atttypid, NULL) FROM pg_attribute a WHERE a.attnotnull AND "
            "a.attnum > 0 AND a.attgenerated = '' AND NOT a.atthasdef AND a.attrelid = %s::regclass",
            f"fencepost.{table}",
        )
        filled = {str(name): FILLED[str(kind)] for name, kind in required} | GIVEN.get((table, column), {})
        for name, refused in (("mgr:anna", False), *((other, True) for other in OTHERS)):
            row = filled | {column: name}
            places = ", ".join(["%s"] * len(row))
            insert = f"INSERT INTO fencepost.{table} ({', '.join(row)}) VALUES ({places})"
            bench.owner.execute("SAVEPOINT one")
            try:
                bench.owner.execute(cast("Any", insert), list(row.values()))
            except psycopg.errors.CheckViolation:
                assert refused, name
            else:
                assert not refused, ascii(name)
            bench.owner.execute("ROLLBACK TO SAVEPOINT one")


@pytest.mark.parametrize("entry", ENTRIES)
def test_another_spelling_is_refused_with_a_sentence_wherever_a_name_enters(bench: Bench, entry: str) -> None:
    with psycopg.connect(bench.database.dsns["operator"], autocommit=True) as session:
        for other in OTHERS:
            with pytest.raises((UsageError, ValueError), match="names have one spelling"):
                ENTRIES[entry](session, other)


@pytest.mark.parametrize("other", [other for other in OTHERS if other != "*"])
def test_a_policy_that_names_somebody_nobody_is_called_is_refused(other: str) -> None:
    app = App("names")
    for grant in (
        lambda: app.allow(other, ["t"]),
        lambda: app.allow("svc:*", ["t"], approvals=1, approvers=[other]),
        lambda: read([{"id": "a", "count": 1, "principal": other}]),
    ):
        with pytest.raises(UsageError, match=r"spelling|at least 1 character"):
            grant()
    text = other.replace("\n", "\\n")
    _, problems = statements(
        {"a.cedar": f'@id("x") forbid (principal == Principal::"{text}", action, resource);'}
    )
    assert len(problems) == 1
    assert "names have one spelling" in problems[0]


_RUN = "SELECT fencepost.enqueue_run({tenant}, 'k1', 'p', 1, {principal}, '1', '1 hour')"
ROWS = {
    "enqueue_run, tenant": _RUN.format(tenant="%(n)s", principal="'svc:x'"),
    "enqueue_run, principal": _RUN.format(tenant="'shop'", principal="%(n)s"),
    "signal_run": "SELECT fencepost.signal_run('shop', gen_random_uuid(), 'k', 'n', '1', %(n)s)",
    "principals": "INSERT INTO fencepost.principals (tenant, principal, changed_at, changed_by)"
    " VALUES ('shop', %(n)s, now(), 'pat')",
    "delegations": "INSERT INTO fencepost.delegations (tenant, id, principal, delegate, since, until,"
    " made_by, reason) VALUES ('shop', gen_random_uuid(), 'a', %(n)s, now(), now(), 'pat', 'r')",
    "policies": "INSERT INTO fencepost.policies (version, tenant, name, digest, bundle, published_at,"
    " published_by, login, note) SELECT coalesce(max(version), 0) + 1, 'shop', 'n', 'd', 'b', now(), %(n)s,"
    " 'l', 'n' FROM fencepost.policies",
    "api_tokens": "INSERT INTO fencepost.api_tokens (id, tenant, principals, scopes, digest, created_at,"
    " created_by, login) VALUES ('i', 'shop', json_build_array('svc:x', %(n)s::text)::text, '[]',"
    " repeat('0', 64), now(), 'pat', 'l')",
}


@pytest.mark.parametrize("table", ROWS)
def test_postgres_refuses_another_spelling_whoever_asks(bench: Bench, table: str) -> None:
    for other in OTHERS:
        with pytest.raises(psycopg.Error) as refused:
            bench.owner.execute(ROWS[table], {"n": other})
        assert refused.value.sqlstate in {"23514", "FP422", "FP001", "FP004"}, refused.value


def test_one_who_is_named_as_names_are_may_do_all_that(bench: Bench) -> None:
    assert names.named("principal", "auth0|5f7c/svc:anna+ci@shop-1.example=x") == (
        "auth0|5f7c/svc:anna+ci@shop-1.example=x"
    )
    for table in ("enqueue_run, principal", "principals", "delegations", "policies", "api_tokens"):
        bench.owner.execute(ROWS[table], {"n": "mgr:anna"})
