"""The intake on a real broker and Postgres, fed by a plain Celery client: a message is a run, or a reason."""

import json
import logging
import os
import re
import signal
import sys
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from celery import Celery

from fencepost import Client
from fencepost.ledger import refusals
from fencepost.ledger.connect import Pool
from fencepost_ops.local import LocalPostgres, LocalValkey, ProcessGroup
from fencepost_workers.__main__ import main
from fencepost_workers.intake import Hand
from fencepost_workers.intake_entry import Binding
from tests.awaiting import until
from tests.integration.conftest import copied
from tests.integration.door import Door
from tests.integration.post import GOOD, PRINCIPAL, TENANT, Post, Producers

MESSAGES = 300


@pytest.fixture(scope="module")
def post(
    postgres: LocalPostgres, template: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Post]:
    folder = tmp_path_factory.mktemp("intake")
    port = int(postgres.superuser_dsn.rsplit(":", 1)[1].split("/")[0])
    with (
        LocalValkey.start() as valkey,
        Door(port) as door,
        copied(postgres, template) as database,
        (folder / "log").open("w") as log,
        ProcessGroup(out=log) as group,
    ):
        made = Post(database, valkey, door, folder)
        env = {
            "FENCEPOST_DSN": door.dsn(database.dsns["producer"]),
            "FENCEPOST_REDIS_URL": valkey.url(),
            "FENCEPOST_INTAKE_TENANT": TENANT,
            "FENCEPOST_INTAKE_PRINCIPAL": PRINCIPAL,
            "FENCEPOST_HOSTILE": "true",
            "FENCEPOST_HEALTH_FILE": str(folder / "healthy"),
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        group.add("intake", [sys.executable, "-m", "tests.integration.intake_program", str(folder)], env)
        until("a process that waits for messages", made.consumes)
        yield made
        made.broker.close()


def test_a_message_survives_a_frozen_process_and_kills_before_and_after_its_commit(post: Post) -> None:
    faults = post.folder / "faults"
    faults.write_text("enqueue.before_commit=crash,enqueue.after_commit=crash")
    frozen = post.pid()
    os.kill(frozen, signal.SIGSTOP)
    key = post.send()
    assert post.outstanding() == 1  # and not in the frozen one's socket
    os.kill(frozen, signal.SIGKILL)
    until("a run", lambda: post.runs(key) if post.age() else None)
    until("an empty queue", lambda: post.age() and post.outstanding() == 0)
    faults.unlink()
    assert post.log.read_text().count("ended: -9") == 3
    fired = sorted(path.name for path in post.once.iterdir())
    assert fired == ["enqueue.after_commit.crash.1", "enqueue.before_commit.crash.1"]
    assert len(post.runs(key)) == 1
    assert post.refused() == []


def test_a_container_is_told_again_and_again_that_it_is_well(post: Post) -> None:
    healthy = post.folder / "healthy"
    for _ in range(2):
        healthy.unlink(missing_ok=True)
        until("a touch of the health file", healthy.exists)


def test_a_run_taken_in_is_a_run_like_any_other(post: Post) -> None:
    key = post.send(version=2, budget={"turns": 3}, on_stop="leave", deadline_s=1.5)
    post.settled()
    asked = (TENANT, key, "p", 2, PRINCIPAL, json.dumps(GOOD["input"]), "1.5 s", '{"turns": 3}', "leave")
    ((run, created),) = post.sql(
        "SELECT * FROM fencepost.enqueue_run(%s, %s, %s, %s, %s, %s, %s, %s, %s)", *asked
    )
    assert (created, [(run,)]) == (False, post.runs(key))
    assert post.sql("SELECT queue, generation FROM fencepost.outbox WHERE subject = %s", run) == [
        ("planner", 1)
    ]


def test_what_a_killed_process_held_comes_back_by_itself_and_others_hold_their_own(post: Post) -> None:
    post.settled()
    post.broker.hset("unacked", "other", '[{"headers": {}, "properties": {}}, "", "other"]')
    post.broker.zadd("unacked_index", {"other": 1})
    post.door.shut()
    try:
        key = post.send()
        until("a message in hand", lambda: post.length("intake") == 0)
        os.kill(post.pid(), signal.SIGKILL)
    finally:
        post.door.open()
    until("a run", lambda: post.runs(key), within_s=30)
    post.settled()
    # The intake's sweep has been there, and not here, where it would have moved what others hold.
    assert post.broker.zscore("unacked_index", "other") == 1
    post.broker.delete("unacked", "unacked_index")
    assert len(post.runs(key)) == 1


def test_an_entry_that_is_too_long_stops_neither_the_server_nor_the_queue(post: Post) -> None:
    post.settled()
    before, pid, logged = len(post.refused()), post.pid(), len(post.log.read_text())
    forged = b'{"headers": {"fencepost-entry": "text"}, "properties": {}, "body": "a",%s}' % (
        b"[]," * 4_000_000
    )
    big = [b"\xff" * 30_000_000, b"a" * 30_000_000, b"\xff" * 30_000_000, b"\xff" * 2_000_000]
    with post.pinged() as waits:
        post.door.shut()
        try:
            for item in [*big, forged, b"\xff\xfd"]:
                post.broker.lpush("intake", item)
            key = post.send()
            until("all in hand", lambda: post.length("intake") == 0)
            os.kill(pid, signal.SIGKILL)  # so that each comes once more, out of our own envelope
        finally:
            post.door.open()
        until("a run", lambda: post.runs(key))
        post.settled()
    said = post.refused()[before:]
    assert sorted(error for error, _ in said) == [
        "the message has 2000000 bytes, at most 1048576 are read",
        *3 * ["the message has 30000000 bytes, at most 12582912 are read"],
        *2 * ["this is no message of a Celery client: send it with send_task('fencepost.intake')"],
    ]
    assert "\\udcff\\udcfd" in {message for _, message in said}
    assert {len(message) for error, message in said if "30000000" in error} == {2000, 12000}
    sys.stdout.write(f"the longest PING took {max(waits):.2f} s\n")
    assert max(waits) < 5  # some 0.3 s; a loop over the bytes takes a minute
    assert re.findall(r"life .* ended: .*", post.log.read_text()[logged:]) == [f"life {pid} ended: -9"]


def test_postgres_away_holds_messages_and_a_stop_gives_them_back(post: Post) -> None:
    post.settled()
    said, pid = len(post.log.read_text()), post.pid()
    post.door.shut()
    try:
        keys = [post.send() for _ in range(20)]
        until("messages in hand", lambda: post.length("intake") < 20)
        assert post.outstanding() == 20
        post.broker.delete("_kombu.binding.intake")  # as a flush would; they find their way back without it
        os.kill(pid, signal.SIGTERM)
        until("the end of it", lambda: f"life {pid} ended: 0" in post.log.read_text()[said:])
        assert (post.length("intake"), post.outstanding()) == (20, 20)
        until("a refusal to start", lambda: "ended: 3" in post.log.read_text()[said:])
        assert "intake: cannot reach Postgres at " in post.log.read_text()[said:]
        assert post.runs(*keys) == []
    finally:
        post.door.open()
    until("all runs", lambda: len(post.runs(*keys)) == 20)
    post.settled()
    assert post.refused_of(*keys) == {}


BAD: list[tuple[dict[str, Any], str]] = [
    (
        {"tenant": "others"},
        "a message does not name its tenant: it is the intake's own (FENCEPOST_INTAKE_TENANT)",
    ),
    ({"principal": "root"}, "a message does not name its principal"),
    ({"color": "red"}, "unknown field color; there are run_key, planner, input, deadline_s, version,"),
    ({"planner": ...}, "it lacks planner"),
    ({"input": ...}, "it lacks input"),
    ({"deadline_s": ...}, "it lacks deadline_s"),
    ({"planner": ""}, "planner is a text that is not empty"),
    ({"version": "1"}, "version is a whole number from 1 on, not '1'"),
    ({"deadline_s": "300"}, "deadline_s is a number of seconds from now, not '300'"),
    ({"deadline_s": True}, "deadline_s is a number of seconds from now, not True"),
    ({"deadline_s": 0}, "the deadline lies in the past"),
    ({"deadline_s": 1e300}, "deadline_s is further ahead than any clock counts"),
    ({"budget": {"turn": 1}}, "budget: unknown turn"),
    ({"budget": 7}, "budget: an object is expected"),
    ({"on_stop": ["leave"]}, "on_stop is compensate or compensate_at_once or leave"),
    ({"input": float("nan")}, "NaN is not JSON"),
    ({"input": "a\0b"}, "input holds a NUL"),
    ({"input": {"when": [datetime(2026, 1, 2, tzinfo=UTC)]}}, "input.when[0] is a datetime in Celery's own"),
    ({"input": "x" * 1100000}, "the input is 1100002 bytes of JSON, at most 1048576 are taken"),
    ({"input": 10**400}, "input is a number of more than 400 digits"),
]


def test_what_can_be_no_run_is_kept_with_the_reason_and_nothing_is_lost(post: Post) -> None:
    sent = {post.send(**changes): why for changes, why in BAD}
    taken = post.send("taken")
    post.send("taken", input={"order": 2})
    post.settled()
    ((holder,),) = post.runs(taken)
    assert post.runs(*sent) == []
    sent["taken"] = f"run key taken of tenant {TENANT} is taken by another request, that of run {holder} "
    found = post.refused_of(*sent)
    assert found.keys() == sent.keys()
    for key, why in sent.items():
        assert found[key].startswith(why), found[key]
    assert post.sql("SELECT DISTINCT queue, tenant, principal FROM fencepost.intake_refusals") == [
        ("intake", TENANT, PRINCIPAL)
    ]
    assert max(len(message) for _, message in post.refused()) <= refusals.MAX_MESSAGE


def test_what_celery_can_say_but_a_run_cannot_do_is_refused(post: Post) -> None:
    before = len(post.refused())
    good = {"run_key": "odd", **GOOD}
    post.raw(good, task="other.task")
    post.raw(good, countdown=60)
    post.raw(good, expires=60)
    post.raw(good, link=post.celery.signature("other.task"))
    post.raw({}, args=["odd"])
    post.settled()
    assert sorted(error for error, _ in post.refused()[before:]) == [
        "a run begins at once: send no eta, countdown or expires; deadline_s bounds it",
        "a run begins at once: send no eta, countdown or expires; deadline_s bounds it",
        "a run is asked for by keyword: send kwargs, no args",
        "nothing follows a run here: send no link, chain or chord",
        "the intake knows no task other.task, only fencepost.intake",
    ]
    assert post.runs("odd") == []


def test_what_only_the_ledger_refuses_goes_to_a_person_and_holds_up_nobody(post: Post) -> None:
    post.run("ALTER TABLE fencepost.runs ADD CONSTRAINT cursed CHECK (planner <> 'cursed')")
    cursed, good = post.send(planner="cursed"), post.send()
    until("a run", lambda: post.runs(good))
    post.settled()
    post.run("ALTER TABLE fencepost.runs DROP CONSTRAINT cursed")
    assert 'violates check constraint "cursed"' in post.refused_of(cursed)[cursed]


class Answered:
    """A delivery that remembers how it was answered."""

    def __init__(self) -> None:
        self.done: bool | None = None

    def answer(self, *, done: bool) -> None:
        self.done = done


def test_a_message_delivered_again_while_in_hand_is_carried_once_and_answered_twice(post: Post) -> None:
    dsn = post.database.dsns["producer"]
    body = json.dumps([[], {"run_key": "again", **GOOD}, {}])
    message = {"headers": {"task": "fencepost.intake"}, "properties": {}, "body": body}
    item = json.dumps({**message, "content-type": "application/json"})
    first, second = Answered(), Answered()
    with Client(dsn) as client, psycopg.connect(dsn) as other:
        hand = Hand(Binding("intake", TENANT, PRINCIPAL), client, Pool(dsn, "test", 1))
        taken = [TENANT, "again", PRINCIPAL]
        other.execute("SELECT fencepost.enqueue_run(%s, %s, 'p', 1, %s, '1', '300 s')", taken)
        todo = hand.admit(first, item.encode())
        assert todo is not None
        with ThreadPoolExecutor(1) as thread:
            carried = thread.submit(todo)
            assert hand.admit(second, item.encode()) is None
            assert not carried.done()
            other.rollback()
    assert (first.done, second.done) == (True, True)
    assert len(post.runs("again")) == 1


def test_nothing_that_lies_in_the_queue_ends_the_process(post: Post) -> None:
    post.settled()
    before, pid = len(post.refused()), post.pid()
    garbage = [b"", b"\xff\xfe", b"nonsense", b"[]", b"{}", b"7", b'{"body": 1}', b"[" * 100_000]
    forged = {"headers": {"fencepost-entry": "hex"}, "properties": {}, "body": "no hex"}
    garbage.append(b'{"headers": {"fencepost-entry": "cut:1:x"}, "properties": {}, "body": "no cut"}')
    garbage.append(b'{"headers": {"fencepost-entry": "text"}, "body": "\xff"}')
    post.broker.lpush("intake", *garbage, json.dumps(forged), json.dumps({**forged, "body": {}}))
    key = post.send()
    until("a run", lambda: post.runs(key))
    post.settled()
    said = post.refused()[before:]
    assert {error for error, _ in said} == {
        "this is no message of a Celery client: send it with send_task('fencepost.intake')"
    }
    assert sorted(message[:9] for _, message in said) == sorted(
        ["", "\\udcff\\ud"[:9], "nonsense", "[]", "{}", "7", '{"body": ', "[[[[[[[[[", "no hex", "no cut"]
        + 2 * ['{"headers']
    )
    assert post.pid() == pid


def test_compressed_and_old_messages_are_understood(post: Post) -> None:
    post.raw({"run_key": "packed", **GOOD}, compression="gzip")
    old = Celery(broker=post.valkey.url())
    old.conf.task_protocol = 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        old.send_task("fencepost.intake", kwargs={"run_key": "old", **GOOD}, queue="intake")
    until("both runs", lambda: len(post.runs("packed", "old")) == 2)


@pytest.mark.parametrize(
    ("env", "code", "why"),
    [
        ({"TENANT": ""}, 2, "set FENCEPOST_INTAKE_TENANT\n"),
        ({"TENANT": "", "PRINCIPAL": ""}, 2, "set FENCEPOST_INTAKE_TENANT and FENCEPOST_INTAKE_PRINCIPAL\n"),
        ({"TENANT": "Shop"}, 2, "FENCEPOST_INTAKE_TENANT: tenant 'Shop' is no name, write 'shop'"),
        ({"QUEUE": "planner"}, 2, "FENCEPOST_INTAKE_QUEUE: planner is a queue of the fleet's own\n"),
        (
            {"login": "reader"},
            2,
            "this login may take in no runs: use one that is a member of fencepost_produ",
        ),
        ({"login": "nobody"}, 3, "cannot reach Postgres at "),
    ],
)
def test_an_intake_that_cannot_start_says_why_in_one_sentence(
    post: Post,
    env: dict[str, str],
    code: int,
    why: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    nobody = "postgresql://nobody:secret@127.0.0.1:9/db"
    dsn = {**post.database.dsns, "nobody": nobody}[env.get("login", "producer")]
    given = {"TENANT": TENANT, "PRINCIPAL": PRINCIPAL, "QUEUE": "intake", **env}
    for name in ("TENANT", "PRINCIPAL", "QUEUE"):
        monkeypatch.setenv(f"FENCEPOST_INTAKE_{name}", given[name])
    monkeypatch.setenv("FENCEPOST_DSN", dsn)
    monkeypatch.setenv("FENCEPOST_REDIS_URL", post.valkey.url())
    monkeypatch.setattr(logging, "basicConfig", lambda **_: None)
    assert main(["intake", "in-2"]) == code
    said = capsys.readouterr().err
    assert said.startswith(f"in-2: {why}")
    assert said.count("\n") == 1


def test_a_login_that_lost_its_right_holds_messages_and_refuses_none(post: Post) -> None:
    before, said = len(post.refused()), len(post.log.read_text())
    enqueue = "FUNCTION fencepost.enqueue_run"
    post.run(f"REVOKE EXECUTE ON {enqueue} FROM fencepost_producer")
    key = post.send()
    until("held", lambda: "this login may not do that" in post.log.read_text()[said:])
    post.run(f"GRANT EXECUTE ON {enqueue} TO fencepost_producer")
    until("a run", lambda: post.runs(key))
    post.settled()
    assert len(post.refused()) == before


PAIRS = [
    ('{"a": 1, "b": 2}', '{"b": 2.0, "a": 1e0}', True),
    ('"é"', '"\\u00e9"', True),
    ('"e\u0301"', '"\u00e9"', False),
    ("1", "true", False),
    ("1", '"1"', False),
    ("null", "{}", False),
    ("[1, 2]", "[2, 1]", False),
    ("-0.0", "0", True),
    ("0.10", "0.1", True),
    ("0.1000000000000000055", "0.1", False),
    ("1e23", "1" + "0" * 23, True),
    ("1e399", "1" + "0" * 399, True),
    ("18446744073709551617", "18446744073709551616", False),
    ("9007199254740993", "9007199254740993.0", True),
    ("9007199254740993", "9007199254740992", False),
]


def test_all_producers_agree_on_what_is_the_same_request(post: Post) -> None:
    ways = Producers(post)
    each = (ways.sql, ways.client, ways.jsonl, ways.intake)
    for first, again in [*((ways.sql, way) for way in each), *((way, ways.sql) for way in each[1:])]:
        name = f"{first.__name__}-{again.__name__}"
        keys = [f"{name}-{n}" for n in range(len(PAIRS))]
        assert all(first({key: one for key, (one, _, _) in zip(keys, PAIRS, strict=True)})), name
        told = again({key: other for key, (_, other, _) in zip(keys, PAIRS, strict=True)})
        assert told == [same for _, _, same in PAIRS], name


def test_many_messages_take_seconds(post: Post) -> None:
    post.settled()
    began = time.monotonic()
    keys = [post.send() for _ in range(MESSAGES)]
    sent = time.monotonic() - began
    until("all runs", lambda: len(post.runs(*keys)) == MESSAGES, within_s=90)
    post.settled()
    sys.stdout.write(
        f"{MESSAGES} messages: sent in {sent:.1f} s, in after {time.monotonic() - began:.1f} s\n"
    )
