"""A Redis as broker and lessor: does it drop nothing, and is it ours alone. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from fencepost_ops.doctor.facts import RedisFacts
from fencepost_ops.doctor.findings import Area, Finding, Unread

_AREA = Area("Redis")
SLOW_S: Final = 0.02
FULL: Final = 0.7
NEARLY_ALL: Final = 0.9


def judge_redis(facts: RedisFacts) -> list[Finding]:
    """Everything about the server but the length of its queues, which `fleet` judges beside the workers."""
    return [*_reach(facts), *_writable(facts), *_memory(facts), *_persistence(facts), *_shared(facts)]


def _reach(facts: RedisFacts) -> Iterator[Finding]:
    if facts.latency_s > SLOW_S:
        yield _AREA.warning(
            f"it answers in {facts.latency_s * 1000:.0f} ms: every claim waits for it",
            "put the fleet nearer to its Redis",
        )
    else:
        yield _AREA.ok(f"{facts.server} {facts.version} answers in {facts.latency_s * 1000:.1f} ms")


def _writable(facts: RedisFacts) -> Iterator[Finding]:
    if facts.replica:
        yield _AREA.problem(
            "it is a replica: it grants no leases and takes no messages",
            "point FENCEPOST_REDIS_URL to the primary",
        )
    for queue in facts.no_lists:
        yield _AREA.problem(
            f"the key {queue!r} of a queue is no list: nothing can be published to it or taken from it",
            f"find who writes it, then DEL {queue}: nothing is lost, the relay publishes again",
        )


def _memory(facts: RedisFacts) -> Iterator[Finding]:
    if facts.policy != "noeviction":
        yield _AREA.problem(
            f"maxmemory-policy is {facts.policy}: a full Redis throws whole queues away without a word, and "
            "their runs wait to be published again",
            "CONFIG SET maxmemory-policy noeviction, and in its configuration",
        )
    if not facts.maxmemory:
        yield _AREA.note(
            f"no maxmemory is set ({_mib(facts.used)} used): it grows until the machine has no memory left",
            "set maxmemory; with noeviction a full Redis refuses, and nothing is lost",
        )
        return
    share = facts.used / facts.maxmemory
    says = f"{_mib(facts.used)} of {_mib(facts.maxmemory)} are used ({share:.0%})"
    full = "a full Redis takes no message and grants no lease: runs stand still"
    if share > NEARLY_ALL:
        yield _AREA.problem(f"{says}: {full}", "raise maxmemory now")
    elif share > FULL:
        yield _AREA.warning(f"{says}: {full}", "raise maxmemory, or find whose keys these are")
    else:
        yield _AREA.ok(says)


def _mib(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"


def _persistence(facts: RedisFacts) -> Iterator[Finding]:
    if facts.aof:
        yield _AREA.ok("it keeps an append-only file: a restart loses a second at most")
        return
    what = "snapshots only" if facts.snapshots is True else "nothing is kept over a restart"
    yield _AREA.note(
        f"{what}: messages are hints and come again from Postgres, but one in an intake queue is the only "
        "copy",
        "set appendonly yes where plain Celery clients send runs to an intake",
    )


def _shared(facts: RedisFacts) -> Iterator[Finding]:
    if isinstance(facts.unknown, Unread):
        yield _AREA.unread("whether this database is shared with another ledger", facts.unknown)
    elif facts.unknown:
        yield _AREA.problem(
            f"{facts.unknown} of {facts.subjects} subjects leased here lately are not in this ledger: "
            "another environment shares this Redis database, and each drops the messages of the other",
            "give every environment a database or a server of its own (redis://host/1)",
        )
    if facts.foreign:
        shown = ", ".join(map(repr, facts.foreign[:3])) + (", …" if len(facts.foreign) > 3 else "")
        yield _AREA.warning(
            f"keys of somebody else's are in this database ({shown}): "
            "their memory and their FLUSHDB are ours too",
            "give Fencepost a database of its own",
        )
    elif not facts.unknown:
        yield _AREA.ok(f"its {facts.keys} keys are Fencepost's")
