"""Versions against those the fleet was tested with. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from fencepost import __version__
from fencepost_ops.doctor.facts import PostgresFacts, RedisFacts, Versions
from fencepost_ops.doctor.findings import Area, Finding

_AREA = Area("versions")
TESTED: Final = {"celery": "5.6.3", "kombu": "5.7.0", "redis": "8.1.0"}
_OURS: Final = "pip install 'fencepost[fleet]' brings the ones tested"
PYTHONS: Final = ((3, 11), (3, 12), (3, 13))
LEAST_POSTGRES: Final = 17
TESTED_POSTGRES: Final = 18
TESTED_SERVER: Final = ("valkey", "9")


def judge_versions(
    versions: Versions, postgres: PostgresFacts | None, redis: RedisFacts | None
) -> list[Finding]:
    """What is installed and what answers, and whether it was tested together."""
    found = [*_packages(versions)]
    if versions.python not in PYTHONS:
        found.append(
            _AREA.note(
                f"Python {versions.python[0]}.{versions.python[1]} was not tested with this version",
                "use 3.11, 3.12 or 3.13 where it matters",
            )
        )
    if postgres is not None:
        found += _postgres(postgres.version // 10_000)
    if redis is not None and (redis.server, redis.version.partition(".")[0]) != TESTED_SERVER:
        found.append(
            _AREA.note(
                f"the broker is {redis.server} {redis.version}; the suite runs on {' '.join(TESTED_SERVER)}",
                "run the acceptance suite against yours once",
            )
        )
    names = ", ".join(f"{name} {number}" for name, number in versions.packages.items() if number)
    python = ".".join(map(str, versions.python))
    return [_AREA.ok(f"fencepost {__version__}, Python {python}, {names}"), *found]


def _packages(versions: Versions) -> Iterator[Finding]:
    packages = versions.packages
    for name, tested in TESTED.items():
        number = packages.get(name)
        if number is None:
            yield _AREA.note(f"{name} is not installed: workers and relays cannot run from here", _OURS)
        elif name == "celery" and _numbers(number) >= (5, 7):
            yield _AREA.warning(
                f"celery {number}: a worker with remote control on exits when the broker is away for two "
                "seconds with a task in hand",
                "use celery 5.6.3",
            )
        elif number != tested:
            yield _AREA.warning(f"{name} {number} was not tested; {tested} was", _OURS)
    if packages.get("kombu") is not None and not versions.kombu_speaks_redis:
        yield _AREA.problem(
            "kombu cannot speak to Redis: it was installed without its extra",
            "pip install 'kombu[redis]==5.7.0'",
        )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())


def _postgres(major: int) -> Iterator[Finding]:
    if major < LEAST_POSTGRES:
        yield _AREA.problem(
            f"Postgres {major} has no transaction_timeout: no process of the fleet can log in, because a "
            "worker frozen inside a transaction would freeze the others",
            f"use Postgres {LEAST_POSTGRES} or later",
        )
    elif major != TESTED_POSTGRES:
        yield _AREA.note(f"the suite runs on Postgres {TESTED_POSTGRES}, this is {major}")
