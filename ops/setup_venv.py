"""Build .venv from ops/requirements.lock, or find that it is up to date; standard library only.

Guaranteed: a .venv with its stamp is complete. One without (its making was killed) or of other content (the
lock changed, the folder moved, another Python was asked for) is made anew. Two at once wait for each other.
"""

import fcntl
import hashlib
import re
import shutil
import subprocess
import sys
import venv
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import DEVNULL

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "complete"
PIP = ("pip", "install", "--quiet", "--disable-pip-version-check", "--no-input", "--no-compile")
UNREAD = "/(pip|setuptools|pkg_resources|mypyc?|pygments|genai_prices|dialects/(mssql|mysql|oracle))/"
VERSION = ".".join(map(str, sys.version_info[:3]))


def digest(name: str) -> str:
    """A digest of one of the repository's files."""
    return hashlib.sha256((ROOT / name).read_bytes()).hexdigest()


def stamped() -> list[str]:
    """What the stamp says (place, pins, version, project); empty words without one."""
    try:
        lines = STAMP.read_text().splitlines()
    except OSError:
        lines = []
    return lines if len(lines) == 4 and PYTHON.exists() else [""] * 4


def run(lock: int, *arguments: str, needed: bool = True) -> None:
    """Run a module of the environment's own Python; exits when it fails, unless nobody needs it.

    It inherits the lock: if we are killed, the next make waits until it has ended too.
    """
    done = subprocess.run(
        [PYTHON, "-I", "-m", *arguments], check=False, cwd=ROOT, pass_fds=[lock], stdout=DEVNULL
    )
    if done.returncode != 0 and needed:
        print("\nThe dependencies could not be installed; the next make tries again.", file=sys.stderr)
        sys.exit(done.returncode)


def install(lock: int) -> None:
    """What is pinned, in two halves at once: pip unpacks on one core. That the pins hold all they ask for is
    looked over then.
    """
    pins = re.split(r"^(?=\w)", (ROOT / "ops" / "requirements.lock").read_text(), flags=re.MULTILINE)
    parts = {VENV / "pins.1": pins[: len(pins) // 2], VENV / "pins.2": pins[len(pins) // 2 :]}
    for file, part in parts.items():
        file.write_text("".join(part))
    with ThreadPoolExecutor(len(parts)) as both:
        hashed = (*PIP, "--no-deps", "--require-hashes", "--requirement")
        list(both.map(lambda file: run(lock, *hashed, str(file)), parts))
    run(lock, "pip", "check")


def build(lock: int) -> None:
    """Make the environment from nothing."""
    print(f"Making .venv with Python {VERSION} and the pinned dependencies (once)", flush=True)
    STAMP.unlink(missing_ok=True)
    if VENV.exists():
        shutil.rmtree(VENV)
    venv.create(VENV, symlinks=True)
    run(lock, "ensurepip", "--default-pip")
    install(lock)
    # pip does it on one core, and of some packages it is more than is ever read.
    run(lock, "compileall", "-qq", "-j0", "-x", UNREAD, str(VENV / "lib"), needed=False)


def main() -> None:
    """Bring .venv up to date; with --asked, for this very version of Python."""
    lock_digest, project_digest = digest("ops/requirements.lock"), digest("pyproject.toml")
    with (ROOT / "ops" / "requirements.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two makes at once: the second finds it done
        place, pins, version, project = stamped()
        whole = (place, pins) == (str(VENV), lock_digest) and (
            "--asked" not in sys.argv or version == VERSION
        )
        if whole and project == project_digest:
            return
        if not whole:
            build(lock.fileno())
            version = VERSION
        run(lock.fileno(), *PIP, "--no-build-isolation", "--no-deps", "--editable", ".")
        partial = STAMP.with_suffix(".new")
        partial.write_text(f"{VENV}\n{lock_digest}\n{version}\n{project_digest}\n")
        partial.replace(STAMP)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
