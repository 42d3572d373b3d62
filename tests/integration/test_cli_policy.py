"""`fencepost policy`: what is checked, tested, compared, published, shown; and what the doctor says."""

import json
from pathlib import Path
from typing import Any

import pytest

from fencepost.authority.inforce import Engines
from fencepost.ledger import policies
from fencepost.ledger.connect import connect
from fencepost_ops.database import LedgerDatabase
from tests.integration.ledger_bench import open_bench
from tests.integration.policy_app import APP, DEBITS, LOOSE, NOTES, bundle, expecting, folder
from tests.integration.shell import Shell

WHY = ("--note", "because", "--by", "ann")


@pytest.fixture
def fence(shell: Shell) -> Shell:
    shell.env["FENCEPOST_APP"] = APP
    return shell


def test_a_bundle_is_checked_tested_published_and_shown(fence: Shell, tmp_path: Path) -> None:
    first = folder(tmp_path / "a", DEBITS, tests__a_json=expecting("allow"))
    told = fence.ok("policy", "check", first)
    assert 'note: no policy permits Action::"approve", so what needs an approval can never be done' in told
    assert "bench: 1 policies, 1 tests, " in told
    assert fence.ok("policy", "test", first) == "1 of 1 tests pass\n"
    assert "nothing is published: this was a dry run" in fence.ok(
        "policy", "publish", first, "--dry-run", *WHY
    )
    assert fence.ok("policy", "history").startswith("no policy was ever published")
    told = fence.ok("policy", "publish", first, "--after", "0", *WHY)
    assert told.startswith("version 1 of bench is in force for all tenants, digest ")
    assert (
        fence.ok("policy", "publish", first, *WHY)
        == "version 1 is this bundle already; nothing is published\n"
    )
    second = folder(tmp_path / "b", LOOSE)
    assert fence.json("policy", "publish", second, "--tenant", "shop", *WHY)["published"] == 2
    rows = fence.json("policy", "history", role="reader")
    assert [(row["version"], row["tenant"], row["in_force"], row["note"]) for row in rows] == [
        (2, "shop", True, "because"),
        (1, "", True, "because"),
    ]
    assert fence.json("policy", "publish", second, *WHY)["published"] == 3
    assert [row["in_force"] for row in fence.json("policy", "history")] == [True, False, False]
    shown = fence.ok("policy", "show", "1", role="reader")
    assert '--- all.cedar\n@id("debits") permit' in shown
    assert fence.json("policy", "show", "1")["bundle"]["policies"] == {"all.cedar": DEBITS}
    hidden = folder(tmp_path / "h", DEBITS + "// \u202e hidden")
    fence.ok("policy", "publish", hidden, *WHY)
    assert "// \\u202e hidden" in fence.ok("policy", "show", "4")
    assert "there is no policy version 7" in fence.refused(2, "policy", "show", "7")


def test_an_earlier_version_is_published_again_from_its_own_files(fence: Shell, tmp_path: Path) -> None:
    fence.ok("policy", "publish", folder(tmp_path / "a", DEBITS, tests__a_json=expecting("allow")), *WHY)
    fence.ok("policy", "publish", folder(tmp_path / "b", NOTES), *WHY)
    back = str(tmp_path / "back")
    assert fence.ok("policy", "show", "1", "--to", back) == f"version 1 is written to {back}\n"
    assert "is not empty" in fence.refused(2, "policy", "show", "1", "--to", back)
    assert fence.json("policy", "publish", back, *WHY)["published"] == 3
    digests = [row["digest"] for row in fence.json("policy", "history")]
    assert digests[0] == digests[2] != digests[1]


def test_what_is_not_sound_is_not_published(fence: Shell, tmp_path: Path) -> None:
    wrong = folder(tmp_path / "a", DEBITS.replace("debit", "debti"))
    told = fence.refused(1, "policy", "publish", wrong, *WHY)
    assert told.startswith("the policies cannot be used: all.cedar:1: unrecognized action")
    checked = fence("policy", "check", wrong)
    assert (checked.exit_code, checked.stdout.splitlines()[0].partition(": ")[0]) == (1, "all.cedar:1")
    assert fence.json("policy", "check", wrong, exit_code=1)["problems"][0].startswith("all.cedar:1: ")
    failing = folder(tmp_path / "b", DEBITS, tests__a_json=expecting("deny"))
    told = fence.refused(1, "policy", "publish", failing, *WHY)
    assert (
        "not published: 1 of its tests fail, first wallet.debit is a matter of deny (decision allow" in told
    )
    tested = fence("policy", "test", failing)
    assert (tested.exit_code, tested.stdout.splitlines()[1]) == (1, "0 of 1 tests pass")
    assert not fence.json("policy", "test", failing, exit_code=1)[0]["passed"]
    assert fence("policy", "test", folder(tmp_path / "c", DEBITS)).exit_code == 1
    assert "name the application" in fence.refused(2, "policy", "check", failing, FENCEPOST_APP="")
    (tmp_path / "x.cedar").write_text(DEBITS)
    assert "is no bundle: bundle.json is missing" in fence.refused(2, "policy", "check", str(tmp_path))
    (tmp_path / "c" / "x.cedar").write_bytes(b"\xff")
    assert "is not UTF-8 at byte 0" in fence.refused(2, "policy", "check", str(tmp_path / "c"))
    assert fence.ok("policy", "history").startswith("no policy was ever published")
    fence.ok("policy", "publish", folder(tmp_path / "d", DEBITS), *WHY)
    late = fence.refused(1, "policy", "publish", folder(tmp_path / "e", NOTES), "--after", "0", *WHY)
    assert late == "the last policy is version 1 of ann, not 0; look at it, and publish after it"


ORDERED = '[{"uid": {"type": "Role", "id": "clerk"}, "parents": []}]'
"""In another order than what is published comes back in."""


def test_two_bundles_are_compared_by_text_and_by_what_they_would_decide(
    database: LedgerDatabase, fence: Shell, tmp_path: Path
) -> None:
    first = folder(tmp_path / "a", DEBITS, entities_json=ORDERED)
    assert "no two versions" in fence.refused(2, "policy", "diff")
    fence.ok("policy", "publish", first, *WHY)
    with open_bench(database) as bench:
        bench.ledger = bench.ledger_as("worker", engines=Engines())
        (debit,) = bench.plan(bench.start(), ("wallet.debit", {"order": "a"}))
    second = folder(tmp_path / "b", NOTES, entities_json=ORDERED)
    told = fence.ok("policy", "diff", second)
    assert f"-{DEBITS.strip()}" in told
    assert f"+{NOTES.strip()}" in told
    assert fence.ok("policy", "diff", first) == "nothing differs\n"
    found = fence.json("policy", "diff", second, "--calls", "10")
    assert [one["file"] for one in found["diff"]] == ["all.cedar"]
    (changed,) = found["calls"]
    assert (changed["call"], changed["before"], changed["after"]) == (str(debit), "allow", "deny")
    assert "no policy lets svc:checkout use wallet.debit" in changed["why"]
    same = fence.ok("policy", "diff", "1", first, "--calls", "10")
    assert same == "nothing differs\nno call is decided otherwise\n"
    fence.ok("policy", "publish", second, *WHY)
    assert f"+{NOTES.strip()}" in fence.ok("policy", "diff")
    assert "is neither a version nor a folder" in fence.refused(2, "policy", "diff", "1", "nowhere")


def test_the_comparison_says_which_allowances_count_anew(fence: Shell, tmp_path: Path) -> None:
    said: dict[str, Any] = {"id": "few", "count": 3, "window": "1h"}
    folders = [folder(tmp_path / "abc"[n], DEBITS) for n in range(3)]
    changes: list[dict[str, Any]] = [{}, {"count": 4}, {"window": "1d"}]
    for path, change in zip(folders, changes, strict=True):
        settings = json.loads((Path(path) / "bundle.json").read_text())
        (Path(path) / "bundle.json").write_text(json.dumps(settings | {"allowances": [said | change]}))
    fence.ok("policy", "publish", folders[0], *WHY)
    assert "counts anew" not in fence.ok("policy", "diff", folders[1])
    sentence = "allowance few: another window: it counts anew, what was used is not carried over"
    assert sentence in fence.ok("policy", "diff", folders[2])
    assert fence.json("policy", "diff", folders[2])["counting_anew"] == [sentence]


PAYS = """
@id("pays") permit (principal, action == Action::"wallet.pay", resource == Resource::"order/o-1")
when { context has amount && context.amount.minor == 100 && context.arguments.minor == 100 };
"""


def test_a_test_is_completed_by_the_tools_own_words(fence: Shell, tmp_path: Path) -> None:
    def asking(**arguments: object) -> str:
        request = {"tenant": "t", "principal": "p", "tool": "wallet.pay", "arguments": arguments}
        test = {"name": "pay", "request": request, "expect": {"decision": "allow"}}
        return json.dumps({"tests": [test]})

    whole = folder(tmp_path / "a", PAYS, tests__a_json=asking(order="o-1"))
    assert fence.ok("policy", "test", whole) == "1 of 1 tests pass\n"
    other = folder(tmp_path / "b", PAYS, tests__a_json=asking(order="o-2"))
    assert fence("policy", "test", other).exit_code == 1
    wrong = folder(tmp_path / "c", PAYS, tests__a_json=asking(oder="o-1"))
    (*_, problem) = fence.json("policy", "check", wrong, exit_code=1)["problems"]
    told = "tests/a.json: test pay: wallet.pay would not take this: order: Field required; oder: Extra inputs"
    assert problem.startswith(told)
    broken = folder(tmp_path / "d", PAYS.replace("wallet.pay", "x"), tests__a_json=asking(oder="o-1"))
    first, *_, last = fence.json("policy", "check", broken, exit_code=1)["problems"]
    assert (first.partition(":")[0], last) == ("all.cedar", problem)
    assert fence.refused(1, "policy", "test", broken).endswith(" more; fencepost policy check lists them)")


def findings(told: dict[str, list[dict[str, str]]]) -> list[tuple[str, str]]:
    return [(one["level"], one["says"]) for one in told["findings"] if one["area"] == "policies"]


def test_the_doctor_holds_policies_in_force_against_the_application(
    fence: Shell, database: LedgerDatabase
) -> None:
    def put(text: str, tenant: str = policies.ALL) -> None:
        with connect(database.dsns["operator"], "test", autocommit=True) as connection:
            policies.publish(connection, bundle(text), tenant=tenant, by="ann", note="n")

    def told(**env: str) -> list[tuple[str, str]]:
        return findings(fence.json("doctor", exit_code=3, **env))  # there is no broker here

    assert told() == []
    put(DEBITS)
    put(NOTES, "shop")
    decide = [
        ("ok", "version 2 of bench decides for tenant shop"),
        ("ok", "version 1 of bench decides for all tenants"),
    ]
    assert told() == decide
    assert told(FENCEPOST_APP="") == decide
    assert told(FENCEPOST_APP="fencepost_ops.examples.wrong_tools:no") == decide
    put(LOOSE)
    strange = told(FENCEPOST_APP="fencepost_ops.examples.orders:app")
    assert [level for level, _ in strange] == [*["problem"] * 4, "warning", "problem"]
    assert "version 3 was published without inventory.release version 1" in strange[0][1]
    assert "version 3 knows wallet.debit with other arguments" in strange[4][1]


def test_the_schemas_that_authors_write_against_are_printed(fence: Shell) -> None:
    told = fence.ok("policy", "schema")
    assert 'action "wallet.debit" in ["read"]' in told
    assert 'action "approve wallet.debit" in ["approve"]' in told
    assert json.loads(fence.ok("policy", "schema", "--tests"))["title"] == "PolicyTestFile"
