"""Rows that cannot be published hold up nobody: each is tried five times and set aside."""

from collections.abc import Callable, Sequence

import pytest
import redis

from fencepost.errors import Unreachable
from fencepost.publication import MOST_FAILURES
from fencepost_ops.local import LocalValkey
from fencepost_relay.publisher import Item, Publisher
from fencepost_relay.relay import Relay
from tests.awaiting import until
from tests.integration.relay.bench import Clock, Process, items, messages, pass_seconds, published
from tests.integration.rows import Sql, put_row, value

ROW = "SELECT failures, error, dead_at IS NOT NULL, publish_count FROM fencepost.outbox WHERE subject = %s"
LATER = "UPDATE fencepost.outbox SET publish_at = fencepost.now() WHERE dead_at IS NULL"


class Choosy(Publisher):
    """A publisher that cannot make a message of one subject."""

    bad = ""

    def publish(self, queue: str, items: Sequence[Item], traceparent: str | None = None) -> None:
        if any(subject == self.bad for _, subject, _ in items):
            raise TypeError("cannot be spelled")
        super().publish(queue, items, traceparent)


def test_a_pass_full_of_rows_for_a_queue_nobody_declares_hides_no_good_row(
    sql: Sql, raw: redis.Redis, make_relay: Callable[..., Relay]
) -> None:
    ghosts = [put_row(sql, queue="ghosts", due_in="-10 s") for _ in range(20)]
    good = put_row(sql)
    clock = Clock()
    relay = make_relay(clock=clock, take=10)

    results = [relay.run_once() for _ in range(3)]

    assert [result.published for result in results] == [0, 0, 1]
    assert [len(result.setbacks) for result in results] == [10, 10, 0]
    assert published(raw) == [str(good)]
    said = "LookupError: no worker of this version listens to a queue 'ghosts'"
    assert [sql.execute(ROW, [ghost]).fetchall() for ghost in ghosts] == [[(1, said, False, 0)]] * 20
    for _ in range(MOST_FAILURES - 1):
        sql.execute(LATER)
        clock.now += 1
        relay.run_once()
        relay.run_once()
    assert [sql.execute(ROW, [ghost]).fetchall() for ghost in ghosts] == [[(5, said, True, 0)]] * 20
    sql.execute(LATER)
    assert pass_seconds(relay, clock, 3) == []
    assert value(sql, "SELECT max(failures) FROM fencepost.outbox") == 5, "and is not looked at any more"


def test_a_row_that_fails_in_a_list_is_left_out_and_the_list_is_sent(
    sql: Sql, raw: redis.Redis, valkey: LocalValkey, make_relay: Callable[..., Relay]
) -> None:
    subjects = [str(put_row(sql, due_in=f"-{100 - n} s")) for n in range(20)]
    publisher = Choosy(valkey.url())
    publisher.bad = subjects[7]

    result = make_relay(publisher).run_once()

    assert result.published == 19
    assert published(raw) == [subject for subject in subjects if subject != publisher.bad]
    assert [len(items(message)) for message in messages(raw)] == [5, 2, 2, 10]
    (setback,) = result.setbacks
    assert (str(setback.subject), setback.failures, setback.dead) == (publisher.bad, 1, False)


def test_a_broker_that_refuses_is_nobodys_failure_and_is_asked_with_a_single_row(
    sql: Sql, raw: redis.Redis, make_relay: Callable[..., Relay]
) -> None:
    for _ in range(5):
        put_row(sql)
    clock = Clock()
    relay = make_relay(clock=clock, list_size=2)
    raw.config_set("maxmemory", "1")  # nothing more can be written; asking for a length still works
    try:
        with pytest.raises(Unreachable):
            relay.run_once()
        counts = "SELECT publish_count, failures FROM fencepost.outbox ORDER BY 1"
        assert sql.execute(counts).fetchall() == [(0, 0)] * 5, "what was refused is handed back too"
        for _ in range(3):
            clock.now += 1
            with pytest.raises(Unreachable):
                relay.run_once()
    finally:
        raw.config_set("maxmemory", "0")
    assert value(sql, "SELECT count(*) FROM fencepost.outbox WHERE publish_count > 0") == 0
    until(
        "all five rows are published, though none has waited out its interval",
        lambda: bool(pass_seconds(relay, clock, 1)) or len(set(published(raw))) == 5,
    )
    assert value(sql, "SELECT sum(failures) FROM fencepost.outbox") == 0


def test_a_relay_process_says_what_it_cannot_publish_and_goes_on(
    sql: Sql, raw: redis.Redis, start_relay: Callable[..., Process]
) -> None:
    put_row(sql, queue="ghosts", due_in="-1 s")
    relay = start_relay(FENCEPOST_POLL_MS="20", FENCEPOST_REPUBLISH_S="0.01")
    until(
        "the relay says that a row is set aside",
        lambda: relay.says("1 rows are set aside, see `fencepost outbox --dead`"),
    )
    good = put_row(sql)
    until("the good row is published", lambda: str(good) in published(raw))
    assert relay.stop() == 0
    assert relay.says("1 rows could not be published and are tried again later; the first, shop/")


def test_a_relay_that_dies_between_taking_and_failing_leaves_the_row_to_be_found(
    sql: Sql, raw: redis.Redis, start_relay: Callable[..., Process], make_relay: Callable[..., Relay]
) -> None:
    ghost = put_row(sql, queue="ghosts")
    killed = start_relay(FENCEPOST_FAULT="relay.after_take=crash", FENCEPOST_REPUBLISH_S="0.01")
    killed.wait()
    assert sql.execute(ROW, [ghost]).fetchall() == [(0, None, False, 0)]
    relay = make_relay()
    until("the row fails", lambda: relay.run_once().setbacks)
