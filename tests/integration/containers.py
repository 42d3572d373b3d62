"""docker-compose.yml and ops/Dockerfile without Docker: read, replayed in a folder, and run on loopback.

Not replayed: the kernel's part (users, capabilities, read-only roots, networks) and what pip downloads, for
which what is installed here stands in after its versions were compared with the pins.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml
from packaging.markers import Marker

ROOT = Path(__file__).resolve().parents[2]
SECRETS = "/run/secrets"
_VARIABLE = re.compile(r"\$(?:\$|\{([A-Z_]+)(?::-([^{}]*))?\})")
_ABSOLUTE = re.compile(r"(?:(?<=^)|(?<=[\s=>:\"]))/(?=\w)")


def normal(name: str) -> str:
    """A distribution's name as pins write it."""
    return re.sub(r"[-_.]+", "-", name).lower()


# --- docker-compose.yml -------------------------------------------------------------------------------------


def composition(env: Mapping[str, str], file: Path = ROOT / "docker-compose.yml") -> dict[str, Any]:
    """The file as `docker compose` reads it: anchors merged, variables filled in."""
    read: dict[str, Any] = _filled(yaml.safe_load(file.read_text()), env)
    return read


def _filled(value: Any, env: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return _VARIABLE.sub(lambda m: "$" if m[0] == "$$" else env.get(m[1]) or m[2] or "", value)
    if isinstance(value, dict):
        return {key: _filled(each, env) for key, each in value.items()}
    return [_filled(each, env) for each in value] if isinstance(value, list) else value


def seconds(duration: str) -> float:
    """A duration as Compose writes it, such as `1m30s`."""
    units = {"h": 3600.0, "m": 60.0, "s": 1.0}
    parts = re.findall(r"(\d+)([hms])", duration)
    assert "".join(number + unit for number, unit in parts) == duration, duration
    return sum(int(number) * units[unit] for number, unit in parts)


def argv(service: Mapping[str, Any]) -> list[str]:
    """What the service's container runs."""
    return [*service.get("entrypoint", []), *service["command"]]


def probe(service: Mapping[str, Any]) -> list[str]:
    """The command of the service's health check."""
    kind, *command = service["healthcheck"]["test"]
    return ["sh", "-c", *command] if kind == "CMD-SHELL" else command


# --- Dockerfile ---------------------------------------------------------------------------------------------


@dataclass
class Image:
    """What one stage of a Dockerfile leaves behind: a folder for its root, and its settings."""

    root: Path
    base: str = ""
    env: dict[str, str] = field(default_factory=dict)
    workdir: str = "/"
    user: str = "0"
    stopsignal: str = ""
    cmd: list[str] = field(default_factory=list)
    ran: list[str] = field(default_factory=list)
    pinned: dict[str, set[str]] = field(default_factory=dict)
    """What pip installed from pins, by folder."""

    def place(self, path: str) -> Path:
        """Where a path of the container lies here."""
        return self.root / os.path.join(self.workdir, path).lstrip("/")  # noqa: PTH118 - "/" wins in join


def instructions(dockerfile: str) -> Iterator[tuple[str, str]]:
    """Every instruction and its arguments, lines joined and comments left out."""
    lines = [line for line in dockerfile.splitlines() if not line.lstrip().startswith("#")]
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        if line.strip():
            word, _, rest = line.strip().partition(" ")
            yield word.upper(), " ".join(rest.split())


def replay(dockerfile: Path, context: Path, folder: Path) -> Image:
    """Follow the instructions in folders of their own; the last stage. KeyError for one not known here."""
    arguments: dict[str, str] = {}
    images: dict[str, Image] = {}
    image = Image(folder)
    for word, rest in instructions(dockerfile.read_text()):
        if word == "ARG":
            name, _, default = rest.partition("=")
            arguments[name] = default
        elif word == "FROM":
            base, _, name = _substituted(rest, arguments).partition(" AS ")
            image = Image(folder / f"stage{len(images)}", base)
            images[name] = image
            image.root.mkdir()
        else:
            _INSTRUCTIONS[word](image, rest, context, images)
    return image


def _substituted(text: str, arguments: Mapping[str, str]) -> str:
    return re.sub(r"\$\{(\w+)\}", lambda m: arguments[m[1]], text)


def _copy(image: Image, rest: str, context: Path, images: Mapping[str, Image]) -> None:
    words = rest.split()
    source, ignored, pinned = context, ignoring(context), dict[str, set[str]]()
    if words[0].startswith("--from="):
        stage = images[words.pop(0).removeprefix("--from=")]
        source, ignored, pinned = stage.root, lambda _: False, stage.pinned
    *names, target = words
    for name in names:
        image.pinned |= {target: pinned[name]} if name in pinned else {}
        found = source / name.lstrip("/")
        files = sorted(found.rglob("*")) if found.is_dir() else [found]
        taken = [f for f in files if f.is_file() and not ignored(f.relative_to(source).as_posix())]
        assert taken, f"COPY {name}: nothing there that .dockerignore lets through"
        for file in taken:
            inside = file.relative_to(found) if found.is_dir() else Path(file.name)
            whole = not found.is_dir() and not target.endswith("/")
            place = image.place(target) if whole else image.place(target) / inside
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, place)


def ignoring(context: Path) -> Callable[[str], bool]:
    """Whether .dockerignore keeps a path out: the last pattern that fits it or a parent decides."""
    lines = (context / ".dockerignore").read_text().splitlines()
    patterns = [line for line in lines if line and not line.startswith("#")]

    def out(path: str) -> bool:
        parents = [path, *map(str, Path(path).parents)]
        answer = False
        for pattern in patterns:
            bare = pattern.removeprefix("!")
            tails = ["/".join(p.split("/")[n:]) for p in parents for n in range(p.count("/") + 1)]
            fits = tails if bare.startswith("**/") else parents
            if any(fnmatch.fnmatchcase(each, bare.removeprefix("**/")) for each in fits):
                answer = not pattern.startswith("!")
        return answer

    return out


def _run(image: Image, rest: str, _context: Path, _images: Mapping[str, Image]) -> None:
    image.ran.append(rest)
    for command in rest.split(" && "):
        if "pip install" in command and "--requirement=" in command:
            _install(image, command)
            continue
        here = re.sub(r"^python ", f"{sys.executable} ", _ABSOLUTE.sub(f"{image.root}/", command))
        (image.root / "tmp").mkdir(exist_ok=True)
        # Whatever the line says: what is installed here belongs to whoever runs the tests.
        env = {**os.environ, **image.env, "PIP_IGNORE_INSTALLED": "1", "PYTHONPATH": ""}
        done = subprocess.run(
            ["sh", "-ec", here], cwd=image.place("."), env=env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"RUN {command}\n{done.stdout}{done.stderr}"


def _install(image: Image, command: str) -> None:
    """In place of downloads: every pin has hashes, and is what is installed here."""
    options = shlex.split(command)
    assert {"--require-hashes", "--only-binary=:all:"} <= set(options), command
    given = dict(each.split("=", 1) for each in options if "=" in each)
    named, pinned = (
        given["--requirement"],
        image.pinned.setdefault(given.get("--prefix", "/usr/local"), set()),
    )
    for entry in re.split(r"^(?=[a-z0-9])", image.place(named).read_text(), flags=re.MULTILINE):
        if not entry.strip():
            continue
        pin, _, rest = entry.partition("\\")
        requirement, _, marker = pin.partition(";")
        name, version = requirement.strip().split("==")
        assert "--hash=sha256:" in rest, entry
        if not marker or Marker(marker.strip()).evaluate():
            assert metadata.version(name) == version, f"{name} is not installed here as it is pinned"
            pinned.add(name)


def _env(image: Image, rest: str, _context: Path, _images: Mapping[str, Image]) -> None:
    image.env |= dict(pair.partition("=")[::2] for pair in shlex.split(rest))


def _workdir(image: Image, rest: str, _context: Path, _images: Mapping[str, Image]) -> None:
    image.workdir = rest
    image.place(".").mkdir(parents=True, exist_ok=True)


def _user(image: Image, rest: str, _context: Path, _images: Mapping[str, Image]) -> None:
    image.user = rest


def _stopsignal(image: Image, rest: str, _context: Path, _images: Mapping[str, Image]) -> None:
    image.stopsignal = rest


def _cmd(image: Image, rest: str, _context: Path, _images: Mapping[str, Image]) -> None:
    image.cmd = json.loads(rest)


_INSTRUCTIONS = {
    "COPY": _copy,
    "RUN": _run,
    "ENV": _env,
    "WORKDIR": _workdir,
    "USER": _user,
    "STOPSIGNAL": _stopsignal,
    "CMD": _cmd,
}
