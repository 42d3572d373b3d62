"""The broker settings: no hidden retry, no pickle, nothing that waits for ever (R4)."""

import logging
import os
import subprocess
import sys
from typing import Any

import pytest

from fencepost.errors import UsageError
from fencepost.settings import Settings, load_settings
from fencepost.states import Queue
from fencepost_workers.broker import Transport
from fencepost_workers.celery import NoRetryTask, app, configure


def settings(*, hostile: bool = False) -> dict[str, Any]:
    return configure(Settings(dsn="postgresql://h/d", redis_url="redis://h/0", app="a:b", hostile=hostile))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("task_acks_late", False),
        ("task_reject_on_worker_lost", False),
        ("task_publish_retry", False),
        ("task_acks_on_failure_or_timeout", True),
        ("worker_cancel_long_running_tasks_on_connection_loss", False),
        ("task_ignore_result", True),
        ("task_create_missing_queues", False),
        ("task_serializer", "json"),
        ("accept_content", ["json"]),
        ("worker_prefetch_multiplier", 1),
    ],
)
def test_celery_retries_nothing_and_accepts_json_only(name: str, value: Any) -> None:
    assert settings()[name] == value
    assert app.conf[name] == value


def test_every_socket_has_a_timeout_longer_than_a_blocking_pop() -> None:
    transport = settings()["broker_transport_options"]
    assert transport["socket_timeout"] > 1
    assert transport["socket_connect_timeout"] > 0
    assert transport["max_retries"] == 0
    assert "retry_on_timeout" not in transport


@pytest.mark.parametrize("seconds", [2, 10, 60])
def test_one_setting_says_when_a_silent_broker_is_given_up(seconds: float) -> None:
    transport = configure(Settings(broker_timeout_s=seconds))["broker_transport_options"]
    names = ("socket_timeout", "socket_connect_timeout", "health_check_interval")
    assert [transport[name] for name in names] == [seconds, seconds / 2, seconds / 2]


def test_a_broker_timeout_that_a_blocking_pop_would_reach_is_refused() -> None:
    with pytest.raises(UsageError, match="FENCEPOST_BROKER_TIMEOUT_S"):
        load_settings(broker_timeout_s=1)


@pytest.mark.parametrize("scheme", ["redis", "rediss"])
def test_every_worker_takes_messages_through_the_door(scheme: str) -> None:
    """Its address keeps its scheme, by which Flower knows the broker."""
    connection = app.connection_for_read(f"{scheme}://127.0.0.1:1/0")
    found: Any = connection.get_transport_cls()
    assert found is Transport
    assert connection.as_uri().startswith(f"{scheme}://")


def test_the_hostile_mode_acks_late_and_redelivers_soon() -> None:
    hostile = settings(hostile=True)
    assert hostile["task_acks_late"] is True
    assert hostile["broker_transport_options"]["visibility_timeout"] == 2


def test_there_is_one_queue_and_one_task_for_each_role_by_their_stored_names() -> None:
    names = ["compensator", "dispatcher", "planner", "reconciler"]
    assert sorted(map(str, Queue)) == names
    assert sorted(queue.name for queue in settings()["task_queues"]) == names
    ours = sorted(name for name in app.tasks if name.startswith("fencepost."))
    assert ours == [f"fencepost.{name}" for name in names]


def test_a_task_cannot_ask_celery_for_a_retry() -> None:
    for name in map(str, Queue):
        task = app.tasks[f"fencepost.{name}"]
        assert isinstance(task, NoRetryTask)
        assert task.max_retries == 0
        assert task.autoretry_for == ()
        with pytest.raises(NotImplementedError):
            task.retry()


def test_there_is_no_result_backend() -> None:
    assert app.conf.result_backend is None


def test_importing_the_application_does_not_import_what_only_a_worker_needs() -> None:
    script = (
        "import sys, fencepost_workers.celery;"
        "print([m for m in ('fencepost_workers.worker', 'psycopg', 'sqlalchemy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_worker_never_imports_the_schema_toolkit() -> None:
    script = "import sys, fencepost_workers.process; print('sqlalchemy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize(
    ("argv", "env", "sentence"),
    [
        (
            [],
            {},
            "usage: python -m fencepost_workers planner|dispatcher|reconciler|compensator|intake",
        ),
        (["plumber"], {}, "usage: python -m fencepost_workers "),
        (["planner", "a", "b"], {}, "usage: python -m fencepost_workers "),
        (["planner"], {}, "planner: set FENCEPOST_DSN and FENCEPOST_REDIS_URL and FENCEPOST_APP"),
        (["planner", "p-2"], {"FENCEPOST_SLOTS": "many"}, "p-2: FENCEPOST_SLOTS: "),
    ],
)
def test_a_worker_that_cannot_start_says_why_in_one_sentence(
    argv: list[str],
    env: dict[str, str],
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from fencepost_workers.__main__ import main

    for name in ("FENCEPOST_DSN", "FENCEPOST_REDIS_URL", "FENCEPOST_APP", "FENCEPOST_SLOTS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(logging, "basicConfig", lambda **_: None)
    assert main(argv) == UsageError.exit_code
    said = capsys.readouterr().err
    assert said.startswith(sentence)
    assert said.count("\n") == 1


def test_a_worker_answers_questions_and_takes_no_orders() -> None:
    program = (
        "from celery.worker.control import Panel\n"
        "from fencepost_workers import celery\n"
        "celery._take_no_orders()\n"
        "print(sorted(Panel.data))\n"
    )
    env = {**os.environ, "FENCEPOST_REDIS_URL": "redis://127.0.0.1:1/0"}
    said = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=env
    ).stdout
    assert "'ping'" in said
    assert "'stats'" in said
    for order in ("cancel_consumer", "shutdown", "pool_shrink", "rate_limit", "revoke", "terminate"):
        assert f"'{order}'" not in said
