"""The sum of all pools, and what is left under a limit."""

import psycopg
import pytest

from fencepost.errors import Unreachable, UsageError
from fencepost.ledger.connect import translate
from fencepost_ops.connections import Room, connections_needed, max_connections, room
from fencepost_ops.fleet import ROLES, Fleet, FleetOptions

ONE_EACH = {"relay": 1, "planner": 1, "dispatcher": 1, "reconciler": 1, "compensator": 1}


@pytest.mark.parametrize(
    ("scale", "pool_size", "needed"),
    [
        ({}, 8, 20),
        ({"relay": 2}, 8, 22),
        ({"intake": 1}, 8, 29),
        ({"planner": 1}, 8, 29),
        ({"planner": 1}, 1, 22),
        (ONE_EACH, 8, 20 + 1 + 4 * 9),
        (ONE_EACH | {"dispatcher": 10}, 8, 20 + 1 + 13 * 9),
        (ONE_EACH | {"dispatcher": 10}, 20, 20 + 1 + 13 * 21),
    ],
)
def test_the_sum_of_all_pools(scale: dict[str, int], pool_size: int, needed: int) -> None:
    assert connections_needed(scale, pool_size) == needed


def test_what_is_left_is_counted_in_worker_processes() -> None:
    assert room(ONE_EACH, 8, limit=100, reserved=3) == Room(57, 97, 4)
    assert room(ONE_EACH | {"dispatcher": 5}, 8, limit=100, reserved=3) == Room(93, 97, 0)
    assert room(ONE_EACH | {"dispatcher": 6}, 8, limit=100, reserved=3) == Room(102, 97, 0)


@pytest.mark.parametrize("pool_size", [1, 8, 50])
@pytest.mark.parametrize("dispatchers", [1, 10, 32])
def test_a_postgres_of_our_own_allows_the_whole_fleet(dispatchers: int, pool_size: int) -> None:
    scale = ONE_EACH | {"dispatcher": dispatchers}
    limit = max_connections(scale, pool_size)
    assert limit >= 300
    left = room(scale, pool_size, limit=limit, reserved=3)
    assert left.needed <= left.allowed


@pytest.mark.parametrize(
    ("options", "scale", "pool_size"),
    [
        (FleetOptions(scale={"dispatcher": 32, "planner": 32}), {"dispatcher": 32, "planner": 32}, 8),
        (FleetOptions(env={"FENCEPOST_POOL_SIZE": "100"}), {}, 100),
        (FleetOptions(env_of={"planner": {"FENCEPOST_POOL_SIZE": "200"}}), {}, 200),
    ],
)
def test_a_fleet_starts_its_postgres_with_what_it_needs(
    options: FleetOptions, scale: dict[str, int], pool_size: int
) -> None:
    limit = int(Fleet(options).postgres_settings()["max_connections"])
    assert limit == max_connections(dict.fromkeys(ROLES, 1) | scale, pool_size) > 300


def test_what_is_asked_for_in_so_many_words_is_what_it_gets() -> None:
    asked = FleetOptions(scale={"dispatcher": 32}, postgres_settings={"max_connections": "50"})
    assert Fleet(asked).postgres_settings() == {"max_connections": "50"}
    assert Fleet(FleetOptions()).postgres_settings() == {"max_connections": "300"}


@pytest.mark.parametrize(
    ("reason", "kind", "says"),
    [
        (
            "sorry, too many clients already",
            Unreachable,
            "has no session left for us (sorry, too many",
        ),
        (
            'too many connections for role "w"',
            Unreachable,
            "has no session left for us (too many co",
        ),
        (
            "remaining connection slots are reserved for roles with the SUPERUSER attribute",
            Unreachable,
            "raise its max_connections, or lower FENCEPOST_POOL_SIZE or the number of processes",
        ),
        (
            'unrecognized configuration parameter "transaction_timeout"',
            UsageError,
            "needs version 17",
        ),
        ("the database system is starting up", Unreachable, "cannot reach Postgres"),
    ],
)
def test_a_server_that_refuses_a_session_is_one_sentence(
    reason: str, kind: type[Exception], says: str
) -> None:
    said = f'connection failed: connection to server at "127.0.0.1", port 5432 failed: FATAL:  {reason}'
    translated = translate(psycopg.OperationalError(said), "postgresql://u:s3cret@127.0.0.1/db")
    assert type(translated) is kind
    assert says in str(translated)
    assert "s3cret" not in str(translated)
