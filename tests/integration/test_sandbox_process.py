"""The sandbox as a process: started, stopped, killed, and started again on its book."""

import fcntl
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from fencepost_ops.sandbox.book import Book
from fencepost_ops.sandbox.process import SandboxProcess
from tests.integration.sandbox_caller import Caller


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[SandboxProcess]:
    with SandboxProcess(tmp_path) as sandbox:
        yield sandbox


@pytest.fixture
def caller(mortal: SandboxProcess) -> Iterator[Caller]:
    with Caller(mortal) as caller:
        yield caller


def test_an_effect_survives_a_kill_of_the_service_and_its_key_is_still_known(
    mortal: SandboxProcess, caller: Caller
) -> None:
    url, receipt = mortal.url, caller.debit().json()["id"]
    mortal.kill()
    assert [effect.id for effect in mortal.book.effects()] == [receipt]
    mortal.start()
    assert mortal.url == url
    repeat = caller.debit().json()
    assert (repeat["id"], repeat["replayed"]) == (receipt, True)
    assert caller.effects() == 1


def test_a_kill_before_the_commit_leaves_the_request_in_the_book_and_no_effect(
    mortal: SandboxProcess, caller: Caller
) -> None:
    mortal.fault("delay_before", delay_s=30)
    failed = threading.Event()

    def ask() -> None:
        try:
            caller.debit()
        except httpx2.TransportError:
            failed.set()

    asking = threading.Thread(target=ask)
    asking.start()
    caller.await_arrival()
    mortal.kill()
    asking.join(10)
    assert failed.is_set()
    assert [(request.status, request.fault) for request in caller.requests()] == [(None, "delay_before")]
    assert caller.effects() == 0
    mortal.start()
    assert caller.debit().json()["replayed"] is False


def test_a_kill_between_commit_and_answer_keeps_the_effect(mortal: SandboxProcess, caller: Caller) -> None:
    mortal.fault("delay_after_commit", delay_s=30)
    with pytest.raises(httpx2.ReadTimeout):
        caller.debit(timeout=0.2)
    mortal.kill()
    assert caller.effects() == 1
    mortal.start()
    assert caller.debit().json()["replayed"] is True


def test_settings_and_clock_outlive_the_process_and_asked_for_faults_do_not(mortal: SandboxProcess) -> None:
    mortal.configure(services={"wallet": {"window_s": 5}}, default_stock=3)
    mortal.move_clock(1000)
    mortal.fault("error_503")
    mortal.restart()
    config = mortal.get("/admin/config")
    assert (config["services"]["wallet"]["window_s"], config["default_stock"]) == (5.0, 3)
    assert mortal.get("/admin/clock")["offset_s"] == 1000.0
    assert mortal.get("/faults")["faults"] == []


def test_a_sandbox_starts_with_settings_and_faults_from_files(tmp_path: Path) -> None:
    faults = {"seed": 4, "faults": [{"kind": "error_503", "reference_prefix": "for-unlucky", "nth": 1}]}
    with (
        SandboxProcess(tmp_path, config={"default_balance_minor": 700}, faults=faults) as sandbox,
        Caller(sandbox) as caller,
    ):
        assert [caller.debit("unlucky-1").status_code for _ in range(2)] == [503, 201]
        assert caller.debit("lucky").status_code == 402  # 700 held 500 once
        assert sandbox.get("/faults")["faults"][0]["seed"] == 4


def start(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "fencepost_ops.sandbox", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def test_a_sandbox_says_where_it_is_and_ends_cleanly_on_sigterm(tmp_path: Path) -> None:
    port_file = tmp_path / "port"
    with start("--data", str(tmp_path / "book"), "--port-file", str(port_file)) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        with httpx2.Client(base_url=url) as http:
            assert http.get("/health").json() == {"ok": True}
            assert port_file.read_text(encoding="utf-8").strip() == url
            process.terminate()
            assert process.communicate(timeout=10) == ("", "")
    assert process.returncode == 0
    assert Book(tmp_path / "book").effects() == []


def test_a_sandbox_ends_with_whoever_holds_its_standard_input(tmp_path: Path) -> None:
    with start("--data", str(tmp_path), "--stop-with-stdin", stdin=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.communicate(timeout=10)
    assert process.returncode == 0


def test_a_sandbox_ends_when_the_process_that_started_it_is_killed(tmp_path: Path) -> None:
    code = """
import pathlib, signal, sys
from fencepost_ops.sandbox.process import SandboxProcess
with SandboxProcess(pathlib.Path(sys.argv[1])):
    print("started", flush=True)
    signal.pause()
"""
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        parent.kill()
    with (tmp_path / "sandbox.lock").open("r") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # granted once the orphan has let go of its book


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--data", "{taken}"], "another sandbox keeps the book"),
        (["--data", "{free}", "--port", "{port}"], "cannot serve 127.0.0.1"),
        (["--data", "{free}", "--faults", "{missing}"], "cannot read"),
        (["--data", "{free}", "--config", "{broken}"], "is not JSON"),
    ],
)
def test_a_sandbox_that_cannot_start_says_why_in_one_sentence(
    mortal: SandboxProcess, tmp_path: Path, arguments: list[str], sentence: str
) -> None:
    (tmp_path / "broken").write_text("{")
    places = {
        "taken": mortal.data,
        "free": tmp_path / "free",
        "missing": tmp_path / "missing",
        "broken": tmp_path / "broken",
        "port": mortal.url.rpartition(":")[2],
    }
    with start(*(argument.format(**places) for argument in arguments)) as process:
        out, err = process.communicate(timeout=10)
    assert (process.returncode, out, err.count("\n")) == (2, "", 1)
    assert sentence in err


def test_the_sandbox_imports_nothing_that_it_is_meant_to_judge() -> None:
    modules = "server, process, __main__"
    code = f"""
import sys
from fencepost_ops.sandbox import {modules}
print([name for name in sys.modules if name.split(".")[0] in
       ("fencepost", "fencepost_workers", "fencepost_relay", "httpx2", "psycopg", "celery", "pydantic")])
"""
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
