"""Dependencies: the remote services tools talk to, each with one retry owner and its own limits of time."""

import re
from dataclasses import dataclass
from datetime import timedelta

from fencepost.errors import UsageError
from fencepost.settings import variable
from fencepost.wire import check_base_url, check_headers

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.:-]{0,99}")


@dataclass(frozen=True)
class DependencySpec:
    """A remote service with one retry owner, which is us; SDK, HTTP and broker retries stay off.

    `reserve` is kept back from the run's deadline for recovery, `grace` follows an attempt's deadline before
    a takeover, `margin` is safety before the end of a deduplication window. `headers` go out with every
    request and are never stored; their values may be `env:NAME`.
    """

    name: str
    base_url: str | None = None
    attempts: int = 4
    per_attempt: timedelta = timedelta(seconds=10)
    backoff: timedelta = timedelta(milliseconds=200)
    backoff_cap: timedelta = timedelta(seconds=30)
    grace: timedelta = timedelta(seconds=2)
    reserve: timedelta = timedelta(seconds=5)
    reconcile_for: timedelta = timedelta(minutes=10)
    margin: timedelta = timedelta(minutes=1)
    account: str = "default"
    headers: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        check_name("dependency", self.name)
        check_name("account", self.account)
        if self.attempts < 1:
            raise UsageError(f"dependency {self.name} needs at least one attempt, not {self.attempts}")
        for name in ("per_attempt", "backoff", "backoff_cap", "grace", "reserve", "reconcile_for", "margin"):
            least = timedelta(microseconds=1) if name in {"per_attempt", "reconcile_for"} else timedelta(0)
            if getattr(self, name) < least:
                raise UsageError(
                    f"dependency {self.name} has a {name} that is too short: {getattr(self, name)}"
                )
        try:
            check_headers(self.headers)
            if self.base_url is not None and not self.base_url.startswith("env:"):
                check_base_url(self.base_url)
        except ValueError as error:
            raise UsageError(f"dependency {self.name}: {error}") from error

    @property
    def scope(self) -> str:
        """Where its operation keys are unique: the service and the account used there."""
        return f"{self.name}/{self.account}"

    def url(self) -> str:
        """The base URL, read from the environment if it is `env:NAME`; UsageError without a valid one."""
        if self.base_url is None:
            raise UsageError(f"dependency {self.name} has no base_url")
        try:
            return check_base_url(resolve(self.base_url))
        except ValueError as error:
            raise UsageError(f"dependency {self.name}: {error}") from error

    def sent_headers(self) -> tuple[tuple[str, str], ...]:
        """The headers of every request, their `env:NAME` values read now; UsageError if one is not set."""
        headers = tuple((name, resolve(value)) for name, value in self.headers)
        try:
            check_headers(headers)
        except ValueError as error:
            raise UsageError(f"dependency {self.name}: {error}") from error
        return headers


def check_name(what: str, name: str) -> str:
    """`name`, if it may be stored for ever; UsageError otherwise. Names are data and never derived."""
    if not _NAME.fullmatch(name):
        raise UsageError(f"{what} name {name!r} must be 1 to 100 of letters, digits, '_', '.', ':' or '-'")
    return name


def resolve(setting: str) -> str:
    """The setting itself, or the environment variable it names as `env:NAME` (or NAME_FILE, a file with its
    value); UsageError if not set.
    """
    if not setting.startswith("env:"):
        return setting
    value = variable(setting[4:])
    if value is None:
        raise UsageError(f"environment variable {setting[4:]} is not set")
    return value
