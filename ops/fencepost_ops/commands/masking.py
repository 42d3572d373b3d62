"""What was sent, as people may see it: values under names of secrets are masked. Pure.

Requests are stored without the dependency's headers, so no credential of ours is in them; a body or a query
may still hold one of the application's. Masked is what its name gives away, as `***`: a secret under an
innocent name is shown.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from fencepost.settings import redact

MASK: Final = "***"
_SECRET: Final = re.compile(
    r"(?:^|[_.-])(?:pass(?:word|wd|phrase|code)|pwd|secrets?|(?:access|auth|refresh|bearer|session|api)?"
    r"[_-]?token|api[_-]?key|(?:private|secret|access|signing)[_-]?key|authorization|auth|credentials?|"
    r"cookie|cvc2?|cvv2?|pin|pan|card[_-]?number|signature|otp)$",
    re.IGNORECASE,
)
_HUMP: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def secret(name: str) -> bool:
    """Whether a field of this name is not to be shown; `cardNumber` is `card_number`."""
    return _SECRET.search(_HUMP.sub("_", name)) is not None


def masked(value: Any) -> Any:
    """A JSON value with every value under a secret's name replaced, whatever it is."""
    if isinstance(value, dict):
        return {name: MASK if secret(str(name)) else masked(item) for name, item in value.items()}
    if isinstance(value, list):
        return [masked(item) for item in value]
    return redact(value) if isinstance(value, str) else value


def masked_text(text: str) -> str:
    """A body or arguments as text: JSON and forms by field, of anything else only passwords in addresses."""
    try:
        return json.dumps(masked(json.loads(text)), ensure_ascii=False, separators=(",", ":"))
    except RecursionError:
        return f"{len(text)} characters, nested too deeply to be shown"
    except ValueError:
        return _masked_form(text)


def masked_target(url: str) -> str:
    """An address with the secrets of its query, and a password in it, masked."""
    parts = urlsplit(url)
    return redact(urlunsplit(parts._replace(query=_masked_form(parts.query))) if parts.query else url)


def _masked_form(text: str) -> str:
    if "=" not in text or "\n" in text or " " in text:
        return redact(text)
    fields = parse_qsl(text, keep_blank_values=True)
    if not any(secret(name) for name, _ in fields):
        return redact(text)
    return urlencode([(name, MASK if secret(name) else value) for name, value in fields], safe="*/")
