"""`fencepost logins`: the users a deployment works as, made from the DSNs its processes will use."""

import secrets
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from fencepost_ops.database import LedgerDatabase
from fencepost_ops.local import LocalPostgres
from fencepost_ops.logins import Login
from tests.integration.shell import Shell

NAMES = ("shop_worker", "shop_relay", "shop_producer", "shop_super")


@pytest.fixture
def folder(tmp_path: Path, postgres: LocalPostgres) -> Iterator[Path]:
    yield tmp_path
    with psycopg.connect(postgres.superuser_dsn, autocommit=True) as connection:
        for name in NAMES:
            connection.execute(f"DROP ROLE IF EXISTS {name}")


@pytest.fixture
def shell(database: LedgerDatabase, no_settings: None) -> Shell:
    return Shell(database, {"FENCEPOST_DSN": database.owner})


def keep(folder: Path, database: LedgerDatabase, role: str, name: str) -> str:
    """The DSN of a login with a new password, put where `logins` finds it."""
    where = urlsplit(database.owner)
    dsn = f"postgresql://{name}:{secrets.token_hex(8)}@{where.hostname}:{where.port}{where.path}"
    (folder / f"{role}_dsn").write_text(f"{dsn}\n")
    return dsn


def powers(dsn: str) -> set[str]:
    """The groups a login is a member of."""
    query = "SELECT r.rolname FROM pg_auth_members m JOIN pg_roles r ON r.oid = m.roleid"
    query += " WHERE m.member = current_user::regrole"
    with psycopg.connect(dsn) as connection:
        return {str(group) for (group,) in connection.execute(query)}


def test_every_role_gets_the_login_its_dsn_names(
    folder: Path, database: LedgerDatabase, shell: Shell
) -> None:
    worker, relay = (keep(folder, database, r, f"shop_{r}") for r in ("worker", "relay"))
    assert shell.ok("logins", str(folder)) == "worker: shop_worker (new)\nrelay: shop_relay (new)\n"
    assert (powers(worker), powers(relay)) == ({"fencepost_worker"}, {"fencepost_relay"})
    with psycopg.connect(worker) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
        connection.execute("DELETE FROM fencepost.events")


def test_another_time_changes_what_has_changed(folder: Path, database: LedgerDatabase, shell: Shell) -> None:
    old = keep(folder, database, "worker", "shop_worker")
    shell.ok("logins", str(folder))
    assert shell.ok("logins", str(folder)) == "worker: shop_worker\n"
    assert powers(old) == {"fencepost_worker"}
    new = keep(folder, database, "worker", "shop_worker")
    assert shell.json("logins", str(folder)) == [{"role": "worker", "login": "shop_worker", "created": False}]
    assert powers(new) == {"fencepost_worker"}
    with pytest.raises(psycopg.OperationalError, match="authentication failed"):
        powers(old)
    (folder / "worker_dsn").rename(folder / "reader_dsn")
    shell.ok("logins", str(folder))
    assert powers(new) == {"fencepost_reader"}


def test_the_server_never_sees_a_password(
    folder: Path, database: LedgerDatabase, shell: Shell, postgres: LocalPostgres
) -> None:
    dsn = keep(folder, database, "worker", "shop_worker")
    with psycopg.connect(database.owner, autocommit=True) as connection:
        connection.execute("ALTER ROLE CURRENT_USER SET log_statement = 'ddl'")
        try:
            shell.ok("logins", str(folder))
        finally:
            connection.execute("ALTER ROLE CURRENT_USER RESET log_statement")
    password, log = urlsplit(dsn).password, postgres.log.read_text()
    assert password is not None
    assert 'CREATE ROLE "shop_worker"' in log
    assert password not in log
    assert password not in repr(Login("worker", "shop_worker", password))


@pytest.mark.parametrize(
    ("role", "dsn", "said"),
    [
        ("worker", "postgresql://shop_worker@h/d", "lacks a user or a password"),
        ("worker", "postgresql://:geheim@h/d", "lacks a user or a password"),
        ("worker", "geheim", "holds no DSN of a Postgres"),
        ("worker", "postgresql://fencepost_worker:geheim@h/d", "names fencepost_worker, a group"),
        ("worker", "postgresql://postgres:geheim@h/d", "postgres owns the database or is a superuser"),
        ("somebody", "postgresql://shop_worker:geheim@h/d", "holds none of worker_dsn, relay_dsn"),
    ],
)
def test_what_names_no_login_of_its_own_is_refused(
    folder: Path, shell: Shell, role: str, dsn: str, said: str
) -> None:
    (folder / f"{role}_dsn").write_text(dsn)
    refusal = shell.refused(2, "logins", str(folder))
    assert said in refusal
    assert "geheim" not in refusal


def test_two_roles_do_not_share_a_login(folder: Path, database: LedgerDatabase, shell: Shell) -> None:
    for role in ("worker", "relay"):
        keep(folder, database, role, "shop_worker")
    assert shell.refused(2, "logins", str(folder)).startswith("shop_worker is the login of several roles")


def test_a_superuser_is_left_alone(folder: Path, database: LedgerDatabase, shell: Shell) -> None:
    with psycopg.connect(database.owner, autocommit=True) as connection:
        connection.execute("CREATE ROLE shop_super SUPERUSER")
    keep(folder, database, "relay", "shop_relay")
    keep(folder, database, "worker", "shop_super")
    assert shell.refused(2, "logins", str(folder)).startswith(
        "shop_super owns the database or is a superuser"
    )
    with psycopg.connect(database.owner) as connection:
        found = connection.execute("SELECT count(*) FROM pg_roles WHERE rolname = 'shop_relay'").fetchone()
    assert found == (0,)  # all or none
