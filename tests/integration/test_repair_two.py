"""Decisions that take two: asked for by one, confirmed by another, each under a login Postgres knows."""

import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest

from fencepost import commands as c
from fencepost.decide import by_two, offices
from fencepost.ledger.apply import Ledger
from fencepost.ledger.connect import Pool
from fencepost.outcomes import Applied, Unsure
from fencepost_ops.checker import check
from fencepost_ops.local import LocalPostgres
from tests.integration.ledger_bench import Bench
from tests.integration.shell import Shell

LOST = Unsure("timeout", "the answer was lost")
HOUR = timedelta(hours=1)
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def second(postgres: LocalPostgres, module_bench: Bench) -> Iterator[str]:
    """The DSN of another operator."""
    name = f"second_operator_{next(_numbers)}"
    first = module_bench.database.dsns["operator"]
    with psycopg.connect(postgres.superuser_dsn, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'second' IN ROLE fencepost_operator")
    yield f"postgresql://{name}:second@{first.rpartition('@')[2]}"
    module_bench.close()
    with psycopg.connect(postgres.superuser_dsn, autocommit=True) as connection:
        connection.execute(f"DROP ROLE {name}")


@pytest.fixture
def ledgers(bench: Bench, second: str) -> Iterator[dict[str, Ledger]]:
    """The ledger under either login, by the name of the login's person."""
    pool = Pool(second, "second", 2)
    yield {"ann": bench.operator, "bob": Ledger(pool, bench.known)}
    pool.close()


class Case:
    """A call that waits for a person, and what two persons say of it."""

    def __init__(self, bench: Bench, ledgers: dict[str, Ledger], second: str, **how: Any) -> None:
        self.bench = bench
        self.ledgers = ledgers
        self.logins = {"ann": login(bench.database.dsns["operator"]), "bob": login(second)}
        self.run = bench.start(deadline_s=36_000, **how)
        self.call = bench.debit(self.run, bench.order(), "mail.send")
        self.send, self.term = bench.dispatch(self.run, self.call)
        bench.record(self.send, self.term, LOST)
        assert bench.reconcile(self.run, self.call)[0] == c.Done("NEEDS_REPAIR")
        bench.ahead(4)

    def say(self, decision: str, who: str = "ann", **more: Any) -> Any:
        given = {"decision": decision, "by": who, "reason": f"{who} looked", "login": self.logins[who]}
        command = c.DecideRepair(**self.bench.base(self.run), call=self.call, **{**given, **more})
        (answer,) = self.ledgers[more.get("through", who)].apply([command])
        return answer

    def ask(self, decision: str = "ACCEPTED_UNKNOWN", who: str = "ann", **more: Any) -> Any:
        return self.say(decision, who, **{"confirm_within": HOUR, **more})

    def denied(self, decision: str, who: str = "bob", **more: Any) -> str:
        answer = self.say(decision, who, **more)
        assert isinstance(answer, c.Denied), answer
        assert self.bench.state(self.call) == "NEEDS_REPAIR"
        return answer.why


def login(dsn: str) -> str:
    return dsn.partition("//")[2].partition(":")[0]


@pytest.fixture
def case(bench: Bench, ledgers: dict[str, Ledger], second: str) -> Case:
    return Case(bench, ledgers, second)


def test_one_asks_and_another_confirms_and_both_are_history(case: Case) -> None:
    bench = case.bench
    assert case.ask() == c.Done("NEEDS_REPAIR")
    assert bench.operation(case.call).doubt
    assert case.say(c.CONFIRM, "bob") == c.Done("ACCEPTED_UNKNOWN")
    asked, decided = (e for e in bench.events(case.run) if e.type in ("RepairProposed", "RepairDecided"))
    assert (asked.principal, asked.data["login"], asked.data["reason"]) == (
        "ann",
        case.logins["ann"],
        "ann looked",
    )
    assert (decided.principal, decided.data["login"], decided.data["reason"]) == (
        "bob",
        case.logins["bob"],
        "ann looked",
    )
    assert decided.data["asked"] == {"by": "ann", "login": case.logins["ann"], "version": asked.seq}
    assert decided.data["confirmed"] == "bob looked"
    assert bench.call(case.call).proposed is None


def test_the_checker_has_nothing_against_what_two_decide_of_a_run_that_has_stopped(
    bench: Bench, ledgers: dict[str, Ledger], second: str
) -> None:
    case = Case(bench, ledgers, second, on_stop="leave")
    case.bench.cancel(case.run)
    assert case.bench.status(case.run) == "STOPPED"
    assert case.ask("SUCCEEDED", receipt="m-7") == c.Done("NEEDS_REPAIR")
    assert case.say(c.CONFIRM, "bob") == c.Done("SUCCEEDED")
    with psycopg.connect(case.bench.database.dsns["reader"], autocommit=True) as reader:
        report = check(reader, None, settled=True, runs=[case.run])
    assert [v.message for verdict in report.verdicts for v in verdict.violations] == []


def test_what_is_asked_for_is_what_is_confirmed(case: Case) -> None:
    case.ask("SUCCEEDED", receipt="m-7")
    assert case.say(c.CONFIRM, "bob", receipt="m-8") == c.Done("SUCCEEDED")
    assert case.bench.call(case.call).receipt == "m-7"


def test_nobody_confirms_alone(case: Case) -> None:
    case.ask()
    assert "another operator's login has to confirm it" in case.denied(c.CONFIRM, "ann")
    assert "another operator's login" in case.denied(c.CONFIRM, "ann", by="bob")
    assert "ann asked for it; another person" in case.denied(c.CONFIRM, "bob", by="ann")
    assert "another operator's login" in case.denied(c.CONFIRM, "bob", login=None)


def test_postgres_itself_knows_who_is_logged_in(case: Case) -> None:
    """A process that lies about its login, to the rules, does not get past the guard."""
    case.ask()
    (lie,) = case.ledgers["ann"].apply(
        [
            c.DecideRepair(
                **case.bench.base(case.run),
                call=case.call,
                decision=c.CONFIRM,
                by="bob",
                reason="r",
                login=case.logins["bob"],
            )
        ]
    )
    assert isinstance(lie, c.Broken)
    assert "it is not for login" in lie.why
    (asked,) = case.ledgers["ann"].apply(
        [
            c.DecideRepair(
                **case.bench.base(case.run),
                call=case.call,
                decision="FAILED",
                by="bob",
                reason="r",
                login=case.logins["bob"],
                confirm_within=HOUR,
            )
        ]
    )
    assert isinstance(asked, c.Broken)
    assert case.bench.state(case.call) == "NEEDS_REPAIR"
    assert case.say(c.CONFIRM, "bob") == c.Done("ACCEPTED_UNKNOWN")


def test_postgres_itself_binds_what_is_confirmed_to_what_was_asked_for(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever has no rules of their own confirms that very decision, while it stands, or nothing."""

    def refused(**instead: Any) -> None:
        with monkeypatch.context() as rules:
            rules.setattr(by_two, "refusal", lambda *_: None)
            rules.setattr(offices, "objection", lambda *_: None)
            rules.setattr(by_two, "replace", lambda command, **asked: replace(command, **asked | instead))
            answer = case.say(c.CONFIRM, "bob")
        assert isinstance(answer, c.Broken), answer
        assert "what is confirmed is not what was asked for, or is so no longer" in answer.why
        assert case.bench.state(case.call) == "NEEDS_REPAIR"

    case.ask("SUCCEEDED", receipt="m-7")
    refused(receipt="forged")
    refused(receipt=None)
    refused(decision=c.COMPENSATE)
    refused(decision="FAILED", receipt="m-7")
    refused(decision="UNKNOWN")
    case.bench.ahead(3600)
    refused()
    case.ask("SUCCEEDED", receipt="m-7")
    case.bench.one(case.bench.evidence(case.send, case.term, Applied('{"id":"m-1"}', "m-1")))
    refused()


def test_postgres_itself_takes_no_word_for_who_asked(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has asked, and a process says that somebody has, or names nobody."""
    decide = offices._decide
    for asked in ({"login": case.logins["ann"]}, {}, None):
        with monkeypatch.context() as rules:
            rules.setattr(
                offices, "_decide", lambda fold, call, say, _, a=asked: decide(fold, call, say, {"asked": a})
            )
            answer = case.say("ACCEPTED_UNKNOWN", "bob")
        assert isinstance(answer, c.Broken), answer
        assert "it is not for login" in answer.why


def test_a_request_expires_and_can_be_made_anew(case: Case) -> None:
    case.ask()
    case.bench.ahead(3600)
    assert "was asked for until" in case.denied(c.CONFIRM)
    assert case.ask(who="bob") == c.Done("NEEDS_REPAIR")
    assert case.say(c.CONFIRM, "ann") == c.Done("ACCEPTED_UNKNOWN")


def test_nothing_is_confirmed_that_nobody_asked_for_or_that_has_changed(case: Case) -> None:
    assert "nobody has asked" in case.denied(c.CONFIRM)
    case.ask()
    case.bench.one(case.bench.evidence(case.send, case.term, Applied('{"id":"m-1"}', "m-1")))
    assert "has changed since the decision was asked for" in case.denied(c.CONFIRM)
    assert "is known to have been applied" in case.denied("ACCEPTED_UNKNOWN", confirm_within=HOUR)
    assert case.ask("SUCCEEDED", receipt="m-1") == c.Done("NEEDS_REPAIR")
    assert case.say(c.CONFIRM, "bob", seen=case.bench.call(case.call).version) == c.Done("SUCCEEDED")


def test_what_cannot_be_decided_cannot_be_asked_for(case: Case) -> None:
    assert "a receipt is required" in case.denied("SUCCEEDED", confirm_within=HOUR)
    assert "nothing can offset it" in case.denied(c.COMPENSATE, receipt="m-1", confirm_within=HOUR)
    assert "needs the login" in case.denied("FAILED", login=None, confirm_within=HOUR)


def test_the_command_line_asks_and_confirms(bench: Bench, second: str, case: Case, no_settings: None) -> None:
    shell = Shell(bench.database, {"COLUMNS": "240", "FENCEPOST_REPAIR_BY_TWO": "true"})
    call = str(case.call)
    told = shell.ok("repair", call, "--accept-unknown", "--reason", "it is gone", "--by", "ann")
    assert f"another operator confirms it with fencepost repair {call} --confirm --reason TEXT" in told
    asked = shell.json("repair", call, "--accept-unknown", "--reason", "it is gone", "--by", "ann")
    assert (asked["state"], asked["asked_for"]) == ("NEEDS_REPAIR", "ACCEPTED_UNKNOWN")
    listed = next(one for one in shell.json("unresolved", exit_code=1) if one["call"] == call)
    assert "--confirm   (ACCEPTED_UNKNOWN, asked for by ann until " in listed["next"][0]
    assert "asked   ACCEPTED_UNKNOWN, asked for by ann until" in shell("unresolved").stdout
    assert "ACCEPTED_UNKNOWN asked for by ann: it is gone" in shell.ok("show", str(case.run))
    alone = shell.refused(1, "repair", call, "--confirm", "--reason", "yes", "--by", "bob")
    assert "another operator's login has to confirm it" in alone
    both = Shell(replace(bench.database, dsns={"operator": second}), shell.env)
    told = both.ok("repair", call, "--confirm", "--reason", "yes", "--by", "bob")
    assert told.startswith(f"call {call} is ACCEPTED_UNKNOWN; see fencepost show")


def test_the_ledgers_owner_lays_it_down_for_everybody(
    bench: Bench, second: str, case: Case, no_settings: None
) -> None:
    """Also for who has no such setting, or goes round the client."""
    shell = Shell(bench.database, {"COLUMNS": "240"})
    owner = ("--dsn", bench.database.owner)
    assert shell.ok("migrate", "--repair-by-two", *owner).endswith("a repair takes two persons from now on\n")
    try:
        alone = case.say("ACCEPTED_UNKNOWN")
        assert isinstance(alone, c.Broken)
        assert "a decision takes two persons here" in alone.why
        told = shell.ok("repair", str(case.call), "--accept-unknown", "--reason", "gone", "--by", "ann")
        assert "is asked for; another operator confirms it" in told
        assert case.say(c.CONFIRM, "bob") == c.Done("ACCEPTED_UNKNOWN")
        with (
            bench.operator._pool.connection() as connection,
            pytest.raises(psycopg.errors.InsufficientPrivilege),
        ):
            connection.execute("DELETE FROM fencepost.rules")
    finally:
        shell.ok("migrate", "--repair-by-one", *owner)


def test_many_are_asked_for_and_confirmed_at_once(
    bench: Bench, ledgers: dict[str, Ledger], second: str, no_settings: None
) -> None:
    cases = [Case(bench, ledgers, second) for _ in range(3)]
    env = {"COLUMNS": "240", "FENCEPOST_REPAIR_BY_TWO": "true"}
    ann, bob = Shell(bench.database, env), Shell(replace(bench.database, dsns={"operator": second}), env)
    these = [word for case in cases for word in ("--where", f"run={case.run}")]
    ask = ("repair", *these, "--accept-unknown", "--reason", "gone", "--by", "ann", "--expect", "3")
    lines = ann.ok(*ask).splitlines()
    assert lines[0].startswith(f"call {cases[0].call} (mail.send of run ")
    assert lines[0].endswith(") is asked for as ACCEPTED_UNKNOWN; another operator confirms it")
    assert lines[3] == "3 asked for as ACCEPTED_UNKNOWN"
    assert lines[4].startswith("nothing of what is asked for is decided: another operator does that")
    asked = ann.json(*ask)
    assert (asked["decided"], asked["asked_for"]) == (False, "ACCEPTED_UNKNOWN")
    assert {(one["state"], one["asked_for"]) for one in asked["calls"]} == {
        ("NEEDS_REPAIR", "ACCEPTED_UNKNOWN")
    }
    assert [bench.state(case.call) for case in cases] == ["NEEDS_REPAIR"] * 3
    told = bob.ok("repair", *these, "--confirm", "--reason", "yes", "--by", "bob", "--yes")
    assert told.endswith("3 ACCEPTED_UNKNOWN\n")


def test_a_decision_somebody_asked_for_is_replayed(case: Case) -> None:
    """The row is what the events say, the request included (I6); the bench's fixture verifies it."""
    case.ask()
    kept: UUID | str | None = case.bench.call(case.call).proposed
    assert json.loads(str(kept))["decision"] == "ACCEPTED_UNKNOWN"
