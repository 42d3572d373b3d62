"""`fencepost principals` and `principal`: who is disabled, who has which roles, and who changed that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import click

from fencepost.ledger import listings, principals
from fencepost.ledger.principals import PrincipalInfo
from fencepost_ops.commands.output import print_json, print_table, when
from fencepost_ops.commands.sayings import cut
from fencepost_ops.commands.session import (
    LIMIT,
    Session,
    by_option,
    dsn_option,
    json_option,
    pass_session,
    reason_option,
    tenant_option,
)

_NEEDED: Final = click.option("--tenant", metavar="NAME", required=True, help="Of which tenant.")
_SEEN: Final = click.option(
    "--seen", type=int, metavar="N", help="The version you looked at; refuses if it has changed."
)


@click.command("principals")
@click.option("--changes", "changed", is_flag=True, help="List who changed what instead, the latest first.")
@click.option("--limit", type=LIMIT, default=100, show_default=True, help="Changes to list at most.")
@tenant_option
@dsn_option
@json_option
@pass_session
def principals_(session: Session, tenant: str | None, changed: bool, limit: int, as_json: bool) -> None:
    """List principals that have roles or are disabled.

    Whoever is not listed has no roles and is not disabled. With --changes: every change of a principal, a
    delegation or a withdrawn tool, as Postgres noted it, with the login that made it.
    """
    with session.connection() as connection:
        now = listings.now(connection)
        if changed:
            _print_changes(principals.changes(connection, tenant, limit), now, as_json=as_json)
            return
        found = principals.listed(connection, tenant)
    if as_json:
        print_json(found)
        return
    rows = [
        (
            one.tenant,
            one.principal,
            ", ".join(one.roles),
            f"disabled {when(one.disabled_at, now)}: {cut(one.reason)}" if one.disabled_at else "",
            one.changed_by,
            when(one.changed_at, now),
            one.version,
        )
        for one in found
    ]
    columns = ["TENANT", "PRINCIPAL", "ROLES", "DISABLED", "BY?", "CHANGED?", "VERSION>?"]
    print_table(columns, rows, empty="no principal has roles, and none is disabled")


def _print_changes(found: list[principals.Change], now: Any, *, as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    rows = [
        (when(one.at, now), one.login, one.made_by, one.about, one.change, _named(one), one.reason)
        for one in found
    ]
    columns = ["WHEN", "LOGIN", "BY", "ABOUT", "CHANGE", "WHAT", "REASON?"]
    print_table(columns, rows, empty="nothing was ever changed")


def _named(one: principals.Change) -> str:
    said = one.said
    if one.about == "withdrawn":
        return f"{said.get('tool')} v{said.get('version')}"
    if one.about == "delegations":
        return f"{said.get('principal')} > {said.get('delegate')} ({said.get('tools')}) of {one.tenant}"
    state = "disabled" if said.get("disabled_at") else f"roles {said.get('roles')}"
    return f"{said.get('principal')} of {one.tenant}: {state}"


@click.group()
def principal() -> None:
    """Disable a principal, enable it again, give and take its roles.

    It takes an operator's login. A change counts in every claim from then on: also for calls that were
    authorised before it and have not been sent.
    """


def _command(name: str, *more: Callable[[Any], Any]) -> Callable[[Callable[..., None]], click.Command]:
    def made(function: Callable[..., None]) -> click.Command:
        usual = (pass_session, json_option, dsn_option, _SEEN, by_option, reason_option, _NEEDED)
        options: tuple[Callable[[Any], Any], ...] = (*usual, *more)
        for option in options:
            function = option(function)
        return principal.command(name)(click.argument("principal")(function))

    return made


@_command("disable")
def disable(session: Session, as_json: bool, **asked: Any) -> None:
    """Have nothing sent for it any more.

    What is in flight ends, what is in doubt stays so until it is known, and its runs stop at their next call.
    """
    with session.connection() as connection:
        found = principals.disable(connection, **asked)
    _told(found, f"{cut(found.principal)} of {cut(found.tenant)} is disabled", as_json=as_json)


@_command("enable")
def enable(session: Session, as_json: bool, **asked: Any) -> None:
    """Let it have done again what grants and policies allow.

    What was denied meanwhile stays denied.
    """
    with session.connection() as connection:
        found = principals.enable(connection, **asked)
    _told(found, f"{cut(found.principal)} of {cut(found.tenant)} is enabled", as_json=as_json)


@_command(
    "roles",
    click.option("--remove", multiple=True, metavar="ROLE", help="Take this role; several may be given."),
    click.option("--add", multiple=True, metavar="ROLE", help="Give it this role; several may be given."),
)
def roles(session: Session, as_json: bool, **asked: Any) -> None:
    """Give and take roles, in one change."""
    if not asked["add"] and not asked["remove"]:
        raise click.UsageError("give --add ROLE or --remove ROLE")
    with session.connection() as connection:
        found = principals.set_roles(connection, **asked)
    word = "role" if len(found.roles) == 1 else "roles"
    has = f"has the {word} {', '.join(map(cut, found.roles))}" if found.roles else "has no role"
    _told(found, f"{cut(found.principal)} of {cut(found.tenant)} {has}", as_json=as_json)


def _told(found: PrincipalInfo, sentence: str, *, as_json: bool) -> None:
    if as_json:
        print_json(found)
    else:
        click.echo(sentence)
