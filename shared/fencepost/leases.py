"""
Leases: who may work on a run or a call just now, and under which fence.

What Redis grants. One Lua call per batch of wants. A want is granted when the lease is free, is already
this owner's, or is held by exactly the owner that the ledger names for the due row. A grant sets the holder
with a time to live and takes the next fence:

    fence = max(counter beside the lease, floor read from the ledger) + 1

What Postgres arbitrates. A grant is a proposal. The claim moves `fence < granted` to `fence = granted,
owner = me` in one transaction, and recording requires fence and owner to be equal. So Redis may forget
everything, fail over to an older copy, evict keys, or hand out one number twice: of two holders one claim
wins, the other is told Fenced. Redis says only "do not disturb"; its clock only ever delays (R6). When it is
down nothing is claimed, attempts in flight still record, and nothing is lost.

What each guard prevents.

    owner = a fresh random token per execution    two executions in one process, thread or task taken for one
    "already mine" is granted again               a lost reply locking its owner out until the lease ends
    "held by the named owner" is granted          a dead worker's lease outliving the due time of its row
    any other holder is refused                   two workers starting one subject between two claims
    floor in the fence                            a wiped counter starting again below the ledger's fence
    the counter outlives the lease by a day       a short-lived lease restarting the count for a slow holder
    release names its owner                       a late release freeing a successor's lease
    no retries in the client                      a grant counted once and sent many times (R4)

What none of them prevents: a paused holder that still sends. The time left is checked just before the wire,
and the downstream's contract covers the rest.

Keys (one hash slot per subject, so a cluster works; nothing else is stored):
    fencepost:lease:{<tenant>/<subject>}    the owner; lives for the lease's time
    fencepost:fence:{<tenant>/<subject>}    the last fence; lives a day longer
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Protocol
from uuid import UUID

import redis
import redis.connection as redis_connection
from redis.backoff import NoBackoff
from redis.retry import Retry

from fencepost.errors import Unreachable
from fencepost.settings import file_of, fresh

_pool: Callable[..., redis.BlockingConnectionPool] = redis.BlockingConnectionPool
parse_url: Callable[[str], dict[str, Any]] = redis_connection.parse_url
SOCKET_TIMEOUT_S: Final = 2.0
POOL_WAIT_S: Final = 0.9  # with the socket timeout still under three seconds
COUNTER_OUTLIVES_LEASE: Final = timedelta(days=1)
MAX_FENCE: Final = 2**53 - 1  # Lua counts in doubles

# What is no text under one of our keys is nobody's lease and no counter: it must not fail a whole list.
_READ: Final = """
local function read(key)
  local found = redis.pcall('GET', key)
  return type(found) == 'string' and found
end
"""
# ARGV[1] is how much longer a counter lives than its lease, ms; then owner, named, floor, ttl in ms of each.
_GRANT: Final = (
    _READ
    + """
local fences = {}
for i = 1, #KEYS / 2 do
  local lease, counter, at = KEYS[2 * i - 1], KEYS[2 * i], 4 * i - 2
  local owner, named, floor, ttl = ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
  local holder = read(lease)
  if not holder or holder == owner or holder == named then
    local last = tonumber(read(counter) or 0) or 0
    local fence = math.max(last, floor) + 1
    redis.call('SET', counter, fence, 'PX', ttl + tonumber(ARGV[1]))
    redis.call('SET', lease, owner, 'PX', ttl)
    fences[i] = fence
  else
    fences[i] = false
  end
end
return fences
"""
)

_RELEASE: Final = (
    _READ
    + """
for i = 1, #KEYS do
  if read(KEYS[i]) == ARGV[i] then redis.call('DEL', KEYS[i]) end
end
"""
)


def lease_key(tenant: str, subject: UUID) -> str:
    """The name under which a subject is leased; different subjects never share one."""
    return f"{tenant}/{subject}"


@dataclass(frozen=True, slots=True)
class Want:
    """
    One lease asked for. `key` is from `lease_key`, `owner` this execution's token, `floor` the fence the
    ledger holds, `named_owner` the owner it names for the due row (None: nobody), `ttl` the time to
    deadline + grace. Raises ValueError for an empty owner, a floor that leaves no fence, a ttl of nothing.
    """

    key: str
    owner: str
    floor: int
    named_owner: str | None
    ttl: timedelta

    def __post_init__(self) -> None:
        if not self.owner:
            raise ValueError("a lease needs an owner")
        if not 0 <= self.floor < MAX_FENCE:
            raise ValueError(f"floor {self.floor} is outside 0 .. 2^53 - 2")
        if self.ttl <= timedelta(0):
            raise ValueError(f"a lease of {self.ttl} has ended before it began")


class Leases(Protocol):
    """
    The port; tests/integration/test_leases_port.py is its conformance suite. A granted fence is above the
    floor and, while the implementation remembers the key, above every fence granted for it before.
    """

    def grant(self, wants: Sequence[Want]) -> list[int | None]:
        """
        The fence for each want, in order; None: somebody else holds it. The same owner asking again is
        granted again, with a higher fence. Raises Unreachable, and then the wants may have been granted.
        """

    def release(self, holds: Sequence[tuple[str, str]]) -> None:
        """Free each (key, owner) still held by that very owner. Best effort: never raises, may do nothing."""


def connect(url: str, *, size: int, timeout_s: float = SOCKET_TIMEOUT_S) -> redis.Redis:
    """
    A client that sends each command once and gives up on a silent server after `timeout_s`. Nothing is sent
    until the first command. Raises ValueError for a malformed address.
    """
    ours = {
        "max_connections": size,
        "timeout": POOL_WAIT_S,
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        "retry": Retry(NoBackoff(), 0),
        "retry_on_error": [],
        "protocol": 2,  # no handshake: each of its round trips would wait a timeout of its own
        "driver_info": None,
    }
    pool: redis.BlockingConnectionPool = _pool(**rotating(url, {**ours, **parse_url(url)}))
    return redis.Redis(connection_pool=pool)


class _Login(redis.CredentialProvider):
    """A login as the file of the address holds it when a connection begins: it may have been rotated."""

    def __init__(self, url: str) -> None:
        self._url = url

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        found = parse_url(fresh(self._url))
        name, password = found.get("username"), found.get("password") or ""
        return (name, password) if name else (password,)


def rotating(url: str, how: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a connection, with a login that is read anew where the address came from a file."""
    if file_of(url) is None or not how.get("password"):
        return how
    kept = {name: value for name, value in how.items() if name not in ("username", "password")}
    return {**kept, "credential_provider": _Login(url)}


class RedisLeases:
    """
    Leases in Redis. Safe for many threads, of which `pool_size` talk at once. A call takes under three
    seconds whatever Redis does.
    """

    def __init__(self, url: str, *, pool_size: int = 8) -> None:
        self._redis = connect(url, size=pool_size)
        self._grant = self._redis.register_script(_GRANT)
        self._release = self._redis.register_script(_RELEASE)

    def grant(self, wants: Sequence[Want]) -> list[int | None]:
        """See Leases.grant. A server that refuses (full, loading, read-only) is Unreachable as well."""
        if not wants:
            return []
        args: list[Any] = [_milliseconds(COUNTER_OUTLIVES_LEASE)]
        for want in wants:
            args += [want.owner, want.named_owner or "", want.floor, _milliseconds(want.ttl)]
        try:
            fences: list[int | None] = self._grant(
                keys=[name for want in wants for name in (_lease(want.key), _counter(want.key))],
                args=args,
            )
        except redis.RedisError as error:
            raise Unreachable(f"Redis grants no leases: {error}") from error
        return fences

    def release(self, holds: Sequence[tuple[str, str]]) -> None:
        """See Leases.release. A lease that stays only makes others wait for its time to live."""
        if not holds:
            return
        try:
            self._release(keys=[_lease(key) for key, _ in holds], args=[owner for _, owner in holds])
        except redis.RedisError:
            return

    def close(self) -> None:
        """Close all connections; leases stay until released or expired."""
        self._redis.connection_pool.disconnect()


def _lease(key: str) -> str:
    return f"fencepost:lease:{{{key}}}"


def _counter(key: str) -> str:
    return f"fencepost:fence:{{{key}}}"


def _milliseconds(span: timedelta) -> int:
    return max(1, math.ceil(span / timedelta(milliseconds=1)))
