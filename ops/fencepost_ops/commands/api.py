"""`fencepost api`: the HTTP interface for producers."""

from __future__ import annotations

from importlib.util import find_spec

import click

from fencepost.errors import UsageError
from fencepost.telemetry import spans
from fencepost.telemetry.start import start
from fencepost_ops.commands.session import Session, dsn_option, pass_session, redis_option


@click.command()
@click.option(
    "--host", metavar="ADDRESS", help="Where to listen; by default FENCEPOST_API_HOST, the loopback."
)
@click.option("--port", type=click.IntRange(0, 65535), help="By default FENCEPOST_API_PORT; 0: any free one.")
@click.option("--log", is_flag=True, help="A line for each request, without headers and query.")
@dsn_option
@redis_option
@pass_session
def api(session: Session, host: str | None, port: int | None, log: bool) -> None:
    """Serve runs, their events, signals and cancels over HTTP until Ctrl-C.

    It takes a login of role fencepost_api, and tokens that `fencepost tokens new` made. /openapi.json tells
    what there is. It speaks plain HTTP: beyond this machine put a proxy with TLS, and limits for slow
    headers, in front of it, and name that in FENCEPOST_API_PROXIES.
    """
    if missing := [part for part in ("fastapi", "uvicorn") if find_spec(part) is None]:
        raise UsageError(f"`fencepost api` needs {' and '.join(missing)}: pip install 'fencepost[api]'")
    from fencepost_ops.api.server import serve

    session.overrides |= {
        name: str(value) for name, value in (("api_host", host), ("api_port", port)) if value is not None
    }
    with session.errors():
        settings = session.settings("dsn")
        start(settings, "api", text="%(levelname)s %(message)s", quiet=not log)
        try:
            serve(settings, lambda where: click.echo(f"listening on {where}"))
        finally:
            spans.close()
    click.echo("stopped")
