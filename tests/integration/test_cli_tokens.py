"""`fencepost tokens`: made, shown once, listed without a secret, revoked for good; and `fencepost api`."""

import socket

import psycopg
import pytest

from fencepost.ledger.tokens import presented
from tests.integration.shell import Shell

NEW = ("tokens", "new", "--tenant", "shop", "--by", "ann", "--principal", "svc:checkout")


def test_a_token_is_shown_once_and_kept_as_a_digest(shell: Shell) -> None:
    result = shell(
        *NEW, "--principal", "svc:night", "--scopes", "runs:read, runs:write", "--note", "the shop"
    )
    assert result.exit_code == 0
    text = result.stdout.strip()
    said = presented(text)
    assert said is not None
    assert said.id in result.stderr
    secret = text.split("_", 2)[2]
    assert secret not in result.stderr
    (one,) = shell.json("tokens", role="reader")
    assert (one["id"], one["tenant"], one["note"], one["created_by"]) == (said.id, "shop", "the shop", "ann")
    assert one["principals"] == ["svc:checkout", "svc:night"]
    assert one["scopes"] == ["runs:write", "runs:read"]
    assert one["login"] == "fencepost_operator_login"
    for shown in (shell.ok("tokens"), shell.ok("tokens", "--all", "--json")):
        assert said.id in shown
        assert secret not in shown
    with psycopg.connect(shell.database.owner) as owner:
        kept = owner.execute("SELECT digest FROM fencepost.api_tokens").fetchone()
    assert kept == (said.digest,)


def test_a_token_is_revoked_once_and_for_good(shell: Shell) -> None:
    made = shell.json(*NEW, "--expires", "30d")
    assert made["expires_at"] is not None
    assert shell.json("tokens", "revoke", made["id"], "--by", "bob")["revoked_by"] == "bob"
    assert "was revoked before" in shell.refused(1, "tokens", "revoke", made["token"])
    assert "no such token" in shell.refused(2, "tokens", "revoke", "0" * 16)
    assert "no token counts" in shell.ok("tokens")
    assert "revoked" in shell.ok("tokens", "--all")
    assert shell.json("tokens", "--tenant", "bank", "--all") == []


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ((*NEW, "--scopes", "runs:delete"), "there is no scope runs:delete"),
        ((*NEW, "--scopes", ","), "may do nothing"),
        ((*NEW, "--by", " "), "by is a name"),
        (("tokens", "new", "--tenant", "shop"), "Missing option"),
        (("tokens", "new", "--tenant", " ", "--principal", "p"), "tenant is a name"),
        (("tokens", "new", "--tenant", "shop", "--principal", "p" * 201), "has 201 characters"),
        ((*NEW, "--expires", "4000d"), "at most 3650 days"),
    ],
)
def test_what_cannot_be_a_token_is_refused(shell: Shell, args: tuple[str, ...], says: str) -> None:
    assert says.lower() in shell.refused(2, *args).lower()


def test_only_an_operator_makes_and_revokes_and_nobody_edits(shell: Shell) -> None:
    made = shell.json(*NEW)
    for role in ("worker", "producer", "reader", "api"):
        assert "may not do that" in shell.refused(2, *NEW, role=role)
        assert "may not do that" in shell.refused(2, "tokens", "revoke", made["id"], role=role)
    for role in ("worker", "reader", "producer"):
        with (
            psycopg.connect(shell.database.dsns[role], autocommit=True) as session,
            pytest.raises(psycopg.errors.InsufficientPrivilege),
        ):
            session.execute("SELECT digest FROM fencepost.api_tokens")
    with psycopg.connect(shell.database.owner, autocommit=True) as owner:
        for change in ("tenant = 'bank'", "scopes = '[]'", "expires_at = NULL", "digest = repeat('0', 64)"):
            with pytest.raises(psycopg.Error, match="does not change"):
                owner.execute(f"UPDATE fencepost.api_tokens SET {change}, note = note || 'x'")
        with pytest.raises(psycopg.Error, match="never deleted"):
            owner.execute("DELETE FROM fencepost.api_tokens")
        owner.execute("UPDATE fencepost.api_tokens SET revoked_at = now(), revoked_by = 'x'")
        with pytest.raises(psycopg.Error, match="stays so"):
            owner.execute("UPDATE fencepost.api_tokens SET revoked_at = NULL, revoked_by = NULL")


def test_the_interface_says_why_it_cannot_start(shell: Shell) -> None:
    assert "fencepost_api" in shell.refused(2, "api", "--port", "0", role="reader")
    assert "cannot reach" in shell.refused(3, "api", FENCEPOST_DSN="postgresql://x@127.0.0.1:1/none")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert "choose another" in shell.refused(2, "api", "--port", port, role="api")
