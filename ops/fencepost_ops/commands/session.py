"""What every command shares: which ledger, which application, and how its answer is asked for.

`--dsn`, `--redis-url` and `--app` may stand before or after a command's name; they win over the environment.
What a list of commands or a refused word does not need is imported where it is used.
"""

from __future__ import annotations

import getpass
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from fencepost.errors import FencepostError, UsageError
from fencepost.names import named

if TYPE_CHECKING:
    import psycopg

    from fencepost import Client
    from fencepost.app import App
    from fencepost.ledger.connect import Connection
    from fencepost.settings import Settings

F = TypeVar("F", bound=Callable[..., Any])


class Session:
    """One invocation's settings, read when they are first needed."""

    def __init__(self) -> None:
        self.overrides: dict[str, str] = {}

    def settings(self, *needed: str) -> Settings:
        """The settings; UsageError naming what to set if one of `needed` is empty."""
        from fencepost.settings import load_settings

        settings = load_settings(**self.overrides)
        settings.need(*needed)
        return settings

    def client(self, app: App | None = None) -> Client:
        """A client of the ledger; nothing is opened yet. `app` says who may approve, where no policy does."""
        from fencepost import Client

        settings = self.settings("dsn")
        return Client(settings.dsn, settings.redis_url, pool_size=1, app=app)

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """A session in Postgres, each statement its own transaction. Every error is one of ours."""
        from fencepost.ledger.connect import connect

        with self.errors(), connect(self.settings("dsn").dsn, "fencepost cli", autocommit=True) as connection:
            yield connection

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Whatever Postgres says inside becomes one sentence, and an error of ours."""
        import psycopg

        try:
            yield
        except psycopg.Error as error:
            raise self._explained(error) from error

    def _explained(self, error: psycopg.Error) -> Exception:
        import psycopg

        from fencepost.ledger.connect import translate
        from fencepost.settings import redact

        dsn = self.settings().dsn
        explained = translate(error, dsn)
        if not isinstance(explained, psycopg.Error):
            return explained
        return FencepostError(f"Postgres at {redact(dsn)} says: {str(error).splitlines()[0]}")

    def app(self) -> App | None:
        """The application, if one is named; UsageError if it cannot be loaded."""
        from fencepost.loading import load_app

        path = self.settings().app
        return load_app(path) if path else None

    def need_app(self) -> App:
        """The application; UsageError if none is named."""
        app = self.app()
        if app is None:
            raise UsageError("name the application: --app package.module:attribute, or set FENCEPOST_APP")
        return app


def _remember(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    if value is not None:
        ctx.ensure_object(Session).overrides[str(param.name)] = value


def _setting(name: str, metavar: str, text: str) -> Callable[[F], F]:
    return click.option(
        name, metavar=metavar, help=text, expose_value=False, callback=_remember, is_eager=True
    )


def _login() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a uid without a name
        return ""


def _of_tenant(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    return None if value is None else named("tenant", value)


dsn_option = _setting("--dsn", "URL", "Postgres, with the login to use; by default FENCEPOST_DSN.")
redis_option = _setting("--redis-url", "URL", "Redis, to wake the relay; by default FENCEPOST_REDIS_URL.")
app_option = _setting("--app", "MODULE:ATTR", "The application; by default FENCEPOST_APP.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
tenant_option = click.option("--tenant", metavar="NAME", callback=_of_tenant, help="Only of this tenant.")
by_option = click.option(
    "--by", metavar="NAME", default=_login, show_default="your login name", help="Who decides this."
)
LIMIT: Final = click.IntRange(1, 1_000_000)
"""How many rows a list may be asked for."""
reason_option = click.option("--reason", metavar="TEXT", required=True, help="Why; it goes into the history.")
pass_session = click.make_pass_decorator(Session, ensure=True)
