"""The entries of ops/requirements.lock that an image needs, hashes included; standard library only.

    python ops/pins.py [EXTRA ...]    what the project needs to run, with these extras of pyproject.toml
    python ops/pins.py --build        what builds its wheel

Each entry of the lock says what wants it (`# via`), so that the lock alone holds the whole tree.
"""

import re
import sys
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def name_of(requirement: str) -> str:
    """The normalised name a requirement begins with."""
    found = _NAME.match(requirement)
    if found is None:
        raise ValueError(f"{requirement!r} is no requirement")
    return re.sub(r"[-_.]+", "-", found[0]).lower()


def entries(lock: str) -> dict[str, str]:
    """The lock's entries by name, each with its marker, hashes and comments."""
    found = re.split(r"^(?=[a-z0-9])", lock, flags=re.MULTILINE)
    return {name_of(entry): entry for entry in found if entry.strip() and not entry.startswith("#")}


def wanted_by(entry: str) -> set[str]:
    """The names of what wants an entry, as its comments say."""
    comments = re.findall(r"^ +# +(?:via +)?(\S.*)$", entry, re.MULTILINE)
    return {name_of(comment) for comment in comments if comment != "via"}


def select(lock: str, wanted: Iterable[str]) -> str:
    """The entries of `wanted` and of all that these want, in the lock's order. ValueError without one."""
    known = entries(lock)
    chosen = {name_of(each) for each in wanted}
    if missing := sorted(chosen - set(known)):
        raise ValueError(f"the lock does not hold {', '.join(missing)}; run: make lock")
    while more := {name for name, entry in known.items() if wanted_by(entry) & chosen} - chosen:
        chosen |= more
    return "".join(entry for name, entry in known.items() if name in chosen)


def requirements(project: Mapping[str, Any], arguments: Iterable[str]) -> list[str]:
    """What the arguments ask for, as pyproject.toml says it. KeyError for an extra it has not."""
    if list(arguments) == ["--build"]:
        return list(project["build-system"]["requires"])
    extras = project["project"]["optional-dependencies"]
    return [*project["project"]["dependencies"], *(each for extra in arguments for each in extras[extra])]


def main() -> int:
    """Print the entries; 2 if that cannot be done."""
    try:
        project = tomllib.loads((HERE.parent / "pyproject.toml").read_text(encoding="utf-8"))
        lock = (HERE / "requirements.lock").read_text(encoding="utf-8")
        print(select(lock, requirements(project, sys.argv[1:])), end="")
    except KeyError as error:
        print(f"pins: pyproject.toml has no extra {error}", file=sys.stderr)
        return 2
    except (OSError, ValueError) as error:
        print(f"pins: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
