"""Capabilities as tokens: signed where a request leaves, verified by the downstream it goes to.

A token is a compact JWS (RFC 7515) by Ed25519 (RFC 8037) that says which attempt may have what done, where
(`aud`), until when (`exp`), and of which request: its method (`htm`), URL (`htu`) and SHA-256 of its body
(`htb`), after the manner of RFC 9449. Whoever captures one can at most send the same request again, which the
operation key is for. Needs PyJWT: `pip install 'fencepost[capabilities]'`.

A downstream needs `verify`, and the public keys that `fencepost keys export` prints:

    capability = verify(
        request.headers["Fencepost-Capability"], JWKS, audience="wallet/default",
        method=request.method, url=request.url, body=request.body,
    )
    if capability.action != "wallet.debit@1": ...

Verified is what the token says, that it has not expired, and that it belongs to this request. What it allows
the downstream decides: whose resource it is, and whether the amount is within `capability.limit`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from fencepost.authority.capabilities import ISSUER, Capability
from fencepost.errors import FencepostError, UsageError
from fencepost.outbound import OutboundRefused, parse

__all__ = [
    "Capability",
    "CapabilityRefused",
    "SigningKey",
    "jwks_of",
    "key_of",
    "read_keys",
    "sign",
    "signing",
    "verify",
    "write_key",
]

TYPE: Final = "fencepost-capability+jwt"
ALGORITHM: Final = "EdDSA"
MAX_TOKEN_CHARS: Final = 8192
LEEWAY: Final = timedelta(seconds=5)
"""How far the downstream's clock may be from the ledger's."""
_FILE: Final = re.compile(r"(\d{8}T\d{6}Z)-([A-Za-z0-9_-]{8})\.pem")
_STAMP: Final = "%Y%m%dT%H%M%SZ"


class CapabilityRefused(FencepostError):
    """The token gives no right to this request.

    `code`: malformed, wrong_type, unknown_key, bad_signature, wrong_issuer, wrong_audience, expired,
    not_yet_valid, wrong_request, wrong_tenant.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


# -- keys ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SigningKey:
    """One private key: `kid` is its thumbprint (RFC 7638), and it signs from `since` on."""

    kid: str
    since: datetime
    private: Ed25519PrivateKey = field(repr=False)

    @property
    def jwk(self) -> dict[str, str]:
        """Its public half (RFC 8037)."""
        return {**_jwk(self.private.public_key()), "kid": self.kid, "alg": ALGORITHM, "use": "sig"}

    @property
    def file(self) -> str:
        """The name of its file, by which keys stand in the order they are used in."""
        return f"{self.since.strftime(_STAMP)}-{self.kid[:8]}.pem"


def key_of(private: Ed25519PrivateKey, since: datetime) -> SigningKey:
    """A private key under its thumbprint."""
    return SigningKey(_thumbprint(_jwk(private.public_key())), since.astimezone(UTC), private)


def read_keys(folder: str | Path) -> tuple[SigningKey, ...]:
    """The keys of a folder, oldest first. UsageError, never with a key, for a folder or file that is none."""
    try:
        names = sorted(path.name for path in Path(folder).iterdir() if path.name.endswith(".pem"))
        found = tuple(_read(Path(folder) / name) for name in names)
    except OSError as error:
        raise UsageError(f"the signing keys in {folder} cannot be read: {error.strerror}") from error
    return found


def signing(keys: Sequence[SigningKey], now: datetime) -> SigningKey | None:
    """The key that signs: the newest whose time has come. None if there is none."""
    return max((key for key in keys if key.since <= now), key=lambda key: (key.since, key.kid), default=None)


def write_key(folder: str | Path, since: datetime) -> SigningKey:
    """A new key in a file only its owner may read. UsageError if it cannot be written."""
    private = Ed25519PrivateKey.generate()
    key = key_of(private, since)
    try:
        with suppress(FileExistsError):  # made before, or by somebody else just now
            Path(folder).mkdir(mode=0o700, parents=True)
            (Path(folder) / ".gitignore").write_text("*\n")  # of a folder that holds nothing but keys
        partial = Path(folder) / f".{key.file}.new"
        partial.touch(mode=0o600, exist_ok=False)
        partial.write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        partial.rename(Path(folder) / key.file)
    except OSError as error:
        raise UsageError(f"no key can be written to {folder}: {error.strerror}") from error
    return key


def jwks_of(keys: Sequence[SigningKey]) -> dict[str, Any]:
    """The public halves of all keys, for downstreams: those that will sign, and those that did."""
    return {"keys": [key.jwk for key in keys]}


def _read(path: Path) -> SigningKey:
    if (named := _FILE.fullmatch(path.name)) is None:
        raise UsageError(f"{path} is no key of ours: its name is YYYYMMDDTHHMMSSZ-XXXXXXXX.pem")
    try:
        private = load_pem_private_key(path.read_bytes(), password=None)
    except (ValueError, TypeError):  # what they say may quote the file
        raise UsageError(f"{path} holds no private key that can be read") from None
    if not isinstance(private, Ed25519PrivateKey):
        raise UsageError(f"{path} holds a key of another kind than Ed25519; fencepost keys new makes one")
    key = key_of(private, datetime.strptime(named[1], _STAMP).replace(tzinfo=UTC))
    if key.kid[:8] != named[2]:
        raise UsageError(f"{path} holds another key than its name says; it would be {key.kid[:8]}")
    return key


def _jwk(public: Ed25519PublicKey) -> dict[str, str]:
    raw = public.public_bytes(Encoding.Raw, PublicFormat.Raw)
    return {"crv": "Ed25519", "kty": "OKP", "x": _base64(raw)}


def _thumbprint(jwk: Mapping[str, str]) -> str:
    text = json.dumps({name: jwk[name] for name in ("crv", "kty", "x")}, separators=(",", ":"))
    return _base64(hashlib.sha256(text.encode()).digest())


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


# -- tokens --------------------------------------------------------------------------------------------------


def sign(
    capability: Capability, key: SigningKey, *, audience: str, method: str, url: str, body: bytes
) -> str:
    """The token of one request: for the dependency of scope `audience`, and for these bytes only."""
    bound = {"aud": audience, "htm": method, "htu": url, "htb": _base64(hashlib.sha256(body).digest())}
    header = {"kid": key.kid, "typ": TYPE}
    return jwt.encode(capability.claims() | bound, key.private, algorithm=ALGORITHM, headers=header)


def verify(
    token: str,
    jwks: Mapping[str, Any] | str,
    *,
    audience: str,
    method: str,
    url: str,
    body: bytes,
    tenant: str | None = None,
    now: datetime | None = None,
    leeway: timedelta = LEEWAY,
) -> Capability:
    """What a token allows, if one of these keys signed it for exactly this request, and its time is not over.

    `jwks` is what `fencepost keys export` prints; `url` the absolute URL as we sent it, with its query, which
    behind a proxy is the one outside. With `tenant` a token of another is refused. `now` is the time to judge
    by, this machine's by default. CapabilityRefused, with its `code`, for every other token; UsageError for
    keys that are none.
    """
    claims = _signed_claims(token, _public_keys(jwks))
    if claims.get("iss") != ISSUER:
        raise CapabilityRefused("wrong_issuer", "the token is of another issuer")
    if claims.get("aud") != audience:
        raise CapabilityRefused("wrong_audience", f"the token is for another service than {audience}")
    try:
        capability = Capability.from_claims(claims)
    except ValueError as error:
        raise CapabilityRefused("malformed", str(error)) from None
    at = datetime.now(UTC) if now is None else now
    if capability.expires_at + leeway <= at:
        raise CapabilityRefused("expired", "the token's time is over")
    if at < capability.issued_at - leeway:
        raise CapabilityRefused("not_yet_valid", "the token is of a later time; compare the clocks")
    if tenant is not None and capability.tenant != tenant:
        raise CapabilityRefused("wrong_tenant", "the token is of another tenant")
    _of_this_request(claims, method, url, body)
    return capability


def _signed_claims(token: str, keys: Mapping[str, Ed25519PublicKey]) -> dict[str, Any]:
    try:
        if len(token) > MAX_TOKEN_CHARS:
            raise CapabilityRefused("malformed", "the token is too long")
        header = jwt.get_unverified_header(token)
        if (
            header.get("typ") != TYPE
            or header.get("alg") != ALGORITHM
            or set(header) != {"alg", "kid", "typ"}
        ):
            raise CapabilityRefused("wrong_type", f"the token is no {TYPE} by {ALGORITHM}")
        key = keys.get(header["kid"])
        if key is None:
            raise CapabilityRefused("unknown_key", "the token is signed by a key that is not among these")
        unjudged = {"verify_aud": False, "verify_exp": False, "verify_iat": False, "verify_nbf": False}
        claims: dict[str, Any] = jwt.decode(token, key, algorithms=[ALGORITHM], options=unjudged)  # type: ignore[arg-type]
    except jwt.InvalidSignatureError:
        raise CapabilityRefused("bad_signature", "the token was not signed by the key it names") from None
    except (jwt.PyJWTError, ValueError, TypeError, RecursionError) as error:
        raise CapabilityRefused("malformed", f"the token cannot be read: {type(error).__name__}") from None
    return claims


def _of_this_request(claims: Mapping[str, Any], method: str, url: str, body: bytes) -> None:
    if claims.get("htm") != method:
        raise CapabilityRefused("wrong_request", "the token is for another method")
    if _spelled(claims.get("htu")) != _spelled(url):
        raise CapabilityRefused("wrong_request", "the token is for another URL")
    if claims.get("htb") != _base64(hashlib.sha256(body).digest()):
        raise CapabilityRefused("wrong_request", "the token is for another body")


def _spelled(url: object) -> str:
    try:
        target = parse(url if isinstance(url, str) else "")
    except OutboundRefused as error:
        raise CapabilityRefused("wrong_request", f"a request has an absolute URL: {error}") from None
    return target.origin + (target.rest or "/")


def _public_keys(jwks: Mapping[str, Any] | str) -> dict[str, Ed25519PublicKey]:
    try:
        told = json.loads(jwks) if isinstance(jwks, str) else jwks
        return {str(key["kid"]): _public(key) for key in told["keys"]}
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"this is no JWKS of Ed25519 keys: {type(error).__name__}") from None


def _public(key: Mapping[str, Any]) -> Ed25519PublicKey:
    if (key["kty"], key["crv"]) != ("OKP", "Ed25519"):
        raise ValueError("another kind of key")
    text = str(key["x"])
    return Ed25519PublicKey.from_public_bytes(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
