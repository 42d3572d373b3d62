"""`fencepost up`: a whole fleet in the foreground, until Ctrl-C.

What is recorded stays in the data folder and is taken up again by the next `up` on it; a folder has one owner
at a time. Nothing this process starts outlives it, however it dies.
"""

from __future__ import annotations

import os
import shlex
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Final, Self
from urllib.parse import urlsplit

import click

from fencepost.app import App
from fencepost.dependencies import resolve
from fencepost.errors import Unreachable, UsageError
from fencepost.loading import load_app
from fencepost_ops.commands.session import Session, app_option, pass_session
from fencepost_ops.doctor.findings import Level
from fencepost_ops.doctor.signing import judge_signing
from fencepost_ops.fleet import INTAKE, ORDERS, ROLES, Fleet, FleetOptions
from fencepost_ops.folders import write_private
from fencepost_ops.installation import need_parts
from fencepost_ops.local import DataDirLock, FolderTakenError, LocalServerError
from fencepost_ops.ports import why_not

MOST: Final = 32  # processes of one role: this is one machine
LOOK_EVERY_S: Final = 0.5
MEND_AGAIN_AFTER_S: Final = 5.0
SCALED: Final = (*ROLES, INTAKE)
INTAKE_VARIABLES: Final = tuple(f"FENCEPOST_INTAKE_{name}" for name in ("QUEUE", "TENANT", "PRINCIPAL"))
SANDBOX_VARIABLE: Final = "FENCEPOST_SANDBOX_URL"


class Scale(click.ParamType[tuple[str, int]]):
    """`ROLE=N`: how many processes of a role."""

    name = "role=n"

    def convert(
        self, value: str | tuple[str, int], param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int]:
        """Role and number; fails for a role there is not and a number that cannot be."""
        if isinstance(value, tuple):
            return value
        role, _, count = value.partition("=")
        if role not in SCALED:
            self.fail(f"there is no role {role!r}; there are {', '.join(SCALED)}", param, ctx)
        if not count.isdecimal() or not 1 <= int(count) <= MOST:
            self.fail(f"{role} may have 1 to {MOST} processes, not {count!r}", param, ctx)
        return role, int(count)


@click.command()
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(".fencepost"),
    show_default=True,
    help="The folder everything recorded is kept in.",
)
@click.option(
    "--scale", type=Scale(), multiple=True, metavar="ROLE=N", help="More of a role, e.g. dispatcher=3."
)
@click.option(
    "--sandbox/--no-sandbox", default=True, help="Services for demos and drills: wallet, inventory, shipping."
)
@click.option("--flower/--no-flower", default=True, help="Celery's own view of workers and queues.")
@click.option(
    "--sandbox-port",
    type=click.IntRange(0, 65535),
    default=0,
    help="0: the one it had on this data, at first any free one. Requests in the ledger name it.",
)
@click.option("--flower-port", type=click.IntRange(0, 65535), default=0, help="0: any free one.")
@click.option(
    "--hold", is_flag=True, help="Hold the ledger first, after a restore: fencepost recover --help."
)
@click.option("--api/--no-api", default=False, help="The HTTP interface for producers.")
@click.option("--api-port", type=click.IntRange(0, 65535), default=0, help="0: any free one.")
@app_option
@pass_session
def up(
    session: Session,
    data: Path,
    scale: Sequence[tuple[str, int]],
    sandbox: bool,
    flower: bool,
    sandbox_port: int,
    flower_port: int,
    hold: bool,
    api: bool,
    api_port: int,
) -> None:
    """Run a whole fleet on this machine until Ctrl-C: Postgres, Valkey, relay, workers, Flower, sandbox.

    What dies is started again. The application is --app or FENCEPOST_APP, else the example of orders. When
    all is up, `. DATA/env` in another shell lets `fencepost enqueue`, `runs` and the others talk to it.
    """
    app_path = session.settings().app or ORDERS
    need_parts("up", flower=flower, api=api)
    app = load_app(app_path)
    check_environment(app, {SANDBOX_VARIABLE} if sandbox else set())
    check_signing(app, session.settings().signing_keys)
    ports = {"--sandbox-port": sandbox_port, "--flower-port": flower_port, "--api-port": api_port}
    for option, port in ports.items():
        _need_port(option, port)
    options = FleetOptions(
        app=app_path,
        data=data,
        scale={INTAKE: 1, **dict(scale)},
        env=_intake_env(session),
        sandbox=sandbox,
        flower=flower,
        sandbox_port=sandbox_port,
        flower_port=flower_port,
        hold="started with up --hold" if hold else None,
        api=api,
        api_port=api_port,
    )
    with _explained(), _Signals() as signals, DataDirLock(data):
        _run(Fleet(options), data, signals)
    click.echo("stopped")


def _intake_env(session: Session) -> dict[str, str]:
    """Whose runs the intake takes in: what the environment says, else a tenant for trying it."""
    settings = session.settings()
    queue, tenant, principal = settings.intake_queue, settings.intake_tenant, settings.intake_principal
    said = (queue, tenant or "default", principal or "svc:intake")
    return dict(zip(INTAKE_VARIABLES, said, strict=True))


def _need_port(option: str, port: int) -> None:
    """UsageError if the port is taken now; 0 stands for any free one."""
    if (why := why_not(port)) is not None:
        raise UsageError(f"port {port} ({option}) cannot be used: {why}; choose another")


def check_environment(app: App, provided: set[str]) -> None:
    """UsageError, naming the variable, if a dependency or a model reads one that is neither set nor
    `provided`.
    """
    asked = [model.dependency for model in app.models.values()]
    asked += [tool.dependency for tool in app.registry.values()]
    for spec in {spec.name: spec for spec in asked}.values():
        try:
            if spec.base_url is not None and spec.base_url.removeprefix("env:") not in provided:
                spec.url()
            spec.sent_headers()
        except UsageError as error:
            raise UsageError(f"the application's dependency {spec.name}: {error}") from error
    for model in app.models.values():
        try:
            resolve(model.key)
        except UsageError as error:
            raise UsageError(f"the key of the application's model {model.name}: {error}") from error


def check_signing(app: App, folder: str) -> None:
    """UsageError if a dependency asks for capabilities that no key in `folder` can sign: no dispatcher and no
    reconciler would start.
    """
    asking = any(spec.capability_header is not None for spec in app.dependencies)
    for found in judge_signing(folder, app.dependencies, datetime.now(UTC)) if asking else ():
        if found.level is Level.PROBLEM:
            raise UsageError(f"{found.says}; {found.do}")


@contextmanager
def _explained() -> Iterator[None]:
    """Trouble with local servers as one of our errors: a taken folder is usage, the rest is unreachable."""
    try:
        yield
    except FolderTakenError as error:
        raise UsageError(str(error)) from error
    except (LocalServerError, TimeoutError, RuntimeError) as error:
        raise Unreachable(str(error)) from error


class _Signals:
    """SIGINT, SIGTERM and SIGHUP ask to stop: at once while starting, at the next look while running.

    A second one ends this process without ceremony; its children end with it.
    """

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.interrupting = True
        self._before: dict[int, object] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            self._before[number] = signal.signal(number, self._ask)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _ask(self, number: int, _frame: FrameType | None) -> None:
        if self.asked.is_set():
            os._exit(128 + number)
        self.asked.set()
        if self.interrupting:
            raise KeyboardInterrupt


def _run(fleet: Fleet, data: Path, signals: _Signals) -> None:
    began = time.monotonic()

    def say(what: str) -> None:
        click.echo(f"{time.monotonic() - began:5.1f} s  {what}")

    fleet.start(say)
    try:
        say(f"waiting for {_counted_all(fleet)}")
        fleet.wait_ready()
        with _environment(fleet, data):
            signals.interrupting = False
            if signals.asked.is_set():  # raised where nobody could hear it, such as in a collector's callback
                raise KeyboardInterrupt
            click.echo(_block(fleet, data))
            _stay(fleet, signals)
            began = time.monotonic()
    finally:
        signals.interrupting = False
        signals.asked.set()
        fleet.stop()


def _stay(fleet: Fleet, signals: _Signals) -> None:
    """Until asked to stop: start again whatever server has died."""
    pause = LOOK_EVERY_S
    while not signals.asked.wait(pause):
        pause = LOOK_EVERY_S
        try:
            for name in fleet.mend():
                click.echo(f"{name} had died and was started again")
        except (LocalServerError, RuntimeError) as error:
            click.echo(f"a server has died and does not come up again: {error}", err=True)
            pause = MEND_AGAIN_AFTER_S


@contextmanager
def _environment(fleet: Fleet, data: Path) -> Iterator[None]:
    """Files for other shells while the fleet is up: `env` for an operator, `env.ROLE` for each role."""
    files = {data / f"env.{role}": role for role in fleet.database.dsns}
    files[data / "env"] = "operator"
    write_private(data / ".gitignore", "*\n")
    try:
        for file, role in files.items():
            write_private(file, exports(fleet.env(role)))
        yield
    finally:
        for file in files:
            with suppress(OSError):
                file.unlink()


def exports(variables: Mapping[str, str]) -> str:
    """Shell commands that set these variables; they hold passwords, so the file they go to is private."""
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in sorted(variables.items()))


def _block(fleet: Fleet, data: Path) -> str:
    where = urlsplit(fleet.database.owner)
    lines = [
        ("application", fleet.options.app),
        ("data", str(data.absolute())),
        ("processes", _counted_all(fleet)),
        ("Postgres", f"{where.hostname}:{where.port}, database {fleet.database.name}"),
        ("Valkey", f"127.0.0.1:{fleet.valkey.port}"),
    ]
    if fleet.sandbox is not None:
        lines.append(("sandbox", f"{fleet.sandbox.url} (wallet, inventory, shipping)"))
    queue, tenant, principal = (fleet.options.env[name] for name in INTAKE_VARIABLES)
    lines.append(("intake", f"queue {queue}, for tenant {tenant} as {principal}"))
    if fleet.flower_url is not None:
        lines.append(("Flower", fleet.flower_url))
    if fleet.api_url is not None:
        lines.append(("HTTP", f"{fleet.api_url} (tokens: fencepost tokens new)"))
    table = "\n".join(f"  {name:<12} {text}" for name, text in lines)
    shell = (
        f"  . {shlex.quote(str(data / 'env'))}\n  fencepost enqueue --help; fencepost runs; fencepost workers"
    )
    return f"\nfencepost is up\n{table}\n\nIn another shell:\n{shell}\n\nCtrl-C stops everything.\n"


def _counted_all(fleet: Fleet) -> str:
    return ", ".join(_counted(fleet, role) for role in SCALED)


def _counted(fleet: Fleet, role: str) -> str:
    count = fleet.count(role)
    return role if count == 1 else f"{count} {role}s"


if __name__ == "__main__":
    up()
