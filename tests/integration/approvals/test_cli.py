"""`fencepost approvals`, `approve` and `deny` as a person types them, and the same from Python."""

import json

import pytest

from fencepost import App, Client
from fencepost.clock import rfc3339
from fencepost.errors import FencepostError, NotFound, UsageError
from fencepost.ledger.approvals import against
from fencepost.ledger.connect import connect
from tests.integration.approvals.desk import REFUND, Desk, asking
from tests.integration.ledger_bench import TENANT
from tests.integration.shell import Shell

APP = "tests.integration.approvals.test_cli:app"
WHY = ("--reason", "looked")

app = App("approving")
"""Its grants are those of the desk, so that both are one version of the policy."""
app.allow(
    "svc:*",
    tools=["wallet.debit", "wallet.note", "mail.send"],
    approvals=1,
    approvers=["ann", "bob", "role:boss"],
)
app.allow("svc:*", tools=["wallet.refund"])


@pytest.fixture
def cli(desk: Desk, no_settings: None) -> Shell:
    return Shell(desk.bench.database, {"COLUMNS": "240", "FENCEPOST_APP": APP})


def test_what_waits_is_listed_shown_exactly_and_approved_by_the_version_that_was_shown(
    desk: Desk, cli: Shell
) -> None:
    run, call = desk.asked()
    listed = cli.ok("approvals", "--run", str(run))
    assert str(call) in listed
    assert "1 person" in listed
    assert "REVERSIBLE" in listed
    shown = cli.ok("approvals", "show", str(call))
    body = json.dumps({"order": json.loads(desk.bench.call(call).arguments)["order"], "minor": 100})
    assert "will send  POST http://127.0.0.1:9/debits" in shown
    assert body.replace(" ", "") in shown
    assert "requester  svc:checkout, tenant shop" in shown
    assert "from       turn 1 of planner p v1" in shown
    assert "taint      none" in shown
    version = desk.bench.call(call).version
    assert f"version {version}" in shown
    stale = cli.refused(1, "approve", str(call), "--by", "ann", *WHY, "--version", str(version - 1))
    assert "has changed since you looked at it" in stale
    said = cli.ok("approve", str(call)[:18], "--by", "ann", *WHY, "--version", str(version))
    assert said == f"call {call} is approved: it is sent as soon as its claim finds that all still holds\n"
    again = cli.ok("approve", str(call), "--by", "ann", *WHY)
    assert again == "ann has said so already, and it changes nothing: the call is INTENT_RECORDED\n"
    assert desk.bench.state(call) == "INTENT_RECORDED"
    assert cli.ok("approvals", "--run", str(run)) == "nothing waits for an approval\n"
    assert f"approved by ann (login {desk.logins['ann']})" in cli.ok("approvals", "show", str(call))


def test_what_its_runs_deadline_ends_first_is_first_in_the_list(desk: Desk, cli: Shell) -> None:
    _, calm = desk.asked()
    run, pressing = desk.asked(deadline_s=600)
    listed = [one["call"] for one in cli.json("approvals") if one["call"] in {str(calm), str(pressing)}]
    assert listed == [str(pressing), str(calm)]
    assert ", with its run's deadline" in cli.ok("approvals", "show", str(pressing))
    deadline = rfc3339(desk.bench.run(run).deadline)
    assert cli.json("approvals", "show", str(pressing))["until"] == deadline


def test_what_nobody_would_see_is_spelled_out_and_what_looks_alike_is_named(desk: Desk, cli: Shell) -> None:
    run = desk.run()
    order = f"{desk.bench.order()}\u200b\u202epaid\u2066 \u00a0p\u0430id\x1b[2J"
    (call,) = desk.bench.plan(run, ("wallet.debit", {"order": order}))
    shown = cli.ok("approvals", "show", str(call))
    assert not {"\u200b", "\u202e", "\u2066", "\u00a0", "\x1b"} & set(shown)
    assert "‹U+200B›‹U+202E›paid‹U+2066› ‹U+00A0›p" in shown
    assert "U+0430 CYRILLIC SMALL LETTER A" in shown
    kept = cli.json("approvals", "show", str(call))
    assert json.loads(kept["request"]["body"]["text"])["order"] == order


def test_a_denial_is_final(desk: Desk, cli: Shell) -> None:
    run, call = desk.asked()
    assert cli.ok("deny", str(call), "--by", "ann", *WHY) == f"call {call} is REJECTED\n"
    assert "it is decided already: ann" in cli.refused(1, "approve", str(call), "--by", "bob", *WHY)
    assert desk.bench.run(run).stop_reason == "authorization_denied"


def test_who_may_not_is_told_why(desk: Desk, cli: Shell) -> None:
    _, call = desk.asked()
    assert "no grant lets eve approve wallet.debit" in cli.refused(
        1, "approve", str(call), "--by", "eve", *WHY
    )
    nameless = cli.refused(1, "approve", str(call), "--by", "ann", *WHY, FENCEPOST_APP="")
    assert "no policy is published for tenant shop" in nameless
    assert "FENCEPOST_APP" in nameless
    assert "may not do that" in cli.refused(2, "approve", str(call), "--by", "ann", *WHY, role="reader")
    assert "is not an operator" in cli.refused(1, "approve", str(call), "--by", "ann", *WHY, role="worker")
    assert desk.bench.state(call) == "AWAITING_APPROVAL"


def test_what_takes_two_says_who_is_still_needed(desk: Desk, cli: Shell) -> None:
    desk.policy.grants = (asking("wallet.debit", count=2), REFUND)
    run, call = desk.asked()
    first = cli.json("approve", str(call), "--by", "ann", *WHY)
    assert (first["state"], first["missing"]) == ("AWAITING_APPROVAL", 1)
    assert "1 person, after ann" in cli.ok("approvals", "--run", str(run))
    assert "login" in cli.refused(1, "approve", str(call), "--by", "bob", *WHY)
    with pytest.raises(FencepostError, match="has approved it already"):
        Client(desk.bench.database.dsns["operator"], app=app).approve(call, "bob", "looked")


def test_mistakes_are_one_sentence_each(desk: Desk, cli: Shell) -> None:
    run = desk.run()
    (call,) = desk.bench.plan(run, ("wallet.refund", {"order": desk.bench.order()}))
    nobody = cli.refused(1, "approvals", "show", str(call))
    assert nobody == f"nobody was asked to approve call {call}; it is INTENT_RECORDED"
    assert "nobody is asked to approve it" in cli.refused(1, "approve", str(call), "--by", "ann", *WHY)
    assert "there is no call ffff" in cli.refused(2, "deny", "ffff", "--by", "ann", *WHY)
    assert cli("approve", str(call), "--by", "ann").exit_code == 2
    assert "by is a name" in cli.refused(2, "approve", str(call), "--by", " ", *WHY)


def test_the_same_from_python(desk: Desk) -> None:
    run, call = desk.asked()
    with Client(desk.bench.database.dsns["operator"], app=app) as client:
        (one,) = client.approvals(run=run)
        assert (one.call, one.version, one.approval.missing) == (call, desk.bench.call(call).version, 1)
        assert client.approvals(tenant="nobody") == []
        assert client.run(run).blocked
        assert client.approve(call, "ann", "looked", seen=one.version) == "INTENT_RECORDED"
        assert client.approve(call, "ann", "looked") == "INTENT_RECORDED"
        with pytest.raises(FencepostError, match="it is decided already: ann"):
            client.deny(call, "bob", "no")
        with pytest.raises(NotFound):
            client.approve("00000000-0000-0000-0000-000000000001", "ann", "looked")
        with pytest.raises(UsageError):
            client.approve(call, "ann", "  ")
    assert desk.bench.run(run).tenant == TENANT


def test_what_stands_against_a_call_is_said_when_it_is_approved(desk: Desk, cli: Shell) -> None:
    _, call = desk.asked()
    assert cli.json("approve", str(call), "--by", "ann", *WHY)["against"] == []
    run, call = desk.asked()
    desk.principal("svc:checkout", disabled=True)
    tool = desk.bench.call(call)
    desk.bench.sql(
        "INSERT INTO fencepost.withdrawn VALUES (%s, %s, fencepost.now(), 'ann', 'wrong')",
        tool.tool,
        tool.tool_version,
    )
    said = cli.ok("approve", str(call), "--by", "ann", *WHY)
    expected = [
        "the principal svc:checkout is disabled",
        f"version {tool.tool_version} of wallet.debit is withdrawn",
    ]
    assert said.endswith(f"as it stands now it will be refused all the same: {'; '.join(expected)}\n")
    assert cli.json("approve", str(call), "--by", "ann", *WHY)["against"] == expected
    desk.clean()
    desk.bench.ahead(36_001)
    assert cli.json("approve", str(call), "--by", "ann", *WHY)["against"] == ["its run's deadline has passed"]
    assert desk.bench.run(run).status == "ACTING"


def test_the_end_of_its_run_stands_against_a_call(desk: Desk) -> None:
    run, call = desk.approved()
    with connect(desk.bench.database.dsns["reader"], "test", autocommit=True) as connection:
        assert against(connection, TENANT, call) == []
        desk.bench.cancel(run)
        assert against(connection, TENANT, call) == ["its run is STOPPED"]


def test_a_blocked_run_says_so_where_runs_are_shown(desk: Desk, cli: Shell) -> None:
    run, call = desk.asked()
    (line,) = [line for line in cli.ok("runs", "--stuck").splitlines() if str(run) in line]
    assert "BLOCKED (ACTING)" in line
    assert "blocked: waits for approval" in line
    shown = cli.ok("show", str(run))
    assert "ACTING, blocked: waits for approval" in shown
    assert f"fencepost approve {call} --reason TEXT" in shown
    told = cli("watch", str(run), "--timeout", "200ms")
    assert "blocked: waits for approval: `fencepost approvals` says for what" in told.stdout
    assert "1 to approve it within 1 d" in told.stdout
