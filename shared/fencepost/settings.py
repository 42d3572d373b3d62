"""Settings of a process, read from `FENCEPOST_*` environment variables; no password is ever shown.

Any of them may come from a file instead, as secrets of containers do: `FENCEPOST_DSN_FILE` names a file that
holds what `FENCEPOST_DSN` would.
"""

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from fencepost.errors import UsageError
from fencepost.misfits import misfits
from fencepost.names import named
from fencepost.redaction import hidden, own, own_address, own_environment

PREFIX = "FENCEPOST_"
FILE = "_FILE"
SECRET_PREFIX = "FENCEPOST_SECRET_"  # noqa: S105 - a name
"""Of the variables that hold secrets which arguments name."""
DAY_S = 86_400
_LONGEST_ADDRESS = 2000
_MOST_OF_A_FILE = 64 * 1024  # bytes

# Up to the last "@": a password may hold one that nobody quoted.
_URL_PASSWORD = re.compile(r"(://[^:@/\s]*):.*@")
_KEYWORD_PASSWORD = re.compile(
    r"\b((?:ssl)?pass(?:word|wd)?|pwd)\s*=\s*(?:'(?:[^'\\]|\\.)*'?|[^\s&'\"]+)", re.IGNORECASE
)


def redact(text: str) -> str:
    """`text` with `***` for the password of every DSN in it and for what this process has to hide."""
    return hidden(_KEYWORD_PASSWORD.sub(r"\1=***", _URL_PASSWORD.sub(r"\1:***@", text)))


def address(text: str) -> str:
    """A DSN or URL without its password; what is neither may be a bare password, and is not shown at all."""
    return redact(text) if len(text) <= _LONGEST_ADDRESS and ("://" in text or "=" in text) else "***"


class Settings(BaseSettings):
    """One process's settings. Each role of process logs into Postgres with its own DSN."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_ignore_empty=True, extra="ignore", frozen=True, hide_input_in_errors=True
    )

    dsn: str = Field("", description="Postgres URL, with the login of this process's role")
    redis_url: str = Field("", description="Redis URL of the broker, the leases and the doorbell")
    app: str = Field("", description="the application, as module:attribute")
    slots: int = Field(100, ge=1, description="items one worker process executes at the same time")
    planner_slots: int = Field(
        1000,
        ge=1,
        description="the same for a planner worker of an application with models: most of them only wait",
    )
    pool_size: int = Field(8, ge=1, description="Postgres connections of one process at most")
    transaction_s: float = Field(
        10, ge=1, le=600, description="seconds one transaction of a worker in Postgres may take"
    )
    task_list: int = Field(100, ge=1, le=1000, description="subjects one broker message names at most")
    republish_s: float = Field(
        15, gt=0, le=DAY_S, description="seconds before a published row is published again"
    )
    broker_timeout_s: float = Field(
        10, ge=2, le=600, description="seconds of silence after which a worker gives up a broker connection"
    )
    poll_ms: int = Field(250, ge=1, le=60_000, description="milliseconds between looks at the outbox at most")
    worker_ttl_s: float = Field(
        10, gt=0, le=DAY_S, description="seconds of silence after which a worker is taken for dead"
    )
    compensation_s: float = Field(
        30, gt=0, le=DAY_S, description="seconds the planning of one compensation may take at most"
    )
    planner_grace_s: float = Field(
        2, ge=0, le=DAY_S, description="seconds after a planner attempt before a takeover"
    )
    takeover_limit: int = Field(5, ge=1, description="takeovers in a row before a subject is given up")
    sweep_s: float = Field(
        60, gt=0, le=DAY_S, description="seconds between looks for outbox rows that went missing"
    )
    deaf_s: float = Field(
        30, ge=0, le=DAY_S, description="seconds a worker may leave a waiting queue untouched; 0: for ever"
    )
    stall_s: float = Field(
        60, ge=0, le=DAY_S, description="seconds a worker may stand still before it is killed; 0: for ever"
    )
    drain_s: float = Field(
        30, ge=0, le=DAY_S, description="seconds a stopped worker gives to what is in flight to finish"
    )
    intake_queue: str = Field("intake", min_length=1, description="queue from which the intake takes runs")
    intake_tenant: str = Field("", description="tenant of every run the intake takes in")
    intake_principal: str = Field("", description="principal of every run the intake takes in")
    repair_by_two: bool = Field(
        default=False,
        description="a decision on a call that needs repair is only asked for; another login confirms it",
    )
    repair_confirm_s: float = Field(
        3600, gt=0, le=30 * DAY_S, description="seconds within which such a repair has to be confirmed"
    )
    api_host: str = Field("127.0.0.1", min_length=1, description="address the HTTP interface listens on")
    api_port: int = Field(8787, ge=0, le=65535, description="port of the HTTP interface; 0: any free one")
    api_body_bytes: int = Field(
        2 * 1024 * 1024, ge=1024, le=64 * 1024 * 1024, description="bytes of one HTTP request's body at most"
    )
    api_timeout_s: float = Field(
        15, gt=0, le=600, description="seconds one HTTP request may take; streams of events excepted"
    )
    api_streams: int = Field(
        200, ge=2, le=10_000, description="streams of events at once; one tenant has half of them at most"
    )
    api_heartbeat_s: float = Field(
        15, ge=0.1, le=600, description="seconds of silence after which a stream of events says that it lives"
    )
    api_proxies: str = Field(
        "", description="addresses of proxies, by commas, whose word for a client's address is taken"
    )
    secrets_dir: str = Field(
        "", description="folder of the secrets that arguments name, each in a file TENANT/NAME"
    )
    signing_keys: str = Field(
        "", description="folder of the keys that sign capabilities, made by fencepost keys new"
    )
    log: Literal["text", "json"] = Field("text", description="form of log lines: text, or json by structlog")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="least level of our own log lines; debug says one for each item"
    )
    metrics_address: str = Field(
        "", description="HOST:PORT where this process serves its figures to Prometheus; :0 for any free port"
    )
    otel: str = Field(
        "", description="module:function that sets OpenTelemetry's tracer provider when a process starts"
    )
    head_file: str = Field(
        "", description="file where workers keep the ledger's head, by which it is noticed that it went back"
    )
    health_file: str = Field("", description="file touched once a second while this process is healthy")
    fault: str = Field("", description="armed fault points, for drills: point=crash|pause|error[@n],...")
    fault_once_dir: str = Field("", description="folder that makes each fault fire once across restarts")
    fault_follow: str = Field("", description="file that arms faults whenever it changes, for drills")
    hostile: bool = Field(default=False, description="late acks and a short visibility timeout, for tests")

    @field_validator("redis_url")
    @classmethod
    def _is_redis(cls, url: str) -> str:
        if url and not url.startswith(("redis://", "rediss://", "unix://")):
            raise ValueError("it begins with redis://, rediss:// or unix://")
        return url

    @field_validator("intake_tenant", "intake_principal")
    @classmethod
    def _is_name(cls, name: str, info: ValidationInfo) -> str:
        try:
            return named(str(info.field_name).removeprefix("intake_"), name) if name else name
        except UsageError as error:
            raise ValueError(str(error)) from None

    @property
    def visibility_timeout_s(self) -> int:
        """Seconds after which the broker delivers anew what nobody has acknowledged. The shortest of all
        consumers of a Redis database holds for all of them, so it is the same everywhere.
        """
        return 2 if self.hostile else 600

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        for name, value in super().__repr_args__():
            yield name, redact(value) if isinstance(value, str) else value

    def need(self, *names: str) -> None:
        """UsageError, naming the variables, if one of these settings is empty."""
        if missing := [PREFIX + name.upper() for name in names if not getattr(self, name)]:
            raise UsageError(f"set {' and '.join(missing)}")

    def described(self) -> Iterator[tuple[str, str, str]]:
        """Variable, value without passwords, and meaning of every setting."""
        for name, info in type(self).model_fields.items():
            value = str(getattr(self, name))
            shown = address(value) if value and name in _ADDRESSES else redact(value)
            yield PREFIX + name.upper(), shown, info.description or ""


# What settings were read from files, and from which, so that whoever connects anew reads a password anew.
_ADDRESSES = {"dsn", "redis_url"}
_read_from: dict[str, str] = {}
_newest: dict[str, str] = {}


def fresh(value: str) -> str:
    """A setting as its file holds it now, where it was read from one: a password may have been rotated. The
    last value read where the file cannot be used just now. Never raises.
    """
    name = _read_from.get(value)
    if name is None:
        return value
    with suppress(UsageError):
        _remember(name, variable(name))
    return _newest[name]


def file_of(value: str) -> str | None:
    """The file a setting was read from; None where there is none."""
    name = _read_from.get(value)
    return None if name is None else os.environ.get(name + FILE)


def _remember(name: str, value: str | None) -> None:
    if value:
        own_address(value)
        _read_from[value] = name
        _newest[name] = value


def variable(name: str) -> str | None:
    """An environment variable, or what the file holds that NAME_FILE names, without its last newline; None if
    neither is set. UsageError, never with the value, if both are set or the file cannot be used.
    """
    value, file = os.environ.get(name), os.environ.get(name + FILE)
    if not file:
        return value or None
    if value:
        raise UsageError(f"{name} and {name}{FILE} are both set; keep one of them")
    path = Path(file)
    try:
        if path.exists() and not path.is_file():  # a pipe would be waited for
            raise UsageError(f"{name}{FILE} names {file}, which is no file")
        if path.stat().st_size > _MOST_OF_A_FILE:
            raise UsageError(f"{name}{FILE} names {file}, which is too long to be a setting")
        text = path.read_text(encoding="utf-8").rstrip("\r\n")
    except OSError as error:
        raise UsageError(f"{name}{FILE} names {file}, which cannot be read: {error.strerror}") from error
    except ValueError:  # its message would quote the file
        raise UsageError(f"{name}{FILE} names {file}, which is not a text in UTF-8") from None
    if not text:
        raise UsageError(f"{name}{FILE} names {file}, which is empty")
    if "\n" in text:
        raise UsageError(f"{name}{FILE} names {file}, which holds more than one line")
    return text


def load_settings(**overrides: object) -> Settings:
    """Settings from overrides and the environment, or files it names; UsageError that names a variable, never
    its value.
    """
    names = {name: PREFIX + name.upper() for name in Settings.model_fields if name not in overrides}
    files = {name: variable(full) for name, full in names.items() if os.environ.get(full + FILE)}
    own(*(value for name, value in os.environ.items() if name.startswith(SECRET_PREFIX)))
    for name in _ADDRESSES & files.keys():
        _remember(names[name], files[name])
    try:
        settings = Settings(**(files | overrides))  # type: ignore[arg-type]
    except ValidationError as error:
        problems = [f"{PREFIX}{str(one.path[0]).upper()}: {one.message}" for one in misfits(error)]
        raise UsageError("; ".join(problems)) from None
    own_address(settings.dsn)
    own_address(settings.redis_url)
    own_environment(settings.dsn)
    return settings
