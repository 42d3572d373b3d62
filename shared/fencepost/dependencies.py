"""Dependencies: the remote services tools talk to, each with one retry owner and its own limits of time."""

import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Literal

from fencepost.errors import UsageError
from fencepost.mcp import McpServer, Stdio, Streamable, ToolCall
from fencepost.misspelt import check_fields, check_values
from fencepost.outbound import Outbound, outbound
from fencepost.redaction import own, own_address
from fencepost.settings import variable
from fencepost.wire import Request, StoredRequest, check_base_url, check_headers

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.:-]{0,99}")
CAPABILITY_HEADER: Final = "Fencepost-Capability"


@dataclass(frozen=True)
class Breaker:
    """When a dependency that fails is left alone, for the whole fleet; `fencepost.breaker` has the rules.

    After `failures` in a row it is left alone for `pause`, doubled for each time it then still fails, up to
    `pause_cap`; then at most `probes` calls at a time find out whether it works. A Retry-After closes it at
    once. UsageError for what cannot be.
    """

    failures: int = 20
    pause: timedelta = timedelta(milliseconds=500)
    pause_cap: timedelta = timedelta(seconds=30)
    probes: int = 1

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("failures", "probes"):
            if getattr(self, name) < 1:
                raise UsageError(f"a breaker's {name} is 1 or more, not {getattr(self, name)}")
        if not timedelta(0) < self.pause <= self.pause_cap:
            raise UsageError(
                f"a breaker's pause lies above 0 and not above pause_cap {self.pause_cap}, not {self.pause}"
            )


@dataclass(frozen=True)
class DependencySpec:
    """A remote service with one retry owner, which is us; SDK, HTTP and broker retries stay off.

    `reserve` is kept back from the run's deadline for recovery, `grace` follows an attempt's deadline before
    a takeover, `margin` is safety before the end of a deduplication window. `headers` go out with every
    request and are never stored; their values may be `env:NAME`.

    `rate` is how many attempts and questions a second start at most, `concurrency` how many are in flight at
    most, both in the whole fleet and both paid for with a lock per claim; None: no limit. `slots` is how many
    one worker process executes at a time: None is half of its slots (FENCEPOST_SLOTS; FENCEPOST_PLANNER_SLOTS
    for models) where there is something else to be done, so that a slow one leaves the other half to the
    rest, and all of them where there is not.

    Requests go to `base_url` and to the `hosts` named here (`api.example.com`, `*.example.com`) and nowhere
    else, inside the network only as `private` and the base_url allow: `fencepost.outbound` has the rules.
    With `capability` each attempt carries a signed one, in the header Fencepost-Capability or the one named.
    READ tools follow up to `redirects` redirects, each to where the dependency may go; other tools none.
    `mcp` says that it is an MCP server, and how it is reached: at `base_url`, or started for each attempt.
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
    breaker: Breaker = Breaker()
    rate: float | None = None
    concurrency: int | None = None
    slots: int | None = None
    hosts: tuple[str, ...] = ()
    private: bool | tuple[str, ...] = False
    capability: bool | str = False
    redirects: int = 0
    mcp: McpServer | None = None

    def __post_init__(self) -> None:
        check_fields(self, f"dependency {self.name}")
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
        self._check_limits()
        self._check_server()
        try:
            check_headers(self.headers)
            told = None if self.base_url is None or self.base_url.startswith("env:") else self.base_url
            if told is not None:
                check_base_url(told)
            outbound(told, self._named_hosts(), self._inside())
            if isinstance(self.capability, str):
                check_headers(((self.capability, ""),))
        except ValueError as error:
            raise UsageError(f"dependency {self.name}: {error}") from error

    def _check_limits(self) -> None:
        if self.rate is not None and not 0.001 <= self.rate <= 1_000_000:
            raise UsageError(
                f"dependency {self.name} has a rate of {self.rate}; it is 0.001 to 1000000 a second"
            )
        if not 0 <= self.redirects <= 10:
            raise UsageError(f"dependency {self.name} has redirects {self.redirects}; it is 0 to 10")
        for name in ("concurrency", "slots"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"dependency {self.name} has {name} {value}; it is 1 or more, or None")

    def _check_server(self) -> None:
        if isinstance(self.mcp, Streamable) and self.base_url is None:
            raise UsageError(f"dependency {self.name} is an MCP server by HTTP; it needs a base_url")
        if isinstance(self.mcp, Stdio) and (self.base_url or self.hosts or self.headers or self.capability):
            raise UsageError(
                f"dependency {self.name} is a process: it has no base_url, hosts, headers or capability; "
                "what it needs is given as Stdio(env=...)"
            )

    def _named_hosts(self) -> tuple[str, ...]:
        return tuple(self.hosts)

    def _inside(self) -> Literal[True] | tuple[str, ...]:
        return True if self.private is True else tuple(self.private or ())

    @property
    def capability_header(self) -> str | None:
        """The header its capabilities travel in; None for a dependency that asks for none."""
        if isinstance(self.capability, str):
            return self.capability
        return CAPABILITY_HEADER if self.capability else None

    @property
    def limited(self) -> bool:
        """Whether a limit holds for the whole fleet."""
        return self.rate is not None or self.concurrency is not None

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

    def outbound(self) -> Outbound:
        """Where its requests may go, by the base URL as it is set now. UsageError where `url` has one."""
        base = None if self.base_url is None else self.url()
        return outbound(base, self._named_hosts(), self._inside())

    def bind(self, request: Request | ToolCall) -> StoredRequest:
        """The absolute request to store. OutboundRefused where it leads elsewhere; UsageError as `url`.

        A whole URL is one of `hosts`: the base_url's host is not open to it, which leads below its path only.
        """
        if isinstance(request, ToolCall):
            if isinstance(self.mcp, Stdio):
                return request.bind(f"stdio://{self.scope}")
            stored = request.bind(self.url())
            self.outbound().admit(stored.target)
            return stored
        stored, rules = request.bind(None if self.base_url is None else self.url()), self.outbound()
        target = rules.admit(stored.target)
        if request.whole:
            rules.named(target)
        return stored

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
    check_values(what, {"name": name}, check_name)
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
    if "://" in value:
        own_address(value)
    else:
        own(value)
    return value
