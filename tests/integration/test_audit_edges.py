"""The audit where a period ends: clocks that differ, intents of long before, keys in another form."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest

from fencepost import App, BookedEffect, Effect, Request
from fencepost.contracts.carriers import KeyCarrier
from fencepost.outcomes import Applied, Unsure
from fencepost_ops.audit.auditing import audited
from fencepost_ops.audit.intents import Intents
from fencepost_ops.database import LedgerDatabase
from tests.integration.ledger_app import Debit
from tests.integration.ledger_bench import Bench, open_bench

MINUTE = timedelta(minutes=1)
LENT = Applied('{"id":"l-1"}', "l-1")


@pytest.fixture
def bench(database: LedgerDatabase) -> Iterator[Bench]:
    with open_bench(database) as opened:
        yield opened


def found(
    bench: Bench,
    effect: BookedEffect,
    since: datetime,
    slack: timedelta,
    app: App | None = None,
    **to: datetime,
) -> list[str]:
    """What an audit finds whose book has this one effect."""
    until = to.get("until", bench.now())

    def read(begin: datetime, end: datetime) -> list[BookedEffect]:
        return [effect] if begin <= effect.at < end else []

    with psycopg.connect(bench.database.dsns["reader"], autocommit=True) as connection:
        intents = Intents(connection, "wallet/default", app)
        with audited(intents, read, "wallet/default", since, until, slack=slack) as (audit, spool):
            return [str(finding.kind) for finding in audit.findings(spool)]


def booked(bench: Bench, at: datetime, by: str, key: str) -> BookedEffect:
    named: dict[str, Any] = {"key": key} if by == "key" else {"reference": "o-1"} if by == "reference" else {}
    return BookedEffect(**{"receipt": "l-1" if by == "receipt" else None, "at": at, **named})


BY = pytest.mark.parametrize("by", ["key", "receipt", "reference"])


@BY
def test_a_downstream_whose_clock_is_behind_booked_it_before_it_was_sent(bench: Bench, by: str) -> None:
    end = bench.now()
    bench.ahead(60)
    run = bench.start()
    call = bench.debit(run, "o-1", "wallet.lend")
    bench.succeed(run, call, "l-1")
    effect = booked(bench, end - MINUTE, by, str(bench.call(call).operation))
    assert found(bench, effect, end - 6 * MINUTE, 5 * MINUTE, until=end) == ["matched"]
    assert found(bench, effect, end, 5 * MINUTE) == ["matched"]


@BY
def test_what_was_first_sent_long_ago_and_is_sent_again_in_the_period(bench: Bench, by: str) -> None:
    run = bench.start(deadline_s=600)
    call = bench.debit(run, "o-1", "wallet.lend")
    send, term = bench.dispatch(run, call)
    bench.record(send, term, Unsure("timeout", "no answer"))
    bench.ahead(10)
    since = bench.now()
    again, term = bench.reconcile(run, call)
    bench.record(again, term, LENT)
    effect = booked(bench, bench.now(), by, str(send.key))
    bench.ahead(1)
    assert found(bench, effect, since, timedelta(seconds=5)) == ["matched"]


@pytest.mark.parametrize("carrier", [KeyCarrier(form="uuid"), KeyCarrier(max_length=40)], ids=["uuid", "cut"])
def test_a_key_is_found_in_the_form_the_downstream_has_it_in(bench: Bench, carrier: KeyCarrier) -> None:
    app = App("spelled")
    wallet = app.dependency("wallet", base_url="http://127.0.0.1:9")

    @wallet.http("wallet.lend", effect=Effect.REVERSIBLE, intent=lambda a: ("lend", a.order), key=carrier)
    def lend(args: Debit) -> Request:
        return Request.post("/loans", json={"order": args.order})

    run = bench.start()
    call = bench.debit(run, "o-1", "wallet.lend")
    bench.succeed(run, call)
    bench.ahead(4000)
    effect = BookedEffect(None, bench.now(), key=carrier.spell(str(bench.call(call).operation)))
    bench.ahead(1)
    since = bench.now() - 10 * MINUTE
    assert found(bench, effect, since, MINUTE, app) == ["matched"]
    assert found(bench, effect, since, MINUTE) == ["effect_without_intent"]
