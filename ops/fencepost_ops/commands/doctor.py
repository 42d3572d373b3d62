"""`fencepost doctor`: settings, versions, Postgres, Redis and the fleet, judged; or an app's clients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from importlib.util import find_spec
from shutil import which
from typing import Any, Final

import click
from rich.text import Text

from fencepost.canonical import reveal, sanitize
from fencepost.errors import FencepostError, UsageError
from fencepost.ledger import policies
from fencepost.settings import Settings
from fencepost_ops.commands.live import ages
from fencepost_ops.commands.output import console, print_json, print_table, shown
from fencepost_ops.commands.session import (
    Session,
    app_option,
    dsn_option,
    json_option,
    pass_session,
    redis_option,
)
from fencepost_ops.doctor import gather
from fencepost_ops.doctor.dependencies import judge_dependencies
from fencepost_ops.doctor.facts import PostgresFacts, RedisFacts
from fencepost_ops.doctor.findings import Finding, Level, Unread
from fencepost_ops.doctor.fleet import judge_fleet
from fencepost_ops.doctor.mcp import judge_mcp
from fencepost_ops.doctor.policies import judge_policies
from fencepost_ops.doctor.postgres import judge_postgres
from fencepost_ops.doctor.redis import judge_redis
from fencepost_ops.doctor.retries import judge_retries
from fencepost_ops.doctor.secrets import judge_secrets
from fencepost_ops.doctor.settings import judge_settings
from fencepost_ops.doctor.signing import judge_signing
from fencepost_ops.doctor.versions import judge_versions

_STYLES: Final = {
    Level.OK: "green",
    Level.NOTE: "",
    Level.WARNING: "yellow",
    Level.PROBLEM: "bold red",
}
_UNREACHABLE: Final = 3
_SENTENCE: Final = 2000  # characters; a server's own words may be among them


@click.command()
@dsn_option
@redis_option
@app_option
@click.option("--settings", "listing", is_flag=True, help="List every setting as well, after the findings.")
@click.option("--retries", is_flag=True, help="Judge the application's clients instead, by their retries.")
@json_option
@pass_session
@click.pass_context
def doctor(ctx: click.Context, session: Session, listing: bool, retries: bool, as_json: bool) -> None:
    """Judge settings, servers and the fleet, or with --retries the application's clients.

    Each finding is ok, a note, a warning or a problem, with what it means and what to do. It changes nothing,
    and what its login may not see it says. Exit code 1 if there is a problem, 3 if Postgres or Redis cannot
    be reached; the rest is shown all the same. An application that is named is loaded, to see whether one of
    its dependencies asks for capabilities, and whether the policies in force know its tools.

    --retries loads the application and looks at the clients it holds, without a network: each that sends
    again by itself is named, with the line that turns it off. What a function makes when called is not seen.
    """
    if retries:
        ctx.exit(_judge_clients(session, as_json))
    settings = session.settings("dsn")
    postgres, redis, unreached = _gathered(settings)
    findings = [*_judged(settings, postgres, redis), *_capabilities(session, settings), *unreached]
    if postgres is not None:
        findings += _policies(session)
    if as_json:
        print_json({"settings": list(_settings(settings)), "findings": findings})
    else:
        _show_findings(findings)
        _show_settings(settings, listing=listing)
    if unreached:
        ctx.exit(_UNREACHABLE)
    ctx.exit(int(any(finding.level is Level.PROBLEM for finding in findings)))


def _judge_clients(session: Session, as_json: bool) -> int:
    app = session.need_app()
    findings = judge_retries(app, session.settings().app.partition(":")[0])
    if as_json:
        print_json({"findings": findings})
    else:
        _show_findings(findings)
    return int(any(finding.level is Level.PROBLEM for finding in findings))


def _gathered(settings: Settings) -> tuple[PostgresFacts | None, RedisFacts | None, list[Finding]]:
    """The facts of both servers, None for one that cannot be reached, which is then among the findings."""
    unreached = []
    postgres: PostgresFacts | None = None
    redis: RedisFacts | None = None
    server: gather.Session | None = None
    try:
        server = gather.open_postgres(settings.dsn)
        postgres = gather.postgres(server)
    except FencepostError as error:
        unreached.append(_unreached("Postgres", error, "FENCEPOST_DSN"))
    try:
        if not settings.redis_url:
            raise UsageError("set FENCEPOST_REDIS_URL: relays and workers cannot start without it")
        redis = gather.broker(
            settings.redis_url, settings.intake_queue, server if postgres is not None else None
        )
    except FencepostError as error:
        unreached.append(_unreached("Redis", error, "FENCEPOST_REDIS_URL"))
    if server is not None:
        server.close()
    return postgres, redis, unreached


def _unreached(area: str, error: Exception, variable: str) -> Finding:
    return Finding(area, Level.PROBLEM, str(error), f"start it, or correct {variable}")


def _judged(
    settings: Settings, postgres: PostgresFacts | None, redis: RedisFacts | None
) -> Iterator[Finding]:
    yield from judge_settings(settings)
    yield from judge_versions(gather.versions(), postgres, redis)
    if postgres is not None:
        yield from judge_postgres(postgres, settings.pool_size)
    if redis is not None:
        yield from judge_redis(redis)
    if postgres is None:
        return
    yield from judge_dependencies(postgres.retries)
    if isinstance(postgres.fleet, Unread):
        yield Finding("fleet", Level.NOTE, f"not checked ({postgres.fleet.why})", "use a reader's login")
        return
    yield from judge_fleet(
        postgres.fleet,
        postgres.sessions,
        redis.lengths if redis is not None else None,
        intake=settings.intake_queue,
        limits=ages(settings),
    )


def _capabilities(session: Session, settings: Settings) -> Iterator[Finding]:
    """Of the application, where one is named, it is asked who wants capabilities, and who names secrets."""
    try:
        app = session.app()
    except FencepostError as error:
        yield Finding("application", Level.PROBLEM, str(error), "mend it: no worker starts with it")
        app = None
    dependencies = () if app is None else app.dependencies
    yield from judge_signing(settings.signing_keys, dependencies, datetime.now(UTC))
    if app is not None:
        for note in app.notes():
            yield Finding("application", Level.NOTE, note)
        yield from judge_secrets(settings.secrets_dir, app)
        yield from judge_mcp(
            app, installed=find_spec("mcp") is not None, found=lambda name: bool(which(name))
        )


def _policies(session: Session) -> Iterator[Finding]:
    """The policies in force, held against the application where one can be loaded."""
    try:
        app = session.app()
    except FencepostError:  # said of the capabilities already
        app = None
    try:
        with session.connection() as connection:
            live = policies.live(connection)
    except FencepostError as error:
        yield Finding("policies", Level.NOTE, f"not checked ({error})", "use a reader's login")
        return
    yield from judge_policies(live, app)


def _settings(settings: Settings) -> Iterator[dict[str, Any]]:
    fields = type(settings).model_fields
    for (variable, value, meaning), (name, field) in zip(settings.described(), fields.items(), strict=True):
        default = getattr(settings, name) == field.default
        yield {"name": variable, "value": value, "default": default, "meaning": meaning}


def _show_settings(settings: Settings, *, listing: bool) -> None:
    items = list(_settings(settings))
    if not listing:
        changed = sum(not item["default"] for item in items)
        click.echo(f"{changed} of {len(items)} settings are not the default: fencepost doctor --settings")
        return
    rows = [
        (item["name"], shown(item["value"], "" if item["default"] else "bold"), item["meaning"])
        for item in items
    ]
    click.echo()
    print_table(["SETTING!", "VALUE", "MEANING?"], rows)


def _show_findings(findings: Sequence[Finding]) -> None:
    out, area = console(), ""
    for finding in findings:
        if finding.area != area:
            area = finding.area
            out.print(Text(f"\n{area}", "bold"))
        out.print(
            Text(f"  {finding.level:<8} ", _STYLES[finding.level]),
            Text(reveal(sanitize(finding.says, _SENTENCE))),
            sep="",
        )
        if finding.do:
            out.print(Text(f"           → {finding.do}", "dim" if finding.level is Level.NOTE else ""))
    counts = Counter(finding.level for finding in findings)
    said = [
        f"{counts[level]} {level}{'' if counts[level] == 1 else 's'}"
        for level in (Level.PROBLEM, Level.WARNING)
    ]
    click.echo(f"\n{', '.join(said)}")
