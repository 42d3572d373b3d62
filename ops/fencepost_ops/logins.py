"""Logins of a deployment: per role one user of Postgres, member of the role's group and of nothing else.

A folder of secrets holds the DSNs with which the processes of each role will connect; the login, its
password and its group are made to fit them. A password travels as its SCRAM verifier only, so that no log of
the server's holds it. No login but a worker's may have more than a fifth of all sessions.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from psycopg import ProgrammingError, sql
from psycopg.conninfo import conninfo_to_dict

from fencepost.errors import NotFound, UsageError
from fencepost.ledger.connect import Connection
from fencepost.ledger.roles import GROUPS

ROLES: Final = tuple(group.removeprefix("fencepost_") for group in GROUPS)
_ONE_AT_A_TIME: Final = 0x6C6F67696E


@dataclass(frozen=True)
class Login:
    """A user of Postgres and the role it works in. Holds a password: never print it."""

    role: str
    name: str
    password: str

    def __repr__(self) -> str:
        return f"Login({self.role!r}, {self.name!r})"

    @property
    def group(self) -> str:
        """The group role whose rights it has."""
        return f"fencepost_{self.role}"


def read_logins(folder: Path) -> list[Login]:
    """The logins that the files `worker_dsn`, `relay_dsn` and so on of a folder name; a role without a file
    gets none. UsageError, never with a DSN, for a file that names none of its own.
    """
    files = {role: folder / f"{role}_dsn" for role in ROLES}
    found = [_login(role, file) for role, file in files.items() if file.exists()]
    if not found:
        raise UsageError(f"{folder} holds none of {', '.join(file.name for file in files.values())}")
    twice = [name for name, count in Counter(login.name for login in found).items() if count > 1]
    if twice:
        raise UsageError(f"{twice[0]} is the login of several roles; give each role one of its own")
    return found


def _login(role: str, file: Path) -> Login:
    try:
        parts = conninfo_to_dict(file.read_text(encoding="utf-8").strip())
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from error
    except (ProgrammingError, ValueError):  # their messages would quote it
        raise UsageError(f"{file} holds no DSN of a Postgres") from None
    name, password = str(parts.get("user") or ""), str(parts.get("password") or "")
    if not name or not password:
        raise UsageError(f"the DSN in {file} lacks a user or a password")
    if name in GROUPS:
        raise UsageError(f"the DSN in {file} names {name}, a group; name a login of its own")
    return Login(role, name, password)


def give_logins(connection: Connection, logins: list[Login]) -> list[str]:
    """Make each login, or give the one there is its password and group; the names of those made.

    Safe to repeat, and for several at once. Needs the right to make roles. Raises NotFound where there is no
    ledger, UsageError for a login that must not be touched: a superuser, or the one this session works as.
    """
    made = []
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", [_ONE_AT_A_TIME])
        rows = connection.execute("SELECT rolname, rolsuper FROM pg_roles").fetchall()
        superusers = {str(name): bool(powerful) for name, powerful in rows}
        own = connection.info.user
        for login in logins:
            if login.group not in superusers:
                raise NotFound(f"there is no role {login.group}: run `fencepost migrate` first")
            if superusers.get(login.name) or login.name == own:
                raise UsageError(f"{login.name} owns the database or is a superuser; name another login")
            _give(connection, login, exists=login.name in superusers)
            if login.name not in superusers:
                made.append(login.name)
    return made


def _sessions(connection: Connection, role: str) -> int:
    """How many sessions it may have at once; -1: any number. Only workers may take all there are."""
    if role == "worker":
        return -1
    ((most,),) = connection.execute("SELECT current_setting('max_connections')::integer").fetchall()
    return max(10, int(most) // 5)


def _give(connection: Connection, login: Login, *, exists: bool) -> None:
    verifier = connection.pgconn.encrypt_password(
        login.password.encode(), login.name.encode(), b"scram-sha-256"
    )
    name = sql.Identifier(login.name)
    statement = sql.SQL("{} ROLE {} LOGIN NOCREATEDB NOCREATEROLE CONNECTION LIMIT {} PASSWORD {}")
    limit = sql.Literal(_sessions(connection, login.role))
    verb = sql.SQL("ALTER" if exists else "CREATE")
    connection.execute(statement.format(verb, name, limit, sql.Literal(verifier.decode())))
    for group in GROUPS if exists else ():  # of another role before, perhaps
        if group != login.group:
            connection.execute(sql.SQL("REVOKE {} FROM {}").format(sql.Identifier(group), name))
    connection.execute(sql.SQL("GRANT {} TO {}").format(sql.Identifier(login.group), name))
