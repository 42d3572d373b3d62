"""`fencepost unresolved`: what is told of a call nobody knows the outcome of; briefly, in full, as JSON."""

import re
from collections.abc import Iterator
from uuid import UUID

import pytest

from fencepost import Request
from fencepost import commands as c
from fencepost.clock import parse_rfc3339, rfc3339
from fencepost.outcomes import Applied, Unsure
from fencepost.recovery import Answer
from fencepost_ops.database import LedgerDatabase
from tests.integration.ledger_bench import TENANT, Bench, Fields, open_bench
from tests.integration.shell import Shell, needs_repair, succeeded

LOST = Unsure("timeout", "no answer in 2 s")


@pytest.fixture
def bench(database: LedgerDatabase) -> Iterator[Bench]:
    with open_bench(database) as opened:
        yield opened


def asked_in_vain(bench: Bench, key: str = "o-1") -> tuple[UUID, UUID, c.Send, c.Term]:
    """A call that was sent with a secret in its body, looked up twice, and then left to a person."""
    run = bench.enqueue(key, deadline_s=600)
    (call,) = bench.plan(run, ("wallet.debit", {"order": key}))
    term = bench.term()
    secret: Fields = {"account": "ann", "password": "hunter2", "note": "x" * 5000}
    request = Request.post("/debits", json=secret).bind("http://127.0.0.1:9").to_text()
    claim = c.ClaimCall(**bench._claim(run, call, term, None), request=request)
    send = bench.one(claim)
    assert isinstance(send, c.Send), send
    bench.record(send, term, LOST)
    for _ in range(2):
        bench.ahead(5)
        ask, asking = bench.reconcile(run, call)
        bench.one(bench.looked_up(ask, asking, Answer.UNCLEAR))
    bench.ahead(35)
    assert bench.reconcile(run, call)[0] == c.Done("NEEDS_REPAIR")
    return run, call, send, term


def test_one_call_is_told_in_full(bench: Bench, shell: Shell) -> None:
    run, call, send, term = asked_in_vain(bench)
    assert bench.one(bench.evidence(send, term, Applied('{"id":"d-9"}', "d-9"))) == c.Done("NEEDS_REPAIR")
    result = shell("unresolved", str(call)[:18], role="reader")
    told = result.stdout
    assert (result.exit_code, result.stderr) == (1, "")
    assert told.startswith("wallet.debit v1 1.0 of run o-1: NEEDS_REPAIR\n")
    assert f"  run     {run} of tenant shop, dependency wallet/default" in told
    assert re.search(r"  age     4\d(\.\d)? s since \d{4}-", told)
    assert "  request POST http://127.0.0.1:9/debits" in told
    assert re.search(r"  body    \{.*\"password\":\"\*\*\*\".*x…\n", told)
    assert re.search(r"  sent    \d{4}-.*Z attempt 1 \(term [0-9a-f]{6}/\d+\)\n", told)
    assert "  back    timeout: no answer in 2 s\n" in told
    assert len(re.findall(r"  asked   \d{4}-.*Z: unclear", told)) == 2
    assert re.search(r"  known   \d{4}-.*: attempt 1 applied, receipt d-9\n", told)
    assert re.search(r"  why     \d{4}-.*: ", told)
    version = bench.call(call).version
    assert f"  next    fencepost repair {call} --seen {version} --reason TEXT --ask-again\n" in told
    assert "hunter2" not in told
    assert max(map(len, told.splitlines())) < 2100


@pytest.mark.parametrize(
    ("on_stop", "then"),
    [
        ("compensate", "1 effect of it is offset once this call is settled, and not before"),
        ("compensate_at_once", "1 effect of it is offset at once (on_stop compensate_at_once)"),
        ("leave", "1 effect of it stays (on_stop leave)"),
    ],
)
def test_it_is_told_when_its_run_ends_and_what_becomes_of_its_effects(
    bench: Bench, shell: Shell, on_stop: str, then: str
) -> None:
    run = bench.enqueue("o-1", deadline_s=600, on_stop=on_stop)
    room, mail = bench.plan(run, ("wallet.debit", {"order": "o-1"}), ("mail.send", {"order": "o-1"}))
    bench.succeed(run, room)
    send, term = bench.dispatch(run, mail)
    bench.record(send, term, LOST)
    bench.ahead(31)
    assert bench.reconcile(run, mail)[0] == c.Done("NEEDS_REPAIR")
    deadline = rfc3339(bench.run(run).deadline)
    for arguments in (("unresolved",), ("unresolved", str(mail))):
        told = shell(*arguments, role="reader").stdout
        assert re.search(
            rf"  run     goes on until its deadline, {re.escape(deadline)} \(.*\); then {re.escape(then)}\n",
            told,
        )


def test_the_command_that_is_named_can_be_given_as_it_stands(bench: Bench, shell: Shell) -> None:
    _, call, _, _ = asked_in_vain(bench)
    (listed,) = shell.json("unresolved", exit_code=1)
    way = next(line for line in listed["next"] if line.endswith("--ask-again"))
    told = shell.ok(*way.replace("TEXT", "looked").split()[1:])
    assert told.startswith(f"call {call} is UNKNOWN: the service is asked again")
    late = shell.refused(1, *way.replace("TEXT", "looked").split()[1:])
    assert "only a call in NEEDS_REPAIR" in late


def test_json_has_everything_but_secrets(bench: Bench, shell: Shell) -> None:
    _, call, _, _ = asked_in_vain(bench)
    result = shell("unresolved", "--json", role="reader")
    assert "hunter2" not in result.stdout
    (listed,) = shell.json("unresolved", exit_code=1)
    assert shell.json("unresolved", str(call), exit_code=1)["sent"] == listed["sent"]
    assert (listed["request"]["method"], listed["request"]["target"]) == ("POST", "http://127.0.0.1:9/debits")
    assert listed["request"]["bytes"] > 5000
    assert len(listed["request"]["body"]) == 2000
    (sent,) = listed["sent"]
    assert (sent["attempt"], sent["outcome"], sent["message"]) == (1, "timeout", "no answer in 2 s")
    assert parse_rfc3339(sent["at"]) < parse_rfc3339(sent["answered_at"])
    assert [asked["answer"] for asked in listed["asked"]] == ["unclear", "unclear"]
    assert listed["why"][-1]["reason"] == bench.call(call).error
    assert 40 < listed["age_s"] < 60


def test_the_list_stays_short_and_verbose_makes_it_long(bench: Bench, shell: Shell) -> None:
    needs_repair(bench, "o-1")
    asked_in_vain(bench, "o-2")
    brief, verbose = shell("unresolved").stdout, shell("unresolved", "--verbose").stdout
    assert len(brief.splitlines()) == 17
    assert brief.startswith("waits for a person:\n")
    assert re.search(r"  sent    1 × POST http://127.0.0.1:9/debits, last 4\d(\.\d)? s ago\n", brief)
    assert "  lookup  unclear (2 asked)\n" in brief
    assert len(verbose.splitlines()) > 30
    assert "hunter2" not in brief + verbose


def test_a_decision_taken_before_is_part_of_the_story(bench: Bench, shell: Shell) -> None:
    _, call, _, _ = asked_in_vain(bench)
    shell.ok("repair", str(call), "--ask-again", "--reason", "they are back", "--by", "pat")
    told = shell("unresolved", str(call)).stdout
    assert re.search(r"  decided \d{4}-.* by pat: UNKNOWN, they are back\n", told)
    assert re.search(r"  next    the reconciler, due ", told)


def test_a_call_whose_outcome_is_known_is_said_to_be(bench: Bench, shell: Shell) -> None:
    _, call = succeeded(bench)
    assert shell.refused(1, "unresolved", str(call)) == f"call {call} is SUCCEEDED: its outcome is known"
    assert shell.refused(2, "unresolved", "0000").startswith(
        "there is no call 0000; fencepost runs lists runs"
    )


def test_a_name_of_something_else_and_a_tenant_with_a_slip_are_told(bench: Bench, shell: Shell) -> None:
    run, call = succeeded(bench)
    said = f"there is a call {call} of run {run} of tenant {TENANT}"
    assert shell.refused(2, "show", str(call)) == f"there is no run {call}; {said}"
    said = f"there is a run {run} of tenant {TENANT}"
    assert shell.refused(2, "result", str(run)) == f"there is no call {run}; {said}"
    assert "there is no run" in shell.refused(2, "show", str(call), role="producer")  # who sees no calls
    assert (
        shell.ok("unresolved", "--tenant", "shpo")
        == "no call of tenant shpo is unknown, held or left to a person\n"
    )
    assert shell.ok("runs", "--tenant", "shpo") == "no runs of tenant shpo\n"
    waits = bench.debit(bench.enqueue("o-2"), "o-2")
    assert "INTENT_RECORDED: see what it waits for" in shell.refused(1, "unresolved", str(waits))


def test_a_list_that_is_cut_short_says_so(bench: Bench, shell: Shell) -> None:
    for key in ("o-1", "o-2"):
        needs_repair(bench, key)
    for args in (("unresolved",), ("runs", "--json"), ("unresolved", "--json")):
        told = shell(*args, "--limit", "1")
        assert told.stderr == "fencepost: of a kind 1 are listed at most; --limit shows more\n"
    assert shell("unresolved", "--limit", "3").stderr == ""
