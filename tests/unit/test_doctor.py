"""Every judgement of the doctor, on facts as they might be gathered."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from fencepost.ledger.listings import QueueInfo, WorkerInfo
from fencepost.ledger.revision import NEEDED
from fencepost.ledger.tail import Overview
from fencepost.settings import Settings
from fencepost.states import Queue
from fencepost_ops.commands.live import Ages
from fencepost_ops.doctor.facts import Login, PostgresFacts, RedisFacts, Standbys, Table, Versions
from fencepost_ops.doctor.findings import Finding, Level, Unread
from fencepost_ops.doctor.fleet import judge_fleet
from fencepost_ops.doctor.postgres import judge_postgres
from fencepost_ops.doctor.redis import judge_redis
from fencepost_ops.doctor.settings import judge_settings
from fencepost_ops.doctor.versions import judge_versions

NOW = datetime(2026, 1, 1, tzinfo=UTC)
S = timedelta(seconds=1)
WELL = WorkerInfo("t", "", "h", 1, NOW - 99 * S, NOW, None, progress_at=NOW, busy=0, slots=100)
LIVING = tuple(replace(WELL, role=str(queue)) for queue in Queue)
FLEET = Overview(NOW, {}, None, queues=(), workers=LIVING, unresolved=0, repairs=0, dead=0)
POSTGRES = PostgresFacts(
    version=180006,
    latency_s=0.0005,
    clock_ahead_s=0.0,
    in_recovery=False,
    settings={
        "max_connections": "100",
        "superuser_reserved_connections": "3",
        "reserved_connections": "0",
        "synchronous_commit": "on",
        "synchronous_standby_names": "b",
        "fsync": "on",
        "full_page_writes": "on",
        "autovacuum": "on",
    },
    login=Login("w", superuser=False, owner=False, groups=("fencepost_worker",)),
    standbys=Standbys(1, 1),
    oldest_transaction_s=None,
    tables=(Table("outbox", 100, 50),),
    sessions={"fencepost relay": 2},
    revision=NEEDED,
    movable_clock=False,
    fleet=FLEET,
)
REDIS = RedisFacts(
    server="valkey",
    version="9.1.2",
    latency_s=0.0002,
    policy="noeviction",
    maxmemory=100 * 2**20,
    used=10 * 2**20,
    aof=True,
    snapshots=True,
    lengths={},
    keys=9,
)
VERSIONS = Versions((3, 12), {"celery": "5.6.3", "kombu": "5.7.0", "redis": "8.1.0"}, kombu_speaks_redis=True)
HIDDEN = Unread("permission denied")


def bad(findings: Sequence[Finding]) -> list[tuple[Level, str]]:
    """What is not ok. Every finding that is not says what to do, or is a note."""
    assert all(f.do or f.level in {Level.OK, Level.NOTE} for f in findings), findings
    assert all("\n" not in f.says + f.do for f in findings)
    return [(f.level, f.says) for f in findings if f.level is not Level.OK]


def one(findings: Sequence[Finding], level: str, says: str) -> None:
    """Exactly this is wrong, and nothing else."""
    found = bad(findings)
    assert [(one, says in text) for one, text in found] == [(Level(level), True)], found


def with_setting(**changes: str) -> PostgresFacts:
    return replace(POSTGRES, settings={**POSTGRES.settings, **changes})


def test_a_healthy_fleet_has_only_good_findings() -> None:
    assert bad(judge_postgres(POSTGRES, 8)) == []
    assert bad(judge_redis(REDIS)) == []
    assert bad(judge_versions(VERSIONS, POSTGRES, REDIS)) == []
    assert bad(judge_settings(Settings())) == []
    assert bad(fleet(FLEET)) == []


@pytest.mark.parametrize(
    ("facts", "level", "says"),
    [
        (replace(POSTGRES, latency_s=0.05), "warning", "it answers in 50 ms"),
        (replace(POSTGRES, clock_ahead_s=5.0), "note", "its clock is 5 s ahead of this machine's"),
        (replace(POSTGRES, clock_ahead_s=-90.0), "warning", "its clock is 90 s behind this machine's"),
        (replace(POSTGRES, in_recovery=True), "problem", "this server is a standby"),
        (with_setting(default_transaction_read_only="on"), "problem", "default_transaction_read_only is on"),
        (replace(POSTGRES, pooler=True), "note", "a pooler answers for it"),
        (
            replace(POSTGRES, drifted=("of database f", "de_DE")),
            "warning",
            "collation of database f and de_DE",
        ),
        (replace(POSTGRES, drifted=HIDDEN), "note", "the versions of collations: not checked"),
        (with_setting(fsync="off"), "problem", "fsync is off"),
        (with_setting(full_page_writes="off", fsync="off"), "problem", "fsync and full_page_writes are off"),
        (with_setting(synchronous_commit="off"), "problem", "synchronous_commit is off"),
        (with_setting(synchronous_commit="local"), "warning", "synchronous_commit is local"),
        (replace(POSTGRES, standbys=Standbys(1, 0)), "problem", "nothing is recorded"),
        (
            replace(POSTGRES, standbys=Standbys(1, None)),
            "note",
            "commits wait for b; whether it is connected",
        ),
        (replace(POSTGRES, standbys=HIDDEN), "note", "replication: not checked (permission denied)"),
        (
            replace(with_setting(synchronous_standby_names=""), standbys=Standbys(2, 0)),
            "warning",
            "2 standbys, none of them synchronous: a failover loses the last commits",
        ),
        (
            replace(with_setting(synchronous_standby_names=""), standbys=Standbys(0, 0)),
            "note",
            "no standby: what this server's disk loses is lost, and the promise needs a ledger that loses no",
        ),
        (replace(POSTGRES, revision="0000"), "problem", "the ledger is at revision 0000"),
        (replace(POSTGRES, revision=None), "problem", "there is no ledger: run `fencepost migrate` first"),
        (replace(POSTGRES, revision="9999"), "warning", "a later version migrated it"),
        (replace(POSTGRES, revision=HIDDEN), "note", "the schema's revision: not checked"),
        (replace(POSTGRES, movable_clock=True), "warning", "this database's clock can be moved"),
        (replace(POSTGRES, login=Login("p", True, True, ())), "warning", "this login, p, is a superuser"),
        (
            replace(POSTGRES, login=Login("o", False, True, ())),
            "warning",
            "this login, o, is the ledger's owner",
        ),
        (replace(POSTGRES, login=Login("n", False, False, ())), "problem", "this login, n, has none of the"),
        (
            replace(POSTGRES, login=Login("m", False, False, ("fencepost_relay", "fencepost_worker"))),
            "warning",
            "this login, m, has several roles",
        ),
        (with_setting(autovacuum="off"), "problem", "autovacuum is off"),
        (replace(POSTGRES, oldest_transaction_s=90.0), "warning", "a transaction has been open for 90 s"),
        (replace(POSTGRES, oldest_transaction_s=HIDDEN), "note", "the oldest open transaction: not checked"),
        (replace(POSTGRES, tables=(Table("outbox", 9, 20_000),)), "warning", "outbox holds 20000 dead row"),
        (replace(POSTGRES, tables=HIDDEN), "note", "dead row versions: not checked"),
        (
            with_setting(max_connections="50"),
            "problem",
            "6 processes with pools of 8 may open 58 of 47 sessions",
        ),
        (with_setting(max_connections="65"), "warning", "one more worker exceeds it"),
        (
            with_setting(reserved_connections="35"),
            "warning",
            "6 processes with pools of 8 may open 58 of 62 sessions",
        ),
        (replace(POSTGRES, fleet=HIDDEN), "note", "the sum of all pools: not checked"),
    ],
)
def test_a_postgres_is_judged(facts: PostgresFacts, level: str, says: str) -> None:
    one(judge_postgres(facts, 8), level, says)


def test_what_is_normal_in_a_postgres_is_no_finding() -> None:
    for facts in (
        replace(POSTGRES, tables=(Table("outbox", 100_000, 150_000),)),
        replace(POSTGRES, tables=(Table("outbox", 0, 9_000),)),
        replace(POSTGRES, oldest_transaction_s=30.0),
        replace(POSTGRES, clock_ahead_s=-0.9),
    ):
        assert bad(judge_postgres(facts, 8)) == []
    assert room(POSTGRES) == (
        "6 processes with pools of 8 may open 58 of 97 sessions (100 in all): 4 more worker processes fit"
    )


def room(facts: PostgresFacts) -> str:
    """What is said of the sum of all pools."""
    (says,) = [f.says for f in judge_postgres(facts, 8) if "sessions" in f.says]
    return says


def test_each_intake_is_counted_by_the_one_session_of_its_name() -> None:
    facts = replace(POSTGRES, sessions={"fencepost relay": 2, "fencepost intake": 3, "fencepost client": 24})
    assert room(facts).startswith("9 processes with pools of 8 may open 85 of 97 sessions")


@pytest.mark.parametrize(
    ("facts", "level", "says"),
    [
        (replace(REDIS, latency_s=0.03), "warning", "it answers in 30 ms"),
        (replace(REDIS, replica=True), "problem", "it is a replica"),
        (replace(REDIS, no_lists=("planner",)), "problem", "the key 'planner' of a queue is no list"),
        (replace(REDIS, policy="allkeys-lru"), "problem", "maxmemory-policy is allkeys-lru"),
        (replace(REDIS, maxmemory=0), "note", "no maxmemory is set (10.0 MiB used)"),
        (replace(REDIS, used=75 * 2**20), "warning", "75.0 MiB of 100.0 MiB are used (75%)"),
        (replace(REDIS, used=95 * 2**20), "problem", "95.0 MiB of 100.0 MiB are used (95%)"),
        (replace(REDIS, aof=False), "note", "snapshots only: messages are hints"),
        (replace(REDIS, aof=False, snapshots=False), "note", "nothing is kept over a restart"),
        (replace(REDIS, aof=False, snapshots=HIDDEN), "note", "nothing is kept over a restart"),
        (replace(REDIS, foreign=("a", "b", "c", "d")), "warning", "('a', 'b', 'c', …)"),
        (
            replace(REDIS, subjects=9, unknown=4),
            "problem",
            "4 of 9 subjects leased here lately are not in this",
        ),
        (replace(REDIS, unknown=HIDDEN), "note", "whether this database is shared with another ledger: not"),
    ],
)
def test_a_redis_is_judged(facts: RedisFacts, level: str, says: str) -> None:
    one(judge_redis(facts), level, says)


def packages(**changes: str | None) -> Versions:
    return replace(VERSIONS, packages={**VERSIONS.packages, **changes})


@pytest.mark.parametrize(
    ("versions", "postgres", "redis", "level", "says"),
    [
        (replace(VERSIONS, python=(3, 14)), POSTGRES, REDIS, "note", "Python 3.14 was not tested"),
        (
            packages(celery="5.7.0"),
            POSTGRES,
            REDIS,
            "warning",
            "celery 5.7.0: a worker with remote control on",
        ),
        (packages(celery="5.4.0"), POSTGRES, REDIS, "warning", "celery 5.4.0 was not tested; 5.6.3 was"),
        (packages(redis="6.4.0"), POSTGRES, REDIS, "warning", "redis 6.4.0 was not tested; 8.1.0 was"),
        (packages(celery=None), POSTGRES, REDIS, "note", "celery is not installed"),
        (
            replace(VERSIONS, kombu_speaks_redis=False),
            POSTGRES,
            REDIS,
            "problem",
            "kombu cannot speak to Redis",
        ),
        (
            VERSIONS,
            replace(POSTGRES, version=160004),
            REDIS,
            "problem",
            "Postgres 16 has no transaction_timeout",
        ),
        (
            VERSIONS,
            replace(POSTGRES, version=170002),
            REDIS,
            "note",
            "the suite runs on Postgres 18, this is 17",
        ),
        (
            VERSIONS,
            POSTGRES,
            replace(REDIS, server="redis", version="7.4.1"),
            "note",
            "the broker is redis 7.4",
        ),
        (packages(celery="5.7.0"), None, None, "warning", "celery 5.7.0"),
    ],
)
def test_versions_are_judged(
    versions: Versions, postgres: PostgresFacts | None, redis: RedisFacts | None, level: str, says: str
) -> None:
    one(judge_versions(versions, postgres, redis), level, says)


@pytest.mark.parametrize(
    ("changes", "level", "says"),
    [
        ({"poll_ms": 4000}, "problem", "FENCEPOST_POLL_MS (4000) is more than a third"),
        ({"worker_ttl_s": 1.5}, "warning", "FENCEPOST_WORKER_TTL_S (1.5 s) is shorter than one slow stamp"),
        ({"republish_s": 0.3}, "warning", "FENCEPOST_REPUBLISH_S (0.3 s) is not twice"),
        ({"planner_grace_s": 0}, "warning", "FENCEPOST_PLANNER_GRACE_S is 0"),
        ({"deaf_s": 5, "transaction_s": 2}, "warning", "FENCEPOST_DEAF_S (5 s) is not longer"),
        ({"transaction_s": 20}, "warning", "FENCEPOST_DEAF_S (30 s) is shorter than two transactions"),
        ({"drain_s": 590}, "warning", "FENCEPOST_DRAIN_S (590 s) comes near the 600 s"),
        ({"stall_s": 2}, "warning", "FENCEPOST_STALL_S (2 s) kills workers"),
        ({"hostile": True}, "warning", "FENCEPOST_HOSTILE is on"),
        ({"fault": "relay.after_take=crash"}, "warning", "fault points are armed"),
    ],
)
def test_settings_are_judged_by_their_order(changes: dict[str, Any], level: str, says: str) -> None:
    one(judge_settings(Settings(**changes)), level, says)


def test_what_is_turned_off_is_in_no_order() -> None:
    assert bad(judge_settings(Settings(deaf_s=0, stall_s=0))) == []


def fleet(
    found: Overview,
    sessions: dict[str, int] | Unread | None = None,
    lengths: dict[str, int] | None = None,
    *,
    reached: bool = True,
) -> list[Finding]:
    connected = {"fencepost relay": 2} if sessions is None else sessions
    said = (lengths or {}) if reached else None
    return judge_fleet(found, connected, said, intake="in", limits=Ages(10 * S, 40 * S))


def queue(name: str, due: int, oldest_s: float) -> QueueInfo:
    return QueueInfo(name, due, due, NOW - oldest_s * S, 0, 0, 0, None)


def planner(**changes: Any) -> Overview:
    """A fleet whose planner is different."""
    others = tuple(worker for worker in LIVING if worker.role != "planner")
    return replace(FLEET, workers=(*others, replace(LIVING[0], **changes)))


WITHOUT = replace(FLEET, workers=tuple(worker for worker in LIVING if worker.role != "planner"))


@pytest.mark.parametrize(
    ("judged", "level", "says"),
    [
        (lambda: fleet(FLEET, {}), "problem", "no relay is connected: nothing is published"),
        (lambda: fleet(FLEET, {"fencepost relay": 1}), "note", "one relay"),
        (lambda: fleet(FLEET, HIDDEN), "note", "relays: not checked"),
        (lambda: fleet(WITHOUT), "warning", "no planner works: what needs one will wait"),
        (
            lambda: fleet(replace(WITHOUT, queues=(queue("planner", 3, 5),))),
            "problem",
            "no planner works; 3 steps due",
        ),
        (
            lambda: fleet(WITHOUT, lengths={"planner": 7}),
            "problem",
            "no planner works; 0 steps due, 7 messages in its",
        ),
        (lambda: fleet(FLEET, lengths={"planner": 1001}), "warning", "1001 messages wait for 1 planner"),
        (lambda: fleet(FLEET, lengths={"in": 3}), "problem", "3 runs in the queue in, and nobody takes"),
        (
            lambda: fleet(replace(FLEET, queues=(queue("planner", 1, 61),))),
            "warning",
            "a step has been due for 1 m 01 s",
        ),
        (lambda: fleet(replace(FLEET, dead=2)), "warning", "2 steps set aside"),
        (lambda: fleet(replace(FLEET, unresolved=2, repairs=2)), "warning", "2 calls in need of a person"),
        (lambda: fleet(replace(FLEET, unresolved=2)), "note", "of 2 calls the outcome is not known yet"),
    ],
)
def test_a_fleet_is_judged(judged: Callable[[], list[Finding]], level: str, says: str) -> None:
    one(judged(), level, says)


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (planner(last_seen=NOW - 11 * S), "1 worker said nothing for more than 10 s"),
        (planner(progress_at=NOW - 41 * S, waiting=1), "1 worker lives and has taken nothing for 40 s"),
    ],
)
def test_a_worker_that_does_not_work_is_no_worker(found: Overview, says: str) -> None:
    first, second = bad(fleet(found))
    assert first == (Level.WARNING, "no planner works: what needs one will wait")
    assert second[0] is Level.WARNING
    assert says in second[1]


def test_no_length_is_made_up_for_a_redis_that_was_not_reached() -> None:
    told = [finding.says for finding in fleet(FLEET, reached=False)]
    assert "1 planner; 0 steps due, its queue unknown" in told
    assert not [says for says in told if "message" in says]


def test_an_intake_that_works_is_no_finding() -> None:
    connected = {"fencepost relay": 2, "fencepost intake": 1}
    assert bad(fleet(FLEET, connected, {"in": 3})) == []
    one(fleet(FLEET, connected, {"in": 1001}), "warning", "1001 runs wait to be taken in")
