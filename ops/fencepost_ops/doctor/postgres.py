"""A Postgres as the ledger's home: does it lose no commit, and can it bear the fleet. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from fencepost.ledger.revision import NEEDED, complaint, is_newer
from fencepost_ops.connections import room
from fencepost_ops.doctor.facts import Login, PostgresFacts, Standbys, Table
from fencepost_ops.doctor.findings import Area, Finding, Unread

_AREA = Area("Postgres")
PROMISE: Final = "the promise needs a ledger that loses no commit"
SLOW_S: Final = 0.02
CLOCK_NOTE_S: Final = 1.0
CLOCK_WARNING_S: Final = 30.0
OLD_TRANSACTION_S: Final = 60.0
MANY_DEAD: Final = 10_000
ROLES: Final = (
    "fencepost_worker",
    "fencepost_relay",
    "fencepost_producer",
    "fencepost_operator",
    "fencepost_reader",
    "fencepost_api",
)


def judge_postgres(facts: PostgresFacts, pool_size: int) -> list[Finding]:
    """Everything about the server but what the fleet does on it."""
    return [
        *_reach(facts),
        *_ledger(facts),
        *_login(facts.login),
        *_durable(facts),
        *_order(facts),
        *_upkeep(facts),
        *_room(facts, pool_size),
    ]


def _reach(facts: PostgresFacts) -> Iterator[Finding]:
    latency, ahead = facts.latency_s * 1000, facts.clock_ahead_s
    if facts.latency_s > SLOW_S:
        yield _AREA.warning(
            f"it answers in {latency:.0f} ms: every step of a run costs several such round trips",
            "put the fleet nearer to its Postgres",
        )
    else:
        yield _AREA.ok(f"it answers in {latency:.1f} ms")
    if facts.pooler:
        yield _AREA.note(
            "a pooler answers for it: it has to leave each session to one client",
            "use its session mode, or connect past it; sessions that lose their settings are refused",
        )
    if abs(ahead) <= CLOCK_NOTE_S:
        return
    where = f"its clock is {abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} this machine's"
    means = "deadlines go by Postgres's clock alone, but logs and Celery's redelivery by the machine's"
    if abs(ahead) > CLOCK_WARNING_S:
        yield _AREA.warning(f"{where}; {means}", "set both by NTP")
    else:
        yield _AREA.note(f"{where}; {means}", "set both by NTP")


def _ledger(facts: PostgresFacts) -> Iterator[Finding]:
    revision = facts.revision
    if isinstance(revision, Unread):
        yield _AREA.unread("the schema's revision", revision)
    elif is_newer(revision):
        yield _AREA.warning(str(complaint(revision)), "upgrade this installation; workers go on meanwhile")
    elif (why := complaint(revision)) is not None:
        yield _AREA.problem(why, "as the database's owner, while workers run: it takes a moment")
    else:
        yield _AREA.ok(f"the ledger is at revision {NEEDED}, as this version needs")
    if facts.movable_clock is True:
        yield _AREA.warning(
            "this database's clock can be moved: whoever does so makes leases and deadlines meaningless",
            "use such a database for tests only",
        )


def _login(login: Login | Unread) -> Iterator[Finding]:
    if isinstance(login, Unread):
        yield _AREA.unread("the login's rights", login)
    elif login.superuser or login.owner:
        what = "a superuser" if login.superuser else "the ledger's owner"
        yield _AREA.warning(
            f"this login, {login.user}, is {what}: it may switch off what Postgres itself refuses (R7)",
            "use it for `fencepost migrate` only, and give each process a login of its own role",
        )
    elif not login.groups:
        yield _AREA.problem(
            f"this login, {login.user}, has none of the roles {', '.join(ROLES)}",
            f"GRANT one of them TO {login.user}",
        )
    elif len(login.groups) > 1:
        yield _AREA.warning(
            f"this login, {login.user}, has several roles ({', '.join(login.groups)}): more than any process "
            "needs",
            "give each process a login of its own role",
        )
    else:
        yield _AREA.ok(f"this login, {login.user}, has the role {login.groups[0]} and no more")


def _order(facts: PostgresFacts) -> Iterator[Finding]:
    if isinstance(facts.drifted, Unread):
        yield _AREA.unread("the versions of collations", facts.drifted)
    elif facts.drifted:
        yield _AREA.warning(
            f"the system's collation {' and '.join(facts.drifted)} has changed after indexes were built: "
            "those that sort by it may miss rows (the ledger's own columns sort by bytes)",
            "REINDEX what uses it, then ALTER DATABASE ... REFRESH COLLATION VERSION",
        )


def _durable(facts: PostgresFacts) -> Iterator[Finding]:
    if facts.in_recovery:
        yield _AREA.problem(
            "this server is a standby: nothing can be recorded on it", "point FENCEPOST_DSN to the primary"
        )
        return
    if facts.settings.get("default_transaction_read_only") == "on":
        yield _AREA.problem(
            "default_transaction_read_only is on: nothing can be recorded, and every run stands still",
            "turn it off once the switch-over is through; the fleet goes on by itself (until then no relay "
            "stays connected and no worker can say that it lives: start none)",
        )
    off = [name for name in ("fsync", "full_page_writes") if facts.settings.get(name) == "off"]
    if facts.settings.get("synchronous_commit") == "off":
        off.append("synchronous_commit")
    if off:
        yield _AREA.problem(
            f"{' and '.join(off)} {'is' if len(off) == 1 else 'are'} off: a crash can take back what was "
            f"answered, and {PROMISE}",
            "turn it on; for demos and tests it may stay off",
        )
    else:
        yield _AREA.ok("a commit is on its disk before it is answered")
    yield from _replicated(facts)


def _replicated(facts: PostgresFacts) -> Iterator[Finding]:
    standbys, names = facts.standbys, facts.settings.get("synchronous_standby_names", "")
    if isinstance(standbys, Unread):
        yield _AREA.unread("replication", standbys)
    elif names and facts.settings.get("synchronous_commit") == "local":
        yield _AREA.warning(
            f"synchronous_commit is local, so that no commit waits for {names}: a failover loses what it had "
            f"not received, and {PROMISE}",
            "set synchronous_commit to on",
        )
    elif names and standbys.synchronous is None:
        yield _AREA.note(
            f"commits wait for {names}; whether it is connected this login may not see",
            "ask again as a member of pg_monitor",
        )
    elif names and not standbys.synchronous:
        yield _AREA.problem(
            f"commits wait for {names}, and no such standby is connected: nothing is recorded",
            "start the standby, or take it out of synchronous_standby_names knowing what that costs",
        )
    elif names:
        yield _AREA.ok(f"commits wait for {names}: a failover to it loses none")
    elif standbys.connected:
        yield _AREA.warning(
            f"{_some(standbys)}, none of them synchronous: a failover loses the last commits, and {PROMISE}",
            "set synchronous_standby_names wherever failover is automatic",
        )
    else:
        yield _AREA.note(
            f"no standby: what this server's disk loses is lost, and {PROMISE}",
            "add a synchronous standby, and never fail over to an older copy",
        )


def _some(standbys: Standbys) -> str:
    return f"{standbys.connected} standby{'' if standbys.connected == 1 else 's'}"


def _upkeep(facts: PostgresFacts) -> Iterator[Finding]:
    if facts.settings.get("autovacuum") == "off":
        yield _AREA.problem(
            "autovacuum is off: the outbox is updated all day and grows without bound", "turn autovacuum on"
        )
    oldest = facts.oldest_transaction_s
    if isinstance(oldest, Unread):
        yield _AREA.unread("the oldest open transaction", oldest)
    elif oldest is not None and oldest > OLD_TRANSACTION_S:
        yield _AREA.warning(
            f"a transaction has been open for {oldest:.0f} s: nothing that died since can be vacuumed, and "
            "claims slow down",
            "end it: SELECT pid, query FROM pg_stat_activity ORDER BY xact_start; set "
            "idle_in_transaction_session_timeout for whoever leaves them open",
        )
    if isinstance(facts.tables, Unread):
        yield _AREA.unread("dead row versions", facts.tables)
        return
    for table in facts.tables:
        if _bloated(table):
            yield _AREA.warning(
                f"{table.name} holds {table.dead} dead row versions beside {table.live} living: claims slow "
                "down",
                f"end old transactions, then VACUUM fencepost.{table.name}",
            )


def _bloated(table: Table) -> bool:
    return table.dead > max(MANY_DEAD, 2 * table.live)


def _room(facts: PostgresFacts, pool_size: int) -> Iterator[Finding]:
    if isinstance(facts.fleet, Unread):
        yield _AREA.unread("the sum of all pools", facts.fleet)
        return
    scale: dict[str, int] = {}
    for worker in facts.fleet.workers:
        scale[worker.role] = scale.get(worker.role, 0) + 1
    if not isinstance(facts.sessions, Unread):
        scale["relay"] = facts.sessions.get("fencepost relay", 0)
        scale["intake"] = facts.sessions.get("fencepost intake", 0)
    limit = int(facts.settings["max_connections"])
    reserved = sum(int(facts.settings.get(f"{name}reserved_connections", 0)) for name in ("superuser_", ""))
    left = room(scale, pool_size, limit=limit, reserved=reserved)
    total = sum(scale.values())
    processes = f"{total} process{'' if total == 1 else 'es'} with pools of {pool_size}"
    sums = f"{processes} may open {left.needed} of {left.allowed} sessions ({limit} in all)"
    if left.needed > left.allowed:
        yield _AREA.problem(
            f"{sums}: under load some will be refused one, and wait",
            "raise max_connections, or lower FENCEPOST_POOL_SIZE or the number of processes",
        )
    elif left.more == 0:
        yield _AREA.warning(
            f"{sums}: one more worker exceeds it",
            "raise max_connections, or lower FENCEPOST_POOL_SIZE, before you scale",
        )
    else:
        yield _AREA.ok(f"{sums}: {left.more} more worker processes fit")
