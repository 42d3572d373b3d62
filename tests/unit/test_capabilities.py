"""Capabilities as tokens: what is signed for one request is refused for every other, and after its time."""

import base64
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Barrier
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from fencepost.authority import AuthorizationRequest
from fencepost.authority.capabilities import Capability, capability_of
from fencepost.capabilities import (
    CapabilityRefused,
    SigningKey,
    jwks_of,
    key_of,
    read_keys,
    sign,
    signing,
    verify,
    write_key,
)
from fencepost.contracts import Effect
from fencepost.errors import UsageError
from fencepost.money import Money

SECOND = timedelta(seconds=1)
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
URL = "https://pay.example/v1/payments?dry=no"
BODY = b'{"n":1}'
ASKED = AuthorizationRequest(
    tenant="t",
    principal="svc:x",
    tool="pay.send",
    tool_version=3,
    effect=Effect.IRREVERSIBLE,
    arguments={"n": 1},
    arguments_hash="a" * 64,
    operation="b" * 64,
    run="run-1",
    call="call-1",
    attempt=2,
    phase="claim",
    at=NOW,
    resource=("account", "ann"),
    amount=Money(currency="EUR", amount_minor=1200, scale=2),
)
CAPABILITY = capability_of(ASKED, fence=7, issued_at=NOW, expires_at=NOW + 10 * SECOND)


def a_key(seed: int = 0, since: datetime = NOW) -> SigningKey:
    return key_of(Ed25519PrivateKey.from_private_bytes(bytes([seed]) * 32), since)


KEY, OTHER = a_key(1), a_key(2)
JWKS = jwks_of([KEY])
TOKEN = sign(CAPABILITY, KEY, audience="pay/default", method="POST", url=URL, body=BODY)
RIGHT: dict[str, Any] = {
    "audience": "pay/default",
    "method": "POST",
    "url": URL,
    "body": BODY,
    "now": NOW + SECOND,
}


def code_of(token: str = TOKEN, jwks: Any = JWKS, **changed: Any) -> str:
    with pytest.raises(CapabilityRefused) as caught:
        verify(token, jwks, **{**RIGHT, **changed})
    return caught.value.code


def test_a_token_says_what_was_authorised() -> None:
    assert verify(TOKEN, JWKS, **RIGHT) == CAPABILITY
    assert verify(TOKEN, json.dumps(JWKS), tenant="t", **RIGHT) == CAPABILITY
    assert verify(TOKEN, jwks_of([OTHER, KEY]), **RIGHT) == CAPABILITY
    header = jwt.get_unverified_header(TOKEN)
    assert header == {"alg": "EdDSA", "typ": "fencepost-capability+jwt", "kid": KEY.kid}
    bare = replace(CAPABILITY, resource=None, operation=None, limit=None)
    assert (
        verify(sign(bare, KEY, audience="pay/default", method="POST", url=URL, body=BODY), JWKS, **RIGHT)
        == bare
    )


def test_a_public_key_tells_no_private_one_and_is_named_by_its_thumbprint() -> None:
    # RFC 8037, appendices A.1 to A.3
    secret = base64.urlsafe_b64decode("nWGxne_9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A=")
    key = key_of(Ed25519PrivateKey.from_private_bytes(secret), NOW)
    assert key.jwk == {
        "kty": "OKP",
        "crv": "Ed25519",
        "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo",
        "kid": "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k",
        "alg": "EdDSA",
        "use": "sig",
    }
    assert "private" not in repr(key)


def test_the_seconds_of_a_token_never_cut_its_time_short() -> None:
    half = timedelta(milliseconds=500)
    short = capability_of(ASKED, fence=7, issued_at=NOW + half, expires_at=NOW + half + half / 10)
    told = verify(sign(short, KEY, audience="pay/default", method="POST", url=URL, body=BODY), JWKS, **RIGHT)
    assert (told.issued_at, told.expires_at) == (NOW, NOW + SECOND)
    assert told.id == CAPABILITY.id


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"audience": "pay/other"}, "wrong_audience"),
        ({"audience": "pay"}, "wrong_audience"),
        ({"method": "PUT"}, "wrong_request"),
        ({"method": "post"}, "wrong_request"),
        ({"url": "https://pay.example/v1/payments"}, "wrong_request"),
        ({"url": "https://pay.example/v1/payments?dry=yes"}, "wrong_request"),
        ({"url": "http://pay.example/v1/payments?dry=no"}, "wrong_request"),
        ({"url": "https://pay.example:8443/v1/payments?dry=no"}, "wrong_request"),
        ({"url": "https://evil.example/v1/payments?dry=no"}, "wrong_request"),
        ({"url": "/v1/payments?dry=no"}, "wrong_request"),
        ({"body": b'{"n":2}'}, "wrong_request"),
        ({"body": b""}, "wrong_request"),
        ({"tenant": "u"}, "wrong_tenant"),
        ({"now": NOW + 15 * SECOND}, "expired"),
        ({"now": NOW + 10 * SECOND, "leeway": 0 * SECOND}, "expired"),
        ({"now": NOW - 6 * SECOND}, "not_yet_valid"),
        ({"jwks": jwks_of([OTHER])}, "unknown_key"),
        ({"jwks": {"keys": []}}, "unknown_key"),
        ({"jwks": {"keys": [{**OTHER.jwk, "kid": KEY.kid}]}}, "bad_signature"),
    ],
)
def test_another_request_time_or_key_is_refused(changed: dict[str, Any], code: str) -> None:
    assert code_of(**changed) == code


def test_the_same_url_may_be_spelled_otherwise() -> None:
    url = "HTTPS://PAY.example:443/v1/payments?dry=no"
    assert verify(TOKEN, JWKS, **{**RIGHT, "url": url}) == CAPABILITY


def test_clocks_may_differ_a_little() -> None:
    assert verify(TOKEN, JWKS, **{**RIGHT, "now": NOW + 14 * SECOND}) == CAPABILITY
    assert verify(TOKEN, JWKS, **{**RIGHT, "now": NOW - 5 * SECOND}) == CAPABILITY


def forged(header: dict[str, Any] | None = None, key: Any = None, alg: str = "EdDSA", **claims: Any) -> str:
    bound = {"aud": "pay/default", "htm": "POST", "htu": URL, "htb": _hash(BODY)}
    told = {**CAPABILITY.claims(), **bound, **claims}
    told = {name: value for name, value in told.items() if value is not ...}
    named = {"typ": "fencepost-capability+jwt", "kid": KEY.kid, **(header or {})}
    return jwt.encode(told, key or KEY.private, algorithm=alg, headers=named)


def _hash(body: bytes) -> str:
    import hashlib

    return base64.urlsafe_b64encode(hashlib.sha256(body).digest()).decode().rstrip("=")


def test_what_is_forged_here_is_right_but_for_what_a_test_changes() -> None:
    assert verify(forged(), JWKS, **RIGHT) == CAPABILITY


def _unsigned() -> str:
    head = {"alg": "none", "typ": "fencepost-capability+jwt", "kid": KEY.kid}
    first = base64.urlsafe_b64encode(json.dumps(head).encode()).decode().rstrip("=")
    return f"{first}.{TOKEN.split('.')[1]}."


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda: "", "malformed"),
        (lambda: "x" * 9000, "malformed"),
        (lambda: "a.b.c", "malformed"),
        (lambda: TOKEN[:-4], "malformed"),
        (lambda: TOKEN.rpartition(".")[0] + "." + "A" * 86, "bad_signature"),
        (lambda: forged(key=OTHER.private), "bad_signature"),
        (
            lambda: f"{TOKEN.split('.')[0]}.{forged(tenant='u').split('.')[1]}.{TOKEN.split('.')[2]}",
            "bad_signature",
        ),
        (_unsigned, "wrong_type"),
        (lambda: forged(alg="HS256", key=KEY.jwk["x"].ljust(64)), "wrong_type"),
        (lambda: forged(alg="RS256", key=generate_private_key(65537, 2048)), "wrong_type"),
        (lambda: forged({"typ": "JWT"}), "wrong_type"),
        (lambda: forged({"jwk": OTHER.jwk}), "wrong_type"),
        (lambda: forged({"jku": "https://evil.example/keys"}), "wrong_type"),
        (lambda: forged({"kid": "other"}), "unknown_key"),
        (lambda: forged(iss="other"), "wrong_issuer"),
        (lambda: forged(aud=["pay/default", "other"]), "wrong_audience"),
        (lambda: forged(aud=...), "wrong_audience"),
        (lambda: forged(exp=...), "malformed"),
        (lambda: forged(exp="2099"), "malformed"),
        (lambda: forged(exp=1e30), "malformed"),
        (lambda: forged(exp=2**62), "malformed"),
        (lambda: forged(iat=True), "malformed"),
        (lambda: forged(sub=""), "malformed"),
        (lambda: forged(tenant=None), "malformed"),
        (lambda: forged(attempt="2"), "malformed"),
        (lambda: forged(resource="ab"), "malformed"),
        (lambda: forged(resource=["account"]), "malformed"),
        (lambda: forged(limit={"currency": "EUR", "amount_minor": 1.5, "scale": 2}), "malformed"),
        (lambda: forged(limit={"currency": "EUR", "amount_minor": 1, "scale": 0}), "malformed"),
        (lambda: forged(htm=...), "wrong_request"),
        (lambda: forged(htu=...), "wrong_request"),
        (lambda: forged(htb=...), "wrong_request"),
    ],
)
def test_a_forged_token_is_refused(make: Callable[[], str], code: str) -> None:
    assert code_of(make()) == code


@pytest.mark.parametrize(
    "jwks", ["{", "{}", "[]", {"keys": [{}]}, {"keys": [{"kid": "a", "kty": "RSA", "crv": ""}]}]
)
def test_keys_that_are_none_are_refused(jwks: Any) -> None:
    with pytest.raises(UsageError, match="no JWKS of Ed25519 keys"):
        verify(TOKEN, jwks, **RIGHT)


# -- keys in a folder --


def test_a_new_key_signs_once_its_time_has_come(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    first = write_key(folder, NOW)
    second = write_key(folder, NOW + timedelta(hours=24))
    assert (folder / ".gitignore").read_text() == "*\n", "no private key is committed by mistake"
    keys = read_keys(folder)
    assert [key.kid for key in keys] == [first.kid, second.kid]
    assert signing(keys, NOW - SECOND) is None
    assert signing(keys, NOW + SECOND) == keys[0]
    assert signing(keys, NOW + timedelta(hours=24)) == keys[1]
    assert {key["kid"] for key in jwks_of(keys)["keys"]} == {first.kid, second.kid}
    assert [oct(path.stat().st_mode & 0o777) for path in folder.glob("*.pem")] == ["0o600", "0o600"]
    token = sign(CAPABILITY, keys[0], audience="pay/default", method="POST", url=URL, body=BODY)
    assert verify(token, jwks_of(keys), **RIGHT) == CAPABILITY


def test_first_keys_that_are_made_at_once_are_all_made(tmp_path: Path) -> None:
    together = Barrier(8)

    def new(folder: Path, number: int) -> SigningKey:
        together.wait()
        return write_key(folder, NOW + number * SECOND)

    with ThreadPoolExecutor(8) as pool:
        for folder in (tmp_path / str(n) / "keys" for n in range(20)):
            made = list(pool.map(lambda n, folder=folder: new(folder, n), range(8)))
            assert [key.kid for key in read_keys(folder)] == [key.kid for key in made]
            assert (folder / ".gitignore").exists()


def test_a_folder_that_is_a_file_takes_no_key(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("")
    with pytest.raises(UsageError, match="no key can be written to"):
        write_key(tmp_path / "keys", NOW)


def test_a_file_that_is_no_key_of_ours_is_refused(tmp_path: Path) -> None:
    good = write_key(tmp_path, NOW)
    secret = (tmp_path / good.file).read_text()
    rsa = generate_private_key(65537, 2048).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    wrong: dict[str, tuple[str, bytes]] = {
        "its name": ("key.pem", secret.encode()),
        "another key than its name": ("20260102T030405Z-AAAAAAAA.pem", secret.encode()),
        "no private key": (good.file, b"-----BEGIN geheim"),
        "another kind than Ed25519": (good.file, rsa),
    }
    for complaint, (name, content) in wrong.items():
        folder = tmp_path / complaint.replace(" ", "-")
        folder.mkdir()
        (folder / name).write_bytes(content)
        with pytest.raises(UsageError, match=complaint) as caught:
            read_keys(folder)
        assert "geheim" not in str(caught.value)
    with pytest.raises(UsageError, match="cannot be read"):
        read_keys(tmp_path / "missing")
    with pytest.raises(UsageError, match="no key can be written"):
        write_key(tmp_path / good.file, NOW)


def test_a_capability_reads_back_from_its_claims_only() -> None:
    assert Capability.from_claims(CAPABILITY.claims()) == CAPABILITY
    for name in CAPABILITY.claims():
        with pytest.raises(ValueError, match="not the claims of a capability"):
            Capability.from_claims({n: v for n, v in CAPABILITY.claims().items() if n != name})
