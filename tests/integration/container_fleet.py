"""The services of docker-compose.yml as processes here: host names are loopback, mounts are folders."""

import os
import random
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from fencepost_ops.ports import why_not
from fencepost_ops.postgres import postgres_program
from fencepost_ops.processes import Ending, Leashed
from fencepost_ops.valkey import _binary
from tests.awaiting import until
from tests.integration.containers import ROOT, SECRETS, Image, argv, normal, probe, seconds

WITHIN_S = 60.0
PORTS = ("5432", "6379", "8000", "5555")


def quiet_ports(names: Sequence[str]) -> dict[str, int]:
    """Free ports below those that the system gives to connections going out: they stay free for a while."""
    tried = random.sample(range(20_000, 32_000), 200)
    return dict(zip(names, (port for port in tried if why_not(port) is None), strict=False))


def status(port: int, path: str, login: str = "") -> int:
    """The status of the answer to an HTTP request."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}")
    if login:
        request.add_header("Authorization", f"Basic {b64encode(login.encode()).decode()}")
    try:
        with urllib.request.urlopen(request, timeout=WITHIN_S) as answer:  # noqa: S310
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def make_secrets(folder: Path) -> str:
    """Make the composition's secrets; what its script says."""
    command = ["sh", str(ROOT / "ops" / "compose" / "secrets.sh"), str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@dataclass
class Containers:
    """The services by name, and what runs of them. A name such as `relay-2` is one of several containers."""

    services: Mapping[str, Any]
    image: Image
    folder: Path
    ports: dict[str, int] = field(default_factory=lambda: quiet_ports(PORTS))
    running: dict[str, Leashed] = field(default_factory=dict)

    @property
    def secrets(self) -> Path:
        return self.folder / "secrets"

    def secret(self, name: str) -> str:
        return (self.secrets / name).read_text().strip()

    def service(self, name: str) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.services[name.partition("-")[0]]
        return found

    def grace(self, name: str) -> float:
        return seconds(self.service(name)["stop_grace_period"])

    def here(self, name: str, text: str) -> str:
        """A text of the composition with what stands in for the hosts, ports and folders it names."""
        text = re.sub(r"0\.0\.0\.0|\b(postgres|redis|sandbox)(?=:\d)", "127.0.0.1", text)
        text = re.sub(rf"(?<=[:=])({'|'.join(PORTS)})\b", lambda m: str(self.ports[m[1]]), text)
        folders = {SECRETS: self.secrets, "/tmp": self.folder / name, "/data": self.folder / name}  # noqa: S108
        return re.sub(r"(?<![\w/])(/run/secrets|/tmp|/data)\b", lambda m: str(folders[m[1]]), text)

    def env(self, name: str) -> dict[str, str]:
        """The environment of a container: the image's and the service's, and nothing of the tests'."""
        programs, site = str(self.folder / "bin"), self.image.place("/usr/local") / library()
        given = {**self.image.env, **self.service(name).get("environment", {})}
        return {
            **{key: self.here(name, str(value)) for key, value in given.items()},
            "LANG": "C.UTF-8",
            "PATH": os.pathsep.join([programs, str(self.image.place("/usr/local/bin")), os.defpath]),
            "PGPORT": str(self.ports["5432"]),
            "PYTHONPATH": os.pathsep.join([programs, str(site), str(self.image.place("/app"))]),
            "REDIS_PORT": str(self.ports["6379"]),
        }

    def start(self, name: str) -> None:
        (self.folder / name).mkdir(exist_ok=True)
        command = ["/usr/bin/env", *(self.here(name, word) for word in argv(self.service(name)))]
        with (self.folder / f"{name}.log").open("ab") as log:
            self.running[name] = Leashed(
                command,
                env=self.env(name),
                output=log,
                ending=Ending(stop=((signal.SIGTERM, self.grace(name)),)),
                cwd=self.image.place("/app"),
            )

    def log(self, name: str) -> str:
        return f"{name}:\n{(self.folder / f'{name}.log').read_text(errors='replace')}"

    def run(self, name: str, *arguments: str, entrypoint: str = "") -> subprocess.CompletedProcess[str]:
        """Run a service to its end, with other arguments perhaps, as `docker compose run` does."""
        (self.folder / name).mkdir(exist_ok=True)
        service = self.service(name)
        words = argv(service)
        if arguments:
            words = [*([entrypoint] if entrypoint else service["entrypoint"]), *arguments]
        return self._do(name, words)

    def _do(self, name: str, words: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.here(name, word) for word in words],
            env=self.env(name),
            cwd=self.image.place("/app"),
            capture_output=True,
            text=True,
            check=False,
            timeout=WITHIN_S,
        )

    def is_healthy(self, name: str) -> bool:
        """Whether the container's own check says so."""
        return self._do(name, probe(self.service(name))).returncode == 0

    def until_healthy(self, name: str) -> None:
        try:
            until(f"{name} is healthy", lambda: self.is_healthy(name), every_s=0.4)
        except AssertionError as late:
            late.add_note(self.log(name))
            raise

    def end(self, *names: str) -> dict[str, int | None]:
        """Ask these to end as `docker compose stop` does; how each of them did within its time."""
        for name in names:
            os.kill(self.running[name].pid, signal.SIGTERM)
        return {name: self.running[name].poll(self.grace(name)) for name in names}

    def stop(self) -> None:
        for child in self.running.values():
            child.release()
        for child in self.running.values():
            child.stop()


def library() -> Path:
    """Where pip puts packages below a prefix."""
    return Path("lib", f"python3.{sys.version_info.minor}", "site-packages")


BLOCK = '''
"""What is installed beside the tests and was not pinned for the image is not found."""
import sys
BLOCKED = frozenset({blocked!r})
class Missing:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"No module named {{name!r}} in the image", name=name)
sys.meta_path.insert(0, Missing)
'''

REDIS_CLI = """
import os, sys, redis
assert sys.argv[1:] == ["ping"]
client = redis.Redis(port=int(os.environ["REDIS_PORT"]), password=os.environ["REDISCLI_AUTH"])
print("PONG" if client.ping() else "")
"""


def put_programs(folder: Path, pinned: set[str]) -> None:
    """What a container finds on its path, and what its Python does not find."""
    folder.mkdir()
    owners = {name: set(map(normal, each)) for name, each in metadata.packages_distributions().items()}
    blocked = sorted(name for name, each in owners.items() if not each & {*pinned, "fencepost"})
    (folder / "sitecustomize.py").write_text(BLOCK.format(blocked=blocked))
    (folder / "redis_cli.py").write_text(REDIS_CLI)
    programs = {
        "python": f'"{sys.executable}" "$@"',
        "redis-cli": f'"{sys.executable}" "{folder}/redis_cli.py" "$@"',
        "redis-server": f'"{_binary()}" "$@" --port "$REDIS_PORT" --bind 127.0.0.1',
        "pg_isready": f'"{postgres_program("pg_isready")}" "$@"',
    }
    for name, line in programs.items():
        (folder / name).write_text(f"#!/bin/sh\nexec {line}\n")
        (folder / name).chmod(0o755)
