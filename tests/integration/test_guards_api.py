"""The HTTP interface's login, in plain SQL: it cancels, and is no worker and no operator."""

import json
from typing import Any

from fencepost.clock import uuid7
from fencepost.events import EventType
from fencepost.ledger.guards.cancels import CANCEL_WRITES
from fencepost.states import CALL_HOPS, RUN_HOPS
from tests.integration.guards_bench import HELD, WORKER, CallTarget, attack, presented
from tests.integration.ledger_bench import TENANT, Bench

API = "fencepost_api"
E = EventType
CALL_MOVES = [(via, s, t) for via in sorted(CALL_HOPS) for s, t in sorted(CALL_HOPS[via])]
RUN_MOVES = [(via, s, t) for via in sorted(RUN_HOPS) for s, t in sorted(RUN_HOPS[via])]


def test_of_all_moves_of_a_call_it_makes_those_of_a_cancel(target: CallTarget) -> None:
    for via, source, to in CALL_MOVES:
        target.put(source)
        said = target.move(via, to, role=API)
        assert said == (None if via == "cancel" else "FP002"), (via, source, to, target.attack.said)
        if via != "cancel":
            assert "may cancel it, and nothing else" in target.attack.said


def test_of_all_moves_of_a_run_it_makes_those_of_a_cancel(target: CallTarget) -> None:
    attack, run = target.attack, target.run
    attack.force("UPDATE fencepost.calls SET state = 'CANCELLED', doubt = false WHERE run = %s", run)
    for via, source, to in RUN_MOVES:
        seq, _, head = attack.event(run, target.call if via == "call" else None)
        attack.put("runs", run, **(HELD | {"status": source, "seq": seq - 1}))
        change = {"status": to, "seq": seq, "head_hash": head, **presented(via, seq - 1)}
        if via == "call":
            change |= {"presented_office": "call", "presented_call": target.call}
        said = attack.update("runs", run, change, API)
        assert said == (None if via == "cancel" else "FP002"), (via, source, to, attack.said)
        if via != "cancel":
            assert "may cancel it, and nothing else" in attack.said


def test_it_counts_nothing_in_a_run_without_a_word(target: CallTarget) -> None:
    seq, _, head = target.attack.event(target.run, target.call)
    counted = {"repairs": 1, "seq": seq, "head_hash": head}
    assert target.attack.update("runs", target.run, counted, WORKER) is None
    assert target.attack.update("runs", target.run, counted, API) == "FP002"


def test_it_writes_the_events_of_a_cancel_and_no_others(target: CallTarget) -> None:
    ((seq, head),) = target.attack.force(
        "SELECT seq, head_hash FROM fencepost.runs WHERE id = %s", target.run
    )

    def insert(kind: EventType, role: str) -> str | None:
        values: dict[str, Any] = {"tenant": TENANT, "run": target.run, "seq": seq + 1, "id": uuid7()}
        values |= {"type": kind, "version": 1, "body": json.dumps({}), "digest": "", "principal": "p"}
        values |= {"causation": uuid7(), "recorded_at": "2026-01-01T00:00:00Z", "projection": "p"}
        values |= {"prev_hash": head, "hash": "h"}
        names, places = ", ".join(values), ", ".join(["%s"] * len(values))
        statement = f"INSERT INTO fencepost.events ({names}) VALUES ({places})"
        return target.attack.attempt(statement, *values.values(), role=role)

    assert {kind for kind in EventType if insert(kind, API) != "FP002"} == CANCEL_WRITES
    assert {insert(kind, API) for kind in CANCEL_WRITES - {E.RUN_CREATED}} == {None}
    assert {insert(kind, WORKER) for kind in set(EventType) - {E.RUN_CREATED}} == {None}
    assert insert(E.RUN_CREATED, WORKER) == insert(E.RUN_CREATED, API) == "FP004", "it was created before"


def test_it_takes_no_key_for_a_call_and_lets_go_of_what_is_cancelled(target: CallTarget) -> None:
    ((key,),) = target.attack.force("SELECT operation FROM fencepost.calls WHERE id = %s", target.call)

    def update(change: str, role: str) -> str | None:
        statement = f"UPDATE fencepost.operations SET {change} WHERE key = %s AND tenant = %s"
        return target.attack.attempt(statement, key, TENANT, role=role)

    opened = "status = 'open', expires_at = NULL"
    assert (update(opened, WORKER), update(opened, API)) == (None, "FP002")
    target.put("CANCELLED")
    assert update("status = 'released'", API) is None


# -- the outbox ------------------------------------------------------------------------------------------

PUT_OFF = "UPDATE fencepost.outbox SET {} WHERE subject = %s"
CHANGES = [
    "due_at = '9999-01-01', publish_at = '9999-01-01', generation = generation + 1",
    "publish_at = '9999-01-01'",
    "publish_at = fencepost.now(), due_at = fencepost.now(), publish_count = 0, generation = generation + 1",
    "queue = 'compensator', generation = generation + 1",
    "worker = NULL, generation = generation + 1",
    "takeovers = 99, generation = generation + 1",
    "publish_count = 99",
]


def test_without_a_cancel_it_moves_no_row(bench: Bench) -> None:
    run = bench.start()
    call = bench.debit(run, bench.order())
    bench.dispatch(run, call)
    with attack(bench) as opened:
        for subject in (run, call):
            for change in CHANGES:
                assert opened.attempt(PUT_OFF.format(change), subject, role=WORKER) != "42501", opened.said
                assert opened.attempt(PUT_OFF.format(change), subject, role=API) == "FP002", change
            assert (
                opened.attempt("DELETE FROM fencepost.outbox WHERE subject = %s", subject, role=API)
                == "FP002"
            )
            for column in ("failures = 0", "error = 'x'", "dead_at = fencepost.now()", "root = NULL"):
                assert opened.attempt(PUT_OFF.format(column), subject, role=API) == "42501"
        for kind in ("run", "call"):
            new = INSERT_ROW.format(kind)
            assert opened.attempt(new, TENANT, uuid7(), run, role=WORKER) is None
            assert opened.attempt(new, TENANT, uuid7(), run, role=API) == "FP002"


INSERT_ROW = """
INSERT INTO fencepost.outbox (tenant, subject, kind, run, generation, queue, due_at, takeovers, worker, fence,
    publish_at, publish_count)
VALUES (%s, %s, '{}', %s, 1, 'compensator', fencepost.now(), 0, NULL, 0, fencepost.now(), 0)
"""
OF_A_CANCEL: list[tuple[str, str, str | None]] = [
    ("run", "queue = 'compensator', due_at = now, publish_at = now", None),
    ("run", "queue = 'compensator', due_at = '9999-01-01', publish_at = '9999-01-01'", "FP002"),
    ("run", "queue = 'compensator', due_at = now, publish_at = '9999-01-01'", "FP002"),
    ("run", "queue = 'compensator', due_at = now, publish_at = now, publish_count = 1", "FP002"),
    ("run", "queue = 'planner', due_at = now, publish_at = now", "FP002"),
    ("run", "queue = 'compensator', due_at = now, publish_at = now, generation = generation + 3", "FP002"),
    ("run", "queue = 'compensator', due_at = now, publish_at = now, worker = 'w'", "FP002"),
    ("run", "queue = 'compensator', due_at = now, publish_at = now, fence = 7", "FP002"),
    ("held", "due_at = now, publish_at = now", "FP002"),
    ("child", "due_at = now, publish_at = now", None),
    ("child", "due_at = '9999-01-01', publish_at = '9999-01-01'", "FP002"),
    ("child", "due_at = now, publish_at = now, queue = 'dispatcher'", "FP002"),
    ("other", "due_at = now, publish_at = now", "FP002"),
    ("waiting", "due_at = now, publish_at = now", None),
]


def test_with_a_cancel_it_moves_what_that_moves_and_no_more(bench: Bench) -> None:
    """The run was cancelled in this transaction; one of its calls is held, one has started a run, one is of
    another run, and one waits for a key that was let go of.
    """
    run, other = bench.start(), bench.start()
    order = bench.order()
    held, child = bench.plan(run, ("wallet.debit", {"order": order}), ("wallet.note", {"order": order}))
    elsewhere = bench.debit(other, bench.order())
    waiting = bench.debit(bench.start(), order)
    with attack(bench) as opened:
        opened.put("runs", run, status="STOPPING", fence=6)
        opened.put("calls", held, state="DISPATCHING", owner="w")
        opened.put("calls", child, state="DISPATCHING", child=uuid7())
        opened.put("calls", waiting, waits=True)
        opened.force("UPDATE fencepost.outbox SET worker = 'w' WHERE subject = %s", held)
        opened.force(
            "UPDATE fencepost.outbox SET queue = 'reconciler', due_at = '9000-01-01' WHERE subject = %s",
            child,
        )
        key = "(SELECT operation FROM fencepost.calls WHERE id = %s)"
        opened.force(f"UPDATE fencepost.operations SET status = 'released' WHERE key = {key}", held)
        before = opened.force("SELECT seq, head_hash FROM fencepost.runs WHERE id = %s", run)
        cancelled = opened.event(
            run, child
        )  # before the first attempt: each is a transaction within this one
        subjects = {"run": run, "held": held, "child": child, "other": elsewhere, "waiting": waiting}
        for (seq, head), answer in ((before[0], "FP002"), ((cancelled[0], cancelled[2]), None)):
            opened.put("runs", run, seq=seq, head_hash=head)
            for name, change, code in OF_A_CANCEL:
                said = PUT_OFF.format(_full(change))
                wanted = code or (None if name == "waiting" else answer)
                assert opened.attempt(said, subjects[name], role=API) == wanted, (name, change, opened.said)
        opened.put("runs", run, unsettled=1)
        later = "queue = 'compensator', due_at = '9999-01-01', publish_at = '9999-01-01'"
        assert opened.attempt(PUT_OFF.format(_full(later)), run, role=API) is None, opened.said
        gone = "DELETE FROM fencepost.outbox WHERE subject = %s"
        assert {opened.attempt(gone, one, role=API) for one in subjects.values()} == {"FP002"}
        opened.put("runs", run, status="STOPPED")
        assert opened.attempt(gone, run, role=API) is None
        opened.put("calls", child, state="CANCELLED")
        assert opened.attempt(gone, child, role=API) == "FP002", "it was cancelled before"
        opened.put("calls", child, version=cancelled[0])
        assert opened.attempt(gone, child, role=API) is None


def _full(change: str) -> str:
    """The change of a row as `apply` writes it, but for what is told."""
    whole = {"publish_count": "0", "takeovers": "0", "generation": "generation + 1"}
    whole |= dict(part.split(" = ") for part in change.split(", "))
    if whole["queue" if "queue" in whole else "due_at"] == "'compensator'":
        whole = {"fence": "6", "worker": "NULL"} | whole
    return ", ".join(f"{name} = {value.replace('now', 'now()')}" for name, value in whole.items())


def test_it_says_that_a_token_was_used_and_not_when(bench: Bench) -> None:
    used = "SELECT last_used_at > now() - interval '1 min' FROM fencepost.api_tokens WHERE id = %s"
    with attack(bench) as opened:
        name, digest = bench.token.split(":")
        assert opened.connection.execute(used, [name]).fetchall() == [(None,)]
        opened.connection.execute("SET LOCAL ROLE fencepost_api")
        opened.connection.execute("SELECT fencepost.bearer(%s, %s)", [name, digest])
        opened.connection.execute("RESET ROLE")
        assert opened.connection.execute(used, [name]).fetchall() == [(True,)]
