"""`fencepost principal`, `delegate` and `tools withdraw`: what they change, and what is noted of it."""

import threading
from collections.abc import Iterator

import psycopg
import pytest

from fencepost.errors import FencepostError
from fencepost.ledger import principals
from fencepost.ledger.connect import Connection, connect
from tests.integration.ledger_bench import TENANT, Bench
from tests.integration.shell import ORDERS, Shell

WHO = "svc:checkout"
WHY = ("--reason", "left the team", "--by", "ann")
OF = ("--tenant", TENANT)


@pytest.fixture
def shell(bench: Bench, no_settings: None) -> Iterator[Shell]:
    yield Shell(bench.database, {"COLUMNS": "240"})
    for table in ("principals", "delegations", "withdrawn"):
        bench.sql(f"DELETE FROM fencepost.{table}")


@pytest.fixture
def operator(bench: Bench, shell: Shell) -> Iterator[Connection]:
    with connect(bench.database.dsns["operator"], "test", autocommit=True) as connection:
        yield connection


def test_a_delegation_ends_within_the_calendar_and_its_end_is_told_as_a_time(shell: Shell) -> None:
    pair = ("delegate", "--from", "ann", "--to", WHO, *OF, *WHY)
    assert "--for ends after the year 9999" in shell.refused(2, *pair, "--for", "3000000d")
    shell.ok(*pair, "--until", "9999-12-31T23:59:59Z")
    told = shell.ok("delegations", *OF)
    assert "a person acts" not in told
    assert " d " in told.splitlines()[1].partition(" in ")[2]


@pytest.mark.parametrize(
    "words",
    [
        ("delegations", "--tenant"),
        ("approvals", "--tenant"),
        ("approvals", "--run"),
        ("allowances", "--tenant"),
        ("policy", "history", "--tenant"),
        ("principals", "--tenant"),
        ("explain",),
    ],
)
def test_half_a_character_is_refused_wherever_it_is_given(shell: Shell, words: tuple[str, ...]) -> None:
    assert "'half \\ud800' is no text in UTF-8" in shell.refused(2, *words, "half \ud800")


@pytest.mark.parametrize(
    "command", ["approvals", "allowances", "intake", "outbox", "principals", "runs", "unresolved"]
)
def test_a_limit_has_a_limit(shell: Shell, command: str) -> None:
    assert "1<=x<=1000000" in shell.refused(2, command, "--limit", str(10**20))


def test_a_principal_is_disabled_enabled_and_given_roles_and_everything_is_noted(shell: Shell) -> None:
    assert shell.ok("principals", role="reader") == "no principal has roles, and none is disabled\n"
    assert shell.ok("principal", "disable", WHO, *OF, *WHY) == f"{WHO} of {TENANT} is disabled\n"
    told = shell.ok("principal", "roles", WHO, *OF, "--add", "clerk", "--add", "auditor", *WHY)
    assert told == f"{WHO} of {TENANT} has the roles auditor, clerk\n"
    shell.ok("principal", "roles", WHO, *OF, "--remove", "auditor", *WHY)
    (row,) = shell.json("principals", role="reader")
    assert (row["roles"], row["reason"], row["changed_by"], row["version"]) == (
        ["clerk"],
        "left the team",
        "ann",
        3,
    )
    assert row["disabled_at"]
    assert "left the team" in shell.ok("principals", *OF)
    assert shell.ok("principals", "--tenant", "other") == "no principal has roles, and none is disabled\n"
    back = shell.json("principal", "enable", WHO, *OF, "--reason", "is back", "--by", "bob")
    assert (back["disabled_at"], back["reason"], back["roles"], back["version"]) == (None, None, ["clerk"], 4)
    noted = shell.json("principals", "--changes", role="reader")[:4]
    assert [(one["made_by"], one["reason"], one["change"]) for one in noted] == [
        ("bob", "is back", "update"),
        ("ann", "left the team", "update"),
        ("ann", "left the team", "update"),
        ("ann", "left the team", "insert"),
    ]
    assert noted[3]["said"]["disabled_at"]
    assert "is back" in shell.ok("principals", "--changes")


def test_a_decision_on_another_version_than_was_seen_is_refused(shell: Shell) -> None:
    shell.ok("principal", "disable", WHO, *OF, *WHY, "--seen", "0")
    assert "is at version 1, not 0: look again" in shell.refused(
        1, "principal", "enable", WHO, *OF, *WHY, "--seen", "0"
    )
    shell.ok("principal", "enable", WHO, *OF, *WHY, "--seen", "1")


def test_of_two_first_words_about_a_principal_neither_is_lost(bench: Bench, operator: Connection) -> None:
    done: list[object] = []

    def add(role: str) -> None:
        with connect(bench.database.dsns["operator"], "other", autocommit=True) as other:
            while True:
                try:
                    return done.append(
                        principals.set_roles(other, TENANT, WHO, by="ann", reason="x", add=[role])
                    )
                except principals.Changed:
                    continue

    threads = [threading.Thread(target=add, args=(f"r{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    (row,) = principals.listed(operator)
    assert (row.roles, row.version, len(done)) == (("r0", "r1", "r2", "r3"), 4, 4)


def test_a_delegation_is_made_listed_and_revoked(bench: Bench, shell: Shell) -> None:
    asked = ("--from", "ann", "--to", "bot", "--tools", "wallet.*", *OF)
    made = shell.json("delegate", *asked, "--for", "1h", "--reason", "on leave", "--by", "ann")
    told = shell.ok("delegations", role="reader")
    assert ("wallet.*" in told, "on leave" in told, "valid" in told) == (True, True, True)
    ended = shell.ok("revoke", made["id"][:8], "--reason", "back early", "--by", "bob")
    assert ended == "bot acts no more with the authority of ann\n"
    assert "was revoked already, by bob" in shell.refused(1, "revoke", made["id"], "--reason", "x")
    assert shell.json("delegations") == []
    (gone,) = shell.json("delegations", "--all")
    assert (gone["state"], gone["revoked_by"], gone["reason"]) == ("revoked", "bob", "on leave")
    shell.ok("delegate", *asked, "--until", "2999-01-01T00:00:00Z", "--reason", "x")
    assert [one["state"] for one in shell.json("delegations")] == ["valid"]
    bench.sql("UPDATE fencepost.delegations SET until = fencepost.now()")
    assert [one["state"] for one in shell.json("delegations", "--all")].count("expired") == 1
    noted = shell.json("principals", "--changes")
    assert {"back early", "on leave"} <= {one["reason"] for one in noted}


def test_a_version_is_withdrawn_and_restored(shell: Shell) -> None:
    assert shell.ok("tools", "withdrawn", role="reader") == "no version is withdrawn\n"
    told = shell.ok("tools", "withdraw", "wallet.debit", "1", *WHY)
    assert told == "wallet.debit version 1 is withdrawn\n"
    assert "is withdrawn already" in shell.refused(1, "tools", "withdraw", "wallet.debit", "1", *WHY)
    (row,) = shell.json("tools", "withdrawn")
    assert (row["tool"], row["version"], row["withdrawn_by"], row["reason"]) == (
        "wallet.debit",
        1,
        "ann",
        "left the team",
    )
    assert "left the team" in shell.ok("tools", "withdrawn")
    shell.ok("tools", "restore", "wallet.debit", "1", "--reason", "mended", "--by", "bob")
    assert "is not withdrawn" in shell.refused(1, "tools", "restore", "wallet.debit", "1", *WHY)
    newest = shell.json("principals", "--changes")[0]
    assert (newest["about"], newest["change"], newest["made_by"], newest["reason"]) == (
        "withdrawn",
        "delete",
        "bob",
        "mended",
    )
    assert newest["said"]["reason"] == "left the team"


def test_a_name_that_the_application_does_not_have_is_withdrawn_and_remarked_upon(shell: Shell) -> None:
    known = shell("tools", "withdraw", "wallet.debit", "1", *WHY, FENCEPOST_APP=ORDERS)
    assert (known.exit_code, known.stderr) == (0, "")
    typo = shell("tools", "withdraw", "wallet.debt", "1", *WHY, FENCEPOST_APP=ORDERS)
    assert (typo.exit_code, typo.stdout) == (0, "wallet.debt version 1 is withdrawn\n")
    assert typo.stderr.startswith("note: app orders has no wallet.debt version 1")
    gone = shell("tools", "withdraw", "wallet.dept", "1", *WHY, FENCEPOST_APP="nowhere:app")
    assert (gone.exit_code, gone.stderr) == (0, "")
    assert shell.json("tools", "restore", "wallet.debt", "1", *WHY) == {"tool": "wallet.debt", "version": 1}


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (("principal", "disable", WHO, *WHY), "tenant"),
        (("principal", "disable", WHO, *OF), "reason"),
        (("principal", "disable", WHO, *OF, "--reason", " "), "say reason"),
        (("principal", "disable", "", *OF, *WHY), "principal is a name, not"),
        (("principal", "roles", WHO, *OF, *WHY), "give --add ROLE or --remove ROLE"),
        (("principal", "roles", WHO, *OF, *WHY, "--add", "a", "--remove", "a"), "added and removed at once"),
        (("principal", "roles", WHO, *OF, *WHY, "--add", "a\u202eb"), "none of them hidden"),
        (("delegate", "--from", "a", "--to", "b", *OF, *WHY), "say when it ends"),
        (
            ("delegate", "--from", "a", "--to", "a", "--for", "1h", *OF, *WHY),
            "nobody delegates to themselves",
        ),
        (
            ("delegate", "--from", "a", "--to", "b", "--until", "2020-01-01T00:00:00Z", *OF, *WHY),
            "has passed",
        ),
        (("delegate", "--from", "a", "--to", "b", "--until", "soon", *OF, *WHY), "is no moment such as"),
        (("revoke", "abcd1234", *WHY), "there is no delegation"),
        (("tools", "withdraw", "wallet.debit", "0", *WHY), "VERSION"),
    ],
)
def test_what_makes_no_sense_is_refused_in_a_sentence(
    shell: Shell, asked: tuple[str, ...], says: str
) -> None:
    assert says in shell.refused(2, *asked)


@pytest.mark.parametrize(
    "asked",
    [
        ("principal", "disable", WHO, *OF, *WHY),
        ("delegate", "--from", "a", "--to", "b", "--for", "1h", *OF, *WHY),
        ("tools", "withdraw", "wallet.debit", "1", *WHY),
    ],
)
def test_it_takes_an_operators_login(shell: Shell, asked: tuple[str, ...]) -> None:
    for role in ("reader", "worker", "producer"):
        assert "permission denied" in shell.refused(2, *asked, role=role)


def test_what_is_changed_by_hand_is_noted_too_and_no_note_is_ever_edited(
    bench: Bench, operator: Connection
) -> None:
    operator.execute(
        "INSERT INTO fencepost.withdrawn VALUES ('mail.send', 1, fencepost.now(), 'nobody', 'by hand')"
    )
    (note, *_) = principals.changes(operator)
    assert (note.about, note.made_by, note.reason, note.said["reason"]) == (
        "withdrawn",
        None,
        None,
        "by hand",
    )
    assert note.login == operator.info.user
    for statement in (
        "DELETE FROM fencepost.authority_changes",
        "UPDATE fencepost.authority_changes SET login = 'other'",
        "TRUNCATE fencepost.authority_changes",
        "INSERT INTO fencepost.authority_changes SELECT * FROM fencepost.authority_changes",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            operator.execute(statement)
        if not statement.startswith("INSERT"):
            with pytest.raises(psycopg.DatabaseError, match="append-only"):
                bench.sql(statement)


def test_a_failed_change_leaves_nothing_behind(operator: Connection) -> None:
    before = principals.changes(operator)
    with pytest.raises(FencepostError):
        principals.disable(operator, TENANT, WHO, by="ann", reason="x", seen=9)
    assert (principals.listed(operator), principals.changes(operator)) == ([], before)


def test_another_spelling_of_a_principal_is_refused_and_shown_harmlessly(shell: Shell) -> None:
    odd = "svc:\u202eout\u200b"
    told = shell.refused(2, "principal", "disable", odd, *OF, *WHY)
    assert odd not in told
    assert "\\u202e" in told
    assert "write 'svc:checkout'" in shell.refused(2, "principal", "disable", "svc:Checkout", *OF, *WHY)
