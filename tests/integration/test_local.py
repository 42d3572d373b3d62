"""Local servers: they start, they are private, and a folder has one of them."""

import os
import pwd
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import redis

from fencepost_ops import installation, ports
from fencepost_ops.folders import is_running
from fencepost_ops.local import (
    DataDirLock,
    FolderTakenError,
    Leashed,
    LocalPostgres,
    LocalServerError,
    LocalValkey,
    TemporaryFolder,
)
from fencepost_ops.postgres import _clear_stale_pid, postgres_program
from tests.awaiting import until
from tests.integration.listening import nobody_listens

linux = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and PR_SET_PDEATHSIG")
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root runs a server as somebody else")


@pytest.fixture(scope="module")
def postgres() -> Iterator[LocalPostgres]:
    with LocalPostgres.start(fsync=False) as server:
        yield server


# --- PostgreSQL --------------------------------------------------------------------------------


def test_a_server_on_a_new_folder_is_utf8_in_locale_c_and_durable(tmp_path: Path) -> None:
    with LocalPostgres.start(tmp_path / "pg", settings={"work_mem": "5MB"}) as server:
        with psycopg.connect(server.superuser_dsn) as connection:
            row = connection.execute(
                "SELECT current_setting('server_encoding'), datcollate, current_setting('fsync'),"
                " current_setting('work_mem'), current_setting('TimeZone') FROM pg_database"
                " WHERE datname = current_database()"
            ).fetchone()
        assert row == ("UTF8", "C", "on", "5MB", "UTC")
        assert is_running(server.pid)
        pid, port = server.pid, server.port
    assert not is_running(pid)
    assert nobody_listens(port)


def test_a_wrong_password_is_refused(postgres: LocalPostgres) -> None:
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(postgres.dsn("postgres", "guess", "postgres"))


def test_passwords_are_kept_as_scram_and_in_a_file_only_its_owner_reads(postgres: LocalPostgres) -> None:
    with psycopg.connect(postgres.superuser_dsn) as connection:
        row = connection.execute("SELECT rolpassword FROM pg_authid WHERE rolname = 'postgres'").fetchone()
        networks = connection.execute("SELECT DISTINCT auth_method FROM pg_hba_file_rules").fetchall()
    assert row is not None
    assert row[0].startswith("SCRAM-SHA-256$")
    assert networks == [("scram-sha-256",)]
    assert stat.S_IMODE((postgres.folder / "superuser.password").stat().st_mode) == 0o600


def test_a_dsn_quotes_what_needs_quoting(postgres: LocalPostgres) -> None:
    with psycopg.connect(postgres.superuser_dsn, autocommit=True) as connection:
        connection.execute("CREATE ROLE \"a b@c\" LOGIN PASSWORD 'p/w:?#%é'")
    with psycopg.connect(postgres.dsn("a b@c", "p/w:?#%é", "postgres")) as connection:
        assert connection.info.user == "a b@c"


def test_the_wheel_brings_pg_dump_of_the_same_version(postgres: LocalPostgres) -> None:
    program = postgres.bin("pg_dump")
    done = subprocess.run(
        [program, "--schema-only", postgres.superuser_dsn], capture_output=True, text=True, check=False
    )
    assert "PostgreSQL database dump complete" in done.stdout, done.stderr
    with pytest.raises(LocalServerError, match="brings no pg_nonsense"):
        postgres_program("pg_nonsense")


def test_a_folder_left_by_a_crash_is_taken_up_again(tmp_path: Path) -> None:
    folder = tmp_path / "a folder with spaces"
    with LocalPostgres.start(folder) as server:
        with psycopg.connect(server.superuser_dsn) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 7 AS number")
        os.kill(server.pid, signal.SIGKILL)
        until("the server is dead", lambda: not server.is_alive())
    pid_file = folder / "pgdata" / "postmaster.pid"
    lines = pid_file.read_text().splitlines()
    other = Leashed(["/bin/sleep", "1000"], identity=installation.nobody())  # of the same user as the server
    pid_file.write_text("\n".join([str(other.pid), *lines[1:]]) + "\n")  # the number now belongs to another
    with LocalPostgres.start(folder) as server, psycopg.connect(server.superuser_dsn) as connection:
        assert connection.execute("SELECT number FROM kept").fetchone() == (7,)
    other.stop()


def test_a_second_server_on_the_same_folder_is_refused(postgres: LocalPostgres) -> None:
    with pytest.raises(FolderTakenError, match=rf"pid {os.getpid()}\) runs on {postgres.folder}; stop it"):
        LocalPostgres.start(postgres.folder)
    assert postgres.is_alive()


@linux
def test_a_server_that_is_not_ours_is_not_disturbed(postgres: LocalPostgres) -> None:
    with pytest.raises(LocalServerError, match=rf"\(pid {postgres.pid}\) already runs on"):
        _clear_stale_pid(postgres.folder / "pgdata")


def test_a_folder_whose_owner_was_killed_is_taken_over_as_soon_as_his_server_has_ended(
    tmp_path: Path,
) -> None:
    code = "import sys, time; from pathlib import Path; from fencepost_ops.local import LocalPostgres\n"
    code += "s = LocalPostgres.start(Path(sys.argv[1])); print(s.pid, flush=True); time.sleep(1000)"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as killed:
        assert killed.stdout is not None
        before = int(killed.stdout.readline())
        killed.kill()
        killed.wait()
        with LocalPostgres.start(tmp_path) as server:
            assert not is_running(before)
            assert server.is_alive()


def test_data_of_another_version_is_refused(tmp_path: Path) -> None:
    data = tmp_path / "pgdata"
    data.mkdir()
    if os.geteuid() == 0:
        os.chown(data, pwd.getpwnam("nobody").pw_uid, -1)
    (data / "PG_VERSION").write_text("9\n")
    (tmp_path / "superuser.password").write_text("x\n")
    with pytest.raises(LocalServerError, match="was made by PostgreSQL 9 and this is 18"):
        LocalPostgres.start(tmp_path)


def test_a_cluster_half_made_by_a_killed_initdb_is_made_anew(tmp_path: Path) -> None:
    (tmp_path / "pgdata.new" / "base").mkdir(parents=True)
    (tmp_path / "pgdata.new" / "PG_VERSION").write_text("18\n")
    with LocalPostgres.start(tmp_path, fsync=False) as server:
        assert server.is_alive()
    assert not (tmp_path / "pgdata.new").exists()


def test_an_asked_for_port_that_is_taken_is_named_and_one_of_our_choice_is_replaced(
    postgres: LocalPostgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(LocalServerError, match=f"port {postgres.port} is taken; choose another"):
        LocalPostgres.start(tmp_path, fsync=False, port=postgres.port)
    chosen = iter([postgres.port, postgres.port, ports.free_port()])
    monkeypatch.setattr(ports, "free_port", lambda: next(chosen))
    with LocalPostgres.start(tmp_path, fsync=False) as server:
        assert server.port != postgres.port


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(LocalServerError, match="unrecognized configuration parameter"):
        LocalPostgres.start(tmp_path, fsync=False, settings={"nonsense": "1"})


@as_root
@linux
def test_root_runs_it_as_nobody_below_a_closed_parent_and_changes_no_mode(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    before = [parent.stat().st_mode for parent in (closed, *closed.parents)]
    with LocalPostgres.start(closed / "pg", fsync=False) as server:
        assert Path(f"/proc/{server.pid}").stat().st_uid == pwd.getpwnam("nobody").pw_uid
        with psycopg.connect(server.superuser_dsn) as connection:
            connection.execute("CREATE TABLE t AS SELECT 1")
            connection.execute("CHECKPOINT")
    assert [parent.stat().st_mode for parent in (closed, *closed.parents)] == before


@as_root
def test_root_copies_binaries_that_nobody_cannot_reach_and_removes_the_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installation, "reachable_by_all", lambda path: path == Path("/tmp"))  # noqa: S108
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))  # closed to all but us
    with LocalPostgres.start(tmp_path / "pg", fsync=False) as server:
        program = Path(f"/proc/{server.pid}/exe").readlink()
        assert program.parts[:2] == ("/", "tmp")
        assert program.parts[2].startswith("fencepost-bin-")
        assert Path("/tmp", program.parts[2]).exists()  # noqa: S108
    assert not Path("/tmp", program.parts[2]).exists()  # noqa: S108


@as_root
def test_an_ordinary_user_runs_it_as_himself(tmp_path: Path) -> None:
    nobody = pwd.getpwnam("nobody")
    if not installation.reachable_by_all(Path(sys.prefix)) or not installation.reachable_by_all(
        Path(sys.executable)
    ):
        pytest.skip("this Python is closed to other users")
    with TemporaryFolder(parent=Path("/tmp")) as folder:  # noqa: S108
        os.chown(folder, nobody.pw_uid, nobody.pw_gid)
        code = "import sys; from pathlib import Path; from fencepost_ops.local import LocalPostgres\n"
        code += "with LocalPostgres.start(Path(sys.argv[1]), fsync=False) as s: print(s.is_alive())"
        done = subprocess.run(
            [sys.executable, "-c", code, str(folder / "pg")],
            user=nobody.pw_uid,
            group=nobody.pw_gid,
            extra_groups=[],
            env={"PYTHONPATH": os.pathsep.join(sys.path), "HOME": "/nonexistent", "PATH": os.defpath},
            cwd="/",
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stdout == "True\n", done.stderr


# --- Valkey ------------------------------------------------------------------------------------


def test_valkey_asks_for_its_password_keeps_nothing_and_evicts_nothing() -> None:
    with LocalValkey.start() as server:
        with redis.Redis.from_url(server.url()) as client:
            client.set("a", "b")
            assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
            assert client.config_get("save") == {"save": ""}
        stranger = redis.Redis.from_url(f"redis://127.0.0.1:{server.port}")
        with stranger, pytest.raises(redis.AuthenticationError):
            stranger.ping()
        folder, pid, port = server.folder, server.pid, server.port
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        with pytest.raises(LocalServerError, match=f"port {port} is taken"):
            LocalValkey.start(port=port)
    assert not folder.exists()
    assert not is_running(pid)


# --- Folders -----------------------------------------------------------------------------------


def test_a_data_folder_has_one_owner_who_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with DataDirLock(folder):
        with pytest.raises(FolderTakenError) as refused:
            DataDirLock(folder)
        said = (
            f"another `fencepost up` (pid {os.getpid()}) runs on {folder}; stop it or choose another --data"
        )
        assert str(refused.value) == said
    DataDirLock(folder).release()


def test_a_data_folder_of_a_dead_owner_is_free_once_its_children_have_ended(tmp_path: Path) -> None:
    lock = DataDirLock(tmp_path)
    child = subprocess.Popen(["/bin/sleep", "0.3"], pass_fds=[lock.fileno()])
    (tmp_path / "lock").write_text("0\n")  # the owner is gone
    lock.release()
    started = time.monotonic()
    DataDirLock(tmp_path).release()
    assert time.monotonic() - started > 0.1
    child.wait()


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LocalServerError, match="file/data cannot be used"):
        DataDirLock(tmp_path / "file" / "data")
